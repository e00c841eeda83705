//! The closing barrier: nobody is done before everyone is, and with that the last step is committed.
//!
//! Of a few members each tells every other. Of many they all tell the first one, and it tells them when it has heard of
//! everyone; if it is lost, there is another view, in which everybody tells again.

use futures_channel::oneshot;
use peergrad_protocol::limits::SAMPLES_MAX;
use peergrad_protocol::message::{Closed, Complete, Message};
use peergrad_protocol::{Frame, PeerId, Rank};

use super::Training;
use crate::io::{Output, Reject};
use crate::program::context::Reply;

impl Training {
    /// The program is done: tells everyone, and waits until everyone has said so.
    pub(crate) fn close(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        self.replies.closed = Some(reply);
        self.current = None;
        if !self.is_frozen && !self.is_behind_view {
            self.send_complete(out);
        }
    }

    pub(super) fn send_complete(&self, out: &mut Vec<Output>) {
        // Where members drift, each step is in its account at once.
        let has_local_parameters = self.loaded.program.has_local_parameters();
        let left_out = if has_local_parameters { self.omissions.counted() } else { self.left_out_before() }
            .min(SAMPLES_MAX);
        let complete = Complete { view: self.digest(), steps: self.step, left_out };
        let complete = Message::Complete(complete);
        if !self.view().is_large() {
            self.broadcast(&complete, out);
        } else if self.rank != Rank(0) {
            let to = self.view().members[0].peer;
            out.push(Output::Send { to, frame: Frame::encode(&complete, None) });
        }
    }

    /// A member is done with the run.
    ///
    /// # Errors
    /// It is none of the view.
    pub(crate) fn receive_complete(&mut self, from: PeerId, complete: Complete) -> Result<(), Reject> {
        self.view().rank(&from).ok_or(Reject::NotAMember)?;
        if self.loaded.program.has_local_parameters() {
            self.omissions.report_member(from, complete.left_out);
        } else {
            // A member that came late has not seen all steps.
            self.omissions.report_total(complete.left_out);
        }
        self.closed.insert(from);
        Ok(())
    }

    /// A member knows that everyone is done.
    ///
    /// # Errors
    /// It is none of the view.
    pub(crate) fn receive_closed(&mut self, from: PeerId, closed: Closed) -> Result<(), Reject> {
        self.view().rank(&from).ok_or(Reject::NotAMember)?;
        self.is_closed_by_message = true;
        self.omissions.report_total(closed.left_out);
        Ok(())
    }

    /// As [`Training::receive_closed`], by a member that did not enter this view: all of the one before were done.
    pub(crate) fn closed_before(&mut self, closed: Closed) {
        if self.replies.closed.is_some() {
            self.is_closed_by_message = true;
            self.omissions.report_total(closed.left_out);
        }
    }

    /// Whether everyone is done, so that the last step is committed and the run is over.
    pub(crate) fn is_closed(&self) -> bool {
        let is_said = self.is_closed_by_message || self.closed.len() + 1 == self.view().members.len();
        self.replies.closed.is_some() && is_said
    }

    /// What this member tells others once everyone is done.
    pub(crate) fn closed(&self) -> Message {
        Message::Closed(Closed { view: self.digest(), left_out: self.omissions.total().min(SAMPLES_MAX) })
    }

    /// The run is over, and the program still computes what no step waits for: the others need not wait either.
    pub(crate) fn close_without_program(&mut self, out: &mut Vec<Output>) {
        if self.has_backups() && self.is_over() && self.replies.closed.is_none() && !self.is_suspended() {
            let (nobody, _) = oneshot::channel();
            self.close(nobody, out);
        }
    }

    /// Whether the others wait for this member to say that everyone is done.
    pub(crate) fn is_barrier_root(&self) -> bool {
        self.rank == Rank(0) && self.view().is_large()
    }

    /// Commits the last step, after the closing barrier.
    pub(crate) fn commit_last(&mut self, out: &mut Vec<Output>) {
        assert!(self.is_closed(), "everyone is done");
        self.commit.confirm();
        self.commit_if_confirmed(out);
        if let Some(reply) = self.replies.closed.take() {
            let _ = reply.send(());
        }
    }
}
