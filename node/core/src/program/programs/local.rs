//! Local steps, also called parameter mixing: each member trains by itself for a while; then all take the mean of what they
//! have come to.
//!
//! # Cost
//! A round sends what a step of the ring does, and there is one for every H local steps: bytes fall as 1 / H.
//!
//! # What the model is
//! After each round all members hold the same mean, weighted by samples. A joiner begins with it. Optimizer state is each
//! member's own and goes with it.
//!
//! # Reading
//! McDonald et al., *Distributed Training Strategies for the Structured Perceptron*, 2010 (once an epoch); Stich, *Local SGD
//! Converges Fast and Communicates Little*, 2019.

use std::ops::ControlFlow::{Break, Continue};

use peergrad_protocol::message::SampleStats;

use super::local_trainer::LocalTrainer;
use crate::program::context::{Context, Contribution, Interrupted, ShardUpdate};
use crate::program::{Flow, Program};

/// Parameter mixing.
pub struct Local {
    /// What this member does by itself.
    pub local_trainer: LocalTrainer,
}

impl Program for Local {
    const NAME: &'static str = "local";

    const CUSTOM_RULE: bool = true;

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let (step, parameters, room) = context.begin_step().await?;
        if step.is_over {
            return Ok(Break(()));
        }
        let (mut vector, stats, pending) = self.local_trainer.train(&step, parameters, room).await?.split();
        vector.iter_mut().for_each(|parameter| *parameter *= stats.samples as f32);
        step.all_reduce(Contribution { vector, stats }, ShardUpdate::custom(mean)).await?;
        self.local_trainer.commit(pending);
        Ok(Continue(()))
    }
}

/// The mean of parameters that were added up, each as often as it has samples.
fn mean(stats: SampleStats, _: &[f32], sums: &mut [f32]) {
    sums.iter_mut().for_each(|sum| *sum /= stats.samples as f32);
}
