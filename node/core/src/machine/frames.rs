//! What peers send, routed by what it is and how far this peer is.
//!
//! A frame that no correct peer sends here and now is a [`Reject`]: counted, with nothing changed.

use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{ChunkContent, Departure, Join, Message, Refusal, Welcome};
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Rank, ViewDigest};

use super::{Machine, NodeRole, Progress};
use crate::io::{Output, Reject};
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
        if let Some(view) = message.view_of_training() {
            return self.receive_in_view(now, from, view, message, frame, out);
        }
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
        message: Message,
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
                if let Message::Closed(closed) = message {
                    active.training.closed_before(closed);
                }
                drop_frame(from, &message, out);
                Ok(())
            } else {
                self.hold_early(from, view, frame, out)
            };
        }
        if matches!(message, Message::Segment(_) | Message::ChunkBatch(_) | Message::TableFrame(_)) {
            active.membership.data_arrived(now);
        }
        match message {
            Message::Segment(segment) => {
                let payload = frame.payload.take().ok_or(Reject::Segment)?;
                active.training.receive_segment(from, segment, payload, out)
            }
            Message::ChunkBatch(chunk_batch) => {
                let payload = frame.payload.take().ok_or(Reject::Chunk)?;
                active.training.chunk_batch(from, &chunk_batch, &payload, out)
            }
            Message::TableFrame(_) => {
                let payload = frame.payload.take().ok_or(Reject::MalformedTableMessage)?;
                active.training.on_table_frame(from, payload, out)
            }
            Message::WantChunks(want) => active.training.receive_chunk_request(from, want, out),
            Message::Complete(complete) => active.training.receive_complete(from, complete),
            Message::Closed(closed) => active.training.receive_closed(from, closed),
            Message::StepProgress(offer) => active.training.receive_offer(from, offer, out),
            Message::StepContributors(chosen) => active.training.receive_choice(from, chosen, out),
            // Whoever speaks for this lineage.
            Message::TakeSnapshot(save) => {
                active.training.snapshot_after(save.steps);
                Ok(())
            }
            Message::SaveCheckpoint(save) => {
                let is_first = active.training.view().rank(&from) == Some(Rank(0));
                if !is_first {
                    return Err(Reject::OutOfPlace);
                }
                active.save_after(now, save.steps);
                Ok(())
            }
            _ => unreachable!("only these name a view that is trained in"),
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
        messages.iter().for_each(|message| drop_frame(from, message, out));
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
            Message::Join(join) => {
                match self.preparation.as_ref().filter(|preparation| preparation.has_data()) {
                    Some(preparation) => founder.join(from, join, preparation.specification(), out),
                    // Whoever is let in may ask for the data at once.
                    None => self.send(from, &Message::Refuse(Refusal::NotReady), None, out),
                }
                Ok(())
            }
            Message::Ready if founder.ready(from, out) => Ok(()),
            Message::WantData(want) => self.send_data_piece(from, want, out),
            Message::Leave(departure) => {
                founder.peer_left(from, departure.reason, out);
                Ok(())
            }
            Message::Heartbeat(_) => Ok(()),
            _ => Err(Reject::OutOfPlace),
        }
    }

    /// What a joiner is told by others.
    fn joiner_received(
        &mut self,
        now: Instant,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Joiner(joiner) = &mut self.role else { return Err(Reject::OutOfPlace) };
        let result = match message {
            Message::Join(join) => {
                joiner.on_join(from, &join, out);
                Ok(())
            }
            Message::Welcome(welcome) => {
                let had_sponsor = joiner.sponsor().is_some();
                let taken = joiner.on_welcome(now, from, welcome, out);
                match (taken, &self.preparation) {
                    (Ok(Some(RunIdentity { specification, nonce })), None) => {
                        self.nonce = Some(nonce);
                        self.prepare(specification.into(), out);
                        Ok(())
                    }
                    (Ok(_), _) => {
                        if let (Some(preparation), false) = (&mut self.preparation, had_sponsor) {
                            preparation.restart_fetching(from, out);
                        }
                        self.report_ready(out);
                        Ok(())
                    }
                    (Err(failure), _) => Err(failure),
                }
            }
            Message::Redirect(contact) => {
                joiner.on_refer(now, from, contact, out);
                Ok(())
            }
            Message::Refuse(refusal) => joiner.on_refuse(from, refusal),
            // It was asked for, of a host that has sent this peer away since.
            Message::Data(_) if joiner.sponsor().is_none() => Ok(()),
            Message::Data(piece) => {
                let is_donor = joiner.sponsor() == Some(from);
                let preparation = self.preparation.as_mut().ok_or(Reject::Data)?;
                if !is_donor {
                    // Another one is asked by now.
                    return Ok(());
                }
                let load_request = preparation.piece(from, piece, &payload.ok_or(Reject::Data)?, out)?;
                self.load(load_request, out);
                Ok(())
            }
            Message::Install(view) => {
                if joiner.is_in(&view) {
                    self.install(view, out)?;
                } else {
                    joiner.on_install(now, from, view, &mut self.journal);
                }
                Ok(())
            }
            Message::Prepare(prepare) => {
                let is_ready = self.preparation.as_ref().is_some_and(|it| it.ready().is_some());
                if let Some(recovering) = joiner.recovering() {
                    recovering.on_prepare(now, from, prepare, is_ready, &mut self.journal, out);
                }
                Ok(())
            }
            Message::Propose(propose) => {
                if let Some(recovering) = joiner.recovering() {
                    recovering.on_propose(now, from, propose, &mut self.journal, out);
                }
                Ok(())
            }
            Message::Promise(promise) => {
                if let Some(recovering) = joiner.recovering() {
                    recovering.on_promise(now, from, *promise, out);
                }
                self.poll_recovery(now, out);
                Ok(())
            }
            Message::Accepted(accepted) => {
                if let Some(recovering) = joiner.recovering() {
                    recovering.on_accepted(from, accepted, out);
                }
                Ok(())
            }
            Message::Nack(nack) => {
                if let Some(recovering) = joiner.recovering() {
                    recovering.on_nack(now, &nack);
                }
                Ok(())
            }
            Message::Leave(departure) => joiner.departed(now, from, &departure.reason),
            // This peer was a member when it welcomed the sender.
            Message::Ready | Message::WantData(_) => {
                self.send(from, &Message::Refuse(Refusal::NotReady), None, out);
                Ok(())
            }
            Message::Heartbeat(_) => {
                joiner.on_heartbeat(from);
                Ok(())
            }
            // Of a view that this peer is not in yet, or not any more.
            Message::Learn(_) | Message::Candidate(_) => Ok(()),
            Message::Retire | Message::Expel(_) | Message::Rekey(_) | Message::Rekeyed(_) => Ok(()),
            // This peer has given its lineage up.
            Message::MergeProbe(_) | Message::MergeOffer(_) | Message::MergeReady(_) => Ok(()),
            Message::WantSnapshot(_) | Message::SnapshotChunks(_) | Message::MergeAccept(_) => Ok(()),
            _ => return Err(Reject::OutOfPlace),
        };
        if let Err(failure) = result {
            self.end(Err(failure), out);
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
        self.send(from, &Message::Data(piece), Some(payload), out);
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
        let membership = &mut active.membership;
        match message {
            Message::Heartbeat(beat) => membership.on_heartbeat(now, from, beat, out),
            Message::Prepare(prepare) => {
                let commands = active.with_snapshot(&self.jobs, |membership, snapshot| {
                    membership.on_prepare(now, from, prepare, snapshot, &mut self.journal, out)
                })?;
                self.apply(commands, out);
            }
            Message::Promise(promise) => {
                let commands = active.with_snapshot(&self.jobs, |membership, snapshot| {
                    membership.on_promise(now, from, *promise, snapshot, out)
                });
                self.apply(commands, out);
            }
            Message::Nack(nack) => membership.on_nack(now, nack),
            Message::Propose(propose) => active.with_snapshot(&self.jobs, |membership, snapshot| {
                membership.on_propose(now, from, propose, snapshot, &mut self.journal, out)
            })?,
            Message::Accepted(accepted) => membership.on_accepted(now, from, accepted, out),
            Message::Learn(change) => active.with_snapshot(&self.jobs, |membership, snapshot| {
                membership.on_learn(&change, snapshot, &mut self.journal, out)
            })?,
            Message::Install(view) => self.on_install(now, from, view, out)?,
            Message::Join(join) => self.on_join(from, &join, out),
            Message::Ready if membership.on_ready(now, from) => self.poll_membership(now, out),
            // It is in, and has not heard of it.
            Message::Ready if membership.is_member(&from) => {
                let install = Message::Install(View::clone(active.training.view()));
                self.send(from, &install, None, out);
            }
            // It was welcomed by an earlier incarnation of this member, or is not heard of any more: it has to ask again.
            Message::Ready => self.send(from, &Message::Refuse(Refusal::NotReady), None, out),
            Message::Candidate(member) => {
                if member.peer == from && membership.is_current_incarnation(&member) {
                    membership.on_capacity_offer(now, &member);
                } else {
                    membership.on_candidate(now, member);
                }
                self.poll_membership(now, out);
            }
            Message::Retire => {
                membership.on_retire(from);
                self.poll_membership(now, out);
            }
            Message::Expel(expulsion) => {
                membership.on_expel(&from, expulsion);
                self.poll_membership(now, out);
            }
            Message::Rekey(rekey) => membership.on_rekey(&from, rekey, out),
            Message::Rekeyed(at) => membership.on_rekeyed(from, at),
            Message::MergeProbe(probe) => self.on_merge_probe(now, from, probe, out)?,
            Message::MergeOffer(offer) => self.on_merge_offer(now, from, offer, out)?,
            Message::MergeReady(inherited) => {
                self.on_merge_ready(from, inherited);
                self.poll_membership(now, out);
            }
            Message::WantSnapshot(want) => self.send_snapshot_chunks(now, from, &want, out),
            Message::SnapshotChunks(chunk_batch) => {
                active.training.receive_snapshot_chunks(
                    now,
                    from,
                    &chunk_batch,
                    &payload.ok_or(Reject::Chunk)?,
                )?;
                self.continue_fetching(now, out);
            }
            Message::MergeAccept(accept) => self.on_merge_accept(now, from, accept, out),
            Message::WantData(want) => self.send_data_piece(from, want, out)?,
            Message::Leave(Departure { reason }) => self.departed(now, from, &reason, out),
            // An answer from when this member asked to be let in.
            Message::Welcome(_) | Message::Refuse(_) | Message::Redirect(_) | Message::Data(_) => {}
            _ => return Err(Reject::OutOfPlace),
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
        if let (Message::Join(_), NodeRole::Member(_)) = (message, &self.role) {
            self.send(from, &Message::Refuse(Refusal::RunComplete), None, out);
        } else if let (Message::Heartbeat(_) | Message::Prepare(_), NodeRole::Member(active)) =
            (message, &self.role)
        {
            // Whoever is in is told that all are done; one that was left out, that it was.
            let is_in = active.membership.is_member(&from);
            let install = || Message::Install(View::clone(active.training.view()));
            let answer = if is_in { active.training.closed() } else { install() };
            self.send(from, &answer, None, out);
        }
        Ok(())
    }

    /// A peer asks to be let in.
    fn on_join(&mut self, from: PeerId, join: &Join, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let is_closing = active.training.is_closing();
        let install = || Message::Install(View::clone(active.training.view()));
        let admission = active.membership.on_join(from, join, is_closing);
        if admission == Ok(true) && active.training.view().rank(&from).is_some() {
            // An earlier start of it may have a vote in this view, and not know of the view.
            out.push(Output::Send { to: from, frame: Frame::encode(&install(), None) });
        }
        let answer = match admission {
            Err(refusal) => Message::Refuse(refusal),
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
        Message::Welcome(Welcome {
            specification: preparation.specification().to_vec(),
            nonce: self.nonce.expect("a member knows its run"),
            non_owners: active.training.non_owners(&contacts),
            members: contacts,
        })
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

/// What is not taken in has used up its credit all the same.
fn drop_frame(from: PeerId, message: &Message, out: &mut Vec<Output>) {
    let has_credit = match message {
        Message::Segment(_) | Message::TableFrame(_) => true,
        Message::ChunkBatch(chunk_batch) => chunk_batch.content == ChunkContent::State,
        _ => false,
    };
    if has_credit {
        out.push(Output::Credit { to: from, segments: 1 });
    }
}

/// Frames held of one peer for a view that is not entered yet.
const HELD_MAX: usize = LINK_SEGMENTS as usize + 4;
