//! Synchronous data-parallel training with sharded optimizer state: it computes on many machines what one machine computes with a large
//! batch.
//!
//! Each member computes the gradient of its part of the batch. The owner of a shard receives the sums, takes the optimizer step for its
//! shard only, and sends the new parameters to every member.
//!
//! # Cost
//! A step sends 2 (n - 1) / n times the parameters from each member; optimizer memory and work per member fall as 1 / n.
//!
//! # Reading
//! Rajbhandari et al., *ZeRO*, 2020 (stage 1). We differ in the shards: hash-placed chunks instead of equal ranges.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

use peergrad_models::optimizer::GroupedOptimizer;
use peergrad_models::task::Task;

use crate::program::context::{Context, Interrupted};
use crate::program::loader::Loaded;
use crate::program::{Flow, Program};

/// The synchronous data-parallel program.
pub struct SyncDataParallel {
    /// The model and its data.
    pub task: Arc<dyn Task>,
    /// The optimizer with which owners update their shards, and the groups of the parameters.
    pub optimizer: GroupedOptimizer,
}

impl Program for SyncDataParallel {
    const NAME: &'static str = "sync";
    const GROUPED_OPTIMIZER: bool = true;

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let (step, parameters, room) = context.begin_step().await?;
        if step.is_over {
            return Ok(Break(()));
        }
        step.all_reduce_gradient(&self.task, parameters, room, self.optimizer.clone()).await?;
        Ok(Continue(()))
    }
}

impl SyncDataParallel {
    /// The program for a loaded task, with the optimizer of its configuration.
    #[must_use]
    pub fn of(loaded: &Loaded) -> Self {
        Self { task: Arc::clone(&loaded.task), optimizer: loaded.config.optimizer() }
    }
}
