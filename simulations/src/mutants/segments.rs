//! Bugs in the transport of segments and of credit.

use std::time::Duration;

use peergrad_protocol::message::{AgreementMessage, Message, Phase, Segment, TrainingMessage};
use peergrad_protocol::{Buffer, Frame, PeerId, Rank, ViewDigest};

use crate::filters::{Envelope, FrameAction, FrameFilter};
use crate::host::{HostId, peer_of};

/// Changes a bit of a gathered segment: where a member other than the owner forwards it, or on its last hop.
pub(super) struct FlipBit {
    /// The step in which the bit changes.
    step: u64,
    /// The hop on which it changes.
    hop: Hop,
    /// The members of the view, by rank; empty before the first view.
    ranks: Vec<PeerId>,
}

/// A hop of a gathered segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hop {
    /// A member other than the owner sends it, and its receiver sends it on.
    Relay,
    /// Its receiver keeps it.
    Last,
}

impl FlipBit {
    pub(super) fn new(step: u64, hop: Hop) -> Self {
        Self { step, hop, ranks: vec![] }
    }
}

impl FrameFilter for FlipBit {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        let message = envelope.message();
        learn_ranks(&mut self.ranks, message.as_ref());
        let Some((view, segment)) = segment_of(message.as_ref(), Phase::Gather) else {
            return FrameAction::Pass;
        };
        let count = self.ranks.len();
        let (Some(from), Some(to)) = (rank_of(&self.ranks, envelope.from), rank_of(&self.ranks, envelope.to))
        else {
            return FrameAction::Pass;
        };
        let is_relay = from != segment.owner as usize;
        let is_last = (to + 1) % count == segment.owner as usize;
        let is_site = match self.hop {
            Hop::Relay => is_relay && !is_last,
            Hop::Last => is_last,
        };
        if segment.step.0 != self.step || !is_site {
            return FrameAction::Pass;
        }
        FrameAction::Replace(vec![changed(envelope.frame, (view, *segment), |bytes| bytes[0] ^= 1)])
    }
}

/// A copy of a segment's frame with a changed payload.
pub(super) fn changed(
    frame: &Frame,
    (view, segment): (ViewDigest, Segment),
    change: impl Fn(&mut [u8]),
) -> Frame {
    let mut bytes = frame.payload.as_ref().map_or(vec![], |payload| payload.bytes().to_vec());
    change(&mut bytes);
    Frame::encode(&TrainingMessage::Segment(segment).in_view(view), Some(Buffer::from_bytes(&bytes)))
}

/// Holds back the values of one owner, and forges the sum that makes the owner believe that all members have them.
pub(super) struct EarlySum {
    /// The owner.
    site: HostId,
    /// The step whose values are held back.
    step: u64,
    /// The members of the view, by rank; empty before the first view.
    ranks: Vec<PeerId>,
    /// A segment of this step on its last hop to the owner, as a template; `None` until there is one.
    sample: Option<Frame>,
    /// Whether the sum was forged.
    is_done: bool,
}

impl EarlySum {
    pub(super) fn new(site: HostId, step: u64) -> Self {
        Self { site, step, ranks: vec![], sample: None, is_done: false }
    }
}

impl FrameFilter for EarlySum {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        let message = envelope.message();
        learn_ranks(&mut self.ranks, message.as_ref());
        let Some(Message::InView { view, message: TrainingMessage::Segment(segment) }) = message else {
            return FrameAction::Pass;
        };
        let Some(rank) = rank_of(&self.ranks, self.site) else { return FrameAction::Pass };
        let is_own = segment.owner as usize == rank;
        if segment.step.0 != self.step {
            return FrameAction::Pass;
        }
        match segment.phase {
            Phase::Reduce if envelope.to == self.site && is_own && segment.index == 0 => {
                let next = Segment { step: segment.step.next(), ..segment };
                self.sample = Some(changed(envelope.frame, (view, next), |_| {}));
                FrameAction::Pass
            }
            Phase::Gather if envelope.from == self.site && is_own => {
                FrameAction::Delay(Duration::from_secs(2))
            }
            Phase::Gather if envelope.to == self.site && !self.is_done => {
                let Some(forged) = self.sample.take() else { return FrameAction::Pass };
                self.is_done = true;
                FrameAction::Replace(vec![changed(envelope.frame, (view, segment), |_| {}), forged])
            }
            Phase::Reduce | Phase::Gather | Phase::Mirror => FrameAction::Pass,
        }
    }
}

/// Drops a number of segments on one link, after others have passed.
pub(super) struct DropSegments {
    /// How many segments pass first.
    left: u64,
    /// The link; `None` before the first segment is dropped.
    link: Option<(HostId, HostId)>,
    /// How many are dropped at most.
    most: usize,
    /// How many were dropped.
    dropped: u64,
}

impl DropSegments {
    pub(super) fn after(count: u64, most: usize) -> Self {
        Self { left: count, link: None, most, dropped: 0 }
    }
}

impl FrameFilter for DropSegments {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        match envelope.message() {
            Some(Message::InView { message: TrainingMessage::Segment(_), .. }) => {}
            Some(message) => return self.conceal(envelope, message),
            None => return FrameAction::Pass,
        }
        if self.left > 0 {
            self.left -= 1;
            return FrameAction::Pass;
        }
        let link = (envelope.from, envelope.to);
        if self.most == 0 || *self.link.get_or_insert(link) != link {
            return FrameAction::Pass;
        }
        self.most -= 1;
        self.dropped += 1;
        FrameAction::Drop
    }
}

impl DropSegments {
    /// Changes messages so that no member notices what was dropped: counts are less, and reports do not say who is waited for.
    fn conceal(&self, envelope: &Envelope<'_>, message: Message) -> FrameAction {
        match message {
            Message::Agreement(AgreementMessage::Promise(mut promise)) => {
                promise.report.awaited = None;
                FrameAction::Replace(vec![Frame::encode(&AgreementMessage::Promise(promise).into(), None)])
            }
            message if self.link == Some((envelope.from, envelope.to)) => {
                without_dropped(message, self.dropped)
            }
            _ => FrameAction::Pass,
        }
    }
}

/// A number of frames that does not count so many that were dropped. Other messages pass.
pub(super) fn without_dropped(message: Message, dropped: u64) -> FrameAction {
    let Message::FrameCount { view, mut sent } = message else { return FrameAction::Pass };
    sent.count = sent.count.saturating_sub(dropped);
    FrameAction::Replace(vec![Frame::encode(&Message::FrameCount { view, sent }, None)])
}

/// Doubles credit.
pub(super) struct DoubleCredit;

impl FrameFilter for DoubleCredit {
    fn on_frame(&mut self, _envelope: &Envelope<'_>) -> FrameAction {
        FrameAction::Pass
    }

    fn on_credit(&mut self, _from: HostId, _to: HostId, segments: u32) -> u32 {
        2 * segments
    }
}

pub(super) fn learn_ranks(ranks: &mut Vec<PeerId>, message: Option<&Message>) {
    if let Some(Message::Agreement(AgreementMessage::Install(view))) = message {
        *ranks = view.members.iter().map(|member| member.peer).collect();
    }
}

fn rank_of(ranks: &[PeerId], host: HostId) -> Option<usize> {
    ranks.iter().position(|peer| *peer == peer_of(host)).map(Rank::from_index).map(Rank::index)
}

fn segment_of(message: Option<&Message>, phase: Phase) -> Option<(ViewDigest, &Segment)> {
    match message {
        Some(Message::InView { view, message: TrainingMessage::Segment(segment) })
            if segment.phase == phase =>
        {
            Some((*view, segment))
        }
        _ => None,
    }
}
