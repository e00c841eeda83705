//! IDX: arrays of numbers with a small header, the format of MNIST and of similar data sets.
//!
//! ```text
//! 0 0 8 3 | 0 0 234 96 | 0 0 0 28 | 0 0 0 28 | values ...          60,000 samples of 28 x 28 bytes, and behind them
//!     | |   dimensions, 32 bits each, highest byte first
//!     | how many dimensions                                        0 0 8 1 | 0 0 234 96 | values ...   60,000 labels
//!     type of a value
//! ```
//! Samples and labels are published as two files, and a run has one: the user appends the labels file to the samples file, both gzipped
//! or both plain (a gzipped file may have several parts). The first dimension counts the samples; the others are the features, in the
//! order of the file.
//!
//! A third array may name the classes that the labels count: (classes, bytes of the longest name), with zeros behind shorter names. Packed
//! pictures have it.
//!
//! # Invariants
//! - No input makes the reader panic. It checks that the file has as many bytes as the header promises before it allocates memory.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;

use super::bytes::DataBytes;
use super::dense_table::DenseTable;
use super::label_texts::{LabelTexts, RowLocation, whole_text};
use super::numbered::Numbered;

/// The command that makes one file of two.
const COMMAND: &str = "cat train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz > mnist.idx.gz";

/// Why an IDX file cannot be used. Each message names the file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdxError {
    /// The file has samples and no labels.
    #[error(
        "{file}: the IDX file has only one array, but samples and labels are needed; append the labels to the samples: `{COMMAND}`"
    )]
    NoLabels {
        /// The file.
        file: String,
    },
    /// The bytes where an array should begin are not the header of an array.
    #[error(
        "{file}: the {array} should begin at byte {start}, but no IDX array begins there; join two IDX files, both gzipped or both plain: `{COMMAND}`"
    )]
    NoArray {
        /// The file.
        file: String,
        /// Samples or labels.
        array: &'static str,
        /// Where, in the unpacked file.
        start: usize,
    },
    /// The type of the values is not one of IDX.
    #[error(
        "{file}: the {array} have the value type {found:#04x}, but IDX has only the types 0x08, 0x09 and 0x0b to 0x0e; check that this is an IDX file"
    )]
    Kind {
        /// The file.
        file: String,
        /// Samples or labels.
        array: &'static str,
        /// The type.
        found: u8,
    },
    /// The file has fewer bytes than the header says.
    #[error(
        "{file}: the header announces {array} of shape {shape} ({expected} bytes), but the file has only {found} of them; copy the file again"
    )]
    Truncated {
        /// The file.
        file: String,
        /// Samples or labels.
        array: &'static str,
        /// Dimensions.
        shape: String,
        /// Bytes that there should be.
        expected: String,
        /// Bytes that there are.
        found: usize,
    },
    /// An array has a dimension of 0.
    #[error(
        "{file}: the header announces {array} of shape {shape}, so there are none; give a file with samples and labels"
    )]
    Empty {
        /// The file.
        file: String,
        /// Samples or labels.
        array: &'static str,
        /// Dimensions.
        shape: String,
    },
    /// The second array does not have one label for each sample of the first.
    #[error(
        "{file}: the samples have the shape {samples}, but the array after them has the shape {labels}, not one label for each sample; append the labels of the same samples: `{COMMAND}`"
    )]
    NotTheirLabels {
        /// The file.
        file: String,
        /// Dimensions of the samples.
        samples: String,
        /// Dimensions of what should be labels.
        labels: String,
    },
    /// The file has bytes after the two arrays.
    #[error(
        "{file}: {count} more bytes follow the samples and the labels; join exactly two IDX files: `{COMMAND}`"
    )]
    Trailing {
        /// The file.
        file: String,
        /// Bytes.
        count: usize,
    },
    /// The third array is not a list of different names.
    #[error(
        "{file}: the third array should name the classes, each with a different text in UTF-8, but does not; pack the pictures again"
    )]
    Names {
        /// The file.
        file: String,
    },
    /// The file names its classes, and a label is none of them.
    #[error(
        "{file}, sample {sample}: the label {found} has no name in the third array; pack the pictures again"
    )]
    NoName {
        /// The file.
        file: String,
        /// The sample, from 1.
        sample: usize,
        /// The label.
        found: String,
    },
    /// The disk does not give the file's bytes.
    #[error("{file}: the file cannot be read ({reason}); check the disk, or copy the file again")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system says.
        reason: String,
    },
    /// The samples have a different number of values than the run's.
    #[error(
        "{file}: each sample has {found} values ({shape}), but the samples of the run have {expected}; give a file with samples of that size"
    )]
    Width {
        /// The file.
        file: String,
        /// Values of a sample.
        found: usize,
        /// Dimensions of the array.
        shape: String,
        /// Values of the run's samples.
        expected: usize,
    },
    /// A number is infinite, not a number, or too large.
    #[error(
        "{file}, sample {sample}: {what} is {found}, not a finite 32-bit number; write the file again without this sample"
    )]
    NotFinite {
        /// The file.
        file: String,
        /// The sample, from 1.
        sample: usize,
        /// The label, or which value.
        what: String,
        /// The number.
        found: String,
    },
}

/// Where the arrays of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    samples: Array,
    labels: Array,
    /// Of the classes, (classes, bytes of the longest name). A name is UTF-8, and zeros fill it up.
    names: Option<Array>,
}

/// Where one array is. Its dimensions are not 0, and there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Array {
    kind: Kind,
    shape: Vec<usize>,
    /// Of its values.
    start: u64,
    byte_count: u64,
}

/// The arrays of a file that is in memory.
#[derive(Clone, Debug)]
pub struct Arrays<'a> {
    outline: Outline,
    samples: &'a [u8],
    labels: &'a [u8],
    names: Vec<String>,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    I16,
    I32,
    F32,
    F64,
}

/// Whether `bytes` (unpacked) begin with the mark of this format, with which no text begins.
#[must_use]
pub fn is_idx(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0, 0])
}

/// Reads `out.len()` bytes of a file, which has as many.
type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>;

impl Outline {
    /// Finds the arrays in the bytes of a file (unpacked), of which it reads only the headers; `file` is the name for errors.
    ///
    /// # Errors
    /// The file is not an array of samples followed by an array of as many labels (and the names of their classes), or has more bytes; or
    /// the disk does not give the headers.
    pub fn of(file: &str, bytes: &DataBytes) -> Result<Self, IdxError> {
        Self::find(file, bytes.byte_count(), &|offset, out| bytes.read_at(offset, out))
    }

    fn find(file: &str, byte_count: u64, read: Read<'_>) -> Result<Self, IdxError> {
        let samples = Array::find(file, "samples", 0, byte_count, read)?;
        if samples.end() == byte_count {
            return Err(IdxError::NoLabels { file: file.to_owned() });
        }
        let labels = Array::find(file, "labels", samples.end(), byte_count, read)?;
        if labels.shape != samples.shape[..1] {
            let (samples, labels) = (extent(&samples.shape), extent(&labels.shape));
            return Err(IdxError::NotTheirLabels { file: file.to_owned(), samples, labels });
        }
        let left = byte_count - labels.end();
        if left == 0 {
            return Ok(Self { samples, labels, names: None });
        }
        let names = Array::find(file, "names", labels.end(), byte_count, read).ok();
        let is_complete =
            |names: &Array| names.kind == Kind::U8 && names.shape.len() == 2 && names.end() == byte_count;
        match names.filter(is_complete) {
            Some(names) => Ok(Self { samples, labels, names: Some(names) }),
            None => Err(IdxError::Trailing { file: file.to_owned(), count: left as usize }),
        }
    }

    /// Number of samples.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.samples.shape[0]
    }

    /// Values of a sample.
    #[must_use]
    pub fn width(&self) -> usize {
        self.samples.shape[1..].iter().product()
    }

    /// The dimensions of a sample; none if it is a single number.
    #[must_use]
    pub fn sample_shape(&self) -> &[usize] {
        &self.samples.shape[1..]
    }

    /// The dimensions of a sample in words, such as `28 x 28`; `1` if a sample is a single number.
    #[must_use]
    pub fn sample_words(&self) -> String {
        if self.samples.shape.len() == 1 { "1".to_owned() } else { extent(&self.samples.shape[1..]) }
    }

    /// Whether the classes have names.
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.names.is_some()
    }

    /// Where the values of the first sample begin, if all values are bytes.
    #[must_use]
    pub fn byte_samples(&self) -> Option<u64> {
        (self.samples.kind == Kind::U8).then_some(self.samples.start)
    }

    /// The labels of all samples; `bytes` are those of the file.
    ///
    /// # Errors
    /// A label is not finite or has no name, or the disk does not give them.
    pub fn label_texts(&self, file: &str, bytes: &DataBytes) -> Result<LabelTexts, IdxError> {
        let values = |array: &Array| {
            let mut values = vec![0; array.byte_count as usize];
            let read = bytes.read_at(array.start, &mut values);
            read.map(|()| values).map_err(|error| unreadable(file, &error))
        };
        let names = self.names.as_ref().map(|names| names_in(file, names, &values(names)?)).transpose()?;
        let (labels, names) = (values(&self.labels)?, names.unwrap_or_default());
        let mut texts = LabelTexts::default();
        for row in 0..self.rows() {
            let text = self.label_text(file, &labels, &names, row)?;
            texts.push(text, || RowLocation::Sample(row as u64 + 1));
        }
        Ok(texts)
    }

    /// - `labels`: the bytes of the labels.
    fn label_text<'n>(
        &self,
        file: &str,
        labels: &[u8],
        names: &'n [String],
        row: usize,
    ) -> Result<Cow<'n, str>, IdxError> {
        let (label, sample) = (self.labels.kind.number(labels, row), row + 1);
        if !(label as f32).is_finite() {
            let (what, found) = ("the label".to_owned(), label.to_string());
            return Err(IdxError::NotFinite { file: file.to_owned(), sample, what, found });
        }
        if self.names.is_some() {
            let index = (label >= 0.0 && label.trunc() == label).then_some(label as usize);
            let no_name = || IdxError::NoName { file: file.to_owned(), sample, found: label.to_string() };
            return Ok(Cow::Borrowed(index.and_then(|index| names.get(index)).ok_or_else(no_name)?));
        }
        Ok(Cow::Owned(whole_text(label).unwrap_or_else(|| label.to_string())))
    }
}

fn unreadable(file: &str, error: &io::Error) -> IdxError {
    IdxError::Unreadable { file: file.to_owned(), reason: error.to_string() }
}

/// The names in these bytes, all different.
fn names_in(file: &str, array: &Array, bytes: &[u8]) -> Result<Vec<String>, IdxError> {
    let name = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok().filter(|name| !name.is_empty()).map(str::to_owned)
    };
    let names: Option<Vec<String>> = bytes.chunks_exact(array.shape[1]).map(name).collect();
    let are_different = |names: &Vec<String>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
    names.filter(are_different).ok_or_else(|| IdxError::Names { file: file.to_owned() })
}

impl<'a> Arrays<'a> {
    /// Finds samples and labels in `bytes` (unpacked); `file` is the name for errors.
    ///
    /// # Errors
    /// If the file is not an array of samples followed by an array of as many labels (and the names of their classes), or has more bytes.
    pub fn find(file: &str, bytes: &'a [u8]) -> Result<Self, IdxError> {
        let read = |offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
            Ok(())
        };
        let outline = Outline::find(file, bytes.len() as u64, &read)?;
        let values = |array: &Array| &bytes[array.start as usize..array.end() as usize];
        let names = outline.names.as_ref().map(|names| names_in(file, names, values(names))).transpose()?;
        let (samples, labels) = (values(&outline.samples), values(&outline.labels));
        Ok(Self { samples, labels, names: names.unwrap_or_default(), outline })
    }

    /// Where the arrays are.
    #[must_use]
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// Reads the features that `layout` chooses, and the labels.
    ///
    /// # Errors
    /// If a sample does not have as many values as the layout says, or a number is not finite.
    pub fn read(&self, file: &str, layout: &Numbered) -> Result<DenseTable, IdxError> {
        let (outline, width) = (&self.outline, self.outline.width());
        if width != layout.width {
            let (file, shape, expected) = (file.to_owned(), extent(&outline.samples.shape), layout.width);
            return Err(IdxError::Width { file, found: width, shape, expected });
        }
        let mut features = Vec::with_capacity(outline.rows() * layout.columns());
        let mut labels = LabelTexts::default();
        for row in 0..outline.rows() {
            for column in layout.chosen() {
                let value = outline.samples.kind.number(self.samples, row * width + column);
                if !(value as f32).is_finite() {
                    let (what, found) = (format!("value {}", column + 1), value.to_string());
                    return Err(IdxError::NotFinite { file: file.to_owned(), sample: row + 1, what, found });
                }
                features.push(value);
            }
            let text = outline.label_text(file, self.labels, &self.names, row)?;
            labels.push(text, || RowLocation::Sample(row as u64 + 1));
        }
        Ok(DenseTable { features, columns: layout.columns(), labels })
    }
}

impl Array {
    /// Finds the array that begins at byte `start` of a file.
    fn find(
        file: &str,
        array: &'static str,
        start: u64,
        byte_count: u64,
        read: Read<'_>,
    ) -> Result<Self, IdxError> {
        const MARK_BYTES: u64 = 4;
        let no_array = || IdxError::NoArray { file: file.to_owned(), array, start: start as usize };
        let part = |offset: u64, bytes: u64| {
            let is_there = offset.checked_add(bytes).is_some_and(|end| end <= byte_count);
            let mut out = vec![0; if is_there { bytes as usize } else { return Err(no_array()) }];
            read(offset, &mut out).map(|()| out).map_err(|error| unreadable(file, &error))
        };
        let mark = part(start, MARK_BYTES)?;
        let &[0, 0, kind, rank] = mark.as_slice() else { return Err(no_array()) };
        let unknown = || IdxError::Kind { file: file.to_owned(), array, found: kind };
        let kind = Kind::of(kind).ok_or_else(unknown)?;
        let dimension_bytes = u64::from(rank) * size_of::<u32>() as u64;
        let dimensions = part(start + MARK_BYTES, dimension_bytes)?;
        if dimensions.is_empty() {
            return Err(no_array());
        }
        let shape: Vec<usize> = dimensions
            .chunks_exact(size_of::<u32>())
            .map(|bytes| u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize)
            .collect();
        if shape.contains(&0) {
            return Err(IdxError::Empty { file: file.to_owned(), array, shape: extent(&shape) });
        }
        let start = start + MARK_BYTES + dimension_bytes;
        let expected = shape.iter().try_fold(kind.bytes(), |product, &extent| product.checked_mul(extent));
        match expected.filter(|&expected| expected as u64 <= byte_count - start) {
            Some(expected) => Ok(Self { kind, shape, start, byte_count: expected as u64 }),
            None => {
                let expected =
                    expected.map_or_else(|| "more than 2^64".to_owned(), |expected| expected.to_string());
                let (file, shape, found) = (file.to_owned(), extent(&shape), (byte_count - start) as usize);
                Err(IdxError::Truncated { file, array, shape, expected, found })
            }
        }
    }

    /// The byte behind its last value.
    fn end(&self) -> u64 {
        self.start + self.byte_count
    }
}

impl Kind {
    fn of(code: u8) -> Option<Self> {
        Some(match code {
            0x08 => Self::U8,
            0x09 => Self::I8,
            0x0b => Self::I16,
            0x0c => Self::I32,
            0x0d => Self::F32,
            0x0e => Self::F64,
            _ => return None,
        })
    }

    /// The value at an index in an array of this type, counted through all dimensions.
    fn number(self, values: &[u8], index: usize) -> f64 {
        fn at<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
            bytes[index * N..][..N].try_into().expect("as many bytes")
        }
        match self {
            Self::U8 => values[index].into(),
            Self::I8 => i8::from_be_bytes(at(values, index)).into(),
            Self::I16 => i16::from_be_bytes(at(values, index)).into(),
            Self::I32 => i32::from_be_bytes(at(values, index)).into(),
            Self::F32 => f32::from_be_bytes(at(values, index)).into(),
            Self::F64 => f64::from_be_bytes(at(values, index)),
        }
    }

    /// Bytes of a value.
    fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// A shape in words: `60000 x 28 x 28`; of very many dimensions, the first few.
fn extent(shape: &[usize]) -> String {
    const DIMENSIONS_SHOWN: usize = 6;
    let shown: Vec<String> = shape.iter().take(DIMENSIONS_SHOWN).map(usize::to_string).collect();
    let more = if shape.len() > DIMENSIONS_SHOWN { " x ..." } else { "" };
    shown.join(" x ") + more
}

#[cfg(test)]
mod tests;
