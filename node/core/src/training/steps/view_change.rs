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
//! A program that waits for an operation of a step notices nothing if the step continues; only an undone step interrupts it.
//!
//! In a fully replicated step, an incomplete step has no new value of any chunk, so this member cannot send one to others.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_collectives::round::RoundContribution;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::message::{MemberReport, PartialStep};
use peergrad_protocol::view::{Resume, RollForward, View};
use peergrad_protocol::{PeerId, StepNumber, ViewDigest};

use super::commit::commit_if_confirmed;
use super::rounds::Rounds;
use super::state::{StepKind, StepState};
use super::transfer::Transfer;
use super::{StepEngine, StepGate};
use crate::io::Output;
use crate::peer_links::LinkFlow;
use crate::program::command::Reply;
use crate::program::contribution::Contribution;
use crate::state::optimizer_shard::Version;

impl StepState {
    /// Undoes the newest complete step, which is not committed.
    fn undo(&mut self) {
        let record = self.commit.undo(self.step);
        self.step = StepNumber(self.step.0 - 1);
        self.optimizer.undo();
        self.forget_residuals(self.step);
        self.assignment = record.assignment;
    }

    /// Goes to the first step of the view, as a member without parameters.
    fn restart_as_newcomer(&mut self) {
        // This member has contributed nothing so far.
        self.forget_residuals(StepNumber(0));
        self.step = self.base.view().first_step();
        self.commit.entered_before = Some(self.step);
        self.assign_batch();
    }
}

impl StepEngine {
    // Before the change.

    /// Whether the view begins at a step that this member has not reached.
    pub(in crate::training) fn is_behind_view(&self) -> bool {
        self.gate.is_behind_view
    }

    /// Resumes in the same view, as if training had not stopped.
    pub(in crate::training) fn thaw(&mut self, out: &mut Vec<Output>) {
        self.state.base.is_frozen = false;
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

    /// Takes the step before which it has stopped, and those after it, in this view.
    pub(in crate::training) fn continue_steps(&mut self, out: &mut Vec<Output>) {
        self.gate.stop_before = None;
        self.make_progress(out);
    }

    /// Whether it has stopped before `step`, and no member needs anything from it in this view any more.
    pub(crate) fn has_stopped_before(&self, step: StepNumber) -> bool {
        self.state.step == step && !self.gate.is_open && self.rounds.live.is_empty()
    }

    /// The step of this member, and the chunks and state that it has.
    pub(in crate::training) fn report(&self) -> MemberReport {
        let state = &self.state;
        let commit = &state.commit;
        if commit.complete.is_none() {
            return MemberReport { awaited: self.awaited(), ..MemberReport::default() };
        }
        let is_uncommitted = commit.uncommitted.is_some();
        MemberReport {
            is_vote_only: false,
            complete: Some(state.step),
            states: state.optimizer.held(commit.newest_version()),
            states_before: is_uncommitted.then(|| state.optimizer.held(Version::Committed)),
            is_entering: commit.is_entering(state.step),
            stats: commit.uncommitted.as_ref().map(|record| record.stats).or(self.group.consolidated),
            next: holdings(state, &self.transfer, &self.rounds),
            lost: vec![],
            complaints: vec![],
            awaited: self.awaited(),
            is_still: false,
            has_merge_snapshot: self.merge_snapshots.has_pending(state),
            rejoin: None,
        }
    }

    // The change.

    /// Enters `view`, which resumes as `resume` says. `flows` are those of all links; the members' shares are taken out of it, and put
    /// back when the view is left.
    pub(in crate::training) fn enter(
        &mut self,
        (view, digest): (&Arc<View>, ViewDigest),
        resume: &Resume,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) {
        let state = &mut self.state;
        let next_assignment =
            state.next_assignment.take().unwrap_or_else(|| state.assignment_of(state.step.next()));
        state.base.enter(view, digest, flows, out);
        state.audit.leave_view();
        state.evaluations.view_changed(view);
        self.rounds.early.clear();
        self.backup_workers.leave_view();
        self.norms.leave_view();
        self.merge_snapshots.leave_view();
        self.gate = StepGate::default();
        // A committed step is never undone, whatever the record says.
        if state.commit.uncommitted.is_some() && state.step == resume.step.next() {
            state.undo();
            self.merge_snapshots.undo();
            self.rounds.live.clear();
            self.transfer.clear();
            self.interrupt();
        }
        self.merge_snapshots.update_missing_chunks(&self.state);
        if !self.resume(resume, out) {
            self.gate.is_behind_view = true;
            // The batch of the step that this view begins with is in the view's record.
            let state = &mut self.state;
            state.next_assignment = (state.step.next() < resume.step).then_some(next_assignment);
            return;
        }
        // After a roll forward, state is pending as after any complete step.
        let is_filling = self.transfer.is_filling();
        let version = if is_filling { Version::Pending } else { self.state.commit.newest_version() };
        self.state.restart_states(&view.moves, version);
        self.state.base.is_frozen = false;
        self.make_progress(out);
        if self.state.base.barrier.is_waiting() {
            self.state.send_complete(out);
        }
    }

    /// Goes to the step that the view begins at. Returns whether this member can.
    fn resume(&mut self, resume: &Resume, out: &mut Vec<Output>) -> bool {
        let state = &mut self.state;
        let lacks_snapshot = resume.merge.is_some() && !self.merge_snapshots.has_pending(state);
        let is_next = state.step.next() == resume.step;
        let has_local_parameters = state.kind == StepKind::LocalParameters;
        if state.commit.complete.is_none() {
            state.restart_as_newcomer();
            self.rounds.live.clear();
            self.transfer.clear();
            self.program.current = None;
        } else if state.step == resume.step && !lacks_snapshot {
            self.redo();
        } else if let Some(forward) = resume.forward.as_ref().filter(|_| is_next) {
            if has_local_parameters {
                state.account_for_all();
            }
            self.roll_forward(forward, out);
        } else if state.step < resume.step && has_local_parameters && resume.is_interruption() {
            self.skip_ahead(resume.step, out);
        } else {
            return false;
        }
        true
    }

    /// Returns the credit of all held segments: training is over at this member. A program that waits for a view continues to wait.
    pub(in crate::training) fn leave(
        mut self,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) -> Option<Reply<()>> {
        self.state.base.leave(flows, out);
        self.program.replies.ready.take()
    }

    /// The round of the step in progress starts again, with this member's contribution.
    fn redo(&mut self) {
        let state = &mut self.state;
        let contribution =
            self.rounds.end_all(state.step).and_then(|live| live.round.interrupt().contribution);
        self.transfer.clear();
        state.forget_residuals(state.step);
        let was_late = self.backup_workers.forget_lateness(state.step);
        state.optimizer.discard_sums();
        if state.commit.uncommitted.is_none() {
            state.optimizer.undo();
        }
        let part = state.part().to_vec();
        state.assign_batch();
        if part != state.part() {
            // The program computes other samples than those needed now.
            self.interrupt();
        }
        if !was_late && self.program.current.as_ref().is_some_and(|current| current.is_silent()) {
            // The step is repeated: without a contribution, or without the state that was to be blended in.
            self.program.current = None;
        }
        let Some(current) = &mut self.program.current else { return };
        current.repeat();
        if was_late {
            // The program still computes for a step that is repeated.
            return self.interrupt();
        }
        match contribution {
            Some(contribution) => self.contribute_again(contribution),
            // The contribution's memory was used for the result of a step that was to be rolled forward and is not.
            None if current.has_contributed && !self.backup_workers.has_offered() => self.interrupt(),
            None => {}
        }
    }

    /// Contributes to the step in progress what was known of this member's contribution when its round ended.
    fn contribute_again(&mut self, contribution: RoundContribution) {
        if self.state.kind == StepKind::BackupWorkers {
            let RoundContribution { vector, stats, .. } = contribution;
            self.contribute(Contribution { vector, stats });
        } else {
            self.start_round(contribution, None);
        }
    }

    /// Completes the step in progress with what members hold together.
    fn roll_forward(&mut self, forward: &RollForward, out: &mut Vec<Output>) {
        let state = &mut self.state;
        let held = holdings(state, &self.transfer, &self.rounds);
        let held = held.map(|holdings| holdings.values).unwrap_or_default();
        let result = self.rounds.end_all(state.step).and_then(|live| live.round.interrupt().result);
        let filled = self.transfer.clear().map(|(filled, _)| filled);
        state.optimizer.discard_sums();
        let chunks = state.base.shard_map.sharding.chunks;
        let missing = (0..chunks.count()).filter(|chunk| !held.contains(*chunk)).collect();
        // Chunks that are not here are overwritten, including the sums of a fully replicated step.
        let vector = filled.or(result).unwrap_or_else(|| state.base.vectors.take(chunks.parameter_count()));
        // The step has finished sums, so every member has completed the one before.
        state.commit.confirm();
        commit_if_confirmed(state, &mut self.merge_snapshots, out);
        self.transfer.fill(state, (vector, missing), forward, out);
        self.end_filling();
    }

    /// Interrupts the program: its commands so far are void, its contribution to a step with backup workers is dropped, and so is its wait
    /// at the closing barrier.
    pub(super) fn interrupt(&mut self) {
        self.program.interrupt();
        self.backup_workers.withdraw_offer();
        self.state.base.barrier.withdraw();
    }
}

/// The chunks and state of the step in progress that are here.
fn holdings(state: &StepState, transfer: &Transfer, rounds: &Rounds) -> Option<PartialStep> {
    let states = if state.commit.uncommitted.is_some() {
        ChunkSet::default()
    } else {
        state.optimizer.held(Version::Pending)
    };
    transfer.holdings(state, &states).or_else(|| rounds.holdings(state, states))
}
