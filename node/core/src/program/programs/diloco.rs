//! DiLoCo: each member takes many local steps with its own optimizer. Then the owners take one outer step, in the direction in which the
//! members have moved on average.
//!
//! The difference between the common parameters and a member's local ones serves as a gradient. The outer optimizer is Nesterov's momentum.
//! Its state is at the owners of the shards, with replicas as usual: a joiner needs only the parameters. Statistics have no part in that:
//! their new value is the mean of the members' values, weighted by samples.
//!
//! # Cost
//! Bytes as in [`local`](super::local): those of one step for every H local steps. The inner optimizer state is as large as on one machine;
//! the outer one falls as 1 / n.
//!
//! # What the model is
//! After each round all members hold the same parameters. When a member leaves, its inner state is lost.
//!
//! # Reading
//! Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023, algorithm 1.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

use peergrad_models::optimizer::{Bounds, GroupedOptimizer, Optimizer, ParameterGroups};

use super::local_trainer::LocalTrainer;
use crate::program::context::{Context, Contribution, Interrupted, ShardUpdate};
use crate::program::loader::Loaded;
use crate::program::{Flow, Program};

/// Local steps under an outer optimizer.
pub struct Diloco {
    /// The task and inner optimizer of this member.
    pub local_trainer: LocalTrainer,
    /// The share of the outer velocity that is kept from one round to the next.
    pub outer_momentum: f32,
    /// The outer learning rate.
    pub outer_rate: f64,
    /// The parameters that the outer optimizer leaves out, because they are statistics.
    pub statistics: ParameterGroups,
    /// Where parameters stay; `None`: anywhere. The outer step may go beyond what members have found.
    pub bounds: Option<Bounds>,
}

impl Program for Diloco {
    const NAME: &'static str = "diloco";
    const GROUPED_OPTIMIZER: bool = true;

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
        self.weigh(&mut vector, &begun_at, stats.samples as f32);
        drop(begun_at);
        let (groups, bounds) = (self.statistics.clone(), self.bounds);
        let optimizer = GroupedOptimizer { groups, bounds, ..outer(self.outer_momentum).into() };
        let update = ShardUpdate::OptimizerAt { optimizer, rate: self.outer_rate };
        step.all_reduce(Contribution { vector, stats }, update).await?;
        self.local_trainer.commit(pending);
        Ok(Continue(()))
    }
}

impl Diloco {
    /// Turns the parameters of this member into its contribution: the way from there back to the common parameters, and the values of
    /// statistics, both times the number of its samples.
    fn weigh(&self, vector: &mut [f32], begun_at: &[f32], samples: f32) {
        let mut start = 0;
        let end = vector.len()..vector.len();
        for statistic in self.statistics.statistics().chain(std::iter::once(end)) {
            let trained = start..statistic.start;
            for (way, begun) in vector[trained.clone()].iter_mut().zip(&begun_at[trained]) {
                *way = (*begun - *way) * samples;
            }
            start = statistic.end;
            vector[statistic].iter_mut().for_each(|value| *value *= samples);
        }
    }
}

fn outer(momentum: f32) -> Optimizer {
    Optimizer::Momentum { momentum, nesterov: true, weight_decay: 0.0 }
}
