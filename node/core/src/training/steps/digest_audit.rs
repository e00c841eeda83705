//! Digest audit: whether all members have the same parameters.
//!
//! All members compute with the same parameters, bit for bit. A faulty memory or processor, or a task that draws or computes differently on
//! one machine, would break that without a word: losses still fall, and each member ends with a model of its own.
//!
//! # How it works
//! Each member sends the first members the digest of its parameters after the first step of a view, after each `digest_every` steps, and
//! before the closing barrier. These compare it with their own.
//! - If more than half of the members of the view have the same digest, those with another one are at fault: the next view is without them,
//!   and they come back as newcomers, with the parameters of the others.
//! - If no digest is that of more than half, nobody can say which parameters are right, and the run fails.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{ParametersDigest, TrainingMessage};
use peergrad_protocol::{Frame, PeerId, Rank, StepNumber};

use super::state::StepState;
use crate::io::{Failure, Output, Reject};

/// The digests that one member of a view has received, with its own.
#[derive(Default)]
pub(super) struct DigestAudit {
    /// By the number of steps: the newest ones in this view.
    rounds: BTreeMap<StepNumber, Round>,
    /// Why the run cannot be continued, once nobody could say whose parameters are right. No later view mends that.
    failure: Option<Failure>,
}

/// The digests after the same number of steps.
#[derive(Default)]
struct Round {
    /// By the member's rank.
    by_rank: BTreeMap<Rank, ContentDigest>,
    /// How many members have each digest.
    counts: BTreeMap<ContentDigest, usize>,
}

/// What the digests after some step show, if they differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// These members have other parameters than this one and most others.
    Differing(Vec<Rank>),
    /// Most members have other parameters than this one, after so many steps.
    Alone(StepNumber),
    /// After so many steps no parameters are those of more than half of the members. These members have others than this one.
    Undecided(StepNumber, Vec<Rank>),
}

impl DigestAudit {
    /// The parameters of the member at `rank` have this digest after `steps` steps.
    pub(super) fn note(&mut self, rank: Rank, steps: StepNumber, digest: ContentDigest) {
        let Round { by_rank, counts } = self.rounds.entry(steps).or_default();
        // What a member says first counts.
        if let Entry::Vacant(place) = by_rank.entry(rank) {
            place.insert(digest);
            *counts.entry(digest).or_default() += 1;
        }
        if self.rounds.len() > ROUNDS_KEPT {
            self.rounds.pop_first();
        }
    }

    /// Whether the member at `rank` has reported a digest in this view.
    pub(super) fn has_heard(&self, rank: Rank) -> bool {
        self.rounds.values().any(|round| round.by_rank.contains_key(&rank))
    }

    /// Another view begins.
    pub(super) fn leave_view(&mut self) {
        self.rounds.clear();
    }

    /// What the digests show to the member at `rank`, of `member_count` members: the newest finding.
    pub(super) fn finding(&self, rank: Rank, member_count: usize) -> Option<Finding> {
        let newest_first = self.rounds.iter().rev().filter(|(_, round)| round.counts.len() > 1);
        newest_first.filter_map(|(steps, round)| round.finding(*steps, rank, member_count)).next()
    }
}

impl Round {
    fn finding(&self, steps: StepNumber, rank: Rank, member_count: usize) -> Option<Finding> {
        let own = self.by_rank.get(&rank)?;
        let differing = || {
            let others = self.by_rank.iter().filter(|(_, digest)| *digest != own);
            others.map(|(rank, _)| *rank).collect()
        };
        match self.counts.iter().find(|(_, count)| **count * 2 > member_count) {
            Some((most, _)) if most == own => Some(Finding::Differing(differing())),
            Some(_) => Some(Finding::Alone(steps)),
            // The digests of some members may still be on their way.
            None => (self.by_rank.len() == member_count).then(|| Finding::Undecided(steps, differing())),
        }
    }
}

impl StepState {
    /// Tells the first members the digest of this member's parameters after `steps` steps.
    pub(super) fn send_digest(&mut self, steps: StepNumber, digest: ContentDigest, out: &mut Vec<Output>) {
        self.audit.note(self.base.rank, steps, digest);
        self.note_failure();
        let base = &self.base;
        let message = ParametersDigest { steps, digest };
        let message = TrainingMessage::ParametersDigest(message).in_view(base.digest());
        let auditors = base.view().members.iter().take(AUDITORS_MAX).map(|member| member.peer);
        for to in auditors.filter(|peer| *peer != base.me.peer) {
            out.push(Output::Send { to, frame: Frame::encode(&message, None) });
        }
    }

    /// A member reports the digest of its parameters.
    ///
    /// # Errors
    /// The sender is no member of the view.
    pub(super) fn receive_digest(
        &mut self,
        from: PeerId,
        parameters: ParametersDigest,
    ) -> Result<(), Reject> {
        let ParametersDigest { steps, digest } = parameters;
        let rank = self.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        if steps.0 <= self.step.0 + STEPS_AHEAD_MAX {
            self.audit.note(rank, steps, digest);
            self.note_failure();
        }
        Ok(())
    }

    fn note_failure(&mut self) {
        if let (None, Some(Finding::Undecided(steps, ranks))) = (&self.audit.failure, self.finding()) {
            self.audit.failure = Some(Failure::ParametersDiffer { steps, peers: self.peers(&ranks) });
        }
    }

    fn finding(&self) -> Option<Finding> {
        self.audit.finding(self.base.rank, self.base.view().members.len())
    }

    fn peers(&self, ranks: &[Rank]) -> Vec<PeerId> {
        ranks.iter().map(|rank| self.base.view().member(*rank).peer).collect()
    }

    /// The members whose parameters are not those of this one and most others.
    pub(crate) fn differing(&self) -> Vec<PeerId> {
        if let Some(Finding::Differing(ranks)) = self.finding() { self.peers(&ranks) } else { vec![] }
    }

    /// Why the run cannot be continued: nobody can say which parameters are right.
    pub(in crate::training) fn undecided(&self) -> Option<Failure> {
        self.audit.failure.clone()
    }

    /// Why the run has failed at this member if it ends now: its parameters are not those of most members, or no parameters are.
    pub(in crate::training) fn differs_at_end(&self) -> Option<Failure> {
        let alone = || match self.finding()? {
            Finding::Alone(steps) => Some(Failure::ParametersDiffer { steps, peers: vec![] }),
            Finding::Undecided(..) | Finding::Differing(_) => None,
        };
        self.undecided().or_else(alone)
    }
}

/// To how many members, those of the lowest ranks, each one sends its digest.
pub(super) const AUDITORS_MAX: usize = 32;
/// How many steps further than this member another one may be when it sends a digest.
pub(super) const STEPS_AHEAD_MAX: u64 = 2;
/// After how many different steps digests are kept.
const ROUNDS_KEPT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// The finding of the member at rank 0, of as many members as there are letters: each letter is a digest, and a dot none.
    fn finding(digests: &str) -> Option<Finding> {
        let mut audit = DigestAudit::default();
        for (index, letter) in digests.bytes().enumerate().filter(|(_, letter)| *letter != b'.') {
            audit.note(Rank::from_index(index), StepNumber(7), ContentDigest([letter; 32]));
        }
        audit.finding(Rank(0), digests.len())
    }

    #[test]
    fn the_members_that_differ_from_most_are_at_fault() {
        let (steps, ranks) = (StepNumber(7), |ranks: &[u32]| ranks.iter().copied().map(Rank).collect());
        for equal in ["a", "aa", "aaaaa", "a.a", ".bb", "a...."] {
            assert_eq!(finding(equal), None, "{equal}");
        }
        assert_eq!(finding("aab"), Some(Finding::Differing(ranks(&[2]))));
        assert_eq!(finding("abaca"), Some(Finding::Differing(ranks(&[1, 3]))));
        assert_eq!(finding("aab.."), None, "two of five are not most");
        assert_eq!(finding("aaab."), Some(Finding::Differing(ranks(&[3]))));
        assert_eq!(finding("abbb."), Some(Finding::Alone(steps)));
        assert_eq!(finding("ab"), Some(Finding::Undecided(steps, ranks(&[1]))));
        assert_eq!(finding("abab"), Some(Finding::Undecided(steps, ranks(&[1, 3]))));
        assert_eq!(finding("ab.."), None, "not all have reported");
    }

    #[test]
    fn a_member_that_claims_many_steps_uses_up_no_memory() {
        let mut audit = DigestAudit::default();
        for steps in 0..100 {
            audit.note(Rank(1), StepNumber(steps), ContentDigest([1; 32]));
        }
        assert_eq!(audit.rounds.len(), ROUNDS_KEPT);
        assert!(audit.has_heard(Rank(1)) && !audit.has_heard(Rank(0)));
        audit.leave_view();
        assert!(!audit.has_heard(Rank(1)));
    }
}
