//! The status of training: its state of training, as far as membership needs it.

use peergrad_protocol::message::{MemberReport, MergeOffer};
use peergrad_protocol::{Instant, Rank, StepNumber};

use crate::membership::view_change::ViewChangePlanner;
use crate::state::assignment::BatchAssignment;
use crate::state::snapshot_id::SnapshotId;

/// The state of training, as far as membership needs it.
pub(crate) struct TrainingStatus<'a> {
    /// Plans the next view from members' reports.
    pub(crate) planner: ViewChangePlanner<'a>,
    /// Makes this member's report for the choice of the next view.
    pub(crate) report: &'a dyn Fn() -> MemberReport,
    /// The step in progress.
    pub(crate) step: StepNumber,
    /// The state of the tables; `None` if the run has none.
    pub(crate) tables: Option<TableStatus>,
    /// The batch assignments of the newest steps.
    pub(crate) assignments: Assignments<'a>,
    /// Whether training continues, and what it waits for.
    pub(crate) gate: GateStatus,
    /// Whether this member has parameters: a newcomer has none before its first step is complete.
    pub(crate) has_parameters: bool,
    /// The step for which this member's own program computes; `None` while it does not compute.
    pub(crate) computing: Option<StepNumber>,
    /// Until when it is busy, or was, by the word of this member's user.
    pub(crate) busy_until: Instant,
    /// Whether the program has ended.
    pub(crate) is_closing: bool,
    /// Whether a step of this view is committed.
    pub(crate) has_committed: bool,
    /// Whether another branch can be merged.
    pub(crate) merge: MergeStatus<'a>,
}

/// The state of a program with tables, as far as membership needs it.
pub(crate) struct TableStatus {
    /// The clock of this member's worker.
    pub(crate) clock: StepNumber,
    /// Whether every owner and replica holder of a chunk has it.
    pub(crate) are_replicated: bool,
    /// Whether the program waits for rows, which may need the progress of other members.
    pub(crate) is_reading: bool,
}

/// The batch assignments that a member knows.
pub(crate) struct Assignments<'a> {
    /// That of the step in progress.
    pub(crate) current: &'a BatchAssignment,
    /// That of the step before; `None` once that step is committed.
    pub(crate) previous: Option<&'a BatchAssignment>,
    /// That of the step after; `None` if it follows from this view.
    pub(crate) next: Option<&'a BatchAssignment>,
}

/// Whether training continues, and what it waits for.
#[derive(Clone, Copy, Default)]
pub(crate) struct GateStatus {
    /// Whether this member has begun the step.
    pub(crate) is_open: bool,
    /// Whether this member does not begin the step because the next view begins with it.
    pub(crate) is_held: bool,
    /// Whether training is frozen: it takes in and sends nothing.
    pub(crate) is_frozen: bool,
    /// Whether this view cannot begin with what this member has.
    pub(crate) is_behind_view: bool,
}

/// Whether another branch can be merged.
#[derive(Clone, Copy, Default)]
pub(crate) struct MergeStatus<'a> {
    /// The snapshot of another branch, once this member has its part of it; `None` otherwise.
    pub(crate) ready: Option<SnapshotId>,
    /// At the coordinator: the snapshot to merge, once all members have their part of it; `None` otherwise.
    pub(crate) offer: Option<&'a MergeOffer>,
}

impl GateStatus {
    /// Whether this member has stopped, so that the next view can begin.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_held || self.is_frozen
    }
}

impl TrainingStatus<'_> {
    /// The progress of this member: its step, or its worker's clock where there are tables.
    pub(super) fn progress(&self) -> StepNumber {
        self.tables.as_ref().map_or(self.step, |tables| tables.clock)
    }

    /// Whether no state is lost if `leavers` go before `step`.
    pub(super) fn can_leave(&self, leavers: &[Rank], step: StepNumber) -> bool {
        self.tables.as_ref().is_none_or(|tables| tables.are_replicated)
            && self.planner.can_leave(leavers, step)
    }

    /// The assignment of a step, if this member knows it.
    pub(super) fn assignment_of(&self, step: StepNumber) -> Option<&BatchAssignment> {
        let Assignments { current, previous, next } = self.assignments;
        if step == self.step {
            Some(current)
        } else if step == self.step.next() {
            next
        } else {
            previous.filter(|_| step.next() == self.step)
        }
    }
}
