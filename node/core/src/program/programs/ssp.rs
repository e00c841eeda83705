//! Stale synchronous parallel: workers add to shared parameters, and the fastest is never more than a few clocks ahead of the slowest.
//!
//! In each clock a worker reads the parameters, computes the gradient of its part of the clock's batch, and adds to them. It may read
//! values that are as many clocks old as the bound allows, so a worker that is slow now and then delays no other. With a bound of 0 all
//! workers wait for each other, as in [`SyncDataParallel`](super::sync::SyncDataParallel).
//!
//! # What it does not do
//! A worker that is *always* slow delays all others, whatever the bound: after that many clocks they all wait for it.
//!
//! # Reading
//! Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, 2013. With a bound of τ and a rule
//! that is applied by clock it is the bounded delay of Li et al., *Scaling Distributed Machine Learning with the Parameter Server*,
//! 2014, algorithm 3.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

use peergrad_models::task::Task;
use peergrad_protocol::message::SampleStats;

use crate::program::context::{Clock, Context, Interrupted};
use crate::program::loader::Loaded;
use crate::program::programs::gradients::gradient;
use crate::program::{Flow, Program};
use crate::table::TableRule;

/// The stale synchronous parallel program.
pub struct Ssp {
    /// The model and its data.
    task: Arc<dyn Task>,
    /// What a gradient, summed over a worker's samples, is divided by.
    batch: f32,
    /// Whether owners add what they receive; otherwise they apply an optimizer to it.
    is_sum: bool,
}

impl Ssp {
    /// The program for a loaded task, with the parameters in a table of this rule.
    #[must_use]
    pub fn of(loaded: &Loaded, rule: TableRule) -> Self {
        let batch = loaded.config.batch_size as f32;
        Self { task: Arc::clone(&loaded.task), batch, is_sum: rule == TableRule::Sum }
    }
}

impl Program for Ssp {
    const NAME: &'static str = "ssp";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            return finish(clock).await;
        }
        if clock.samples.is_empty() {
            // Other workers have the remaining samples, and wait for this clock to end.
            clock.end(SampleStats::default());
            return Ok(Continue(()));
        }
        let scale = if self.is_sum { -clock.rate as f32 } else { 1.0 } / self.batch;
        let (rows, stats) = gradient(&self.task, &clock, scale).await?;
        clock.add(rows).expect("finite rows of the table");
        // The worker does not wait until the additions are safe: the node repeats them until they are.
        drop(clock.commit(stats));
        Ok(Continue(()))
    }
}

/// No samples are left: the worker stays until all workers have finished, and then reads the final parameters.
pub(super) async fn finish(clock: Clock) -> Result<Flow, Interrupted> {
    clock.finish();
    clock.parameters().await?;
    Ok(Break(()))
}
