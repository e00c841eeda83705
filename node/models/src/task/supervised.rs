//! Supervised learning: a network and labelled samples, as a task.
//!
//! All built-in models of dense tables are this task. A gradient call borrows scratch buffers from a pool and returns
//! them, so that after the first calls nothing of the size of a batch or of the parameters is allocated. Several calls may run at once.

use std::sync::{Mutex, PoisonError};

use peergrad_protocol::manifest::Manifest;

use super::loss::{Loss, Score};
use super::network::{BLOCK_ROWS, Network, Scratch};
use super::{Evaluation, Task};
use crate::data::dataset::{Dataset, Samples};

/// A network that learns from a data set.
#[derive(Debug)]
pub struct Supervised {
    network: Network,
    dataset: Dataset,
    pool: Mutex<Vec<Scratch>>,
}

impl Supervised {
    /// A task that trains `network` on `dataset`.
    ///
    /// # Panics
    /// If the samples have another number of features than the network.
    #[must_use]
    pub fn new(network: Network, dataset: Dataset) -> Self {
        assert_eq!(network.features(), dataset.training.columns, "features of the samples");
        Self { network, dataset, pool: Mutex::default() }
    }

    /// Lends scratch to `work`.
    fn with_scratch<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let taken = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = taken.unwrap_or_else(|| self.network.scratch());
        let result = work(&mut scratch);
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        result
    }
}

impl Task for Supervised {
    fn manifest(&self) -> Manifest {
        self.network.manifest()
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        self.network.initial(seed, parameters);
    }

    /// A multiplication and an addition for each weight, once forward and twice backward.
    fn flops_per_sample(&self) -> Option<u64> {
        Some(6 * self.manifest().parameter_count() as u64)
    }

    fn sample_count(&self) -> u32 {
        u32::try_from(self.dataset.training.rows()).expect("a table has fewer than 2^32 rows")
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        let training = &self.dataset.training;
        self.with_scratch(|scratch| {
            self.network.gradient(parameters, training, samples, scratch, gradient).loss
        })
    }

    fn held_out_count(&self) -> u32 {
        u32::try_from(self.dataset.held_out.rows()).expect("a table has fewer than 2^32 rows")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        self.with_scratch(|scratch| evaluate(&self.network, parameters, &self.dataset.held_out, scratch))
    }
}

/// The mean loss and the accuracy on all of `samples`; without samples, a loss of 0 and no accuracy.
///
/// Numbers are standardized before training, so the loss of a predicted number is half the share of variance that the model does not
/// explain.
#[must_use]
pub fn evaluate(
    network: &Network,
    parameters: &[f32],
    samples: &Samples,
    scratch: &mut Scratch,
) -> Evaluation {
    let mut total = Score::default();
    let count = samples.rows();
    for start in (0..count).step_by(BLOCK_ROWS) {
        total += network.score(parameters, samples, start..count.min(start + BLOCK_ROWS), scratch);
    }
    let share = |sum: f64| if count == 0 { 0.0 } else { sum / count as f64 };
    let has_accuracy = count > 0 && network.loss() != Loss::HalfSquaredError;
    Evaluation {
        samples: u32::try_from(count).expect("a data set has fewer than 2^32 rows"),
        loss: share(total.loss),
        accuracy: has_accuracy.then(|| share(total.correct as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::labels::Labels;
    use crate::task::activation::Activation;

    fn samples(rows: usize) -> Samples {
        let features = (0..rows * 2).map(|i| ((i * 13 % 17) as f32 - 8.0) / 8.0).collect();
        Samples { features, columns: 2, labels: Labels::Classes((0..rows as u32).map(|i| i % 3).collect()) }
    }

    fn task(rows: usize) -> (Supervised, Vec<f32>) {
        let network = Network::new(&[2, 7, 3], Activation::Tanh, Loss::SoftmaxCrossEntropy);
        let mut parameters = vec![0.0; network.manifest().parameter_count()];
        network.initial(1, &mut parameters);
        (Supervised::new(network, Dataset { training: samples(rows), held_out: samples(600) }), parameters)
    }

    #[test]
    fn gradients_of_parts_add_up() {
        let (task, parameters) = task(700);
        let gradient = |samples: &[u32]| {
            let mut gradient = vec![f32::NAN; parameters.len()];
            let loss = task.gradient(&parameters, samples, &mut gradient);
            (loss, gradient)
        };
        let all: Vec<u32> = (0..700).rev().collect();
        let (loss, whole) = gradient(&all);
        let (first, second) = (gradient(&all[..100]), gradient(&all[100..]));
        assert!((loss - first.0 - second.0).abs() < 1e-3);
        for (index, sum) in whole.iter().enumerate() {
            assert!((sum - first.1[index] - second.1[index]).abs() < 1e-3, "{index}");
        }
    }

    #[test]
    fn no_samples_give_a_zero_gradient() {
        let (task, parameters) = task(5);
        let mut gradient = vec![f32::NAN; parameters.len()];
        assert_eq!(task.gradient(&parameters, &[], &mut gradient), 0.0);
        assert!(gradient.iter().all(|&element| element == 0.0));
    }

    #[test]
    fn scratch_memory_is_reused() {
        let (task, parameters) = task(5);
        let mut gradient = vec![0.0; parameters.len()];
        for _ in 0..3 {
            task.gradient(&parameters, &[0, 1], &mut gradient);
            task.evaluate(&parameters);
        }
        assert_eq!(task.pool.lock().unwrap().len(), 1);
    }

    #[test]
    fn evaluation_goes_over_every_held_out_sample() {
        let (task, parameters) = task(5);
        let found = task.evaluate(&parameters);
        let mut scratch = task.network.scratch();
        let held_out = samples(600);
        let (mut loss, mut right) = (0.0, 0);
        for row in 0..600 {
            let score = task.network.score(&parameters, &held_out, row..row + 1, &mut scratch);
            loss += score.loss;
            right += score.correct;
        }
        assert_eq!(found.samples, 600);
        assert!((found.loss - loss / 600.0).abs() < 1e-5);
        assert_eq!(found.accuracy, Some(right as f64 / 600.0));
    }

    #[test]
    fn without_held_out_samples_there_is_no_accuracy() {
        let network = Network::softmax(2, 3);
        let parameters = vec![0.0; network.manifest().parameter_count()];
        let found = evaluate(&network, &parameters, &samples(0), &mut network.scratch());
        assert_eq!(found, Evaluation { samples: 0, loss: 0.0, accuracy: None });
    }
}
