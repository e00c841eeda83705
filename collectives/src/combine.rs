//! Combining: how an owner turns all contributions to its shard into one result.
//!
//! A sum trusts every member: one contribution that is a thousand times too large dominates it. A robust mean looks at each element by
//! itself, and leaves out contributions that are far from the others.
//!
//! ```text
//! contributions to one element    -4000   0.9   1.0   1.1      sum / 4: -999
//! trimmed by one at each end              0.9   1.0            0.95
//! median                                  0.9   1.0            0.95
//! ```
//! # Invariants
//! - The result has the scale of the sum of all contributions: dividing it by the number of all samples gives the mean.
//! - Contributions of no samples are ignored.
//! - Only the owner combines, so all members get the same bits.
//!
//! # Reading
//! Yin et al., *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, 2018, definitions 1 and 2. If members' samples
//! differ in kind, a robust mean is biased, because it leaves out what is rare.

/// How an owner combines contributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// Their sum.
    #[default]
    Sum,
    /// For each element, the mean without this many of the largest and of the smallest contributions; the median if none would remain.
    Trimmed(usize),
    /// For each element, the middle contribution, or the mean of the middle two.
    Median,
}

impl Combine {
    /// Whether the owner needs all contributions separately, not only their sum.
    #[must_use]
    pub fn is_robust(&self) -> bool {
        *self != Self::Sum
    }

    /// Combines `contributions` into `result`. Each contribution is a sum over a number of samples, and has the length of `result`.
    ///
    /// # Panics
    /// If this is [`Combine::Sum`], or lengths differ.
    pub fn combine(&self, contributions: &[(&[f32], u64)], result: &mut [f32]) {
        let heard: Vec<(&[f32], f32)> = contributions
            .iter()
            .filter(|(_, samples)| *samples > 0)
            .map(|(elements, samples)| (*elements, *samples as f32))
            .collect();
        let total: f32 = heard.iter().map(|(_, samples)| samples).sum();
        let kept = match *self {
            Self::Sum => unreachable!("sums are added up as they arrive"),
            Self::Trimmed(trim) if 2 * trim < heard.len() => trim..heard.len() - trim,
            Self::Trimmed(_) | Self::Median => heard.len().saturating_sub(1) / 2..heard.len() / 2 + 1,
        };
        if heard.is_empty() {
            return result.fill(0.0);
        }
        let mut column: Vec<f32> = vec![0.0; heard.len()];
        for (element, result) in result.iter_mut().enumerate() {
            for (place, (elements, samples)) in column.iter_mut().zip(&heard) {
                *place = elements[element] / samples;
            }
            // NaN sort to the ends.
            column.sort_unstable_by(f32::total_cmp);
            let kept = &column[kept.clone()];
            *result = kept.iter().sum::<f32>() / kept.len() as f32 * total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_combined(combine: Combine, contributions: &[(f32, u64)], expected: f32) {
        let elements: Vec<([f32; 1], u64)> =
            contributions.iter().map(|(x, samples)| ([*x], *samples)).collect();
        let elements: Vec<(&[f32], u64)> = elements.iter().map(|(x, samples)| (&x[..], *samples)).collect();
        let mut result = [f32::NAN];
        combine.combine(&elements, &mut result);
        assert!((result[0] - expected).abs() < 1e-5 * expected.abs().max(1.0), "{} {expected}", result[0]);
    }

    #[test]
    fn outliers_among_the_means_of_members_are_left_out() {
        // Means of 1, 2, 3 and one that lies: 1 + 2 + 3 + 2 samples.
        let four = [(1.0, 1), (4.0, 2), (9.0, 3), (-8000.0, 2)];
        assert_combined(Combine::Trimmed(1), &four, 1.5 * 8.0);
        assert_combined(Combine::Median, &four, 1.5 * 8.0);
        assert_combined(Combine::Trimmed(0), &four[..3], 2.0 * 6.0);
        assert_combined(Combine::Median, &four[..3], 2.0 * 6.0);
    }

    #[test]
    fn too_few_contributions_to_trim_give_their_median() {
        assert_combined(Combine::Trimmed(2), &[(1.0, 1), (5.0, 1), (90.0, 1)], 15.0);
        assert_combined(Combine::Trimmed(1), &[(1.0, 1), (5.0, 1)], 6.0);
        assert_combined(Combine::Trimmed(3), &[(7.0, 2)], 7.0);
    }

    #[test]
    fn a_contribution_without_samples_is_ignored_and_nan_is_an_outlier() {
        assert_combined(Combine::Median, &[(1.0, 1), (0.0, 0), (3.0, 1), (5.0, 1)], 9.0);
        assert_combined(
            Combine::Trimmed(1),
            &[(1.0, 1), (f32::NAN, 1), (3.0, 1), (f32::NEG_INFINITY, 1)],
            8.0,
        );
        assert_combined(Combine::Median, &[(4.0, 0)], 0.0);
    }
}
