//! Trials: the same study with several seeds, and the rate at which a comparison of algorithms is fair.
//!
//! Near the largest rate at which an algorithm converges, any delay ruins it; far below that rate, no delay does. And a study that reaches
//! the target in ten iterations cannot have waited for sixteen. So a slowdown describes an algorithm only at a comparable rate. Here that
//! is the rate at which each algorithm reaches the target in about the same number of batches, its `baseline_batches`, without staleness.
//! The same rate is used for every staleness.

use std::ops::Range;

use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::Task;
use peergrad_page::pairing;

use super::{Setting, Study, Target};

/// One algorithm on one task; rate and staleness are given for each study.
#[derive(Clone)]
pub struct Trials<'a> {
    /// The model and its data.
    pub task: &'a dyn Task,
    /// Number of workers.
    pub workers: u32,
    /// Samples in a batch.
    pub batch: u32,
    /// The optimizer of each worker.
    pub rule: Optimizer,
    /// The seeds; there is one study for each.
    pub seeds: Range<u64>,
    /// The target that a study must reach.
    pub target: Target,
}

impl Trials<'_> {
    /// Batches to the target, by seed; `None` for a seed with which it is not reached within `batches_max`.
    #[must_use]
    pub fn batches(&self, rate: f64, staleness: u64, batches_max: u64) -> Vec<Option<u64>> {
        let &Self { task, workers, batch, rule, target, .. } = self;
        let study = |seed| Study::new(task, Setting { workers, staleness, batch, rule, rate, seed });
        self.seeds.clone().map(|seed| study(seed).batches_to(target, batches_max)).collect()
    }

    /// The smallest rate, of twelve a decade, with which most seeds reach the target in `baseline_batches` batches without staleness;
    /// `None` if there is none.
    #[must_use]
    pub fn rate(&self, baseline_batches: u64) -> Option<f64> {
        let decades = [1e6, 1e5, 1e4, 1e3, 1e2, 1e1];
        let mut rates = decades.iter().flat_map(|decade| PREFERRED.map(|number| number / decade));
        rates.find(|&rate| median(&self.batches(rate, 0, baseline_batches)).is_some())
    }
}

/// The median, where seeds that do not reach the target count as the largest; `None` if it is one of those.
#[must_use]
pub fn median(batches: &[Option<u64>]) -> Option<f64> {
    let batches = batches.iter().map(|batches| batches.map_or(f64::INFINITY, |batches| batches as f64));
    pairing::median(batches).filter(|median| median.is_finite())
}

/// Twelve rates a decade, about evenly spaced, with two digits each (IEC 60063, E12).
const PREFERRED: [f64; 12] = [10.0, 12.0, 15.0, 18.0, 22.0, 27.0, 33.0, 39.0, 47.0, 56.0, 68.0, 82.0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Squares;

    #[test]
    fn a_median_needs_more_than_half_of_the_trials() {
        assert_eq!(median(&[Some(8), None, Some(4)]), Some(8.0));
        assert_eq!(median(&[Some(8), None]), None);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_chosen_rate_is_the_smallest_that_reaches_the_target_in_time() {
        let trials = Trials {
            task: &Squares::new(200, 120),
            workers: 4,
            batch: 8,
            rule: Optimizer::Sgd { weight_decay: 0.0 },
            seeds: 1..4,
            target: Target::Loss(0.02),
        };
        let rate = trials.rate(200).expect("there is one");
        let own = median(&trials.batches(rate, 0, 1000)).expect("it is reached");
        let smaller = median(&trials.batches(rate / 1.3, 0, 1000)).expect("it is reached");
        assert!(own <= 200.0 && smaller > 200.0, "{rate}: {own}, {smaller}");
        assert_eq!(trials.rate(4), None, "no rate does it in one iteration");
    }
}
