//! Synchronous training with backup workers: a step is made of the contributions that are there first, and does not wait for
//! the last few.
//!
//! What a member does is what it does in the [ring](super::ring). That it is late shows as an interruption: the step has been
//! taken without it, and what it had computed is thrown away.
//!
//! # Cost
//! A step sends what one of the ring does under the direct topology, less the late contributions, and two small words go
//! ahead of it: four hops instead of two. Each step trains the samples of those who were in time; the others' count as left
//! out. Against a peer that is slow now and then this helps; one that is always slow contributes nothing.
//!
//! # What the model is
//! After each step all members hold the same parameters, as in the ring: late ones own, update and gather like everyone.
//!
//! # Reading
//! Chen et al., *Revisiting Distributed Synchronous SGD*, 2016, algorithms 3 and 4.

use crate::peer::{Interrupted, Peer};
use crate::program::{Flow, Program};
use crate::programs::ring::Ring;

/// Synchronous steps that wait for most members. How many they do not wait for the node knows
/// ([`Training::backups`](crate::loader::Training::backups)).
pub struct Quorum {
    /// What a member does that is in time.
    pub ring: Ring,
}

impl Program for Quorum {
    const NAME: &'static str = "quorum";

    async fn round(&mut self, peer: &Peer) -> Result<Flow, Interrupted> {
        self.ring.round(peer).await
    }
}
