//! DiLoCo: many local steps with an optimizer of one's own, and then one outer step, by the owners, along the way that members
//! have gone on average.
//!
//! The way from the common parameters to where a member has come is taken for a gradient. The outer optimizer, Nesterov's
//! momentum, lives with the owners of the shards, and so do its replicas: a joiner needs nothing but the parameters.
//!
//! # Cost
//! As of [`local`](super::local): one step's bytes for every H local steps. Inner optimizer state is as large as on one
//! machine, the outer one falls as 1 / n.
//!
//! # What the model is
//! After each round all members hold the same parameters. A leaver's inner state goes with it.
//!
//! # Reading
//! Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023, algorithm 1.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

use peergrad_models::optimizer::Optimizer;

use super::local_trainer::LocalTrainer;
use crate::program::context::{Context, Contribution, Interrupted, ShardUpdate};
use crate::program::loader::Loaded;
use crate::program::{Flow, Program};

/// Local steps under an outer optimizer.
pub struct Diloco {
    /// What this member does by itself.
    pub local_trainer: LocalTrainer,
    /// Share of the outer velocity that is kept.
    pub outer_momentum: f32,
    /// The outer learning rate.
    pub outer_rate: f64,
}

impl Program for Diloco {
    const NAME: &'static str = "diloco";

    fn owner_moments(_: &Loaded) -> usize {
        outer(0.0).moment_count()
    }

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let (step, parameters, room) = context.begin_step().await?;
        if step.is_over {
            return Ok(Break(()));
        }
        let begun_at = Arc::clone(&parameters);
        let (mut vector, stats, pending) = self.local_trainer.train(&step, parameters, room).await?.split();
        for (way, begun) in vector.iter_mut().zip(begun_at.iter()) {
            *way = (*begun - *way) * stats.samples as f32;
        }
        drop(begun_at);
        let update = ShardUpdate::OptimizerAt { rule: outer(self.outer_momentum), rate: self.outer_rate };
        step.all_reduce(Contribution { vector, stats }, update).await?;
        self.local_trainer.commit(pending);
        Ok(Continue(()))
    }
}

fn outer(momentum: f32) -> Optimizer {
    Optimizer::Momentum { momentum, nesterov: true, weight_decay: 0.0 }
}
