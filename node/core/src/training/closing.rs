//! The closing barrier: no member has finished the run before every member has. With that the last step is committed.
//!
//! In a small view each member tells every other one. In a large view they all tell the first member, and it tells them when it has heard
//! from all. If the first member is lost, there is another view, in which every member reports again.

use peergrad_protocol::limits::SAMPLES_MAX;
use peergrad_protocol::message::{Closed, Complete, Message, TrainingMessage};
use peergrad_protocol::{Frame, PeerId, Rank, StepNumber};

use super::base::EngineBase;
use crate::io::{Output, Reject};
use crate::program::command::Reply;

impl EngineBase {
    /// The program has ended. It gets its reply when the programs of all members have ended.
    pub(super) fn close(&mut self, reply: Reply<()>) {
        self.barrier.wait(reply);
    }

    /// Tells the other members that this one has finished after `steps` steps, which have left out `left_out` samples.
    pub(super) fn send_complete(&self, steps: StepNumber, left_out: u64, out: &mut Vec<Output>) {
        let complete = Complete { steps, left_out: left_out.min(SAMPLES_MAX) };
        let complete = TrainingMessage::Complete(complete).in_view(self.digest());
        if !self.view().is_large() {
            self.broadcast(&complete, out);
        } else if self.rank != Rank(0) {
            let to = self.view().members[0].peer;
            out.push(Output::Send { to, frame: Frame::encode(&complete, None) });
        }
    }

    /// A member has finished the run.
    ///
    /// # Errors
    /// The sender is no member of the view.
    pub(crate) fn receive_complete(&mut self, from: PeerId, complete: Complete) -> Result<(), Reject> {
        self.view().rank(&from).ok_or(Reject::NotAMember)?;
        let program = &self.loaded.program;
        if program.has_local_parameters() || program.has_tables() {
            self.omissions.report_member(from, complete.left_out);
        } else {
            // A member that joined late has not seen all steps.
            self.omissions.report_total(complete.left_out);
        }
        self.barrier.member_done(from);
        Ok(())
    }

    /// A member knows that every member has finished.
    ///
    /// # Errors
    /// The sender is no member of the view.
    pub(crate) fn receive_closed(&mut self, from: PeerId, closed: Closed) -> Result<(), Reject> {
        self.view().rank(&from).ok_or(Reject::NotAMember)?;
        self.barrier.confirm();
        self.omissions.report_total(closed.left_out);
        Ok(())
    }

    /// As [`EngineBase::receive_closed`], from a member that did not enter this view: all members of the view before had finished.
    pub(crate) fn closed_before(&mut self, closed: Closed) {
        if self.barrier.is_waiting() {
            self.barrier.confirm();
            self.omissions.report_total(closed.left_out);
        }
    }

    /// Whether every member has finished, so that the last step is committed and the run is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.barrier.is_closed(self.view().members.len())
    }

    /// Whether the run cannot end properly without this peer: it is a member, and it or this member has not finished.
    ///
    /// A member that has finished may still hold segments of the last step that wait for credit.
    pub(crate) fn is_needed(&self, peer: &PeerId) -> bool {
        self.view().rank(peer).is_some() && !self.barrier.is_closed_with(peer)
    }

    /// The message with which this member tells others that every member has finished.
    pub(crate) fn closed(&self) -> Message {
        TrainingMessage::Closed(Closed { left_out: self.omissions.total().min(SAMPLES_MAX) })
            .in_view(self.digest())
    }

    /// Whether the others wait for this member to report that every member has finished.
    pub(crate) fn is_barrier_root(&self) -> bool {
        self.rank == Rank(0) && self.view().is_large()
    }

    /// Sends the program its reply: every member has finished.
    pub(super) fn end_barrier(&mut self) {
        assert!(self.is_closed(), "every member is done");
        self.barrier.reply();
    }
}
