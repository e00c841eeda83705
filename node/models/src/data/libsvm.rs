//! LIBSVM: text with one sample per line, which has a label and those features that are not 0.
//!
//! ```text
//! +1 3:0.5 17:1     # index:value; indices count from 1 and ascend
//! -1                # all features are 0
//! ```
//! The format does not state the number of features: it is the largest index of the file, or a larger number that the user gives. The
//! founder of a run decides once, and all files are read with that number later ([`read`]). A file with a smaller largest index leaves out
//! features that are 0; a file with a larger one has a feature that the model does not know, which is an error.
//!
//! # Invariants
//! - No input makes the reader panic. It allocates memory in proportion to the bytes of the file, however large the indices are.
//!
//! # Not here
//! Groups of a ranking (`qid:`), several labels of one sample, weights of samples, and labels that are words. Such files are recognized, and
//! refused with words of their own.
//!
//! # Reading
//! Chang and Lin, "LIBSVM: a library for support vector machines", 2011; the format is in that library's README.

use std::borrow::Cow;

use super::cells::{number, shortened};
use super::label_texts::{LabelTexts, RowLocation, whole_text};
use super::limits::{FEATURES_MAX, ROWS_MAX, SPARSE_VALUES_MAX};
use super::sparse::{Sparse, SparseTable};

/// Why a LIBSVM file cannot be used. Each message names the file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibsvmError {
    /// The file has no samples.
    #[error(
        "{file}: the file has no samples; write each sample as a line `label index:value index:value ...`"
    )]
    Empty {
        /// The file.
        file: String,
    },
    /// A line does not begin with a number.
    #[error(
        "{file}, line {line}: the label `{found}` is not a finite number; begin each line with a number as its label (numbers can stand for classes)"
    )]
    Label {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The text in the file.
        found: String,
    },
    /// A line begins with several labels.
    #[error(
        "{file}, line {line}: `{found}` are several labels, but a sample has one; keep one of them in each line (or train one model for each label)"
    )]
    SeveralLabels {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The text in the file.
        found: String,
    },
    /// A line begins with a feature.
    #[error(
        "{file}, line {line}: the line begins with the feature `{found}`, and not with a label; put the label of the sample, a number, before its \
         features (if this is a label with a weight: weights are not supported; delete the colon and the weight from all lines)"
    )]
    NoLabel {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The text in the file.
        found: String,
    },
    /// A label has a weight.
    #[error(
        "{file}, line {line}: `{found}` is a label with the weight of its sample, which is not supported; delete the colon and the weight from all lines"
    )]
    Weight {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The text in the file.
        found: String,
    },
    /// An index is negative.
    #[error(
        "{file}, line {line}: the index of `{found}` is negative, but indices start at 1; renumber the features of the file"
    )]
    NegativeIndex {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The text in the file.
        found: String,
    },
    /// A line names a ranking group.
    #[error(
        "{file}, line {line}: `{found}` is a ranking group, which is not supported; delete it from all lines"
    )]
    Group {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The text in the file.
        found: String,
    },
    /// A word is not a feature.
    #[error("{file}, line {line}: `{found}` is not `index:value`; correct it, or delete the row")]
    NotAFeature {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The text in the file.
        found: String,
    },
    /// A value is infinite, not a number, or too large.
    #[error("{file}, line {line}: `{found}` is not a finite 32-bit number; correct it, or delete the row")]
    NotFinite {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The text in the file.
        found: String,
    },
    /// Indices that count from 0.
    #[error("{file}, line {line}: the index is 0, but indices start at 1; add 1 to all indices of the file")]
    IndexZero {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
    },
    /// The indices of a line do not ascend, or one occurs twice.
    #[error(
        "{file}, line {line}: the index {found} follows {before}; sort the features of each row by index, and list each feature once"
    )]
    Order {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The index.
        found: u64,
        /// The one before it.
        before: u64,
    },
    /// An index is larger than [`FEATURES_MAX`].
    #[error(
        "{file}, line {line}: the index {found} is larger than the maximum of {FEATURES_MAX}; renumber the features"
    )]
    IndexTooLarge {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The index.
        found: u64,
    },
    /// A feature that the run does not know.
    #[error(
        "{file}, line {line}: the index {found} is larger than the number of features of the run, {width}; remove the feature, or train with `features = {found}` in [data]"
    )]
    Unknown {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The index.
        found: u64,
        /// Features of the run.
        width: usize,
    },
    /// The file has more rows or values than the limit.
    #[error("{file}: the file has more than {limit} {what}; train on a part of it")]
    TooMany {
        /// The file.
        file: String,
        /// Rows or values.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
}

/// Whether `bytes` (unpacked) look like this format, or like one of its kinds that are not supported.
///
/// The first line that has more than a label decides: its words but the first are `index:value`, or have a colon at least if the first
/// word is a number. That line may have several labels, a label with a weight, a word as its label, or no label.
#[must_use]
pub fn is_libsvm(bytes: &[u8]) -> bool {
    for (_, line) in lines(bytes) {
        let mut words = words(line);
        let label = words.next().unwrap_or_default();
        let is_number = number(label).is_some();
        let Some(first) = words.next() else {
            if is_number {
                continue;
            }
            return false;
        };
        let is_feature = |word: &[u8]| signed(word).is_some_and(|(_, value)| number(value).is_some());
        return (is_feature(first) || is_group(first))
            && if is_number {
                words.all(|word| word.contains(&b':'))
            } else {
                is_plain_word(label) && words.all(|word| is_feature(word) || is_group(word))
            };
    }
    false
}

/// The largest index of `bytes` (unpacked), but at least 1 and at most [`FEATURES_MAX`].
///
/// Words that are not features are skipped here; [`read`] reports them.
#[must_use]
pub fn largest_index(bytes: &[u8]) -> usize {
    let features = lines(bytes).flat_map(|(_, line)| words(line).skip(1));
    let largest = features.filter_map(split).map(|(index, _)| index).max().unwrap_or(1);
    largest.clamp(1, FEATURES_MAX as u64) as usize
}

/// Reads `bytes` (unpacked) as samples of `width` features; `file` is the name for errors.
///
/// # Errors
/// At the first line that cannot be used.
///
/// # Panics
/// If the width is more than [`FEATURES_MAX`].
pub fn read(file: &str, bytes: &[u8], width: usize) -> Result<SparseTable, LibsvmError> {
    let mut table = SparseTable { features: Sparse::new(width), labels: LabelTexts::default() };
    let too_many = |what, limit| Err(LibsvmError::TooMany { file: file.to_owned(), what, limit });
    for (line, content) in lines(bytes) {
        if table.features.rows() == ROWS_MAX {
            return too_many("rows", ROWS_MAX);
        }
        let place = CellLocation { file, line };
        let mut words = words(content).peekable();
        let label = place.label(words.next().unwrap_or_default(), words.peek().copied())?;
        table.labels.push(label, || RowLocation::Line(line));
        let mut before = 0;
        for word in words {
            if table.features.entries() == SPARSE_VALUES_MAX {
                return too_many("values", SPARSE_VALUES_MAX);
            }
            let (index, value) = place.feature(word, before, width)?;
            table.features.push(index - 1, value);
            before = index;
        }
        table.features.end_row();
    }
    match table.features.rows() {
        0 => Err(LibsvmError::Empty { file: file.to_owned() }),
        _ => Ok(table),
    }
}

/// The lines that have a sample, with their numbers from 1; comments are cut off, and blank lines are left out.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    /// Some Windows programs write this mark at the start of a text.
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let without_comment = |line: &'_ [u8]| line.iter().position(|&byte| byte == b'#').unwrap_or(line.len());
    let lines =
        bytes.split(|&byte| byte == b'\n').map(move |line| line[..without_comment(line)].trim_ascii());
    (1..).zip(lines).filter(|(_, line)| !line.is_empty())
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// The index and the text of the value, if a word begins with digits and a colon; an index beyond 64 bits becomes `u64::MAX`.
fn split(word: &[u8]) -> Option<(u64, &[u8])> {
    let colon = word.iter().position(|&byte| byte == b':')?;
    let (index, value) = (&word[..colon], &word[colon + 1..]);
    let is_index = !index.is_empty() && index.iter().all(u8::is_ascii_digit);
    let next = |number: u64, digit: &u8| number.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    is_index.then(|| (index.iter().try_fold(0, next).unwrap_or(u64::MAX), value))
}

/// As [`split`], but the index may have a sign, which is left out.
fn signed(word: &[u8]) -> Option<(u64, &[u8])> {
    split(word.strip_prefix(b"-").unwrap_or(word))
}

/// Whether a word can stand for a label: neither `,` nor `:` begins or ends it, as in text for people.
fn is_plain_word(word: &[u8]) -> bool {
    let is_edge = |byte: Option<&u8>| matches!(byte, Some(b',' | b':' | b';' | b'|' | b'"'));
    !is_edge(word.first()) && !is_edge(word.last())
}

/// Whether a word is several numbers with commas between them.
fn is_several_labels(word: &[u8]) -> bool {
    word.contains(&b',') && word.split(|&byte| byte == b',').all(|label| number(label).is_some())
}

fn is_group(word: &[u8]) -> bool {
    word.starts_with(b"qid:")
}

/// The place of a sample, for errors.
struct CellLocation<'a> {
    file: &'a str,
    line: u64,
}

impl CellLocation<'_> {
    /// The text of a label; a whole number is without sign `+` and decimal point. `next` is the word after it.
    fn label<'a>(&self, word: &'a [u8], next: Option<&[u8]>) -> Result<Cow<'a, str>, LibsvmError> {
        if let Some(value) = number(word).filter(|&value| (value as f32).is_finite()) {
            return Ok(whole_text(value).map_or_else(|| String::from_utf8_lossy(word), Cow::Owned));
        }
        let (file, line, found) = (self.file.to_owned(), self.line, shortened(word));
        if is_several_labels(word) {
            return Err(LibsvmError::SeveralLabels { file, line, found });
        }
        let unsigned = word.strip_prefix(b"+").unwrap_or(word);
        let Some((index, _)) = signed(unsigned).filter(|(_, value)| number(value).is_some()) else {
            return Err(LibsvmError::Label { file, line, found });
        };
        // Indices ascend, so the first of two features has the smaller one. Labels may have a sign.
        let is_first = next.and_then(split).is_none_or(|(next, _)| index < next);
        let has_sign = matches!(word.first(), Some(b'+' | b'-'));
        Err(match is_first && !has_sign {
            true => LibsvmError::NoLabel { file, line, found },
            false => LibsvmError::Weight { file, line, found },
        })
    }

    /// Index, from 1 and beyond `before`, and value of a feature.
    fn feature(&self, word: &[u8], before: u32, width: usize) -> Result<(u32, f32), LibsvmError> {
        let (file, line) = (self.file.to_owned(), self.line);
        if is_group(word) {
            return Err(LibsvmError::Group { file, line, found: shortened(word) });
        }
        let Some((index, value)) = signed(word).and_then(|(index, value)| Some((index, number(value)?)))
        else {
            return Err(LibsvmError::NotAFeature { file, line, found: shortened(word) });
        };
        if word.starts_with(b"-") {
            return Err(LibsvmError::NegativeIndex { file, line, found: shortened(word) });
        }
        let value = value as f32;
        match index {
            0 => Err(LibsvmError::IndexZero { file, line }),
            found if found > FEATURES_MAX as u64 => Err(LibsvmError::IndexTooLarge { file, line, found }),
            found if found > width as u64 => Err(LibsvmError::Unknown { file, line, found, width }),
            found if found <= u64::from(before) => {
                Err(LibsvmError::Order { file, line, found, before: before.into() })
            }
            _ if !value.is_finite() => Err(LibsvmError::NotFinite { file, line, found: shortened(word) }),
            _ => Ok((index as u32, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::cells::text;
    use crate::data::dense_table::unpack;
    use proptest::prelude::*;

    const DRAWN: &[u8] = b"+1 3:0.5 17:1   # a comment\n# another\n\n-1\t\r\n3.0  1:-2e1\t4:0 ";

    fn read_all(bytes: &[u8]) -> Result<SparseTable, LibsvmError> {
        read("f", bytes, largest_index(bytes))
    }

    fn texts(table: &SparseTable) -> Vec<&str> {
        let text = |&index: &u32| table.labels.distinct()[index as usize].text.as_str();
        table.labels.rows().iter().map(text).collect()
    }

    #[test]
    fn labels_features_and_comments() {
        for bytes in [DRAWN, &[b"\xef\xbb\xbf", DRAWN].concat()] {
            assert!(is_libsvm(bytes));
            let table = read_all(bytes).unwrap();
            assert_eq!(texts(&table), ["1", "-1", "3"]);
            assert_eq!(table.labels.distinct()[1].place, RowLocation::Line(4));
            let rows = &table.features;
            assert_eq!((rows.rows(), rows.width()), (3, 17));
            assert_eq!(rows.row(0), (&[2, 16][..], &[0.5, 1.0][..]));
            assert_eq!(rows.row(1), (&[][..], &[][..]));
            assert_eq!(rows.row(2), (&[0, 3][..], &[-20.0, 0.0][..]));
        }
    }

    #[test]
    fn libsvm_text_is_told_from_other_formats() {
        for bytes in [
            &b"1 1:2"[..],
            b"# first\n\n-1 # none\n+1 7:1e-3 9:2\n",
            b"0.5 0:1 1:2",
            b"3 qid:1 1:0.5\n",
            b"1 1:2 x:3\n",
            b"cat 1:2\n",
            b"time 1:2\n1 1:2\n",
            b"0,1 1:2 2:3\n",
            b"1:0.5 1:2 2:3\n",
            b"+1:0.5 3:2\n",
            b"1 -1:2 1:3\n",
        ] {
            assert!(is_libsvm(bytes), "{}", text(bytes));
        }
        for bytes in [
            &b""[..],
            b"# only a comment",
            b"1\n2\n",
            b"1,2,0\n",
            b"12:30,5,0\n",
            b"1\t12:30\t0\n",
            b"at 12:30, 1:2\n",
            b"time: 1:2\n",
            b"a,b,c 1:2 d\n",
            b"1 :2\n",
            b"1 1:\n",
            b"1 x:2\n",
        ] {
            assert!(!is_libsvm(bytes), "{}", text(bytes));
        }
    }

    #[track_caller]
    fn assert_error(bytes: &[u8], message: &str) {
        assert_eq!(read_all(bytes).unwrap_err().to_string(), message);
    }

    #[test]
    fn errors_name_file_line_and_remedy() {
        assert_error(
            b"# \n",
            "f: the file has no samples; write each sample as a line `label index:value index:value ...`",
        );
        for (label, found) in [("cat", "cat"), ("inf", "inf"), ("a,b", "a,b")] {
            let message = format!(
                "f, line 2: the label `{found}` is not a finite number; begin each line with a number as its label \
                 (numbers can stand for classes)"
            );
            assert_error(format!("1 1:1\n{label} 1:1\n").as_bytes(), &message);
        }
        assert_error(
            b"1 1:1\n2 qid:7 1:1",
            "f, line 2: `qid:7` is a ranking group, which is not supported; delete it from all lines",
        );
        assert_error(
            b"0,1 1:1",
            "f, line 1: `0,1` are several labels, but a sample has one; keep one of them in each line (or train one model for each label)",
        );
        for label in ["1:0.5", "+1:2", "-1:1"] {
            let message = format!(
                "f, line 1: `{label}` is a label with the weight of its sample, which is not supported; delete the colon and the weight from all lines"
            );
            assert_error(format!("{label} 1:1 2:1").as_bytes(), &message);
        }
        assert_error(
            b"1:3.5 2:1\n",
            "f, line 1: the line begins with the feature `1:3.5`, and not with a label; put the label of the sample, a number, before its features \
             (if this is a label with a weight: weights are not supported; delete the colon and the weight from all lines)",
        );
        assert_error(
            b"1 -1:1 2:1",
            "f, line 1: the index of `-1:1` is negative, but indices start at 1; renumber the features of the file",
        );
        for word in ["7", "1:", ":1", "x:1", "1:2:3", "1:a"] {
            let message = format!("f, line 2: `{word}` is not `index:value`; correct it, or delete the row");
            assert_error(format!("1 1:1\n1 {word}\n").as_bytes(), &message);
        }
        for word in ["1:nan", "1:-inf", "1:1e39"] {
            let message =
                format!("f, line 1: `{word}` is not a finite 32-bit number; correct it, or delete the row");
            assert_error(format!("1 {word}").as_bytes(), &message);
        }
        assert_error(
            b"1 0:1 1:1",
            "f, line 1: the index is 0, but indices start at 1; add 1 to all indices of the file",
        );
        for (second, before) in [(3, 3), (2, 3)] {
            let message = format!(
                "f, line 1: the index {second} follows {before}; sort the features of each row by index, and list each feature once"
            );
            assert_error(format!("1 3:1 {second}:1").as_bytes(), &message);
        }
        for index in ["16777217", "99999999999999999999"] {
            let found = index.parse().unwrap_or(u64::MAX);
            let message = format!(
                "f, line 1: the index {found} is larger than the maximum of 16777216; renumber the features"
            );
            assert_error(format!("1 {index}:1").as_bytes(), &message);
        }
    }

    #[test]
    fn indices_are_limited_by_the_width_of_the_run() {
        assert_eq!(read("f", DRAWN, 123).unwrap().features.width(), 123);
        assert_eq!(
            read("f", DRAWN, 16).unwrap_err().to_string(),
            "f, line 1: the index 17 is larger than the number of features of the run, 16; remove the feature, or train with \
             `features = 17` in [data]"
        );
    }

    /// What any file that was read is like.
    fn check(table: &SparseTable, bytes: &[u8]) {
        let rows = &table.features;
        assert_eq!(rows.rows(), table.labels.rows().len());
        assert!(rows.rows() > 0 && rows.entries() < bytes.len());
        for row in 0..rows.rows() {
            let (columns, values) = rows.row(row);
            assert!(columns.is_sorted_by(|a, b| a < b) && values.iter().all(|value| value.is_finite()));
            assert!(columns.iter().all(|&column| (column as usize) < rows.width()));
        }
    }

    #[test]
    fn a_file_that_was_cut_is_read_or_refused() {
        for end in 0..DRAWN.len() {
            let _ = is_libsvm(&DRAWN[..end]);
            if let Ok(table) = read_all(&DRAWN[..end]) {
                check(&table, DRAWN);
            }
        }
    }

    #[test]
    fn a9a_has_the_samples_that_its_notice_lists() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
        for (name, rows) in [("a9a.libsvm.gz", 32_560), ("a9a_test.libsvm.gz", 16_281)] {
            let Ok(packed) = std::fs::read(path.join(name)) else {
                eprintln!("skipped: {name} is not in {}", path.display());
                return;
            };
            let bytes = unpack(name, &packed).unwrap();
            assert!(is_libsvm(&bytes));
            let table = read_all(&bytes).unwrap();
            assert_eq!((table.features.rows(), table.features.width()), (rows, 123));
            check(&table, &bytes);
            assert_eq!(texts(&table).iter().filter(|&&text| text == "0" || text == "1").count(), rows);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = is_libsvm(&bytes);
            if let Ok(table) = read_all(&bytes) {
                check(&table, &bytes);
            }
        }

        #[test]
        fn anything_like_libsvm_is_read_or_refused(bytes in "[0-9:. \\n\\r\\t#+\\-eqd]{0,200}") {
            let _ = is_libsvm(bytes.as_bytes());
            if let Ok(table) = read_all(bytes.as_bytes()) {
                check(&table, bytes.as_bytes());
            }
        }

        #[test]
        fn rows_read_back(
            rows in prop::collection::vec(
                (-3_i32..4, prop::collection::btree_map(1_u32..=40, any::<f32>(), 0..8)), 1..20,
            ),
        ) {
            let is_finite = |(_, features): &(i32, std::collections::BTreeMap<u32, f32>)| {
                features.values().all(|value| value.is_finite())
            };
            prop_assume!(rows.iter().all(is_finite));
            let mut text = String::new();
            for (label, features) in &rows {
                text += &format!("{label:+}");
                features.iter().for_each(|(index, value)| text += &format!(" {index}:{value:e}"));
                text += "\n";
            }
            let table = read("f", text.as_bytes(), 40).unwrap();
            for (row, (label, features)) in rows.iter().enumerate() {
                let (columns, values) = table.features.row(row);
                prop_assert_eq!(columns, features.keys().map(|index| index - 1).collect::<Vec<_>>());
                let bits = |values: &mut dyn Iterator<Item = f32>| values.map(f32::to_bits).collect::<Vec<_>>();
                prop_assert_eq!(bits(&mut values.iter().copied()), bits(&mut features.values().copied()));
                prop_assert_eq!(texts(&table)[row], label.to_string());
            }
        }
    }
}
