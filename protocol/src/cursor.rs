//! The data cursor: which samples have been trained, and which come next.
//!
//! Think of a deck of cards that is shuffled once an epoch. Each step takes the next few cards from the top and deals them
//! to the members; the cursor marks the place in the deck. Cards of a departed member are returned and dealt first, so each
//! card is played once before the deck is shuffled again.
//!
//! After a partition, each part continues at another place of what is left of the epoch, so that the parts train different
//! samples for as long as possible. After a merge, the samples of both count as trained.
//!
//! # Invariants
//! - The batch is a function of (seed, cursor, sample count, batch size): members that agree on the cursor need no
//!   messages to agree on which member computes which samples.
//! - A batch never spans two epochs; the last batch of an epoch may be smaller, and a weighted mean makes that exact.

use std::cmp::Ordering;
use std::ops::Range;

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::limits::{RETURNED_SPANS_MAX, STEPS_MAX};
use crate::wire::codec::{Decode, Encode};

/// A place in the data: what of the current epoch has been trained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct DataCursor {
    /// The number of finished epochs.
    pub epoch: u64,
    /// Position in the current epoch's permutation up to which samples have been taken.
    pub position: u64,
    /// Ranges of positions that were taken and returned untrained, in order and disjoint. They come first.
    pub returned: Vec<Span>,
    /// Ranges of positions that were skipped and come last in the epoch, in order, and disjoint from the returned ones.
    pub deferred: Vec<Span>,
    /// Whether the members have agreed to end the run here.
    pub ending: Ending,
}

/// Whether a run ends before its epochs are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum Ending {
    /// It goes on.
    #[default]
    None,
    /// The next batch is the last one.
    NextBatch,
    /// The last batch was taken.
    Over,
}

/// A range of positions in an epoch's permutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Span {
    /// The first position.
    pub start: u64,
    /// The position after the last.
    pub end: u64,
}

impl Span {
    /// The number of positions.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether the range has no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The intersections with each of these ranges.
    fn common_with<'a>(&self, others: &'a [Self]) -> impl Iterator<Item = Self> + use<'a> {
        let Self { start, end } = *self;
        let common = move |other: &Self| Self { start: start.max(other.start), end: end.min(other.end) };
        others.iter().map(common).filter(|common| common.start < common.end)
    }
}

/// The samples of one step: positions in the permutation of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The epoch whose permutation the positions refer to.
    pub epoch: u64,
    /// The positions, in the order of assignment.
    pub spans: Vec<Span>,
}

impl Batch {
    /// The number of samples.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.spans.iter().map(Span::len).sum()
    }

    /// Whether the batch has no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of the member at `index` if the batch is split in proportion to `weights`, between blocks of `block` samples.
    ///
    /// Parts follow each other in order of rank and differ from the exact proportion by less than one block. Unless blocks are single
    /// samples and all weights other than 0 are equal, each batch rounds differently, so that over many batches each member has its proportion. Only the last block may have
    /// fewer samples.
    ///
    /// # Panics
    /// If all weights are zero, or the block is.
    #[must_use]
    pub fn part(&self, index: usize, weights: &[u32], block: u64) -> Vec<Span> {
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        assert!(total > 0, "a member computes");
        let before: u64 = weights[..index].iter().map(|&w| u64::from(w)).sum();
        let rounding = self.rounding(weights, total, block);
        let bound = |cumulative: u64| {
            let exact = u128::from(self.len().div_ceil(block)) * u128::from(cumulative);
            let blocks = ((exact + u128::from(rounding)) / u128::from(total)) as u64;
            self.len().min(blocks.saturating_mul(block))
        };
        self.slice(bound(before)..bound(before + u64::from(weights[index])))
    }

    /// What is added to each bound between two parts before it is rounded down: 0 to `total - 1`, as if drawn by lot for each batch.
    fn rounding(&self, weights: &[u32], total: u64, block: u64) -> u64 {
        let mut computing = weights.iter().filter(|&&weight| weight > 0);
        let first = computing.next();
        if block == 1 && computing.all(|weight| Some(weight) == first) {
            return 0;
        }
        let position = self.spans.first().map_or(0, |span| span.start);
        let fraction = mixed(mixed(self.epoch) ^ position);
        ((u128::from(fraction) * u128::from(total)) >> 64) as u64
    }

    /// The positions at `range` in the order of assignment.
    fn slice(&self, range: Range<u64>) -> Vec<Span> {
        let mut passed = 0;
        let mut slice = Vec::new();
        for span in &self.spans {
            let from = range.start.clamp(passed, passed + span.len()) - passed;
            let to = range.end.clamp(passed, passed + span.len()) - passed;
            if from < to {
                slice.push(Span { start: span.start + from, end: span.start + to });
            }
            passed += span.len();
        }
        slice
    }
}

impl DataCursor {
    /// Whether the cursor is possible: ranges in order, disjoint, before the position, and within their limits.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_behind = |span: &Span| span.start < span.end && span.end <= self.position;
        let mut untrained: Vec<Span> = self.returned.iter().chain(&self.deferred).copied().collect();
        untrained.sort_unstable_by_key(|span| span.start);
        self.epoch <= STEPS_MAX
            && self.position <= u64::from(u32::MAX)
            && untrained.len() <= RETURNED_SPANS_MAX
            && untrained.iter().all(is_behind)
            && are_disjoint(&self.returned)
            && are_disjoint(&self.deferred)
            && are_disjoint(&untrained)
    }

    /// The cursor with `spans` of its epoch returned: they come first in the next batches.
    ///
    /// # Panics
    /// If a range was not taken, or is returned already.
    #[must_use]
    pub fn return_spans(&self, spans: impl IntoIterator<Item = Span>) -> Self {
        let returned = joined(self.returned.iter().copied().chain(spans));
        let cursor = Self { returned, ..self.clone() };
        let is_taken = |span: &Span| span.end <= cursor.position;
        assert!(cursor.returned.iter().all(is_taken) && are_disjoint(&cursor.returned), "taken once before");
        cursor
    }

    /// Samples taken and not returned, over all epochs of `sample_count` each.
    #[must_use]
    pub fn taken(&self, sample_count: u64) -> u64 {
        let untrained: u64 = self.returned.iter().chain(&self.deferred).map(Span::len).sum();
        let taken = self.epoch.saturating_mul(sample_count).saturating_add(self.position);
        taken.saturating_sub(untrained)
    }

    /// The number of steps from here to the end of `epochs` epochs. Ranges that were returned in the middle of an epoch add steps.
    #[must_use]
    pub fn steps_left(&self, epochs: u64, batch_size: u64, sample_count: u64) -> u64 {
        if self.epoch >= epochs || self.ending == Ending::Over {
            return 0;
        }
        if self.ending == Ending::NextBatch {
            return 1;
        }
        let of_this = (self.epoch + 1).saturating_mul(sample_count).saturating_sub(self.taken(sample_count));
        let of_each = sample_count.div_ceil(batch_size.max(1));
        of_this.div_ceil(batch_size.max(1)).saturating_add((epochs - self.epoch - 1).saturating_mul(of_each))
    }

    /// The cursor of part number `part` of `parts` that train without each other: each starts at another place of what is left of
    /// the epoch, and defers what lies before that.
    #[must_use]
    pub fn for_partition(&self, part: u64, parts: u64, sample_count: u64) -> Self {
        let rest = sample_count.saturating_sub(self.position);
        let place = self.position + (u128::from(rest) * u128::from(part) / u128::from(parts.max(1))) as u64;
        let skipped = Span { start: self.position, end: place.min(sample_count) };
        let deferred = joined(self.deferred.iter().copied().chain([skipped]));
        let cursor = Self { position: skipped.end.max(self.position), deferred, ..self.clone() };
        if cursor.is_valid() { cursor } else { self.clone() }
    }

    /// The cursor after which a sample counts as trained if it does in either of two. A sample that both have trained was trained
    /// twice.
    #[must_use]
    pub fn union(&self, other: &Self, sample_count: u64) -> Self {
        // A run that one of them has ended trains one more batch together.
        let ending = self.ending.max(other.ending).min(Ending::NextBatch);
        Self { ending, ..self.union_of_samples(other, sample_count) }
    }

    fn union_of_samples(&self, other: &Self, sample_count: u64) -> Self {
        // The one in a later epoch has trained all earlier epochs.
        match self.epoch.cmp(&other.epoch) {
            Ordering::Greater => return self.clone(),
            Ordering::Less => return other.clone(),
            Ordering::Equal => {}
        }
        let theirs = other.untrained(sample_count);
        let common = |spans: &[Span]| joined(spans.iter().flat_map(|span| span.common_with(&theirs)));
        let ahead = common(&[Span { start: self.position, end: sample_count }]);
        // Ranges ahead of the position that do not reach the end come before the deferred ones.
        let position =
            ahead.last().filter(|last| last.end == sample_count).map_or(sample_count, |last| last.start);
        let between = ahead.iter().copied().filter(|span| span.end <= position);
        let returned = joined(common(&self.returned).into_iter().chain(between));
        let deferred = common(&self.deferred);
        let union = Self { epoch: self.epoch, position, returned, deferred, ending: self.ending };
        // With too many holes, the samples of the other one are trained again.
        if union.is_valid() { union } else { self.clone() }
    }

    /// The untrained ranges of the epoch, in order and disjoint.
    fn untrained(&self, sample_count: u64) -> Vec<Span> {
        let ahead = Span { start: self.position.min(sample_count), end: sample_count };
        joined(self.returned.iter().chain(&self.deferred).copied().chain([ahead]))
    }

    /// The next batch of at most `batch_size` samples out of `sample_count`, and the cursor after it.
    ///
    /// # Panics
    /// If there is nothing to train on or a batch would be empty: a specification is checked for both.
    #[must_use]
    pub fn next_batch(&self, batch_size: u64, sample_count: u64) -> (Batch, Self) {
        assert!(batch_size > 0 && sample_count > 0, "a batch has samples");
        let mut cursor = self.clone();
        if cursor.position >= sample_count && cursor.returned.is_empty() && cursor.deferred.is_empty() {
            cursor = Self { epoch: self.epoch + 1, ending: self.ending, ..Self::default() };
        }
        match self.ending {
            Ending::None => {}
            Ending::NextBatch => cursor.ending = Ending::Over,
            Ending::Over => return (Batch { epoch: self.epoch, spans: vec![] }, self.clone()),
        }
        let wanted = batch_size.min(sample_count);
        let mut spans = take_from(&mut cursor.returned, wanted);
        let wanted = wanted - spans.iter().map(Span::len).sum::<u64>();
        let end = sample_count.min(cursor.position + wanted).max(cursor.position);
        let ahead = Span { start: cursor.position, end };
        cursor.position = end;
        let last = take_from(&mut cursor.deferred, wanted - ahead.len());
        spans.extend(Some(ahead).filter(|ahead| !ahead.is_empty()).into_iter().chain(last));
        (Batch { epoch: cursor.epoch, spans }, cursor)
    }
}

/// Takes `wanted` positions from the start of a list, or all if there are fewer.
fn take_from(list: &mut Vec<Span>, mut wanted: u64) -> Vec<Span> {
    let mut taken = Vec::new();
    while wanted > 0
        && let Some(span) = list.first_mut()
    {
        let end = span.end.min(span.start + wanted);
        taken.push(Span { start: span.start, end });
        wanted -= end - span.start;
        span.start = end;
        if span.is_empty() {
            list.remove(0);
        }
    }
    taken
}

/// The ranges in order, with adjacent ones joined, so that lists stay short.
fn joined(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut spans: Vec<Span> = spans.into_iter().filter(|span| !span.is_empty()).collect();
    spans.sort_unstable_by_key(|span| span.start);
    let mut joined: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => joined.push(span),
        }
    }
    joined
}

/// Whether ranges that are sorted by their starts have no position in common.
#[must_use]
pub fn are_disjoint(spans: &[Span]) -> bool {
    spans.is_sorted_by(|a, b| a.end <= b.start)
}

/// The order in which one epoch visits the samples: `order[position]` is a sample's index.
///
/// A Fisher-Yates shuffle by a ChaCha8 stream keyed by (seed, epoch), the same on every machine.
#[must_use]
pub fn permutation(seed: u64, epoch: u64, sample_count: u32) -> Vec<u32> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..27].copy_from_slice(b"permutation");
    let mut generator = ChaCha8Rng::from_seed(key);
    let mut order: Vec<u32> = (0..sample_count).collect();
    for last in (1..order.len()).rev() {
        // Multiply and shift: biased by less than 2^-32, and without a loop whose length depends on luck.
        let draw = (u128::from(generator.next_u64()) * (last as u128 + 1)) >> 64;
        order.swap(last, draw as usize);
    }
    order
}

/// A number in which each bit depends on all bits of `number`: the output function of `SplitMix64` (Steele et al., 2014).
pub fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_permutation_is_pinned() {
        assert_eq!(permutation(7, 0, 10), permutation(7, 0, 10));
        assert_ne!(permutation(7, 0, 10), permutation(7, 1, 10));
        let mut sorted = permutation(1, 2, 1000);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn returned_samples_are_assigned_first() {
        let cursor = DataCursor {
            epoch: 3,
            position: 10,
            returned: vec![Span { start: 2, end: 4 }],
            ..DataCursor::default()
        };
        let (batch, after) = cursor.next_batch(5, 12);
        assert_eq!(batch.spans, [Span { start: 2, end: 4 }, Span { start: 10, end: 12 }]);
        assert_eq!(after, DataCursor { epoch: 3, position: 12, ..DataCursor::default() });
        assert_eq!(after.next_batch(5, 12).0, Batch { epoch: 4, spans: vec![Span { start: 0, end: 5 }] });
    }

    #[test]
    fn a_run_that_is_ended_has_one_more_batch() {
        let cursor =
            DataCursor { epoch: 3, position: 10, ending: Ending::NextBatch, ..DataCursor::default() };
        let (last, after) = cursor.next_batch(5, 12);
        assert_eq!((last.len(), cursor.steps_left(9, 5, 12)), (2, 1));
        assert_eq!((after.ending, after.taken(12), after.steps_left(9, 5, 12)), (Ending::Over, 48, 0));
        assert_eq!(after.next_batch(5, 12), (Batch { epoch: 3, spans: vec![] }, after.clone()));
        let whole = DataCursor { epoch: 3, position: 12, ending: Ending::NextBatch, ..DataCursor::default() };
        assert_eq!(whole.next_batch(5, 12).1.ending, Ending::Over, "the last batch may be of the next epoch");
        let other = DataCursor { epoch: 3, position: 5, ..DataCursor::default() };
        assert_eq!(
            other.union(&after, 12).ending,
            Ending::NextBatch,
            "both branches train once more together"
        );
    }

    #[test]
    fn an_unlimited_batch_takes_the_rest_of_the_epoch() {
        let cursor = DataCursor {
            epoch: 0,
            position: 10,
            returned: vec![Span { start: 2, end: 4 }],
            ..DataCursor::default()
        };
        assert_eq!(cursor.next_batch(u64::MAX, 12).0.len(), 4);
    }

    #[test]
    fn returned_spans_are_joined_and_counted() {
        let cursor = DataCursor {
            epoch: 1,
            position: 10,
            returned: vec![Span { start: 2, end: 4 }],
            ..DataCursor::default()
        };
        let empty = Span { start: 7, end: 7 };
        let after = cursor.return_spans([Span { start: 6, end: 8 }, empty, Span { start: 4, end: 5 }]);
        assert_eq!(after.returned, [Span { start: 2, end: 5 }, Span { start: 6, end: 8 }]);
        assert_eq!((cursor.taken(100), after.taken(100)), (108, 105));
    }

    #[test]
    fn impossible_cursors_are_invalid() {
        let cursor = |position, spans: &[(u64, u64)]| {
            let returned = spans.iter().map(|&(start, end)| Span { start, end }).collect();
            DataCursor { position, returned, ..DataCursor::default() }
        };
        assert!(cursor(10, &[(1, 2), (2, 3), (5, 10)]).is_valid());
        for spans in
            [&[(9, 3)][..], &[(3, 3)], &[(5, 11)], &[(4, 6), (1, 2)], &[(1, 5), (4, 6)], &[(0, u64::MAX)]]
        {
            assert!(!cursor(10, spans).is_valid(), "{spans:?}");
        }
        assert!(!cursor(u64::MAX, &[]).is_valid());
        let both = |deferred| DataCursor { deferred: vec![deferred], ..cursor(10, &[(4, 6)]) };
        assert!(both(Span { start: 1, end: 4 }).is_valid());
        assert!(!both(Span { start: 5, end: 8 }).is_valid() && !both(Span { start: 8, end: 11 }).is_valid());
        assert!(!DataCursor { epoch: u64::MAX, ..DataCursor::default() }.is_valid());
    }

    /// By position: how often it is assigned in what is left of the epoch.
    fn rest_of(cursor: &DataCursor, sample_count: u64) -> Vec<usize> {
        let mut seen = vec![0; sample_count as usize];
        let mut cursor = cursor.clone();
        loop {
            let (batch, after) = cursor.next_batch(3, sample_count);
            if batch.epoch > cursor.epoch {
                return seen;
            }
            for span in batch.spans {
                (span.start..span.end).for_each(|position| seen[position as usize] += 1);
            }
            assert!(after.is_valid(), "{after:?}");
            cursor = after;
        }
    }

    #[test]
    fn parts_of_a_partition_start_at_different_places_and_train_all_samples() {
        let cursor =
            DataCursor { position: 10, returned: vec![Span { start: 2, end: 4 }], ..DataCursor::default() };
        assert_eq!(cursor.for_partition(0, 5, 30), cursor);
        let other = cursor.for_partition(3, 5, 30);
        assert_eq!((other.position, &other.deferred[..]), (22, &[Span { start: 10, end: 22 }][..]));
        assert_eq!(other.taken(30), cursor.taken(30));
        let (batch, after) = other.next_batch(11, 30);
        assert_eq!(batch.spans, [(2, 4), (22, 30), (10, 11)].map(|(start, end)| Span { start, end }));
        // Once more, and at the end of an epoch.
        assert_eq!(after.for_partition(1, 2, 30), after);
        assert_eq!(rest_of(&other, 30), rest_of(&cursor, 30));
    }

    #[test]
    fn over_many_batches_each_member_has_its_proportion() {
        let weights = [1000, 3000, 40, 5960];
        // One batch is an epoch, two are, and many are.
        for sample_count in [64, 128, 1_000_000] {
            let mut cursor = DataCursor::default();
            let mut counts = [0_u64; 4];
            for _ in 0..1000 {
                let (batch, after) = cursor.next_batch(64, sample_count);
                let parts: Vec<u64> =
                    (0..4).map(|index| batch.part(index, &weights, 1).iter().map(Span::len).sum()).collect();
                assert_eq!(parts.iter().sum::<u64>(), 64);
                for (index, part) in parts.iter().enumerate() {
                    assert!((*part * 10_000).abs_diff(64 * u64::from(weights[index])) < 10_000, "{parts:?}");
                    counts[index] += part;
                }
                cursor = after;
            }
            for (count, weight) in counts.iter().zip(weights) {
                assert!(count.abs_diff(64_000 * u64::from(weight) / 10_000) < 60, "{counts:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_union_of_two_cursors_covers_the_samples_of_both(
            sample_count in 1_u64..200,
            batches in prop::collection::vec(1_u64..20, 1..12),
            forked_at in 0_usize..12,
            parts in 1_u64..6,
            part in 0_u64..6,
        ) {
            let train = |cursor: &DataCursor, batches: &[u64]| {
                batches.iter().fold(cursor.clone(), |cursor, size| cursor.next_batch(*size, sample_count).1)
            };
            let forked_at = forked_at.min(batches.len());
            let common = train(&DataCursor::default(), &batches[..forked_at]);
            let one = train(&common.for_partition(0, parts, sample_count), &batches[forked_at..]);
            let other = train(&common.for_partition(part.min(parts - 1), parts, sample_count), &batches[forked_at..]);
            let union = one.union(&other, sample_count);
            prop_assert!(union.is_valid());
            prop_assert_eq!(union.epoch, one.epoch.max(other.epoch));
            if one.epoch == other.epoch {
                let due = rest_of(&one, sample_count).into_iter().zip(rest_of(&other, sample_count));
                let due: Vec<usize> = due.map(|(one, other)| one.min(other)).collect();
                prop_assert_eq!(rest_of(&union, sample_count), due);
            }
            prop_assert!(union.taken(sample_count) >= one.taken(sample_count).max(other.taken(sample_count)));
        }

        #[test]
        fn the_predicted_number_of_remaining_steps_is_exact(
            sample_count in 1_u64..100,
            batch_size in 1_u64..40,
            taken_before in 0_usize..10,
            parts in 1_u64..4,
            epochs in 1_u64..4,
        ) {
            let mut cursor = DataCursor::default();
            for _ in 0..taken_before {
                let (batch, after) = cursor.next_batch(batch_size, sample_count);
                // A member is lost now and then, with half of the batch.
                let lost = batch.spans.last().filter(|span| span.start % 3 == 0).copied();
                cursor = after.return_spans(lost).for_partition(parts - 1, parts, sample_count);
            }
            let left = cursor.steps_left(epochs, batch_size, sample_count);
            let mut steps = 0;
            loop {
                let (batch, after) = cursor.next_batch(batch_size, sample_count);
                if batch.epoch >= epochs {
                    break;
                }
                steps += 1;
                cursor = after;
            }
            prop_assert_eq!(left, steps);
        }

        #[test]
        fn blocks_stay_together(
            batch_size in 1_u64..200,
            block in 1_u64..40,
            weights in prop::collection::vec(0_u32..5, 1..6),
        ) {
            prop_assume!(weights.iter().any(|&w| w > 0));
            let cursor = DataCursor { position: 30, returned: vec![Span { start: 3, end: 8 }], ..DataCursor::default() };
            let (batch, _) = cursor.next_batch(batch_size, 1000);
            let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
            let mut passed = 0;
            for (index, &weight) in weights.iter().enumerate() {
                prop_assert!(passed % block == 0 || passed == batch.len(), "{passed}");
                let count: u64 = batch.part(index, &weights, block).iter().map(Span::len).sum();
                prop_assert!((count * total).abs_diff(batch.len() * u64::from(weight)) < 2 * block * total);
                passed += count;
            }
            prop_assert_eq!(passed, batch.len());
        }

        #[test]
        fn an_epoch_assigns_each_sample_once(
            sample_count in 1_u64..500,
            batch_size in 1_u64..100,
            weights in prop::collection::vec(0_u32..5, 1..6),
        ) {
            prop_assume!(weights.iter().any(|&w| w > 0));
            let mut cursor = DataCursor::default();
            let mut seen = vec![0; sample_count as usize];
            loop {
                let (batch, after) = cursor.next_batch(batch_size, sample_count);
                if batch.epoch > 0 {
                    break;
                }
                for index in 0..weights.len() {
                    for span in batch.part(index, &weights, 1) {
                        (span.start..span.end).for_each(|position| seen[position as usize] += 1);
                    }
                }
                cursor = after;
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }
    }
}
