//! The data set: standardized samples as `f32`, in two parts, the training samples and the held-out samples.
//!
//! # Invariants
//! - Which rows are held out is a function of (seed, number of rows, number held out).
//! - Mean and scale of the standardization are those of the training rows.

use peergrad_protocol::cursor::permutation;

use super::dense_table::DenseTable;
use super::labels::Labels;
use super::standardize::Standardization;

/// Samples and their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// (rows, columns) row-major.
    pub features: Vec<f32>,
    /// Features of one sample.
    pub columns: usize,
    /// (rows)
    pub labels: Labels,
}

/// The samples of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// The samples that the model learns from.
    pub training: Samples,
    /// The samples that the model is evaluated on.
    pub held_out: Samples,
}

/// The row numbers of a file, from 0, in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutSplit {
    /// Rows that are trained.
    pub training: Vec<u32>,
    /// Rows that are never trained.
    pub held_out: Vec<u32>,
}

impl HeldOutSplit {
    /// Shuffles the row numbers below `row_count`, and holds out the last `held_out_count` of them.
    ///
    /// # Panics
    /// If `held_out_count` is larger than `row_count`.
    #[must_use]
    pub fn draw(seed: u64, row_count: u32, held_out_count: u32) -> Self {
        /// The split uses the shuffle of an epoch that no run reaches.
        const SPLIT_EPOCH: u64 = u64::MAX;
        assert!(held_out_count <= row_count, "{held_out_count} of {row_count} rows held out");
        let mut training = permutation(seed, SPLIT_EPOCH, row_count);
        let held_out = training.split_off((row_count - held_out_count) as usize);
        Self { training, held_out }
    }
}

impl Samples {
    /// The rows `rows` of `table`, standardized; `labels` are those of all rows of the table.
    #[must_use]
    pub fn select(
        table: &DenseTable,
        labels: &Labels,
        standardization: &Standardization,
        rows: &[u32],
    ) -> Self {
        Self {
            features: standardization.apply(&table.features, table.columns, rows),
            columns: table.columns,
            labels: labels.select(rows),
        }
    }

    /// Number of samples.
    #[must_use]
    pub fn rows(&self) -> usize {
        match &self.labels {
            Labels::Classes(classes) => classes.len(),
            Labels::Numbers(numbers) => numbers.len(),
        }
    }

    /// The features of one sample.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.features[row * self.columns..][..self.columns]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_is_a_partition_that_follows_the_seed() {
        let split = HeldOutSplit::draw(3, 100, 20);
        assert_eq!((split.training.len(), split.held_out.len()), (80, 20));
        let mut all = [split.training.clone(), split.held_out.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert_eq!(split, HeldOutSplit::draw(3, 100, 20));
        assert_ne!(split, HeldOutSplit::draw(4, 100, 20));
        assert!(HeldOutSplit::draw(3, 10, 0).held_out.is_empty());
    }
}
