//! Label texts: the labels of a file as text, before a [`Target`](super::labels::Target) turns them into classes or numbers.
//!
//! Most files have many rows and few distinct labels. So each distinct text is stored once, with the place where it first occurs, and
//! each row is an index into these texts.
//!
//! # Invariants
//! - The index of every row is that of a text, and all texts are different.
//! - All spellings of a whole number have the same text: `3`, `+3` and `3.0` are the label `3`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::limits::ROWS_MAX;

/// The labels of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelTexts {
    /// For each row, an index into the distinct texts.
    rows: Vec<u32>,
    /// The distinct texts, in the order of their first rows.
    distinct: Vec<LabelText>,
    /// The index in `distinct` of each text.
    known: BTreeMap<String, u32>,
}

/// A distinct label of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelText {
    /// The text, trimmed; a whole number is without sign `+` and decimal point.
    pub text: String,
    /// The first row with this label.
    pub place: RowLocation,
}

/// The place of a row in its file, in the terms in which a user would look for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLocation {
    /// The number of its line, from 1.
    Line(u64),
    /// The number of the sample, from 1, in a file without lines.
    Sample(u64),
}

impl fmt::Display for RowLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Sample(sample) => write!(f, "sample {sample}"),
        }
    }
}

impl LabelTexts {
    /// Adds the label of the next row. `place` is called only for a text that is new.
    ///
    /// # Panics
    /// If there are [`ROWS_MAX`] rows.
    pub fn push(&mut self, text: Cow<'_, str>, place: impl FnOnce() -> RowLocation) {
        assert!(self.rows.len() < ROWS_MAX, "rows are counted before they are added");
        let index = self.known.get(&*text).copied().unwrap_or_else(|| {
            let index = self.distinct.len() as u32;
            self.distinct.push(LabelText { text: text.to_string(), place: place() });
            self.known.insert(text.into_owned(), index);
            index
        });
        self.rows.push(index);
    }

    /// For each row, an index into [`distinct`](Self::distinct).
    #[must_use]
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The distinct labels, in the order of their first rows.
    #[must_use]
    pub fn distinct(&self) -> &[LabelText] {
        &self.distinct
    }
}

/// The text of a label that is a whole number; `None` for any other number.
pub(super) fn whole_text(value: f64) -> Option<String> {
    /// Up to here every whole number is an `f64`.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    (value.trunc() == value && value.abs() < WHOLE_MAX).then(|| (value as i64).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_kept_once_with_its_first_place() {
        let mut labels = LabelTexts::default();
        for (line, text) in (1..).zip(["b", "a", "b"]) {
            labels.push(text.into(), || RowLocation::Line(line));
        }
        assert_eq!(labels.rows(), [0, 1, 0]);
        let place = |index: usize| labels.distinct()[index].place.to_string();
        assert_eq!((place(0), place(1)), ("line 1".to_owned(), "line 2".to_owned()));
        assert_eq!(RowLocation::Sample(3).to_string(), "sample 3");
    }

    #[test]
    fn whole_numbers_have_one_text() {
        assert_eq!(whole_text(3.0).as_deref(), Some("3"));
        assert_eq!(whole_text(-0.0).as_deref(), Some("0"));
        assert_eq!((whole_text(0.5), whole_text(1e300), whole_text(f64::NAN)), (None, None, None));
    }
}
