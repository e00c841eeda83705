//! The partition policy: what the parts of a partitioned swarm do.

use serde::{Deserialize, Serialize};

/// What members do when they cannot reach each other any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionPolicy {
    /// The part with more than half of the members continues and the others wait: there is always one branch.
    #[default]
    Majority,
    /// Every part continues as its own branch. When two branches meet again, their parameters are averaged.
    Merge,
    /// Every part continues as its own branch. When two branches meet again, the one with more steps is kept.
    Winner,
}

impl PartitionPolicy {
    /// Whether more than one branch may follow a view.
    #[must_use]
    pub fn allows_forks(self) -> bool {
        self != Self::Majority
    }
}
