//! The messages that a joiner receives: answers to its requests, and, after a stop of all members, votes on the next view.

use peergrad_protocol::message::{AgreementMessage, JoinMessage, Message, Refusal, WantData, Welcome};
use peergrad_protocol::{Buffer, Instant, PeerId};

use super::{Machine, NodeRole};
use crate::io::{Failure, Output, Reject};
use crate::membership::join::RunIdentity;
use crate::membership::recovery::Readiness;

impl Machine {
    /// Handles a message to a joiner.
    pub(super) fn joiner_received(
        &mut self,
        now: Instant,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Joiner(joiner) = &mut self.role else { return Err(Reject::OutOfPlace) };
        let outcome = match message {
            Message::Join(message) => self.joiner_received_join(now, from, message, payload, out)?,
            Message::Agreement(message) => {
                self.joiner_received_agreement(now, from, message, out)?;
                Ok(())
            }
            Message::Heartbeat(_) => {
                joiner.on_heartbeat(from);
                Ok(())
            }
            Message::Leave(departure) => joiner.departed(now, from, &departure.reason),
            // It belongs to a view that this peer is not in, or to a branch that it has left.
            Message::Admin(_) | Message::Merge(_) | Message::InView { .. } => Ok(()),
        };
        if let Err(failure) = outcome {
            self.end(Err(failure), out);
        }
        Ok(())
    }

    /// Handles the messages of joining. The inner error ends the run at this peer.
    fn joiner_received_join(
        &mut self,
        now: Instant,
        from: PeerId,
        message: JoinMessage,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<Result<(), Failure>, Reject> {
        let NodeRole::Joiner(joiner) = &mut self.role else { return Err(Reject::OutOfPlace) };
        match message {
            JoinMessage::Join(join) => joiner.on_join(from, &join, out),
            JoinMessage::Welcome(welcome) => return Ok(self.joiner_welcomed(now, from, welcome, out)),
            JoinMessage::Redirect(contact) => joiner.on_refer(now, from, contact, out),
            JoinMessage::Refuse(refusal) => return Ok(joiner.on_refuse(from, refusal)),
            // The sponsor that this peer asked for the data has refused it since.
            JoinMessage::Data(_) if joiner.sponsor().is_none() => {}
            JoinMessage::Data(piece) => {
                let is_donor = joiner.sponsor() == Some(from);
                let preparation = self.preparation.as_mut().ok_or(Reject::Data)?;
                // If the sender is not the sponsor, this peer asks another member by now.
                if is_donor {
                    let load_request = preparation.piece(from, piece, &payload.ok_or(Reject::Data)?, out)?;
                    self.load(load_request, out);
                }
            }
            // This peer was a member when it welcomed the sender.
            JoinMessage::Ready | JoinMessage::WantData(_) => {
                self.send(from, &JoinMessage::Refuse(Refusal::NotReady).into(), None, out);
            }
            // It is for the coordinator of a view that this peer is not in.
            JoinMessage::Candidate(_) => {}
        }
        Ok(Ok(()))
    }

    /// A member has told this peer the run's specification and members.
    fn joiner_welcomed(
        &mut self,
        now: Instant,
        from: PeerId,
        welcome: Welcome,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let NodeRole::Joiner(joiner) = &mut self.role else { return Ok(()) };
        let had_sponsor = joiner.sponsor().is_some();
        match (joiner.on_welcome(now, from, welcome, out)?, &mut self.preparation) {
            (Some(RunIdentity { specification, nonce }), None) => {
                self.nonce = Some(nonce);
                self.prepare(specification.into(), out);
            }
            (_, preparation) => {
                if let (Some(preparation), false) = (preparation, had_sponsor) {
                    preparation.restart_fetching(from, out);
                }
                self.report_ready(out);
            }
        }
        Ok(())
    }

    /// Handles a view that this peer may be in. While all members return from a stop, handles the votes on the next one.
    fn joiner_received_agreement(
        &mut self,
        now: Instant,
        from: PeerId,
        message: AgreementMessage,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Joiner(joiner) = &mut self.role else { return Err(Reject::OutOfPlace) };
        let message = match message {
            AgreementMessage::Install(view) if joiner.is_in(&view) => return self.install(view, out),
            AgreementMessage::Install(view) => {
                joiner.on_install(now, from, view, &mut self.journal);
                return Ok(());
            }
            other => other,
        };
        let is_promise = matches!(message, AgreementMessage::Promise(_));
        if let Some(recovering) = joiner.recovering() {
            match message {
                AgreementMessage::Prepare(prepare) => {
                    let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
                    let readiness = loaded.map_or(Readiness::Preparing, |_| Readiness::Prepared);
                    recovering.on_prepare(now, from, prepare, readiness, &mut self.journal, out);
                }
                AgreementMessage::Propose(propose) => {
                    recovering.on_propose(now, from, propose, &mut self.journal, out);
                }
                AgreementMessage::Promise(promise) => recovering.on_promise(now, from, *promise, out),
                AgreementMessage::Accepted(accepted) => recovering.on_accepted(from, accepted, out),
                AgreementMessage::Nack(nack) => recovering.on_nack(now, &nack),
                // It is about a view that this peer is not in.
                AgreementMessage::Learn(_) | AgreementMessage::Install(_) => {}
            }
        }
        if is_promise {
            self.poll_recovery(now, out);
        }
        Ok(())
    }

    /// Sends a joiner a piece of the data file.
    pub(super) fn send_data_piece(
        &mut self,
        from: PeerId,
        want: WantData,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        // The file is too large to be sent, or the request is wrong. A joiner knows the size from the specification, and must have such a
        // file itself.
        let Some((piece, bytes)) = self.preparation.as_ref().and_then(|p| p.data_piece(want)) else {
            return Err(Reject::Data);
        };
        let mut payload = self.segments.take_bytes(bytes.len());
        payload.bytes_mut().copy_from_slice(bytes);
        self.send(from, &JoinMessage::Data(piece).into(), Some(payload), out);
        Ok(())
    }
}
