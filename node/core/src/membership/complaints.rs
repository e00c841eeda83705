//! Complaints: the faults that members of a view have noticed of each other.
//!
//! A member that complains tells all others. With the reports for the next view, the proposer leaves out the fewest members whose absence
//! explains the complaints: see [`selection`](super::agreement::selection).
//!
//! That a member is late can have a cause in the line between two members. So it counts only once two others say so.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::Rank;
use peergrad_protocol::view::{Complaint, MemberFault};

/// The complaints of the members of one view about each other.
#[derive(Default)]
pub(super) struct Complaints {
    /// By the member that complains and the one that it complains about: what was noticed first.
    pairs: BTreeMap<(Rank, Rank), MemberFault>,
    /// For each member in a complaint that counts: the members at the other ends of its complaints.
    others: BTreeMap<Rank, BTreeSet<Rank>>,
}

/// The pairs that count, of members that complain and those that they complain about.
pub(super) fn that_count(
    pairs: &BTreeMap<(Rank, Rank), MemberFault>,
) -> impl Iterator<Item = (&(Rank, Rank), &MemberFault)> {
    let is_confirmed = |from: Rank, about: Rank| {
        pairs.iter().any(|((other, of), fault)| *other != from && *of == about && *fault == MemberFault::Late)
    };
    pairs
        .iter()
        .filter(move |((from, about), fault)| **fault != MemberFault::Late || is_confirmed(*from, *about))
}

impl Complaints {
    /// Records a complaint. Returns whether it is the first one of this member about the other.
    pub(super) fn note(&mut self, from: Rank, complaint: Complaint) -> bool {
        let Complaint { about, fault } = complaint;
        if from == about || self.pairs.contains_key(&(from, about)) {
            return false;
        }
        self.pairs.insert((from, about), fault);
        self.others.clear();
        for ((from, about), _) in that_count(&self.pairs) {
            self.others.entry(*from).or_default().insert(*about);
            self.others.entry(*about).or_default().insert(*from);
        }
        true
    }

    /// Whether there is a complaint that counts.
    pub(super) fn are_any(&self) -> bool {
        !self.others.is_empty()
    }

    /// The complaints of one member.
    pub(super) fn of(&self, from: Rank) -> Vec<Complaint> {
        let own = self.pairs.iter().filter(|((by, _), _)| *by == from);
        own.map(|((_, about), fault)| Complaint { about: *about, fault: *fault }).collect()
    }

    /// Whether the fault may be this member's own: it complains about one, or one complains about it, that occurs in no more complaints.
    pub(super) fn may_be_at_fault(&self, rank: Rank, lost: &[Rank]) -> bool {
        let others = self.others.get(&rank);
        let is_there = |other: &&Rank| lost.binary_search(other).is_err();
        others.is_some_and(|others| {
            others.iter().filter(is_there).any(|other| self.others[other].len() <= others.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_may_be_at_fault_unless_the_other_one_is_in_more_complaints() {
        let mut complaints = Complaints::default();
        let complaint = |about| Complaint { about: Rank(about), fault: MemberFault::Refused };
        assert!(!complaints.are_any());
        assert!(complaints.note(Rank(0), complaint(1)));
        assert!(!complaints.note(Rank(0), complaint(1)), "it is known");
        assert!(!complaints.note(Rank(2), complaint(2)), "about itself");
        let at_fault = |complaints: &Complaints| {
            (0..4).filter(|rank| complaints.may_be_at_fault(Rank(*rank), &[])).collect::<Vec<_>>()
        };
        assert_eq!(at_fault(&complaints), [0, 1]);
        complaints.note(Rank(2), complaint(1));
        assert_eq!(at_fault(&complaints), [1]);
        assert_eq!(complaints.of(Rank(2)), [complaint(1)]);
        assert_eq!(complaints.of(Rank(1)), []);
    }

    #[test]
    fn a_member_is_late_only_if_two_others_say_so() {
        let mut complaints = Complaints::default();
        let late = Complaint { about: Rank(1), fault: MemberFault::Late };
        assert!(complaints.note(Rank(0), late) && !complaints.are_any());
        assert!(!complaints.may_be_at_fault(Rank(0), &[]));
        assert!(complaints.note(Rank(2), late) && complaints.are_any());
        assert!(complaints.may_be_at_fault(Rank(1), &[]) && !complaints.may_be_at_fault(Rank(0), &[]));
    }
}
