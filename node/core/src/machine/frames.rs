//! Frames from peers, routed by their message and by this peer's role.
//!
//! A frame that no correct peer sends here and now is a [`Reject`]: counted, with nothing changed.

use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{ChunkContent, Message, TrainingMessage};
use peergrad_protocol::{Frame, Instant, PeerId, Rank, ViewDigest};

use super::{Machine, NodeRole};
use crate::io::{Output, Reject};

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
            NodeRole::Member(active) => active.membership.members.heard(now, &from),
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

    /// Handles a message that belongs to one view: now if this peer is in that view, later if it has yet to enter it. Messages of views
    /// that it has left are dropped.
    fn receive_in_view(
        &mut self,
        now: Instant,
        from: PeerId,
        view: ViewDigest,
        message: TrainingMessage,
        mut frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let is_now =
            matches!(&self.role, NodeRole::Member(active) if active.training.base().digest() == view);
        if is_now {
            self.drop_early(from, Some(view), out);
        }
        let NodeRole::Member(active) = &mut self.role else { return self.hold_early(from, view, frame, out) };
        if !is_now {
            return if active.training.base().is_past(&view) {
                if let TrainingMessage::Closed(closed) = message {
                    active.training.base_mut().closed_before(closed);
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
            active.membership.members.data_arrived(now);
        }
        if let TrainingMessage::SaveCheckpoint(save) = message {
            if active.training.view().rank(&from) != Some(Rank(0)) {
                return Err(Reject::OutOfPlace);
            }
            active.save_after(now, save.steps);
            return Ok(());
        }
        active.training.receive(from, message, frame.payload.take(), out)
    }

    /// Keeps a frame until this peer enters the frame's view: other members may enter it, and train in it, earlier.
    fn hold_early(
        &mut self,
        from: PeerId,
        view: ViewDigest,
        frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.drop_early(from, Some(view), out);
        let (_, held) = self.early.entry(from).or_insert_with(|| (view, Vec::new()));
        // At most a window of segments and chunk batches, and a few control messages. A repeated control message adds nothing.
        if frame.payload.is_none() && held.iter().any(|other| other.head == frame.head) {
            return Ok(());
        }
        if held.len() >= HELD_MAX {
            return Err(Reject::OverCredit);
        }
        held.push(frame);
        Ok(())
    }

    /// A peer that sends in one view has left its earlier ones: discards the frames that were kept for any view `but` this one.
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

    /// Handles the frames that were kept for the view that has just been entered.
    pub(super) fn replay_early(&mut self, now: Instant, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &self.role else { return };
        let digest = active.training.base().digest();
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
}

/// Returns the credit that a frame has used, although the frame was dropped.
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

/// The most frames of one peer that are kept for a view that is yet to be entered.
const HELD_MAX: usize = LINK_SEGMENTS as usize + 4;
