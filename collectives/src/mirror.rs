//! The mirror: each owner sends the sums of its shard to the members that store replicas of its optimizer state.
//!
//! Two bookkeepers with equal books stay equal if both enter the same receipts. A holder of a replica has the optimizer state before the
//! step. With the owner's sums it computes the state after the step itself, bit for bit. Sums are smaller than the state, and they are
//! available before the owner has computed its own update.
//!
//! # How it works
//! ```text
//! shard of rank 0:   [ a | b | c | d ]      chunks a, b and c have replicas, d has none
//! packed sums:       [ a | b | c ]          the vector may then be overwritten with new parameters
//!                      |   |   |
//!       0 --> 1:       a   |   c            each edge has its own segments, in order
//!       0 --> 3:           b
//! ```
//! 1. [`Mirror::pack`] copies sums out of the vector, before their owner overwrites them.
//! 2. [`Mirror::pump`] sends as many packed segments as the links' credit allows. It is called after the pump of the same step's round
//!    and before the pump of the next step's.
//! 3. [`Mirror::admit`] checks an arriving segment. The caller decodes it, copies it to [`Mirror::segment_ranges`], and returns the
//!    credit.
//!
//! # Cost
//! One hop. For `n` ranks, `c` holders of each chunk's state (the owner is one) and a vector of `s` bytes, a member sends and receives
//! (c - 1) / n x s bytes. The packed sums take at most the memory of a shard, which is reused from step to step.
//!
//! # Invariants
//! - A segment never waits at its receiver: that member contributed to the sum, so it is in the same step. Hence a ring that shares the
//!   links does not deadlock.
//! - On a link, a segment of the next step never overtakes a mirrored one. The receiver may need the mirrored sums to complete its step,
//!   and it keeps segments of the next step until then. These would use up all credit of the link, and the mirrored segment could not
//!   be sent.
//! - Every member computes the same plan, so a segment is described by its owner and its index.
//!
//! # Reading
//! Replicas follow from the inputs, as in Schneider, *Implementing Fault-Tolerant Services Using the State Machine Approach*, 1990.

use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::Pool;
use peergrad_protocol::message::{Phase, SampleStats};

use crate::codec::Codec;
use crate::credit::LinkCredits;
use crate::payload::encoded;
use crate::plan::{Segment, Shard};
use crate::round::{Action, SegmentLabel};

/// The chunks of an owner's shard of which another member stores replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorEdge {
    /// Rank of the owner.
    pub owner: usize,
    /// Rank of the member that keeps replicas.
    pub holder: usize,
    /// These chunks, as ranges of the flat vector: sorted and disjoint.
    pub ranges: Vec<Range<usize>>,
}

/// All edges from owners to holders of replicas: the same at every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPlan {
    /// By owner.
    sources: Vec<Source>,
    /// By holder: the number of segments that it receives from all owners.
    incoming: Vec<usize>,
}

/// The part of one owner's shard that has replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Source {
    /// The chunks of each holder, the nearest rank after the owner first.
    kept: Vec<MirrorTarget>,
    /// All ranges that have a replica, sorted and disjoint, each with its offset in the packed sums.
    packed: Vec<(Range<usize>, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MirrorTarget {
    holder: usize,
    chunks: Shard,
}

impl MirrorPlan {
    /// The plan for `edges` between `rank_count` ranks, with segments of at most `segment_elements`. Edges without elements are ignored.
    ///
    /// # Panics
    /// If two edges have the same owner and holder, an edge leads from a rank to itself, or ranges are not sorted and disjoint.
    #[must_use]
    pub fn new(
        rank_count: usize,
        edges: impl IntoIterator<Item = MirrorEdge>,
        segment_elements: usize,
    ) -> Self {
        assert!(segment_elements > 0, "segments have elements");
        let mut sources = vec![Source::default(); rank_count];
        let mut incoming = vec![0; rank_count];
        for MirrorEdge { owner, holder, ranges } in edges {
            let chunks = Shard::new(ranges, segment_elements);
            if chunks.is_empty() {
                continue;
            }
            assert_ne!(owner, holder, "an owner does not mirror to itself");
            incoming[holder] += chunks.segments().len();
            sources[owner].kept.push(MirrorTarget { holder, chunks });
        }
        for (owner, source) in sources.iter_mut().enumerate() {
            source.kept.sort_by_key(|kept| distance(owner, kept.holder, rank_count));
            assert!(
                source.kept.is_sorted_by(|kept, next| kept.holder != next.holder),
                "one edge from an owner to a holder"
            );
            source.packed = packed(&source.kept);
        }
        Self { sources, incoming }
    }

    /// Number of ranks.
    #[must_use]
    pub fn rank_count(&self) -> usize {
        self.sources.len()
    }

    /// The chunks of `owner`'s shard that `holder` replicates; `None` if there are none.
    fn kept(&self, owner: usize, holder: usize) -> Option<&Shard> {
        let (source, rank_count) = (self.sources.get(owner)?, self.rank_count());
        let wanted = distance(owner, holder, rank_count);
        let place =
            source.kept.binary_search_by_key(&wanted, |kept| distance(owner, kept.holder, rank_count));
        place.ok().map(|place| &source.kept[place].chunks)
    }
}

/// The number of ranks from `from` to `to`, counted around the ring.
fn distance(from: usize, to: usize, rank_count: usize) -> usize {
    (to + rank_count - from) % rank_count
}

/// The union of all holders' ranges, each with its offset in the packed sums.
fn packed(kept: &[MirrorTarget]) -> Vec<(Range<usize>, usize)> {
    let mut ranges: Vec<Range<usize>> = kept.iter().flat_map(|kept| kept.chunks.ranges()).cloned().collect();
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    parts(&joined).collect()
}

impl Source {
    /// The offset in the packed sums of a range that has a replica.
    fn place(&self, range: &Range<usize>) -> usize {
        // The last one that begins at or before the range: it contains all of it.
        let index = self.packed.partition_point(|(packed, _)| packed.start <= range.start) - 1;
        let (packed, start) = &self.packed[index];
        start + range.start - packed.start
    }

    /// What is left to send on an edge, from the segment `index` on; `None` if that was all.
    fn unsent(&self, edge: usize, index: usize) -> Option<Unsent> {
        let last = self.kept[edge].chunks.segments().get(index)?.ranges().last()?;
        Some(Unsent { edge, index, needed: self.place(last) + last.len() })
    }

    /// Fills `payload` with a segment's sums.
    fn copy_out(&self, sums: &[f32], segment: &Segment, payload: &mut [f32]) {
        for (range, offset) in parts(segment.ranges()) {
            let start = self.place(&range);
            payload[offset..offset + range.len()].copy_from_slice(&sums[start..start + range.len()]);
        }
    }
}

/// Each range with its offset when all ranges are packed one after the other, as in a payload.
pub fn parts(ranges: &[Range<usize>]) -> impl Iterator<Item = (Range<usize>, usize)> {
    ranges.iter().scan(0, |end, range| {
        let start = *end;
        *end += range.len();
        Some((range.clone(), start))
    })
}

/// One member's part in mirroring the sums of one step.
#[derive(Debug)]
pub struct Mirror {
    plan: Arc<MirrorPlan>,
    rank: usize,
    codec: Codec,
    /// The packed sums so far, in the order of the vector; only elements that have a replica.
    sums: Vec<f32>,
    /// The samples and loss behind the sums; `None` before the first sum.
    stats: Option<SampleStats>,
    /// Edges from this rank with unsent segments, the nearest rank first.
    unsent: Vec<Unsent>,
    /// By owner: the number of segments that have arrived.
    received: Vec<usize>,
    /// The number of segments, of all owners together, that have not arrived.
    missing: usize,
}

#[derive(Debug)]
struct Unsent {
    /// Index of the edge among those of this owner.
    edge: usize,
    /// Index of the segment that is sent next.
    index: usize,
    /// The number of packed sums that this segment needs.
    needed: usize,
}

impl Mirror {
    /// Begins a step at `rank`, whose sums are encoded with `codec`. If the codec is lossy, it must not change values that it has decoded,
    /// however they are cut into segments. `room` provides the memory for the packed sums: pass what [`Mirror::recycle`] returned.
    #[must_use]
    pub fn new(plan: Arc<MirrorPlan>, rank: usize, codec: Codec, mut room: Vec<f32>) -> Self {
        room.clear();
        let source = &plan.sources[rank];
        Self {
            sums: room,
            stats: None,
            unsent: (0..source.kept.len()).filter_map(|edge| source.unsent(edge, 0)).collect(),
            received: vec![0; plan.rank_count()],
            missing: plan.incoming[rank],
            plan,
            rank,
            codec,
        }
    }

    /// Packs the elements of `range` that have replicas. `vector` is the whole flat vector and holds the sums of `range`, with the samples
    /// and loss in `stats`; the range may be overwritten afterwards. Ranges are packed in rising order.
    ///
    /// # Panics
    /// If an element with a replica lies between the end of the previous range and this one.
    pub fn pack(&mut self, range: &Range<usize>, vector: &[f32], stats: SampleStats) {
        let packed = &self.plan.sources[self.rank].packed;
        let first = packed.partition_point(|(kept, _)| kept.end <= range.start);
        for (kept, start) in packed[first..].iter().take_while(|(kept, _)| kept.start < range.end) {
            let part = kept.start.max(range.start)..kept.end.min(range.end);
            assert_eq!(self.sums.len(), start + part.start - kept.start, "sums are packed in order");
            // Exactly, once: growing would leave the vector with up to twice the room that it needs.
            let all = packed.last().map_or(0, |(range, start)| start + range.len());
            self.sums.reserve_exact(all - self.sums.len());
            self.sums.extend_from_slice(&vector[part]);
            self.stats = Some(stats);
        }
    }

    /// Sends as many packed segments as the links' credit allows, in order for each holder, the nearest rank first.
    pub fn pump(&mut self, links: &mut LinkCredits, segments: &Pool, out: &mut Vec<Action>) {
        let Some(stats) = self.stats else { return };
        let (owner, sums, source) = (self.rank, &self.sums, &self.plan.sources[self.rank]);
        self.unsent.retain_mut(|next| {
            let MirrorTarget { holder, chunks } = &source.kept[next.edge];
            loop {
                if next.needed > sums.len() || !links.take_for_one_hop(*holder) {
                    return true;
                }
                let segment = &chunks.segments()[next.index];
                let mut payload = segments.take(segment.len());
                source.copy_out(sums, segment, &mut payload);
                let payload = encoded(self.codec, payload, segments);
                let label = SegmentLabel { phase: Phase::Mirror, owner, index: next.index, stats };
                out.push(Action::Send { to: *holder, label, payload });
                match source.unsent(next.edge, next.index + 1) {
                    Some(after) => *next = after,
                    None => return false,
                }
            }
        });
    }

    /// Checks an arriving segment of `byte_count` bytes against the plan and counts it. Returns false, and changes nothing, if it is not
    /// the next segment from that owner.
    #[must_use]
    pub fn admit(&mut self, from: usize, owner: usize, index: usize, byte_count: usize) -> bool {
        let kept = if from == owner { self.plan.kept(owner, self.rank) } else { None };
        let is_next = kept.is_some_and(|chunks| {
            index == self.received[owner]
                && chunks
                    .segments()
                    .get(index)
                    .is_some_and(|segment| self.codec.encoded_len(segment.len()) == byte_count)
        });
        if is_next {
            self.received[owner] += 1;
            self.missing -= 1;
        }
        is_next
    }

    /// The ranges of the flat vector to which a segment from `owner` belongs. [`parts`] gives their offsets in its payload.
    ///
    /// # Panics
    /// If there is no such segment; there is one if [`Mirror::admit`] has accepted it.
    #[must_use]
    pub fn segment_ranges(&self, owner: usize, index: usize) -> &[Range<usize>] {
        let kept = self.plan.kept(owner, self.rank).expect("this rank replicates part of the owner's shard");
        kept.segments()[index].ranges()
    }

    /// The number of segments from `owner` that have arrived. They arrive in order.
    #[must_use]
    pub fn held_segments(&self, owner: usize) -> usize {
        self.received[owner]
    }

    /// Whether the sums of all chunks that this rank replicates have arrived.
    #[must_use]
    pub fn is_received(&self) -> bool {
        self.missing == 0
    }

    /// The owners of which segments are missing.
    pub fn awaited(&self) -> impl Iterator<Item = usize> {
        let is_missing = |owner: &usize| {
            self.plan
                .kept(*owner, self.rank)
                .is_some_and(|kept| self.received[*owner] < kept.segments().len())
        };
        (0..self.plan.rank_count()).filter(is_missing)
    }

    /// Whether all segments have been sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Whether this rank stores no replicas, so that it receives no segments.
    #[must_use]
    pub fn expects_nothing(&self) -> bool {
        self.plan.incoming[self.rank] == 0
    }

    /// Ends the step and returns the memory of the packed sums, for the next step.
    #[must_use]
    pub fn recycle(self) -> Vec<f32> {
        self.sums
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::*;

    const STATS: SampleStats = SampleStats { samples: 3, loss: 0.5 };

    /// Rank 1 owns 0..4 and 6..10; rank 2 keeps its middle, rank 0 its ends and its middle again.
    fn plan() -> Arc<MirrorPlan> {
        let edge = |holder, ranges| MirrorEdge { owner: 1, holder, ranges };
        let nothing = MirrorEdge { owner: 2, holder: 0, ranges: vec![5..5] };
        let edges = [edge(0, vec![0..1, 3..4, 6..7, 9..10]), edge(2, vec![2..4, 6..8]), nothing];
        Arc::new(MirrorPlan::new(3, edges, 3))
    }

    fn sent(mirror: &mut Mirror, links: &mut LinkCredits) -> Vec<(usize, usize, Vec<f32>)> {
        let mut actions = Vec::new();
        mirror.pump(links, &Pool::new(8), &mut actions);
        let packet = |action| match action {
            Action::Send { to, label, payload } => {
                assert_eq!(
                    label,
                    SegmentLabel { phase: Phase::Mirror, owner: 1, index: label.index, stats: STATS }
                );
                (to, label.index, payload.to_vec())
            }
            Action::Grant { .. } => panic!("nothing came"),
        };
        actions.into_iter().map(packet).collect()
    }

    #[test]
    fn replica_holders_receive_sums_of_their_chunks_as_credit_allows() {
        let mut vector: Vec<f32> = (0..10_u8).map(f32::from).collect();
        let mut mirror = Mirror::new(plan(), 1, Codec::F32, Vec::new());
        let mut links = LinkCredits::new(3, 2);
        assert!(links.take_for_start(0) && links.take_for_start(2));
        assert_eq!(sent(&mut mirror, &mut links), [], "nothing before the sums are there");
        for range in [0..3, 3..4, 6..7] {
            assert_eq!(sent(&mut mirror, &mut links), [], "whole segments only");
            mirror.pack(&range, &vector, STATS);
            vector[range].fill(-1.0);
        }
        let first = [(2, 0, vec![2.0, 3.0, 6.0]), (0, 0, vec![0.0, 3.0, 6.0])];
        assert_eq!(sent(&mut mirror, &mut links), first, "whatever the rest of the shard is");
        mirror.pack(&(7..10), &vector, STATS);
        assert_eq!(sent(&mut mirror, &mut links), [], "up to the last tray, since it comes back");
        assert!(links.return_credit(0, 1) && !mirror.is_sent());
        assert_eq!(sent(&mut mirror, &mut links), [(0, 1, vec![9.0])]);
        assert!(links.return_credit(2, 1));
        assert_eq!(sent(&mut mirror, &mut links), [(2, 1, vec![7.0])]);
        assert!(mirror.is_sent() && mirror.is_received() && mirror.expects_nothing());

        let holder = Mirror::new(plan(), 2, Codec::F32, Vec::new());
        assert_eq!(holder.segment_ranges(1, 0), [2..4, 6..7]);
        assert_eq!(holder.segment_ranges(1, 1), [7..8]);
        assert!(parts(&[2..4, 6..7]).eq([(2..4, 0), (6..7, 2)]));
    }

    #[test]
    fn only_the_next_segment_of_an_edge_is_accepted() {
        let mut holder = Mirror::new(plan(), 2, Codec::F32, Vec::new());
        assert!(!holder.expects_nothing() && !holder.is_received());
        for (from, owner, index, bytes) in
            [(0, 1, 0, 12), (1, 1, 1, 4), (1, 1, 0, 8), (0, 0, 0, 12), (2, 2, 0, 12), (9, 9, 0, 12)]
        {
            assert!(!holder.admit(from, owner, index, bytes));
        }
        assert!(holder.admit(1, 1, 0, 12));
        assert!(!holder.admit(1, 1, 0, 12), "once");
        assert!(!holder.is_received() && holder.admit(1, 1, 1, 4) && holder.is_received());
        assert_eq!(holder.held_segments(1), 2);
        assert!(!holder.admit(1, 1, 2, 0));
    }

    #[test]
    fn a_step_reuses_the_memory_of_the_previous_step() {
        let vector = [1.0; 10];
        let load = |room| {
            let mut mirror = Mirror::new(plan(), 1, Codec::F32, room);
            [0..4, 6..10].iter().for_each(|range| mirror.pack(range, &vector, STATS));
            mirror.recycle()
        };
        let room = load(Vec::new());
        let (place, capacity) = (room.as_ptr(), room.capacity());
        assert_eq!(capacity, 6, "of eight owned elements, two are kept nowhere else");
        let again = load(room);
        assert_eq!((again.as_ptr(), again.capacity()), (place, capacity));
    }

    #[test]
    #[should_panic(expected = "sums are packed in order")]
    fn packing_sums_with_a_gap_panics() {
        let mut mirror = Mirror::new(plan(), 1, Codec::F32, Vec::new());
        [0..3, 6..10].iter().for_each(|range| mirror.pack(range, &[0.0; 10], STATS));
    }

    #[test]
    #[should_panic(expected = "one edge from an owner to a holder")]
    fn a_duplicate_edge_panics() {
        let edge = |start| MirrorEdge { owner: 0, holder: 1, ranges: vec![start..start + 2] };
        let _ = MirrorPlan::new(2, [edge(0), edge(2)], 2);
    }
}
