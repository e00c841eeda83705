//! What a program gives to a step: the contribution of this member, and how owners turn the sums into new parameters.

use std::fmt;

use peergrad_collectives::plan::are_finite;
use peergrad_models::optimizer::{GroupedOptimizer, Optimizer};
use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;

use crate::state::owner_rule::{CustomRule, OwnerRule};

/// What one member adds to a step: a vector, usually the sum of its samples' gradients, and the weight of that vector.
#[derive(Debug)]
pub struct Contribution {
    /// (parameters): the vector that is summed over all members. Every element is finite.
    pub vector: Buffer,
    /// How many samples the vector was computed from, and the sum of their losses.
    pub stats: SampleStats,
}

impl Contribution {
    /// The contribution of `vector` and `stats`; of weight 0, with a vector of zeros, if an element or the loss is not finite.
    ///
    /// A gradient that overflowed would ruin the parameters of every member, so its samples are left out of the step.
    #[must_use]
    pub fn finite(mut vector: Buffer, stats: SampleStats) -> Self {
        if stats.loss.is_finite() && are_finite(&vector) {
            return Self { vector, stats };
        }
        vector.fill(0.0);
        Self { vector, stats: SampleStats::default() }
    }
}

/// How the owner of a shard turns the sums of a step into the shard's new parameters: see
/// [`Step::all_reduce`](crate::program::context::Step::all_reduce).
pub enum ShardUpdate {
    /// One step of this optimizer with the mean gradient, at the learning rate of the step. With the
    /// [groups](crate::program::loader::TrainingConfig::optimizer) of the run, a program declares
    /// [`GROUPED_OPTIMIZER`](crate::program::Program::GROUPED_OPTIMIZER).
    Optimizer(GroupedOptimizer),
    /// One step of this optimizer with the mean gradient, at this learning rate.
    OptimizerAt {
        /// The optimizer. The peers keep its state between steps.
        optimizer: GroupedOptimizer,
        /// The learning rate, in place of the step's.
        rate: f64,
    },
    /// The mean of all contributions, each of the same weight: see [`Step::average_owned`](crate::program::context::Step::average_owned).
    Mean,
    /// A rule of the program: see [`Step::update_owned_with`](crate::program::context::Step::update_owned_with).
    Custom(CustomRule),
}

impl ShardUpdate {
    /// A rule of the program: see [`Step::update_owned_with`](crate::program::context::Step::update_owned_with).
    #[must_use]
    pub fn custom(rule: impl FnMut(SampleStats, &[f32], &mut [f32]) + Send + 'static) -> Self {
        Self::Custom(Box::new(rule))
    }

    /// The rule as the machine sees it, in a step with this learning rate.
    pub(super) fn owner_rule(self, step_rate: f64) -> OwnerRule {
        match self {
            Self::Optimizer(optimizer) => OwnerRule::optimizer(optimizer, step_rate),
            Self::OptimizerAt { optimizer, rate } => OwnerRule::optimizer(optimizer, rate),
            Self::Mean => OwnerRule::Mean,
            Self::Custom(rule) => OwnerRule::Custom(rule),
        }
    }
}

impl From<Optimizer> for ShardUpdate {
    fn from(rule: Optimizer) -> Self {
        Self::Optimizer(rule.into())
    }
}

impl From<GroupedOptimizer> for ShardUpdate {
    fn from(optimizer: GroupedOptimizer) -> Self {
        Self::Optimizer(optimizer)
    }
}

impl fmt::Debug for ShardUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Optimizer(_) => "ShardUpdate::Optimizer",
            Self::OptimizerAt { .. } => "ShardUpdate::OptimizerAt",
            Self::Mean => "ShardUpdate::Mean",
            Self::Custom(_) => "ShardUpdate::Custom",
        })
    }
}
