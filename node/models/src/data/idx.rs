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
//! # Invariants
//! - No input makes the reader panic. It checks that the file has as many bytes as the header promises before it allocates memory.

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

/// Samples and labels of a file, still as bytes.
#[derive(Clone, Debug)]
pub struct Arrays<'a> {
    samples: Array<'a>,
    labels: Array<'a>,
}

/// One array, whose `values` have as many bytes as its shape says.
#[derive(Clone, Debug)]
struct Array<'a> {
    kind: Kind,
    /// At least one dimension, none of them 0.
    shape: Vec<usize>,
    values: &'a [u8],
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

impl<'a> Arrays<'a> {
    /// Finds samples and labels in `bytes` (unpacked); `file` is the name for errors.
    ///
    /// # Errors
    /// If the file is not an array of samples followed by an array of as many labels, or has more bytes.
    pub fn find(file: &str, bytes: &'a [u8]) -> Result<Self, IdxError> {
        let (samples, rest) = Array::split(file, "samples", bytes, bytes)?;
        if rest.is_empty() {
            return Err(IdxError::NoLabels { file: file.to_owned() });
        }
        let (labels, rest) = Array::split(file, "labels", bytes, rest)?;
        let file = file.to_owned();
        if labels.shape != samples.shape[..1] {
            let (samples, labels) = (extent(&samples.shape), extent(&labels.shape));
            return Err(IdxError::NotTheirLabels { file, samples, labels });
        }
        if !rest.is_empty() {
            return Err(IdxError::Trailing { file, count: rest.len() });
        }
        Ok(Self { samples, labels })
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

    /// Reads the features that `layout` chooses, and the labels.
    ///
    /// # Errors
    /// If a sample does not have as many values as the layout says, or a number is not finite.
    pub fn read(&self, file: &str, layout: &Numbered) -> Result<DenseTable, IdxError> {
        let (width, file) = (self.width(), || file.to_owned());
        if width != layout.width {
            let (shape, expected) = (extent(&self.samples.shape), layout.width);
            return Err(IdxError::Width { file: file(), found: width, shape, expected });
        }
        let mut features = Vec::with_capacity(self.rows() * layout.columns());
        let mut labels = LabelTexts::default();
        for row in 0..self.rows() {
            let sample = row + 1;
            for column in layout.chosen() {
                let value = self.samples.number(row * width + column);
                if !(value as f32).is_finite() {
                    let (what, found) = (format!("value {}", column + 1), value.to_string());
                    return Err(IdxError::NotFinite { file: file(), sample, what, found });
                }
                features.push(value);
            }
            let label = self.labels.number(row);
            if !(label as f32).is_finite() {
                let (what, found) = ("the label".to_owned(), label.to_string());
                return Err(IdxError::NotFinite { file: file(), sample, what, found });
            }
            let text = whole_text(label).unwrap_or_else(|| label.to_string());
            labels.push(text.into(), || RowLocation::Sample(sample as u64));
        }
        Ok(DenseTable { features, columns: layout.columns(), labels })
    }
}

impl<'a> Array<'a> {
    /// Splits the array at the beginning of `rest`, which is the end of `bytes`, from the bytes after it.
    fn split(
        file: &str,
        array: &'static str,
        bytes: &[u8],
        rest: &'a [u8],
    ) -> Result<(Self, &'a [u8]), IdxError> {
        let start = bytes.len() - rest.len();
        let no_array = || IdxError::NoArray { file: file.to_owned(), array, start };
        let Some((&[0, 0, kind, rank], behind)) = rest.split_first_chunk() else { return Err(no_array()) };
        let unknown = || IdxError::Kind { file: file.to_owned(), array, found: kind };
        let kind = Kind::of(kind).ok_or_else(unknown)?;
        let dimensions_bytes = usize::from(rank) * size_of::<u32>();
        let dimensions = behind.get(..dimensions_bytes).filter(|dimensions| !dimensions.is_empty());
        let dimensions = dimensions.ok_or_else(no_array)?.chunks_exact(size_of::<u32>());
        let shape: Vec<usize> = dimensions
            .map(|bytes| u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize)
            .collect();
        if shape.contains(&0) {
            return Err(IdxError::Empty { file: file.to_owned(), array, shape: extent(&shape) });
        }
        let behind = &behind[dimensions_bytes..];
        let expected = shape.iter().try_fold(kind.bytes(), |product, &extent| product.checked_mul(extent));
        let Some((values, behind)) = expected.and_then(|expected| behind.split_at_checked(expected)) else {
            let expected =
                expected.map_or_else(|| "more than 2^64".to_owned(), |expected| expected.to_string());
            let (file, shape, found) = (file.to_owned(), extent(&shape), behind.len());
            return Err(IdxError::Truncated { file, array, shape, expected, found });
        };
        Ok((Self { kind, shape, values }, behind))
    }

    /// One of the values, counted through all dimensions.
    fn number(&self, index: usize) -> f64 {
        fn at<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
            bytes[index * N..][..N].try_into().expect("as many bytes")
        }
        match self.kind {
            Kind::U8 => self.values[index].into(),
            Kind::I8 => i8::from_be_bytes(at(self.values, index)).into(),
            Kind::I16 => i16::from_be_bytes(at(self.values, index)).into(),
            Kind::I32 => i32::from_be_bytes(at(self.values, index)).into(),
            Kind::F32 => f32::from_be_bytes(at(self.values, index)).into(),
            Kind::F64 => f64::from_be_bytes(at(self.values, index)),
        }
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
