//! The cost of a round: a model of the time and memory that a topology takes, and the choice that follows.
//!
//! The halves of a round overlap: the final part of a shard is sent while the rest is being summed. With n members, a vector of S bytes,
//! and shards between `least` and `most` bytes, a round takes
//!
//! | topology | hops, one after the other | bytes over the busiest member's line, in one direction | bytes over the busiest link |
//! |---|---|---|---|
//! | ring | 2 (n - 1) | 2 (S - least) | 2 (S - least) |
//! | direct | 2 | S + (n - 2) most | 2 most |
//!
//! With equal shards, a ring never takes less time by this model of short lines. It does if one member owns so much that its line limits the round: a
//! strong peer, or one whose chunks have not moved to newcomers yet. If instead each link limits (to a window of segments per round trip),
//! a ring may take up to n - 1 times longer. So a ring is chosen only if direct would take `MARGIN` times as long, hops included. The
//! variation of shards from rendezvous hashing, up to a quarter above the mean, never suffices for that.
//!
//! A member may need memory for one window of segments for each of its links, in each direction: two links in a ring, n - 1 in the direct
//! topology.
//!
//! # Long lines
//! On long lines the latency is no longer short beside the time that a shard takes, and the lines of a swarm differ. There, members measure
//! what their lines carry and how long a round trip takes, and agree on that with the view. With B bytes a second of a member, and h seconds
//! for one direction:
//!
//! | topology | time |
//! |---|---|
//! | ring | 2 (S - least) / B of the slowest member, or 2 (n - 1) h if that is longer; plus 2 h |
//! | direct | 1.15 (S + (n - 2) share) / B of the slowest member; plus 2 h |
//!
//! In a ring the shards are under way at the same time, so latencies only show where they take longer than sending. The factor 1.15 is
//! measured: the connections of a member share its line unevenly, and the last one does not fill it. The faster topology is
//! chosen. If some members have no long line, shares alone decide, as on short lines.
//!
//! # Short lines
//! There, measurements say little: rates follow what computers do at the moment. Only the product of latency and bandwidth matters for a
//! hop, that is, the bytes in flight on a line, and it varies less between networks than either: 25 KB at 1 Gbit/s and 0.2 ms; about 100 KB
//! between processes of one machine. So one value is assumed.
//!
//! # Reading
//! Patarasuk & Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*, 2009: the ring. Thakur et al., *Optimization
//! of Collective Communication Operations in MPICH*, 2005, section 3: the latency and bandwidth terms. Here shards are unequal.

use peergrad_protocol::view::MemberLine;

use crate::plan::{ShardLayout, Topology};

/// The constants of the cost model.
#[derive(Clone, Copy, Debug)]
pub struct CostModel {
    /// The cost of a hop in bytes: those that a line carries during the latency, and those of a segment, which is relayed only when it
    /// has arrived completely.
    pub hop_bytes: usize,
    /// Most bytes of segments in flight on a link in one direction.
    pub window_bytes: usize,
    /// Most bytes of received segments that a member can store.
    pub room_bytes: usize,
}

impl CostModel {
    /// The topology for a round over `layout` between members with these lines, by rank; none if they are short. Direct, unless a ring is
    /// faster, or the segments of all links do not fit into memory. Over short lines, a ring has to take less than half the time.
    #[must_use]
    pub fn choose(&self, layout: &ShardLayout, lines: &[MemberLine]) -> Topology {
        let links = layout.rank_count().saturating_sub(1);
        let (least, most) = layout.shares();
        let [all, least, most] = [layout.len(), least, most].map(|elements| elements * size_of::<f32>());
        let is_room = 2 * links * self.window_bytes.min(most) <= self.room_bytes;
        let around = 2 * (all - least) + 2 * links * self.hop_bytes;
        let straight = all + links.saturating_sub(1) * most + 2 * self.hop_bytes;
        let is_shorter = match LongLines::of(lines) {
            Some(lines) => lines.direct_time(layout) <= lines.ring_time(layout),
            None => straight <= MARGIN * around,
        };
        // Two members have the same edges either way.
        if links <= 1 || (is_room && is_shorter) { Topology::Direct } else { Topology::Ring }
    }
}

/// The long lines of a swarm. Times are in microseconds.
struct LongLines<'a> {
    /// By rank.
    lines: &'a [MemberLine],
    /// The mean time for one direction.
    hop: u64,
}

impl<'a> LongLines<'a> {
    /// The lines, if all of them are known.
    fn of(lines: &'a [MemberLine]) -> Option<Self> {
        if !lines.iter().all(MemberLine::is_known) {
            return None;
        }
        let trips = lines.iter().map(|line| line.round_trip_milliseconds);
        let (count, sum) = trips.fold((0, 0), |(count, sum), trip| (count + 1, sum + u64::from(trip)));
        (sum * 1000 / 2).checked_div(count).map(|hop| Self { lines, hop })
    }

    fn ring_time(&self, layout: &ShardLayout) -> u64 {
        let (least, _) = layout.shares();
        let sending = self.sending_time(|_| 2 * (layout.len() - least));
        sending.max(2 * (layout.rank_count() as u64 - 1) * self.hop) + 2 * self.hop
    }

    fn direct_time(&self, layout: &ShardLayout) -> u64 {
        let others = layout.rank_count().saturating_sub(2);
        let sending = self.sending_time(|rank| layout.len() + others * layout.shard(rank).len());
        sending.saturating_mul(UNEVEN_PERCENT) / 100 + 2 * self.hop
    }

    /// How long the slowest member takes to send so many elements.
    fn sending_time(&self, elements: impl Fn(usize) -> usize) -> u64 {
        let times = self.lines.iter().enumerate().map(|(rank, line)| {
            let bytes = elements(rank).saturating_mul(size_of::<f32>()) as u64;
            bytes.saturating_mul(1000) / u64::from(line.kilobytes_per_second.max(1))
        });
        times.max().unwrap_or_default()
    }
}

/// How much longer direct takes on long lines, in hundredths, because connections share a line unevenly.
const UNEVEN_PERCENT: u64 = 115;
/// Over short lines, a ring is chosen if direct takes more than this many times as long. A margin is needed because a ring is much slower if links limit.
const MARGIN: usize = 2;

#[cfg(test)]
mod tests {
    use peergrad_protocol::placement::{Placement, Replicas};
    use peergrad_protocol::view::Member;
    use peergrad_protocol::{Incarnation, PeerId, RunId};

    use super::*;

    const COSTS: CostModel = CostModel { hop_bytes: 100, window_bytes: 1000, room_bytes: 1 << 20 };

    /// Of shares with so many elements, one after the other.
    fn layout(shares: &[usize]) -> ShardLayout {
        let ends: Vec<usize> = shares
            .iter()
            .scan(0, |end, share| {
                *end += share;
                Some(*end)
            })
            .collect();
        let owned = ends.iter().zip(shares).map(|(end, share)| std::iter::once(end - share..*end).collect());
        ShardLayout::new(shares.iter().sum(), owned.collect(), 64)
    }

    /// Over short lines.
    fn chosen(terms: CostModel, shares: &[usize]) -> Topology {
        terms.choose(&layout(shares), &[])
    }

    #[test]
    fn with_equal_shares_a_ring_never_takes_less_time() {
        for count in 1..20 {
            for share in [0, 1, 1000] {
                assert_eq!(chosen(COSTS, &vec![share; count]), Topology::Direct, "{count} x {share}");
            }
        }
    }

    #[test]
    fn uneven_shares_of_a_random_placement_do_not_choose_a_ring() {
        for count in 2..=32_u8 {
            for seed in 0..4 {
                let member = |byte| Member {
                    peer: PeerId([byte; 32]),
                    incarnation: Incarnation(1),
                    addresses: vec![],
                    capacity: 1,
                };
                let members: Vec<Member> = (0..count).map(member).collect();
                let placement = Placement::compute(&RunId([seed; 32]), &members, 4096, Replicas::Number(2));
                // Sixteen elements a chunk, of which each hop is worth nothing.
                let shares: Vec<usize> = placement.shards().iter().map(|chunks| 16 * chunks.len()).collect();
                assert_eq!(
                    chosen(CostModel { hop_bytes: 0, ..COSTS }, &shares),
                    Topology::Direct,
                    "{shares:?}"
                );
            }
        }
    }

    #[test]
    fn a_ring_is_chosen_only_where_it_is_much_faster() {
        // A founder whom a crowd has joined owns everything: 20,000 bytes and two hops, or 8,000 and ten hops around.
        assert_eq!(chosen(COSTS, &[1000, 0, 0, 0, 0, 0]), Topology::Ring);
        assert_eq!(chosen(COSTS, &[20, 0, 0, 0, 0, 0]), Topology::Direct, "a small model is all hops");
        // 17,000 bytes against 2 x 8,680; 17,800 against 2 x 8,760.
        assert_eq!(chosen(COSTS, &[800, 40, 40, 40, 40, 40]), Topology::Direct);
        assert_eq!(chosen(COSTS, &[850, 30, 30, 30, 30, 30]), Topology::Ring);
    }

    #[test]
    fn two_members_send_directly_whatever_they_own() {
        assert_eq!(chosen(COSTS, &[1000, 0]), Topology::Direct);
    }

    #[test]
    fn a_ring_is_chosen_if_the_segments_of_all_links_exceed_the_room() {
        // Three links, both ways, with a window of 1000 bytes or a share of 400.
        for (room_bytes, share, topology) in [
            (6000, 1000, Topology::Direct),
            (5999, 1000, Topology::Ring),
            (2400, 100, Topology::Direct),
            (2399, 100, Topology::Ring),
        ] {
            assert_eq!(chosen(CostModel { room_bytes, ..COSTS }, &[share; 4]), topology, "{room_bytes}");
        }
    }

    #[test]
    fn over_long_lines_a_ring_is_chosen_unless_latencies_or_one_slow_line_take_longer() {
        let line = |kilobytes_per_second| MemberLine { kilobytes_per_second, round_trip_milliseconds: 100 };
        let costs = CostModel { room_bytes: usize::MAX, ..COSTS };
        let chosen = |shares: &[usize], lines: &[MemberLine]| costs.choose(&layout(shares), lines);
        // 14 MB: 0.84 s over either, of which latencies in a ring take 0.3 s.
        assert_eq!(chosen(&[875_000; 4], &[line(25_000); 4]), Topology::Ring);
        // 1 MB: 0.06 s, and latencies of 0.3 s.
        assert_eq!(chosen(&[62_500; 4], &[line(25_000); 4]), Topology::Direct);
        assert_eq!(chosen(&[62_500; 4], &[]), Topology::Direct);
        let slow = [line(2500), line(25_000), line(25_000), line(25_000)];
        assert_eq!(chosen(&[875_000; 4], &slow), Topology::Ring, "it sends as much either way");
        let shares = [90_000, 1_136_667, 1_136_667, 1_136_666];
        assert_eq!(chosen(&shares, &slow), Topology::Direct, "it owns little, and a ring would not care");
        // Some have short lines.
        let some = [line(25_000), line(25_000), MemberLine::default(), MemberLine::default()];
        assert_eq!(chosen(&[875_000; 4], &some), Topology::Direct);
        assert_eq!(chosen(&[875_000; 2], &[line(25_000); 2]), Topology::Direct, "two have the same edges");
        assert_eq!(chosen(&[875_000], &[line(25_000)]), Topology::Direct, "one has none");
    }
}
