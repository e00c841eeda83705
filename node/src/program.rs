//! The program: an algorithm that every peer runs, as one round of straight-line code.
//!
//! The host owns the loop and never drops a program midway. A program's *fields* survive an interruption, the locals of
//! its round do not; so a round changes `self` only after its last await, and can then be repeated at will.

use std::future::Future;
use std::ops::ControlFlow;

use crate::peer::{Interrupted, Peer};

/// Whether there is another round.
pub type Flow = ControlFlow<()>;

/// An algorithm, the same on every peer.
pub trait Program: Send + 'static {
    /// One round. `Break` ends the program.
    ///
    /// Implementations write plain `async fn round`.
    ///
    /// # Errors
    /// [`Interrupted`] is passed on; the host calls again in the next view.
    fn round(&mut self, peer: &Peer) -> impl Future<Output = Result<Flow, Interrupted>> + Send;
}
