//! Bugs in view changes: in what members hear and remember of them, and in the state that moves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{
    AgreementMessage, ChunkContent, JoinMessage, Message, Phase, Promise, Propose, TrainingMessage,
};
use peergrad_protocol::view::ViewChange;
use peergrad_protocol::{Buffer, Frame, PeerId, ViewDigest};

use super::segments::{changed, learn_ranks, without_dropped};
use crate::filters::{Envelope, FrameAction, FrameFilter};
use crate::host::{HostId, peer_of};

/// One member's record of the first view gives another member more capacity.
pub(super) fn alter_view(envelope: &Envelope<'_>, site: HostId) -> FrameAction {
    match envelope.message() {
        Some(Message::Agreement(AgreementMessage::Install(mut view))) if envelope.to == site => {
            view.members[0].capacity += 1;
            FrameAction::Replace(vec![Frame::encode(&AgreementMessage::Install(view).into(), None)])
        }
        _ => FrameAction::Pass,
    }
}

/// A proposer falls silent before any member hears that its value is chosen, and the next proposer does not learn of the value.
///
/// The silence alone must do no harm: the next proposer would find the value among the promises and propose it again.
#[derive(Default)]
pub(super) struct HideAccepted {
    ranks: Vec<PeerId>,
    /// The first proposer, and the member that proposes next.
    first: Option<(HostId, PeerId)>,
}

impl FrameFilter for HideAccepted {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        let message = envelope.message();
        learn_ranks(&mut self.ranks, message.as_ref());
        if let (Some(Message::Agreement(AgreementMessage::Propose(propose))), None) = (&message, self.first) {
            self.first = self
                .next_proposer(envelope.from, propose)
                .map(|next_proposer| (envelope.from, next_proposer));
        }
        let Some((first, next_proposer)) = self.first else { return FrameAction::Pass };
        let is_next_proposer = peer_of(envelope.to) == next_proposer;
        match message {
            Some(Message::Agreement(AgreementMessage::Propose(_)))
                if envelope.from == first && is_next_proposer =>
            {
                FrameAction::Delay(SILENCE)
            }
            Some(Message::Agreement(AgreementMessage::Learn(_))) if envelope.from == first => {
                FrameAction::Delay(SILENCE)
            }
            Some(Message::Agreement(AgreementMessage::Promise(promise)))
                if is_next_proposer && promise.accepted.is_some() =>
            {
                let promise = Box::new(Promise { accepted: None, ..*promise });
                FrameAction::Replace(vec![Frame::encode(&AgreementMessage::Promise(promise).into(), None)])
            }
            _ => FrameAction::Pass,
        }
    }
}

impl HideAccepted {
    /// The member that proposes next, once the proposer is silent.
    fn next_proposer(&self, proposer: HostId, propose: &Propose) -> Option<PeerId> {
        let ViewChange { removed, .. } = &propose.change;
        let is_there = |(rank, peer): &(usize, &PeerId)| {
            **peer != peer_of(proposer) && removed.iter().all(|gone| gone.index() != *rank)
        };
        let mut others = self.ranks.iter().enumerate().filter(is_there);
        others.next().filter(|_| !removed.is_empty()).map(|(_, peer)| *peer)
    }
}

/// Until its restart, one peer hears only of the first proposal, and not that it was chosen. After the restart it hears of no view until it
/// has accepted once more.
///
/// That alone must do no harm: the peer remembers what it accepted, and reports it to each later proposer.
pub(super) struct IsolateVoter {
    site: HostId,
    /// The first proposer.
    first: Option<HostId>,
    has_returned: bool,
    has_accepted_again: bool,
}

impl IsolateVoter {
    pub(super) fn new(site: HostId) -> Self {
        Self { site, first: None, has_returned: false, has_accepted_again: false }
    }
}

impl FrameFilter for IsolateVoter {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        let message = envelope.message();
        // Only a restarted peer asks to join after that.
        let asks = envelope.from == self.site && matches!(message, Some(Message::Join(JoinMessage::Join(_))));
        self.has_returned |= self.first.is_some() && asks;
        let accepts = envelope.from == self.site
            && matches!(message, Some(Message::Agreement(AgreementMessage::Accepted(_))));
        self.has_accepted_again |= self.has_returned && accepts;
        if envelope.to != self.site || self.has_accepted_again {
            return FrameAction::Pass;
        }
        match message {
            Some(Message::Agreement(AgreementMessage::Install(_))) if self.has_returned => FrameAction::Drop,
            _ if self.has_returned => FrameAction::Pass,
            Some(Message::Agreement(AgreementMessage::Propose(_))) => {
                let first = *self.first.get_or_insert(envelope.from);
                if first == envelope.from { FrameAction::Pass } else { FrameAction::Drop }
            }
            Some(Message::Agreement(AgreementMessage::Prepare(_)))
                if self.first.is_some_and(|first| first != envelope.from) =>
            {
                FrameAction::Drop
            }
            Some(
                Message::Agreement(AgreementMessage::Install(_))
                | Message::Agreement(AgreementMessage::Learn(_)),
            ) if self.first.is_some() => FrameAction::Drop,
            _ => FrameAction::Pass,
        }
    }
}

/// One peer votes, but hears of no view after its present one, and cannot ask for one.
pub(super) fn drop_views(envelope: &Envelope<'_>, site: HostId) -> FrameAction {
    let is_lost = match envelope.message() {
        Some(Message::Agreement(AgreementMessage::Install(view))) => {
            envelope.to == site && !view.parents.is_empty()
        }
        Some(Message::Agreement(AgreementMessage::Learn(_))) => envelope.to == site,
        Some(Message::Agreement(AgreementMessage::Prepare(_))) => envelope.from == site,
        _ => false,
    };
    if is_lost { FrameAction::Drop } else { FrameAction::Pass }
}

/// Sums for replicas are lost with the owner that sends them, and members report that they have them.
///
/// The loss alone must do no harm: the step would be started again.
#[derive(Default)]
pub(super) struct FalseReport {
    /// The view in which sums are lost.
    view: Option<ViewDigest>,
}

impl FrameFilter for FalseReport {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        match envelope.message() {
            Some(Message::InView { view, message: TrainingMessage::Segment(segment) }) => {
                let is_first_view = *self.view.get_or_insert(view) == view;
                let is_lost = is_first_view && segment.phase == Phase::Mirror && segment.step.0 > CRASH_STEP;
                if is_lost { FrameAction::Drop } else { FrameAction::Pass }
            }
            Some(Message::Agreement(AgreementMessage::Promise(mut promise))) => {
                let Some(next) = &mut promise.report.next else { return FrameAction::Pass };
                next.states = next.values.clone();
                FrameAction::Replace(vec![Frame::encode(&AgreementMessage::Promise(promise).into(), None)])
            }
            _ => FrameAction::Pass,
        }
    }
}

/// How the state of a chunk that moves is wrong, although its digest is right.
#[derive(Clone, Copy, Debug)]
pub(super) enum Corruption {
    /// It is all zeros.
    Empty,
    /// It is that of an earlier step, of any chunk that moved then.
    Old,
    /// Its number of updates is too low.
    Miscounted,
}

/// Changes the state of chunks that move.
pub(super) struct CorruptState {
    corruption: Corruption,
    /// By length: the state of a chunk that moved earlier.
    before: BTreeMap<usize, Vec<u8>>,
}

impl CorruptState {
    pub(super) fn new(corruption: Corruption) -> Self {
        Self { corruption, before: BTreeMap::new() }
    }
}

impl FrameFilter for CorruptState {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        let Some(Message::InView { view, message: TrainingMessage::ChunkBatch(mut chunk_batch) }) =
            envelope.message()
        else {
            return FrameAction::Pass;
        };
        let Some(payload) =
            envelope.frame.payload.as_ref().filter(|_| chunk_batch.content == ChunkContent::State)
        else {
            return FrameAction::Pass;
        };
        let mut bytes = payload.bytes().to_vec();
        match self.corruption {
            Corruption::Empty => bytes.fill(0),
            Corruption::Old => {
                if let Some(before) = self.before.insert(bytes.len(), bytes.clone()) {
                    bytes = before;
                }
            }
            Corruption::Miscounted => chunk_batch
                .entries
                .iter_mut()
                .for_each(|piece| piece.updates = piece.updates.saturating_sub(1)),
        }
        chunk_batch.digest = ContentDigest::of(&bytes);
        FrameAction::Replace(vec![Frame::encode(
            &TrainingMessage::ChunkBatch(chunk_batch).in_view(view),
            Some(Buffer::from_bytes(&bytes)),
        )])
    }
}

/// Changes a bit in the sums from which replicas are updated.
pub(super) fn flip_mirror(envelope: &Envelope<'_>) -> FrameAction {
    match envelope.message() {
        Some(Message::InView { view, message: TrainingMessage::Segment(segment) })
            if segment.phase == Phase::Mirror =>
        {
            FrameAction::Replace(vec![changed(envelope.frame, (view, segment), |bytes| bytes[1] ^= 1)])
        }
        _ => FrameAction::Pass,
    }
}

/// Drops frames of a view until their receiver has sent something in it.
#[derive(Default)]
pub(super) struct DropNewView {
    /// By host: the views in which it has sent something.
    entered: BTreeMap<HostId, BTreeSet<ViewDigest>>,
    /// By sender and receiver: how many frames were dropped.
    dropped: BTreeMap<(HostId, HostId), u64>,
}

impl FrameFilter for DropNewView {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        let link = (envelope.from, envelope.to);
        let view = match envelope.message() {
            Some(Message::InView {
                view,
                message: TrainingMessage::Segment(_) | TrainingMessage::ChunkBatch(_),
            }) => view,
            Some(Message::Heartbeat(beat)) => {
                self.entered.entry(envelope.from).or_default().insert(beat.view);
                return FrameAction::Pass;
            }
            // No member notices what was dropped.
            Some(message) => return without_dropped(message, self.dropped.get(&link).copied().unwrap_or(0)),
            None => return FrameAction::Pass,
        };
        self.entered.entry(envelope.from).or_default().insert(view);
        match self.entered.get(&envelope.to) {
            // All hosts enter the first view at once.
            Some(entered) if !entered.contains(&view) => {
                *self.dropped.entry(link).or_default() += 1;
                FrameAction::Drop
            }
            _ => FrameAction::Pass,
        }
    }
}

/// Long enough for another member to take over.
const SILENCE: Duration = Duration::from_secs(8);
/// The step after which a process is killed in `kill-mid-step`.
const CRASH_STEP: u64 = 20;

/// Of two or more checkpoints, peers that return after all had stopped report only the older ones.
pub(super) fn hide_newest_checkpoint(envelope: &Envelope<'_>) -> FrameAction {
    let Some(Message::Agreement(AgreementMessage::Promise(mut promise))) = envelope.message() else {
        return FrameAction::Pass;
    };
    match &mut promise.report.rejoin {
        Some(again) if again.saved.len() > 1 => {
            again.saved.remove(0);
            FrameAction::Replace(vec![Frame::encode(&AgreementMessage::Promise(promise).into(), None)])
        }
        _ => FrameAction::Pass,
    }
}
