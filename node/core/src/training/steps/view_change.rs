//! View changes: what a new view does to a step in progress.
//!
//! # How it works
//! 1. *Freeze.* While the next view is being agreed on, this member takes in and sends no frames, and completes no step; so its report
//!    stays true.
//! 2. *Enter.* The record says where training resumes. It may be the step in progress, with the kept contributions; the one before, which
//!    is undone because others cannot complete it; or the one after, which members hold together: missing chunks are requested.
//!
//! ```text
//!   complete here      the view begins at s        what happens
//!   s                  s                           the round of s starts again, with the kept contribution
//!   s + 1              s                           the newest step is undone; the program is interrupted and repeats it
//!   s - 1              s, forward                  missing chunks are requested; then the step is complete as usual
//!   less               s                           this member cannot begin the view: another one must follow
//! ```
//! With local parameters (see [group averaging](super::group_averaging)) nothing is undone, and a member that has completed fewer than s
//! steps skips to s.
//! A program that waits for an operation of a step notices nothing if the step goes on; only an undone step interrupts it.
//!
//! In a fully replicated step, an incomplete step has no new value of any chunk, so this member cannot send one to others.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::message::{MemberReport, PartialStep};
use peergrad_protocol::view::{Moves, Recovery, RollForward, View};
use peergrad_protocol::{PeerId, StepNumber, ViewDigest};

use super::StepEngine;
use super::program::UpdatedPrefix;
use crate::io::Output;
use crate::program::command::Reply;
use crate::program::contribution::Contribution;
use crate::state::optimizer_shard::Version;

impl StepEngine {
    // Before the change.

    /// Whether the view begins at a step that this member has not reached.
    pub(in crate::training) fn is_behind_view(&self) -> bool {
        self.gate.is_behind_view
    }

    /// Resumes in the same view, as if training had not stopped.
    pub(in crate::training) fn thaw(&mut self, out: &mut Vec<Output>) {
        self.base.is_frozen = false;
        self.end_filling();
        if let Err((peer, _)) = self.take_early(out) {
            out.push(Output::Disconnect(peer));
        }
        self.make_progress(out);
    }

    /// Does not take `step` in this view. An earlier step before which it had stopped may be taken now.
    pub(in crate::training) fn stop_before(&mut self, step: StepNumber, out: &mut Vec<Output>) {
        self.gate.stop_before = Some(step);
        self.make_progress(out);
    }

    /// Whether it has stopped before `step`, and no member needs anything from it in this view any more.
    pub(in crate::training) fn has_stopped_before(&self, step: StepNumber) -> bool {
        self.step == step && !self.gate.is_open && self.rounds.live.is_empty()
    }

    /// The step of this member, and the chunks and state that it has.
    pub(in crate::training) fn report(&self) -> MemberReport {
        if self.commit.complete.is_none() {
            return MemberReport::default();
        }
        let is_uncommitted = self.commit.uncommitted.is_some();
        MemberReport {
            is_vote_only: false,
            complete: Some(self.step),
            states: self.optimizer.held(self.commit.newest_version()),
            states_before: is_uncommitted.then(|| self.optimizer.held(Version::Committed)),
            is_entering: self.is_entering(),
            stats: self.commit.uncommitted.as_ref().map(|record| record.stats).or(self.group.consolidated),
            next: self.holdings(),
            lost: vec![],
            has_merge_snapshot: self.has_merge_snapshot(),
            rejoin: None,
        }
    }

    /// The chunks and state of the step in progress that are here.
    fn holdings(&self) -> Option<PartialStep> {
        let states = if self.commit.uncommitted.is_some() {
            ChunkSet::default()
        } else {
            self.optimizer.held(Version::Pending)
        };
        if let Some(missing) = self.transfer.missing() {
            let count = self.base.shard_map.sharding.chunks.count();
            let values = (0..count).filter(|chunk| !missing.contains(chunk)).collect();
            return Some(PartialStep { values, states, stats: self.transfer.stats() });
        }
        // The state of a group's step is of no use to other members.
        let live = self
            .rounds
            .live
            .back()
            .filter(|live| live.step == self.step && live.group_averaging.is_none())?;
        let mut values = ChunkSet::default();
        if live.shards.is_fully_replicated {
            // Members gather sums: there are no new values until the step is complete.
            return Some(PartialStep { values, states, stats: live.round.seen_stats() });
        }
        for (owner, shard) in live.shards.owned.iter().enumerate() {
            let segments = &live.plan.layout.shard(owner).segments()[..live.round.held_segments(owner)];
            let mut elements: usize = segments.iter().map(|segment| segment.len()).sum();
            // The chunks that have new values are the first ones of the shard.
            for &chunk in shard {
                let len = self.base.shard_map.sharding.chunks.range(chunk).len();
                if len > elements {
                    break;
                }
                elements -= len;
                values.insert(chunk);
            }
        }
        Some(PartialStep { values, states, stats: live.round.seen_stats() })
    }

    // The change.

    /// Enters `view`. `credits` are those of all links; the members' shares are taken out of it, and put back when the view is left.
    pub(in crate::training) fn enter(
        &mut self,
        view: &Arc<View>,
        digest: ViewDigest,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) {
        let Recovery::Resume(resume) = &view.recovery else {
            unreachable!("only the first view founds a run")
        };
        let next_assignment =
            self.next_assignment.take().unwrap_or_else(|| self.assignment_of(self.step.next()));
        self.base.enter(view, digest, credits, out);
        self.rounds.early.clear();
        self.backup_workers.leave_view();
        self.gate.stop_before = None;
        self.merge_snapshots.leave_view();
        self.gate.is_open = false;
        self.gate.is_behind_view = false;
        // A committed step is never undone, whatever the record says.
        if self.commit.uncommitted.is_some() && self.step == resume.step.next() {
            self.undo();
        }
        self.update_missing_chunks();
        let lacks_bequest = resume.merge.is_some() && !self.has_merge_snapshot();
        let is_forward = resume.forward.is_some() && self.step.next() == resume.step;
        if self.commit.complete.is_none() {
            self.restart_as_newcomer();
        } else if self.step == resume.step && !lacks_bequest {
            self.redo();
        } else if let (Some(forward), true) = (&resume.forward, is_forward) {
            if self.has_local_parameters() {
                self.account_for_all();
            }
            self.roll_forward(forward, out);
        } else if self.step < resume.step && self.has_local_parameters() && resume.is_interruption() {
            self.skip_ahead(resume.step, out);
        } else {
            self.gate.is_behind_view = true;
            // The batch of the step that this view begins with is in the view's record.
            self.next_assignment = (self.step.next() < resume.step).then_some(next_assignment);
            return;
        }
        self.restart_states(&view.moves);
        self.base.is_frozen = false;
        self.make_progress(out);
        if self.base.barrier.is_waiting() {
            self.send_complete(out);
        }
    }

    /// Returns the credit of all held segments: training is over at this member. A program that waits for a view goes on waiting.
    pub(in crate::training) fn leave(
        mut self,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) -> Option<Reply<()>> {
        self.base.leave(credits, out);
        self.program.replies.ready.take()
    }

    fn undo(&mut self) {
        let record = self.commit.undo(self.step);
        self.merge_snapshots.undo();
        self.step = StepNumber(self.step.0 - 1);
        self.rounds.live.clear();
        self.transfer.clear();
        self.optimizer.undo();
        self.forget_left_out(self.step);
        self.assignment = record.assignment;
        self.interrupt();
    }

    fn restart_as_newcomer(&mut self) {
        // This member has contributed nothing so far.
        self.forget_left_out(StepNumber(0));
        self.rounds.live.clear();
        self.transfer.clear();
        self.program.current = None;
        self.step = self.base.view().first_step();
        self.commit.entered_before = Some(self.step);
        self.assign_batch();
    }

    /// The round of the step in progress starts again, with this member's contribution.
    fn redo(&mut self) {
        let mut contribution = None;
        for live in std::mem::take(&mut self.rounds.live).into_iter().filter(|live| live.step == self.step) {
            contribution = live.round.interrupt().contribution;
        }
        self.transfer.clear();
        self.forget_left_out(self.step);
        let was_late = self.forget_lateness();
        self.optimizer.discard_sums();
        if self.commit.uncommitted.is_none() {
            self.optimizer.undo();
        }
        let part = self.part().to_vec();
        self.assign_batch();
        if part != self.part() {
            // The program computes other samples than those needed now.
            self.interrupt();
        }
        if !was_late && self.program.current.as_ref().is_some_and(|current| current.is_silent()) {
            // The step is repeated: without a contribution, or without the state that was to be blended in.
            self.program.current = None;
        }
        let Some(current) = &mut self.program.current else { return };
        current.updated = UpdatedPrefix::default();
        if was_late {
            // The program still computes for a step that is repeated.
            return self.interrupt();
        }
        match contribution {
            Some((vector, stats)) => self.contribute(Contribution { vector, stats }),
            // The contribution's memory was used for the result of a step that was to be rolled forward and is not.
            None if current.has_contributed && !self.backup_workers.has_offered() => self.interrupt(),
            None => {}
        }
    }

    /// Drops the residuals of contributions to `step` and later ones: no sum contains these contributions.
    fn forget_left_out(&mut self, step: StepNumber) {
        if let Some(residual) = &mut self.residual {
            residual.undo(step);
        }
    }

    /// Completes the step in progress with what members hold together.
    fn roll_forward(&mut self, forward: &RollForward, out: &mut Vec<Output>) {
        let held = self.holdings().map(|holdings| holdings.values).unwrap_or_default();
        let mut vector = None;
        for live in std::mem::take(&mut self.rounds.live).into_iter().filter(|live| live.step == self.step) {
            vector = live.round.interrupt().result;
        }
        if let Some((filled, _)) = self.transfer.clear() {
            vector = Some(filled);
        }
        self.optimizer.discard_sums();
        let chunks = self.base.shard_map.sharding.chunks;
        let missing = (0..chunks.count()).filter(|chunk| !held.contains(*chunk)).collect();
        // Chunks that are not here are overwritten, including the sums of a fully replicated step.
        let vector = vector.unwrap_or_else(|| self.base.vectors.take(chunks.parameter_count()));
        self.fill(vector, missing, forward.stats, &forward.donors, out);
    }

    /// State that no member has restarts without updates, at its present holders.
    fn restart_states(&mut self, moves: &Moves) {
        if self.commit.complete.is_none() || moves.restarted.is_empty() {
            return;
        }
        // After a roll forward, state is pending as after any complete step.
        let version =
            if self.transfer.is_filling() { Version::Pending } else { self.commit.newest_version() };
        let shards = self.base.cache.shards(&self.base.shard_map, 0);
        for chunk in moves.restarted.iter().map(|chunk| *chunk as usize) {
            let is_kept = chunk < self.base.shard_map.sharding.chunks.count()
                && shards.has_replica(chunk, self.base.rank);
            if is_kept && self.commit.complete.is_some() {
                self.optimizer.insert(version, chunk, None);
            }
        }
    }
}
