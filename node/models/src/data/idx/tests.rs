//! IDX files by hand, cut, altered, and as large as none should be; and the digits of MNIST.

use std::io::{Read, Write};

use super::*;
use crate::data::column_hints::ColumnHints;
use crate::data::column_names::Column;
use crate::data::dense_table::unpack;
use crate::data::format::{FileLayout, FormatError};
use crate::data::numbered::NumberedFormat;
use proptest::prelude::*;

/// The bytes of an array.
fn array(kind: u8, shape: &[u32], values: &[u8]) -> Vec<u8> {
    let dimensions: Vec<u8> = shape.iter().flat_map(|extent| extent.to_be_bytes()).collect();
    [&[0, 0, kind, shape.len() as u8][..], &dimensions, values].concat()
}

/// Three samples of 2 x 2 bytes and their labels.
fn small() -> Vec<u8> {
    [array(8, &[3, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255]), array(8, &[3], &[7, 0, 7])].concat()
}

fn read(bytes: &[u8], hints: &ColumnHints) -> Result<DenseTable, FormatError> {
    FileLayout::infer("f.idx", bytes, hints)?.layout.read("f.idx", bytes)
}

fn read_all(bytes: &[u8]) -> Result<DenseTable, FormatError> {
    read(bytes, &ColumnHints::default())
}

fn texts(table: &DenseTable) -> Vec<&str> {
    let text = |&index: &u32| table.labels.distinct()[index as usize].text.as_str();
    table.labels.rows().iter().map(text).collect()
}

#[test]
fn samples_and_labels() {
    assert!(is_idx(&small()));
    let table = read_all(&small()).unwrap();
    assert_eq!(table.features, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 255.0]);
    assert_eq!((table.columns, texts(&table)), (4, vec!["7", "0", "7"]));
    assert_eq!(table.labels.distinct()[1].place, RowLocation::Sample(2));
    assert_eq!(Arrays::find("f", &small()).unwrap().outline().sample_words(), "2 x 2");
}

#[test]
fn columns_by_number() {
    let columns = vec![Column::Number(4), Column::Number(1)];
    let hints = ColumnHints { features: Some(columns), ..ColumnHints::default() };
    assert_eq!(read(&small(), &hints).unwrap().features, [4.0, 1.0, 8.0, 5.0, 255.0, 9.0]);
}

#[test]
fn every_type_of_value() {
    for (kind, value, expected) in [
        (0x08, &[255][..], 255.0),
        (0x09, &[255], -1.0),
        (0x0b, &[0xff, 0xfe], -2.0),
        (0x0c, &[0x80, 0, 0, 0], -2_147_483_648.0),
        (0x0d, &(-1.5_f32).to_be_bytes(), -1.5),
        (0x0e, &0.1_f64.to_be_bytes(), 0.1),
    ] {
        let bytes = [array(kind, &[1], value), array(kind, &[1], value)].concat();
        let table = read_all(&bytes).unwrap();
        assert_eq!((table.features.as_slice(), table.columns), (&[expected][..], 1));
        assert_eq!(texts(&table), [expected.to_string()]);
    }
}

#[track_caller]
fn assert_error(bytes: &[u8], message: &str) {
    assert_eq!(read_all(bytes).unwrap_err().to_string(), message);
}

#[test]
fn the_error_for_missing_labels_contains_the_command_to_add_them() {
    assert_error(
        &array(8, &[2, 2], &[1, 2, 3, 4]),
        "f.idx: the IDX file has only one array, but samples and labels are needed; append the labels to the samples: \
         `cat train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz > mnist.idx.gz`",
    );
}

#[test]
fn errors_name_the_array_and_the_remedy() {
    let (samples, labels) = (array(8, &[2, 2], &[1, 2, 3, 4]), array(8, &[2], &[0, 1]));
    let command = "`cat train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz > mnist.idx.gz`";
    assert_error(
        &[&samples[..], b"1,2\n"].concat(),
        &format!(
            "f.idx: the labels should begin at byte 16, but no IDX array begins there; join two IDX files, both \
             gzipped or both plain: {command}"
        ),
    );
    assert_error(
        &array(8, &[], &[1]),
        &format!(
            "f.idx: the samples should begin at byte 0, but no IDX array begins there; join two IDX files, both \
             gzipped or both plain: {command}"
        ),
    );
    assert_error(
        &array(0x0a, &[1], &[1]),
        "f.idx: the samples have the value type 0x0a, but IDX has only the types 0x08, 0x09 and 0x0b to 0x0e; check that \
         this is an IDX file",
    );
    assert_error(
        &[&samples[..], &labels[..9]].concat(),
        "f.idx: the header announces labels of shape 2 (2 bytes), but the file has only 1 of them; copy the file again",
    );
    assert_error(
        &array(0x0e, &[u32::MAX; 200], &[1; 64]),
        "f.idx: the header announces samples of shape 4294967295 x 4294967295 x 4294967295 x 4294967295 x 4294967295 x \
         4294967295 x ... (more than 2^64 bytes), but the file has only 64 of them; copy the file again",
    );
    assert_error(
        &array(8, &[u32::MAX, 0], &[]),
        "f.idx: the header announces samples of shape 4294967295 x 0, so there are none; give a file with samples and labels",
    );
    for (shape, count) in [(&[3][..], 3), (&[2, 1], 2), (&[1], 1)] {
        let labels = array(8, shape, &vec![0; count]);
        let words = extent(&shape.iter().map(|&extent| extent as usize).collect::<Vec<_>>());
        assert_error(
            &[&samples[..], &labels].concat(),
            &format!(
                "f.idx: the samples have the shape 2 x 2, but the array after them has the shape {words}, not one label for \
                 each sample; append the labels of the same samples: {command}"
            ),
        );
    }
    assert_error(
        &[&samples[..], &labels, &labels].concat(),
        &format!(
            "f.idx: 10 more bytes follow the samples and the labels; join exactly two IDX files: {command}"
        ),
    );
}

#[test]
fn numbers_that_are_not_finite_are_named() {
    let (finite, infinite) = (1_f64.to_be_bytes(), f64::INFINITY.to_be_bytes());
    let (two, huge) = ([finite, finite].concat(), 1e300_f64.to_be_bytes());
    assert_error(
        &[array(0x0e, &[2], &[finite, huge].concat()), array(0x0e, &[2], &two)].concat(),
        &format!(
            "f.idx, sample 2: value 1 is {}, not a finite 32-bit number; write the file again without this sample",
            1e300_f64
        ),
    );
    assert_error(
        &[array(0x0e, &[2], &two), array(0x0e, &[2], &[infinite, finite].concat())].concat(),
        "f.idx, sample 1: the label is inf, not a finite 32-bit number; write the file again without this sample",
    );
}

#[test]
fn two_gzipped_files_in_one_are_both_unpacked() {
    let gzipped = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let bytes = small();
    let both = [gzipped(&bytes[..28]), gzipped(&bytes[28..])].concat();
    assert_eq!(*unpack("f", &both).unwrap(), bytes);
}

#[test]
fn mnist_as_idx_has_the_same_samples_as_csv() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/mnist_5k.csv.gz");
    let Ok(packed) = std::fs::read(&path) else {
        eprintln!("skipped: {} is not here", path.display());
        return;
    };
    let mut csv = String::new();
    flate2::read::MultiGzDecoder::new(packed.as_slice()).read_to_string(&mut csv).unwrap();
    let expected = read_all(csv.as_bytes()).unwrap();
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for line in csv.lines() {
        let mut cells: Vec<u8> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        labels.extend(cells.pop());
        pixels.extend(cells);
    }
    let bytes = [array(8, &[5000, 28, 28], &pixels), array(8, &[5000], &labels)].concat();
    let table = read_all(&bytes).unwrap();
    assert_eq!((table.rows(), table.columns), (5000, 784));
    assert!(table.features == expected.features, "the same numbers");
    assert_eq!(texts(&table), texts(&expected));
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let bytes = small();
    (2..bytes.len()).for_each(|end| assert!(read_all(&bytes[..end]).is_err(), "{end}"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        kind in 0_u8..16, rank in 0_u8..6, bytes in prop::collection::vec(0_u8..4, 0..200),
        place in 0_usize..33, flip in any::<u8>(),
    ) {
        let _ = read_all(&[&[0, 0, kind, rank][..], &bytes].concat());
        let mut altered = small();
        altered[place] ^= flip;
        if let Ok(table) = read_all(&altered) {
            prop_assert_eq!(table.features.len(), table.rows() * table.columns);
            prop_assert!(table.features.iter().all(|value| value.is_finite()));
        }
    }
}

/// The arrays of [`small`], and the names of its classes.
fn named(names: &[u8]) -> Vec<u8> {
    [small(), names.to_vec()].concat()
}

#[test]
fn a_third_array_names_the_classes() {
    let texts = |bytes: &[u8]| -> Result<Vec<String>, IdxError> {
        let arrays = Arrays::find("f", bytes)?;
        let layout = Numbered { format: NumberedFormat::Idx, width: 4, features: vec![] };
        let table = arrays.read("f", &layout)?;
        let stored = DataBytes::from(bytes);
        assert_eq!(Outline::of("f", &stored)?, *arrays.outline());
        assert_eq!(arrays.outline().label_texts("f", &stored)?, table.labels);
        let text = |&index: &u32| table.labels.distinct()[index as usize].text.clone();
        Ok(table.labels.rows().iter().map(text).collect())
    };
    let plain = texts(&small()).unwrap();
    let most = plain.iter().map(|label| label.parse::<usize>().unwrap()).max().unwrap();
    let all: Vec<u8> = (0..=most).flat_map(|class| [b'c', b'0' + class as u8, 0]).collect();
    let header = |classes: usize| [0, 0, 8, 2, 0, 0, 0, classes as u8, 0, 0, 0, 3];
    let names = texts(&named(&[&header(most + 1)[..], &all].concat())).unwrap();
    assert_eq!(names, plain.iter().map(|label| format!("c{label}")).collect::<Vec<_>>());
    let few = texts(&named(&[&header(1)[..], &all[..3]].concat())).unwrap_err().to_string();
    assert!(few.contains("has no name in the third array"), "{few}");
    for bad in [&b"a\0\0a\0\0"[..], b"a\0\0\0\0\0", b"a\0\0\xff\0\0"] {
        let error = texts(&named(&[&header(2)[..], bad].concat())).unwrap_err().to_string();
        assert!(error.contains("each with a different text"), "{error}");
    }
    let short = texts(&named(&[&header(3)[..], &all[..3]].concat())).unwrap_err().to_string();
    assert!(short.contains("more bytes follow"), "{short}");
}
