//! What peers send, routed by what it is and how far this peer is.
//!
//! A frame that no correct peer sends here and now is a [`Reject`]: counted, with nothing changed.

use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{Content, Departure, Join, Message, Refusal, Welcome};
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Rank, ViewDigest};

use super::{Machine, Progress, Stage};
use crate::io::{Output, Reject};
use crate::joining::Identity;

impl Machine {
    pub(super) fn frame(
        &mut self,
        now: Instant,
        from: PeerId,
        frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let message = self.memo.message(&frame)?;
        match &mut self.stage {
            Stage::Member(seat) => seat.membership.heard(now, &from),
            Stage::Joining(joining) => joining.heard(&from),
            Stage::Founding(_) | Stage::Ended => {}
        }
        if let Some(view) = message.view_of_training() {
            return self.in_view(now, from, view, message, frame, out);
        }
        if let Message::Beat(beat) = &message {
            self.forget_held(from, Some(beat.view), out);
        }
        match &self.stage {
            Stage::Founding(_) => self.founder_told(from, message, out),
            Stage::Joining(_) => self.joiner_told(now, from, message, frame.payload, out),
            Stage::Member(_) => self.member_told(now, from, message, frame.payload, out),
            Stage::Ended => Ok(()),
        }
    }

    // Training.

    /// What belongs to one view: taken in there, held until it is entered, or dropped once it is left.
    fn in_view(
        &mut self,
        now: Instant,
        from: PeerId,
        view: ViewDigest,
        message: Message,
        mut frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let is_now = matches!(&self.stage, Stage::Member(seat) if seat.session.digest() == view);
        if is_now {
            self.forget_held(from, Some(view), out);
        }
        let Stage::Member(seat) = &mut self.stage else { return self.hold(from, view, frame, out) };
        if !is_now {
            return if seat.session.is_past(&view) {
                if let Message::Closed(closed) = message {
                    seat.session.closed_before(closed);
                }
                drop_frame(from, &message, out);
                Ok(())
            } else {
                self.hold(from, view, frame, out)
            };
        }
        if matches!(message, Message::Segment(_) | Message::Parcel(_) | Message::Words(_)) {
            seat.membership.moved(now);
        }
        match message {
            Message::Segment(segment) => {
                let payload = frame.payload.take().ok_or(Reject::Segment)?;
                seat.session.segment(from, segment, payload, out)
            }
            Message::Parcel(parcel) => {
                let payload = frame.payload.take().ok_or(Reject::Chunk)?;
                seat.session.parcel(from, &parcel, &payload, out)
            }
            Message::Words(_) => {
                let payload = frame.payload.take().ok_or(Reject::Word)?;
                seat.session.words(from, payload, out)
            }
            Message::WantChunks(want) => seat.session.wanted(from, want, out),
            Message::Complete(complete) => seat.session.complete_elsewhere(from, complete),
            Message::Closed(closed) => seat.session.closed_elsewhere(from, closed),
            Message::Offer(offer) => seat.session.offered(from, offer, out),
            Message::Chosen(chosen) => seat.session.chosen(from, chosen, out),
            // Whoever speaks for this lineage.
            Message::Bequeath(save) => {
                seat.session.bequeath_after(save.steps);
                Ok(())
            }
            Message::Save(save) => {
                let is_first = seat.session.view().rank(&from) == Some(Rank(0));
                if !is_first {
                    return Err(Reject::OutOfPlace);
                }
                seat.save_after(now, save.steps);
                Ok(())
            }
            _ => unreachable!("only these name a view that is trained in"),
        }
    }

    /// Members may be in a view, and train in it, before this peer is.
    fn hold(
        &mut self,
        from: PeerId,
        view: ViewDigest,
        frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.forget_held(from, Some(view), out);
        let (_, held) = self.early.entry(from).or_insert_with(|| (view, Vec::new()));
        // A window of segments and parcels, and a few words; one that is said again says nothing new.
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
    pub(super) fn forget_held(&mut self, from: PeerId, but: Option<ViewDigest>, out: &mut Vec<Output>) {
        let Some((_, held)) = self.early.get(&from).filter(|(view, _)| Some(*view) != but) else { return };
        let messages: Vec<Message> = held.iter().filter_map(|frame| frame.decode().ok()).collect();
        self.early.remove(&from);
        messages.iter().for_each(|message| drop_frame(from, message, out));
    }

    /// What was held for the view that has just been entered is taken in.
    pub(super) fn take_early(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        let digest = seat.session.digest();
        let is_due = |held: &(ViewDigest, Vec<Frame>)| held.0 == digest;
        let due: Vec<PeerId> =
            self.early.iter().filter(|(_, held)| is_due(held)).map(|(from, _)| *from).collect();
        for from in due {
            let Some((_, frames)) = self.early.remove(&from) else { continue };
            for frame in frames {
                if let Err(reject) = self.frame(now, from, frame, out) {
                    self.reject(now, from, reject, out);
                }
            }
        }
    }

    // Before.

    fn founder_told(&mut self, from: PeerId, message: Message, out: &mut Vec<Output>) -> Result<(), Reject> {
        let Stage::Founding(founding) = &mut self.stage else { return Err(Reject::OutOfPlace) };
        match message {
            Message::Join(join) => {
                match self.preparation.as_ref().filter(|preparation| preparation.has_data()) {
                    Some(preparation) => founding.join(from, join, preparation.specification(), out),
                    // Whoever is let in may ask for the data at once.
                    None => self.send(from, &Message::Refuse(Refusal::NotYet), None, out),
                }
                Ok(())
            }
            Message::Ready if founding.ready(from, out) => Ok(()),
            Message::WantData(want) => self.give_data(from, want, out),
            Message::Leave(departure) => {
                founding.gone(from, departure.reason, out);
                Ok(())
            }
            Message::Beat(_) => Ok(()),
            _ => Err(Reject::OutOfPlace),
        }
    }

    /// What a joiner is told by others.
    fn joiner_told(
        &mut self,
        now: Instant,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let Stage::Joining(joining) = &mut self.stage else { return Err(Reject::OutOfPlace) };
        let result = match message {
            Message::Join(join) => {
                joining.asked(from, &join, out);
                Ok(())
            }
            Message::Welcome(welcome) => {
                let had_host = joining.host().is_some();
                let taken = joining.welcome(now, from, welcome, out);
                match (taken, &self.preparation) {
                    (Ok(Some(Identity { specification, nonce })), None) => {
                        self.nonce = Some(nonce);
                        self.prepare(specification.into(), out);
                        Ok(())
                    }
                    (Ok(_), _) => {
                        if let (Some(preparation), false) = (&mut self.preparation, had_host) {
                            preparation.restart_fetching(from, out);
                        }
                        self.report_ready(out);
                        Ok(())
                    }
                    (Err(failure), _) => Err(failure),
                }
            }
            Message::Refer(contact) => {
                joining.refer(now, from, contact, out);
                Ok(())
            }
            Message::Refuse(refusal) => joining.refused(from, refusal),
            // It was asked for, of a host that has sent this peer away since.
            Message::Data(_) if joining.host().is_none() => Ok(()),
            Message::Data(piece) => {
                let is_donor = joining.host() == Some(from);
                let preparation = self.preparation.as_mut().ok_or(Reject::Data)?;
                if !is_donor {
                    // Another one is asked by now.
                    return Ok(());
                }
                let ingredients = preparation.piece(from, piece, &payload.ok_or(Reject::Data)?, out)?;
                self.load(ingredients, out);
                Ok(())
            }
            Message::Install(view) => {
                if joining.is_in(&view) {
                    self.install(view, out)?;
                } else {
                    joining.learn(now, from, view);
                }
                Ok(())
            }
            Message::Prepare(prepare) => {
                let is_ready = self.preparation.as_ref().is_some_and(|it| it.ready().is_some());
                if let Some(returning) = joining.returning() {
                    returning.on_prepare(now, from, prepare, is_ready, &mut self.persisted_count, out);
                }
                Ok(())
            }
            Message::Propose(propose) => {
                if let Some(returning) = joining.returning() {
                    returning.on_propose(now, from, propose, &mut self.persisted_count, out);
                }
                Ok(())
            }
            Message::Promise(promise) => {
                if let Some(returning) = joining.returning() {
                    returning.on_promise(now, from, *promise, out);
                }
                self.regroup(now, out);
                Ok(())
            }
            Message::Accepted(accepted) => {
                if let Some(returning) = joining.returning() {
                    returning.on_accepted(from, accepted, out);
                }
                Ok(())
            }
            Message::Outbid(outbid) => {
                if let Some(returning) = joining.returning() {
                    returning.on_outbid(now, &outbid);
                }
                Ok(())
            }
            Message::Leave(departure) => joining.departed(now, from, &departure.reason),
            // This peer was a member when it welcomed the sender.
            Message::Ready | Message::WantData(_) => {
                self.send(from, &Message::Refuse(Refusal::NotYet), None, out);
                Ok(())
            }
            Message::Beat(_) => {
                joining.on_beat(from);
                Ok(())
            }
            // Of a view that this peer is not in yet, or not any more.
            Message::Succeed(_) | Message::Candidate(_) => Ok(()),
            Message::Retire | Message::Expel(_) | Message::Rekey(_) | Message::Rekeyed(_) => Ok(()),
            // This peer has given its lineage up.
            Message::Meet(_) | Message::Will(_) | Message::Inherited(_) => Ok(()),
            Message::WantBequest(_) | Message::Bequest(_) | Message::Yield(_) => Ok(()),
            _ => return Err(Reject::OutOfPlace),
        };
        if let Err(failure) = result {
            self.end(Err(failure), out);
        }
        Ok(())
    }

    fn give_data(
        &mut self,
        from: PeerId,
        want: peergrad_protocol::message::WantData,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        // Not to be shipped: a joiner knows that from the specification, and brings the file.
        let Some((piece, bytes)) = self.preparation.as_ref().and_then(|p| p.cut_piece(want)) else {
            return Err(Reject::Data);
        };
        let mut payload = self.segments.take_bytes(bytes.len());
        payload.bytes_mut().copy_from_slice(bytes);
        self.send(from, &Message::Data(piece), Some(payload), out);
        Ok(())
    }

    // In the view.

    fn member_told(
        &mut self,
        now: Instant,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let Stage::Member(seat) = &mut self.stage else { return Err(Reject::OutOfPlace) };
        if seat.progress == Progress::Evaluating {
            return self.finisher_told(from, &message, out);
        }
        let membership = &mut seat.membership;
        match message {
            Message::Beat(beat) => membership.on_beat(now, from, beat, out),
            Message::Prepare(prepare) => {
                let wishes = seat.with_facts(&self.jobs, |membership, facts| {
                    membership.on_prepare(now, from, prepare, facts, out)
                })?;
                self.grant(wishes, out);
            }
            Message::Promise(promise) => {
                let wishes = seat.with_facts(&self.jobs, |membership, facts| {
                    membership.on_promise(now, from, *promise, facts, out)
                });
                self.grant(wishes, out);
            }
            Message::Outbid(outbid) => membership.on_outbid(now, outbid),
            Message::Propose(propose) => seat.with_facts(&self.jobs, |membership, facts| {
                membership.on_propose(now, from, propose, facts, out)
            })?,
            Message::Accepted(accepted) => membership.on_accepted(now, from, accepted, out),
            Message::Succeed(change) => {
                seat.with_facts(&self.jobs, |membership, facts| membership.on_succeed(&change, facts, out))?
            }
            Message::Install(view) => self.told_of(now, from, view, out)?,
            Message::Join(join) => self.welcome(from, &join, out),
            Message::Ready if membership.on_ready(now, from) => self.look(now, out),
            // It is in, and has not heard of it.
            Message::Ready if membership.is_member(&from) => {
                let install = Message::Install(View::clone(seat.session.view()));
                self.send(from, &install, None, out);
            }
            // It was welcomed by an earlier incarnation of this member, or is not heard of any more: it has to ask again.
            Message::Ready => self.send(from, &Message::Refuse(Refusal::NotYet), None, out),
            Message::Candidate(member) => {
                if member.peer == from && membership.is_me_in(&member) {
                    membership.on_offer(now, &member);
                } else {
                    membership.on_candidate(now, member);
                }
                self.look(now, out);
            }
            Message::Retire => {
                membership.on_retire(from);
                self.look(now, out);
            }
            Message::Expel(expulsion) => {
                membership.on_expel(&from, expulsion);
                self.look(now, out);
            }
            Message::Rekey(rekey) => membership.on_rekey(&from, rekey, out),
            Message::Rekeyed(at) => membership.on_rekeyed(from, at),
            Message::Meet(meeting) => self.met(now, from, meeting, out)?,
            Message::Will(will) => self.willed(now, from, will, out)?,
            Message::Inherited(inherited) => {
                self.has_inherited(from, inherited);
                self.look(now, out);
            }
            Message::WantBequest(want) => self.give_bequest(now, from, &want, out),
            Message::Bequest(parcel) => {
                seat.session.inherited(now, from, &parcel, &payload.ok_or(Reject::Chunk)?)?;
                self.fetch_on(now, out);
            }
            Message::Yield(words) => self.told_to_yield(now, from, words, out),
            Message::WantData(want) => self.give_data(from, want, out)?,
            Message::Leave(Departure { reason }) => self.departed(now, from, &reason, out),
            // An answer from when this member asked to be let in.
            Message::Welcome(_) | Message::Refuse(_) | Message::Refer(_) | Message::Data(_) => {}
            _ => return Err(Reject::OutOfPlace),
        }
        Ok(())
    }

    /// The run is over here; whoever still asks is told.
    fn finisher_told(
        &mut self,
        from: PeerId,
        message: &Message,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        if let (Message::Join(_), Stage::Member(_)) = (message, &self.stage) {
            self.send(from, &Message::Refuse(Refusal::Over), None, out);
        } else if let (Message::Beat(_) | Message::Prepare(_), Stage::Member(seat)) = (message, &self.stage) {
            // Whoever is in is told that all are done; one that was left out, that it was.
            let is_in = seat.membership.is_member(&from);
            let install = || Message::Install(View::clone(seat.session.view()));
            let answer = if is_in { seat.session.closed() } else { install() };
            self.send(from, &answer, None, out);
        }
        Ok(())
    }

    /// A peer asks to be let in.
    fn welcome(&mut self, from: PeerId, join: &Join, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let is_closing = seat.session.is_closing();
        let install = || Message::Install(View::clone(seat.session.view()));
        let admission = seat.membership.on_join(from, join, is_closing);
        if admission == Ok(true) && seat.session.view().rank(&from).is_some() {
            // An earlier start of it may have a vote in this view, and not know of the view.
            out.push(Output::Send { to: from, frame: Frame::encode(&install(), None) });
        }
        let answer = match admission {
            Err(refusal) => Message::Refuse(refusal),
            Ok(false) => install(),
            Ok(true) => self.words_of_welcome(),
        };
        self.send(from, &answer, None, out);
    }

    /// What the run is, and who is in it now.
    ///
    /// # Panics
    /// This peer is no member.
    pub(super) fn words_of_welcome(&self) -> Message {
        let (Stage::Member(seat), Some(preparation)) = (&self.stage, &self.preparation) else {
            panic!("members welcome others, and they are prepared")
        };
        let contacts = seat.membership.contacts();
        Message::Welcome(Welcome {
            specification: preparation.specification().to_vec(),
            nonce: self.nonce.expect("a member knows its run"),
            workers: seat.session.workers(&contacts),
            members: contacts,
        })
    }

    /// A peer stops, and says so.
    fn departed(&mut self, now: Instant, from: PeerId, reason: &str, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        seat.membership.forget(&from);
        if seat.membership.departed(&from, reason, out) {
            self.look(now, out);
        }
    }
}

/// What is not taken in has used up its credit all the same.
fn drop_frame(from: PeerId, message: &Message, out: &mut Vec<Output>) {
    let has_credit = match message {
        Message::Segment(_) | Message::Words(_) => true,
        Message::Parcel(parcel) => parcel.content == Content::State,
        _ => false,
    };
    if has_credit {
        out.push(Output::Credit { to: from, segments: 1 });
    }
}

/// Frames held of one peer for a view that is not entered yet.
const HELD_MAX: usize = LINK_SEGMENTS as usize + 4;
