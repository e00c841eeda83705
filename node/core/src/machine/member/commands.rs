//! The commands of the program: when the program starts, and which part carries out each of its operations.

use super::ActiveMember;
use crate::machine::context::NodeContext;
use crate::machine::jobs::Purpose;
use crate::machine::role::Role;
use crate::program::command::ProgramCommand;
use crate::program::executor::ProgramExecutor;

/// The program, once this member has parameters; `None` before that.
pub(in crate::machine) fn program(active: &ActiveMember) -> Option<ProgramExecutor> {
    let loaded = active.training.loaded();
    active.training.has_parameters().then(|| loaded.program.executor(loaded))
}

/// Carries out one command. A command of an interrupted step is dropped together with its reply.
pub(in crate::machine) fn carry_out(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    command: ProgramCommand,
) {
    let (training, out) = (&mut active.training, &mut *cx.out);
    match command {
        ProgramCommand::Ready(reply) => training.ready(reply, out),
        ProgramCommand::Begin(reply) => training.begin(reply, out),
        ProgramCommand::Compute { turn, cost, work, reply } if training.is_current(turn) => {
            cx.node.jobs.start(Purpose::Program(training.at(), reply), cost, work, out);
        }
        ProgramCommand::ReduceScatter { turn, contribution, among, reply } if training.is_current(turn) => {
            if let Err((peer, reject)) = training.reduce_scatter(contribution, among, reply, out) {
                active.reject(cx, peer, reject);
            }
        }
        ProgramCommand::UpdateOwned { turn, rule, reply } if training.is_current(turn) => {
            training.update_owned(rule, reply, out);
        }
        ProgramCommand::AllGather { turn, reply } if training.is_current(turn) => {
            training.all_gather(reply, out)
        }
        ProgramCommand::UpdateOwned { turn, reply, .. } | ProgramCommand::AllGather { turn, reply }
            if training.is_finished(turn) =>
        {
            // The send fails if the program has ended and no longer waits.
            let _ = reply.send(());
        }
        ProgramCommand::BeginClock(reply) => training.begin_clock(reply, out),
        ProgramCommand::Operate { turn, operation } if training.is_current(turn) => {
            training.operate(operation, out)
        }
        ProgramCommand::Finished(reply) => training.close(reply, out),
        ProgramCommand::Compute { .. }
        | ProgramCommand::Operate { .. }
        | ProgramCommand::ReduceScatter { .. }
        | ProgramCommand::UpdateOwned { .. }
        | ProgramCommand::AllGather { .. } => {}
    }
}
