//! The layout of LIBSVM and IDX files, whose columns have numbers and no names.

use serde::{Deserialize, Serialize};

use super::column_names::{Column, find_column};
use super::error::DenseTableError;
use super::limits::FEATURES_MAX;

/// How a LIBSVM or IDX file is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbered {
    /// Its format.
    pub format: NumberedFormat,
    /// Values of a sample, including those that the file leaves out because they are 0.
    pub width: usize,
    /// Indices of the values that are features, from 0, in the order in which the model sees them; empty if all are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<usize>,
}

/// The formats whose columns have numbers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumberedFormat {
    /// LIBSVM: a label and `index:value` pairs.
    Libsvm,
    /// IDX: arrays of numbers.
    Idx,
}

impl Numbered {
    /// Infers what the user has not said: `features` are the columns that the user chose, if any.
    ///
    /// # Errors
    /// If a chosen column does not exist or is chosen twice, or there are no features or too many.
    pub(super) fn infer(
        file: &str,
        format: NumberedFormat,
        width: usize,
        features: Option<&[Column]>,
    ) -> Result<Self, DenseTableError> {
        let (what, limit) = ("features", FEATURES_MAX);
        if width > limit {
            return Err(DenseTableError::TooMany { file: file.to_owned(), what, found: width, limit });
        }
        let find = |column: &Column| find_column(file, column, width, &[]);
        let chosen = features.map(|columns| columns.iter().map(find).collect::<Result<Vec<_>, _>>());
        let (chosen, is_none) =
            (chosen.transpose()?.unwrap_or_default(), features.is_some_and(<[_]>::is_empty));
        let layout = Self { format, width, features: chosen };
        match layout.problem().or_else(|| is_none.then(|| "no column is listed".to_owned())) {
            Some(problem) => Err(DenseTableError::Columns { file: file.to_owned(), problem }),
            None => Ok(layout),
        }
    }

    /// Features of a sample.
    #[must_use]
    pub fn columns(&self) -> usize {
        if self.features.is_empty() { self.width } else { self.features.len() }
    }

    /// The indices of the values that are features, from 0, in the order in which the model sees them.
    pub fn chosen(&self) -> impl Iterator<Item = usize> {
        let all = if self.features.is_empty() { 0..self.width } else { 0..0 };
        all.chain(self.features.iter().copied())
    }

    /// Why this layout cannot be used, in words; `None` if it can.
    pub(super) fn problem(&self) -> Option<String> {
        if !(1..=FEATURES_MAX).contains(&self.width) {
            return Some(format!("{} features, where 1 to {FEATURES_MAX} are possible", self.width));
        }
        let mut sorted = self.features.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("column {} is used twice", twice[0].saturating_add(1)));
        }
        let beyond = sorted.last().filter(|&&column| column >= self.width)?;
        Some(format!("column {} of {}", beyond.saturating_add(1), self.width))
    }
}
