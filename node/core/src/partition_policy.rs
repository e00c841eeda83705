//! The policy: what the parts of a swarm do that is cut in two.

use serde::{Deserialize, Serialize};

/// What happens when members cannot reach each other any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionPolicy {
    /// Whoever can reach more than half of the members goes on, the others wait: there is always one lineage.
    #[default]
    Majority,
    /// Every part goes on as a lineage of its own; when two meet again, what they have come to is averaged.
    Merge,
    /// Every part goes on as a lineage of its own; when two meet again, the one that is further is kept.
    Winner,
}

impl PartitionPolicy {
    /// Whether more than one lineage may follow a view.
    #[must_use]
    pub fn allows_forks(self) -> bool {
        self != Self::Majority
    }
}
