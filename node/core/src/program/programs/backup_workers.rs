//! Synchronous training with backup workers: a step is made of the contributions that are there first, and does not wait for
//! the last few.
//!
//! What a member does is what it does under [synchronous data parallelism](super::sync). That it is late shows as an interruption: the step has been
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

use crate::program::context::{Context, Interrupted};
use crate::program::programs::sync::SyncDataParallel;
use crate::program::{Flow, Program};

/// Synchronous steps that wait for most members. How many they do not wait for the node knows
/// ([`TrainingConfig::backups`](crate::program::loader::TrainingConfig::backups)).
pub struct BackupWorkers {
    /// What a member does that is in time.
    pub sync: SyncDataParallel,
}

impl Program for BackupWorkers {
    const NAME: &'static str = "backup-workers";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        self.sync.round(context).await
    }
}
