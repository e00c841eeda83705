//! What peers send, routed by what it is and how far this peer is.
//!
//! A frame that no correct peer sends here and now is a [`Reject`]: counted, with nothing changed.

use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{
    AdminMessage, AgreementMessage, ChunkContent, Departure, Join, JoinMessage, MergeMessage, Message,
    Refusal, TrainingMessage, Welcome,
};
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Rank, ViewDigest};

use super::{Machine, NodeRole, Progress};
use crate::io::{Failure, Output, Reject};
use crate::membership::join::RunIdentity;

impl Machine {
    pub(super) fn receive(
        &mut self,
        now: Instant,
        from: PeerId,
        frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let message = self.cache.message(&frame)?;
        match &mut self.role {
            NodeRole::Member(active) => active.membership.heard(now, &from),
            NodeRole::Joiner(joiner) => joiner.heard(&from),
            NodeRole::Founder(_) | NodeRole::Ended => {}
        }
        let message = match message {
            Message::InView { view, message } => {
                return self.receive_in_view(now, from, view, message, frame, out);
            }
            other => other,
        };
        if let Message::Heartbeat(beat) = &message {
            self.drop_early(from, Some(beat.view), out);
        }
        match &self.role {
            NodeRole::Founder(_) => self.founder_received(from, message, out),
            NodeRole::Joiner(_) => self.joiner_received(now, from, message, frame.payload, out),
            NodeRole::Member(_) => self.member_received(now, from, message, frame.payload, out),
            NodeRole::Ended => Ok(()),
        }
    }

    // Training.

    /// What belongs to one view: taken in there, held until it is entered, or dropped once it is left.
    fn receive_in_view(
        &mut self,
        now: Instant,
        from: PeerId,
        view: ViewDigest,
        message: TrainingMessage,
        mut frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let is_now = matches!(&self.role, NodeRole::Member(active) if active.training.digest() == view);
        if is_now {
            self.drop_early(from, Some(view), out);
        }
        let NodeRole::Member(active) = &mut self.role else { return self.hold_early(from, view, frame, out) };
        if !is_now {
            return if active.training.is_past(&view) {
                if let TrainingMessage::Closed(closed) = message {
                    active.training.closed_before(closed);
                }
                drop_frame(from, &message, out);
                Ok(())
            } else {
                self.hold_early(from, view, frame, out)
            };
        }
        if matches!(
            message,
            TrainingMessage::Segment(_) | TrainingMessage::ChunkBatch(_) | TrainingMessage::Tables
        ) {
            active.membership.data_arrived(now);
        }
        let training = &mut active.training;
        match message {
            TrainingMessage::Segment(segment) => {
                let payload = frame.payload.take().ok_or(Reject::Segment)?;
                training.receive_segment(from, segment, payload, out)
            }
            TrainingMessage::ChunkBatch(chunk_batch) => {
                let payload = frame.payload.take().ok_or(Reject::Chunk)?;
                training.chunk_batch(from, &chunk_batch, &payload, out)
            }
            TrainingMessage::Tables => {
                let payload = frame.payload.take().ok_or(Reject::MalformedTableMessage)?;
                training.on_table_frame(from, payload, out)
            }
            TrainingMessage::WantChunks(want) => training.receive_chunk_request(from, want, out),
            TrainingMessage::Complete(complete) => training.receive_complete(from, complete),
            TrainingMessage::Closed(closed) => training.receive_closed(from, closed),
            TrainingMessage::StepProgress(offer) => training.receive_offer(from, offer, out),
            TrainingMessage::StepContributors(chosen) => training.receive_choice(from, chosen, out),
            // Of the coordinator of this lineage.
            TrainingMessage::TakeSnapshot(save) => {
                training.snapshot_after(save.steps);
                Ok(())
            }
            TrainingMessage::SaveCheckpoint(save) => {
                if training.view().rank(&from) != Some(Rank(0)) {
                    return Err(Reject::OutOfPlace);
                }
                active.save_after(now, save.steps);
                Ok(())
            }
        }
    }

    /// Members may be in a view, and train in it, before this peer is.
    fn hold_early(
        &mut self,
        from: PeerId,
        view: ViewDigest,
        frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.drop_early(from, Some(view), out);
        let (_, held) = self.early.entry(from).or_insert_with(|| (view, Vec::new()));
        // A window of segments and chunk batches, and a few words; one that is said again says nothing new.
        if frame.payload.is_none() && held.iter().any(|other| other.head == frame.head) {
            return Ok(());
        }
        if held.len() >= HELD_MAX {
            return Err(Reject::OverCredit);
        }
        held.push(frame);
        Ok(())
    }

    /// Whoever speaks in one view has left the others: what it said in them before is of no use any more.
    pub(super) fn drop_early(&mut self, from: PeerId, but: Option<ViewDigest>, out: &mut Vec<Output>) {
        let Some((_, held)) = self.early.get(&from).filter(|(view, _)| Some(*view) != but) else { return };
        let messages: Vec<Message> = held.iter().filter_map(|frame| frame.decode().ok()).collect();
        self.early.remove(&from);
        for message in messages {
            if let Message::InView { message, .. } = message {
                drop_frame(from, &message, out);
            }
        }
    }

    /// What was held for the view that has just been entered is taken in.
    pub(super) fn replay_early(&mut self, now: Instant, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &self.role else { return };
        let digest = active.training.digest();
        let is_due = |held: &(ViewDigest, Vec<Frame>)| held.0 == digest;
        let due: Vec<PeerId> =
            self.early.iter().filter(|(_, held)| is_due(held)).map(|(from, _)| *from).collect();
        for from in due {
            let Some((_, frames)) = self.early.remove(&from) else { continue };
            for frame in frames {
                if let Err(reject) = self.receive(now, from, frame, out) {
                    self.reject(now, from, reject, out);
                }
            }
        }
    }

    // Before.

    fn founder_received(
        &mut self,
        from: PeerId,
        message: Message,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Founder(founder) = &mut self.role else { return Err(Reject::OutOfPlace) };
        match message {
            Message::Join(JoinMessage::Join(join)) => {
                match self.preparation.as_ref().filter(|preparation| preparation.has_data()) {
                    Some(preparation) => founder.join(from, join, preparation.specification(), out),
                    // Whoever is let in may ask for the data at once.
                    None => self.send(from, &JoinMessage::Refuse(Refusal::NotReady).into(), None, out),
                }
                Ok(())
            }
            Message::Join(JoinMessage::Ready) if founder.ready(from, out) => Ok(()),
            Message::Join(JoinMessage::WantData(want)) => self.send_data_piece(from, want, out),
            Message::Leave(departure) => {
                founder.peer_left(from, departure.reason, out);
                Ok(())
            }
            Message::Heartbeat(_) => Ok(()),
            _ => Err(Reject::OutOfPlace),
        }
    }

    /// A message to a peer on its way into the run.
    fn joiner_received(
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
            // Of a view that this peer is not in, and of a lineage that it has given up.
            Message::Admin(_) | Message::Merge(_) | Message::InView { .. } => Ok(()),
        };
        if let Err(failure) = outcome {
            self.end(Err(failure), out);
        }
        Ok(())
    }

    /// The steps of joining. The inner error ends the run at this peer.
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
            // This peer asked a member for it that has sent it away since.
            JoinMessage::Data(_) if joiner.sponsor().is_none() => {}
            JoinMessage::Data(piece) => {
                let is_donor = joiner.sponsor() == Some(from);
                let preparation = self.preparation.as_mut().ok_or(Reject::Data)?;
                // Otherwise this peer asks another member by now.
                if is_donor {
                    let load_request = preparation.piece(from, piece, &payload.ok_or(Reject::Data)?, out)?;
                    self.load(load_request, out);
                }
            }
            // This peer was a member when it welcomed the sender.
            JoinMessage::Ready | JoinMessage::WantData(_) => {
                self.send(from, &JoinMessage::Refuse(Refusal::NotReady).into(), None, out);
            }
            // For the coordinator of a view that this peer is not in.
            JoinMessage::Candidate(_) => {}
        }
        Ok(Ok(()))
    }

    /// A member has told this peer what the run is.
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

    /// A view that this peer may be in, or, while all members come back from a stop, the vote on one.
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
                    let is_ready = self.preparation.as_ref().is_some_and(|it| it.ready().is_some());
                    recovering.on_prepare(now, from, prepare, is_ready, &mut self.journal, out);
                }
                AgreementMessage::Propose(propose) => {
                    recovering.on_propose(now, from, propose, &mut self.journal, out);
                }
                AgreementMessage::Promise(promise) => recovering.on_promise(now, from, *promise, out),
                AgreementMessage::Accepted(accepted) => recovering.on_accepted(from, accepted, out),
                AgreementMessage::Nack(nack) => recovering.on_nack(now, &nack),
                // A change of a view that this peer is not in.
                AgreementMessage::Learn(_) | AgreementMessage::Install(_) => {}
            }
        }
        if is_promise {
            self.poll_recovery(now, out);
        }
        Ok(())
    }

    fn send_data_piece(
        &mut self,
        from: PeerId,
        want: peergrad_protocol::message::WantData,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        // Not to be shipped: a joiner knows that from the specification, and brings the file.
        let Some((piece, bytes)) = self.preparation.as_ref().and_then(|p| p.data_piece(want)) else {
            return Err(Reject::Data);
        };
        let mut payload = self.segments.take_bytes(bytes.len());
        payload.bytes_mut().copy_from_slice(bytes);
        self.send(from, &JoinMessage::Data(piece).into(), Some(payload), out);
        Ok(())
    }

    // In the view.

    fn member_received(
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
            // The sender is in the view, and has not heard of it.
            JoinMessage::Ready if membership.is_member(&from) => {
                let install = AgreementMessage::Install(View::clone(active.training.view()));
                self.send(from, &install.into(), None, out);
            }
            // An earlier incarnation of this member has welcomed the sender, or this one has forgotten it: it has to ask again.
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
            // An answer to a request that this member sent before it was in.
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
        match message {
            MergeMessage::Probe(probe) => self.on_merge_probe(now, from, probe, out)?,
            MergeMessage::Offer(offer) => self.on_merge_offer(now, from, offer, out)?,
            MergeMessage::Ready(ready) => {
                self.on_merge_ready(from, ready);
                self.poll_membership(now, out);
            }
            MergeMessage::WantSnapshot(want) => self.send_snapshot_chunks(now, from, &want, out),
            MergeMessage::SnapshotChunks(chunks) => {
                let NodeRole::Member(active) = &mut self.role else { return Err(Reject::OutOfPlace) };
                let payload = payload.ok_or(Reject::Chunk)?;
                active.training.receive_snapshot_chunks(now, from, &chunks, &payload)?;
                self.continue_fetching(now, out);
            }
            MergeMessage::Accept(accept) => self.on_merge_accept(now, from, accept, out),
        }
        Ok(())
    }

    /// The run is over here; whoever still asks is told.
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
            // Whoever is in is told that all are done; one that was left out, that it was.
            let is_in = active.membership.is_member(&from);
            let install =
                || Message::Agreement(AgreementMessage::Install(View::clone(active.training.view())));
            let answer = if is_in { active.training.closed() } else { install() };
            self.send(from, &answer, None, out);
        }
        Ok(())
    }

    /// A peer asks to be let in.
    fn on_join(&mut self, from: PeerId, join: &Join, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let is_closing = active.training.is_closing();
        let install = || Message::Agreement(AgreementMessage::Install(View::clone(active.training.view())));
        let admission = active.membership.on_join(from, join, is_closing);
        if admission == Ok(true) && active.training.view().rank(&from).is_some() {
            // An earlier start of it may have a vote in this view, and not know of the view.
            out.push(Output::Send { to: from, frame: Frame::encode(&install(), None) });
        }
        let answer = match admission {
            Err(refusal) => Message::Join(JoinMessage::Refuse(refusal)),
            Ok(false) => install(),
            Ok(true) => self.welcome_message(),
        };
        self.send(from, &answer, None, out);
    }

    /// What the run is, and who is in it now.
    ///
    /// # Panics
    /// This peer is no member.
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

    /// A peer stops, and says so.
    fn departed(&mut self, now: Instant, from: PeerId, reason: &str, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        active.membership.forget(&from);
        if active.membership.departed(&from, reason, out) {
            self.poll_membership(now, out);
        }
    }
}

/// A frame that is not taken in has used up its sender's credit all the same.
fn drop_frame(from: PeerId, message: &TrainingMessage, out: &mut Vec<Output>) {
    let has_credit = match message {
        TrainingMessage::Segment(_) | TrainingMessage::Tables => true,
        TrainingMessage::ChunkBatch(chunk_batch) => chunk_batch.content == ChunkContent::State,
        _ => false,
    };
    if has_credit {
        out.push(Output::Credit { to: from, segments: 1 });
    }
}

/// Frames held of one peer for a view that is not entered yet.
const HELD_MAX: usize = LINK_SEGMENTS as usize + 4;
