//! The shared cache: what all members of a view compute alike, computed once in a process.
//!
//! The placement of chunks and the order of an epoch's samples are pure functions of values that every member has. A peer that is alone in
//! its process has its own cache. A thousand peers in one process share one, like colleagues who look at the same wall calendar instead of
//! each drawing up their own.
//!
//! # Invariants
//! - A cache changes the cost of an answer, never the answer.
//! - It keeps the few newest answers of each kind. A member that still uses an older one keeps that alive itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::message::Message;
use peergrad_protocol::view::{InvalidView, View, ViewChange};
use peergrad_protocol::wire::{WireError, encode_record};
use peergrad_protocol::{Frame, PeerId, StepNumber, ViewDigest};

use crate::program::loader::TrainingConfig;
use crate::state::assignment::BatchAssignment;
use crate::state::round_size::RoundSize;
use crate::state::shard_map::{ShardMap, ShardingConfig, StepShards};

/// A handle to the cache of one process: its clones share one cache.
#[derive(Clone, Default)]
pub struct SharedCache {
    /// Decoded messages, by their bytes.
    messages: Recent<Vec<u8>, Result<Message, WireError>>,
    /// The views that changes lead to, with their digests.
    views: Recent<ViewChange, Result<(Arc<View>, ViewDigest), InvalidView>>,
    /// Encoded views, by digest.
    records: Recent<ViewDigest, Arc<[u8]>>,
    /// Which members joined and left, by the digests of two views.
    differences: Recent<(ViewDigest, ViewDigest), ViewDifference>,
    /// Batch assignments, by view, step, data cursor before it, and two sizes: of the batch, and of the data set.
    assignments: Recent<(ViewDigest, StepNumber, DataCursor, RoundSize, u64), BatchAssignment>,
    /// Shard maps, by view and sharding.
    shard_maps: Recent<(ViewDigest, ShardingConfig), ShardMap>,
    /// The shards of one step, by view, sharding, and how many chunks have moved.
    shards: Recent<(ViewDigest, ShardingConfig, usize), StepShards>,
    /// Permutations of the samples, by seed, epoch, and number of samples.
    orders: Recent<(u64, u64, u32), Vec<u32>>,
}

/// The differences between the members of two views. A member in another incarnation counts as another member.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ViewDifference {
    /// Members of the later view only.
    pub(crate) joined: Vec<PeerId>,
    /// Members of the earlier view only.
    pub(crate) left: Vec<PeerId>,
    /// Members of both views that owned parameters and no longer do.
    pub(crate) retiring: Vec<PeerId>,
    /// Whether batches are divided by speed in one of the views, and otherwise in the other one.
    pub(crate) has_other_parts: bool,
    /// Whether a member that stays has another capacity, and does not only hand over what it owns.
    pub(crate) has_other_capacities: bool,
}

impl SharedCache {
    /// The message in a frame. A long message mostly goes to all members, and is decoded once.
    ///
    /// # Errors
    /// The bytes are not a frame.
    pub fn message(&self, frame: &Frame) -> Result<Message, WireError> {
        if frame.head.len() < LONG_BYTES || frame.payload.is_some() {
            return frame.decode();
        }
        let is_it = |known: &Vec<u8>| *known == frame.head;
        let message = self.messages.find_or_compute_by(is_it, || frame.head.clone(), || frame.decode());
        Result::clone(&message)
    }

    /// The view that follows `view`, whose digest is `digest`, by `change`; and the new view's digest.
    pub(crate) fn apply(
        &self,
        view: &View,
        digest: ViewDigest,
        change: &ViewChange,
    ) -> Result<(Arc<View>, ViewDigest), InvalidView> {
        let apply = || {
            let next = view.apply(digest, change)?;
            let digest = next.digest();
            Ok((Arc::new(next), digest))
        };
        // The change names the view that it follows.
        let next = self.views.find_or_compute_by(|known| are_same(known, change), || change.clone(), apply);
        Result::clone(&next)
    }

    /// The encoded record of `view`, whose digest is `digest`.
    pub(crate) fn view_bytes(&self, view: &View, digest: ViewDigest) -> Arc<[u8]> {
        Arc::clone(&self.records.find_or_compute(digest, || encode_record(view).into()))
    }

    /// The differences between two views, each given with its digest.
    pub(crate) fn difference(
        &self,
        (before, before_digest): (&View, ViewDigest),
        (after, after_digest): (&View, ViewDigest),
    ) -> Arc<ViewDifference> {
        let missing_in = |of: &View, other: &View| {
            let is_missing = |member: &&peergrad_protocol::view::Member| {
                other
                    .rank(&member.peer)
                    .is_none_or(|rank| other.member(rank).incarnation != member.incarnation)
            };
            of.members.iter().filter(is_missing).map(|member| member.peer).collect()
        };
        let is_retiring = |member: &&peergrad_protocol::view::Member| {
            let had_capacity = |rank| before.member(rank).capacity > 0;
            member.capacity == 0 && before.rank(&member.peer).is_some_and(had_capacity)
        };
        let has_other_capacity = |member: &peergrad_protocol::view::Member| {
            let is_other = |rank| before.member(rank).capacity != member.capacity;
            member.capacity > 0 && before.rank(&member.peer).is_some_and(is_other)
        };
        let retiring = || after.members.iter().filter(is_retiring).map(|member| member.peer).collect();
        self.differences.find_or_compute((before_digest, after_digest), || ViewDifference {
            joined: missing_in(after, before),
            left: missing_in(before, after),
            retiring: retiring(),
            has_other_capacities: after.members.iter().any(has_other_capacity),
            has_other_parts: before.speeds != after.speeds
                || (!after.speeds.is_empty() && before.members.len() != after.members.len()),
        })
    }

    /// As [`BatchAssignment::following`], in `view`, whose digest is `digest`.
    pub(crate) fn assignment(
        &self,
        before: &BatchAssignment,
        (round_size, sample_count): (RoundSize, u64),
        (view, digest): (&View, ViewDigest),
        step: StepNumber,
    ) -> Arc<BatchAssignment> {
        let is_it =
            |(of, at, after, batch, samples): &(ViewDigest, StepNumber, DataCursor, RoundSize, u64)| {
                (*of, *at, *batch, *samples) == (digest, step, round_size, sample_count)
                    && *after == before.after
            };
        let key = || (digest, step, before.after.clone(), round_size, sample_count);
        let compute = || BatchAssignment::following(before, round_size, sample_count, view, step);
        self.assignments.find_or_compute_by(is_it, key, compute)
    }

    /// The shard map of `view`, whose digest is `digest`.
    pub(crate) fn shard_map(
        &self,
        view: &Arc<View>,
        digest: ViewDigest,
        sharding: ShardingConfig,
    ) -> Arc<ShardMap> {
        self.shard_maps
            .find_or_compute((digest, sharding), || ShardMap::new(Arc::clone(view), digest, sharding))
    }

    /// The shards of `shard_map` after `moved` of its moves.
    pub(crate) fn shards(&self, shard_map: &ShardMap, moved: usize) -> Arc<StepShards> {
        self.shards.find_or_compute((shard_map.digest, shard_map.sharding, moved), || shard_map.shards(moved))
    }

    /// The order of samples in `epoch`.
    pub(crate) fn order(&self, config: &TrainingConfig, epoch: u64, sample_count: u32) -> Arc<Vec<u32>> {
        // All nodes that share a cache are of one run.
        self.orders.find_or_compute((config.seed, epoch, sample_count), || config.order(epoch, sample_count))
    }
}

/// Whether two changes have the same bytes. Equal numbers may have different bytes.
fn are_same(one: &ViewChange, other: &ViewChange) -> bool {
    let bits =
        |change: &ViewChange| change.resume.forward.as_ref().map(|forward| forward.stats.loss.to_bits());
    one == other && bits(one) == bits(other)
}

/// The newest answers of one kind.
struct Recent<K, V>(Arc<Mutex<Answers<K, V>>>);

type Answers<K, V> = VecDeque<(K, Arc<V>)>;

impl<K: PartialEq + Clone, V> Recent<K, V> {
    /// Returns the answer for `key`, computed if necessary. Others that ask for the same meanwhile wait, so that it is computed once.
    fn find_or_compute(&self, key: K, compute: impl FnOnce() -> V) -> Arc<V> {
        self.find_or_compute_by(|known| *known == key, || key.clone(), compute)
    }

    /// As [`Recent::find_or_compute`], but the key is only created if the answer is not in the cache.
    fn find_or_compute_by(
        &self,
        is_it: impl Fn(&K) -> bool,
        key: impl FnOnce() -> K,
        compute: impl FnOnce() -> V,
    ) -> Arc<V> {
        // A panic during the computation has added nothing.
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = answers.iter().find(|(known, _)| is_it(known)) {
            return Arc::clone(known);
        }
        let answer = Arc::new(compute());
        answers.truncate(ANSWERS_KEPT_MAX - 1);
        answers.push_front((key(), Arc::clone(&answer)));
        answer
    }
}

impl<K, V> Clone for Recent<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// How many answers of one kind are kept: enough for the few views, and the two epochs, that peers can be in at a time.
const ANSWERS_KEPT_MAX: usize = 4;
/// A shorter message is decoded as fast as it is found.
const LONG_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use peergrad_protocol::cursor::permutation;

    use super::*;

    #[test]
    fn an_answer_is_computed_once_and_the_oldest_are_forgotten() {
        let cache = SharedCache::default();
        let config = crate::fixtures::training();
        let first = cache.order(&config, 0, 10);
        assert!(Arc::ptr_eq(&first, &cache.clone().order(&config, 0, 10)));
        assert_eq!(*first, permutation(config.seed, 0, 10));
        for epoch in 1..=ANSWERS_KEPT_MAX as u64 {
            assert_eq!(*cache.order(&config, epoch, 10), permutation(config.seed, epoch, 10));
        }
        assert!(!Arc::ptr_eq(&first, &cache.order(&config, 0, 10)));
    }
}
