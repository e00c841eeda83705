//! Gates: when a worker may read.

use std::collections::BTreeMap;

use peergrad_protocol::limits::STALENESS_BY_CLOCK_MAX;

/// When a worker may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Once all others are at most so many clocks behind.
    Staleness(u64),
    /// Always.
    None,
}

impl Gate {
    /// The clock that a row must be of, to be read in this one.
    #[must_use]
    pub fn needed(self, clock: u64) -> u64 {
        match self {
            Self::Staleness(bound) => clock.saturating_sub(bound),
            Self::None => 0,
        }
    }
}

/// The gate of each clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates {
    /// From which clock on which one.
    from: BTreeMap<u64, Gate>,
}

impl Gates {
    /// The same one for ever.
    #[must_use]
    pub fn of(gate: Gate) -> Self {
        Self { from: BTreeMap::from([(0, gate)]) }
    }

    /// Another one from a clock on.
    #[must_use]
    pub fn then(mut self, clock: u64, gate: Gate) -> Self {
        self.from.insert(clock, gate);
        self
    }

    /// Whether no worker ever waits for another one's clock.
    #[must_use]
    pub fn wait_for_nobody(&self) -> bool {
        self.from.values().all(|gate| *gate == Gate::None)
    }

    /// Whether workers are never further from each other than what is applied by clock allows.
    pub(crate) fn are_close(&self) -> bool {
        self.from
            .values()
            .all(|gate| matches!(gate, Gate::Staleness(bound) if *bound <= STALENESS_BY_CLOCK_MAX))
    }

    /// The one of this clock.
    #[must_use]
    pub fn at(&self, clock: u64) -> Gate {
        self.from.range(..=clock).next_back().map_or(Gate::None, |(_, gate)| *gate)
    }
}
