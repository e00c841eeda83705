//! The messages that a member receives outside of training: joiners, votes on the next view, other branches, and requests of users.

use peergrad_protocol::message::{
    AdminMessage, AgreementMessage, Departure, Join, JoinMessage, MergeMessage, Message, Refusal, Welcome,
};
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Frame, Instant, PeerId};

use super::{Machine, NodeRole, Progress};
use crate::io::{Output, Reject};

impl Machine {
    pub(super) fn member_received(
        &mut self,
        now: Instant,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Err(Reject::OutOfPlace) };
        if active.progress == Progress::Evaluating {
            return self.finished_received(from, &message, out);
        }
        match message {
            Message::Join(message) => self.member_received_join(now, from, message, out),
            Message::Agreement(message) => self.member_received_agreement(now, from, message, out),
            Message::Merge(message) => self.member_received_merge(now, from, message, payload, out),
            Message::Admin(message) => {
                let membership = &mut active.membership;
                match message {
                    AdminMessage::Retire => membership.on_retire(from),
                    AdminMessage::Expel(expulsion) => membership.on_expel(&from, expulsion),
                    AdminMessage::Rekey(rekey) => {
                        membership.on_rekey(&from, rekey, out);
                        return Ok(());
                    }
                    AdminMessage::Rekeyed(at) => {
                        membership.on_rekeyed(from, at);
                        return Ok(());
                    }
                }
                self.poll_membership(now, out);
                Ok(())
            }
            Message::Heartbeat(beat) => {
                active.membership.on_heartbeat(now, from, beat, out);
                Ok(())
            }
            Message::Leave(Departure { reason }) => {
                self.departed(now, from, &reason, out);
                Ok(())
            }
            Message::InView { .. } => Err(Reject::OutOfPlace),
        }
    }

    fn member_received_join(
        &mut self,
        now: Instant,
        from: PeerId,
        message: JoinMessage,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Err(Reject::OutOfPlace) };
        let membership = &mut active.membership;
        match message {
            JoinMessage::Join(join) => self.on_join(from, &join, out),
            JoinMessage::Ready if membership.on_ready(now, from) => self.poll_membership(now, out),
            // The sender is a member already, and does not know it yet.
            JoinMessage::Ready if membership.is_member(&from) => {
                let install = AgreementMessage::Install(View::clone(active.training.view()));
                self.send(from, &install.into(), None, out);
            }
            // An earlier incarnation of this member welcomed the sender, or this one has forgotten the sender: the sender has to ask again.
            JoinMessage::Ready => self.send(from, &JoinMessage::Refuse(Refusal::NotReady).into(), None, out),
            JoinMessage::Candidate(member) => {
                if member.peer == from && membership.is_current_incarnation(&member) {
                    membership.on_capacity_offer(now, &member);
                } else {
                    membership.on_candidate(now, member);
                }
                self.poll_membership(now, out);
            }
            JoinMessage::WantData(want) => self.send_data_piece(from, want, out)?,
            // It answers a request that this member sent before it was a member.
            JoinMessage::Welcome(_)
            | JoinMessage::Refuse(_)
            | JoinMessage::Redirect(_)
            | JoinMessage::Data(_) => {}
        }
        Ok(())
    }

    fn member_received_agreement(
        &mut self,
        now: Instant,
        from: PeerId,
        message: AgreementMessage,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Err(Reject::OutOfPlace) };
        match message {
            AgreementMessage::Prepare(prepare) => {
                let commands = active.with_snapshot(&self.jobs, |membership, snapshot| {
                    membership.on_prepare(now, from, prepare, snapshot, &mut self.journal, out)
                })?;
                self.apply(commands, out);
            }
            AgreementMessage::Promise(promise) => {
                let commands = active.with_snapshot(&self.jobs, |membership, snapshot| {
                    membership.on_promise(now, from, *promise, snapshot, out)
                });
                self.apply(commands, out);
            }
            AgreementMessage::Nack(nack) => active.membership.on_nack(now, nack),
            AgreementMessage::Propose(propose) => {
                active.with_snapshot(&self.jobs, |membership, snapshot| {
                    membership.on_propose(now, from, propose, snapshot, &mut self.journal, out)
                })?;
            }
            AgreementMessage::Accepted(accepted) => active.membership.on_accepted(now, from, accepted, out),
            AgreementMessage::Learn(change) => {
                active.with_snapshot(&self.jobs, |membership, snapshot| {
                    membership.on_learn(&change, snapshot, &mut self.journal, out)
                })?;
            }
            AgreementMessage::Install(view) => self.on_install(now, from, view, out)?,
        }
        Ok(())
    }

    fn member_received_merge(
        &mut self,
        now: Instant,
        from: PeerId,
        message: MergeMessage,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Err(Reject::OutOfPlace) };
        let (negotiation, mut branch) = active.negotiation(now, self.me.peer, &self.links, out);
        match message {
            MergeMessage::Probe(probe) => negotiation.on_probe(from, probe, &mut branch)?,
            MergeMessage::Offer(offer) => negotiation.on_offer(from, offer, &mut branch)?,
            MergeMessage::Ready(ready) => {
                negotiation.on_ready(from, ready, &branch);
                self.poll_membership(now, out);
            }
            MergeMessage::WantSnapshot(want) => negotiation.send_snapshot_chunks(from, &want, &mut branch),
            MergeMessage::SnapshotChunks(chunks) => {
                let payload = payload.ok_or(Reject::Chunk)?;
                negotiation.on_snapshot_chunks(from, &chunks, &payload, &mut branch)?;
            }
            MergeMessage::Accept(accept) => {
                if let Some(accept) = negotiation.on_accept(from, accept, &mut branch) {
                    self.abandon_branch(now, accept, out);
                }
            }
        }
        Ok(())
    }

    /// The run is complete at this member: it tells peers that still send requests.
    fn finished_received(
        &mut self,
        from: PeerId,
        message: &Message,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        if let (Message::Join(JoinMessage::Join(_)), NodeRole::Member(_)) = (message, &self.role) {
            self.send(from, &JoinMessage::Refuse(Refusal::RunComplete).into(), None, out);
        } else if let (
            Message::Heartbeat(_) | Message::Agreement(AgreementMessage::Prepare(_)),
            NodeRole::Member(active),
        ) = (message, &self.role)
        {
            // A member learns that all have finished; a peer that was removed learns that it was.
            let is_in = active.membership.is_member(&from);
            let install =
                || Message::Agreement(AgreementMessage::Install(View::clone(active.training.view())));
            let answer = if is_in { active.training.closed() } else { install() };
            self.send(from, &answer, None, out);
        }
        Ok(())
    }

    /// A peer asks to join.
    fn on_join(&mut self, from: PeerId, join: &Join, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let is_closing = active.training.is_closing();
        let install = || Message::Agreement(AgreementMessage::Install(View::clone(active.training.view())));
        let admission = active.membership.on_join(from, join, is_closing);
        if admission == Ok(true) && active.training.view().rank(&from).is_some() {
            // An earlier incarnation of the sender may have a vote in this view without knowing the view.
            out.push(Output::Send { to: from, frame: Frame::encode(&install(), None) });
        }
        let answer = match admission {
            Err(refusal) => Message::Join(JoinMessage::Refuse(refusal)),
            Ok(false) => install(),
            Ok(true) => self.welcome_message(),
        };
        self.send(from, &answer, None, out);
    }

    /// The welcome to a joiner: the run's specification, and its present members.
    ///
    /// # Panics
    /// This peer is not a member.
    pub(super) fn welcome_message(&self) -> Message {
        let (NodeRole::Member(active), Some(preparation)) = (&self.role, &self.preparation) else {
            panic!("members welcome others, and they are prepared")
        };
        let contacts = active.membership.contacts();
        Message::Join(JoinMessage::Welcome(Welcome {
            specification: preparation.specification().to_vec(),
            nonce: self.nonce.expect("a member knows its run"),
            non_owners: active.training.non_owners(&contacts),
            members: contacts,
        }))
    }

    /// A peer says that it stops.
    fn departed(&mut self, now: Instant, from: PeerId, reason: &str, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        active.membership.forget(&from);
        if active.membership.departed(&from, reason, out) {
            self.poll_membership(now, out);
        }
    }
}
