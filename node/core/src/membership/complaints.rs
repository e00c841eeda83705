//! Complaints: the faults that members of a view have noticed of each other.
//!
//! A member that complains tells all others. With the reports for the next view, the proposer leaves out the fewest members whose absence
//! explains the complaints: see [`selection`](super::agreement::selection).
//!
//! That a member is late can have a cause in the line between two members. So it counts only while two others say so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_protocol::view::{Complaint, MemberFault};
use peergrad_protocol::{Instant, Rank};

/// The complaints of the members of one view about each other.
#[derive(Default)]
pub(super) struct Complaints {
    /// By the member that complains and the one that it complains about: what was noticed first, or later than that the other one is late.
    pairs: BTreeMap<(Rank, Rank), NotedFault>,
    /// For each member in a complaint that counts: the members at the other ends of its complaints.
    others: BTreeMap<Rank, BTreeSet<Rank>>,
}

/// A fault that a member has noticed of another one.
struct NotedFault {
    fault: MemberFault,
    /// When it was last said.
    at: Instant,
}

impl NotedFault {
    /// Whether it does not count any more: a member that was late may be in time again.
    fn is_over(&self, now: Instant) -> bool {
        self.fault == MemberFault::Late && now.since(self.at) > LATE_LASTS
    }
}

/// The complaints that count: by the member that complains and the one that it complains about, what was noticed.
pub(super) fn counting(
    complaints: impl Iterator<Item = ((Rank, Rank), MemberFault)> + Clone,
) -> impl Iterator<Item = ((Rank, Rank), MemberFault)> {
    let mut late: BTreeMap<Rank, usize> = BTreeMap::new();
    for ((_, about), _) in complaints.clone().filter(|(_, fault)| *fault == MemberFault::Late) {
        *late.entry(about).or_default() += 1;
    }
    complaints
        .filter(move |((_, about), fault)| *fault != MemberFault::Late || late[about] >= LATE_ACCUSERS_MIN)
}

impl Complaints {
    /// Records a complaint. Returns whether it is news: the first one of this member about the other, or the first one that says more than
    /// that the other one is late.
    pub(super) fn note(&mut self, now: Instant, from: Rank, complaint: Complaint) -> bool {
        let Complaint { about, fault } = complaint;
        self.forget_old(now);
        let before = self.pairs.get(&(from, about)).map(|noted| noted.fault);
        let says_more = before.is_none_or(|before| before == MemberFault::Late && fault != before);
        if from == about || !(says_more || before == Some(fault)) {
            return false;
        }
        self.pairs.insert((from, about), NotedFault { fault, at: now });
        if says_more {
            self.count();
        }
        says_more
    }

    /// Forgets that members were late who are not said to be any more.
    pub(super) fn forget_old(&mut self, now: Instant) {
        let before = self.pairs.len();
        self.pairs.retain(|_, noted| !noted.is_over(now));
        if self.pairs.len() < before {
            self.count();
        }
    }

    /// Finds the complaints that count.
    fn count(&mut self) {
        self.others.clear();
        for ((from, about), _) in counting(self.pairs.iter().map(|(pair, noted)| (*pair, noted.fault))) {
            self.others.entry(from).or_default().insert(about);
            self.others.entry(about).or_default().insert(from);
        }
    }

    /// Whether there is a complaint that counts.
    pub(super) fn are_any(&self) -> bool {
        !self.others.is_empty()
    }

    /// The complaints of one member.
    pub(super) fn of(&self, from: Rank) -> Vec<Complaint> {
        let own = self.pairs.iter().filter(|((by, _), _)| *by == from);
        own.map(|((_, about), noted)| Complaint { about: *about, fault: noted.fault }).collect()
    }

    /// The complaints of this member that it still has, and repeats. `interval` is the time between two heartbeats of a member.
    pub(super) fn lasting(&self, now: Instant, me: Rank, interval: Duration) -> Vec<Complaint> {
        let own = self.pairs.iter().filter(|((by, _), _)| *by == me);
        // Each heartbeat of a late member renews the complaint about it.
        let is_lasting = |noted: &NotedFault| {
            noted.fault != MemberFault::Late || now.since(noted.at) <= LATE_HEARTBEATS * interval
        };
        let lasting = own.filter(|(_, noted)| is_lasting(noted));
        lasting.map(|((_, about), noted)| Complaint { about: *about, fault: noted.fault }).collect()
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

/// How many members have to say that one is late.
const LATE_ACCUSERS_MIN: usize = 2;
/// For how many heartbeats a member repeats that another one is late. The other one's heartbeats come as often, with some jitter.
const LATE_HEARTBEATS: u32 = 2;
/// How long such a complaint counts. A member repeats it with each heartbeat while it holds.
const LATE_LASTS: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(0);

    #[test]
    fn a_member_may_be_at_fault_unless_the_other_one_is_in_more_complaints() {
        let mut complaints = Complaints::default();
        let complaint = |about| Complaint { about: Rank(about), fault: MemberFault::Refused };
        assert!(!complaints.are_any());
        assert!(complaints.note(NOW, Rank(0), complaint(1)));
        assert!(!complaints.note(NOW, Rank(0), complaint(1)), "it is known");
        assert!(!complaints.note(NOW, Rank(2), complaint(2)), "about itself");
        let at_fault = |complaints: &Complaints| {
            (0..4).filter(|rank| complaints.may_be_at_fault(Rank(*rank), &[])).collect::<Vec<_>>()
        };
        assert_eq!(at_fault(&complaints), [0, 1]);
        complaints.note(NOW, Rank(2), complaint(1));
        assert_eq!(at_fault(&complaints), [1]);
        assert_eq!(complaints.of(Rank(2)), [complaint(1)]);
        assert_eq!(complaints.of(Rank(1)), []);
    }

    #[test]
    fn a_member_is_late_only_if_two_others_say_so() {
        let mut complaints = Complaints::default();
        assert!(complaints.note(NOW, Rank(0), LATE) && !complaints.are_any());
        assert!(!complaints.may_be_at_fault(Rank(0), &[]));
        assert!(complaints.note(NOW, Rank(2), LATE) && complaints.are_any());
        assert!(complaints.may_be_at_fault(Rank(1), &[]) && !complaints.may_be_at_fault(Rank(0), &[]));
    }

    const LATE: Complaint = Complaint { about: Rank(1), fault: MemberFault::Late };

    #[test]
    fn two_members_have_to_find_one_late_at_the_same_time() {
        let mut complaints = Complaints::default();
        let at = |seconds| NOW.after(Duration::from_secs(seconds));
        assert!(complaints.note(at(0), Rank(0), LATE));
        assert!(!complaints.note(at(8), Rank(0), LATE), "said again");
        assert!(complaints.note(at(16), Rank(2), LATE) && complaints.are_any());
        complaints.forget_old(at(20));
        assert!(!complaints.are_any());
        assert_eq!((complaints.of(Rank(0)), complaints.of(Rank(2))), (vec![], vec![LATE]));
        assert!(complaints.note(at(20), Rank(0), LATE) && complaints.are_any(), "it is late again");
    }

    #[test]
    fn a_member_repeats_that_another_one_is_late_only_while_it_is() {
        let mut complaints = Complaints::default();
        let interval = Duration::from_millis(250);
        let lasting = |complaints: &Complaints, milliseconds| {
            complaints.lasting(NOW.after(Duration::from_millis(milliseconds)), Rank(0), interval)
        };
        complaints.note(NOW, Rank(0), LATE);
        complaints.note(NOW, Rank(2), LATE);
        assert_eq!((lasting(&complaints, 500), lasting(&complaints, 501)), (vec![LATE], vec![]));
        let frames = Complaint { fault: MemberFault::Frames, ..LATE };
        complaints.note(NOW, Rank(0), frames);
        assert_eq!(lasting(&complaints, 60_000), [frames]);
    }

    #[test]
    fn another_fault_counts_although_the_member_was_only_late_before() {
        let mut complaints = Complaints::default();
        let frames = Complaint { fault: MemberFault::Frames, ..LATE };
        assert!(complaints.note(NOW, Rank(0), LATE) && !complaints.are_any());
        assert!(complaints.note(NOW, Rank(0), frames) && complaints.are_any());
        assert!(!complaints.note(NOW, Rank(0), LATE), "that says less");
        assert_eq!(complaints.of(Rank(0)), [frames]);
    }
}
