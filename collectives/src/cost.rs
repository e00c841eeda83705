//! The cost of a round: along which edges it takes less time, and whether its segments fit into memory.
//!
//! A round has two halves that mirror each other. With n members, S bytes in all, and shares between `least` and `most`, one half
//! takes
//!
//! | topology | hops one after the other | bytes over the busiest line, in one direction |
//! |---|---|---|
//! | ring | n - 1 | S - least |
//! | direct | 1 | the larger of S - least and (n - 1) most |
//!
//! So with equal shares a ring never takes less time; it does where one member owns so much that its line is what all wait for: a
//! strong peer, or one whose chunks have not moved to newcomers yet. Then the bytes that a ring saves are set against the hops
//! that it adds.
//!
//! A member may need memory for a window of segments per link and direction: of one link each in a ring, of all of them otherwise.
//!
//! # What is not measured
//! Members must choose alike, without a word, for every step. Shares they all know. Latency and bandwidth they would have to agree
//! on; what counts of both is their product, the bytes that a line carries while a frame is under way, and that differs far less
//! between lines than either: 25 KB on 1 Gbit/s with 0.2 ms and on 10 Mbit/s with 20 ms, some 100 KB between processes of one
//! machine. So one is assumed. On a fast line across an ocean it is a hundred times that: there a ring is chosen too early, by
//! whoever owns more than the others, and a run file may say `direct`.

use crate::plan::{Layout, Topology};

/// What a choice of topology goes by.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What a hop costs: the bytes that a line carries while a frame is under way.
    pub hop_bytes: usize,
    /// Bytes of segments that a link may have under way in one direction.
    pub window_bytes: usize,
    /// Bytes of segments that a member has room for.
    pub room_bytes: usize,
}

impl Terms {
    /// The topology that takes less time for a round over `layout`; a ring in any case, if segments of all links at once would not
    /// fit.
    #[must_use]
    pub fn choose(&self, layout: &Layout) -> Topology {
        let links = layout.rank_count().saturating_sub(1);
        let (least, most) = layout.shares();
        let [all, least, most] = [layout.len(), least, most].map(|elements| elements * size_of::<f32>());
        let is_room = 2 * links * self.window_bytes.min(most) <= self.room_bytes;
        let around = all - least;
        let straight = around.max(links * most);
        let is_shorter = straight + self.hop_bytes <= around + links * self.hop_bytes;
        // Two members have the same edges either way.
        if links <= 1 || (is_room && is_shorter) { Topology::Direct } else { Topology::Ring }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { hop_bytes: 100, window_bytes: 1000, room_bytes: 1 << 20 };

    /// Of shares with so many elements, one after the other.
    fn chosen(terms: Terms, shares: &[usize]) -> Topology {
        let ends: Vec<usize> = shares
            .iter()
            .scan(0, |end, share| {
                *end += share;
                Some(*end)
            })
            .collect();
        let owned = ends.iter().zip(shares).map(|(end, share)| std::iter::once(end - share..*end).collect());
        terms.choose(&Layout::new(shares.iter().sum(), owned.collect(), 64))
    }

    #[test]
    fn with_equal_shares_a_ring_never_takes_less_time() {
        for count in 1..20 {
            for share in [0, 1, 1000] {
                assert_eq!(chosen(TERMS, &vec![share; count]), Topology::Direct, "{count} x {share}");
            }
        }
    }

    #[test]
    fn a_ring_is_chosen_where_it_saves_more_bytes_than_its_hops_cost() {
        // Ring: 4 (1000 + a) bytes; direct: 4 x 3 x (500 + a). Two hops more are 200 bytes.
        assert_eq!(chosen(TERMS, &[525, 500, 500, 0]), Topology::Direct);
        assert_eq!(chosen(TERMS, &[650, 500, 500, 0]), Topology::Ring);
        // A founder whom a crowd has joined owns everything.
        assert_eq!(chosen(TERMS, &[1000, 0, 0, 0, 0]), Topology::Ring);
        assert_eq!(chosen(TERMS, &[20, 0, 0, 0, 0]), Topology::Direct, "a small model is all hops");
        // By 4 x (3 x 275 - 1000 + 225) = 200 bytes more, and by one element's more than that.
        assert_eq!(chosen(TERMS, &[275, 250, 250, 225]), Topology::Direct);
        assert_eq!(chosen(TERMS, &[276, 250, 250, 224]), Topology::Ring);
    }

    #[test]
    fn two_members_have_one_link_whatever_they_own() {
        assert_eq!(chosen(TERMS, &[1000, 0]), Topology::Direct);
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
            assert_eq!(chosen(Terms { room_bytes, ..TERMS }, &[share; 4]), topology, "{room_bytes}");
        }
    }
}
