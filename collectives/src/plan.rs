//! The plan of a round, as data: the vector cut into shards and segments, and the ranks to which each segment is sent.
//!
//! ```text
//! vector    |  rank 0  |  rank 1  | 0 |  rank 2  | 1 |       shards: sorted ranges, of any sizes
//! segments  | a | b | c| a | b    ...                        at most `segment_elements` each, within one shard
//! ```
//! A layout is the same at every rank; a plan is the layout as one rank sees it. There are no buffers and no time here.

use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::message::Phase;

use crate::codec::{Codec, Codecs, INFINITE, SIGN};
use crate::combine::Combine;

/// The edges along which segments travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Each rank sends to the next one only; a shard's sum travels around. Few connections, many hops.
    Ring,
    /// Each rank sends directly to the owner, and the owner directly to all ranks. Two hops, connections between all.
    Direct,
}

/// A vector cut into shards and segments: the same at every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    len: usize,
    shards: Vec<Shard>,
    segment_count: usize,
    /// Ranks with a shard that is not empty, in order.
    owners: Vec<usize>,
    /// The number of elements of the smallest shard, and of the largest.
    shares: (usize, usize),
}

/// The elements that one rank owns, or stores as a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    ranges: Vec<Range<usize>>,
    segments: Vec<Segment>,
    len: usize,
}

/// A wire-sized piece of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    ranges: Vec<Range<usize>>,
    len: usize,
}

impl ShardLayout {
    /// Cuts a vector of `len` elements whose rank `r` owns the sorted, disjoint `owned[r]`.
    ///
    /// # Panics
    /// If a segment would be empty or the shards do not cover the vector exactly.
    #[must_use]
    pub fn new(len: usize, owned: Vec<Vec<Range<usize>>>, segment_elements: usize) -> Self {
        assert!(segment_elements > 0, "segments have elements");
        let shards: Vec<Shard> =
            owned.into_iter().map(|ranges| Shard::new(ranges, segment_elements)).collect();
        let shares = || shards.iter().map(Shard::len);
        assert_eq!(shares().sum::<usize>(), len, "shards cover the vector");
        let shares = (shares().min().unwrap_or(0), shares().max().unwrap_or(0));
        let segment_count = shards.iter().map(|shard| shard.segments.len()).sum();
        let owners = (0..shards.len()).filter(|rank| !shards[*rank].is_empty()).collect();
        Self { len, shards, segment_count, owners, shares }
    }

    /// As [`ShardLayout::new`], where those of `rank_count` ranks that are `owners` own equal parts, one after the other.
    ///
    /// # Panics
    /// If a segment would be empty, or there is no owner.
    #[must_use]
    pub fn even(len: usize, rank_count: usize, owners: &[usize], segment_elements: usize) -> Self {
        let mut owned = vec![Vec::new(); rank_count];
        for (index, owner) in owners.iter().enumerate() {
            owned[*owner].push(len * index / owners.len()..len * (index + 1) / owners.len());
        }
        Self::new(len, owned, segment_elements)
    }

    /// Elements of the vector.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the vector has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The shard of `rank`.
    #[inline]
    #[must_use]
    pub fn shard(&self, rank: usize) -> &Shard {
        &self.shards[rank]
    }

    /// The number of ranks.
    #[inline]
    #[must_use]
    pub fn rank_count(&self) -> usize {
        self.shards.len()
    }

    /// The number of elements of the smallest shard, and of the largest.
    #[must_use]
    pub fn shares(&self) -> (usize, usize) {
        self.shares
    }

    /// Segments of all shards together.
    #[inline]
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segment_count
    }

    /// The lowest rank with a shard that is not empty: all members report the stats of its shard. `None` for an empty vector.
    #[must_use]
    pub fn first_owner(&self) -> Option<usize> {
        self.owners.first().copied()
    }
}

impl Shard {
    /// Cuts what the sorted, disjoint `ranges` cover into segments.
    pub(crate) fn new(ranges: Vec<Range<usize>>, segment_elements: usize) -> Self {
        let ranges = merged(ranges);
        let mut segments = Vec::new();
        let mut open = Segment { ranges: Vec::new(), len: 0 };
        for range in &ranges {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start + segment_elements - open.len);
                open.ranges.push(start..end);
                open.len += end - start;
                start = end;
                if open.len == segment_elements {
                    segments.push(std::mem::replace(&mut open, Segment { ranges: Vec::new(), len: 0 }));
                }
            }
        }
        if open.len > 0 {
            segments.push(open);
        }
        let len = ranges.iter().map(Range::len).sum();
        Self { ranges, segments, len }
    }

    /// The shard's elements in the flat vector: sorted, disjoint, neighbours joined.
    #[inline]
    #[must_use]
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// The segments of the shard, in order.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The number of elements.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The number of elements in the first `count` segments.
    #[must_use]
    pub fn len_of_first(&self, count: usize) -> usize {
        // Only the last one may be shorter than the others.
        self.segments.first().map_or(0, |first| self.len.min(count * first.len))
    }

    /// Whether the shard has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

/// Joins ranges that touch, so that loops over them are long.
fn merged(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            last => {
                assert!(last.is_none_or(|last| last.end < range.start), "ranges are sorted and disjoint");
                joined.push(range);
            }
        }
    }
    joined
}

impl Segment {
    /// The number of elements.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its elements in the flat vector, sorted and disjoint; a payload holds them one range after the other.
    #[inline]
    #[must_use]
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Whether the segment has no elements; a layout makes no such segment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `packed` (`len` elements) from the vector.
    pub fn copy_out(&self, vector: &[f32], packed: &mut [f32]) {
        let mut rest = packed;
        for range in &self.ranges {
            let (part, after) = rest.split_at_mut(range.len());
            part.copy_from_slice(&vector[range.clone()]);
            rest = after;
        }
    }

    /// Overwrites this segment of the vector with `packed` (`len` elements).
    pub fn copy_in(&self, packed: &[f32], vector: &mut [f32]) {
        let mut rest = packed;
        for range in &self.ranges {
            let (part, after) = rest.split_at(range.len());
            vector[range.clone()].copy_from_slice(part);
            rest = after;
        }
    }

    /// Overwrites this segment of `vector` with `packed` (`len` elements) plus the same segment of `addend`.
    pub fn sum_in(&self, packed: &[f32], addend: &[f32], vector: &mut [f32]) {
        let mut rest = packed;
        for range in &self.ranges {
            let (part, after) = rest.split_at(range.len());
            for ((sum, value), add) in vector[range.clone()].iter_mut().zip(part).zip(&addend[range.clone()])
            {
                *sum = *value + *add;
            }
            rest = after;
        }
    }

    /// Adds this segment of the vector to `packed` (`len` elements).
    pub fn add_out(&self, vector: &[f32], packed: &mut [f32]) {
        let mut rest = packed;
        for range in &self.ranges {
            let (part, after) = rest.split_at_mut(range.len());
            add(part, &vector[range.clone()]);
            rest = after;
        }
    }
}

/// `sums += values`, elementwise.
pub fn add(sums: &mut [f32], values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += *value;
    }
}

/// Whether no element is infinite or NaN. It checks all of them: many at once are faster than one by one.
#[must_use]
pub fn are_finite(elements: &[f32]) -> bool {
    // The exponent of an infinite element or a NaN is all ones: adding one overflows into the sign.
    let run_over = |element: &f32| (element.to_bits() & INFINITE) + EXPONENT_UNIT;
    elements.iter().fold(0, |any, element| any | run_over(element)) & SIGN == 0
}

/// One in the exponent.
const EXPONENT_UNIT: u32 = 1 << 23;

/// A layout seen from one rank.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The shards and segments of the vector.
    pub layout: Arc<ShardLayout>,
    /// The edges along which segments travel.
    pub topology: Topology,
    /// This member's rank: its place in the group, if there is one.
    pub rank: usize,
    /// How owners combine contributions; anything but a sum needs the direct topology.
    pub combine: Combine,
    /// The encoding of segments in each half of the round.
    pub codecs: Codecs,
    /// The members that take part, in order, by their ranks on the links; `None` if all take part.
    pub group: Option<Arc<[usize]>>,
    /// The ranks, in order, whose contributions are in the sums; `None` if all are. The other ranks take part in everything else. To
    /// leave out a rank needs the direct topology.
    pub contributors: Option<Arc<[usize]>>,
}

impl Plan {
    /// The rank on the links of the member with this rank in the plan.
    #[must_use]
    pub fn link(&self, rank: usize) -> usize {
        self.group.as_ref().map_or(rank, |group| group[rank])
    }

    /// The rank in the plan of the member with rank `link` on the links; `None` if it takes no part.
    #[must_use]
    pub fn rank_behind(&self, link: usize) -> Option<usize> {
        match &self.group {
            Some(group) => group.binary_search(&link).ok(),
            None => Some(link),
        }
    }

    /// The number of ranks.
    #[must_use]
    pub fn rank_count(&self) -> usize {
        self.layout.rank_count()
    }

    /// Whether any shard has more segments than this.
    #[must_use]
    pub fn has_long_shards(&self, segments: usize) -> bool {
        (0..self.rank_count()).any(|rank| self.layout.shard(rank).segments().len() > segments)
    }

    /// The rank after this one.
    #[must_use]
    pub fn next(&self) -> usize {
        (self.rank + 1) % self.rank_count()
    }

    /// The rank before this one.
    #[must_use]
    pub fn previous(&self) -> usize {
        (self.rank + self.rank_count() - 1) % self.rank_count()
    }

    /// The number of ranks to which segments that start here may go. Ranks that own nothing send to owners only.
    #[must_use]
    pub fn destination_count(&self) -> usize {
        match self.topology {
            Topology::Ring => 1.min(self.rank_count() - 1),
            Topology::Direct if self.own().is_empty() => self.layout.owners.len(),
            Topology::Direct => self.rank_count() - 1,
        }
    }

    /// One of the ranks to which segments that start here may go, the nearest first.
    #[must_use]
    pub fn destination(&self, position: usize) -> usize {
        if self.topology == Topology::Direct && self.own().is_empty() {
            let owners = &self.layout.owners;
            let nearest = owners.partition_point(|owner| *owner < self.rank);
            return owners[(nearest + position) % owners.len()];
        }
        (self.rank + 1 + position) % self.rank_count()
    }

    /// Whether the contribution of `rank` is in the sums.
    #[must_use]
    pub fn contributes(&self, rank: usize) -> bool {
        self.contributors.as_ref().is_none_or(|ranks| ranks.binary_search(&rank).is_ok())
    }

    /// The number of contributions to `owner`'s shard, without its own.
    #[must_use]
    pub fn contribution_count(&self, owner: usize) -> usize {
        let all = self.contributors.as_ref().map_or(self.rank_count(), |ranks| ranks.len());
        all - usize::from(self.contributes(owner))
    }

    /// The rank whose contribution to `owner`'s shard is added at `position`: owner + 1 first, the owner last, without those
    /// that contribute nothing.
    #[must_use]
    pub fn contributor(&self, owner: usize, position: usize) -> usize {
        match &self.contributors {
            None => (owner + 1 + position) % self.rank_count(),
            Some(ranks) => ranks[(ranks.partition_point(|rank| *rank <= owner) + position) % ranks.len()],
        }
    }

    /// The encoding of segments in `phase`.
    #[must_use]
    pub fn codec(&self, phase: Phase) -> Codec {
        if phase == Phase::Reduce { self.codecs.reduce } else { self.codecs.gather }
    }

    /// Whether segments pass through ranks between the first and the last.
    #[must_use]
    pub fn has_relays(&self) -> bool {
        self.topology == Topology::Ring && self.rank_count() > 2
    }

    /// This rank's own shard.
    #[must_use]
    pub fn own(&self) -> &Shard {
        self.layout.shard(self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
    fn segments_span_ranges_and_keep_order() {
        let layout = ShardLayout::new(12, vec![vec![0..2, 2..5, 9..12], vec![5..9]], 4);
        let ranges: Vec<_> =
            layout.shard(0).segments().iter().map(|segment| segment.ranges.clone()).collect();
        assert_eq!(ranges, [vec![0..4], vec![4..5, 9..12]]);
        assert_eq!(layout.shard(0).ranges(), [0..5, 9..12]);
        assert_eq!(layout.shard(1).segments().len(), 1);
        assert_eq!([0, 1, 2].map(|count| layout.shard(0).len_of_first(count)), [0, 4, 8]);
        let uneven = ShardLayout::new(6, vec![vec![0..2, 3..6], vec![2..3], vec![]], 4);
        assert_eq!([0, 1, 2].map(|count| uneven.shard(0).len_of_first(count)), [0, 4, 5]);
        assert_eq!(uneven.shard(2).len_of_first(0), 0);
    }

    #[test]
    fn packing_is_undone_by_unpacking() {
        let layout = ShardLayout::new(10, vec![vec![1..3, 4..5, 7..10], vec![0..1, 3..4, 5..7]], 100);
        let vector: Vec<f32> = (0..10_u8).map(f32::from).collect();
        let segment = &layout.shard(0).segments()[0];
        let mut packed = vec![0.0; segment.len()];
        segment.copy_out(&vector, &mut packed);
        assert_eq!(packed, [1.0, 2.0, 4.0, 7.0, 8.0, 9.0]);
        segment.add_out(&vector, &mut packed);
        let mut doubled = vector.clone();
        segment.copy_in(&packed, &mut doubled);
        assert_eq!(doubled, [0.0, 2.0, 4.0, 3.0, 8.0, 5.0, 6.0, 14.0, 16.0, 18.0]);
        let mut tripled = vector.clone();
        segment.sum_in(&packed, &vector, &mut tripled);
        assert_eq!(tripled, [0.0, 3.0, 6.0, 3.0, 12.0, 5.0, 6.0, 21.0, 24.0, 27.0]);
    }

    #[test]
    fn segments_are_sent_to_the_members_that_need_them() {
        let layout = Arc::new(ShardLayout::new(3, vec![vec![], vec![0..2], vec![], vec![2..3], vec![]], 10));
        let plan = |layout: &Arc<ShardLayout>, topology, rank| {
            let layout = Arc::clone(layout);
            let (combine, codecs) = (Combine::Sum, Codecs::default());
            Plan { layout, topology, combine, codecs, rank, group: None, contributors: None }
        };
        let destinations = |topology, rank| {
            let plan = plan(&layout, topology, rank);
            (0..plan.destination_count()).map(|position| plan.destination(position)).collect::<Vec<_>>()
        };
        assert_eq!(destinations(Topology::Ring, 4), [0]);
        assert_eq!(destinations(Topology::Direct, 1), [2, 3, 4, 0]);
        assert_eq!(destinations(Topology::Direct, 2), [3, 1]);
        assert_eq!(destinations(Topology::Direct, 4), [1, 3]);
        let alone = Arc::new(ShardLayout::new(3, vec![vec![0..3]], 10));
        for topology in [Topology::Ring, Topology::Direct] {
            assert_eq!(plan(&alone, topology, 0).destination_count(), 0);
        }
    }

    #[test]
    fn an_element_that_is_not_finite_is_found_at_any_position() {
        let finite = [0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, -f32::MIN_POSITIVE / 8.0];
        let nan = f32::from_bits(0xff80_0001);
        for len in [0, 1, 7, 100] {
            let mut elements: Vec<f32> = finite.iter().copied().cycle().take(len).collect();
            assert!(are_finite(&elements));
            for (place, special) in (0..len)
                .flat_map(|place| [f32::INFINITY, -f32::INFINITY, f32::NAN, nan].map(|value| (place, value)))
            {
                let before = std::mem::replace(&mut elements[place], special);
                assert!(!are_finite(&elements), "{special} at {place}");
                elements[place] = before;
            }
        }
    }

    #[test]
    #[should_panic(expected = "shards cover the vector")]
    fn shards_with_a_gap_panic() {
        let _ = ShardLayout::new(3, vec![vec![0..1], vec![2..3]], 1);
    }
}
