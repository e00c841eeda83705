//! Standardization: features moved to a mean of 0 and scaled to a spread of 1, from which a model learns fastest.
//!
//! The founder of a run measures mean and spread once, over the training rows, in `f64`. They travel in the specification as
//! numbers, so that no peer measures them again and gets another last bit.

use serde::{Deserialize, Serialize};

/// The function applied to each feature: `(value - mean) / scale`; the identity if both lists are empty. Neighbouring columns may share a
/// number, such as those of a picture's channel: then the lists have one for each part of the columns, and all parts are equally long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standardization {
    /// (parts of the columns), or empty.
    pub mean: Vec<f64>,
    /// (parts of the columns), all above 0; or empty.
    pub scale: Vec<f64>,
}

impl Standardization {
    /// Leaves every value as it is, for any number of columns.
    #[must_use]
    pub fn identity() -> Self {
        Self { mean: Vec::new(), scale: Vec::new() }
    }

    /// Whether this standardization can be applied to samples of `columns` features, with finite results.
    #[must_use]
    pub fn fits(&self, columns: usize) -> bool {
        let Self { mean, scale } = self;
        let is_complete = mean.len() == scale.len() && !mean.is_empty() && columns.is_multiple_of(mean.len());
        let is_finite =
            mean.iter().all(|mean| mean.is_finite()) && scale.iter().all(|scale| scale.is_finite());
        *self == Self::identity() || (is_complete && is_finite && scale.iter().all(|&scale| scale > 0.0))
    }

    /// Mean and standard deviation of each column of `values` (all rows, columns) over `rows`.
    ///
    /// A column that is constant over these rows has a scale of 1, since its deviation of 0 cannot be a divisor.
    #[must_use]
    pub fn fit(values: &[f64], columns: usize, rows: &[u32]) -> Self {
        Self::fit_parts(values, columns, columns, rows)
    }

    /// As [`fit`](Self::fit), for so many equal parts of the columns, each with one mean and one deviation.
    ///
    /// # Panics
    /// The columns cannot be divided so.
    #[must_use]
    pub fn fit_parts(values: &[f64], columns: usize, parts: usize, rows: &[u32]) -> Self {
        assert!(columns.is_multiple_of(parts), "{columns} columns in {parts} parts");
        let of_part = columns / parts.max(1);
        let count = (rows.len() * of_part).max(1) as f64;
        let row = |&row: &u32| &values[row as usize * columns..][..columns];
        let mut mean = vec![0.0; parts];
        for values in rows.iter().map(row) {
            values.iter().enumerate().for_each(|(column, value)| mean[column / of_part] += value);
        }
        mean.iter_mut().for_each(|sum| *sum /= count);
        let mut scale = vec![0.0; parts];
        let mut is_constant = vec![true; parts];
        let first = rows.first().map(row).unwrap_or_default();
        for values in rows.iter().map(row) {
            for (column, &value) in values.iter().enumerate() {
                let part = column / of_part;
                let distance = value - mean[part];
                scale[part] += distance * distance;
                is_constant[part] &= value == first[part * of_part];
            }
        }
        for (sum, is_constant) in scale.iter_mut().zip(is_constant) {
            let deviation = (*sum / count).sqrt();
            *sum = if is_constant || deviation == 0.0 { 1.0 } else { deviation };
        }
        Self { mean, scale }
    }

    /// As [`fit_parts`](Self::fit_parts), for values that are bytes: for each part, how often each byte occurs.
    #[must_use]
    pub fn of_byte_counts(counts: &[[u64; 256]]) -> Self {
        let fitted = counts.iter().map(|counts| {
            let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
                counts.iter().zip(0_u16..).map(|(&count, byte)| count as f64 * of(byte.into())).sum()
            };
            let count = counts.iter().sum::<u64>().max(1) as f64;
            let mean = sum(&|value| value) / count;
            let deviation = (sum(&|value| (value - mean) * (value - mean)) / count).sqrt();
            let is_constant = counts.iter().filter(|&&count| count > 0).count() < 2;
            (mean, if is_constant { 1.0 } else { deviation })
        });
        let (mean, scale) = fitted.unzip();
        Self { mean, scale }
    }

    /// The standardized number of each byte, for each part of the columns; the identity is one part.
    pub(crate) fn of_bytes(&self) -> Vec<[f32; 256]> {
        let numbers =
            |mean: f64, scale: f64| std::array::from_fn(|byte| standardized(byte as f64, mean, scale));
        if *self == Self::identity() {
            return vec![std::array::from_fn(|byte| byte as f32)];
        }
        self.mean.iter().zip(&self.scale).map(|(&mean, &scale)| numbers(mean, scale)).collect()
    }

    /// The standardized rows `rows` of `values` (all rows, columns).
    pub(super) fn apply(&self, values: &[f64], columns: usize, rows: &[u32]) -> Vec<f32> {
        let mut features = Vec::with_capacity(rows.len() * columns);
        for &row in rows {
            let values = &values[row as usize * columns..][..columns];
            if *self == Self::identity() {
                features.extend(values.iter().map(|&value| value as f32));
                continue;
            }
            let of_part = columns / self.mean.len();
            for (values, (mean, scale)) in values.chunks(of_part).zip(self.mean.iter().zip(&self.scale)) {
                features.extend(values.iter().map(|&value| standardized(value, *mean, *scale)));
            }
        }
        features
    }
}

/// A held-out value far outside a very small spread stays a finite `f32`.
fn standardized(value: f64, mean: f64, scale: f64) -> f32 {
    const FURTHEST: f64 = f32::MAX as f64;
    ((value - mean) / scale).clamp(-FURTHEST, FURTHEST) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standardization_by_hand() {
        // Columns: 0, 4 (and 100, which is held out); always 0.1.
        let values = [0.0, 0.1, 4.0, 0.1, 100.0, 0.1];
        let fitted = Standardization::fit(&values, 2, &[0, 1]);
        assert_eq!(fitted, Standardization { mean: vec![2.0, 0.1], scale: vec![2.0, 1.0] });
        assert_eq!(fitted.apply(&values, 2, &[2, 0]), [49.0, 0.0, -1.0, 0.0]);
    }

    #[test]
    fn parts_of_the_columns_share_a_mean() {
        // Two channels of two pixels: 0, 4 and 1, 1.
        let values = [0.0, 4.0, 1.0, 1.0];
        let fitted = Standardization::fit_parts(&values, 4, 2, &[0]);
        assert_eq!(fitted, Standardization { mean: vec![2.0, 1.0], scale: vec![2.0, 1.0] });
        assert_eq!(fitted.apply(&values, 4, &[0]), [-1.0, 1.0, 0.0, 0.0]);
        assert!(fitted.fits(4) && fitted.fits(2) && !fitted.fits(3) && !fitted.fits(1));
    }

    #[test]
    fn a_constant_column_keeps_its_scale_despite_rounding() {
        let values = vec![0.1; 1000];
        let rows: Vec<u32> = (0..1000).collect();
        assert_eq!(Standardization::fit(&values, 1, &rows).scale, [1.0]);
    }

    #[test]
    fn far_values_stay_finite() {
        let tiny = Standardization { mean: vec![0.0], scale: vec![1e-300] };
        assert_eq!(tiny.apply(&[1e38, -1e38], 1, &[0, 1]), [f32::MAX, f32::MIN]);
    }

    #[test]
    fn standardization_of_no_rows_is_the_identity() {
        let nothing = Standardization { mean: vec![0.0; 2], scale: vec![1.0; 2] };
        assert_eq!(Standardization::fit(&[], 2, &[]), nothing);
    }

    #[test]
    fn the_identity_leaves_values_unchanged() {
        assert_eq!(
            Standardization::identity().apply(&[1.5, -3.0, 0.1, 7.0], 2, &[1, 0]),
            [0.1, 7.0, 1.5, -3.0]
        );
        assert!(Standardization::identity().fits(3));
        let odd = |mean: &[f64], scale: &[f64]| {
            Standardization { mean: mean.to_vec(), scale: scale.to_vec() }.fits(1)
        };
        assert!(odd(&[0.0], &[2.0]));
        assert!(!odd(&[0.0], &[]) && !odd(&[0.0; 2], &[1.0; 2]));
        assert!(!odd(&[f64::NAN], &[1.0]) && !odd(&[0.0], &[0.0]) && !odd(&[0.0], &[f64::INFINITY]));
    }
}
