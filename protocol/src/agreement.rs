//! Agreement: how the members of a view choose one successor, although any of them may be gone, slow or cut off.
//!
//! Like a committee that meets only by letter. A secretary who wants a decision first asks for promises: "my attempt has number
//! 7; will you listen to no lower number, and what have you signed so far?" Only when enough members have promised does the
//! secretary name a decision. If one of those members has signed a decision before, the secretary must name that one again,
//! because it may already be made. So a second secretary who takes over from a silent one finishes its work and cannot undo it.
//!
//! # How it works
//! ```text
//! proposer                  every member (acceptor)                    proposer
//! Proposer::new(ballot) --> promise(ballot), to disk, answer --------> promised(from, what it accepted, report)
//!                                                                      has_quorum: propose(own value)
//!                      .--- the value <-------------------------------'
//!                      '--> accept(ballot, value), to disk, answer --> accepted(from): true, the value is chosen
//! ```
//! 1. A member that wants a successor picks a ballot above every one it knows of and asks all members, itself first.
//! 2. A member promises by [`Acceptor::promise`] and answers with the value it has accepted, if any, and a report of its state.
//!    From here on it refuses lower ballots and names the higher one, so that the refused proposer can try above it.
//! 3. With promises from a [quorum](is_quorum) the proposer names a value: the one accepted under the highest ballot
//!    among the promises, or one of its own, made from the reports, if there is none.
//! 4. A value that a quorum has accepted under one ballot is chosen. The proposer tells the others.
//!
//! Two exchanges, 4 small messages for each member. Any member may try at any time. Two that try at once can only delay
//! each other, never disagree.
//!
//! # Invariants
//! - At most one value is ever chosen: any two quorums share a member, whose promise brings an accepted value from the one
//!   to the other.
//! - The caller keeps three rules on which this rests:
//!   - What [`Acceptor`] remembers is on disk before the answer leaves. A peer that lost it has no vote in this agreement.
//!   - A ballot is for one [`Proposer`] only, also across a restart: a proposer promises its ballot to itself, on disk,
//!     before it asks the others, and tries only ballots above the one it has promised.
//!   - A member that has installed the successor gives no more answers here; then it may forget the record.
//!
//! # Not here
//! - Messages, timers and views: the caller sends, waits and decides when to try again. A lost message does no harm: a
//!   proposer that asks again gets the same answers.
//! - Partitioned swarms whose parts all go on. Their values need no quorum: [`UnanimousProposer`].
//!
//! # Reading
//! Lamport, *Paxos Made Simple* (2001), section 2. We differ in that half of the members are a quorum if rank 0 is among
//! them, so that one of two can go on, and in that a promise brings a report. The members of one configuration choose the
//! next one as in Lamport, Malkhi, Zhou, *Reconfiguring a State Machine* (2010), section 3.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::Rank;
use crate::wire::codec::{Decode, Encode};

mod unanimous;

pub use unanimous::UnanimousProposer;

/// The number of an attempt, which no other attempt has: ordered by attempt first, then rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Ballot {
    /// Grows with each try: a proposer that is refused tries above the ballot that the refusal names.
    pub attempt: u32,
    /// The rank of the proposer, so that no two members share a ballot.
    pub rank: Rank,
}

/// The vote of one member in one agreement, which is on its disk before its answer leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Acceptor<V> {
    /// The highest ballot it has promised; `None` before the first promise.
    promised: Option<Ballot>,
    /// The value it accepted last and its ballot; `None` before the first acceptance.
    accepted: Option<(Ballot, V)>,
}

impl<V> Default for Acceptor<V> {
    fn default() -> Self {
        Self { promised: None, accepted: None }
    }
}

impl<V> Acceptor<V> {
    /// Promises to listen to no ballot below `ballot`; repeating a promise changes nothing.
    ///
    /// # Errors
    /// The higher ballot that it has promised; the record is unchanged.
    pub fn promise(&mut self, ballot: Ballot) -> Result<(), Ballot> {
        match self.promised {
            Some(higher) if higher > ballot => Err(higher),
            _ => {
                self.promised = Some(ballot);
                Ok(())
            }
        }
    }

    /// Accepts `value` under `ballot`, which it thereby also promises; repeating an acceptance changes nothing.
    ///
    /// # Errors
    /// The higher ballot that it has promised; the record is unchanged.
    pub fn accept(&mut self, ballot: Ballot, value: V) -> Result<(), Ballot> {
        self.promise(ballot)?;
        self.accepted = Some((ballot, value));
        Ok(())
    }

    /// The highest ballot it has promised.
    #[must_use]
    pub fn promised(&self) -> Option<Ballot> {
        self.promised
    }

    /// The value it accepted last, which is the one under the highest ballot, and that ballot.
    #[must_use]
    pub fn accepted(&self) -> Option<&(Ballot, V)> {
        self.accepted.as_ref()
    }
}

/// What every attempt does, whether a quorum chooses the value ([`Proposer`]) or all whom it concerns ([`UnanimousProposer`]).
///
/// `V` is the type of the value, `R` that of the report which each promise brings.
pub trait Attempt<V, R> {
    /// The ballot of this attempt.
    fn ballot(&self) -> Ballot;

    /// The member at rank `from` has promised this ballot, with what it had accepted before. False if that changes
    /// nothing: there is no such rank, it was heard before, or a value is already proposed.
    fn promised(&mut self, from: Rank, accepted: Option<(Ballot, V)>, report: R) -> bool;

    /// By rank of the members that have promised: what each of them reported.
    fn reports(&self) -> &BTreeMap<Rank, R>;

    /// Whether enough members have promised that a value may be proposed.
    fn can_propose(&self) -> bool;

    /// The value that must be proposed, because it may be chosen already; `None` if the proposer is free.
    fn adopted(&self) -> Option<&V>;

    /// The value to ask all members to accept: the [adopted](Attempt::adopted) one, else `own`, which concerns these members.
    /// Once proposed, it stays: one ballot has one value.
    fn propose_to(&mut self, concerned: BTreeSet<Rank>, own: V) -> &V;

    /// The value it has proposed.
    fn proposed(&self) -> Option<&V>;

    /// The member at rank `from` has accepted the proposed value under this ballot. True exactly once: when this acceptance
    /// makes the value chosen.
    fn accepted(&mut self, from: Rank) -> bool;
}

/// One attempt of one member to have a value of type `V` chosen by a quorum; each promise brings a report of type `R`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposer<V, R> {
    ballot: Ballot,
    member_count: usize,
    /// By rank of the members that have promised: what each of them reported.
    reports: BTreeMap<Rank, R>,
    /// The value accepted under the highest ballot among the promises.
    adopted: Option<(Ballot, V)>,
    proposed: Option<V>,
    accepted_by: BTreeSet<Rank>,
}

impl<V: Clone, R> Proposer<V, R> {
    /// An attempt under `ballot`, which no attempt has used before, among `member_count` members.
    #[must_use]
    pub fn new(ballot: Ballot, member_count: usize) -> Self {
        Self {
            ballot,
            member_count,
            reports: BTreeMap::new(),
            adopted: None,
            proposed: None,
            accepted_by: BTreeSet::new(),
        }
    }

    /// The ballot of this attempt.
    #[must_use]
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// The member at rank `from` has promised this ballot, with what it had accepted before. False if that changes
    /// nothing: there is no such rank, it was heard before, or a value is already proposed.
    pub fn promised(&mut self, from: Rank, accepted: Option<(Ballot, V)>, report: R) -> bool {
        let is_member = from.index() < self.member_count;
        if !is_member || self.proposed.is_some() || self.reports.contains_key(&from) {
            return false;
        }
        self.reports.insert(from, report);
        if let Some((ballot, value)) = accepted
            && self.adopted.as_ref().is_none_or(|(highest, _)| ballot > *highest)
        {
            self.adopted = Some((ballot, value));
        }
        true
    }

    /// By rank of the members that have promised: what each of them reported.
    #[must_use]
    pub fn reports(&self) -> &BTreeMap<Rank, R> {
        &self.reports
    }

    /// Whether a quorum has promised, so that a value may be proposed.
    #[must_use]
    pub fn has_quorum(&self) -> bool {
        is_quorum(self.reports.keys().copied(), self.member_count)
    }

    /// The value that it must propose: the one accepted under the highest ballot among the promises so far.
    #[must_use]
    pub fn adopted(&self) -> Option<&V> {
        self.adopted.as_ref().map(|(_, value)| value)
    }

    /// The value to ask all members to accept: the adopted one, else `own`, made from the reports. Once proposed, it stays:
    /// one ballot has one value.
    ///
    /// # Panics
    /// If no quorum has promised: the value might differ from one that is chosen already.
    pub fn propose(&mut self, own: impl FnOnce(&BTreeMap<Rank, R>) -> V) -> &V {
        assert!(self.has_quorum(), "a value is proposed after a quorum has promised");
        let adopted = self.adopted().cloned();
        let reports = &self.reports;
        self.proposed.get_or_insert_with(|| adopted.unwrap_or_else(|| own(reports)))
    }

    /// The value it has proposed.
    #[must_use]
    pub fn proposed(&self) -> Option<&V> {
        self.proposed.as_ref()
    }

    /// The member at rank `from` has accepted the proposed value under this ballot. True exactly once: when with it a
    /// quorum has, so that the value is chosen.
    pub fn accepted(&mut self, from: Rank) -> bool {
        // An acceptance of what was not proposed can only be made up.
        if self.proposed.is_none() || from.index() >= self.member_count {
            return false;
        }
        let was_chosen = self.is_chosen();
        self.accepted_by.insert(from);
        !was_chosen && self.is_chosen()
    }

    fn is_chosen(&self) -> bool {
        is_quorum(self.accepted_by.iter().copied(), self.member_count)
    }
}

impl<V: Clone, R> Attempt<V, R> for Proposer<V, R> {
    fn ballot(&self) -> Ballot {
        self.ballot()
    }

    fn promised(&mut self, from: Rank, accepted: Option<(Ballot, V)>, report: R) -> bool {
        self.promised(from, accepted, report)
    }

    fn reports(&self) -> &BTreeMap<Rank, R> {
        self.reports()
    }

    fn can_propose(&self) -> bool {
        self.has_quorum()
    }

    fn adopted(&self) -> Option<&V> {
        self.adopted()
    }

    /// A quorum decides, also about a value that concerns the voters.
    fn propose_to(&mut self, _concerned: BTreeSet<Rank>, own: V) -> &V {
        self.propose(|_| own)
    }

    fn proposed(&self) -> Option<&V> {
        self.proposed()
    }

    fn accepted(&mut self, from: Rank) -> bool {
        self.accepted(from)
    }
}

/// Whether `ranks` decide for `member_count` members: more than half of them, or exactly half with rank 0. A rank counts
/// once, and only if there is such a member.
#[must_use]
pub fn is_quorum(ranks: impl IntoIterator<Item = Rank>, member_count: usize) -> bool {
    let ranks: BTreeSet<Rank> = ranks.into_iter().filter(|rank| rank.index() < member_count).collect();
    match (2 * ranks.len()).cmp(&member_count) {
        Ordering::Greater => true,
        Ordering::Equal => ranks.contains(&Rank(0)),
        Ordering::Less => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballot(attempt: u32, rank: u32) -> Ballot {
        Ballot { attempt, rank: Rank(rank) }
    }

    /// A proposer of letters among three members that reports nothing.
    fn proposer(attempt: u32, rank: u32) -> Proposer<char, ()> {
        Proposer::new(ballot(attempt, rank), 3)
    }

    /// Every set of ranks below `member_count`.
    fn subsets(member_count: u32) -> impl Iterator<Item = Vec<Rank>> {
        (0..1_u32 << member_count)
            .map(move |bits| (0..member_count).filter(|rank| bits & 1 << rank != 0).map(Rank).collect())
    }

    #[test]
    fn any_two_quorums_share_a_member() {
        for member_count in 1..=6 {
            let quorums: Vec<_> = subsets(member_count)
                .filter(|ranks| is_quorum(ranks.clone(), member_count as usize))
                .collect();
            assert!(!quorums.is_empty());
            for (a, b) in quorums.iter().flat_map(|a| quorums.iter().map(move |b| (a, b))) {
                assert!(a.iter().any(|rank| b.contains(rank)), "{a:?} and {b:?} of {member_count}");
            }
        }
    }

    #[test]
    fn of_a_set_and_its_complement_exactly_one_is_a_quorum() {
        for member_count in 1..=6 {
            for ranks in subsets(member_count) {
                let rest = (0..member_count).map(Rank).filter(|rank| !ranks.contains(rank));
                let count = member_count as usize;
                assert_ne!(is_quorum(ranks.clone(), count), is_quorum(rest, count), "{ranks:?} of {count}");
            }
        }
    }

    #[test]
    fn half_of_the_members_decide_only_with_rank_zero() {
        assert!(is_quorum([Rank(0)], 2));
        assert!(!is_quorum([Rank(1)], 2));
        assert!(is_quorum([Rank(3), Rank(0)], 4));
        assert!(!is_quorum([Rank(1), Rank(2)], 4));
        assert!(is_quorum([Rank(1), Rank(2), Rank(3)], 4));
    }

    #[test]
    fn a_rank_counts_once_and_only_if_it_exists() {
        assert!(!is_quorum([Rank(1), Rank(1), Rank(1)], 3));
        assert!(!is_quorum([Rank(1), Rank(3), Rank(u32::MAX)], 3));
        assert!(!is_quorum([], 0));
    }

    #[test]
    fn ballots_are_ordered_by_attempt_then_rank() {
        assert!(ballot(2, 0) > ballot(1, 9));
        assert!(ballot(2, 1) > ballot(2, 0));
    }

    #[test]
    fn a_promise_holds_against_lower_ballots() {
        let mut acceptor = Acceptor::default();
        assert_eq!(acceptor.promise(ballot(2, 1)), Ok(()));
        assert_eq!(acceptor.promise(ballot(2, 0)), Err(ballot(2, 1)));
        assert_eq!(acceptor.accept(ballot(1, 2), 'a'), Err(ballot(2, 1)));
        assert_eq!((acceptor.promised(), acceptor.accepted()), (Some(ballot(2, 1)), None));
    }

    #[test]
    fn repeating_a_promise_or_an_acceptance_changes_nothing() {
        let mut acceptor = Acceptor::default();
        assert_eq!(acceptor.promise(ballot(1, 0)), Ok(()));
        let promised = acceptor.clone();
        assert_eq!(acceptor.promise(ballot(1, 0)), Ok(()));
        assert_eq!(acceptor, promised);
        assert_eq!(acceptor.accept(ballot(1, 0), 'a'), Ok(()));
        let accepted = acceptor.clone();
        assert_eq!(acceptor.accept(ballot(1, 0), 'a'), Ok(()));
        assert_eq!(acceptor.promise(ballot(1, 0)), Ok(()));
        assert_eq!(acceptor, accepted);
    }

    #[test]
    fn an_acceptance_is_also_a_promise_and_outlives_higher_ones() {
        let mut acceptor = Acceptor::default();
        assert_eq!(acceptor.accept(ballot(2, 0), 'a'), Ok(()));
        assert_eq!(acceptor.promise(ballot(1, 2)), Err(ballot(2, 0)));
        assert_eq!(acceptor.promise(ballot(3, 0)), Ok(()));
        assert_eq!(acceptor.accepted(), Some(&(ballot(2, 0), 'a')));
        assert_eq!(acceptor.accept(ballot(3, 0), 'b'), Ok(()));
        assert_eq!(acceptor.accepted(), Some(&(ballot(3, 0), 'b')));
    }

    #[test]
    fn a_record_reads_back_from_its_bytes() {
        let mut acceptor = Acceptor::default();
        assert_eq!(acceptor.accept(ballot(2, 1), 7_u64), Ok(()));
        assert_eq!(acceptor.promise(ballot(3, 0)), Ok(()));
        let bytes = crate::wire::codec::encode_record(&acceptor);
        assert_eq!(crate::wire::codec::decode_record(&bytes), Ok(acceptor));
    }

    #[test]
    fn a_proposer_proposes_its_own_value_only_if_none_was_accepted() {
        let mut proposer: Proposer<String, &str> = Proposer::new(ballot(1, 2), 3);
        assert!(proposer.promised(Rank(2), None, "two"));
        assert!(!proposer.has_quorum());
        assert!(proposer.promised(Rank(0), None, "zero"));
        assert!(proposer.has_quorum());
        assert_eq!(proposer.adopted(), None);
        let own = |reports: &BTreeMap<Rank, &str>| reports.values().copied().collect::<Vec<_>>().join(" ");
        assert_eq!(proposer.propose(own), "zero two");
    }

    #[test]
    fn a_proposer_adopts_the_value_accepted_under_the_highest_ballot() {
        let mut promises = [
            (Rank(0), Some((ballot(1, 2), 'a'))),
            (Rank(1), Some((ballot(3, 1), 'b'))),
            (Rank(2), Some((ballot(2, 2), 'c'))),
        ];
        // Whatever the order in which the promises arrive.
        for turn in 0..promises.len() {
            promises.rotate_left(turn);
            let mut proposer = proposer(4, 0);
            for (from, accepted) in promises {
                assert!(proposer.promised(from, accepted, ()));
            }
            assert_eq!(proposer.adopted(), Some(&'b'));
            assert_eq!(proposer.propose(|_| 'x'), &'b');
        }
    }

    #[test]
    fn a_proposed_value_stays_whatever_comes_later() {
        let mut proposer = proposer(3, 0);
        assert!(proposer.promised(Rank(0), None, ()));
        assert!(!proposer.promised(Rank(0), Some((ballot(1, 1), 'a')), ()), "heard before");
        assert!(proposer.promised(Rank(1), None, ()));
        assert_eq!(proposer.proposed(), None);
        assert_eq!(proposer.propose(|_| 'x'), &'x');
        assert!(!proposer.promised(Rank(2), Some((ballot(2, 2), 'b')), ()), "a value is proposed");
        assert_eq!(proposer.propose(|_| 'y'), &'x');
        assert_eq!((proposer.proposed(), proposer.reports().len()), (Some(&'x'), 2));
    }

    #[test]
    fn a_value_is_chosen_exactly_once() {
        let mut proposer = proposer(1, 0);
        assert!(!proposer.accepted(Rank(1)), "nothing is proposed");
        assert!(proposer.promised(Rank(0), None, ()) && proposer.promised(Rank(1), None, ()));
        proposer.propose(|_| 'x');
        assert!(!proposer.accepted(Rank(1)));
        assert!(!proposer.accepted(Rank(1)), "heard before");
        assert!(proposer.accepted(Rank(2)));
        assert!(!proposer.accepted(Rank(0)), "chosen before");
        assert!(!proposer.accepted(Rank(2)));
    }

    #[test]
    fn ranks_that_are_not_in_the_view_do_not_count() {
        let mut proposer = proposer(1, 0);
        assert!(!proposer.promised(Rank(3), Some((ballot(9, 3), 'a')), ()));
        assert!(proposer.promised(Rank(0), None, ()));
        assert!(!proposer.has_quorum() && proposer.adopted().is_none());
        assert!(proposer.promised(Rank(1), None, ()));
        proposer.propose(|_| 'x');
        assert!(!proposer.accepted(Rank(0)));
        assert!(!proposer.accepted(Rank(3)) && !proposer.accepted(Rank(u32::MAX)));
        assert!(proposer.accepted(Rank(2)));
    }

    #[test]
    #[should_panic(expected = "a value is proposed after a quorum has promised")]
    fn proposing_without_a_quorum_panics() {
        let mut proposer = proposer(1, 1);
        assert!(proposer.promised(Rank(1), None, ()));
        proposer.propose(|_| 'x');
    }

    #[test]
    fn a_later_proposer_finishes_a_value_that_may_be_chosen() {
        let mut acceptors = vec![Acceptor::default(); 3];
        // Rank 0 has its value accepted by itself and rank 2, and falls silent: the value is chosen, nobody knows.
        for rank in [0, 2] {
            assert_eq!(acceptors[rank].promise(ballot(1, 0)), Ok(()));
            assert_eq!(acceptors[rank].accept(ballot(1, 0), 'a'), Ok(()));
        }
        // Rank 1 is refused by rank 2, tries again above, and hears of that value.
        assert_eq!(acceptors[1].promise(ballot(0, 1)), Ok(()));
        let refusal = acceptors[2].promise(ballot(0, 1)).unwrap_err();
        let mut proposer = proposer(refusal.attempt + 1, 1);
        for rank in [1, 2] {
            assert_eq!(acceptors[rank].promise(proposer.ballot()), Ok(()));
            assert!(proposer.promised(Rank::from_index(rank), acceptors[rank].accepted().copied(), ()));
        }
        let value = *proposer.propose(|_| 'b');
        assert_eq!(value, 'a');
        for rank in [1, 2] {
            assert_eq!(acceptors[rank].accept(proposer.ballot(), value), Ok(()));
            assert_eq!(proposer.accepted(Rank::from_index(rank)), rank == 2);
        }
    }
}
