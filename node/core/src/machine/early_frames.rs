//! Early frames: frames of a view that this peer has yet to enter, because other members may enter it, and train in it, earlier.
//!
//! A frame that is dropped returns the credit that it has used. Without that, its sender would wait for the credit forever.
//!
//! # Invariants
//! - Only a normal frame tells that its sender has left a view: a heartbeat overtakes normal frames, and is overtaken by them.

use std::collections::BTreeMap;

use peergrad_protocol::limits::{CHUNK_BYTES_MAX, LINK_SEGMENTS, LINK_SEGMENTS_MAX, LONG_LINES_BYTES_MAX};
use peergrad_protocol::message::{ChunkContent, Message, TrainingMessage};
use peergrad_protocol::{Frame, PeerId, ViewDigest};

use crate::io::{Output, Reject};

/// Frames that members sent in a view that this peer has not entered yet.
#[derive(Default)]
pub(super) struct EarlyFrames {
    /// For each sender: the digest of the view, and the frames. At most the largest window for each link.
    held: BTreeMap<PeerId, (ViewDigest, Vec<Frame>)>,
}

impl EarlyFrames {
    /// Keeps a frame until this peer enters the frame's view.
    ///
    /// # Errors
    /// The sender has sent more than any credit allows.
    pub(super) fn hold(
        &mut self,
        from: PeerId,
        view: ViewDigest,
        frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.keep_only(from, view, out);
        let (_, held) = self.held.entry(from).or_insert_with(|| (view, Vec::new()));
        // At most the largest window of segments and chunk batches, and a few control messages. A repeated control message adds nothing.
        if frame.payload.is_none() && held.iter().any(|other| other.head == frame.head) {
            return Ok(());
        }
        let byte_count: usize = held.iter().map(Frame::byte_count).sum();
        if held.len() >= HELD_MAX || byte_count + frame.byte_count() > HELD_BYTES_MAX {
            return Err(Reject::OverCredit);
        }
        held.push(frame);
        Ok(())
    }

    /// A peer that sends normal frames in one view has left its earlier ones: drops those that were kept for any other view.
    pub(super) fn keep_only(&mut self, from: PeerId, view: ViewDigest, out: &mut Vec<Output>) {
        if self.held.get(&from).is_some_and(|(of, _)| *of != view) {
            self.drop_all_of(from, out);
        }
    }

    /// Drops all frames.
    pub(super) fn drop_all(&mut self, out: &mut Vec<Output>) {
        for from in self.held.keys().copied().collect::<Vec<_>>() {
            self.drop_all_of(from, out);
        }
    }

    fn drop_all_of(&mut self, from: PeerId, out: &mut Vec<Output>) {
        let Some((_, held)) = self.held.remove(&from) else { return };
        for frame in held {
            if let Ok(Message::InView { message, .. }) = frame.decode() {
                return_credit(from, &message, out);
            }
        }
    }

    /// The link to this peer is down, and all credit with it.
    pub(super) fn link_down(&mut self, peer: &PeerId) {
        self.held.remove(peer);
    }

    /// Takes out the frames that were kept for a view, by sender.
    pub(super) fn take(&mut self, view: ViewDigest) -> BTreeMap<PeerId, Vec<Frame>> {
        let (due, later) = std::mem::take(&mut self.held).into_iter().partition(|(_, (of, _))| *of == view);
        self.held = later;
        let due: BTreeMap<PeerId, (ViewDigest, Vec<Frame>)> = due;
        due.into_iter().map(|(from, (_, frames))| (from, frames)).collect()
    }
}

/// Returns the credit that a frame has used, although the frame is dropped.
pub(super) fn return_credit(from: PeerId, message: &TrainingMessage, out: &mut Vec<Output>) {
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
const HELD_MAX: usize = LINK_SEGMENTS_MAX as usize + 4;
/// Their bytes at most: those of the longest line, and of the largest chunks in a first window.
const HELD_BYTES_MAX: usize = LONG_LINES_BYTES_MAX + LINK_SEGMENTS as usize * CHUNK_BYTES_MAX;

#[cfg(test)]
mod tests {
    use peergrad_protocol::Pool;

    use super::*;
    use crate::fixtures::{peer, view};

    /// A frame of table messages, which uses one credit.
    fn frame(view: ViewDigest) -> Frame {
        Frame::encode(&TrainingMessage::Tables.in_view(view), Some(Pool::new(0).take_bytes(4)))
    }

    fn hold(
        early: &mut EarlyFrames,
        from: u8,
        view: ViewDigest,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        early.hold(peer(from), view, frame(view), out)
    }

    #[test]
    fn frames_are_kept_for_their_view() {
        let (mut early, mut out) = (EarlyFrames::default(), Vec::new());
        let (first, second) = (view(&[1, 2]).digest(), view(&[1, 3]).digest());
        assert_eq!(hold(&mut early, 1, first, &mut out), Ok(()));
        assert_eq!(hold(&mut early, 2, second, &mut out), Ok(()));
        let due = early.take(first);
        assert_eq!(due.keys().copied().collect::<Vec<_>>(), [peer(1)]);
        assert_eq!((due[&peer(1)].len(), early.take(first).len(), early.take(second).len()), (1, 0, 1));
        assert!(out.is_empty());
    }

    #[test]
    fn a_later_view_of_the_sender_returns_the_credit_of_the_earlier_one() {
        let (mut early, mut out) = (EarlyFrames::default(), Vec::new());
        let (first, second) = (view(&[1, 2]).digest(), view(&[1, 3]).digest());
        assert_eq!(hold(&mut early, 1, first, &mut out), Ok(()));
        assert_eq!(hold(&mut early, 1, first, &mut out), Ok(()));
        early.keep_only(peer(1), first, &mut out);
        assert!(out.is_empty());
        assert_eq!(hold(&mut early, 1, second, &mut out), Ok(()));
        assert!(matches!(out[..], [Output::Credit { .. }, Output::Credit { .. }]));
    }

    #[test]
    fn at_most_one_window_of_frames_is_kept_for_each_peer() {
        let (mut early, mut out) = (EarlyFrames::default(), Vec::new());
        let view = view(&[1, 2]).digest();
        for _ in 0..HELD_MAX {
            assert_eq!(hold(&mut early, 1, view, &mut out), Ok(()));
        }
        assert_eq!(hold(&mut early, 1, view, &mut out), Err(Reject::OverCredit));
        early.link_down(&peer(1));
        assert_eq!(hold(&mut early, 1, view, &mut out), Ok(()));
    }
}
