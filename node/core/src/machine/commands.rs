//! The commands of the program: when the program starts, and which part carries out each of its operations.

use peergrad_protocol::Instant;

use super::{Machine, NodeRole};
use crate::io::Output;
use crate::machine::jobs::Purpose;
use crate::program::command::ProgramCommand;
use crate::program::executor::ProgramExecutor;

impl Machine {
    /// The program, when it is time to start it; `None` otherwise.
    pub(crate) fn program(&mut self) -> Option<ProgramExecutor> {
        let NodeRole::Member(active) = &mut self.role else { return None };
        if self.is_program_started || !active.training.has_parameters() {
            return None;
        }
        self.is_program_started = true;
        let loaded = active.training.base().loaded();
        Some(loaded.program.executor(loaded))
    }

    /// Carries out one command. A command of an interrupted step is dropped together with its reply.
    pub(crate) fn command(&mut self, now: Instant, command: ProgramCommand, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else {
            if let ProgramCommand::Ready(reply) = command {
                self.parked = Some(reply);
            }
            return;
        };
        let training = &mut active.training;
        match command {
            ProgramCommand::Compute { turn, cost, work, reply } => {
                if training.is_current(turn) {
                    self.jobs.start(Purpose::Program(training.at(), reply), cost, work, out);
                }
            }
            command => {
                if let Err((peer, reject)) = training.command(command, out) {
                    self.reject(now, peer, reject, out);
                }
            }
        }
        self.advance(now, out);
    }
}
