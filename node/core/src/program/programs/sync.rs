//! Synchronous data-parallel training with sharded optimizer state: what a big batch on one machine computes, on many.
//!
//! Each member computes the gradient of its part of the batch. The owner of a shard gets the sum, takes the optimizer step
//! for its shard alone, and sends the new parameters to everyone.
//!
//! # Cost
//! A step sends 2 (n - 1) / n times the parameters from each member; optimizer memory and work per member fall as 1 / n.
//!
//! # Reading
//! Rajbhandari et al., *ZeRO*, 2020 (stage 1). We differ in the shards: hash-placed chunks instead of equal ranges.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

use peergrad_collectives::plan::are_finite;
use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::Task;
use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;

use crate::program::context::{Context, Contribution, Interrupted, Step};
use crate::program::loader::Loaded;
use crate::program::{Flow, Program};

/// Synchronous data-parallel training.
pub struct SyncDataParallel {
    /// The model and its data.
    pub task: Arc<dyn Task>,
    /// What owners do with the mean gradient.
    pub rule: Optimizer,
}

impl Program for SyncDataParallel {
    const NAME: &'static str = "sync";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let (step, parameters, room) = context.begin_step().await?;
        if step.is_over {
            return Ok(Break(()));
        }
        let contribution = self.gradient(&step, parameters, room).await?;
        // All at once: the beginning of a shard is on its way to everyone while the end of it is still being summed.
        let summed = step.reduce_scatter(contribution);
        let updated = step.update_owned(self.rule, step.rate);
        let gathered = step.all_gather();
        summed.await?;
        updated.await?;
        gathered.await?;
        Ok(Continue(()))
    }
}

impl SyncDataParallel {
    /// Trains what was loaded, as it says.
    #[must_use]
    pub fn of(loaded: &Loaded) -> Self {
        Self { task: Arc::clone(&loaded.task), rule: loaded.config.rule }
    }

    /// The gradient of this member's samples, computed beside the network.
    async fn gradient(
        &self,
        step: &Step,
        parameters: Arc<Buffer>,
        mut room: Buffer,
    ) -> Result<Contribution, Interrupted> {
        let (task, samples) = (Arc::clone(&self.task), Arc::clone(&step.samples));
        let work = move || {
            let loss = task.gradient(&parameters, &samples, &mut room);
            contribution(room, SampleStats { samples: samples.len() as u64, loss })
        };
        step.compute(step.samples.len() as u64, work).await
    }
}

/// A gradient that overflowed would ruin everybody's parameters: its samples are left out, with weight 0.
fn contribution(mut vector: Buffer, stats: SampleStats) -> Contribution {
    if stats.loss.is_finite() && are_finite(&vector) {
        return Contribution { vector, stats };
    }
    vector.fill(0.0);
    Contribution { vector, stats: SampleStats::default() }
}
