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
        "{file}, line {line}: the row has {}, but the first row has {expected}; complete the row or delete it",
        cells(*.found)
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
    /// The first row has a different number of cells than most rows below it.
    #[error(
        "{file}, line {line}: the first row has {}, but most rows have {usual}; complete it (each column needs a name), or set `skip_lines` in [data] to the \
         number of lines before the table",
        cells(*.found)
    )]
    FirstRowWidth {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// Cells found.
        found: usize,
        /// Cells of most other rows.
        usual: usize,
    },
    /// A cell of a feature column is empty, or stands for a missing number.
    #[error(
        "{file}, line {line}, column {column}: {}; fill it in, delete the row, or leave the column out with `columns` in [data]",
        missing(.found)
    )]
    Missing {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: usize,
        /// The cell's text, shortened.
        found: String,
    },
    /// A cell is not in the notation of its column.
    #[error(
        "{file}, line {line}, column {column}: `{found}` is not {expected}, as the other cells of the column are; correct the cell, or leave the \
         column out with `columns` in [data]"
    )]
    OtherNotation {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: usize,
        /// The cell's text, shortened.
        found: String,
        /// The notation, in words.
        expected: &'static str,
    },
    /// The bytes are not text in the encoding of the layout.
    #[error(
        "{file}, line {line}: the bytes are not text in {encoding}; save the file as UTF-8, or set `encoding` in [data] to the encoding that it has"
    )]
    NotInEncoding {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The encoding.
        encoding: String,
    },
    /// The text is in UTF-32.
    #[error("{file}: this is text in UTF-32, which is not supported; save it as UTF-8")]
    Utf32 {
        /// The file.
        file: String,
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
    /// Each row has a single cell.
    #[error(
        "{file}: there is no column besides the label: each row has a single cell; {}",
        between(*.separator, *.is_given)
    )]
    OneColumn {
        /// The file.
        file: String,
        /// What seems to separate the cells.
        separator: Option<&'static str>,
        /// Whether the user gave the delimiter.
        is_given: bool,
    },
    /// All lines are before the table.
    #[error("{file}: no line is left after the first {skip_lines}; correct `skip_lines` in [data]")]
    NoTable {
        /// The file.
        file: String,
        /// Lines before the table.
        skip_lines: usize,
    },
    /// No column besides the label holds numbers.
    #[error(
        "{file}: no column besides the label holds numbers, which a model needs ({}); write words as numbers, for example with a column of 0 and 1 \
         for each word, or set `label` in [data]",
        .columns.join(", ")
    )]
    NoNumbers {
        /// The file.
        file: String,
        /// What the first columns hold, in words.
        columns: Vec<String>,
    },
    /// Several columns have the name that the user gave.
    #[error("{file}: several columns are named `{name}`; give the number of the one that is meant")]
    AmbiguousColumn {
        /// The file.
        file: String,
        /// The name.
        name: String,
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

/// A number of cells, for an error message.
fn cells(count: usize) -> String {
    format!("{count} cell{}", if count == 1 { "" } else { "s" })
}

/// A missing number, for an error message.
fn missing(found: &str) -> String {
    match found.trim() {
        "" => "a number is missing".to_owned(),
        mark => format!("a number is missing (`{mark}`)"),
    }
}

/// What to do if each row has a single cell.
fn between(separator: Option<&str>, is_given: bool) -> String {
    if is_given {
        return "correct `delimiter` in [data]".to_owned();
    }
    let instead = separator.map(|found| format!(", in place of `{}`", found.escape_default()));
    format!("write commas, semicolons, tabs, | or spaces between the cells{}", instead.unwrap_or_default())
}

/// The columns of a file, for an error message.
pub(super) fn available(width: usize, names: &[String]) -> String {
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
