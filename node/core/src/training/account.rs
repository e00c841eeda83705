//! The account that a session gives of itself: where it is, and what it leaves.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{Contact, MemberReport, SavedCheckpoint};
use peergrad_protocol::view::{Recovery, View};
use peergrad_protocol::{PeerId, StepNumber, ViewDigest};

use super::Training;
use crate::io::{Event, FinalState, ViewDelta};
use crate::membership::TrainingSnapshot;
use crate::membership::view_change::ViewChangePlanner;
use crate::node::{MemberProgress, Wait};
use crate::state::checkpoint::Checkpoint;
use crate::state::shared_cache::ViewDifference;

impl Training {
    /// Where training is, for membership. `report` makes this member's report, where one is asked for.
    pub(crate) fn snapshot<'a>(
        &'a self,
        report: &'a dyn Fn() -> MemberReport,
        computing: Option<StepNumber>,
    ) -> TrainingSnapshot<'a> {
        let is_stopped = self.stop_before.is_some_and(|stop| stop <= self.step);
        TrainingSnapshot {
            planner: ViewChangePlanner::new(&self.shard_map, &self.loaded),
            step: self.step,
            tables: self.table_snapshot(),
            assignment: &self.assignment,
            previous_assignment: self.uncommitted.as_ref().map(|record| &*record.assignment),
            next_assignment: self.next_assignment.as_deref(),
            report,
            has_parameters: self.complete.is_some(),
            is_open: self.is_open,
            is_held: is_stopped && !self.is_open && self.complete.is_some(),
            computing,
            is_still: self.is_frozen,
            is_behind_view: self.is_behind_view,
            is_closing: self.is_closing(),
            has_committed: self.tables.is_some() || self.committed_steps() > self.view().first_step().0,
            merge_ready: self.imported(),
            merge_offer: None,
        }
    }

    /// Samples that the committed steps have taken.
    pub(crate) fn trained(&self) -> u64 {
        let assignment = self.uncommitted.as_ref().map_or(&self.assignment, |record| &record.assignment);
        assignment.after.taken(u64::from(self.loaded.task.sample_count())).saturating_sub(assignment.len())
    }

    /// Whether the program is done, or would be at once.
    pub(crate) fn is_closing(&self) -> bool {
        self.replies.closed.is_some() || self.is_over()
    }

    /// Whether a view is one that this member has left.
    pub(crate) fn is_past(&self, view: &ViewDigest) -> bool {
        self.past.contains(view)
    }

    /// Whether the run cannot end well without this member: unless both it and this one are done.
    ///
    /// One that is done may still hold segments of the last step that wait for credit.
    pub(crate) fn is_needed(&self, peer: &PeerId) -> bool {
        let is_done = self.closed.contains(peer) || self.is_closed_by_message;
        self.view().rank(peer).is_some() && !(self.replies.closed.is_some() && is_done)
    }

    /// Where a member can be dialed.
    pub(crate) fn contact_of(&self, peer: &PeerId) -> Option<Contact> {
        Some(self.view().member(self.view().rank(peer)?).contact())
    }

    /// Chunks that moved from this member to others after it had offered to own none.
    pub(crate) fn handed_over(&self) -> usize {
        self.handed_over
    }

    /// Where this member is.
    pub(crate) fn progress(&self) -> MemberProgress {
        let wait = match &self.current {
            _ if self.replies.closed.is_some() => Wait::Closing,
            _ if self.is_frozen || self.is_behind_view => Wait::View,
            _ if !self.is_open => Wait::Start,
            _ if self.is_waiting_for_tables() => Wait::Rows,
            Some(current) if current.is_silent => Wait::Shards,
            Some(_) if self.replies.reduced.is_some() => Wait::Sums,
            Some(_) if self.replies.updated.is_some() || self.replies.gathered.is_some() => Wait::Shards,
            Some(_) | None => Wait::Program,
        };
        MemberProgress {
            view: Arc::clone(self.view()),
            digest: self.digest(),
            complete: self.clock().unwrap_or(self.step).0,
            has_parameters: self.complete.is_some(),
            committed: self.committed_steps(),
            wait,
            held_segments: self.flow_control.held_total(),
        }
    }

    /// By chunk: the optimizer state after the newest committed step, and the updates behind it.
    pub(crate) fn optimizer_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        self.optimizer.committed().map(|(chunk, state)| (chunk, &state.moments[..], state.updates))
    }

    /// The newest committed state, if this member has committed anything since it began.
    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        let assignment = self.committed.as_ref()?;
        let parameters = self.parameters()?;
        let states = || self.optimizer.committed().filter(|_| self.shard_map.sharding.has_state);
        let saved = SavedCheckpoint {
            steps: StepNumber(self.committed_steps()),
            branch: self.view().history.branch,
            cursor: assignment.after.clone(),
            digest: ContentDigest::of(parameters.bytes()),
            states: states().map(|(chunk, _)| chunk).collect(),
        };
        Some(Checkpoint {
            run: self.view().run,
            specification: Arc::clone(&self.specification),
            manifest: self.loaded.manifest.clone(),
            saved,
            parameters: Arc::clone(parameters),
            states: states().map(|(_, state)| state.clone()).collect(),
            left_out: self.omissions.counted(),
            own_samples: self.own_trained,
        })
    }

    /// What the run leaves here: the newest committed state, if there is one.
    pub(crate) fn final_state(&self) -> Option<FinalState> {
        let parameters = self.parameters()?;
        let sample_count = u64::from(self.loaded.task.sample_count());
        let assignment = self.uncommitted.as_ref().map_or(&self.assignment, |record| &record.assignment);
        let left_out = self.omissions.total();
        let samples =
            assignment.after.taken(sample_count).saturating_sub(assignment.len().saturating_add(left_out));
        Some(FinalState {
            run: self.view().run,
            specification: Arc::clone(&self.specification),
            manifest: self.loaded.manifest.clone(),
            steps: self.committed_steps(),
            samples: self.table_samples().unwrap_or(samples),
            left_out,
            own_samples: self.own_trained,
            parameters: Arc::clone(parameters),
            digest: ContentDigest::of(parameters.bytes()),
            evaluation: None,
            optimizer_bytes: self.table_moment_bytes().unwrap_or_else(|| self.optimizer.byte_count()),
            shard: self.shard_len(),
        })
    }

    /// Those of `contacts` who own nothing at present, and are to own nothing.
    pub(crate) fn non_owners(&self, contacts: &[Contact]) -> Vec<PeerId> {
        let view = self.view();
        if view.members.iter().all(|member| member.capacity > 0) {
            return vec![];
        }
        let shards = self.cache.shards(&self.shard_map, self.shard_map.moved(self.step));
        let is_worker = |peer: &PeerId| {
            view.rank(peer).is_some_and(|rank| {
                let keeps =
                    [&shards.owned, &shards.replicated].iter().any(|kept| !kept[rank.index()].is_empty());
                view.member(rank).capacity == 0 && !keeps
            })
        };
        contacts.iter().map(|contact| contact.peer).filter(is_worker).collect()
    }

    /// Elements that this member owns at present.
    fn shard_len(&self) -> usize {
        let shards = self.cache.shards(&self.shard_map, self.shard_map.moved(self.step));
        shards.layout.shard(self.rank.index()).len()
    }

    /// What the user is told where this view goes on from checkpoints.
    pub(crate) fn restored_event(&self) -> Option<Event> {
        let Recovery::Resume(resume) = &self.view().recovery else { return None };
        let complete = self.complete.as_ref().filter(|_| resume.is_restored)?;
        Some(Event::Restored {
            steps: resume.step,
            epoch: self.view().cursor.epoch,
            digest: ContentDigest::of(complete.bytes()),
            restarted: self.view().moves.restarted.clone(),
        })
    }

    /// By rank: elements that it owns at present, and elements of whose state it keeps a copy.
    pub(crate) fn shares(&self) -> Vec<(usize, usize)> {
        let shards = self.cache.shards(&self.shard_map, self.shard_map.moved(self.step));
        let chunks = self.shard_map.sharding.chunks;
        let len_of = |list: &Vec<usize>| list.iter().map(|&chunk| chunks.range(chunk).len()).sum();
        shards
            .owned
            .iter()
            .zip(&shards.replicated)
            .map(|(owned, replicated)| (len_of(owned), len_of(replicated)))
            .collect()
    }

    /// Chunks that the view lists and that have not moved yet.
    pub(crate) fn moves_left(&self) -> usize {
        self.view().moves.list.len() - self.shard_map.moved(self.step)
    }

    /// The epoch that is trained, and the chunks of the parameter vector.
    pub(crate) fn epoch_and_chunks(&self) -> (u64, usize) {
        (self.table_epoch().unwrap_or(self.assignment.epoch), self.shard_map.sharding.chunks.count())
    }

    /// What the user is told when a view is entered.
    pub(crate) fn installed_event(&self, difference: Option<&ViewDifference>) -> Event {
        let view = Arc::clone(self.view());
        let change = difference.map(|difference| change(difference, &view));
        let share = self.shard_map.shares[self.rank.index()];
        Event::ViewInstalled { digest: self.digest(), shard: self.shard_len(), share, view, change }
    }
}

/// What is another way than before.
fn change(difference: &ViewDifference, view: &View) -> ViewDelta {
    let Recovery::Resume(resume) = &view.recovery else { unreachable!("only the first view founds a run") };
    ViewDelta {
        joined: difference.joined.clone(),
        left: difference.left.clone(),
        step: resume.step,
        is_interruption: resume.is_interruption(),
        is_forward: resume.forward.is_some(),
        is_merge: resume.merge.is_some(),
        returned: view.cursor.returned.iter().map(|span| span.len()).sum(),
        moving: view.moves.list.len(),
        restarted: view.moves.restarted.clone(),
        retiring: difference.retiring.clone(),
    }
}
