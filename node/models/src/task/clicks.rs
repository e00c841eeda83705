//! Synthetic samples that resemble a log of clicks, at any size: very many features, of which each sample has few.
//!
//! A sample is a function of the seed and its index, so nothing is stored, and a worker generates only the samples that it trains. Few
//! features are common and most are rare. A quarter of the features carry information about the class.
//!
//! # Invariants
//! - The same samples on every machine: draws from a fixed generator, + - x / and `libm`.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::sparse_linear::SparseSamples;
use crate::data::limits::FEATURES_MAX;

/// A source of synthetic samples.
#[derive(Clone, Debug)]
pub struct SyntheticClicks {
    features: u32,
    samples: u32,
    entries: usize,
    seed: u64,
}

impl SyntheticClicks {
    /// A source of `samples` samples of `features` features. A sample has at most `entries` of them: fewer if a feature is drawn twice.
    ///
    /// # Panics
    /// If there are no features, more than [`FEATURES_MAX`], or fewer than a sample has.
    #[must_use]
    pub fn new(features: usize, samples: u32, entries: usize, seed: u64) -> Self {
        assert!((1..=FEATURES_MAX).contains(&features), "{features} features");
        assert!(entries <= features, "{entries} of {features} features in a sample");
        Self { features: features as u32, samples, entries, seed }
    }

    fn generator(&self, stream: u8, number: u32) -> ChaCha8Rng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..12].copy_from_slice(&number.to_le_bytes());
        key[12] = stream;
        key[16..22].copy_from_slice(b"clicks");
        ChaCha8Rng::from_seed(key)
    }

    /// What feature `column` adds to the margin of the second class; 0 for a feature without information.
    fn truth(&self, column: u32) -> f64 {
        let mut generator = self.generator(1, column);
        let is_telling = generator.random_range(0..4) == 0;
        if is_telling { generator.random_range(-2.0..2.0) } else { 0.0 }
    }
}

impl SparseSamples for SyntheticClicks {
    fn width(&self) -> usize {
        self.features as usize
    }

    fn count(&self) -> u32 {
        self.samples
    }

    fn with<T>(&self, sample: u32, visit: impl FnOnce(&[u32], &[f32], bool) -> T) -> T {
        let mut generator = self.generator(0, sample);
        let mut draw = || {
            // As with words, the probability of the n-th most common feature is about proportional to 1 / n (Zipf's law).
            let drawn = libm::pow(f64::from(self.features), generator.random_range(0.0..1.0)) as u32;
            drawn.clamp(1, self.features) - 1
        };
        let mut columns: Vec<u32> = (0..self.entries).map(|_| draw()).collect();
        columns.sort_unstable();
        columns.dedup();
        let margin: f64 = columns.iter().map(|&column| self.truth(column)).sum();
        let probability = 1.0 / (1.0 + libm::exp(-margin));
        let label = generator.random_range(0.0..1.0) < probability;
        visit(&columns, &vec![1.0; columns.len()], label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::margin_loss::MarginLoss;
    use crate::task::sparse_linear::SparseLinear;
    use crate::task::{SparseTask, Task};

    #[test]
    fn samples_are_determined_by_their_numbers_and_the_seed() {
        let sample = |seed, number| {
            SyntheticClicks::new(10_000_000, 50, 40, seed)
                .with(number, |columns, _, label| (columns.to_vec(), label))
        };
        assert_eq!(sample(1, 3), sample(1, 3));
        assert_ne!(sample(1, 3).0, sample(1, 4).0);
        assert_ne!(sample(1, 3).0, sample(2, 3).0);
        let (columns, _) = sample(1, 3);
        assert!(columns.is_sorted_by(|one, next| one < next) && columns.iter().all(|&it| it < 10_000_000));
        assert!((20..=40).contains(&columns.len()));
        let labels = (0..50).filter(|&number| sample(1, number).1).count();
        assert!((10..40).contains(&labels), "{labels} of 50 are of the second class");
    }

    #[test]
    fn labels_can_be_learned_from_the_features() {
        let task = SparseLinear::new(SyntheticClicks::new(200, 3000, 10, 7), 2000, MarginLoss::CrossEntropy);
        let mut parameters = vec![0.0; 201];
        let mut gradient = vec![0.0; 201];
        let before = task.evaluate(&parameters);
        let all: Vec<u32> = (0..2000).collect();
        for _ in 0..100 {
            task.gradient(&parameters, &all, &mut gradient);
            parameters.iter_mut().zip(&gradient).for_each(|(weight, slope)| *weight -= 2e-3 * slope);
        }
        let after = task.evaluate(&parameters);
        assert!(after.loss < 0.85 * before.loss, "{before:?}, then {after:?}");
        assert!(task.touched(&[0, 1, 2]).len() <= 31);
    }
}
