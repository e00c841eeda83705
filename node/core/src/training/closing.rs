//! The closing barrier: no member is done before every member is, and with that the last step is committed.
//!
//! Of a few members each tells every other. Of many they all tell the first one, and it tells them when it has heard of
//! everyone; if it is lost, there is another view, in which every member tells again.

use std::collections::BTreeSet;

use peergrad_protocol::limits::SAMPLES_MAX;
use peergrad_protocol::message::{Closed, Complete, Message, TrainingMessage};
use peergrad_protocol::{Frame, PeerId, Rank, StepNumber};

use super::base::EngineBase;
use crate::io::{Output, Reject};
use crate::program::context::Reply;

/// Which members are done with the run.
#[derive(Default)]
pub(super) struct ClosingBarrier {
    /// Answers the program of this member once every member is done. `None` until that program is done.
    reply: Option<Reply<()>>,
    /// Other members that have told this one, in this view, that they are done.
    done: BTreeSet<PeerId>,
    /// Whether a member has said that all are done.
    is_confirmed: bool,
}

impl ClosingBarrier {
    /// Whether this member's program is done.
    pub(super) fn is_waiting(&self) -> bool {
        self.reply.is_some()
    }

    /// The program has more to do: a step is repeated.
    pub(super) fn withdraw(&mut self) {
        self.reply = None;
    }

    /// In another view, members tell again.
    pub(super) fn leave_view(&mut self) {
        self.done.clear();
    }
}

impl EngineBase {
    /// The program is done. It is answered when the program of every member is.
    pub(super) fn close(&mut self, reply: Reply<()>) {
        self.barrier.reply = Some(reply);
    }

    /// Tells the other members, or the first of many, that this one is done after so many `steps`, which have left out so many
    /// samples.
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

    /// A member is done with the run.
    ///
    /// # Errors
    /// The sender is no member of the view.
    pub(super) fn receive_complete(&mut self, from: PeerId, complete: Complete) -> Result<(), Reject> {
        self.view().rank(&from).ok_or(Reject::NotAMember)?;
        if self.loaded.program.has_local_parameters() {
            self.omissions.report_member(from, complete.left_out);
        } else {
            // A member that came late has not seen all steps.
            self.omissions.report_total(complete.left_out);
        }
        self.barrier.done.insert(from);
        Ok(())
    }

    /// A member knows that every member is done.
    ///
    /// # Errors
    /// The sender is no member of the view.
    pub(super) fn receive_closed(&mut self, from: PeerId, closed: Closed) -> Result<(), Reject> {
        self.view().rank(&from).ok_or(Reject::NotAMember)?;
        self.barrier.is_confirmed = true;
        self.omissions.report_total(closed.left_out);
        Ok(())
    }

    /// As [`EngineBase::receive_closed`], by a member that did not enter this view: all members of the view before were done.
    pub(super) fn closed_before(&mut self, closed: Closed) {
        if self.barrier.is_waiting() {
            self.barrier.is_confirmed = true;
            self.omissions.report_total(closed.left_out);
        }
    }

    /// Whether every member is done, so that the last step is committed and the run is over.
    pub(super) fn is_closed(&self) -> bool {
        let ClosingBarrier { done, is_confirmed, .. } = &self.barrier;
        self.barrier.is_waiting() && (*is_confirmed || done.len() + 1 == self.view().members.len())
    }

    /// Whether the run cannot end well without this peer: it is a member, and it or this member is not done.
    ///
    /// One that is done may still hold segments of the last step that wait for credit.
    pub(super) fn is_needed(&self, peer: &PeerId) -> bool {
        let is_done = self.barrier.done.contains(peer) || self.barrier.is_confirmed;
        self.view().rank(peer).is_some() && !(self.barrier.is_waiting() && is_done)
    }

    /// What this member tells others once every member is done.
    pub(super) fn closed(&self) -> Message {
        TrainingMessage::Closed(Closed { left_out: self.omissions.total().min(SAMPLES_MAX) })
            .in_view(self.digest())
    }

    /// Whether the others wait for this member to say that every member is done.
    pub(super) fn is_barrier_root(&self) -> bool {
        self.rank == Rank(0) && self.view().is_large()
    }

    /// Answers the program: every member is done.
    pub(super) fn end_barrier(&mut self) {
        assert!(self.is_closed(), "every member is done");
        if let Some(reply) = self.barrier.reply.take() {
            // A program that no longer waits has ended.
            let _ = reply.send(());
        }
    }
}
