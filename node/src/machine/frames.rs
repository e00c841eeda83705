//! What peers send, routed by what it is and how far this peer is.
//!
//! A frame that no correct peer sends here and now is a [`Reject`]: counted, with nothing changed.

use peergrad_protocol::limits::{LINK_SEGMENTS, REJECTS_MAX};
use peergrad_protocol::message::{Departure, Message, Refusal};
use peergrad_protocol::{Buffer, Frame, PeerId};

use super::{Machine, Stage};
use crate::io::{Event, Failure, Output, Reject};

impl Machine {
    pub(super) fn frame(
        &mut self,
        from: PeerId,
        mut frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let message = frame.decode()?;
        if matches!(message, Message::Segment(_) | Message::Complete(_))
            && !matches!(self.stage, Stage::Training { .. })
        {
            return self.hold(from, frame);
        }
        match (message, &mut self.stage) {
            (Message::Segment(segment), Stage::Training { session, .. }) => {
                let payload = frame.payload.take().ok_or(Reject::Segment)?;
                session.segment(from, segment, payload, out)
            }
            (Message::Complete(complete), Stage::Training { session, .. }) => session.closed(from, complete),
            (Message::Leave(departure), _) => {
                self.departed(from, departure, out);
                Ok(())
            }
            (Message::Join(join), Stage::Founding(founding)) => {
                match self.preparation.as_ref().filter(|preparation| preparation.has_data()) {
                    Some(preparation) => founding.join(from, join, preparation.specification(), out),
                    // Whoever is let in may ask for the data at once.
                    None => self.send(from, &Message::Refuse(Refusal::NotYet), None, out),
                }
                Ok(())
            }
            (Message::Join(join), Stage::Joining(joining)) => {
                joining.asked(from, &join, out);
                Ok(())
            }
            (Message::Join(_) | Message::Ready | Message::WantData(_), Stage::Training { session, .. }) => {
                // A member's has crossed the view on its way; anyone else is too late.
                if session.view.rank(&from).is_none() {
                    self.send(from, &Message::Refuse(Refusal::Started), None, out);
                }
                Ok(())
            }
            (Message::WantData(want), Stage::Founding(_)) => {
                // Not to be shipped: a joiner knows that from the specification, and brings the file.
                let Some((piece, bytes)) = self.preparation.as_ref().and_then(|p| p.cut_piece(want)) else {
                    return Err(Reject::Data);
                };
                let mut payload = self.segments.take_bytes(bytes.len());
                payload.bytes_mut().copy_from_slice(bytes);
                self.send(from, &Message::Data(piece), Some(payload), out);
                Ok(())
            }
            (Message::Ready, Stage::Founding(founding)) => {
                if founding.ready(from, out) {
                    Ok(())
                } else {
                    Err(Reject::OutOfPlace)
                }
            }
            (message, Stage::Joining(_)) => self.answer(from, message, frame.payload, out),
            _ => Err(Reject::OutOfPlace),
        }
    }

    /// What a joiner is told by others.
    fn answer(
        &mut self,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let Stage::Joining(joining) = &mut self.stage else { return Err(Reject::OutOfPlace) };
        let result = match message {
            Message::Welcome(welcome) => {
                if !joining.is_from_founder(from, &welcome) {
                    return Err(Reject::OutOfPlace);
                }
                joining.welcome(from, welcome, out).map(|specification| match &self.preparation {
                    None => self.prepare(specification.into(), out),
                    Some(preparation) if preparation.ready().is_some() => {
                        self.send(from, &Message::Ready, None, out)
                    }
                    Some(_) => {}
                })
            }
            Message::Refer(contact) => {
                joining.refer(contact, out);
                Ok(())
            }
            Message::Refuse(refusal) => joining.refused(from, refusal),
            Message::Data(piece) => {
                let is_donor = joining.founder() == Some(from);
                let preparation = self.preparation.as_mut().filter(|_| is_donor).ok_or(Reject::Data)?;
                let ingredients = preparation.piece(from, piece, &payload.ok_or(Reject::Data)?, out)?;
                self.load(ingredients, out);
                Ok(())
            }
            Message::Install(view) => {
                joining.check_view(from, &view)?;
                self.install(view, out)?;
                Ok(())
            }
            _ => return Err(Reject::OutOfPlace),
        };
        if let Err(failure) = result {
            self.end(Err(failure), out);
        }
        Ok(())
    }

    /// Members may install a view, and train in it, before this peer hears of it.
    fn hold(&mut self, from: PeerId, frame: Frame) -> Result<(), Reject> {
        // A window of segments, and a word at the end of a run of no steps.
        if matches!(self.stage, Stage::Founding(_)) {
            return Err(Reject::OverCredit);
        }
        let held = self.early.entry(from).or_default();
        if held.len() > LINK_SEGMENTS as usize {
            return Err(Reject::OverCredit);
        }
        held.push(frame);
        Ok(())
    }

    fn departed(&mut self, from: PeerId, departure: Departure, out: &mut Vec<Output>) {
        let Departure { lost, reason } = departure;
        match &mut self.stage {
            Stage::Founding(founding) => founding.gone(from, reason, out),
            Stage::Joining(joining) if joining.founder() == Some(from) => {
                self.end(Err(Failure::NotFounded { by: from, reason }), out);
            }
            Stage::Training { session, .. } if session.is_needed(&from) => {
                if lost == Some(self.me.peer) {
                    // Not the sender's fault, and nobody is to hear so.
                    return self.end(Err(Failure::GivenUp { by: from, reason }), out);
                }
                let lost = lost.unwrap_or(from);
                if session.view.rank(&lost).is_some() {
                    self.end(Err(Failure::PeerLost { peer: lost, reason }), out);
                }
            }
            Stage::Joining(_) | Stage::Training { .. } | Stage::Ended => {}
        }
    }

    pub(super) fn reject(&mut self, peer: PeerId, reject: Reject, out: &mut Vec<Output>) {
        out.push(Output::Event(Event::Violation { peer, reject }));
        let count = self.rejects.entry(peer).or_default();
        *count += 1;
        // A round cannot end without the segment that should have come, so there is nothing to wait for.
        let is_fatal = matches!(reject, Reject::Segment | Reject::OverCredit);
        if *count >= REJECTS_MAX || is_fatal {
            let words = format!("hung up on it after {count} violations, the last: {reject}");
            out.push(Output::Hangup(peer));
            self.link_down(peer, words, out);
        }
    }
}
