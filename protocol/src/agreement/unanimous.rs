//! Unanimity: an attempt whose value is chosen once every member that it concerns has accepted it.
//!
//! This is what members use where both halves of a partitioned swarm may go on. No half needs a quorum, so several values may
//! be chosen after one view, each for members of its own.
//!
//! # Invariants
//! - No member is concerned by two chosen values. A member that has promised a higher ballot accepts nothing under a lower one,
//!   so a value that also needs that member is not chosen.
//! - Nothing is adopted. A value that another attempt may have had chosen is for the members that accepted it, and does not
//!   bind the others.
//!
//! # Not here
//! [`Proposer`](super::Proposer) is Paxos: at most one value is ever chosen, by a quorum.

use std::collections::{BTreeMap, BTreeSet};

use super::{Attempt, Ballot};
use crate::id::Rank;

/// One attempt of one member to have a value accepted by all members that it concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnanimousProposer<V, R> {
    ballot: Ballot,
    member_count: usize,
    /// By rank of the members that have promised: what each of them reported.
    reports: BTreeMap<Rank, R>,
    proposal: Option<Proposal<V>>,
}

/// A value that is proposed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Proposal<V> {
    value: V,
    /// Members that have to accept the value.
    concerned: BTreeSet<Rank>,
    accepted_by: BTreeSet<Rank>,
}

impl<V> Proposal<V> {
    fn is_chosen(&self) -> bool {
        self.concerned.is_subset(&self.accepted_by)
    }
}

impl<V, R> UnanimousProposer<V, R> {
    /// An attempt under `ballot`, which no attempt has used before, among `member_count` members.
    #[must_use]
    pub fn new(ballot: Ballot, member_count: usize) -> Self {
        Self { ballot, member_count, reports: BTreeMap::new(), proposal: None }
    }
}

impl<V, R> Attempt<V, R> for UnanimousProposer<V, R> {
    fn ballot(&self) -> Ballot {
        self.ballot
    }

    fn promised(&mut self, from: Rank, _accepted: Option<(Ballot, V)>, report: R) -> bool {
        let is_member = from.index() < self.member_count;
        if !is_member || self.proposal.is_some() || self.reports.contains_key(&from) {
            return false;
        }
        self.reports.insert(from, report);
        true
    }

    fn reports(&self) -> &BTreeMap<Rank, R> {
        &self.reports
    }

    /// The proposer's own promise is enough.
    fn can_propose(&self) -> bool {
        self.reports.contains_key(&self.ballot.rank)
    }

    fn adopted(&self) -> Option<&V> {
        None
    }

    /// # Panics
    /// If one of `concerned` has not promised, or the proposer itself has not.
    fn propose_to(&mut self, concerned: BTreeSet<Rank>, value: V) -> &V {
        assert!(self.can_propose(), "the proposer has promised");
        assert!(
            concerned.iter().all(|rank| self.reports.contains_key(rank)),
            "all whom it concerns have promised"
        );
        let proposal =
            self.proposal.get_or_insert(Proposal { value, concerned, accepted_by: BTreeSet::new() });
        &proposal.value
    }

    fn proposed(&self) -> Option<&V> {
        self.proposal.as_ref().map(|proposal| &proposal.value)
    }

    fn accepted(&mut self, from: Rank) -> bool {
        let Some(proposal) = self.proposal.as_mut().filter(|_| from.index() < self.member_count) else {
            return false;
        };
        let was_chosen = proposal.is_chosen();
        proposal.accepted_by.insert(from);
        !was_chosen && proposal.is_chosen()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attempt of rank 0 among three members, with the promises of these ranks.
    fn promised(ranks: &[u32]) -> UnanimousProposer<char, ()> {
        let mut proposer = UnanimousProposer::new(Ballot { attempt: 1, rank: Rank(0) }, 3);
        for rank in ranks {
            assert!(proposer.promised(Rank(*rank), None, ()));
        }
        proposer
    }

    #[test]
    fn a_value_is_chosen_once_all_addressed_members_have_accepted_it() {
        let mut proposer = promised(&[0, 2]);
        assert_eq!(proposer.propose_to([Rank(0), Rank(2)].into(), 'a'), &'a');
        assert!(!proposer.accepted(Rank(0)));
        assert!(!proposer.accepted(Rank(1)), "a member that it does not concern");
        assert!(!proposer.accepted(Rank(7)), "no member");
        assert!(proposer.accepted(Rank(2)));
        assert!(!proposer.accepted(Rank(2)), "chosen before");
    }

    #[test]
    fn a_proposer_may_propose_after_its_own_promise_and_needs_all_acceptances() {
        let mut proposer: UnanimousProposer<char, ()> =
            UnanimousProposer::new(Ballot { attempt: 2, rank: Rank(1) }, 5);
        let before = Some((Ballot { attempt: 1, rank: Rank(0) }, 'a'));
        assert!(proposer.promised(Rank(4), before, ()) && !proposer.can_propose());
        assert!(proposer.promised(Rank(1), None, ()) && proposer.can_propose());
        assert_eq!(proposer.propose_to([Rank(1), Rank(4)].into(), 'b'), &'b');
        assert!(!proposer.accepted(Rank(1)) && !proposer.accepted(Rank(0)));
        assert!(proposer.accepted(Rank(4)), "both have");
        assert!(!proposer.accepted(Rank(2)));
    }

    #[test]
    fn a_single_member_may_continue_alone() {
        let mut proposer = promised(&[]);
        assert!(!proposer.can_propose());
        assert!(proposer.promised(Rank(0), None, ()));
        proposer.propose_to([Rank(0)].into(), 'a');
        assert!(proposer.accepted(Rank(0)));
    }

    #[test]
    fn a_quorum_that_lacks_one_member_does_not_choose() {
        let mut proposer = promised(&[0, 1, 2]);
        proposer.propose_to([0, 1, 2].map(Rank).into(), 'a');
        assert!(!proposer.accepted(Rank(0)) && !proposer.accepted(Rank(1)));
        assert!(proposer.accepted(Rank(2)));
    }

    #[test]
    fn a_value_accepted_before_is_not_adopted() {
        let mut proposer = promised(&[0]);
        assert!(proposer.promised(Rank(1), Some((Ballot { attempt: 0, rank: Rank(1) }, 'b')), ()));
        assert_eq!(proposer.adopted(), None);
        assert_eq!(proposer.propose_to([Rank(0)].into(), 'a'), &'a');
        assert_eq!(proposer.propose_to([Rank(0)].into(), 'c'), &'a');
        assert!(!proposer.promised(Rank(2), None, ()), "a value is proposed");
    }

    #[test]
    #[should_panic(expected = "all whom it concerns have promised")]
    fn proposing_to_a_member_that_has_not_promised_panics() {
        promised(&[0]).propose_to([Rank(0), Rank(1)].into(), 'a');
    }
}
