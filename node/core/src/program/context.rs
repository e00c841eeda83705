//! The interface of a program: [`Context`], the handle to its peer, and [`Step`] or [`Clock`], the unit of work that it is in.
//!
//! A program is sequential code that awaits its operations; the node is a state machine that never waits. A mailbox connects them: each
//! operation is a command with a one-shot reply. A reply that is dropped without an answer interrupts the program.
//!
//! # Invariants
//! - An operation starts when it is called; `await` only waits for its end. To overlap operations, call all of them first.
//! - Operations belong to a [`Step`]: a program that ignores an interruption is interrupted again by its next operation.
//! - Tensors move into an operation; nothing is borrowed across an await.

use std::sync::Arc;

use futures_channel::mpsc;
use peergrad_protocol::Buffer;

pub use crate::program::batch::Batch;
pub use crate::program::clock::Clock;
use crate::program::command::{ClockStart, ProgramCommand, StepStart};
pub use crate::program::contribution::{Contribution, ShardUpdate};
use crate::program::mailbox::Mailbox;
pub use crate::program::mailbox::{Interrupted, Pending};
pub use crate::program::step::Step;
pub use crate::state::owner_rule::CustomRule;

/// A program's handle to its peer.
#[derive(Clone)]
pub struct Context {
    /// Where the program's operations go.
    mailbox: Mailbox,
}

impl Context {
    pub(crate) fn new(commands: mpsc::UnboundedSender<ProgramCommand>) -> Self {
        Self { mailbox: Mailbox::new(commands) }
    }

    pub(crate) fn ready(&self) -> Pending<()> {
        self.mailbox.ask(ProgramCommand::Ready)
    }

    pub(crate) fn finished(&self) -> Pending<()> {
        self.mailbox.ask(ProgramCommand::Finished)
    }

    /// Begins the next step. Returns the step, the parameters that it starts from, and a buffer of the same length (parameters) for a
    /// gradient, with unspecified contents.
    ///
    /// # Errors
    /// [`Interrupted`] if the run ends first.
    pub async fn begin_step(&self) -> Result<(Step, Arc<Buffer>, Buffer), Interrupted> {
        let begun = self.mailbox.ask(ProgramCommand::Begin).await?;
        let StepStart { number, batch, parameters, room } = begun;
        Ok((Step { number, batch, mailbox: self.mailbox.clone() }, parameters, room))
    }

    /// Orders the end of the run before its epochs are over, as a user's `peer end-run` does: for a program that stops when it has converged.
    /// One member's order suffices. All members agree on the last step; or, if the program has tables, on the last samples. Then each of
    /// them gets a batch that [is over](crate::program::batch::Batch::is_over).
    pub fn end_run(&self) {
        self.mailbox.send(ProgramCommand::EndRun);
    }

    /// Begins the next clock of this worker, in a program that has [tables](crate::program::ProgramFactory::with_tables).
    ///
    /// # Errors
    /// [`Interrupted`] if the run ends first.
    pub async fn begin_clock(&self) -> Result<Clock, Interrupted> {
        let ClockStart { number, batch, position, is_kept, layout } =
            self.mailbox.ask(ProgramCommand::BeginClock).await?;
        Ok(Clock { number, position, is_kept, layout, batch, mailbox: self.mailbox.clone() })
    }
}
