//! Trials: the same study with several seeds, and the rate at which it is fair to compare algorithms.
//!
//! Near the largest rate that an algorithm bears, any delay ruins it; far below that, none does. And who is at the target after ten
//! iterations cannot have waited for sixteen. So a slowdown says something about an algorithm only at a rate that can be
//! compared: here the one at which each comes to the target in about as many batches, its `baseline_batches`, while nothing is stale. That rate
//! is kept for every staleness.

use std::ops::Range;

use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::Task;
use peergrad_page::pairing;

use super::{Setting, Study, Target};

/// One algorithm on one task, whatever the rate and the staleness.
#[derive(Clone)]
pub struct Trials<'a> {
    /// The model and its data.
    pub task: &'a dyn Task,
    /// How many there are.
    pub workers: u32,
    /// Samples of a batch.
    pub batch: u32,
    /// Of each worker.
    pub rule: Optimizer,
    /// One study for each.
    pub seeds: Range<u64>,
    /// Where they go.
    pub target: Target,
}

impl Trials<'_> {
    /// Batches to the target, by seed; `None` where it is not reached within `batches_max`.
    #[must_use]
    pub fn batches(&self, rate: f64, staleness: u64, batches_max: u64) -> Vec<Option<u64>> {
        let &Self { task, workers, batch, rule, target, .. } = self;
        let study = |seed| Study::new(task, Setting { workers, staleness, batch, rule, rate, seed });
        self.seeds.clone().map(|seed| study(seed).batches_to(target, batches_max)).collect()
    }

    /// The smallest rate, of twelve a decade, with which most seeds come to the target in `baseline_batches` batches without staleness; `None` if
    /// there is none.
    #[must_use]
    pub fn rate(&self, baseline_batches: u64) -> Option<f64> {
        let decades = [1e6, 1e5, 1e4, 1e3, 1e2, 1e1];
        let mut rates = decades.iter().flat_map(|decade| PREFERRED.map(|number| number / decade));
        rates.find(|&rate| median(&self.batches(rate, 0, baseline_batches)).is_some())
    }
}

/// The one in the middle, where those that do not come to the target come last; `None` if it is one of them.
#[must_use]
pub fn median(batches: &[Option<u64>]) -> Option<f64> {
    let batches = batches.iter().map(|batches| batches.map_or(f64::INFINITY, |batches| batches as f64));
    pairing::median(batches).filter(|median| median.is_finite())
}

/// About evenly apart, with two digits each (IEC 60063, E12).
const PREFERRED: [f64; 12] = [10.0, 12.0, 15.0, 18.0, 22.0, 27.0, 33.0, 39.0, 47.0, 56.0, 68.0, 82.0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Squares;

    #[test]
    fn half_of_them_are_not_most() {
        assert_eq!(median(&[Some(8), None, Some(4)]), Some(8.0));
        assert_eq!(median(&[Some(8), None]), None);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_rate_is_the_smallest_that_keeps_the_pace() {
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
