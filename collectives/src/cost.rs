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
//! With equal shards, a ring never takes less time by this model. It does if one member owns so much that its line limits the round: a
//! strong peer, or one whose chunks have not moved to newcomers yet. If instead each link limits (to a window of segments per round trip),
//! a ring may take up to n - 1 times longer. So a ring is chosen only if direct would take `MARGIN` times as long, hops included. The
//! variation of shards from rendezvous hashing, up to a quarter above the mean, never suffices for that.
//!
//! A member may need memory for one window of segments for each of its links, in each direction: two links in a ring, n - 1 in the direct
//! topology.
//!
//! # Not measured
//! All members must choose the same topology for every step without exchanging messages. They all know the shares. They would have to
//! agree on measurements of latency and bandwidth. Only the product of the two matters for a hop, that is, the bytes in flight on a line,
//! and it varies less between networks than either: 25 KB at 1 Gbit/s and 0.2 ms, and at 10 Mbit/s and 20 ms; about 100 KB between
//! processes of one machine. So one value is assumed. A fast line across an ocean has a hundred times as much. There, a run file can set
//! `topology = "direct"` if some members own several times as much as others.
//!
//! # Reading
//! Patarasuk & Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*, 2009: the ring. Thakur et al., *Optimization
//! of Collective Communication Operations in MPICH*, 2005, section 3: the latency and bandwidth terms. Here shards are unequal.

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
    /// The topology for a round over `layout`: direct, unless a ring takes less than half the time, or the segments of all links do not fit
    /// into memory.
    #[must_use]
    pub fn choose(&self, layout: &ShardLayout) -> Topology {
        let links = layout.rank_count().saturating_sub(1);
        let (least, most) = layout.shares();
        let [all, least, most] = [layout.len(), least, most].map(|elements| elements * size_of::<f32>());
        let is_room = 2 * links * self.window_bytes.min(most) <= self.room_bytes;
        let around = 2 * (all - least) + 2 * links * self.hop_bytes;
        let straight = all + links.saturating_sub(1) * most + 2 * self.hop_bytes;
        let is_shorter = straight <= MARGIN * around;
        // Two members have the same edges either way.
        if links <= 1 || (is_room && is_shorter) { Topology::Direct } else { Topology::Ring }
    }
}

/// A ring is chosen if direct takes more than this many times as long. A margin is needed because a ring is much slower if links limit.
const MARGIN: usize = 2;

#[cfg(test)]
mod tests {
    use peergrad_protocol::placement::{Placement, Replicas};
    use peergrad_protocol::view::Member;
    use peergrad_protocol::{Incarnation, PeerId, RunId};

    use super::*;

    const COSTS: CostModel = CostModel { hop_bytes: 100, window_bytes: 1000, room_bytes: 1 << 20 };

    /// Of shares with so many elements, one after the other.
    fn chosen(terms: CostModel, shares: &[usize]) -> Topology {
        let ends: Vec<usize> = shares
            .iter()
            .scan(0, |end, share| {
                *end += share;
                Some(*end)
            })
            .collect();
        let owned = ends.iter().zip(shares).map(|(end, share)| std::iter::once(end - share..*end).collect());
        terms.choose(&ShardLayout::new(shares.iter().sum(), owned.collect(), 64))
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
}
