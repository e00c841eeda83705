//! The commit: the moment from which the newest complete step can no longer be undone.
//!
//! # How it works
//! ```text
//! step t complete here ---> the first finished sum of step t + 1 is seen ---> step t is committed
//!  old and new are kept      (`CommitState::confirm`)                           (`commit_if_confirmed`) only the new is kept
//! ```
//! A finished sum of step t + 1 holds a contribution of every member, and a member contributes only after it has completed step
//! t. So every member has completed step t, and no view can begin before it. A step is also committed when it is rolled forward, and when
//! the closing barrier is passed; and at once if members have local parameters, since then no member can undo it. All of these call
//! [`CommitState::confirm`](super::commit_state::CommitState::confirm).
//!
//! # Invariants
//! - Until the commit, the parameters, the optimizer state and the batch of both steps are kept.
//! - A committed step is never undone.

use std::sync::Arc;

use peergrad_protocol::StepNumber;

use super::commit_state::CompletedStep;
use super::merge_snapshot::MergeSnapshots;
use super::state::{StepKind, StepState};
use crate::io::{Committed, Event, Output, Retention};

/// Commits the newest complete step, if every member is known to have completed it: drops what was kept for undoing it, and does what
/// waited for the commit.
pub(super) fn commit_if_confirmed(state: &mut StepState, merges: &mut MergeSnapshots, out: &mut Vec<Output>) {
    if let Some(record) = state.commit.take_confirmed() {
        state.commit(record, out);
        merges.end_merge(out);
        state.save_if_due(out);
        merges.snapshot_if_due(state);
    }
}

impl StepState {
    /// The step is committed: drops what was kept for undoing it.
    fn commit(&mut self, record: CompletedStep, out: &mut Vec<Output>) {
        self.optimizer.commit();
        // With local parameters, each member has accounted for its own part in `group_averaging`.
        if self.kind != StepKind::LocalParameters {
            self.base.omissions.add(record.left_out);
            self.base.own_trained += record.own_samples;
        }
        let (steps, digest_every) = (self.committed_steps(), self.base.loaded.config.digest_every);
        if let Some(residual) = &mut self.residual {
            residual.commit(StepNumber(steps - 1));
        }
        let is_due = digest_every.is_some_and(|every| steps.is_multiple_of(every.get()));
        let (step, loss) = (StepNumber(steps - 1), record.stats.loss / record.stats.samples as f64);
        // A step that merges a branch has no samples, and so no loss.
        if record.samples + record.left_out > 0 {
            self.base.loss_watch.note(step, loss);
        }
        // With local parameters, members have the same digest only after a round of all members.
        let is_due = is_due && record.is_of_all;
        let is_audit_due = || !self.audit.has_heard(self.base.rank) || self.is_in_doubt(StepNumber(steps));
        let is_audited = is_due || (record.is_of_all && is_audit_due());
        let digest = is_audited.then(|| self.report_digest(StepNumber(steps), out));
        out.push(Output::Event(Event::Committed(Committed {
            step,
            epoch: record.assignment.epoch,
            steps_expected: steps + self.base.loaded.steps_left(&record.assignment.after, self.base.view()),
            loss,
            samples: record.samples,
            left_out: record.left_out,
            may_be_late: self.kind == StepKind::BackupWorkers,
            is_own: false,
            rate: self.rate(step, &record.assignment),
            digest: digest.filter(|_| is_due),
        })));
        self.commit.assignment = Some(record.assignment);
    }

    /// A checkpoint is to be written once `steps` steps are committed. A member that is beyond that step writes none.
    pub(crate) fn save_after(&mut self, steps: StepNumber) {
        if steps.0 > self.committed_steps() {
            self.commit.save_after = Some(steps);
        }
    }

    /// Whether a checkpoint is written after so many steps, as far as this member knows.
    pub(super) fn is_saved_after(&self, steps: StepNumber) -> bool {
        self.commit.save_after == Some(steps) || self.evaluations.are_due_after(steps)
    }

    /// Which checkpoints of the run are kept.
    pub(crate) fn retention(&self) -> Retention {
        Retention {
            keep: self.base.loaded.config.checkpoints_kept,
            candidates: self.evaluations.candidates(),
        }
    }

    /// So many steps are committed, and saved: the parameters may have to be evaluated.
    fn note_evaluation(&mut self, steps: StepNumber) {
        if let Some(parameters) = self.commit.parameters(self.step)
            && !self.is_over()
        {
            self.evaluations.committed(steps, parameters, self.base.rank, self.base.view());
        }
    }

    /// The step after which a checkpoint is to be written; `None` if none is pending.
    pub(crate) fn save_is_due(&self) -> Option<StepNumber> {
        self.commit.save_after
    }

    fn save_if_due(&mut self, out: &mut Vec<Output>) {
        let steps = self.committed_steps();
        let is_named = self.commit.save_after.take_if(|at| at.0 <= steps).is_some_and(|at| at.0 == steps);
        if (is_named || self.evaluations.are_due_after(StepNumber(steps)))
            && self.base.loss_watch.is_finite()
            && self.undecided().is_none()
            && let Some(checkpoint) = self.checkpoint()
        {
            self.note_evaluation(StepNumber(steps));
            out.push(Output::SaveCheckpoint {
                checkpoint: Arc::new(checkpoint),
                retention: self.retention(),
            });
        }
    }
}
