//! What is kept for undoing the newest complete step, until that step is committed: see [`commit`](super::commit).

use std::sync::Arc;

use peergrad_protocol::message::SampleStats;
use peergrad_protocol::{Buffer, Pool, StepNumber};

use crate::state::assignment::BatchAssignment;
use crate::state::optimizer_shard::Version;

/// The parameters after the newest complete step, and what is needed to undo that step until it is committed.
#[derive(Default)]
pub(super) struct CommitState {
    /// Parameters after the newest complete step. `None` for a new member that has none yet.
    pub(super) complete: Option<Arc<Buffer>>,
    /// Parameters before the newest complete step. `None` once no member can go back to them.
    pub(super) previous: Option<Arc<Buffer>>,
    /// The newest complete step. `None` once it is committed.
    pub(super) uncommitted: Option<CompletedStep>,
    /// Whether every member is known to have completed the newest complete step, which is about to be committed.
    is_confirmed: bool,
    /// The step in which this member was a newcomer: it has no parameters from before that step.
    pub(super) entered_before: Option<StepNumber>,
    /// The assignment of the newest committed step. `None` until this member commits a step.
    pub(super) assignment: Option<Arc<BatchAssignment>>,
    /// A checkpoint is written as soon as this many steps are committed.
    pub(super) save_after: Option<StepNumber>,
}

/// A complete step that is not yet committed.
pub(super) struct CompletedStep {
    /// The batch of the step, and the data cursor after it.
    pub(super) assignment: Arc<BatchAssignment>,
    /// The number of samples in the step, and their summed loss.
    pub(super) stats: SampleStats,
    /// Samples of the batch that were trained; with local parameters, as far as this member knows.
    pub(super) samples: u64,
    /// Samples of the batch that were not trained; with local parameters, as far as this member knows.
    pub(super) left_out: u64,
    /// Samples that this member computed, if its contribution is in the step.
    pub(super) own_samples: u64,
    /// Whether all members were in the round.
    pub(super) is_of_all: bool,
}

impl CommitState {
    /// The state at the start, with these parameters, which count as committed; `entered_before` is the step of a newcomer.
    pub(super) fn new(complete: Option<Arc<Buffer>>, entered_before: Option<StepNumber>) -> Self {
        Self { complete, entered_before, ..Self::default() }
    }

    /// Every member is known to have completed the newest complete step, or none can undo it: no member goes back.
    pub(super) fn confirm(&mut self) {
        self.previous = None;
        self.is_confirmed = self.uncommitted.is_some();
    }

    /// A vector for the result of a round whose first finished sum has been seen: it may reuse the memory of the parameters that were kept
    /// for undoing the step.
    pub(super) fn take_result_buffer(&mut self, vectors: &Pool, len: usize) -> Buffer {
        self.previous = None;
        vectors.take(len)
    }

    /// A step is complete with these parameters; the state before it is kept until the commit.
    pub(super) fn complete(&mut self, parameters: Arc<Buffer>, step: CompletedStep) {
        assert!(self.uncommitted.is_none(), "a finished sum committed the step before");
        self.uncommitted = Some(step);
        self.is_confirmed = false;
        self.previous = self.complete.replace(parameters);
    }

    /// The newest complete step, if it is to be committed now.
    pub(super) fn take_confirmed(&mut self) -> Option<CompletedStep> {
        if std::mem::take(&mut self.is_confirmed) { self.uncommitted.take() } else { None }
    }

    /// Undoes the newest complete step, where `step` is in progress. Returns the step that was undone.
    pub(super) fn undo(&mut self, step: StepNumber) -> CompletedStep {
        let was_new = self.is_entering(step);
        let undone = self.uncommitted.take().expect("a committed step is never undone");
        let previous = self.previous.take();
        self.is_confirmed = false;
        self.complete = if was_new { None } else { previous };
        undone
    }

    /// Whether the newest complete step, the one before `step`, is this member's first and not committed: then there are no
    /// parameters to go back to.
    pub(super) fn is_entering(&self, step: StepNumber) -> bool {
        self.uncommitted.is_some() && self.entered_before.map(StepNumber::next) == Some(step)
    }

    /// The newest committed parameters, where `step` is in progress.
    pub(super) fn parameters(&self, step: StepNumber) -> Option<&Arc<Buffer>> {
        self.previous.as_ref().or(self.complete.as_ref()).filter(|_| !self.is_entering(step))
    }

    /// The version of a chunk's state that follows the newest complete step.
    pub(super) fn newest_version(&self) -> Version {
        if self.uncommitted.is_some() { Version::Pending } else { Version::Committed }
    }

    /// Steps that are committed, where `step` is in progress.
    pub(super) fn committed_steps(&self, step: StepNumber) -> u64 {
        step.0 - u64::from(self.uncommitted.is_some())
    }
}
