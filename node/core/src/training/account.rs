//! The account of training: the state that other parts of the node ask for, and the final state.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{Contact, MemberReport};
use peergrad_protocol::view::{Recovery, View};
use peergrad_protocol::{Buffer, PeerId, StepNumber};

use super::Training;
use crate::io::{Event, FinalState, ViewDelta};
use crate::membership::view_change::ViewChangePlanner;
use crate::membership::{Assignments, GateSnapshot, MergeSnapshot, TrainingSnapshot};
use crate::node::MemberProgress;
use crate::state::assignment::BatchAssignment;
use crate::state::checkpoint::Checkpoint;
use crate::state::shared_cache::ViewDifference;

impl Training {
    /// The state of training for membership. `report` makes this member's report, if one is asked for.
    pub(crate) fn snapshot<'a>(
        &'a self,
        report: &'a dyn Fn() -> MemberReport,
        computing: Option<StepNumber>,
    ) -> TrainingSnapshot<'a> {
        let base = self.base();
        let common = TrainingSnapshot {
            planner: ViewChangePlanner::new(&base.shard_map, &base.loaded),
            report,
            step: self.step(),
            tables: None,
            assignments: Assignments { current: self.assignment(), previous: None, next: None },
            gate: GateSnapshot { is_open: true, is_frozen: base.is_frozen, ..GateSnapshot::default() },
            has_parameters: self.has_parameters(),
            computing,
            is_closing: self.is_closing(),
            has_committed: true,
            merge: MergeSnapshot::default(),
        };
        match self {
            Self::Steps(steps) => steps.snapshot(common),
            Self::Tables(tables) => TrainingSnapshot { tables: Some(tables.snapshot()), ..common },
        }
    }

    /// The assignment of the step in progress.
    fn assignment(&self) -> &Arc<BatchAssignment> {
        match self {
            Self::Steps(steps) => steps.assignment(),
            Self::Tables(tables) => tables.assignment(),
        }
    }

    /// The assignment of the first step that is not committed.
    fn uncommitted_assignment(&self) -> &Arc<BatchAssignment> {
        match self {
            Self::Steps(steps) => steps.uncommitted_assignment(),
            Self::Tables(tables) => tables.assignment(),
        }
    }

    /// Samples that the committed steps have taken.
    pub(crate) fn trained(&self) -> u64 {
        let assignment = self.uncommitted_assignment();
        assignment.after.taken(u64::from(self.loaded().task.sample_count())).saturating_sub(assignment.len())
    }

    /// The parameters after the newest complete step; with tables, those that the program has last read. `None` for a newcomer that has
    /// none yet.
    fn newest_parameters(&self) -> Option<&Arc<Buffer>> {
        match self {
            Self::Steps(steps) => steps.newest_parameters(),
            Self::Tables(tables) => Some(tables.parameters()),
        }
    }

    /// The newest committed parameters.
    pub(crate) fn parameters(&self) -> Option<&Arc<Buffer>> {
        match self {
            Self::Steps(steps) => steps.parameters(),
            Self::Tables(tables) => Some(tables.parameters()),
        }
    }

    /// Whether this member has parameters, so that the program can be started.
    pub(crate) fn has_parameters(&self) -> bool {
        self.newest_parameters().is_some()
    }

    /// Whether the step in progress comes after the last epoch.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Steps(steps) => steps.is_over(),
            Self::Tables(tables) => tables.is_over(),
        }
    }

    /// Whether the program has ended, or would end at once.
    pub(crate) fn is_closing(&self) -> bool {
        self.base().barrier.is_waiting() || self.is_over()
    }

    /// How many chunks moved from this member to others after it had offered to own none.
    pub(crate) fn handed_over(&self) -> usize {
        self.base().handed_over
    }

    /// How far this member is in its view.
    pub(crate) fn progress(&self) -> MemberProgress {
        MemberProgress {
            view: Arc::clone(self.view()),
            digest: self.digest(),
            complete: self.at().0,
            has_parameters: self.has_parameters(),
            committed: self.committed().0,
            wait: match self {
                Self::Steps(steps) => steps.wait(),
                Self::Tables(tables) => tables.wait(),
            },
            held_segments: self.base().flow_control.held_total(),
        }
    }

    /// The optimizer state of each chunk after the newest committed step, with its count of updates. Empty with tables.
    pub(crate) fn optimizer_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        self.steps().into_iter().flat_map(|steps| steps.optimizer_states())
    }

    // Checkpoints.

    /// A checkpoint is to be written once `steps` steps are committed. With tables there are none.
    pub(crate) fn save_after(&mut self, steps: StepNumber) {
        if let Some(engine) = self.steps_mut() {
            engine.save_after(steps);
        }
    }

    /// The step after which a checkpoint is to be written; `None` if none is pending.
    pub(crate) fn save_is_due(&self) -> Option<StepNumber> {
        self.steps()?.save_is_due()
    }

    /// The newest committed state; `None` if this member has committed nothing since it began.
    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        self.steps()?.checkpoint()
    }

    /// The final state at this member: the newest committed one; `None` if there is none.
    pub(crate) fn final_state(&self) -> Option<FinalState> {
        let (base, parameters) = (self.base(), self.parameters()?);
        let left_out = base.omissions.total();
        let (samples, optimizer_bytes) = match self {
            Self::Steps(steps) => (steps.samples(), steps.optimizer_bytes()),
            Self::Tables(tables) => (tables.samples(), tables.moment_bytes()),
        };
        Some(FinalState {
            run: self.view().run,
            specification: Arc::clone(&base.specification),
            manifest: base.loaded.manifest.clone(),
            steps: self.committed().0,
            samples,
            left_out,
            own_samples: base.own_trained,
            parameters: Arc::clone(parameters),
            digest: ContentDigest::of(parameters.bytes()),
            evaluation: None,
            optimizer_bytes,
            shard: base.shard_len(self.step()),
        })
    }

    // The view.

    /// Those of `contacts` that own nothing at present, and will own nothing.
    pub(crate) fn non_owners(&self, contacts: &[Contact]) -> Vec<PeerId> {
        let view = self.view();
        if view.members.iter().all(|member| member.capacity > 0) {
            return vec![];
        }
        let shards = self.base().shards(self.step());
        let is_worker = |peer: &PeerId| {
            view.rank(peer).is_some_and(|rank| {
                let keeps =
                    [&shards.owned, &shards.replicated].iter().any(|kept| !kept[rank.index()].is_empty());
                view.member(rank).capacity == 0 && !keeps
            })
        };
        contacts.iter().map(|contact| contact.peer).filter(is_worker).collect()
    }

    /// For each rank: the number of elements that it owns at present, and of those that it replicates.
    pub(crate) fn shares(&self) -> Vec<(usize, usize)> {
        let shards = self.base().shards(self.step());
        let chunks = self.base().shard_map.sharding.chunks;
        let len_of = |list: &Vec<usize>| list.iter().map(|&chunk| chunks.range(chunk).len()).sum();
        shards
            .owned
            .iter()
            .zip(&shards.replicated)
            .map(|(owned, replicated)| (len_of(owned), len_of(replicated)))
            .collect()
    }

    /// The number of the view's moves that are not made yet.
    pub(crate) fn moves_left(&self) -> usize {
        self.view().moves.list.len() - self.base().shard_map.moved(self.step())
    }

    /// The epoch in progress, and the number of chunks of the parameter vector.
    pub(crate) fn epoch_and_chunks(&self) -> (u64, usize) {
        let epoch = match self {
            Self::Steps(steps) => steps.assignment().epoch,
            Self::Tables(tables) => tables.epoch(),
        };
        (epoch, self.base().shard_map.sharding.chunks.count())
    }

    /// The event that reports a view which resumes from checkpoints; `None` for another view.
    pub(crate) fn restored_event(&self) -> Option<Event> {
        let Recovery::Resume(resume) = &self.view().recovery else { return None };
        let parameters = self.newest_parameters().filter(|_| resume.is_restored)?;
        Some(Event::Restored {
            steps: resume.step,
            epoch: self.view().cursor.epoch,
            digest: ContentDigest::of(parameters.bytes()),
            restarted: self.view().moves.restarted.clone(),
        })
    }

    /// The event that reports the view. `difference` is that from the view before; `None` in a member's first view.
    pub(crate) fn installed_event(&self, difference: Option<&ViewDifference>) -> Event {
        let (base, view) = (self.base(), Arc::clone(self.view()));
        let change = difference.map(|difference| change(difference, &view));
        let share = base.shard_map.shares[base.rank.index()];
        Event::ViewInstalled {
            digest: self.digest(),
            shard: base.shard_len(self.step()),
            share,
            view,
            change,
        }
    }
}

/// How the view differs from the one before.
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
