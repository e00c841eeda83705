//! The layout of a CSV file: which columns are features, which one is the label, and whether there is a header.
//!
//! Files come with or without a header, with commas or semicolons, and with the label first or last. The founder of a run infers once what
//! the user does not say ([`Columns::infer`]), and writes it to the specification. Reading with a given layout infers nothing, so all peers
//! read the same numbers from the same bytes.

use csv::ByteRecord;
use serde::{Deserialize, Serialize};

use super::cells::{number, reader, text};
use super::error::DenseTableError;
use super::limits::COLUMNS_MAX;

/// Names that mark a column as the label, in any case.
const LABEL_NAMES: [&str; 3] = ["label", "class", "target"];
/// Texts that stand for a missing number, in upper or lower case; they are not names of columns.
const MISSING: [&str; 7] = ["", "?", "-", ".", "na", "n/a", "null"];

/// How a CSV file is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// The separator of cells: a comma, a semicolon or a tab.
    pub delimiter: u8,
    /// Whether the first row names the columns.
    pub header: bool,
    /// Columns of the file.
    pub width: usize,
    /// Index of the label's column, from 0.
    pub label: usize,
    /// Indices of the feature columns, from 0, in the order in which the model sees them.
    pub features: Vec<usize>,
}

/// What a user says about the layout of a file of any format; a field that is `None` is inferred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnHints {
    /// Whether the first row names the columns.
    pub header: Option<bool>,
    /// The label's column; the last unless said otherwise.
    pub label: Option<Column>,
    /// The feature columns; all but the label unless said otherwise.
    pub features: Option<Vec<Column>>,
    /// The number of features of a LIBSVM file; its largest index unless said otherwise.
    pub width: Option<usize>,
}

/// A column, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Column {
    /// By its number in the file; the first is 1.
    Number(usize),
    /// By its name in the header.
    Name(String),
}

impl Columns {
    /// Infers what the hints leave open from the first two rows of `bytes` (unpacked).
    ///
    /// The first row is a header if in some column it has a word and the second row has a number. A word that stands for a missing
    /// number does not count, because the header would then be a row of data. The label is the only column named label, class or target;
    /// without exactly one such name it is the last column. The features are all other columns.
    ///
    /// # Errors
    /// If the file is empty or a hint names a column that does not exist.
    pub fn infer(file: &str, bytes: &[u8], hints: &ColumnHints) -> Result<Self, DenseTableError> {
        let delimiter = infer_delimiter(bytes);
        let [first, second] = first_rows(file, bytes, delimiter)?;
        let width = first.len();
        if width > COLUMNS_MAX {
            let file = file.to_owned();
            return Err(DenseTableError::TooMany { file, what: "columns", found: width, limit: COLUMNS_MAX });
        }
        let is_header =
            || (first.iter().zip(&second)).any(|(name, cell)| is_name(name) && number(cell).is_some());
        let header = hints.header.unwrap_or_else(is_header);
        let names: Vec<String> = if header { first.iter().map(text).collect() } else { Vec::new() };
        let find = |column: &Column| find_column(file, column, width, &names);
        let label = hints.label.as_ref().map_or_else(|| Ok(infer_label(width, &names)), &find)?;
        let features = match &hints.features {
            Some(columns) => columns.iter().map(find).collect::<Result<_, _>>()?,
            None => (0..width).filter(|&column| column != label).collect(),
        };
        let layout = Self { delimiter, header, width, label, features };
        match layout.problem() {
            Some(problem) => Err(DenseTableError::Columns { file: file.to_owned(), problem }),
            None => Ok(layout),
        }
    }

    /// Why this layout cannot be used, in words; `None` if it can. It checks layouts that other peers sent.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.width > COLUMNS_MAX || self.label >= self.width {
            return Some(format!("label column {} of {}", self.label + 1, self.width));
        }
        if self.features.is_empty() {
            return Some("there is no column besides the label".to_owned());
        }
        let mut used = vec![false; self.width];
        used[self.label] = true;
        for &column in &self.features {
            match used.get_mut(column) {
                None => return Some(format!("column {} of {}", column + 1, self.width)),
                Some(true) => return Some(format!("column {} is used twice", column + 1)),
                Some(unused) => *unused = true,
            }
        }
        None
    }

    /// The names in the header of `bytes` (unpacked); empty if there is none.
    #[must_use]
    pub fn names(&self, bytes: &[u8]) -> Vec<String> {
        let mut first = ByteRecord::new();
        let has_row =
            self.header && reader(bytes, self.delimiter).read_byte_record(&mut first).unwrap_or(false);
        if has_row { first.iter().map(text).collect() } else { Vec::new() }
    }

    /// The feature columns with a word in the first row of data, which a model cannot use.
    #[must_use]
    pub fn text_features(&self, bytes: &[u8]) -> Vec<usize> {
        let mut rows = reader(bytes, self.delimiter).into_byte_records().skip(usize::from(self.header));
        let Some(Ok(row)) = rows.next() else { return Vec::new() };
        let is_worded = |column: &usize| row.get(*column).is_some_and(|cell| number(cell).is_none());
        self.features.iter().copied().filter(is_worded).collect()
    }
}

/// Whether a cell of the first row can be a column's name and nothing else.
fn is_name(cell: &[u8]) -> bool {
    let is_missing = || MISSING.iter().any(|mark| cell.trim_ascii().eq_ignore_ascii_case(mark.as_bytes()));
    number(cell).is_none() && !is_missing()
}

/// The first two rows; the second is empty if there is none.
fn first_rows(file: &str, bytes: &[u8], delimiter: u8) -> Result<[ByteRecord; 2], DenseTableError> {
    let mut rows = reader(bytes, delimiter).into_byte_records().map_while(Result::ok);
    match rows.next() {
        Some(first) if !bytes.trim_ascii().is_empty() => Ok([first, rows.next().unwrap_or_default()]),
        _ => Err(DenseTableError::Empty { file: file.to_owned() }),
    }
}

/// The separator that occurs most often in the first line; a comma if there is a tie.
fn infer_delimiter(bytes: &[u8]) -> u8 {
    let lines = bytes.split(|&byte| byte == b'\n' || byte == b'\r');
    let first = lines.map(<[u8]>::trim_ascii).find(|line| !line.is_empty()).unwrap_or_default();
    let count = |candidate: u8| first.iter().filter(|&&byte| byte == candidate).count();
    let mut best = b',';
    for candidate in [b';', b'\t'] {
        if count(candidate) > count(best) {
            best = candidate;
        }
    }
    best
}

/// The only column whose name is one of [`LABEL_NAMES`]; otherwise the last column.
fn infer_label(width: usize, names: &[String]) -> usize {
    let is_label = |name: &&String| LABEL_NAMES.iter().any(|label| name.eq_ignore_ascii_case(label));
    match names.iter().filter(is_label).count() {
        1 => names.iter().position(|name| is_label(&name)).unwrap_or(width - 1),
        _ => width - 1,
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
        Column::Name(name) => (names.iter().position(|other| other == name), format!("named `{name}`")),
    };
    let missing =
        || DenseTableError::NoSuchColumn { file: file.to_owned(), asked, width, names: names.to_vec() };
    found.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(bytes: &[u8]) -> Columns {
        Columns::infer("f", bytes, &ColumnHints::default()).unwrap()
    }

    #[test]
    fn a_header_is_a_word_above_a_number() {
        assert!(infer(b"x,y\n1,2\n").header);
        assert!(infer(b"1,y\n1,2\n").header);
        assert!(!infer(b"1,cat\n2,dog\n").header);
        assert!(!infer(b"1,2\n3,4\n").header);
        assert!(!infer(b"x,y\n").header);
        assert!(!infer(b"5.1,?,0\n4.9,3.0,1\n").header, "a missing number is no name");
        assert!(infer(b",x,y\n0,1,2\n").header, "a column of row numbers often has none");
    }

    #[test]
    fn the_label_column_is_found_by_its_name_or_is_the_last() {
        assert_eq!(infer(b"Label,x,y\n0,1,2\n").label, 0);
        assert_eq!(infer(b"x,class,y,target\n0,1,2,3\n").label, 3);
        assert_eq!(infer(b"x,y\n0,1\n").label, 1);
        assert_eq!(infer(b"label,x\nlabel,x\n").label, 1, "no header, no names");
    }

    #[test]
    fn the_delimiter_is_the_most_frequent_one_of_the_first_line() {
        for (bytes, delimiter) in
            [(&b"1,2\n"[..], b','), (b"a;b;c,d\n", b';'), (b"\n1\t2\n", b'\t'), (b"1;2\n3,4,5,6", b';')]
        {
            assert_eq!(infer(bytes).delimiter, delimiter);
        }
    }

    #[test]
    fn the_error_for_an_unknown_column_lists_the_columns() {
        let error = |bytes: &[u8], label| {
            let hints = ColumnHints { label: Some(label), ..ColumnHints::default() };
            Columns::infer("f.csv", bytes, &hints).unwrap_err().to_string()
        };
        assert_eq!(
            error(b"x,y\n1,2\n", Column::Name("z".into())),
            "f.csv: there is no column named `z`; the columns are: x, y"
        );
        assert_eq!(
            error(b"1,2\n", Column::Number(0)),
            "f.csv: there is no column number 0; the file has columns 1 to 2 and no header"
        );
    }

    #[test]
    fn text_columns_among_the_features_are_found() {
        let bytes = b"id,kind,x,z\n7,a,1,2\n8,b,3,4\n";
        assert_eq!(infer(bytes).text_features(bytes), [1]);
        assert_eq!(infer(bytes).names(bytes), ["id", "kind", "x", "z"]);
    }
}
