//! The closing barrier in a run of steps. The barrier itself is in the [base](crate::training::closing).

use futures_channel::oneshot;

use super::StepEngine;
use super::commit::commit_if_confirmed;
use super::state::{StepKind, StepState};
use crate::io::Output;
use crate::program::command::Reply;

impl StepState {
    /// Tells the other members that this one has finished the run, and with which parameters.
    pub(super) fn send_complete(&mut self, out: &mut Vec<Output>) {
        // With local parameters, members have compared them at the commit of the last round of all.
        if self.commit.complete.is_some() && self.kind != StepKind::LocalParameters {
            self.report_digest(self.step, out);
        }
        let left_out = match self.kind {
            // Each step is counted immediately.
            StepKind::LocalParameters => self.base.omissions.counted(),
            StepKind::Synchronous | StepKind::BackupWorkers => self.left_out_before(),
        };
        self.base.send_complete(self.step, left_out, out);
    }
}

impl StepEngine {
    /// The program has ended: tells the other members, and waits until all of them have said so.
    pub(super) fn close(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        self.state.base.close(reply);
        self.program.current = None;
        if !self.is_suspended() {
            self.state.send_complete(out);
        }
    }

    /// The run is over, and the program still computes something that no step waits for: the other members need not wait for it.
    pub(crate) fn close_without_program(&mut self, out: &mut Vec<Output>) {
        let state = &self.state;
        let is_waiting = state.base.barrier.is_waiting();
        let has_backups = state.kind == StepKind::BackupWorkers;
        if has_backups && state.is_over() && !is_waiting && !self.is_suspended() {
            let (no_program, _) = oneshot::channel();
            self.close(no_program, out);
        }
    }

    /// Commits the last step: all members have passed the closing barrier.
    pub(in crate::training) fn commit_last(&mut self, out: &mut Vec<Output>) {
        self.state.commit.confirm();
        commit_if_confirmed(&mut self.state, &mut self.merge_snapshots, out);
    }
}
