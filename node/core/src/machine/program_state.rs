//! The program, as far as the machine drives it: whether it runs, or waits for a view.

use crate::program::command::Reply;

/// The state of the program.
#[derive(Default)]
pub(super) enum ProgramState {
    /// It has not been started.
    #[default]
    NotStarted,
    /// It was started, and nothing of it waits here.
    Running,
    /// It waits until this peer is in a view again; the reply is sent then.
    Parked(Reply<()>),
}

impl ProgramState {
    /// This peer is in no view: a program that is ready waits for one.
    pub(super) fn park(&mut self, reply: Reply<()>) {
        *self = Self::Parked(reply);
    }

    /// This peer is in a view. Returns the reply to a program that has waited for it.
    pub(super) fn unpark(&mut self) -> Option<Reply<()>> {
        match std::mem::take(self) {
            Self::Parked(reply) => {
                *self = Self::Running;
                Some(reply)
            }
            other => {
                *self = other;
                None
            }
        }
    }
}
