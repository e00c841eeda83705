//! Why a table cannot be made from a file: the errors of a CSV file, and of tables of any format that are too large.
//!
//! Each error names the file, the place in it, and what to do.

use super::limits::{ROWS_MAX, TABLE_VALUES_MAX};

/// Why a file cannot be used as a table. Each message names the file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DenseTableError {
    /// The file is empty.
    #[error("{file}: the file is empty; give a CSV file with one sample per line")]
    Empty {
        /// The file.
        file: String,
    },
    /// The file has a header and no rows.
    #[error(
        "{file}: there are no rows below the header; add one sample per line, or set `header = false` if line 1 is a sample"
    )]
    NoRows {
        /// The file.
        file: String,
    },
    /// The file starts with the mark of gzip, and cannot be unpacked.
    #[error("{file}: the gzip file is damaged ({reason}); copy it again")]
    Gzip {
        /// The file.
        file: String,
        /// What the decompressor found.
        reason: String,
    },
    /// The file unpacks to more bytes than the limit.
    #[error("{file}: the unpacked file is larger than {} MiB; train on a part of it", limit >> 20)]
    TooLarge {
        /// The file.
        file: String,
        /// Bytes allowed.
        limit: u64,
    },
    /// The file has more columns or rows than the limit.
    #[error("{file}: the file has {found} {what}, but at most {limit} are supported; leave some out")]
    TooMany {
        /// The file.
        file: String,
        /// Rows or columns.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// The table would have more numbers than [`TABLE_VALUES_MAX`].
    #[error(
        "{file}: {rows} rows of {columns} features make a table of {} numbers, but the limit is {TABLE_VALUES_MAX}; \
         select fewer features with `columns` in [data], or train on a part of the rows",
        *rows as u128 * *columns as u128
    )]
    TooManyValues {
        /// The file.
        file: String,
        /// Its rows.
        rows: usize,
        /// Features of each.
        columns: usize,
    },
    /// A row has a different number of cells than the first row.
    #[error(
        "{file}, line {line}: the row has {found} cells, but the first row has {expected}; complete the row or delete it"
    )]
    RowWidth {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// Cells found.
        found: usize,
        /// Cells of the other rows.
        expected: usize,
    },
    /// A cell of a feature column is not a number.
    #[error(
        "{file}, line {line}, column {column}: `{found}` is not a number; correct the cell, or leave the column out with `columns` in [data]"
    )]
    NotANumber {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: usize,
        /// The cell's text, shortened.
        found: String,
    },
    /// A number is infinite, not a number, or too large.
    #[error(
        "{file}, line {line}, column {column}: `{found}` is not a finite 32-bit number; correct the cell or delete the row"
    )]
    NotFinite {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: usize,
        /// The cell's text, shortened.
        found: String,
    },
    /// A row has no label.
    #[error("{file}, line {line}, column {column}: the label is empty; fill it in or delete the row")]
    NoLabel {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: usize,
    },
    /// A column that the user named does not exist.
    #[error("{file}: there is no column {asked}; {}", available(*.width, .names))]
    NoSuchColumn {
        /// The file.
        file: String,
        /// What was asked for.
        asked: String,
        /// Columns of the file.
        width: usize,
        /// Their names, if the file has a header.
        names: Vec<String>,
    },
    /// No column is left for the features, or a column is used twice.
    #[error("{file}: {problem}; list in `columns` each feature once, and not the label")]
    Columns {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
}

/// The columns of a file, for an error message.
fn available(width: usize, names: &[String]) -> String {
    match names {
        [] => format!("the file has columns 1 to {width} and no header"),
        names if names.len() <= 20 => format!("the columns are: {}", names.join(", ")),
        names => format!("the {width} columns are: {}, ... {}", names[..10].join(", "), names[width - 1]),
    }
}

impl DenseTableError {
    /// The file has more than [`ROWS_MAX`] rows.
    pub(super) fn too_many_rows(file: &str) -> Self {
        Self::TooMany { file: file.to_owned(), what: "rows", found: ROWS_MAX + 1, limit: ROWS_MAX }
    }
}
