//! Sparse linear classifiers: one of two classes from many features, most of which are 0 in each sample.
//!
//! ```text
//! z = b + sum over a sample's entries of w[column] * value        second class if z > 0
//! ```
//! The [loss](MarginLoss) decides which classifier it is: logistic regression, in which P(second class) = 1 / (1 + exp(-z)), or a support
//! vector machine. The gradient of a sample is zero outside the sample's own columns, so with millions of features a
//! worker reads and changes only the columns of its samples. The bias is one more feature, which is 1 in every sample. L1 and L2
//! belong to the optimizer (`prox`, `ftrl`), which treats all parameters alike, the bias included.
//!
//! # Invariants
//! - Margins are summed in `f64`, in the order of columns.

use std::ops::Range;

use peergrad_protocol::manifest::Manifest;

use super::margin_loss::MarginLoss;
use super::{Evaluation, SparseTask, Task};
use crate::data::sparse::Sparse;

/// A source of samples: a file's, or made up.
pub trait SparseSamples: Send + Sync + 'static {
    /// Features of a sample.
    fn width(&self) -> usize;

    /// Number of samples.
    fn count(&self) -> u32;

    /// Calls `visit` with a sample: its columns, ascending and each below the width; their values; and whether the sample is of the
    /// second class.
    fn with<T>(&self, sample: u32, visit: impl FnOnce(&[u32], &[f32], bool) -> T) -> T;
}

/// The samples of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseDataset {
    /// (samples, width)
    pub features: Sparse,
    /// (samples) Whether the sample is of the second class.
    pub labels: Vec<bool>,
}

impl SparseDataset {
    /// A copy of the samples with these indices, in the order of `rows`.
    #[must_use]
    pub fn select(&self, rows: &[u32]) -> Self {
        let mut features = Sparse::new(self.features.width());
        for &row in rows {
            let (columns, values) = self.features.row(row as usize);
            columns.iter().zip(values).for_each(|(&column, &value)| features.push(column, value));
            features.end_row();
        }
        Self { features, labels: rows.iter().map(|&row| self.labels[row as usize]).collect() }
    }
}

impl SparseSamples for SparseDataset {
    fn width(&self) -> usize {
        self.features.width()
    }

    fn count(&self) -> u32 {
        u32::try_from(self.labels.len()).expect("a file has fewer than 2^32 rows")
    }

    fn with<T>(&self, sample: u32, visit: impl FnOnce(&[u32], &[f32], bool) -> T) -> T {
        let (columns, values) = self.features.row(sample as usize);
        visit(columns, values, self.labels[sample as usize])
    }
}

/// A linear classifier of samples, the last of which are held out.
#[derive(Debug)]
pub struct SparseLinear<S> {
    samples: S,
    /// Samples from this one on are held out.
    training: u32,
    loss: MarginLoss,
}

impl<S: SparseSamples> SparseLinear<S> {
    /// A task that trains on the first `training` samples and evaluates on the others.
    ///
    /// # Panics
    /// If there are fewer samples.
    #[must_use]
    pub fn new(samples: S, training: u32, loss: MarginLoss) -> Self {
        assert!(training <= samples.count(), "{training} of {} samples are trained", samples.count());
        Self { samples, training, loss }
    }

    fn features(&self) -> usize {
        self.samples.width()
    }
}

/// `weight` (features), `bias` (1).
#[must_use]
pub fn manifest(features: usize) -> Manifest {
    Manifest::tensor("weight", [features as u32]).and("bias", [1])
}

/// The mean loss and the accuracy on the samples `which`; without samples, a loss of 0 and no accuracy.
#[must_use]
pub fn evaluate(
    of: MarginLoss,
    samples: &impl SparseSamples,
    which: Range<u32>,
    parameters: &[f32],
) -> Evaluation {
    let (weights, bias) = parameters.split_at(samples.width());
    let (mut loss, mut right) = (0.0, 0_u64);
    let count = which.end.saturating_sub(which.start);
    for sample in which {
        samples.with(sample, |columns, values, label| {
            let margin = margin(columns.iter().map(|&column| weights[column as usize]), values, bias[0]);
            loss += of.loss(margin, label);
            right += u64::from((margin > 0.0) == label);
        });
    }
    Evaluation {
        samples: count,
        loss: if count == 0 { 0.0 } else { loss / f64::from(count) },
        accuracy: (count > 0).then(|| right as f64 / f64::from(count)),
    }
}

/// The margin of each of the samples `which`.
#[must_use]
pub fn margins(samples: &impl SparseSamples, which: Range<u32>, parameters: &[f32]) -> Vec<f32> {
    let (weights, bias) = parameters.split_at(samples.width());
    let of_sample = |columns: &[u32], values: &[f32], _| {
        margin(columns.iter().map(|&column| weights[column as usize]), values, bias[0]) as f32
    };
    which.map(|sample| samples.with(sample, of_sample)).collect()
}

fn margin(weights: impl Iterator<Item = f32>, values: &[f32], bias: f32) -> f64 {
    let products = weights.zip(values).map(|(weight, &value)| f64::from(weight) * f64::from(value));
    products.sum::<f64>() + f64::from(bias)
}

impl<S: SparseSamples> Task for SparseLinear<S> {
    fn manifest(&self) -> Manifest {
        manifest(self.features())
    }

    fn sample_count(&self) -> u32 {
        self.training
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let bias = self.features();
        let mut loss = 0.0;
        for &sample in samples {
            self.samples.with(sample, |columns, values, label| {
                let weights = columns.iter().map(|&column| parameters[column as usize]);
                let margin = margin(weights, values, parameters[bias]);
                loss += self.loss.loss(margin, label);
                let slope = self.loss.slope(margin, label) as f32;
                for (&column, &value) in columns.iter().zip(values) {
                    gradient[column as usize] += slope * value;
                }
                gradient[bias] += slope;
            });
        }
        loss
    }

    fn held_out_count(&self) -> u32 {
        self.samples.count() - self.training
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        evaluate(self.loss, &self.samples, self.training..self.samples.count(), parameters)
    }

    fn sparse(&self) -> Option<&dyn SparseTask> {
        Some(self)
    }
}

impl<S: SparseSamples> SparseTask for SparseLinear<S> {
    fn touched(&self, samples: &[u32]) -> Vec<u32> {
        if samples.is_empty() {
            return Vec::new();
        }
        // One bit for each feature takes less memory than a list of the entries of a large batch.
        let mut words = vec![0_u64; self.features() / 64 + 1];
        words[self.features() / 64] |= 1 << (self.features() % 64);
        for &sample in samples {
            self.samples.with(sample, |columns, _, _| {
                columns.iter().for_each(|&column| words[column as usize / 64] |= 1 << (column % 64));
            });
        }
        let mut touched = Vec::new();
        for (word, mut bits) in (0..).zip(words) {
            while bits > 0 {
                touched.push(64 * word + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        touched
    }

    fn gradient_at(&self, touched: &[u32], parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let Some(bias) = touched.len().checked_sub(1) else { return 0.0 };
        let mut places = Vec::new();
        let mut loss = 0.0;
        for &sample in samples {
            self.samples.with(sample, |columns, values, label| {
                places.clear();
                // Both ascend, so each column is sought behind the one before.
                let mut from = 0;
                for column in columns {
                    from += touched[from..].binary_search(column).expect("a touched parameter");
                    places.push(from);
                }
                let margin = margin(places.iter().map(|&place| parameters[place]), values, parameters[bias]);
                loss += self.loss.loss(margin, label);
                let slope = self.loss.slope(margin, label) as f32;
                places.iter().zip(values).for_each(|(&place, &value)| gradient[place] += slope * value);
                gradient[bias] += slope;
            });
        }
        loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six features of which each sample has some.
    fn task_of(loss: MarginLoss) -> SparseLinear<SparseDataset> {
        let mut features = Sparse::new(6);
        let rows: [&[(u32, f32)]; 5] =
            [&[(0, 1.0), (3, -2.0)], &[(1, 0.5)], &[(3, 1.5), (5, 1.0)], &[], &[(0, 2.0), (1, 1.0)]];
        for row in rows {
            row.iter().for_each(|&(column, value)| features.push(column, value));
            features.end_row();
        }
        let labels = vec![true, false, true, false, false];
        SparseLinear::new(SparseDataset { features, labels }, 4, loss)
    }

    fn task() -> SparseLinear<SparseDataset> {
        task_of(MarginLoss::CrossEntropy)
    }

    const AT: [f32; 7] = [0.5, -1.0, 2.0, 0.25, 3.0, -0.75, 0.125];

    #[test]
    fn loss_and_gradient_by_hand() {
        let task = task();
        let mut gradient = vec![f32::NAN; 7];
        // Margin 0.5 - 0.5 + 0.125.
        let loss = task.gradient(&AT, &[0], &mut gradient);
        let probability = 1.0 / (1.0 + (-0.125_f64).exp());
        assert!((loss + probability.ln()).abs() < 1e-12, "{loss}");
        let slope = (probability - 1.0) as f32;
        assert_eq!(gradient, [slope, 0.0, 0.0, -2.0 * slope, 0.0, 0.0, slope]);
        // The same margin is 0.875 short of 1.
        let loss = task_of(MarginLoss::SquaredHinge).gradient(&AT, &[0], &mut gradient);
        assert_eq!(loss, 0.875 * 0.875);
        assert_eq!(gradient, [-1.75, 0.0, 0.0, 3.5, 0.0, 0.0, -1.75]);
    }

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        agrees(&task());
        agrees(&task_of(MarginLoss::SquaredHinge));
    }

    fn agrees(task: &SparseLinear<SparseDataset>) {
        let mut gradient = vec![0.0; 7];
        let loss = |parameters: &[f32]| task.gradient(parameters, &[0, 1, 2, 3], &mut [0.0; 7]);
        task.gradient(&AT, &[0, 1, 2, 3], &mut gradient);
        for index in 0..7 {
            let shifted = |by: f32| {
                let mut parameters = AT;
                parameters[index] += by;
                loss(&parameters)
            };
            let slope = (shifted(1e-2) - shifted(-1e-2)) / 2e-2;
            assert!((slope - f64::from(gradient[index])).abs() < 2e-3, "{index}: {slope}");
        }
    }

    #[test]
    fn a_gradient_needs_only_the_touched_parameters() {
        let (task, mut whole) = (task(), vec![0.0; 7]);
        for samples in [&[0, 1][..], &[2], &[3], &[0, 1, 2, 3]] {
            let touched = task.touched(samples);
            let of = |values: &[f32]| touched.iter().map(|&index| values[index as usize]).collect::<Vec<_>>();
            let mut gradient = vec![f32::NAN; touched.len()];
            let loss = task.gradient_at(&touched, &of(&AT), samples, &mut gradient);
            assert_eq!(loss, task.gradient(&AT, samples, &mut whole));
            assert_eq!(gradient, of(&whole));
            let others = (0..7).filter(|index| !touched.contains(index));
            assert!(others.map(|index| whole[index as usize]).all(|slope| slope == 0.0));
        }
        assert_eq!((task.touched(&[0]), task.touched(&[])), (vec![0, 3, 6], vec![]));
        assert_eq!(task.gradient_at(&[], &[], &[], &mut []), 0.0);
    }

    #[test]
    fn held_out_samples_are_the_last() {
        let found = task().evaluate(&AT);
        assert_eq!((found.samples, found.accuracy), (1, Some(0.0)));
        // Margin 1 - 1 + 0.125, of the first class.
        assert!((found.loss - 0.125_f64.exp().ln_1p()).abs() < 1e-12);
    }
}
