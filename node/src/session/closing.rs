//! The closing barrier: nobody is done before everyone is, and with that the last step is committed.

use peergrad_protocol::PeerId;
use peergrad_protocol::message::{Complete, Message};

use super::Session;
use crate::io::{Output, Reject};
use crate::peer::Reply;

impl Session {
    /// The program is done: tells everyone, and waits until everyone has said so.
    pub(crate) fn close(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        self.waiting.closed = Some(reply);
        self.current = None;
        if !self.is_frozen && !self.is_unbegun {
            self.tell_complete(out);
        }
    }

    pub(super) fn tell_complete(&self, out: &mut Vec<Output>) {
        let complete = Complete { view: self.digest(), steps: self.step, left_out: self.left_out };
        self.tell_all(&Message::Complete(complete), out);
    }

    /// A member is done with the run.
    ///
    /// # Errors
    /// It is none of the view.
    pub(crate) fn complete_elsewhere(&mut self, from: PeerId, complete: Complete) -> Result<(), Reject> {
        self.view().rank(&from).ok_or(Reject::NotAMember)?;
        if self.loaded.program.drifts() {
            self.left_out_elsewhere.insert(from, complete.left_out);
        } else {
            // A member that came late has not seen all steps.
            self.left_out = self.left_out.max(complete.left_out);
        }
        self.closed.insert(from);
        Ok(())
    }

    /// A member knows that everyone is done.
    ///
    /// # Errors
    /// It is none of the view.
    pub(crate) fn closed_elsewhere(&mut self, from: PeerId) -> Result<(), Reject> {
        self.view().rank(&from).ok_or(Reject::NotAMember)?;
        self.is_closed_by_word = true;
        Ok(())
    }

    /// As [`Session::closed_elsewhere`], by a member that did not enter this view: all of the one before were done.
    pub(crate) fn closed_before(&mut self) {
        self.is_closed_by_word |= self.waiting.closed.is_some();
    }

    /// Whether everyone is done, so that the last step is committed and the run is over.
    pub(crate) fn is_closed(&self) -> bool {
        let is_said = self.is_closed_by_word || self.closed.len() + 1 == self.view().members.len();
        self.waiting.closed.is_some() && is_said
    }

    /// Commits the last step, after the closing barrier.
    pub(crate) fn commit_last(&mut self, out: &mut Vec<Output>) {
        assert!(self.is_closed(), "everyone is done");
        self.previous = None;
        self.commit(out);
        if let Some(reply) = self.waiting.closed.take() {
            let _ = reply.send(());
        }
    }
}
