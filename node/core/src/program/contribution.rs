//! What a program gives to a step: the contribution of this member, and how owners turn the sums into new parameters.

use std::fmt;

use peergrad_collectives::plan::are_finite;
use peergrad_collectives::round::RoundContribution;
use peergrad_models::optimizer::{GroupedOptimizer, Optimizer};
use peergrad_models::task::KnownGradient;
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

impl From<Contribution> for RoundContribution {
    fn from(contribution: Contribution) -> Self {
        Self::whole(contribution.vector, contribution.stats)
    }
}

/// The next elements of a contribution whose others are still being computed.
pub(crate) struct ContributionPart {
    /// How many elements came before.
    pub(crate) start: usize,
    /// The elements, all of them finite.
    pub(crate) elements: Vec<f32>,
    /// The samples and loss behind the whole contribution.
    pub(crate) stats: SampleStats,
}

/// Computes a contribution, and hands out the first elements of it meanwhile.
///
/// - `room`: (parameters), for the vector.
/// - `samples`: how many it is computed from.
/// - `elements_min`: the fewest elements of a part.
/// - `compute`: fills the room, and returns the summed loss. Its second argument takes that loss and the elements that are known so far.
///
/// A vector that is not finite becomes a contribution of weight 0, as in [`Contribution::finite`]. Parts that were handed out are in sums
/// already: then the elements after them become zeros, and the loss is no number, so that the members notice.
///
/// # Panics
/// If `compute` hands out what is no beginning of the vector, or another loss than it returns.
pub(super) fn contribution_in_parts(
    mut room: Buffer,
    samples: u64,
    elements_min: usize,
    hand_out: &mut dyn FnMut(ContributionPart),
    compute: impl FnOnce(&mut [f32], &mut KnownGradient<'_>) -> f64,
) -> Contribution {
    let len = room.len();
    let (mut handed_out, mut loss_known, mut is_bad) = (0, None, false);
    let loss = compute(&mut room, &mut |loss, known| {
        let is_beginning = (handed_out..=len).contains(&known.len());
        assert!(is_beginning, "a task hands out the beginning of its gradient, and each time more of it");
        let part = &known[handed_out..];
        if is_bad || part.len() < elements_min || known.len() == len {
            return;
        }
        is_bad = !loss.is_finite() || !are_finite(part);
        if !is_bad {
            let stats = SampleStats { samples, loss: *loss_known.get_or_insert(loss) };
            hand_out(ContributionPart { start: handed_out, elements: part.to_vec(), stats });
            handed_out = known.len();
        }
    });
    let Some(loss_known) = loss_known else {
        return Contribution::finite(room, SampleStats { samples, loss });
    };
    assert!(loss_known.to_bits() == loss.to_bits(), "a task hands out the loss that it returns");
    let rest = &mut room[handed_out..];
    let is_whole = !is_bad && are_finite(rest);
    if !is_whole {
        rest.fill(0.0);
    }
    Contribution {
        vector: room,
        stats: SampleStats { samples, loss: if is_whole { loss } else { f64::NAN } },
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts and the result of a gradient 1, 2, 3, ... of 10 elements, of which `known` are known in turn, with `changed` elements.
    fn computed(
        elements_min: usize,
        known: &[usize],
        changed: &[(usize, f32)],
        loss: f64,
    ) -> (Vec<ContributionPart>, Contribution) {
        let mut parts = Vec::new();
        let room = Buffer::from_values(&[f32::NAN; 10]);
        let contribution = contribution_in_parts(room, 4, elements_min, &mut |part| parts.push(part), {
            |room, finished| {
                (1..=10).for_each(|number| room[number - 1] = number as f32);
                changed.iter().for_each(|&(index, value)| room[index] = value);
                known.iter().for_each(|&known| finished(loss, &room[..known]));
                loss
            }
        });
        (parts, contribution)
    }

    #[test]
    fn parts_are_handed_out_in_order() {
        let (parts, whole) = computed(2, &[1, 3, 4, 8, 10], &[], 0.5);
        let elements: Vec<(usize, Vec<f32>)> =
            parts.iter().map(|part| (part.start, part.elements.clone())).collect();
        assert_eq!(elements, [(0, vec![1.0, 2.0, 3.0]), (3, vec![4.0, 5.0, 6.0, 7.0, 8.0])]);
        let stats = SampleStats { samples: 4, loss: 0.5 };
        assert!(parts.iter().all(|part| part.stats == stats));
        assert_eq!((whole.stats, whole.vector[9]), (stats, 10.0));
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        let (parts, whole) = computed(1, &[4, 8], &[(2, f32::NAN)], 0.5);
        assert!(parts.is_empty() && whole.stats == SampleStats::default());
        assert_eq!(whole.vector[..], [0.0; 10]);
        let (parts, whole) = computed(1, &[4, 8], &[], f64::NAN);
        assert!(parts.is_empty() && whole.stats == SampleStats::default());
        // The first part is in sums already.
        for bad in [5, 9] {
            let (parts, whole) = computed(1, &[4, 8], &[(bad, f32::INFINITY)], 0.5);
            let given = if bad == 5 { 4 } else { 8 };
            assert_eq!(parts.iter().map(|part| part.elements.len()).sum::<usize>(), given);
            assert!(whole.stats.samples == 4 && whole.stats.loss.is_nan());
            assert_eq!(whole.vector[..given], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0][..given]);
            assert!(whole.vector[given..].iter().all(|&element| element == 0.0));
        }
    }

    #[test]
    #[should_panic(expected = "the beginning of its gradient, and each time more of it")]
    fn a_task_that_takes_elements_back_is_refused() {
        computed(1, &[4, 3], &[], 0.5);
    }
}
