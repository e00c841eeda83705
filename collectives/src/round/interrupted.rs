//! What remains of a round that is interrupted: how far it got here, and the vectors that it was given.
//!
//! When a member leaves in the middle of a round, the others look at what they hold. If all of them together hold every
//! shard, they hand each other the missing pieces; if not, they add up again what they contributed.
//!
//! ```text
//! a shard's segments:   final final final | still to come      held_segments = 3: always the first ones
//! ```
//!
//! # Invariants
//! - A contribution is never written to: it comes out as it went in, until the round is completed.
//! - A segment that is held has the bits that its owner sent, and they stay. Whatever else is in the result is a sum that
//!   is not final, or nothing.
//!
//! # Not here
//! Credit. Segments that wait inside a round are dropped with it; whoever counts credit returns all of it.

use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;

use super::{ResultVector, Round};

/// The vectors inside a round.
#[derive(Debug)]
pub struct InterruptedRound {
    /// What this member gave to the round, and its worth; `None` if it gave nothing, or once the round was completed.
    pub contribution: Option<(Buffer, SampleStats)>,
    /// The vector in which results came together; `None` if there was no result yet, or if it is complete and thus shared.
    pub result: Option<Buffer>,
}

impl Round {
    /// How many segments of `owner`'s shard are here and final: the first ones, as they come in order.
    #[must_use]
    pub fn held_segments(&self, owner: usize) -> usize {
        if owner != self.plan.rank { self.gather.received(owner) } else { self.gather.ready() }
    }

    /// What the whole round is worth, as everybody reports it, if the sum that says so has been seen here.
    #[must_use]
    pub fn seen_stats(&self) -> Option<SampleStats> {
        let owner = self.plan.layout.first_owner()?;
        let of_own = owner == self.plan.rank;
        let seen = if of_own { self.reduce.reduced() } else { self.gather.received(owner) };
        (seen > 0).then_some(self.reported_stats)
    }

    /// Takes the round apart. Received segments that wait inside are dropped, and no credit for them is returned.
    #[must_use]
    pub fn interrupt(self) -> InterruptedRound {
        let stats = self.contribution_stats;
        InterruptedRound {
            contribution: self
                .contribution
                .filter(|_| self.plan.contributes(self.plan.rank))
                .map(|vector| (vector, stats)),
            result: match self.result {
                ResultVector::Filling(vector) => Some(vector),
                ResultVector::Unseen | ResultVector::Complete(_) => None,
            },
        }
    }
}
