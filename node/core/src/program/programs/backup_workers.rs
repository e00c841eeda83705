//! Synchronous training with backup workers: a step uses the contributions that arrive first, and does not wait for the last few.
//!
//! A member does what it does under [synchronous data parallelism](super::sync). If it is late, its program is interrupted: the step has
//! been taken without it, and its gradient is discarded.
//!
//! # Cost
//! A step sends as many bytes as a step of `sync` does under the direct topology, less the late contributions. Two small control messages
//! precede it: four hops instead of two. Each step trains only the samples of the members that are in time; the others' samples count as
//! left out. This helps against a peer that is slow now and then. A peer that is always slow contributes nothing.
//!
//! # What the model is
//! After each step all members hold the same parameters, as in `sync`: late members own, update and gather like all others.
//!
//! # Reading
//! Chen et al., *Revisiting Distributed Synchronous SGD*, 2016, algorithms 3 and 4.

use crate::program::context::{Context, Interrupted};
use crate::program::programs::sync::SyncDataParallel;
use crate::program::{Flow, Program};

/// Synchronous steps that wait for most members. The number of members that a step does not wait for is in the run's configuration
/// ([`TrainingConfig::backups`](crate::program::loader::TrainingConfig::backups)).
pub struct BackupWorkers {
    /// What a member does if it is in time.
    pub sync: SyncDataParallel,
}

impl Program for BackupWorkers {
    const NAME: &'static str = "backup-workers";
    const GROUPED_OPTIMIZER: bool = true;

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        self.sync.round(context).await
    }
}
