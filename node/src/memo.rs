//! The memo: what all members of a view compute alike, computed once in a process.
//!
//! Who owns what, and the order of the samples in a pass, are pure functions of what every member holds. A peer of its
//! own has its own memo and notices nothing. A thousand peers in one process share one, like colleagues who look at the
//! same wall calendar instead of each drawing up their own.
//!
//! # Invariants
//! - A memo changes what an answer costs, never what it is.
//! - It keeps the few newest answers of each kind; members that still use an older one keep it alive themselves.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use peergrad_protocol::ViewDigest;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::ledger::permutation;
use peergrad_protocol::view::{InvalidView, Succession, View};
use peergrad_protocol::wire::encode_record;

use crate::geometry::{Cut, Geometry, Shards};

/// Shared by the nodes of one process: its clones are one memo.
#[derive(Clone, Default)]
pub struct Memo {
    views: Recent<ContentDigest, Result<(Arc<View>, ViewDigest), InvalidView>>,
    geometries: Recent<(ViewDigest, Cut), Geometry>,
    shards: Recent<(ViewDigest, Cut, usize), Shards>,
    orders: Recent<(u64, u64, u32), Vec<u32>>,
}

impl Memo {
    /// The view that follows `view`, whose digest is `digest`, by `change`; and its digest.
    pub(crate) fn succeed(
        &self,
        view: &View,
        digest: ViewDigest,
        change: &Succession,
    ) -> Result<(Arc<View>, ViewDigest), InvalidView> {
        // The change names the view that it follows.
        let key = ContentDigest::of(&encode_record(change));
        let next = self.views.recall(key, || {
            let next = view.succeed(digest, change)?;
            let digest = next.digest();
            Ok((Arc::new(next), digest))
        });
        Result::clone(&next)
    }

    /// What follows from `view`, whose digest is `digest`.
    pub(crate) fn geometry(&self, view: &Arc<View>, digest: ViewDigest, cut: Cut) -> Arc<Geometry> {
        self.geometries.recall((digest, cut), || Geometry::new(Arc::clone(view), digest, cut))
    }

    /// Who keeps what under `geometry` once so many chunks have moved.
    pub(crate) fn shards(&self, geometry: &Geometry, moved: usize) -> Arc<Shards> {
        self.shards.recall((geometry.digest, geometry.cut, moved), || geometry.shards(moved))
    }

    /// The order of samples in `pass`.
    pub(crate) fn order(&self, seed: u64, pass: u64, sample_count: u32) -> Arc<Vec<u32>> {
        self.orders.recall((seed, pass, sample_count), || permutation(seed, pass, sample_count))
    }
}

/// The newest answers to one kind of question.
struct Recent<K, V>(Arc<Mutex<Answers<K, V>>>);

type Answers<K, V> = VecDeque<(K, Arc<V>)>;

impl<K: PartialEq, V> Recent<K, V> {
    /// Others that ask the same meanwhile wait: that is the point.
    fn recall(&self, key: K, compute: impl FnOnce() -> V) -> Arc<V> {
        // A panic while computing has added nothing.
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = answers.iter().find(|(known, _)| *known == key) {
            return Arc::clone(known);
        }
        let answer = Arc::new(compute());
        answers.truncate(ANSWERS_KEPT_MAX - 1);
        answers.push_front((key, Arc::clone(&answer)));
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

/// Answers of one kind that are kept: enough for the few views, and the two passes, that peers can be in at a time.
const ANSWERS_KEPT_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_computed_once_and_the_oldest_are_forgotten() {
        let memo = Memo::default();
        let first = memo.order(7, 0, 10);
        assert!(Arc::ptr_eq(&first, &memo.clone().order(7, 0, 10)));
        assert_eq!(*first, permutation(7, 0, 10));
        for pass in 1..=ANSWERS_KEPT_MAX as u64 {
            assert_eq!(*memo.order(7, pass, 10), permutation(7, pass, 10));
        }
        assert!(!Arc::ptr_eq(&first, &memo.order(7, 0, 10)));
    }
}
