//! Digest audit: whether all members have the same parameters.
//!
//! All members compute with the same parameters, bit for bit. A faulty memory or processor, or a task that draws or computes differently on
//! one machine, would break that without a word: losses still fall, and each member ends with a model of its own.
//!
//! # How it works
//! Each member sends the first members the digest of its parameters after the first step of a view, after each `digest_every` steps, and
//! before the closing barrier. These compare it with their own. If any differ, all report again after each of the next steps: what was
//! changed on its way to one member is overwritten by the next step. What differs twice in a row stays.
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

/// What digests that differ show.
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

    /// Whether digests differ after a step that was so many steps ago at most, so that members report again.
    pub(super) fn is_in_doubt(&self, steps: StepNumber) -> bool {
        let newest = self.rounds.iter().rev().find(|(_, round)| round.counts.len() > 1);
        newest.is_some_and(|(doubtful, _)| steps.0 <= doubtful.0 + DOUBT_STEPS)
    }

    /// What the newest digests show to the member at `rank`, of `member_count` members.
    pub(super) fn newest(&self, rank: Rank, member_count: usize) -> Option<Finding> {
        self.findings(rank, member_count).next()?
    }

    /// The same, if the digests before have shown it as well.
    pub(super) fn confirmed(&self, rank: Rank, member_count: usize) -> Option<Finding> {
        let mut findings = self.findings(rank, member_count);
        match (findings.next()??, findings.next()??) {
            (Finding::Differing(mut ranks), Finding::Differing(before)) => {
                ranks.retain(|rank| before.contains(rank));
                (!ranks.is_empty()).then_some(Finding::Differing(ranks))
            }
            (Finding::Undecided(steps, ranks), Finding::Undecided(..)) => {
                Some(Finding::Undecided(steps, ranks))
            }
            (Finding::Alone(steps), Finding::Alone(_)) => Some(Finding::Alone(steps)),
            _ => None,
        }
    }

    /// For each step after which enough members have reported, the newest first: what it shows, if digests differ.
    fn findings(&self, rank: Rank, member_count: usize) -> impl Iterator<Item = Option<Finding>> {
        let decided = self.rounds.iter().rev().filter(move |(_, round)| round.is_decided(rank, member_count));
        decided.map(move |(steps, round)| round.finding(*steps, rank, member_count))
    }
}

impl Round {
    /// Whether the member at `rank` has reported, and so have all others, or digests differ and more than half of the members have the same.
    fn is_decided(&self, rank: Rank, member_count: usize) -> bool {
        let has_most = || self.counts.values().any(|count| count * 2 > member_count);
        let is_clear = self.by_rank.len() == member_count || (self.counts.len() > 1 && has_most());
        self.by_rank.contains_key(&rank) && is_clear
    }

    /// What the digests show if they differ. They are [decided](Self::is_decided).
    fn finding(&self, steps: StepNumber, rank: Rank, member_count: usize) -> Option<Finding> {
        let own = self.by_rank.get(&rank).filter(|_| self.counts.len() > 1)?;
        let differing = || {
            let others = self.by_rank.iter().filter(|(_, digest)| *digest != own);
            others.map(|(rank, _)| *rank).collect()
        };
        Some(match self.counts.iter().find(|(_, count)| **count * 2 > member_count) {
            Some((most, _)) if most == own => Finding::Differing(differing()),
            Some(_) => Finding::Alone(steps),
            None => Finding::Undecided(steps, differing()),
        })
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
        if let (None, Some(Finding::Undecided(steps, ranks))) = (&self.audit.failure, self.confirmed()) {
            self.audit.failure = Some(Failure::ParametersDiffer { steps, peers: self.peers(&ranks) });
        }
    }

    fn confirmed(&self) -> Option<Finding> {
        self.audit.confirmed(self.base.rank, self.base.view().members.len())
    }

    fn peers(&self, ranks: &[Rank]) -> Vec<PeerId> {
        ranks.iter().map(|rank| self.base.view().member(*rank).peer).collect()
    }

    /// The members whose parameters are not those of this one and most others.
    pub(crate) fn differing(&self) -> Vec<PeerId> {
        if let Some(Finding::Differing(ranks)) = self.confirmed() { self.peers(&ranks) } else { vec![] }
    }

    /// Why the run cannot be continued: nobody can say which parameters are right.
    pub(in crate::training) fn undecided(&self) -> Option<Failure> {
        self.audit.failure.clone()
    }

    /// Why the run has failed at this member if it ends now: its parameters are not those of most members, or no parameters are.
    pub(in crate::training) fn differs_at_end(&self) -> Option<Failure> {
        let newest = || match self.audit.newest(self.base.rank, self.base.view().members.len())? {
            Finding::Alone(steps) => Some(Failure::ParametersDiffer { steps, peers: vec![] }),
            Finding::Undecided(steps, ranks) => {
                Some(Failure::ParametersDiffer { steps, peers: self.peers(&ranks) })
            }
            Finding::Differing(_) => None,
        };
        self.undecided().or_else(newest)
    }
}

/// To how many members, those of the lowest ranks, each one sends its digest.
pub(super) const AUDITORS_MAX: usize = 32;
/// How many steps further than this member another one may be when it sends a digest.
pub(super) const STEPS_AHEAD_MAX: u64 = 2;
/// After how many different steps digests are kept.
const ROUNDS_KEPT: usize = 16;
/// For how many steps members report after each one once digests have differed.
const DOUBT_STEPS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// The audit of a view of as many members as each text has letters: each letter is a digest, and a dot none; a text for each step.
    fn audit(rounds: &[&str]) -> DigestAudit {
        let mut audit = DigestAudit::default();
        for (steps, digests) in rounds.iter().enumerate() {
            for (index, letter) in digests.bytes().enumerate().filter(|(_, letter)| *letter != b'.') {
                audit.note(Rank::from_index(index), StepNumber(steps as u64), ContentDigest([letter; 32]));
            }
        }
        audit
    }

    /// The newest finding of the member at rank 0.
    fn newest(digests: &str) -> Option<Finding> {
        audit(&[digests]).newest(Rank(0), digests.len())
    }

    fn ranks(ranks: &[u32]) -> Vec<Rank> {
        ranks.iter().copied().map(Rank).collect()
    }

    #[test]
    fn the_members_that_differ_from_most_are_at_fault() {
        let steps = StepNumber(0);
        for equal in ["a", "aa", "aaaaa", "a.a", ".bb", "a...."] {
            assert_eq!(newest(equal), None, "{equal}");
        }
        assert_eq!(newest("aab"), Some(Finding::Differing(ranks(&[2]))));
        assert_eq!(newest("abaca"), Some(Finding::Differing(ranks(&[1, 3]))));
        assert_eq!(newest("aab.."), None, "two of five are not most");
        assert_eq!(newest("aaab."), Some(Finding::Differing(ranks(&[3]))));
        assert_eq!(newest("abbb."), Some(Finding::Alone(steps)));
        assert_eq!(newest("ab"), Some(Finding::Undecided(steps, ranks(&[1]))));
        assert_eq!(newest("abab"), Some(Finding::Undecided(steps, ranks(&[1, 3]))));
        assert_eq!(newest("ab.."), None, "not all have reported");
    }

    #[test]
    fn what_differs_once_is_overwritten_and_what_differs_twice_stays() {
        let confirmed = |rounds: &[&str]| audit(rounds).confirmed(Rank(0), rounds[0].len());
        assert_eq!(confirmed(&["aab"]), None);
        assert_eq!(confirmed(&["aab", "aaa"]), None);
        assert_eq!(confirmed(&["aab", "aba"]), None, "another member each time");
        assert_eq!(confirmed(&["aab", "ccb"]), Some(Finding::Differing(ranks(&[2]))));
        assert_eq!(confirmed(&["aab", "c..", "ccb"]), Some(Finding::Differing(ranks(&[2]))), "not decided");
        assert_eq!(confirmed(&["aab", "ccb", "dd."]), Some(Finding::Differing(ranks(&[2]))), "not all");
        assert_eq!(confirmed(&["ab", "aa"]), None);
        assert_eq!(confirmed(&["ab", "cd"]), Some(Finding::Undecided(StepNumber(1), ranks(&[1]))));
        assert_eq!(confirmed(&["abb", "cdd"]), Some(Finding::Alone(StepNumber(1))));
        let doubtful = audit(&["aaa", "aab", "aaa"]);
        assert!(doubtful.is_in_doubt(StepNumber(2)) && doubtful.is_in_doubt(StepNumber(1 + DOUBT_STEPS)));
        assert!(
            !doubtful.is_in_doubt(StepNumber(2 + DOUBT_STEPS)) && !audit(&["aaa"]).is_in_doubt(StepNumber(0))
        );
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
