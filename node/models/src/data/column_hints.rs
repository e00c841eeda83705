//! Hints: what a user says about the layout of a data file.

use super::column_names::Column;
use super::dialect::Delimiter;
use super::encoding::TextEncoding;
use super::notation::Decimal;

/// What a user says about the layout of a file of any format; a field that is `None` is inferred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnHints {
    /// Whether the first row names the columns.
    pub header: Option<bool>,
    /// The label's column.
    pub label: Option<Column>,
    /// The feature columns; all but the label unless said otherwise.
    pub features: Option<Vec<Column>>,
    /// The number of features of a LIBSVM file; its largest index unless said otherwise.
    pub width: Option<usize>,
    /// The encoding of the text.
    pub encoding: Option<TextEncoding>,
    /// What separates the cells.
    pub delimiter: Option<Delimiter>,
    /// The decimal mark.
    pub decimal: Option<Decimal>,
    /// Lines before the table.
    pub skip_lines: Option<usize>,
}
