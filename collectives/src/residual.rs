//! What a lossy codec left out of a member's contributions so far: it is added to the next one.
//!
//! Like a cashier who rounds every bill to whole coins and keeps a note of what was rounded off: the next bill is rounded
//! together with the note. No single bill is exact, but the till never is off by more than one note, however many there were.
//!
//! ```text
//! total    = contribution + residual
//! sent     = decode(encode(total))
//! residual = total - sent                 from the next step on
//! ```
//! # How it works
//! A step can be undone, and then its contributions are sent again, perhaps in other segments. So a residual is written beside
//! the one before, never over it. While a step is complete but not known to be complete everywhere, the next one
//! already sends: there are up to three residuals, of the newest committed step and of two steps after it.
//!
//! 1. [`Residual::begin`] opens a step; what it leaves out is counted from what the step before left out.
//! 2. [`Residual::encode`] turns a segment's total into bytes, as credit allows, and notes what is left out.
//! 3. [`Residual::commit`] makes the step's residual stand and forgets those before it. [`Residual::undo`] forgets the step's,
//!    as though nothing had been sent.
//!
//! Elements of which a step sends nothing keep their residual: those of a member's own shard, until somebody else owns them.
//! With [`Codec::F32`] the residual is sent to the last bit, and nothing is left.
//!
//! # Invariants
//! - **Sent + residual = total**, exactly: what a codec rounds off has few enough digits for an f32. The total itself is a sum
//!   of two f32 and rounded as such. (With [`Codec::F16`], what is left of a total above 65504 is rounded too.)
//! - Residuals are finite. A total that is not finite leaves the residual of its element as it was: owners do not use sums
//!   in which they see such elements.
//! - Undone steps leave no trace; a committed one is never undone.
//! - Three vectors at most, which come from a pool: in the long run nothing is allocated.
//!
//! # Reading
//! - Seide et al., *1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
//!   DNNs*, 2014, section 2.2: the idea, for one bit an element.
//! - Karimireddy et al., *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*, 2019, algorithm 2, and why
//!   it converges as fast as without. There the learning rate is in the contribution; here the owner applies it to the sum,
//!   so what is left from a step is worth the next step's rate.
//! - Lin et al., *Deep Gradient Compression*, 2018, section 3, with the largest elements.

use std::ops::Range;

use peergrad_protocol::{Buffer, Pool, StepNumber};

use crate::codec::Codec;
use crate::plan::Segment;

/// What was left out of one member's contributions, by element of the parameter vector.
pub struct Residual {
    vectors: Pool,
    /// After the newest committed step.
    committed: Buffer,
    /// After each step since, oldest first.
    pending: Vec<Pending>,
    /// Room for what the next step sends, used again.
    room: Vec<Range<usize>>,
    /// Where the elements lie that are encoded together, used again.
    parts: Vec<Range<usize>>,
}

/// What is left out after a step that is not committed.
struct Pending {
    step: StepNumber,
    elements: Buffer,
    /// Where elements are those of this step, in the order in which segments were sent; elsewhere they are unspecified.
    sent: Vec<Range<usize>>,
}

impl Residual {
    /// Nothing left out yet, of vectors with `len` elements. `vectors` is where they come from.
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

    /// Begins a step: nothing more is sent of those before it.
    ///
    /// # Panics
    /// If that step or a later one was begun and not undone, or two before it are not committed.
    pub fn begin(&mut self, step: StepNumber) {
        assert!(self.pending.last().is_none_or(|last| last.step < step), "a step begins once");
        assert!(self.pending.len() < PENDING_MAX, "commits keep pace with steps");
        self.fill_unsent();
        let elements = self.vectors.take(self.committed.len());
        let mut sent = std::mem::take(&mut self.room);
        sent.clear();
        self.pending.push(Pending { step, elements, sent });
    }

    /// Encodes a segment of this member's `contribution` and of what was left out of it before, as part of the step
    /// that was begun last. `packed`, as long as the segment, is left with what the receiver will see.
    ///
    /// A segment that is encoded again in the same step replaces what it was.
    ///
    /// # Panics
    /// If no step is under way, or `packed` or `out` have other lengths than the segment and its
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

    /// Step `step` is committed, and with it those before: what it left out stands. No-op where it sent nothing.
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

    /// Step `step` is undone, and with it those after: what was left out before it stands again.
    pub fn undo(&mut self, step: StepNumber) {
        self.pending.retain(|pending| pending.step < step);
    }

    /// What the committed steps left out.
    #[must_use]
    pub fn committed(&self) -> &[f32] {
        &self.committed
    }

    /// Fills in, for the newest step, the elements of which nothing was sent.
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

/// What a member has to send, in both places.
fn add_residual(totals: &mut [f32], left: &mut [f32], contribution: &[f32], before: &[f32]) {
    for ((total, left), (own, before)) in totals.iter_mut().zip(left).zip(contribution.iter().zip(before)) {
        *total = own + before;
        *left = *total;
    }
}

/// From totals to what is left of them when `sent` is gone; from what is not finite, `before` is left.
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

/// Elements that are gone through together, if the codec lets them be: what is looked at of them stays in the nearest cache.
const BLOCK_ELEMENTS_MAX: usize = 1024;
/// Steps that are begun and not committed: one that is complete here, and the next.
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
    fn what_is_left_out_comes_with_the_next() {
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
    fn where_nothing_is_sent_nothing_changes() {
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
    fn what_is_not_finite_does_not_stay() {
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
    fn the_vectors_of_one_step_serve_the_next() {
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
    fn steps_that_are_never_committed_are_noticed() {
        let mut residual = new().0;
        (0..3).for_each(|step| residual.begin(StepNumber(step)));
    }
}
