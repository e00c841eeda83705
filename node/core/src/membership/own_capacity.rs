//! Own capacity: how much this peer offers to own, as its user has declared or as its line suggests.
//!
//! In the direct topology a member sends its contributions to all owners, and the new values of its own shard to all members. So a
//! member with a slow uplink delays a step less if its shard is small. A peer whose user has declared no capacity follows the lines in
//! the view: the capacity is [`CAPACITY_DEFAULT`] at the median rate, and in proportion to that at others.
//!
//! All members read the same lines in the same view, so their offers fit together. Moving chunks costs bytes, so a small difference
//! changes nothing. Where a line is unknown, for example that of a newcomer, the present capacity stays.
//!
//! # Not here
//! How offers become part of a view: `capacity.rs`. When lines do: `measurements.rs`.

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{CAPACITY_DEFAULT, CAPACITY_MAX};
use peergrad_protocol::view::{MemberLine, View};

/// How much this peer offers to own. It outlasts the views and roles of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnCapacity {
    /// What the user has declared, 0 to [`CAPACITY_MAX`]; `None` to follow the line.
    declared: Option<u8>,
    /// What the lines last suggested, 1 to [`CAPACITY_MAX`].
    by_line: u8,
    /// Whether others can dial this peer.
    is_reachable: bool,
}

impl OwnCapacity {
    /// That of a peer that others can dial, before any line is known.
    pub(crate) fn new(declared: Option<u8>) -> Self {
        Self { declared, by_line: CAPACITY_DEFAULT, is_reachable: true }
    }

    /// The capacity that this peer offers, 0 to [`CAPACITY_MAX`]. A peer that others cannot dial owns nothing.
    pub(crate) fn offered(&self) -> u8 {
        if self.is_reachable { self.declared.unwrap_or(self.by_line) } else { 0 }
    }

    /// Others can dial this peer, or cannot.
    pub(crate) fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    /// This peer is in a view, which may have other lines.
    pub(crate) fn follow_lines(&mut self, view: &View, rank: Rank) {
        self.by_line = capacity_by_line(self.by_line, &view.lines, rank);
    }
}

/// The capacity of the member at `rank` among members with these lines, 1 to [`CAPACITY_MAX`]: [`CAPACITY_DEFAULT`] x its rate / the
/// median rate, rounded. It stays `current` if that is near, so that a rate that varies around a limit changes nothing, or if a line is
/// unknown. Of two rates in the middle, the lower one is
/// the median, so that faster members are told apart up to four times that rate.
fn capacity_by_line(current: u8, lines: &[MemberLine], rank: Rank) -> u8 {
    let mut rates: Vec<u64> = lines.iter().map(|line| u64::from(line.kilobytes_per_second.max(1))).collect();
    let Some(own) = rates.get(rank.index()).copied().filter(|_| lines.iter().all(MemberLine::is_known))
    else {
        return current;
    };
    rates.sort_unstable();
    let median = rates[(rates.len() - 1) / 2];
    let alike = if current == CAPACITY_DEFAULT { STILL_ALIKE_HUNDREDTHS } else { ALIKE_HUNDREDTHS };
    let hundredths = 100 * u64::from(CAPACITY_DEFAULT) * own / median;
    let capacity = if 100 * own.max(median) <= alike * own.min(median) {
        u64::from(CAPACITY_DEFAULT)
    } else {
        (hundredths + 50) / 100
    };
    let capacity = capacity.clamp(1, u64::from(CAPACITY_MAX)) as u8;
    let is_far = CHANGE_PARTS * capacity.abs_diff(current) >= capacity.max(current)
        && hundredths.abs_diff(100 * u64::from(current)) >= CHANGE_HUNDREDTHS;
    if is_far { capacity } else { current }
}

/// Up to how many hundredths of each other a rate and the median count as equal, and where they did before.
const ALIKE_HUNDREDTHS: u64 = 125;
const STILL_ALIKE_HUNDREDTHS: u64 = 150;
/// The capacity changes if it is this far from what the rates say, before that is rounded.
const CHANGE_HUNDREDTHS: u64 = 75;
/// The capacity changes if it differs by at least this part of the larger of the two: a third.
const CHANGE_PARTS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn lines(rates: &[u32]) -> Vec<MemberLine> {
        let line = |rate: &u32| MemberLine { kilobytes_per_second: *rate, round_trip_milliseconds: 50 };
        rates.iter().map(line).collect()
    }

    /// The capacities of members that had these, with lines of these rates.
    fn capacities(current: u8, rates: &[u32]) -> Vec<u8> {
        let lines = lines(rates);
        (0..rates.len()).map(|index| capacity_by_line(current, &lines, Rank::from_index(index))).collect()
    }

    #[test]
    fn capacities_are_in_proportion_to_rates() {
        assert_eq!(capacities(4, &[25_000; 4]), [4; 4]);
        assert_eq!(capacities(4, &[2500, 25_000, 25_000, 25_000]), [1, 4, 4, 4]);
        assert_eq!(capacities(4, &[25_000, 12_000, 50_000, 90_000, 25_000]), [4, 2, 8, 14, 4]);
        assert_eq!(capacities(4, &[1, u32::MAX, 25_000]), [1, 16, 4], "clamped");
        assert_eq!(capacities(4, &[0, 0, 25_000]), [4, 4, 16], "less than a kilobyte a second");
        assert_eq!(capacities(4, &[1000, 3000]), [4, 12], "the lower one is the median");
        assert_eq!(capacities(4, &[1000, 1000, 3000, 3000]), [4, 4, 12, 12]);
        assert_eq!(capacities(4, &[1000]), [4], "alone");
    }

    #[test]
    fn rates_that_are_much_alike_change_nothing() {
        assert_eq!(capacities(4, &[20_000, 30_000, 45_000]), [4; 3]);
        assert_eq!(capacities(4, &[10_000, 25_000, 60_000]), [2, 4, 10]);
        assert_eq!(capacities(1, &[25_000, 30_000, 37_000]), [4; 3], "they were unlike before");
        assert_eq!(
            capacities(6, &[20_000, 30_000, 45_000]),
            [3, 4, 6],
            "they were, and are not much alike yet"
        );
    }

    #[test]
    fn a_capacity_changes_by_a_third_at_least() {
        let changed = |current, rate| capacities(current, &[rate, 1000, 1000])[0];
        // From rates alone, the third would be 3 and 5 to 7.
        assert_eq!([640, 660, 740].map(|rate| changed(4, rate)), [4; 3]);
        assert_eq!([1600, 1900, 2100].map(|rate| changed(6, rate)), [6, 6, 6]);
        assert_eq!(changed(4, 600), 2);
        assert_eq!(changed(4, 1600), 6);
        assert_eq!(changed(6, 2300), 9);
        assert_eq!(changed(9, 1600), 6);
        assert_eq!(changed(1, 450), 2);
        assert_eq!(changed(16, 10_000), 16);
        // Whatever the rate is, a repetition changes nothing.
        for (current, rate) in (1..=16).flat_map(|current| (1..20).map(move |rate| (current, 250 * rate))) {
            let once = changed(current, rate);
            assert_eq!(changed(once, rate), once);
        }
    }

    #[test]
    fn a_rate_that_varies_a_little_does_not_change_the_capacity_again_and_again() {
        for (first, rate) in (1..=16).flat_map(|first| (100..4500).step_by(5).map(move |rate| (first, rate)))
        {
            let mut capacity: u8 = first;
            let mut changes = 0;
            for turn in 0..10 {
                let now = if turn % 2 == 0 { rate } else { rate * 105 / 100 };
                let next = capacities(capacity, &[now, 1000, 1000])[0];
                changes += usize::from(next != capacity);
                capacity = next;
            }
            assert!(changes <= 2, "{changes} changes from {first} around {rate}");
        }
    }

    #[test]
    fn unknown_lines_keep_the_present_capacity() {
        let mut some = lines(&[2500, 25_000, 25_000]);
        assert_eq!(capacity_by_line(7, &[], Rank(0)), 7);
        some[2] = MemberLine::default();
        assert_eq!(capacity_by_line(1, &some, Rank(0)), 1, "it is new");
        assert_eq!(capacity_by_line(4, &some, Rank(1)), 4);
    }

    #[test]
    fn a_declared_capacity_stays_and_an_unreachable_peer_owns_nothing() {
        let view = View { lines: lines(&[2500, 25_000, 25_000]), ..fixtures::view(&[1, 2, 3]) };
        let mut own = OwnCapacity::new(Some(3));
        own.follow_lines(&view, Rank(0));
        assert_eq!(own.offered(), 3);
        let mut own = OwnCapacity::new(None);
        assert_eq!(own.offered(), CAPACITY_DEFAULT);
        own.set_reachable(false);
        own.follow_lines(&view, Rank(0));
        assert_eq!(own.offered(), 0);
        own.set_reachable(true);
        assert_eq!(own.offered(), 1, "its line is known by then");
        own.follow_lines(&fixtures::view(&[1, 2, 3]), Rank(0));
        assert_eq!(own.offered(), 1);
    }
}
