//! The mailbox between a program and the machine, on the program's side: it sends commands and waits for their answers.

use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};

use futures_channel::{mpsc, oneshot};

use crate::io::{JobOutput, Work};
use crate::program::command::{JobReply, ProgramCommand, Reply, TableOperation};

/// The step was undone, or the run ended, before the operation was done. The node keeps what the operation was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted: the step is undone")]
pub struct Interrupted;

/// The program's end of the mailbox.
#[derive(Clone)]
pub(super) struct Mailbox(mpsc::UnboundedSender<ProgramCommand>);

impl Mailbox {
    pub(super) fn new(commands: mpsc::UnboundedSender<ProgramCommand>) -> Self {
        Self(commands)
    }

    pub(super) fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> ProgramCommand) -> Pending<T> {
        let (reply, answer) = oneshot::channel();
        // A closed mailbox drops the command and its reply with it, which is the interruption.
        let _ = self.0.unbounded_send(command(reply));
        Pending(answer)
    }

    /// Sends a command that has no answer.
    pub(super) fn send(&self, command: ProgramCommand) {
        let _ = self.0.unbounded_send(command);
    }

    /// Sends a table operation that has no answer.
    pub(super) fn tell(&self, turn: u64, operation: TableOperation) {
        self.send(ProgramCommand::Operate { turn, operation });
    }

    /// Runs `work` on a compute thread; `cost` is the number of samples that it computes.
    pub(super) fn compute<T: Send + 'static>(
        &self,
        turn: u64,
        cost: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        self.ask(|reply| ProgramCommand::Compute {
            turn,
            cost,
            work: Work::whole(work),
            reply: JobReply::Program(Box::new(move |answer: JobOutput| {
                let answer = answer.downcast().expect("a job answers with what its work returned");
                // The program may have stopped waiting for it.
                let _ = reply.send(*answer);
            })),
        })
    }
}

/// An operation that has started. It continues even if this future is dropped.
#[must_use = "an operation has to be awaited before the program uses its result"]
pub struct Pending<T>(oneshot::Receiver<T>);

impl<T> Future for Pending<T> {
    type Output = Result<T, Interrupted>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| Interrupted)
    }
}
