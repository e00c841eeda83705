//! The layout of a CSV file: which columns are features, which one is the label, and how the text is read.
//!
//! Files come with or without a header, with commas or semicolons, and with the label first or last. The founder of a run infers once what
//! the user does not say ([`Columns::infer`]), and writes it to the specification. Reading with a given layout infers nothing, so all peers
//! read the same numbers from the same bytes.
//!
//! # How it works
//! ```text
//! bytes ──TextEncoding──> text ──Dialect──> rows of cells ──Survey──> header, notations, label, features
//! ```
//! The names of the used columns are part of the layout, so that a model finds them in another file ([`matching`](super::matching)). Very
//! long names are replaced by their digest.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::cells::shortened;
use super::column_hints::ColumnHints;
use super::column_names::{Column, digest_of_names, find_column, listed};
use super::dialect::{Delimiter, SKIPPED_LINES_MAX, after_lines, comment_mark};
use super::doubt::Doubt;
use super::encoding::TextEncoding;
use super::error::DenseTableError;
use super::inferred::{Inferred, UnusableColumn};
use super::label_column::guess_label;
use super::limits::COLUMNS_MAX;
use super::notation::{Decimal, Notation};
use super::sheet::{Known, Sheet};

/// The most bytes of all names in a layout; longer ones are replaced by their digest.
const NAMES_BYTES_MAX: usize = 1 << 16;

/// How a CSV file is read. It has 14 fields because the specification is flat text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// The separator of cells, one of those in [`Delimiter`].
    pub delimiter: u8,
    /// Whether the first row names the columns.
    pub header: bool,
    /// Columns of the file.
    pub width: usize,
    /// Index of the label's column, from 0.
    pub label: usize,
    /// Indices of the feature columns, from 0, in the order in which the model sees them.
    pub features: Vec<usize>,
    /// The encoding of the text.
    #[serde(default, skip_serializing_if = "TextEncoding::is_utf_8")]
    pub encoding: TextEncoding,
    /// Lines before the table.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skip_lines: usize,
    /// The decimal mark.
    #[serde(default, skip_serializing_if = "is_point")]
    pub decimal: Decimal,
    /// Indices of used columns with [`Notation::Amount`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub amounts: Vec<usize>,
    /// Indices of used columns with [`Notation::Percent`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub percents: Vec<usize>,
    /// Indices of feature columns with [`Notation::Boolean`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub booleans: Vec<usize>,
    /// The names of the feature columns, in their order; empty if there is no header, or if they are too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feature_names: Vec<String>,
    /// The name of the label's column; `None` if there are no names of features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_name: Option<String>,
    /// The digest of names that are too long, in hexadecimal; `None` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names_digest: Option<String>,
}

/// The text of a table, ready for the reader of cells.
pub(super) struct TableText<'a> {
    /// The whole text, in UTF-8 and with single blanks if these are the delimiter.
    pub(super) text: Cow<'a, [u8]>,
    /// The byte at which the table begins.
    pub(super) start: usize,
}

impl Columns {
    /// Infers what the hints leave open from `bytes` (unpacked).
    ///
    /// The first row is a header if in some column it has a word and the rows below have numbers. The features are all columns but the
    /// label.
    ///
    /// # Errors
    /// If the file is empty or not text, or a hint names a column that does not exist.
    pub fn infer(file: &str, bytes: &[u8], hints: &ColumnHints) -> Result<Inferred<Self>, DenseTableError> {
        let sheet = Sheet::inspect(file, bytes, hints, Known::default())?;
        let width = sheet.width();
        let find = |column: &Column| find_column(file, column, width, &sheet.names);
        let (label, notice) = match &hints.label {
            Some(column) => (find(column)?, None),
            None => guess_label(&sheet.names, &sheet.columns),
        };
        let features: Vec<usize> = match &hints.features {
            Some(columns) => columns.iter().map(find).collect::<Result<_, _>>()?,
            None => (0..width).filter(|&column| column != label).collect(),
        };
        let mut notices: Vec<String> = sheet.doubts.iter().map(Doubt::advised).chain(notice).collect();
        let mut layout = Self {
            delimiter: sheet.delimiter.byte(),
            header: sheet.header,
            width,
            label,
            features,
            encoding: sheet.encoding,
            skip_lines: sheet.skip_lines,
            decimal: sheet.decimal,
            ..Self::default()
        };
        if width == 1 {
            let (separator, is_given) = (sheet.separator, hints.delimiter.is_some());
            return Err(DenseTableError::OneColumn { file: file.to_owned(), separator, is_given });
        }
        if let Some(problem) = layout.problem() {
            return Err(DenseTableError::Columns { file: file.to_owned(), problem });
        }
        layout.set_notations(&sheet);
        layout.set_names(&sheet.names);
        notices.extend(layout.notation_notices(&sheet));
        let unusable =
            |&index: &usize| Some(UnusableColumn { index, reason: sheet.columns[index].unusable()? });
        let missing = |&index: &usize| {
            let column = &sheet.columns[index];
            (column.missing > 0 && column.notation().is_some()).then_some((index, column.missing))
        };
        Ok(Inferred {
            unusable: layout.features.iter().filter_map(unusable).collect(),
            incomplete: layout.features.iter().filter_map(missing).collect(),
            layout,
            names: sheet.names,
            notices,
        })
    }

    /// Why this layout cannot be used, in words; `None` if it can. It checks layouts that other peers sent.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.width > COLUMNS_MAX || self.label >= self.width {
            return Some(format!("label column {} of {}", self.label.saturating_add(1), self.width));
        }
        if self.features.is_empty() {
            return Some("there is no column besides the label".to_owned());
        }
        let mut used = vec![false; self.width];
        used[self.label] = true;
        for &column in &self.features {
            match used.get_mut(column) {
                None => return Some(format!("column {} of {}", column.saturating_add(1), self.width)),
                Some(true) => return Some(format!("column {} is used twice", column + 1)),
                Some(unused) => *unused = true,
            }
        }
        if Delimiter::of_byte(self.delimiter).is_none() {
            return Some(format!("the delimiter is byte {}", self.delimiter));
        }
        if self.skip_lines > SKIPPED_LINES_MAX {
            return Some(format!("{} lines before the table, at most {SKIPPED_LINES_MAX}", self.skip_lines));
        }
        self.problem_of_notations(used).or_else(|| self.problem_of_names())
    }

    /// `used`: for each column, whether it is a feature or the label.
    fn problem_of_notations(&self, mut used: Vec<bool>) -> Option<String> {
        for &column in self.amounts.iter().chain(&self.percents).chain(&self.booleans) {
            // Each column has one notation.
            if !used.get_mut(column).is_some_and(std::mem::take) {
                return Some(format!("the notation of column {}", column.saturating_add(1)));
            }
        }
        None
    }

    fn problem_of_names(&self) -> Option<String> {
        let count = self.feature_names.len();
        let is_complete = count == self.features.len() && self.label_name.is_some();
        let is_empty = count == 0 && self.label_name.is_none();
        let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_valid = (is_complete && self.names_digest.is_none())
            || (is_empty && self.names_digest.as_ref().is_none_or(is_digest));
        let has_row_of_names = self.header || (is_empty && self.names_digest.is_none());
        (!is_valid || !has_row_of_names).then(|| "the names of the columns".to_owned())
    }

    /// The notation of each column of the file; those that are not used have the plain one.
    pub(super) fn notations(&self) -> Vec<Notation> {
        let mut notations = vec![Notation::Plain; self.width];
        for (columns, notation) in [
            (&self.amounts, Notation::Amount),
            (&self.percents, Notation::Percent),
            (&self.booleans, Notation::Boolean),
        ] {
            columns.iter().for_each(|&column| notations[column] = notation);
        }
        notations
    }

    /// The names of the used columns are replaced by their digest, if there are any.
    pub fn shorten_names(&mut self) {
        if let Some(label) = self.label_name.take() {
            let names = std::mem::take(&mut self.feature_names);
            self.names_digest = Some(digest_of_names(names.iter().chain([&label]).map(String::as_str)));
        }
    }

    /// The text of `bytes` (unpacked), and where the table begins in it.
    ///
    /// # Errors
    /// If the bytes are not text in the layout's encoding.
    pub(super) fn table<'a>(&self, file: &str, bytes: &'a [u8]) -> Result<TableText<'a>, DenseTableError> {
        let decoded = self.encoding.decode(file, bytes)?;
        let text = match Delimiter::of_byte(self.delimiter) {
            Some(delimiter @ Delimiter::Blanks) => Cow::Owned(delimiter.spaced(&decoded).into_owned()),
            _ => decoded,
        };
        let start = after_lines(&text, self.skip_lines);
        let mark = if self.header { comment_mark(&text[start..]) } else { 0 };
        Ok(TableText { text, start: start + mark })
    }

    fn set_notations(&mut self, sheet: &Sheet) {
        for column in self.features.iter().copied().chain([self.label]) {
            match sheet.columns[column].notation() {
                Some(Notation::Amount) => self.amounts.push(column),
                Some(Notation::Percent) => self.percents.push(column),
                // Two words as labels are two classes.
                Some(Notation::Boolean) if column != self.label => self.booleans.push(column),
                _ => {}
            }
        }
    }

    fn set_names(&mut self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        self.feature_names = self.features.iter().map(|&column| names[column].clone()).collect();
        self.label_name = Some(names[self.label].clone());
        if names.iter().map(String::len).sum::<usize>() > NAMES_BYTES_MAX {
            self.shorten_names();
        }
    }

    /// What the user should know of columns whose numbers are not plain.
    fn notation_notices(&self, sheet: &Sheet) -> Vec<String> {
        let notice = |columns: &[usize], notation: Notation, meaning: &str| {
            let first = *columns.first()?;
            let example = sheet.columns[first].example.as_deref()?;
            let value = notation.read(example, self.decimal)?;
            let list = listed(columns, &sheet.names);
            Some(format!("{meaning} in {list} are read as numbers: `{}` is {value}", shortened(example)))
        };
        [
            notice(&self.amounts, Notation::Amount, "amounts"),
            notice(&self.percents, Notation::Percent, "percentages"),
            notice(&self.booleans, Notation::Boolean, "words"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn is_point(decimal: &Decimal) -> bool {
    *decimal == Decimal::Point
}

#[cfg(test)]
mod tests;
