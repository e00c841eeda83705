//! The closing barrier in a run of steps. The barrier itself is in the [base](crate::training::closing).

use futures_channel::oneshot;
use peergrad_protocol::StepNumber;

use super::{StepEngine, StepKind};
use crate::io::Output;
use crate::program::command::Reply;

impl StepEngine {
    /// The program has ended: tells the other members, and waits until all of them have said so.
    pub(in crate::training) fn close(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        self.base.close(reply);
        self.program.current = None;
        if !self.is_suspended() {
            self.send_complete(out);
        }
    }

    pub(super) fn send_complete(&self, out: &mut Vec<Output>) {
        let left_out = match self.kind {
            // Each step is counted immediately.
            StepKind::LocalParameters => self.base.omissions.counted(),
            StepKind::Synchronous | StepKind::BackupWorkers => self.left_out_before(),
        };
        self.base.send_complete(self.step, left_out, out);
    }

    /// The run is over, and the program still computes something that no step waits for: the other members need not wait for it.
    pub(in crate::training) fn close_without_program(&mut self, out: &mut Vec<Output>) {
        let is_waiting = self.base.barrier.is_waiting();
        if self.has_backups() && self.is_over() && !is_waiting && !self.is_suspended() {
            let (no_program, _) = oneshot::channel();
            self.close(no_program, out);
        }
    }

    /// Commits the last step: all members have passed the closing barrier.
    pub(in crate::training) fn commit_last(&mut self, out: &mut Vec<Output>) {
        self.commit.confirm();
        self.commit_if_confirmed(out);
    }

    /// The number of steps that every member is known to have completed.
    pub(in crate::training) fn committed(&self) -> StepNumber {
        StepNumber(self.committed_steps())
    }
}
