//! An interrupted round: its vectors, and how many segments of each shard are final.
//!
//! When a member leaves in the middle of a round, the others compare what they hold. If together they hold every shard, they send each
//! other the missing parts. Otherwise they sum their contributions again.
//!
//! ```text
//! a shard's segments:   final final final | not yet received      held_segments = 3: always the first ones
//! ```
//!
//! # Invariants
//! - What is known of a contribution is never changed before the round is completed: it is returned as it was given.
//! - A held segment has the bits that its owner sent, and keeps them. The rest of the result is unspecified.
//!
//! # Not here
//! Credit. Segments that wait inside a round are dropped with it; the caller returns their credit.

use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;

use super::{ResultVector, Round, RoundContribution};

/// The vectors inside a round.
#[derive(Debug)]
pub struct InterruptedRound {
    /// This member's contribution, as far as it is known; `None` if it gave none, or if the round was completed.
    pub contribution: Option<RoundContribution>,
    /// The vector of results; `None` if there was no result yet, or if the vector is complete and therefore shared.
    pub result: Option<Buffer>,
}

impl Round {
    /// The number of final segments of `owner`'s shard; they are the first ones, because segments arrive in order.
    #[must_use]
    pub fn held_segments(&self, owner: usize) -> usize {
        if owner != self.plan.rank { self.gather.received(owner) } else { self.gather.ready() }
    }

    /// The samples and loss of the whole round, as all members report them; `None` if their sum has not arrived.
    #[must_use]
    pub fn seen_stats(&self) -> Option<SampleStats> {
        let owner = self.plan.layout.first_owner()?;
        let of_own = owner == self.plan.rank;
        let seen = if of_own { self.reduce.reduced() } else { self.gather.received(owner) };
        (seen > 0).then_some(self.reported_stats)
    }

    /// Ends the round early and returns its vectors. Received segments that wait inside are dropped, and their credit is not returned.
    #[must_use]
    pub fn interrupt(self) -> InterruptedRound {
        let (stats, known) = (self.contribution_stats, self.known);
        InterruptedRound {
            contribution: self
                .contribution
                .filter(|_| self.plan.contributes(self.plan.rank))
                .map(|vector| RoundContribution { vector, stats, known }),
            result: match self.result {
                ResultVector::Filling(vector) => Some(vector),
                ResultVector::Unseen | ResultVector::Complete(_) => None,
            },
        }
    }
}
