//! Meeting: where all parts of a swarm that is cut in two go on, members look for those whom they have lost.
//!
//! What they say to each other when they have found them: `machine/healing.rs`.

use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::limits::MEMBERS_MAX;
use peergrad_protocol::message::Contact;
use peergrad_protocol::view::{Recovery, View};
use peergrad_protocol::{Instant, PeerId, Rank};

use super::Membership;
use crate::io::Output;

impl Membership {
    /// Whether all parts go on.
    pub(crate) fn forks(&self) -> bool {
        self.forks
    }

    /// Takes note of those who were lost with the view `before`, and of those who are back.
    pub(super) fn note_estranged(&mut self, before: &Arc<View>, left: &[PeerId]) {
        let is_loss = matches!(&self.view.recovery, Recovery::Resume(resume) if resume.is_interruption());
        for peer in left.iter().filter(|_| self.forks && is_loss) {
            if let Some(rank) = before.rank(peer)
                && self.estranged.len() < MEMBERS_MAX
            {
                self.estranged.insert(*peer, before.member(rank).contact());
            }
        }
        let view = &self.view;
        self.estranged.retain(|peer, _| view.rank(peer).is_none() && view.expulsion(peer).is_none());
    }

    /// Members that were lost and can be reached again; the others are dialed.
    pub(crate) fn find_estranged(&self, out: &mut Vec<Output>) -> Vec<PeerId> {
        let (found, missing): (Vec<&Contact>, Vec<&Contact>) =
            self.estranged.values().partition(|contact| self.linked.contains(&contact.peer));
        out.extend(missing.into_iter().cloned().map(Output::Dial));
        found.into_iter().map(|contact| contact.peer).collect()
    }

    /// A peer that was lost asks to be let in: it is in no other lineage.
    pub(super) fn is_no_stranger(&mut self, peer: &PeerId) {
        self.estranged.remove(peer);
    }

    /// Somebody speaks in another view than this one. Perhaps one of the two is about to hear of the other's.
    pub(crate) fn note_elsewhere(&mut self, now: Instant, peer: &PeerId) {
        if let Some(rank) = self.view.rank(peer).filter(|_| self.forks) {
            self.term.elsewhere.entry(rank).or_insert(now);
        }
    }

    /// Members that have been in another lineage for a while.
    pub(super) fn elsewhere(&self, now: Instant) -> impl Iterator<Item = Rank> {
        let is_gone = move |since: &Instant| now.since(*since) > ELSEWHERE;
        self.term.elsewhere.iter().filter(move |(_, since)| is_gone(since)).map(|(rank, _)| *rank)
    }

    /// Who speaks for this lineage.
    pub(crate) fn convener_contact(&self, now: Instant) -> Option<Contact> {
        Some(self.view.member(self.convener(now)?).contact())
    }

    /// How long it may take until another lineage has said what it leaves, and all have their part of it.
    pub(crate) fn patience_with_others(&self) -> Duration {
        GIVEN_UP_AFTER + GIVEN_UP_STEPS * self.pace.usual()
    }

    /// How many steps ahead members are told of one, so that none is beyond it when they hear of it.
    pub(crate) fn steps_ahead(&self) -> u64 {
        let usual = self.pace.usual().as_micros().max(1);
        let steps = AHEAD.as_micros().div_ceil(usual);
        u64::try_from(steps).unwrap_or(AHEAD_MAX).clamp(AHEAD_MIN, AHEAD_MAX)
    }
}

/// What has come to nothing by then is given up; where steps are slow, it takes some of them longer.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(30);
const GIVEN_UP_STEPS: u32 = 8;
/// Who is heard of in other views only is not in this one any more; before that, views are on their way.
const ELSEWHERE: Duration = Duration::from_secs(3);
/// A step is named so long ahead.
const AHEAD: Duration = Duration::from_secs(1);
/// And at least one after that which others may have completed already.
const AHEAD_MIN: u64 = 2;
const AHEAD_MAX: u64 = 4096;
