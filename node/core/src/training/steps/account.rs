//! The account of a run of steps: the state that other parts of the node ask for.

use super::StepEngine;
use crate::membership::{Assignments, GateStatus, MergeStatus, TrainingStatus};
use crate::node_report::Wait;

impl StepEngine {
    /// Adds the state of the step engine to its status for membership.
    pub(in crate::training) fn status<'a>(&'a self, common: TrainingStatus<'a>) -> TrainingStatus<'a> {
        let Self { state, gate, .. } = self;
        TrainingStatus {
            assignments: Assignments {
                previous: state.commit.uncommitted.as_ref().map(|record| &*record.assignment),
                next: state.next_assignment.as_deref(),
                ..common.assignments
            },
            gate: GateStatus {
                is_open: gate.is_open,
                is_held: gate.is_held(state.step) && !gate.is_open && state.commit.complete.is_some(),
                is_behind_view: gate.is_behind_view,
                ..common.gate
            },
            has_committed: state.committed_steps() > state.base.view().first_step().0,
            merge: MergeStatus { ready: self.merge_snapshots.imported(), ..common.merge },
            ..common
        }
    }

    /// What the program of this member waits for.
    pub(in crate::training) fn wait(&self) -> Wait {
        let replies = &self.program.replies;
        match &self.program.current {
            _ if self.state.base.barrier.is_waiting() => Wait::Closing,
            _ if self.is_suspended() => Wait::View,
            _ if !self.gate.is_open => Wait::Start,
            Some(current) if current.is_silent() => Wait::Shards,
            Some(current) if !current.has_contributed || !self.rounds.is_known(self.state.step) => {
                Wait::Program
            }
            Some(_) if replies.reduced.is_some() => Wait::Sums,
            Some(_) if replies.updated.is_some() || replies.gathered.is_some() => Wait::Shards,
            Some(_) | None => Wait::Program,
        }
    }
}
