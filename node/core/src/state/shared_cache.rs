//! The cache: what all members of a view compute alike, computed once in a process.
//!
//! Who owns what, and the order of the samples in an epoch, are pure functions of what every member holds. A peer of its
//! own has its own cache and notices nothing. A thousand peers in one process share one, like colleagues who look at the
//! same wall calendar instead of each drawing up their own.
//!
//! # Invariants
//! - A cache changes what an answer costs, never what it is.
//! - It keeps the few newest answers of each kind; members that still use an older one keep it alive themselves.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::message::Message;
use peergrad_protocol::view::{InvalidView, View, ViewChange};
use peergrad_protocol::wire::{WireError, encode_record};
use peergrad_protocol::{Frame, PeerId, StepNumber, ViewDigest};

use crate::program::loader::TrainingConfig;
use crate::state::assignment::BatchAssignment;
use crate::state::shard_map::{ShardMap, ShardingConfig, StepShards};

/// Shared by the nodes of one process: its clones are one cache.
#[derive(Clone, Default)]
pub struct SharedCache {
    messages: Recent<Vec<u8>, Result<Message, WireError>>,
    views: Recent<ViewChange, Result<(Arc<View>, ViewDigest), InvalidView>>,
    records: Recent<ViewDigest, Arc<[u8]>>,
    differences: Recent<(ViewDigest, ViewDigest), ViewDifference>,
    assignments: Recent<(ViewDigest, StepNumber, DataCursor, u64, u64), BatchAssignment>,
    shard_maps: Recent<(ViewDigest, ShardingConfig), ShardMap>,
    shards: Recent<(ViewDigest, ShardingConfig, usize), StepShards>,
    orders: Recent<(u64, u64, u32), Vec<u32>>,
}

/// What is another way among the members of two views, each in one incarnation.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ViewDifference {
    /// Members of the later one only.
    pub(crate) joined: Vec<PeerId>,
    /// Members of the earlier one only.
    pub(crate) left: Vec<PeerId>,
    /// Members of both, who owned parameters and are not to any more.
    pub(crate) retiring: Vec<PeerId>,
}

impl SharedCache {
    /// The message in a frame. A long one mostly goes to all members, and is read once.
    ///
    /// # Errors
    /// The bytes are no frame.
    pub fn message(&self, frame: &Frame) -> Result<Message, WireError> {
        if frame.head.len() < LONG_BYTES || frame.payload.is_some() {
            return frame.decode();
        }
        let is_it = |known: &Vec<u8>| *known == frame.head;
        let message = self.messages.find_or_compute_by(is_it, || frame.head.clone(), || frame.decode());
        Result::clone(&message)
    }

    /// The view that follows `view`, whose digest is `digest`, by `change`; and its digest.
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

    /// The bytes of `view`, whose digest is `digest`, in a record.
    pub(crate) fn view_bytes(&self, view: &View, digest: ViewDigest) -> Arc<[u8]> {
        Arc::clone(&self.records.find_or_compute(digest, || encode_record(view).into()))
    }

    /// Who is in one of two views only, each given with its digest.
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
        let retiring = || after.members.iter().filter(is_retiring).map(|member| member.peer).collect();
        self.differences.find_or_compute((before_digest, after_digest), || ViewDifference {
            joined: missing_in(after, before),
            left: missing_in(before, after),
            retiring: retiring(),
        })
    }

    /// As [`BatchAssignment::following`], in `view`, whose digest is `digest`.
    pub(crate) fn assignment(
        &self,
        before: &BatchAssignment,
        (batch_size, sample_count): (u64, u64),
        (view, digest): (&View, ViewDigest),
        step: StepNumber,
    ) -> Arc<BatchAssignment> {
        let is_it = |(of, at, after, batch, samples): &(ViewDigest, StepNumber, DataCursor, u64, u64)| {
            (*of, *at, *batch, *samples) == (digest, step, batch_size, sample_count) && *after == before.after
        };
        let key = || (digest, step, before.after.clone(), batch_size, sample_count);
        let deal = || BatchAssignment::following(before, batch_size, sample_count, view, step);
        self.assignments.find_or_compute_by(is_it, key, deal)
    }

    /// What follows from `view`, whose digest is `digest`.
    pub(crate) fn shard_map(
        &self,
        view: &Arc<View>,
        digest: ViewDigest,
        sharding: ShardingConfig,
    ) -> Arc<ShardMap> {
        self.shard_maps
            .find_or_compute((digest, sharding), || ShardMap::new(Arc::clone(view), digest, sharding))
    }

    /// Who keeps what under `shard_map` once so many chunks have moved.
    pub(crate) fn shards(&self, shard_map: &ShardMap, moved: usize) -> Arc<StepShards> {
        self.shards.find_or_compute((shard_map.digest, shard_map.sharding, moved), || shard_map.shards(moved))
    }

    /// The order of samples in `epoch`.
    pub(crate) fn order(&self, config: &TrainingConfig, epoch: u64, sample_count: u32) -> Arc<Vec<u32>> {
        // Nodes with one cache are of one run.
        self.orders.find_or_compute((config.seed, epoch, sample_count), || config.order(epoch, sample_count))
    }
}

/// Whether two changes have the same bytes: equal numbers may have different ones.
fn are_same(one: &ViewChange, other: &ViewChange) -> bool {
    let bits =
        |change: &ViewChange| change.resume.forward.as_ref().map(|forward| forward.stats.loss.to_bits());
    one == other && bits(one) == bits(other)
}

/// The newest answers to one kind of question.
struct Recent<K, V>(Arc<Mutex<Answers<K, V>>>);

type Answers<K, V> = VecDeque<(K, Arc<V>)>;

impl<K: PartialEq + Clone, V> Recent<K, V> {
    /// Others that ask the same meanwhile wait: that is the point.
    fn find_or_compute(&self, key: K, compute: impl FnOnce() -> V) -> Arc<V> {
        self.find_or_compute_by(|known| *known == key, || key.clone(), compute)
    }

    /// As [`Recent::find_or_compute`], where the key is only made for what is not known.
    fn find_or_compute_by(
        &self,
        is_it: impl Fn(&K) -> bool,
        key: impl FnOnce() -> K,
        compute: impl FnOnce() -> V,
    ) -> Arc<V> {
        // A panic while computing has added nothing.
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

/// Answers of one kind that are kept: enough for the few views, and the two epochs, that peers can be in at a time.
const ANSWERS_KEPT_MAX: usize = 4;
/// Reading a shorter message takes no longer than finding it.
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
