//! The event queue, ordered by (time, sequence number). The order is total and stable, so a run has one order of events.
//!
//! Only small keys are sorted: the events themselves stay in place until they are taken.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use peergrad_protocol::Instant;

/// Events in the order in which they happen.
pub struct Queue<T> {
    /// For each event its time, its sequence number, and its index.
    heap: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    events: Vec<Option<T>>,
    /// Indices without an event.
    free: Vec<u32>,
    sequence: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), sequence: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds `event`, to happen at `at`; events with equal times happen in the order in which they were added.
    pub fn push(&mut self, at: Instant, event: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            u32::try_from(self.events.len() - 1).expect("fewer events than fill the memory")
        });
        self.events[slot as usize] = Some(event);
        self.heap.push(Reverse((at, self.sequence, slot)));
        self.sequence += 1;
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        self.events[slot as usize].take().map(|event| (at, event))
    }
}
