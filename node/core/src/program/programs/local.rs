//! Local steps, also called parameter mixing: each member trains by itself for some steps; then all take the mean of their parameters.
//!
//! # Cost
//! A round sends as many bytes as a step of `sync`, and there is one round for every H local steps: bytes fall as 1 / H.
//!
//! # What the model is
//! After each round all members hold the same mean, weighted by samples. A joiner begins with it. Each member has its own optimizer state,
//! which is lost when the member leaves.
//!
//! # Reading
//! McDonald et al., *Distributed Training Strategies for the Structured Perceptron*, 2010 (once an epoch); Stich, *Local SGD
//! Converges Fast and Communicates Little*, 2019.

use std::ops::ControlFlow::{Break, Continue};

use peergrad_protocol::message::SampleStats;

use super::local_trainer::LocalTrainer;
use crate::program::context::{Context, Contribution, Interrupted, ShardUpdate};
use crate::program::{Flow, Program};

/// The parameter mixing program.
pub struct Local {
    /// The task and optimizer of this member.
    pub local_trainer: LocalTrainer,
}

impl Program for Local {
    const NAME: &'static str = "local";
    const CUSTOM_RULE: bool = true;
    const GROUPED_OPTIMIZER: bool = true;

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

/// Turns the sums of the members' parameters, each weighted by its samples, into their mean.
fn mean(stats: SampleStats, _: &[f32], sums: &mut [f32]) {
    sums.iter_mut().for_each(|sum| *sum /= stats.samples as f32);
}
