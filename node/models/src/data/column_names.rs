//! Names of columns: how a user names a column, and how a message does.

use peergrad_protocol::id::ContentDigest;
use serde::{Deserialize, Serialize};

use super::cells::{shortened, text};
use super::error::DenseTableError;

/// Names that mark a column as the label, in any case.
pub(super) const LABEL_NAMES: [&str; 3] = ["label", "class", "target"];
/// The most columns that a notice names.
const COLUMNS_NAMED_MAX: usize = 8;

/// A column, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Column {
    /// By its number in the file; the first is 1.
    Number(usize),
    /// By its name in the header.
    Name(String),
}

/// The digest of names in their order.
pub(super) fn digest_of_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for name in names {
        text += name;
        text.push('\0');
    }
    ContentDigest::of(text.as_bytes()).to_string()
}

/// Columns in words: their names in quotes, or their numbers from 1; of many, the first few.
#[must_use]
pub fn listed(columns: &[usize], names: &[String]) -> String {
    let shown: Vec<String> =
        columns.iter().take(COLUMNS_NAMED_MAX).map(|&index| column_text(index, names)).collect();
    match columns.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

/// A column in words: `name` in quotes, or its number.
pub(super) fn column_text(index: usize, names: &[String]) -> String {
    match names.get(index) {
        Some(name) if !name.is_empty() => format!("`{}`", shortened(name.as_bytes())),
        _ => format!("column {}", index + 1),
    }
}

/// The index of the column that a user names.
pub(super) fn find_column(
    file: &str,
    column: &Column,
    width: usize,
    names: &[String],
) -> Result<usize, DenseTableError> {
    let (found, asked) = match column {
        Column::Number(number) => {
            (number.checked_sub(1).filter(|&index| index < width), format!("number {number}"))
        }
        Column::Name(name) => {
            if names.iter().filter(|other| *other == name).count() > 1 {
                let (file, name) = (file.to_owned(), name.clone());
                return Err(DenseTableError::AmbiguousColumn { file, name });
            }
            (names.iter().position(|other| other == name), format!("named `{name}`"))
        }
    };
    let missing =
        || DenseTableError::NoSuchColumn { file: file.to_owned(), asked, width, names: names.to_vec() };
    found.ok_or_else(missing)
}

/// The names in a row.
pub(super) fn names_in(row: &csv::ByteRecord) -> Vec<String> {
    row.iter().map(text).collect()
}

/// The only column whose name is that of a label.
pub(super) fn named_label(names: &[String]) -> Option<usize> {
    match called(names, &LABEL_NAMES)[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// The columns with one of the `wanted` names, in any case.
pub(super) fn called(names: &[String], wanted: &[&str]) -> Vec<usize> {
    let is_wanted = |name: &String| wanted.iter().any(|label| name.eq_ignore_ascii_case(label));
    (0..names.len()).filter(|&index| is_wanted(&names[index])).collect()
}
