//! The owner's rule: how the owner of a shard turns the sums of a step into new parameters.

use peergrad_collectives::plan::are_finite;
use peergrad_models::optimizer::GroupedOptimizer;
use peergrad_protocol::message::SampleStats;

use crate::state::blend::Blend;

/// The rule by which an owner turns the sums of its shard into new parameters.
pub(crate) enum OwnerRule {
    /// An optimizer with the groups of the parameters, at a learning rate. `clip_factor` shortens the gradient; it is 1 without clipping,
    /// and until the norm is known.
    Optimizer { optimizer: GroupedOptimizer, rate: f64, clip_factor: f32 },
    /// The mean of the members' contributions: the sum divided by their number.
    Mean,
    /// A rule of the program.
    Custom(CustomRule),
    /// A step without contributions that blends in the parameters of another branch.
    Blend(Blend),
}

impl OwnerRule {
    /// An optimizer, at a learning rate.
    pub(crate) fn optimizer(optimizer: GroupedOptimizer, rate: f64) -> Self {
        Self::Optimizer { optimizer, rate, clip_factor: 1.0 }
    }

    /// Whether the gradient is clipped, so that owners need its norm before they update.
    pub(crate) fn clips(&self) -> bool {
        matches!(self, Self::Optimizer { optimizer: GroupedOptimizer { clip_norm: Some(_), .. }, .. })
    }

    /// The part of a chunk's sums in the square of the norm; 0 if a sum is not finite, since such a chunk is not updated. `first` is the
    /// first element of the chunk in the flat vector.
    pub(crate) fn squares(&self, first: usize, sums: &[f32]) -> f64 {
        match self {
            Self::Optimizer { optimizer, .. } if are_finite(sums) => optimizer.squares(first, sums),
            _ => 0.0,
        }
    }

    /// The norm is known: its square is this one, for the gradient summed over so many samples.
    pub(crate) fn clip(&mut self, squares: f64, samples: u64) {
        if let Self::Optimizer { optimizer, clip_factor, .. } = self {
            *clip_factor = optimizer.clip_factor(squares, samples);
        }
    }

    /// Whether owners keep optimizer state under this rule, of which other members keep replicas.
    pub(crate) fn keeps_state(&self) -> bool {
        matches!(self, Self::Optimizer { .. } | Self::Blend(_))
    }
}

/// A rule of a program, which the owner of a shard calls for each chunk with the statistics of the sums, the chunk's parameters and its
/// sums; the rule overwrites the sums with new parameters. See
/// [`Step::update_owned_with`](crate::program::context::Step::update_owned_with).
pub type CustomRule = Box<dyn FnMut(SampleStats, &[f32], &mut [f32]) + Send>;
