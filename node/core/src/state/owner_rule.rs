//! The owner's rule: how the owner of a shard turns the sums of a step into new parameters.

use peergrad_models::optimizer::GroupedOptimizer;
use peergrad_protocol::message::SampleStats;

use crate::state::blend::Blend;

/// The rule by which an owner turns the sums of its shard into new parameters.
pub(crate) enum OwnerRule {
    /// An optimizer with the groups of the parameters, at a learning rate.
    Optimizer { optimizer: GroupedOptimizer, rate: f64 },
    /// The mean of the members' contributions: the sum divided by their number.
    Mean,
    /// A rule of the program.
    Custom(CustomRule),
    /// A step without contributions that blends in the parameters of another branch.
    Blend(Blend),
}

impl OwnerRule {
    /// Whether owners keep optimizer state under this rule, of which other members keep replicas.
    pub(crate) fn keeps_state(&self) -> bool {
        matches!(self, Self::Optimizer { .. } | Self::Blend(_))
    }
}

/// A rule of a program, which the owner of a shard calls for each chunk with the statistics of the sums, the chunk's parameters and its
/// sums; the rule overwrites the sums with new parameters. See
/// [`Step::update_owned_with`](crate::program::context::Step::update_owned_with).
pub type CustomRule = Box<dyn FnMut(SampleStats, &[f32], &mut [f32]) + Send>;
