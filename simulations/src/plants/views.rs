//! Bugs in how one view follows another: what members are told and remember of it, and what state moves with it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{Content, Message, Phase, Promise, Propose};
use peergrad_protocol::view::Succession;
use peergrad_protocol::{Buffer, Frame, PeerId, ViewDigest};

use super::{changed, learn_ranks};
use crate::host::{HostId, peer_of};
use crate::rules::{Envelope, Rule, Verdict};

/// A proposer falls silent before anybody hears that its value is chosen; the one who takes over is not told of it.
///
/// The silence alone must do no harm: the value would be found among the promises and proposed again.
#[derive(Default)]
pub(super) struct Unadopted {
    ranks: Vec<PeerId>,
    /// Whoever proposed first, and who takes over.
    first: Option<(HostId, PeerId)>,
}

impl Rule for Unadopted {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> Verdict {
        let message = envelope.message();
        learn_ranks(&mut self.ranks, message.as_ref());
        if let (Some(Message::Propose(propose)), None) = (&message, self.first) {
            self.first = self.heir(envelope.from, propose).map(|heir| (envelope.from, heir));
        }
        let Some((first, heir)) = self.first else { return Verdict::Pass };
        let is_heir = peer_of(envelope.to) == heir;
        match message {
            Some(Message::Propose(_)) if envelope.from == first && is_heir => Verdict::Delay(SILENCE),
            Some(Message::Succeed(_)) if envelope.from == first => Verdict::Delay(SILENCE),
            Some(Message::Promise(promise)) if is_heir && promise.accepted.is_some() => {
                let promise = Box::new(Promise { accepted: None, ..*promise });
                Verdict::Replace(vec![Frame::encode(&Message::Promise(promise), None)])
            }
            _ => Verdict::Pass,
        }
    }
}

impl Unadopted {
    /// Whoever will try next, once the proposer is silent.
    fn heir(&self, proposer: HostId, propose: &Propose) -> Option<PeerId> {
        let Succession { removed, .. } = &propose.change;
        let is_there = |(rank, peer): &(usize, &PeerId)| {
            **peer != peer_of(proposer) && removed.iter().all(|gone| gone.index() != *rank)
        };
        let mut others = self.ranks.iter().enumerate().filter(is_there);
        others.next().filter(|_| !removed.is_empty()).map(|(_, peer)| *peer)
    }
}

/// Until it is started again, one peer hears only of the first proposal, and not that it was chosen; after that it hears of no
/// view before it has accepted once more.
///
/// That alone must do no harm: it remembers what it accepted, and whoever asks it later hears of it.
pub(super) struct Uninformed {
    site: HostId,
    /// Who proposed first.
    first: Option<HostId>,
    has_returned: bool,
    has_accepted_again: bool,
}

impl Uninformed {
    pub(super) fn new(site: HostId) -> Self {
        Self { site, first: None, has_returned: false, has_accepted_again: false }
    }
}

impl Rule for Uninformed {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> Verdict {
        let message = envelope.message();
        // Only a peer that is started again asks to be let in after that.
        let asks = envelope.from == self.site && matches!(message, Some(Message::Join(_)));
        self.has_returned |= self.first.is_some() && asks;
        let accepts = envelope.from == self.site && matches!(message, Some(Message::Accepted(_)));
        self.has_accepted_again |= self.has_returned && accepts;
        if envelope.to != self.site || self.has_accepted_again {
            return Verdict::Pass;
        }
        match message {
            Some(Message::Install(_)) if self.has_returned => Verdict::Drop,
            _ if self.has_returned => Verdict::Pass,
            Some(Message::Propose(_)) => {
                let first = *self.first.get_or_insert(envelope.from);
                if first == envelope.from { Verdict::Pass } else { Verdict::Drop }
            }
            Some(Message::Prepare(_)) if self.first.is_some_and(|first| first != envelope.from) => {
                Verdict::Drop
            }
            Some(Message::Install(_) | Message::Succeed(_)) if self.first.is_some() => Verdict::Drop,
            _ => Verdict::Pass,
        }
    }
}

/// One peer votes, but is told nothing of the views that follow the one that it is in, and cannot ask for one.
pub(super) fn swallow_views(envelope: &Envelope<'_>, site: HostId) -> Verdict {
    let is_lost = match envelope.message() {
        Some(Message::Install(view)) => envelope.to == site && !view.parents.is_empty(),
        Some(Message::Succeed(_)) => envelope.to == site,
        Some(Message::Prepare(_)) => envelope.from == site,
        _ => false,
    };
    if is_lost { Verdict::Drop } else { Verdict::Pass }
}

/// Sums for copies are lost with the owner that sends them, and members say that they have come.
///
/// The loss alone must do no harm: the step would be begun again.
#[derive(Default)]
pub(super) struct Boast {
    /// The view in which sums are lost.
    view: Option<ViewDigest>,
}

impl Rule for Boast {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> Verdict {
        match envelope.message() {
            Some(Message::Segment(segment)) => {
                let is_first_view = *self.view.get_or_insert(segment.view) == segment.view;
                let is_lost = is_first_view && segment.phase == Phase::Mirror && segment.step.0 > CRASH_STEP;
                if is_lost { Verdict::Drop } else { Verdict::Pass }
            }
            Some(Message::Promise(mut promise)) => {
                let Some(next) = &mut promise.report.next else { return Verdict::Pass };
                next.states = next.values.clone();
                Verdict::Replace(vec![Frame::encode(&Message::Promise(promise), None)])
            }
            _ => Verdict::Pass,
        }
    }
}

/// What is wrong with the state of a chunk that moves; its digest is right.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wrong {
    /// There is nothing in it.
    Empty,
    /// It is that of an earlier step, of whichever chunk moved there.
    Old,
    /// It has lost count of an update.
    Miscounted,
}

/// Changes the state of chunks that move.
pub(super) struct Spoil {
    wrong: Wrong,
    /// By length: what a chunk held that moved before.
    before: BTreeMap<usize, Vec<u8>>,
}

impl Spoil {
    pub(super) fn new(wrong: Wrong) -> Self {
        Self { wrong, before: BTreeMap::new() }
    }
}

impl Rule for Spoil {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> Verdict {
        let Some(Message::Parcel(mut parcel)) = envelope.message() else { return Verdict::Pass };
        let Some(payload) = envelope.frame.payload.as_ref().filter(|_| parcel.content == Content::State)
        else {
            return Verdict::Pass;
        };
        let mut bytes = payload.bytes().to_vec();
        match self.wrong {
            Wrong::Empty => bytes.fill(0),
            Wrong::Old => {
                if let Some(before) = self.before.insert(bytes.len(), bytes.clone()) {
                    bytes = before;
                }
            }
            Wrong::Miscounted => {
                parcel.pieces.iter_mut().for_each(|piece| piece.updates = piece.updates.saturating_sub(1))
            }
        }
        parcel.digest = ContentDigest::of(&bytes);
        Verdict::Replace(vec![Frame::encode(&Message::Parcel(parcel), Some(Buffer::from_bytes(&bytes)))])
    }
}

/// The sums from which copies are kept change on their way.
pub(super) fn flip_mirror(envelope: &Envelope<'_>) -> Verdict {
    match envelope.message() {
        Some(Message::Segment(segment)) if segment.phase == Phase::Mirror => {
            Verdict::Replace(vec![changed(envelope.frame, segment, |bytes| bytes[1] ^= 1)])
        }
        _ => Verdict::Pass,
    }
}

/// Frames of a view are lost as long as their receiver has not said anything in it.
#[derive(Default)]
pub(super) struct Refuse {
    /// By host: the views in which it has spoken.
    entered: BTreeMap<HostId, BTreeSet<ViewDigest>>,
}

impl Rule for Refuse {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> Verdict {
        let view = match envelope.message() {
            Some(Message::Segment(segment)) => segment.view,
            Some(Message::Parcel(parcel)) => parcel.view,
            Some(Message::Beat(beat)) => {
                self.entered.entry(envelope.from).or_default().insert(beat.view);
                return Verdict::Pass;
            }
            _ => return Verdict::Pass,
        };
        self.entered.entry(envelope.from).or_default().insert(view);
        match self.entered.get(&envelope.to) {
            // In the first view everybody is at once.
            Some(entered) if !entered.contains(&view) => Verdict::Drop,
            _ => Verdict::Pass,
        }
    }
}

/// Long enough for others to take over.
const SILENCE: Duration = Duration::from_secs(8);
/// The step after which a process is killed in `kill-mid-step`.
const CRASH_STEP: u64 = 20;

/// Of two checkpoints or more, peers that are back tell others of the older ones only.
pub(super) fn keep_newest_quiet(envelope: &Envelope<'_>) -> Verdict {
    let Some(Message::Promise(mut promise)) = envelope.message() else { return Verdict::Pass };
    match &mut promise.report.again {
        Some(again) if again.saved.len() > 1 => {
            again.saved.remove(0);
            Verdict::Replace(vec![Frame::encode(&Message::Promise(promise), None)])
        }
        _ => Verdict::Pass,
    }
}
