//! Sparse features: the values of each row that a file lists, since nearly all others are 0.
//!
//! The form is compressed sparse rows (CSR). Row `r` has the entries `offsets[r]..offsets[r + 1]` of two lists that all rows share:
//!
//! ```text
//! 0 0 5 0          offsets   0     1     1        3
//! 0 0 0 0   --->   columns   2           0  3
//! 7 0 0 2          values    5           7  2
//! ```
//! A row that has 50 of a million features takes 50 entries of eight bytes.
//!
//! # Invariants
//! - Columns ascend strictly within a row, and are below [`width`](Sparse::width).
//! - Every value is finite. A value may be 0 if the file lists it.
//! - There are at most [`SPARSE_VALUES_MAX`](super::limits::SPARSE_VALUES_MAX) entries, and columns are at most [`FEATURES_MAX`].

use super::dense_table::{DenseTable, check_size};
use super::error::DenseTableError;
use super::label_texts::LabelTexts;
use super::limits::FEATURES_MAX;

/// Rows of features, of which only the listed values are stored; all others are 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse {
    /// (rows + 1) The index of each row's first entry; the last element is the number of entries.
    offsets: Vec<usize>,
    /// (entries) The column of each entry, from 0.
    columns: Vec<u32>,
    /// (entries) The value of each entry.
    values: Vec<f32>,
    /// Features of a row.
    width: usize,
}

/// The features and labels of a sparse file.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseTable {
    /// (rows, width)
    pub features: Sparse,
    /// The label of each row.
    pub labels: LabelTexts,
}

impl Sparse {
    /// An empty table, for rows of `width` features.
    ///
    /// # Panics
    /// If `width` is more than [`FEATURES_MAX`].
    #[must_use]
    pub fn new(width: usize) -> Self {
        assert!(width <= FEATURES_MAX, "{width} features");
        Self { offsets: vec![0], columns: Vec::new(), values: Vec::new(), width }
    }

    /// Adds an entry to the unfinished row.
    ///
    /// # Panics
    /// If the column is not larger than that of the previous entry of the row, or is not below the width, or if the value is not
    /// finite.
    pub fn push(&mut self, column: u32, value: f32) {
        let begun = self.offsets[self.offsets.len() - 1];
        assert!(self.columns[begun..].last().is_none_or(|&last| last < column), "columns ascend");
        assert!((column as usize) < self.width && value.is_finite(), "{value} in column {column}");
        self.columns.push(column);
        self.values.push(value);
    }

    /// Finishes the unfinished row, and begins the next one.
    pub fn end_row(&mut self) {
        self.offsets.push(self.columns.len());
    }

    /// Number of finished rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Features of a row, including those that are 0.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Entries of all rows together.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.columns.len()
    }

    /// Columns, from 0 and ascending, and values of one row's entries.
    ///
    /// # Panics
    /// If `row` is not the index of a finished row.
    #[must_use]
    pub fn row(&self, row: usize) -> (&[u32], &[f32]) {
        let entries = self.offsets[row]..self.offsets[row + 1];
        (&self.columns[entries.clone()], &self.values[entries])
    }

    /// The same rows with the columns `chosen` only, in that order: the first of them becomes column 0.
    ///
    /// # Panics
    /// If a column is not below the width.
    #[must_use]
    pub fn select(&self, chosen: &[usize]) -> Self {
        let mut becomes: Vec<Option<u32>> = vec![None; self.width];
        for (new, &old) in (0..).zip(chosen) {
            becomes[old] = Some(new);
        }
        let mut selected = Self::new(chosen.len());
        let mut kept: Vec<(u32, f32)> = Vec::new();
        for row in 0..self.rows() {
            let (columns, values) = self.row(row);
            kept.clear();
            kept.extend(
                columns
                    .iter()
                    .zip(values)
                    .filter_map(|(&column, &value)| becomes[column as usize].map(|column| (column, value))),
            );
            kept.sort_unstable_by_key(|&(column, _)| column);
            kept.iter().for_each(|&(column, value)| selected.push(column, value));
            selected.end_row();
        }
        selected
    }
}

impl SparseTable {
    /// The same table with every 0 written out, for models of dense features. `file` is the name for errors.
    ///
    /// # Errors
    /// If the dense table would be too large; the check comes before the allocation.
    pub fn dense(self, file: &str) -> Result<DenseTable, DenseTableError> {
        let (rows, columns) = (self.features.rows(), self.features.width());
        check_size(file, rows, columns)?;
        let mut features = vec![0.0; rows * columns];
        for (row, dense) in features.chunks_exact_mut(columns.max(1)).enumerate() {
            let (columns, values) = self.features.row(row);
            for (&column, &value) in columns.iter().zip(values) {
                dense[column as usize] = f64::from(value);
            }
        }
        Ok(DenseTable { features, columns, labels: self.labels })
    }
}

impl DenseTable {
    /// The same table without the values that are 0.
    #[must_use]
    pub fn sparse(self) -> SparseTable {
        let mut features = Sparse::new(self.columns);
        for row in self.features.chunks_exact(self.columns.max(1)) {
            for (column, &value) in (0..).zip(row).filter(|(_, value)| **value != 0.0) {
                // A value that is too large for `f32` becomes the largest `f32`.
                features.push(column, (value as f32).clamp(f32::MIN, f32::MAX));
            }
            features.end_row();
        }
        SparseTable { features, labels: self.labels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::label_texts::RowLocation;
    use crate::data::limits::TABLE_VALUES_MAX;

    /// The rows of the drawing at the head of this file.
    fn drawn() -> Sparse {
        let mut rows = Sparse::new(4);
        rows.push(2, 5.0);
        rows.end_row();
        rows.end_row();
        rows.push(0, 7.0);
        rows.push(3, 2.0);
        rows.end_row();
        rows
    }

    fn labelled(features: Sparse) -> SparseTable {
        let mut labels = LabelTexts::default();
        (0..features.rows()).for_each(|_| labels.push("0".into(), || RowLocation::Line(1)));
        SparseTable { features, labels }
    }

    #[test]
    fn rows_hold_the_pushed_entries() {
        let rows = drawn();
        assert_eq!((rows.rows(), rows.width(), rows.entries()), (3, 4, 3));
        assert_eq!((rows.offsets.as_slice(), rows.columns.as_slice()), (&[0, 1, 1, 3][..], &[2, 0, 3][..]));
        assert_eq!(rows.row(0), (&[2][..], &[5.0][..]));
        assert_eq!(rows.row(1), (&[][..], &[][..]));
        assert_eq!(rows.row(2), (&[0, 3][..], &[7.0, 2.0][..]));
    }

    #[test]
    fn every_zero_is_written_out() {
        let table = labelled(drawn()).dense("f").unwrap();
        assert_eq!(table.features, [0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 2.0]);
        assert_eq!((table.columns, table.rows()), (4, 3));
        assert_eq!(table.sparse().features, drawn());
    }

    #[test]
    fn chosen_columns_come_in_the_given_order() {
        let table = labelled(drawn().select(&[3, 0])).dense("f").unwrap();
        assert_eq!(table.features, [0.0, 0.0, 0.0, 0.0, 2.0, 7.0]);
    }

    #[test]
    fn a_dense_table_that_would_be_too_large_is_refused_in_advance() {
        let mut rows = Sparse::new(FEATURES_MAX);
        let fitting = TABLE_VALUES_MAX / FEATURES_MAX;
        (0..=fitting).for_each(|_| rows.end_row());
        let error = labelled(rows).dense("f.libsvm").unwrap_err().to_string();
        assert_eq!(
            error,
            "f.libsvm: 17 rows of 16777216 features make a table of 285212672 numbers, but the limit is 268435456; \
             select fewer features with `columns` in [data], or train on a part of the rows"
        );
    }

    #[test]
    #[should_panic(expected = "columns ascend")]
    fn columns_that_do_not_ascend_panic() {
        let mut rows = Sparse::new(4);
        rows.push(2, 1.0);
        rows.push(2, 1.0);
    }
}
