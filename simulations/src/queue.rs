//! The queue of what happens next, ordered by (time, sequence): total and stable, so that a run has one order of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use peergrad_protocol::Instant;

/// Events in the order in which they happen.
pub struct Queue<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    sequence: u64,
}

struct Entry<T> {
    at: Instant,
    sequence: u64,
    event: T,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds `event`, to happen at `at`; events of one instant happen in the order in which they were added.
    pub fn push(&mut self, at: Instant, event: T) {
        self.heap.push(Reverse(Entry { at, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<T> Entry<T> {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.sequence)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
