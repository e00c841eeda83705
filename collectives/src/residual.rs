//! The residual: the part of a member's contributions that a lossy codec left out. It is added to the next contribution (error feedback).
//!
//! A cashier rounds every bill to whole coins and notes the rounding error; the next bill is rounded together with that error. No single
//! bill is exact, but the till is never off by more than one error.
//!
//! ```text
//! total    = contribution + residual      vectors of f32, one element for each parameter
//! sent     = decode(encode(total))
//! residual = total - sent                 for the next step
//! ```
//! # How it works
//! A step can be undone, and its contributions are then sent again, perhaps cut into other segments. So the residual of a step never
//! overwrites that of the step before. A member may already send the next step while it does not know that the last one is committed.
//! Hence there are up to three residuals: after the newest committed step, and after each of two steps since.
//!
//! 1. [`Residual::begin`] opens a step. Its residual is computed from that of the step before.
//! 2. [`Residual::encode`] turns the total of a segment into bytes and stores what is left out. It is called as credit allows.
//! 3. [`Residual::commit`] makes a step's residual the committed one and forgets earlier ones. [`Residual::undo`] forgets the step's
//!    residual, as if nothing had been sent.
//!
//! Elements that a step does not send keep their residual. These are the elements of the member's own shard, until they get another
//! owner. With [`Codec::F32`] the residual is sent to the last bit, and becomes zero.
//!
//! # Invariants
//! - **Sent + residual = total**, exactly: what a codec rounds off fits into an f32. The total itself is a rounded sum of two f32.
//!   (Exception: with [`Codec::F16`], the residual of a total above 65504 is rounded too.)
//! - Residuals are finite. If a total is not finite, the element keeps its former residual: owners discard sums with such elements.
//! - An undone step leaves no trace, and a committed step is never undone.
//! - There are at most three vectors. They come from a pool, so nothing is allocated in the long run.
//!
//! # Reading
//! - Seide et al., *1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs*, 2014,
//!   section 2.2: the idea, for one bit per element.
//! - Karimireddy et al., *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*, 2019, algorithm 2, and a proof that it
//!   converges as fast as SGD without compression. There the learning rate is part of the contribution. Here the owner applies it to the
//!   sum, so a residual gets the learning rate of the step in which it is sent.
//! - Lin et al., *Deep Gradient Compression*, 2018, section 3: the same with the largest elements.

use std::ops::Range;

use peergrad_protocol::{Buffer, Pool, StepNumber};

use crate::codec::Codec;
use crate::plan::Segment;

/// The residual of one member: one element for each parameter.
pub struct Residual {
    vectors: Pool,
    /// The residual after the newest committed step.
    committed: Buffer,
    /// The residual after each later step, oldest first.
    pending: Vec<Pending>,
    /// Memory for the next step's list of sent ranges, reused.
    room: Vec<Range<usize>>,
    /// The ranges of elements that are encoded together, reused.
    parts: Vec<Range<usize>>,
}

/// The residual after a step that is not committed.
struct Pending {
    step: StepNumber,
    elements: Buffer,
    /// The ranges in which `elements` holds this step's residual, in the order in which segments were sent; other elements are unspecified.
    sent: Vec<Range<usize>>,
}

impl Residual {
    /// A residual of `len` zeros. Its vectors come from the pool `vectors`.
    #[must_use]
    pub fn new(len: usize, vectors: Pool) -> Self {
        Self {
            committed: vectors.take_zeroed(len),
            vectors,
            pending: Vec::with_capacity(PENDING_MAX),
            room: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Begins a step. Segments of earlier steps are not encoded any more.
    ///
    /// # Panics
    /// If that step or a later one was begun and not undone, or if two earlier steps are not committed.
    pub fn begin(&mut self, step: StepNumber) {
        assert!(self.pending.last().is_none_or(|last| last.step < step), "a step begins once");
        assert!(self.pending.len() < PENDING_MAX, "commits keep pace with steps");
        self.fill_unsent();
        let elements = self.vectors.take(self.committed.len());
        let mut sent = std::mem::take(&mut self.room);
        sent.clear();
        self.pending.push(Pending { step, elements, sent });
    }

    /// Encodes a segment of this member's `contribution`, plus its residual, as part of the step that was begun last. `contribution` has an
    /// element for each parameter. `packed` has the length of the segment and receives the decoded elements, which the receiver will see.
    ///
    /// If a segment is encoded again in the same step, its new residual replaces the former one.
    ///
    /// # Panics
    /// If no step has been begun, or if `packed` has another length than the segment, or `out` another than its
    /// [bytes](Codec::encoded_len).
    pub fn encode(
        &mut self,
        codec: Codec,
        segment: &Segment,
        contribution: &[f32],
        packed: &mut [f32],
        out: &mut [u8],
    ) {
        assert_eq!(packed.len(), segment.len(), "room for the segment");
        assert_eq!(out.len(), codec.encoded_len(packed.len()), "room for what travels of it");
        let (current, before) = self.pending.split_last_mut().expect("a step is under way");
        let before = before.last().map_or(&self.committed, |pending| &pending.elements);
        let block = codec.block_elements(packed.len(), BLOCK_ELEMENTS_MAX);
        let mut ranges = segment.ranges().iter().cloned();
        let mut rest = 0..0;
        let blocks = packed.chunks_mut(block).zip(out.chunks_mut(codec.encoded_len(block)));
        for (packed, out) in blocks {
            self.parts.clear();
            let mut filled = 0;
            while filled < packed.len() {
                if rest.is_empty() {
                    rest = ranges.next().expect("as many elements as the segment has");
                }
                let part = rest.start..rest.end.min(rest.start + packed.len() - filled);
                rest.start = part.end;
                let totals = &mut packed[filled..][..part.len()];
                let left = &mut current.elements[part.clone()];
                add_residual(totals, left, &contribution[part.clone()], &before[part.clone()]);
                filled += part.len();
                self.parts.push(part);
            }
            codec.encode_in_place(packed, out);
            let mut sent = &*packed;
            for part in &self.parts {
                let (now, later) = sent.split_at(part.len());
                subtract_sent(&mut current.elements[part.clone()], now, &before[part.clone()]);
                sent = later;
            }
        }
        current.sent.extend_from_slice(segment.ranges());
    }

    /// Notes that `step` and all earlier steps are committed: its residual becomes the committed one. Does nothing if none of them is
    /// pending.
    pub fn commit(&mut self, step: StepNumber) {
        let count = self.pending.partition_point(|pending| pending.step <= step);
        if count == self.pending.len() {
            // The others were settled when the next step began.
            self.fill_unsent();
        }
        if let Some(newest) = self.pending.drain(..count).next_back() {
            self.committed = newest.elements;
            self.room = newest.sent;
        }
    }

    /// Notes that `step` and all later steps are undone: their residuals are forgotten.
    pub fn undo(&mut self, step: StepNumber) {
        self.pending.retain(|pending| pending.step < step);
    }

    /// The residual after the committed steps.
    #[must_use]
    pub fn committed(&self) -> &[f32] {
        &self.committed
    }

    /// Copies, for the newest step, the elements that were not sent from the residual before it.
    fn fill_unsent(&mut self) {
        let Some((current, before)) = self.pending.split_last_mut() else { return };
        let before = before.last().map_or(&self.committed, |pending| &pending.elements);
        current.sent.sort_unstable_by_key(|range| range.start);
        let mut end = 0;
        for range in &current.sent {
            if range.start > end {
                current.elements[end..range.start].copy_from_slice(&before[end..range.start]);
            }
            end = end.max(range.end);
        }
        current.elements[end..].copy_from_slice(&before[end..]);
    }
}

/// Stores contribution + residual in `totals` and in `left`.
fn add_residual(totals: &mut [f32], left: &mut [f32], contribution: &[f32], before: &[f32]) {
    for ((total, left), (own, before)) in totals.iter_mut().zip(left).zip(contribution.iter().zip(before)) {
        *total = own + before;
        *left = *total;
    }
}

/// Subtracts `sent` from `totals`. Elements that are not finite are replaced by those of `before`.
fn subtract_sent(totals: &mut [f32], sent: &[f32], before: &[f32]) {
    let mut are_finite = true;
    for (total, sent) in totals.iter_mut().zip(sent) {
        *total -= sent;
        are_finite &= total.is_finite();
    }
    // Apart, because the loop above is three times as fast without it.
    if !are_finite {
        for (left, before) in totals.iter_mut().zip(before).filter(|(left, _)| !left.is_finite()) {
            *left = *before;
        }
    }
}

/// Elements that are encoded together, if the codec permits: few enough for the nearest cache.
const BLOCK_ELEMENTS_MAX: usize = 1024;
/// Most steps that are begun and not committed: one that is complete here, and the next.
const PENDING_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ShardLayout;

    const LEN: usize = 10;

    fn new() -> (Residual, ShardLayout) {
        // Segments of three; rank 0 owns what is not contiguous.
        let layout = ShardLayout::new(LEN, vec![vec![0..2, 7..10], vec![2..7]], 3);
        (Residual::new(LEN, Pool::new(3)), layout)
    }

    /// Sends a whole contribution, and adds what will be received to `received`.
    fn send(
        residual: &mut Residual,
        layout: &ShardLayout,
        codec: Codec,
        contribution: &[f32],
        received: &mut [f32],
    ) {
        for rank in 0..layout.rank_count() {
            for segment in layout.shard(rank).segments() {
                let mut packed = vec![f32::NAN; segment.len()];
                let mut bytes = vec![0; codec.encoded_len(segment.len())];
                residual.encode(codec, segment, contribution, &mut packed, &mut bytes);
                let mut decoded = vec![f32::NAN; segment.len()];
                codec.decode(&bytes, &mut decoded).unwrap();
                assert!(decoded.iter().zip(&packed).all(|(one, other)| one.to_bits() == other.to_bits()));
                let mut sum = vec![0.0; LEN];
                segment.copy_in(&decoded, &mut sum);
                received.iter_mut().zip(sum).for_each(|(received, sent)| *received += sent);
            }
        }
    }

    #[test]
    fn the_residual_of_a_step_is_sent_with_the_next_step() {
        let (mut residual, layout) = new();
        let contribution = [1.0 + 1.0 / 512.0; LEN];
        let mut received = [0.0; LEN];
        for step in 0..4 {
            residual.begin(StepNumber(step));
            send(&mut residual, &layout, Codec::Bf16, &contribution, &mut received);
            residual.commit(StepNumber(step));
        }
        // Four times 1 / 512 is one unit of the last place: it has been sent, at a tie or after it.
        for (received, left) in received.iter().zip(residual.committed()) {
            assert_eq!(received + left, 4.0 + 4.0 / 512.0);
            assert!(left.abs() <= 1.0 / 256.0);
        }
    }

    #[test]
    fn an_undone_step_leaves_no_trace() {
        let (mut once, layout) = new();
        let (mut twice, other_layout) = (new().0, ShardLayout::even(LEN, 3, &[0, 1, 2], 4));
        let contribution =
            |step: u64| (0..LEN).map(|index| index as f32 / 7.0 + step as f32).collect::<Vec<f32>>();
        for step in 0..5 {
            let (number, contribution) = (StepNumber(step), contribution(step));
            once.begin(number);
            send(&mut once, &layout, Codec::Int8, &contribution, &mut [0.0; LEN]);
            // Each step is undone twice: after it was sent in other segments, and before anything was sent.
            twice.begin(number);
            send(&mut twice, &other_layout, Codec::Bf16, &contribution, &mut [0.0; LEN]);
            twice.undo(number);
            twice.begin(number);
            twice.undo(number);
            twice.begin(number);
            send(&mut twice, &layout, Codec::Int8, &contribution, &mut [0.0; LEN]);
            // A step is committed while the next one is under way.
            for residual in [&mut once, &mut twice] {
                if step > 0 {
                    residual.commit(StepNumber(step - 1));
                }
            }
            assert_eq!(once.committed(), twice.committed());
        }
        assert!(once.committed().iter().any(|left| *left != 0.0));
        // Both steps that are pending are undone.
        let before = once.committed().to_vec();
        once.begin(StepNumber(5));
        once.undo(StepNumber(4));
        once.commit(StepNumber(5));
        assert_eq!(once.committed(), before);
    }

    #[test]
    fn residuals_of_elements_that_are_not_sent_stay_unchanged() {
        let (mut residual, layout) = new();
        residual.begin(StepNumber(1));
        send(&mut residual, &layout, Codec::Bf16, &[0.3; LEN], &mut [0.0; LEN]);
        residual.begin(StepNumber(2));
        // The second segment of rank 0, alone; as f32, so nothing of it is left.
        let segment = &layout.shard(0).segments()[1];
        let (mut packed, mut bytes) = (vec![0.0; segment.len()], vec![0; segment.len() * 4]);
        residual.encode(Codec::F32, segment, &[1.0; LEN], &mut packed, &mut bytes);
        residual.commit(StepNumber(1));
        let left = residual.committed()[0];
        assert_eq!((left != 0.0, residual.committed()), (true, &[left; LEN][..]));
        assert_eq!(packed, [1.0 + left; 2]);
        residual.commit(StepNumber(2));
        let expected: Vec<f32> = (0..LEN).map(|index| if index < 8 { left } else { 0.0 }).collect();
        assert_eq!(residual.committed(), expected);
        // A step in which nothing at all is sent.
        residual.begin(StepNumber(7));
        residual.commit(StepNumber(7));
        residual.commit(StepNumber(8));
        assert_eq!(residual.committed(), expected);
    }

    #[test]
    fn values_that_are_not_finite_never_enter_the_residual() {
        let (mut residual, layout) = new();
        for (step, element) in [(0, 0.3), (1, f32::INFINITY), (2, f32::NAN), (3, f32::MAX)] {
            let top = crate::codec::TopK {
                one_in: std::num::NonZeroU32::new(3).unwrap(),
                values: crate::codec::Values::Bf16,
            };
            for codec in [Codec::F32, Codec::Bf16, Codec::F16, Codec::Int8, Codec::TopK(top)] {
                residual.begin(StepNumber(step));
                send(&mut residual, &layout, codec, &[element; LEN], &mut [0.0; LEN]);
                residual.undo(StepNumber(step + 1));
                residual.fill_unsent();
                assert!(residual.pending[0].elements.iter().all(|left| left.is_finite()));
                residual.undo(StepNumber(step));
            }
        }
    }

    #[test]
    fn a_long_segment_of_many_ranges_is_encoded_as_a_whole() {
        const LONG: usize = 3 * BLOCK_ELEMENTS_MAX + 77;
        let (even, odd): (Vec<_>, Vec<_>) = (0..LONG)
            .step_by(301)
            .map(|start| start..(start + 301).min(LONG))
            .enumerate()
            .partition(|(i, _)| i % 2 == 0);
        let ranges = |part: Vec<(usize, Range<usize>)>| part.into_iter().map(|(_, range)| range).collect();
        let layout = ShardLayout::new(LONG, vec![ranges(even), ranges(odd)], LONG);
        let top = crate::codec::TopK {
            one_in: std::num::NonZeroU32::new(9).unwrap(),
            values: crate::codec::Values::F32,
        };
        for codec in [Codec::F32, Codec::Bf16, Codec::F16, Codec::Int8, Codec::TopK(top)] {
            let mut residual = Residual::new(LONG, Pool::new(3));
            for step in 0..3 {
                let contribution: Vec<f32> =
                    (0..LONG).map(|i| ((i * 37 + step as usize * 11) % 101) as f32 / 7.0 - 5.0).collect();
                let before = residual.committed().to_vec();
                residual.begin(StepNumber(step));
                for segment in (0..2).flat_map(|rank| layout.shard(rank).segments()) {
                    let mut totals = vec![0.0; segment.len()];
                    segment.copy_out(&contribution, &mut totals);
                    segment.add_out(&before, &mut totals);
                    let mut expected = vec![0; codec.encoded_len(segment.len())];
                    codec.encode(&totals, &mut expected);
                    let (mut packed, mut bytes) = (vec![0.0; segment.len()], vec![0; expected.len()]);
                    residual.encode(codec, segment, &contribution, &mut packed, &mut bytes);
                    assert!(bytes == expected, "{codec:?}");
                    totals.iter_mut().zip(&packed).for_each(|(total, sent)| *total -= sent);
                    let mut left = vec![0.0; segment.len()];
                    segment.copy_out(&residual.pending[0].elements, &mut left);
                    assert!(left == totals, "{codec:?}");
                }
                residual.commit(StepNumber(step));
            }
        }
    }

    #[test]
    fn a_step_reuses_the_vectors_of_earlier_steps() {
        let layout = ShardLayout::even(LEN, 1, &[0], LEN);
        let vectors = Pool::new(3);
        let mut residual = Residual::new(LEN, vectors.clone());
        for step in 1..20 {
            residual.begin(StepNumber(step));
            send(&mut residual, &layout, Codec::F16, &[0.1; LEN], &mut [0.0; LEN]);
            residual.commit(StepNumber(step - 1));
        }
        assert_eq!(vectors.allocated_count(), 3);
    }

    #[test]
    #[should_panic(expected = "commits keep pace")]
    fn too_many_uncommitted_steps_panic() {
        let mut residual = new().0;
        (0..3).for_each(|step| residual.begin(StepNumber(step)));
    }
}
