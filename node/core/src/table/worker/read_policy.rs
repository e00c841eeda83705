//! Read policies: when a worker may read.

use std::collections::BTreeMap;

use peergrad_protocol::limits::PER_CLOCK_STALENESS_MAX;
use peergrad_protocol::table::WorkerClock;

/// When a worker may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPolicy {
    /// Once all other workers are at most this many clocks behind.
    Staleness(u64),
    /// Always.
    Unbounded,
}

impl ReadPolicy {
    /// How far all workers must have come before a worker that has come to `clock` may read. A worker that has ended reads once all workers
    /// have ended.
    #[must_use]
    pub fn required_clock(self, clock: WorkerClock) -> WorkerClock {
        match (self, clock) {
            (Self::Staleness(bound), WorkerClock::At(clock)) => WorkerClock::At(clock.saturating_sub(bound)),
            (Self::Staleness(_), WorkerClock::Ended) => WorkerClock::Ended,
            (Self::Unbounded, _) => WorkerClock::At(0),
        }
    }
}

/// The read policy of each clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSchedule {
    /// Each policy, by the first clock to which it applies.
    from: BTreeMap<u64, ReadPolicy>,
}

impl ReadSchedule {
    /// The same policy in all clocks.
    #[must_use]
    pub fn constant(policy: ReadPolicy) -> Self {
        Self { from: BTreeMap::from([(0, policy)]) }
    }

    /// Changes the policy from this clock on.
    #[must_use]
    pub fn then(mut self, clock: u64, policy: ReadPolicy) -> Self {
        self.from.insert(clock, policy);
        self
    }

    /// Whether no worker ever waits for another worker's clock.
    #[must_use]
    pub fn never_waits(&self) -> bool {
        self.from.values().all(|policy| *policy == ReadPolicy::Unbounded)
    }

    /// Whether workers are never further apart than a table that is applied by clock allows.
    pub(crate) fn allows_per_clock(&self) -> bool {
        self.from
            .values()
            .all(|policy| matches!(policy, ReadPolicy::Staleness(bound) if *bound <= PER_CLOCK_STALENESS_MAX))
    }

    /// The policy of this clock.
    #[must_use]
    pub fn at(&self, clock: u64) -> ReadPolicy {
        self.from.range(..=clock).next_back().map_or(ReadPolicy::Unbounded, |(_, policy)| *policy)
    }
}
