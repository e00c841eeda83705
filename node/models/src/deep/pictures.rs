//! Samples that are pictures: the rows of a table, or bytes that are read where they lie.
//!
//! A table has four bytes for each value. Pictures that are bytes stay what they are, in memory or on disk, and become numbers when they are
//! trained: so a file may be larger than the memory of a machine.

use super::{Inputs, Targets};
use crate::data::bytes::DataBytes;
use crate::data::dataset::{Dataset, HeldOutSplit, Samples};
use crate::data::labels::Labels;
use crate::data::standardize::Standardization;

/// The pictures of a run, and their labels.
#[derive(Debug)]
pub enum PictureSamples {
    /// Rows of a table.
    Table(Dataset),
    /// Bytes.
    Bytes(PictureBytes),
}

/// Which samples of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplePart {
    /// Those that are trained.
    Training,
    /// Those that are never trained.
    HeldOut,
}

/// Pictures whose values are bytes, one behind the other.
#[derive(Debug)]
pub struct PictureBytes {
    bytes: DataBytes,
    /// Where the first picture begins.
    start: u64,
    /// Values of a picture.
    values: usize,
    /// (pictures of the file)
    labels: Labels,
    rows: HeldOutSplit,
    /// For each part of a picture's values, the number that each byte stands for.
    numbers: Vec<[f32; BYTE_VALUES]>,
}

const BYTE_VALUES: usize = 256;

impl PictureBytes {
    /// Pictures of `values` bytes each, the first of which begins at byte `start`.
    ///
    /// - `labels`: those of all pictures of the file.
    /// - `rows`: which pictures are trained, and which are held out.
    ///
    /// # Panics
    /// The standardization does not fit the values.
    #[must_use]
    pub fn new(
        bytes: DataBytes,
        (start, values): (u64, usize),
        labels: Labels,
        rows: HeldOutSplit,
        standardization: &Standardization,
    ) -> Self {
        assert!(standardization.fits(values), "a mean for each part of {values} values");
        let numbers = standardization.of_bytes();
        Self { bytes, start, values, labels, rows, numbers }
    }

    /// Appends the numbers of one picture of the file.
    fn append(&self, row: u32, picture: &mut [u8], values: &mut Vec<f32>) {
        self.bytes.read_sample(self.start + u64::from(row) * self.values as u64, picture);
        let parts = picture.chunks(self.values / self.numbers.len());
        for (part, numbers) in parts.zip(&self.numbers) {
            values.extend(part.iter().map(|&byte| numbers[usize::from(byte)]));
        }
    }
}

/// How often each byte occurs in each of `parts` equal parts of these pictures of a file: what their mean and deviation follow from.
///
/// - `values`: bytes of a picture, a multiple of `parts`; the first picture begins at byte `start`.
///
/// # Errors
/// The disk does not give the bytes.
pub fn byte_counts(
    bytes: &DataBytes,
    (start, values): (u64, usize),
    parts: usize,
    rows: &[u32],
) -> std::io::Result<Vec<[u64; BYTE_VALUES]>> {
    let mut counts = vec![[0; BYTE_VALUES]; parts];
    let mut picture = vec![0; values];
    let mut sorted = rows.to_vec();
    sorted.sort_unstable();
    for row in sorted {
        bytes.read_at(start + u64::from(row) * values as u64, &mut picture)?;
        for (part, counts) in picture.chunks(values / parts).zip(&mut counts) {
            part.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        }
    }
    Ok(counts)
}

impl PictureSamples {
    /// The rows of a table, all of them in the part [`SamplePart::Training`].
    #[must_use]
    pub fn of_table(samples: Samples) -> Self {
        let held_out =
            Samples { features: vec![], columns: samples.columns, labels: samples.labels.select(&[]) };
        Self::Table(Dataset { training: samples, held_out })
    }

    /// The number of pictures of a part.
    #[must_use]
    pub fn count(&self, part: SamplePart) -> usize {
        match (self, part) {
            (Self::Table(dataset), SamplePart::Training) => dataset.training.rows(),
            (Self::Table(dataset), SamplePart::HeldOut) => dataset.held_out.rows(),
            (Self::Bytes(pictures), SamplePart::Training) => pictures.rows.training.len(),
            (Self::Bytes(pictures), SamplePart::HeldOut) => pictures.rows.held_out.len(),
        }
    }

    /// The labels of a part.
    #[must_use]
    pub fn labels(&self, part: SamplePart) -> Labels {
        match (self, part) {
            (Self::Table(dataset), SamplePart::Training) => dataset.training.labels.clone(),
            (Self::Table(dataset), SamplePart::HeldOut) => dataset.held_out.labels.clone(),
            (Self::Bytes(pictures), SamplePart::Training) => pictures.labels.select(&pictures.rows.training),
            (Self::Bytes(pictures), SamplePart::HeldOut) => pictures.labels.select(&pictures.rows.held_out),
        }
    }

    /// These pictures of a part, and their labels.
    pub(super) fn piece(
        &self,
        part: SamplePart,
        samples: impl Iterator<Item = usize> + Clone,
    ) -> (Inputs, Targets) {
        let (mut values, mut count) = (vec![], 0);
        let labels = match self {
            Self::Table(dataset) => {
                let rows = match part {
                    SamplePart::Training => &dataset.training,
                    SamplePart::HeldOut => &dataset.held_out,
                };
                for row in samples.clone() {
                    values.extend_from_slice(rows.row(row));
                    count += 1;
                }
                rows.labels.select(&samples.map(|row| row as u32).collect::<Vec<_>>())
            }
            Self::Bytes(pictures) => {
                let rows = match part {
                    SamplePart::Training => &pictures.rows.training,
                    SamplePart::HeldOut => &pictures.rows.held_out,
                };
                let rows: Vec<u32> = samples.map(|sample| rows[sample]).collect();
                let mut picture = vec![0; pictures.values];
                values.reserve(rows.len() * pictures.values);
                rows.iter().for_each(|&row| pictures.append(row, &mut picture, &mut values));
                count = rows.len();
                pictures.labels.select(&rows)
            }
        };
        let targets = match labels {
            Labels::Classes(classes) => Targets::Classes(classes),
            Labels::Numbers(numbers) => Targets::Numbers(numbers),
        };
        (Inputs::Pictures { values, count }, targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::bytes::tests::on_disk;
    use crate::data::dense_table::DenseTable;
    use crate::data::label_texts::LabelTexts;

    /// A header of three bytes, and three pictures of two channels of two pixels.
    const FILE: &[u8] = b"\0\0\0\x00\x02\x0a\x0a\x04\x06\x0a\x14\x80\xff\x0a\x0a";

    #[test]
    fn bytes_give_the_numbers_of_a_table() {
        let rows = || HeldOutSplit { training: vec![2, 0], held_out: vec![1] };
        let labels = || Labels::Classes(vec![0, 1, 2]);
        let table = DenseTable {
            features: FILE[3..].iter().map(|&byte| f64::from(byte)).collect(),
            columns: 4,
            labels: LabelTexts::default(),
        };
        let fitted = Standardization::fit_parts(&table.features, 4, 2, &rows().training);
        let select = |rows: &[u32]| Samples::select(&table, &labels(), &fitted, rows);
        let of_table = PictureSamples::Table(Dataset {
            training: select(&rows().training),
            held_out: select(&rows().held_out),
        });
        for bytes in [DataBytes::from(FILE), on_disk(FILE)] {
            let counts = byte_counts(&bytes, (3, 4), 2, &rows().training).unwrap();
            let counted = Standardization::of_byte_counts(&counts);
            for (found, expected) in [(&counted.mean, &fitted.mean), (&counted.scale, &fitted.scale)] {
                let is_near =
                    |(found, expected): (&f64, &f64)| (found - expected).abs() < 1e-12 * expected.abs();
                assert!(found.iter().zip(expected).all(is_near), "{counted:?} {fitted:?}");
            }
            let pictures = PictureBytes::new(bytes, (3, 4), labels(), rows(), &fitted);
            let of_bytes = PictureSamples::Bytes(pictures);
            for part in [SamplePart::Training, SamplePart::HeldOut] {
                let count = of_table.count(part);
                assert_eq!(of_bytes.count(part), count);
                assert_eq!(of_bytes.piece(part, (0..count).rev()), of_table.piece(part, (0..count).rev()));
            }
        }
    }

    #[test]
    fn a_constant_channel_has_a_scale_of_one() {
        let mut counts = [0; BYTE_VALUES];
        counts[10] = 7;
        let fitted = Standardization::of_byte_counts(&[counts]);
        assert_eq!((fitted.mean, fitted.scale), (vec![10.0], vec![1.0]));
    }
}
