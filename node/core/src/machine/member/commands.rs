//! The commands of the program: when the program starts, and which part carries out each of its operations.

use super::ActiveMember;
use crate::machine::context::NodeContext;
use crate::machine::jobs::{ProgramJob, Purpose};
use crate::machine::role::Role;
use crate::program::command::ProgramCommand;
use crate::program::executor::ProgramExecutor;

/// The program, once this member has parameters; `None` before that.
pub(in crate::machine) fn program(active: &ActiveMember) -> Option<ProgramExecutor> {
    let loaded = active.training.base().loaded();
    active.training.has_parameters().then(|| loaded.program.executor(loaded))
}

/// Carries out one command. A command of an interrupted step is dropped together with its reply.
pub(in crate::machine) fn carry_out(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    command: ProgramCommand,
) {
    match command {
        ProgramCommand::Compute { turn, cost, work, reply } => {
            if active.training.is_current(turn) {
                let job = ProgramJob { step: active.training.at(), samples: cost, began: cx.now, reply };
                cx.node.jobs.start(Purpose::Program(job), cost, work, cx.out);
            }
        }
        ProgramCommand::EndRun => active.membership.end_run(cx.out),
        command => {
            if let Err((peer, reject)) = active.training.command(command, cx.out) {
                active.reject(cx, peer, reject);
            }
        }
    }
}
