//! The format of a data file, detected from its bytes, and how a file of each format is read.
//!
//! ```text
//! begins with two zero bytes                            IDX      numbers in arrays, as MNIST is published
//! begins as a file of another known format              refused, with its name
//! first line is `label index:value index:value ...`     LIBSVM   text that leaves out what is 0
//! anything else                                         CSV
//! ```
//! The name of a file has no influence on its format. The founder of a run detects the format once ([`FileLayout::infer`]) and writes the
//! layout to the specification; all peers read the file with that layout ([`FileLayout::read`]).
//!
//! # Invariants
//! - Reading with a given layout infers nothing, so all peers read the same numbers from the same bytes.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::column_hints::ColumnHints;
use super::columns::Columns;
use super::dense_table::{DenseTable, check_size};
use super::documents::{DocumentsError, DocumentsLayout};
use super::encoding::{Detected, TextEncoding};
use super::error::DenseTableError;
use super::idx::{Arrays, IdxError, Outline, is_idx};
use super::inferred::Inferred;
use super::libsvm::{self, LibsvmError};
use super::matching::MatchError;
use super::numbered::{Numbered, NumberedFormat};
use super::ratings::RatingsError;
use super::sparse::SparseTable;
use super::unsupported::{self, Remedy, Unsupported};
use crate::deep::text::TextLayout;

/// The format of a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Cells between commas, semicolons, tabs, pipes or spaces.
    Csv,
    /// A label and `index:value` pairs.
    Libsvm,
    /// Arrays of numbers.
    Idx,
    /// Prose, whose bytes are the samples. It is never detected: a user says so with the kind of the model.
    Text,
    /// Documents, whose words are counted. They are never detected either.
    Documents,
}

/// How a file is to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FileLayout {
    /// A CSV file.
    Csv(Columns),
    /// A file of numbered columns.
    Numbered(Numbered),
    /// Prose.
    Text(TextLayout),
    /// Documents.
    Documents(DocumentsLayout),
}

/// Why a file cannot be used. Each message names the file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file is not a table that can be read.
    #[error(transparent)]
    Table(#[from] DenseTableError),
    /// The file is not LIBSVM that can be read.
    #[error(transparent)]
    Libsvm(#[from] LibsvmError),
    /// The file is not IDX that can be read.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// A setting has no meaning for files of this format.
    #[error("{file}: `{key}` in [data] does not apply to {}; remove it from the run file", .format.file())]
    Meaningless {
        /// The file.
        file: String,
        /// Its format.
        format: Format,
        /// The setting.
        key: &'static str,
    },
    /// A file to evaluate on is of another format than the run's.
    #[error("{file}: this is {}, but the model was trained on {}; give a file of that format", .found.file(), .expected.file())]
    OtherFormat {
        /// The file.
        file: String,
        /// Its format.
        found: Format,
        /// The format of the file that the model was trained on.
        expected: Format,
    },
    /// The columns of the model cannot be found in a file to evaluate on.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// The file cannot be read as ratings.
    #[error(transparent)]
    Ratings(#[from] RatingsError),
    /// The file cannot be read as documents.
    #[error(transparent)]
    Documents(#[from] DocumentsError),
    /// The file is of a format that is recognized and not read.
    #[error("{file}: this looks like {name}; {remedy}")]
    Unsupported {
        /// The file.
        file: String,
        /// The format, with an article.
        name: &'static str,
        /// What to do.
        remedy: Remedy,
    },
    /// The file is prose or documents, and no table.
    #[error("{file}: the run trains on this file as text, which has no columns")]
    Prose {
        /// The file.
        file: String,
    },
    /// The file is LIBSVM in an encoding that this reader does not decode.
    #[error("{file}: this LIBSVM file is text in {encoding}; save it as UTF-8")]
    LibsvmEncoding {
        /// The file.
        file: String,
        /// The encoding.
        encoding: String,
    },
}

impl Format {
    /// The format of `bytes` (unpacked); `file` is the name for errors.
    ///
    /// # Errors
    /// If they are in a format that is recognized and not read.
    pub fn of(file: &str, bytes: &[u8]) -> Result<Self, FormatError> {
        let refused = |found: Unsupported| {
            let Unsupported { name, remedy } = found;
            Err(FormatError::Unsupported { file: file.to_owned(), name, remedy })
        };
        if let Some(found) = unsupported::by_mark(bytes) {
            return refused(found);
        }
        let encoding = match TextEncoding::detect(bytes) {
            Detected::Utf32 => return Err(DenseTableError::Utf32 { file: file.to_owned() }.into()),
            Detected::Certain(encoding) if encoding.is_utf_16() => encoding,
            _ if is_idx(bytes) => return Ok(Self::Idx),
            // What is LIBSVM, or no table at all, shows in any encoding that has the characters of ASCII.
            Detected::Certain(_) | Detected::Guessed(_) => TextEncoding::UTF_8,
        };
        let text = if encoding.is_utf_8() {
            Cow::Borrowed(bytes)
        } else {
            match encoding.decode(file, bytes) {
                Ok(text) => text,
                // Without a byte order mark, zeros alone made it look like text.
                Err(_) if !matches!(bytes, [0xfe, 0xff, ..] | [0xff, 0xfe, ..]) => {
                    return refused(unsupported::BINARY);
                }
                Err(error) => return Err(error.into()),
            }
        };
        match unsupported::by_text(&text) {
            Some(found) => refused(found),
            None if !libsvm::is_libsvm(&text) => Ok(Self::Csv),
            None if encoding.is_utf_8() => Ok(Self::Libsvm),
            None => Err(FormatError::LibsvmEncoding { file: file.to_owned(), encoding: encoding.name() }),
        }
    }

    /// This format with an article, such as `an IDX file`.
    pub(super) fn file(self) -> String {
        match self {
            Self::Documents => "a file of documents".to_owned(),
            Self::Idx => format!("an {self} file"),
            _ => format!("a {self} file"),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Csv => "CSV",
            Self::Libsvm => "LIBSVM",
            Self::Idx => "IDX",
            Self::Text => "text",
            Self::Documents => "documents",
        })
    }
}

impl FileLayout {
    /// Detects the format of `bytes` (unpacked), and infers what the hints leave open.
    ///
    /// # Errors
    /// If the file is empty or cannot be read, or a hint is about what the file does not have.
    pub fn infer(file: &str, bytes: &[u8], hints: &ColumnHints) -> Result<Inferred<Self>, FormatError> {
        let format = Format::of(file, bytes)?;
        check_hints(file, format, hints)?;
        let (format, width) = match format {
            Format::Csv => return Ok(Columns::infer(file, bytes, hints)?.map(Self::Csv)),
            Format::Libsvm => {
                let width = hints.width.unwrap_or_else(|| libsvm::largest_index(bytes));
                (NumberedFormat::Libsvm, width)
            }
            Format::Idx => return Self::of_outline(file, Arrays::find(file, bytes)?.outline(), hints),
            Format::Text | Format::Documents => unreachable!("it is never detected"),
        };
        let layout = Numbered::infer(file, format, width, hints.features.as_deref())?;
        Ok(Inferred::certain(Self::Numbered(layout)))
    }

    /// As [`infer`](Self::infer), for an IDX file of which only the headers have been read.
    ///
    /// # Errors
    /// A hint is about what the file does not have.
    pub fn of_outline(
        file: &str,
        outline: &Outline,
        hints: &ColumnHints,
    ) -> Result<Inferred<Self>, FormatError> {
        check_hints(file, Format::Idx, hints)?;
        let features = hints.features.as_deref();
        let layout = Numbered::infer(file, NumberedFormat::Idx, outline.width(), features)?;
        Ok(Inferred::certain(Self::Numbered(layout)))
    }

    /// This layout for another file with the same columns, `bytes` (unpacked). A CSV file may have its columns in another order, and
    /// differ in header, delimiter, encoding and decimal mark.
    ///
    /// # Errors
    /// If it is of another format or has other columns.
    pub fn of_other(&self, file: &str, bytes: &[u8]) -> Result<Inferred<Self>, FormatError> {
        if let Self::Text(_) | Self::Documents(_) = self {
            return Ok(Inferred::certain(self.clone()));
        }
        let (found, expected) = (Format::of(file, bytes)?, self.format());
        match self {
            _ if found != expected => {
                Err(FormatError::OtherFormat { file: file.to_owned(), found, expected })
            }
            Self::Csv(layout) => Ok(layout.of_other(file, bytes)?.map(Self::Csv)),
            Self::Numbered(_) | Self::Text(_) | Self::Documents(_) => Ok(Inferred::certain(self.clone())),
        }
    }

    /// As [`of_other`](Self::of_other), for a file whose labels are not read. A CSV file need not have any.
    ///
    /// # Errors
    /// If it is of another format or lacks features.
    pub fn of_unlabelled(&self, file: &str, bytes: &[u8]) -> Result<Inferred<Self>, FormatError> {
        match self {
            Self::Csv(layout) if Format::of(file, bytes)? == Format::Csv => {
                Ok(layout.of_unlabelled(file, bytes)?.map(Self::Csv))
            }
            _ => self.of_other(file, bytes),
        }
    }

    /// Reads `bytes` (unpacked) as a dense table; `file` is the name for errors.
    ///
    /// # Errors
    /// At the first row that cannot be used, or if the table would have too many numbers.
    pub fn read(&self, file: &str, bytes: &[u8]) -> Result<DenseTable, FormatError> {
        match self {
            Self::Csv(layout) => Ok(DenseTable::read(file, bytes, layout)?),
            Self::Numbered(layout) => match layout.format {
                NumberedFormat::Libsvm => Ok(read_libsvm(file, bytes, layout)?.dense(file)?),
                NumberedFormat::Idx => {
                    let arrays = Arrays::find(file, bytes)?;
                    check_size(file, arrays.outline().rows(), layout.columns())?;
                    Ok(arrays.read(file, layout)?)
                }
            },
            Self::Text(_) | Self::Documents(_) => Err(FormatError::Prose { file: file.to_owned() }),
        }
    }

    /// As [`read`](Self::read), as a sparse table.
    ///
    /// # Errors
    /// At the first row that cannot be used, or if the table would have too many entries.
    pub fn read_sparse(&self, file: &str, bytes: &[u8]) -> Result<SparseTable, FormatError> {
        match self {
            Self::Numbered(layout) if layout.format == NumberedFormat::Libsvm => {
                Ok(read_libsvm(file, bytes, layout)?)
            }
            _ => Ok(self.read(file, bytes)?.sparse()),
        }
    }

    /// The format of the file.
    #[must_use]
    pub fn format(&self) -> Format {
        match self {
            Self::Csv(_) => Format::Csv,
            Self::Numbered(layout) => layout.format.into(),
            Self::Text(_) => Format::Text,
            Self::Documents(_) => Format::Documents,
        }
    }

    /// Features of a sample; of a text, its tokens; 0 for documents, which have different lengths.
    #[must_use]
    pub fn columns(&self) -> usize {
        match self {
            Self::Csv(layout) => layout.features.len(),
            Self::Numbered(layout) => layout.columns(),
            Self::Text(layout) => layout.context,
            Self::Documents(_) => 0,
        }
    }

    /// Why this layout cannot be used, in words; `None` if it can. It checks layouts that other peers sent.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Csv(layout) => layout.problem(),
            Self::Numbered(layout) => layout.problem(),
            Self::Text(layout) => (layout.context == 0).then(|| "a context of no bytes".to_owned()),
            Self::Documents(layout) => layout.problem().map(Cow::into_owned),
        }
    }
}

/// Refuses hints that mean nothing for a file of this format.
fn check_hints(file: &str, format: Format, hints: &ColumnHints) -> Result<(), FormatError> {
    let only_if = |is_meant: bool, key, is_given: bool| match is_given && !is_meant {
        true => Err(FormatError::Meaningless { file: file.to_owned(), format, key }),
        false => Ok(()),
    };
    let is_csv = format == Format::Csv;
    only_if(is_csv, "label", hints.label.is_some())?;
    only_if(is_csv, "header", hints.header.is_some())?;
    only_if(is_csv, "encoding", hints.encoding.is_some())?;
    only_if(is_csv, "delimiter", hints.delimiter.is_some())?;
    only_if(is_csv, "decimal", hints.decimal.is_some())?;
    only_if(is_csv, "skip_lines", hints.skip_lines.is_some())?;
    only_if(format == Format::Libsvm, "features", hints.width.is_some())
}

impl From<NumberedFormat> for Format {
    fn from(format: NumberedFormat) -> Self {
        match format {
            NumberedFormat::Libsvm => Self::Libsvm,
            NumberedFormat::Idx => Self::Idx,
        }
    }
}

/// Reads `bytes` (unpacked) of a LIBSVM file, and keeps the columns that `layout` chooses.
fn read_libsvm(file: &str, bytes: &[u8], layout: &Numbered) -> Result<SparseTable, LibsvmError> {
    let table = libsvm::read(file, bytes, layout.width)?;
    Ok(match layout.features.as_slice() {
        [] => table,
        chosen => SparseTable { features: table.features.select(chosen), ..table },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::column_names::Column;
    use crate::data::limits::FEATURES_MAX;
    use crate::data::notation::Decimal;

    const SPARSE: &[u8] = b"1 2:5 3:7\n0 1:4\n";

    /// Two samples of one byte each, and their labels.
    const ARRAYS: &[u8] = b"\0\0\x08\x01\0\0\0\x02\x05\x06\0\0\x08\x01\0\0\0\x02\0\x01";

    fn hinted(bytes: &[u8], hints: ColumnHints) -> Result<FileLayout, FormatError> {
        Ok(FileLayout::infer("f", bytes, &hints)?.layout)
    }

    fn chosen(numbers: &[usize]) -> ColumnHints {
        let columns = numbers.iter().map(|&number| Column::Number(number)).collect();
        ColumnHints { features: Some(columns), ..ColumnHints::default() }
    }

    #[test]
    fn the_format_is_detected_from_the_bytes() {
        for (bytes, format, words) in [
            (&b"1,2,0\n"[..], Format::Csv, "CSV"),
            (b"", Format::Csv, "CSV"),
            (SPARSE, Format::Libsvm, "LIBSVM"),
            (ARRAYS, Format::Idx, "IDX"),
            (b"\0\0anything", Format::Idx, "IDX"),
        ] {
            assert_eq!((Format::of("f", bytes), format.to_string().as_str()), (Ok(format), words));
        }
    }

    #[test]
    fn a_layout_reads_back_from_a_specification() {
        for (bytes, hints) in [
            (&b"1,2,0\n"[..], ColumnHints::default()),
            (SPARSE, ColumnHints::default()),
            (SPARSE, chosen(&[3, 1])),
            (ARRAYS, ColumnHints::default()),
        ] {
            let layout = hinted(bytes, hints).unwrap();
            let text = toml::to_string(&layout).unwrap();
            assert_eq!(toml::from_str::<FileLayout>(&text).unwrap(), layout, "{text}");
        }
        let csv = hinted(b"1,2,0\n", ColumnHints::default()).unwrap();
        let text = "delimiter = 44\nheader = false\nwidth = 3\nlabel = 2\nfeatures = [0, 1]\n";
        assert_eq!(toml::to_string(&csv).unwrap(), text);
        let sparse = hinted(SPARSE, ColumnHints::default()).unwrap();
        assert_eq!(toml::to_string(&sparse).unwrap(), "format = \"libsvm\"\nwidth = 3\n");
    }

    #[test]
    fn a_layout_with_everything_reads_back() {
        let bytes = b"# about\na;b;p;f;label\n1,5;$1.234;5%;yes;M\xfcller\n2,5;$2;6%;no;M\xf6ller\n";
        let csv = hinted(bytes, ColumnHints::default()).unwrap();
        let text = toml::to_string(&csv).unwrap();
        assert_eq!(
            text,
            "delimiter = 59\nheader = true\nwidth = 5\nlabel = 4\nfeatures = [0, 1, 2, 3]\nencoding = \"windows-1252\"\nskip_lines = 1\n\
             decimal = \",\"\namounts = [1]\npercents = [2]\nbooleans = [3]\nfeature_names = [\"a\", \"b\", \"p\", \"f\"]\n\
             label_name = \"label\"\n"
        );
        assert_eq!(toml::from_str::<FileLayout>(&text).unwrap(), csv);
        assert_eq!(csv.read("f", bytes).unwrap().features, [1.5, 1234.0, 5.0, 1.0, 2.5, 2.0, 6.0, 0.0]);
    }

    #[test]
    fn other_formats_are_named() {
        let error =
            |bytes: &[u8]| FileLayout::infer("f", bytes, &ColumnHints::default()).unwrap_err().to_string();
        assert_eq!(
            error(b"\xfd7zXZ\0\0\x04"),
            "f: this looks like an xz archive; unpack it, and give the CSV, LIBSVM or IDX file inside; of packed files, only gzip (.gz) is read"
        );
        assert_eq!(
            error(b"1\0 \x001\0:\x002\0\n\0"),
            "f: this LIBSVM file is text in utf-16le; save it as UTF-8"
        );
        assert!(error(b"\xff\xfe\0\0a\0\0\0").contains("UTF-32"));
    }

    #[test]
    fn features_are_all_columns_or_the_chosen_ones() {
        let read = |hints| hinted(SPARSE, hints).unwrap().read("f", SPARSE).unwrap();
        assert_eq!(read(ColumnHints::default()).features, [0.0, 5.0, 7.0, 4.0, 0.0, 0.0]);
        assert_eq!(read(chosen(&[3, 1])).features, [7.0, 0.0, 0.0, 4.0]);
        let wider = ColumnHints { width: Some(5), ..ColumnHints::default() };
        assert_eq!(read(wider).columns, 5);
    }

    #[test]
    fn settings_that_do_not_apply_to_a_file_are_refused() {
        let label = || ColumnHints { label: Some(Column::Number(1)), ..ColumnHints::default() };
        let header = || ColumnHints { header: Some(false), ..ColumnHints::default() };
        let width = || ColumnHints { width: Some(9), ..ColumnHints::default() };
        let decimal = || ColumnHints { decimal: Some(Decimal::Comma), ..ColumnHints::default() };
        let encoding = || ColumnHints { encoding: Some(TextEncoding::UTF_8), ..ColumnHints::default() };
        for (bytes, hints, words) in [
            (SPARSE, label(), "f: `label` in [data] does not apply to a LIBSVM file"),
            (SPARSE, header(), "f: `header` in [data] does not apply to a LIBSVM file"),
            (SPARSE, decimal(), "f: `decimal` in [data] does not apply to a LIBSVM file"),
            (ARRAYS, encoding(), "f: `encoding` in [data] does not apply to an IDX file"),
            (ARRAYS, label(), "f: `label` in [data] does not apply to an IDX file"),
            (ARRAYS, width(), "f: `features` in [data] does not apply to an IDX file"),
            (b"1,2,0\n", width(), "f: `features` in [data] does not apply to a CSV file"),
            (
                SPARSE,
                chosen(&[4]),
                "f: there is no column number 4; the file has columns 1 to 3 and no header",
            ),
            (SPARSE, chosen(&[2, 2]), "f: column 2 is used twice"),
            (SPARSE, chosen(&[]), "f: no column is listed"),
        ] {
            let error = hinted(bytes, hints).unwrap_err().to_string();
            assert!(error.starts_with(words), "{words}: {error}");
        }
    }

    #[test]
    fn another_file_must_have_the_same_format_and_no_new_features() {
        let layout = hinted(SPARSE, ColumnHints::default()).unwrap();
        let read = |bytes: &[u8]| layout.of_other("g", bytes)?.layout.read("g", bytes);
        assert_eq!(read(b"0 1:1\n").unwrap().features, [1.0, 0.0, 0.0]);
        let error = read(b"0 1:1\n1 4:1\n").unwrap_err().to_string();
        assert!(
            error.starts_with("g, line 2: the index 4 is larger than the number of features of the run, 3;"),
            "{error}"
        );
        let error = read(b"1,2,0\n").unwrap_err().to_string();
        assert_eq!(
            error,
            "g: this is a CSV file, but the model was trained on a LIBSVM file; give a file of that format"
        );
        let wide = [&b"\0\0\x08\x02\0\0\0\x01\0\0\0\x02\x05\x06"[..], b"\0\0\x08\x01\0\0\0\x01\0"].concat();
        let layout = hinted(ARRAYS, ColumnHints::default()).unwrap();
        let error = layout.of_other("g", &wide).unwrap().layout.read("g", &wide).unwrap_err().to_string();
        assert_eq!(
            error,
            "g: each sample has 2 values (1 x 2), but the samples of the run have 1; give a file with samples of that size"
        );
    }

    #[test]
    fn layouts_from_other_peers_are_checked() {
        let layout = |width, features: &[usize]| {
            let (format, features) = (NumberedFormat::Libsvm, features.to_vec());
            FileLayout::Numbered(Numbered { format, width, features }).problem()
        };
        assert_eq!(layout(3, &[2, 0]), None);
        assert_eq!(layout(FEATURES_MAX, &[]), None);
        for (width, features) in
            [(0, &[][..]), (FEATURES_MAX + 1, &[]), (3, &[3]), (3, &[usize::MAX]), (3, &[1, 1])]
        {
            assert!(layout(width, features).is_some(), "{width} {features:?}");
        }
    }
}
