//! The cost of a round: along which edges it takes less time, and whether its segments fit into memory.
//!
//! The halves of a round overlap: what is final of a shard leaves while the rest is being summed. With n members, S bytes in all,
//! and shares between `least` and `most`, a round takes
//!
//! | topology | hops one after the other | bytes over the busiest line, in one direction | over the busiest link |
//! |---|---|---|---|
//! | ring | 2 (n - 1) | 2 (S - least) | 2 (S - least) |
//! | direct | 2 | S + (n - 2) most | 2 most |
//!
//! With equal shares a ring never takes less time. It does where one member owns so much that its line is what all wait for: a
//! strong peer, or one whose chunks have not moved to newcomers yet. And it takes more, by up to n - 1 times, where not the line is
//! what limits but the link: a window of segments a round trip. So a ring has to be better by far, by a factor (`MARGIN`), its hops
//! included; luck in drawing owners, which makes the largest share up to a quarter larger than the mean, is never a reason.
//!
//! A member may need memory for a window of segments per link and direction: of one link each in a ring, of all of them otherwise.
//!
//! # What is not measured
//! Members must choose alike, without a word, for every step. Shares they all know. Latency and bandwidth they would have to agree
//! on. What counts of both in a hop is their product, the bytes that a line carries while a frame is under way, and that differs less
//! between lines than either: 25 KB on 1 Gbit/s with 0.2 ms and on 10 Mbit/s with 20 ms, some 100 KB between processes of one
//! machine. So one is assumed. On a fast line across an ocean it is a hundred times that; a run file may say `direct` there, if some
//! own several times as much as others.

use crate::plan::{ShardLayout, Topology};

/// What a choice of topology goes by.
#[derive(Clone, Copy, Debug)]
pub struct CostModel {
    /// What a hop costs: the bytes that a line carries while a frame is under way, and those of the segment, which is passed on when
    /// it is whole.
    pub hop_bytes: usize,
    /// Bytes of segments that a link may have under way in one direction.
    pub window_bytes: usize,
    /// Bytes of segments that a member has room for.
    pub room_bytes: usize,
}

impl CostModel {
    /// The topology for a round over `layout`: direct, unless a ring takes less time by far, or segments of all links at once would
    /// not fit.
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

/// How many times as long the direct way may take before a ring is chosen: what is at stake if the link is what limits.
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
    fn the_luck_of_the_draw_is_no_reason_for_a_ring() {
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
    fn a_ring_is_chosen_where_it_is_better_by_far() {
        // A founder whom a crowd has joined owns everything: 20,000 bytes and two hops, or 8,000 and ten hops around.
        assert_eq!(chosen(COSTS, &[1000, 0, 0, 0, 0, 0]), Topology::Ring);
        assert_eq!(chosen(COSTS, &[20, 0, 0, 0, 0, 0]), Topology::Direct, "a small model is all hops");
        // 17,000 bytes against 2 x 8,680; 17,800 against 2 x 8,760.
        assert_eq!(chosen(COSTS, &[800, 40, 40, 40, 40, 40]), Topology::Direct);
        assert_eq!(chosen(COSTS, &[850, 30, 30, 30, 30, 30]), Topology::Ring);
    }

    #[test]
    fn two_members_have_one_link_whatever_they_own() {
        assert_eq!(chosen(COSTS, &[1000, 0]), Topology::Direct);
    }

    #[test]
    fn where_segments_of_all_links_do_not_fit_there_is_a_ring() {
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
