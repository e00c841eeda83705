//! Parquet files that are cut off, with wrong bytes, or made so that they take much memory: rows or an error, and never a panic.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;

use common::*;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::ByteArrayType;
use peergrad_parquet::TableError;

#[test]
fn a_file_that_is_cut_off_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("table.parquet");
    mixed(&path, plain());
    let good = fs::read(&path).unwrap();
    for length in (0..good.len()).step_by(7).chain(good.len() - 20..good.len()) {
        fs::write(&path, &good[..length]).unwrap();
        assert!(csv(&[&path]).is_err(), "{length} of {}", good.len());
    }
}

#[test]
fn wrong_bytes_do_no_harm() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("table.parquet");
    let mut state = 1_u64;
    let mut draw = |below: usize| {
        // Knuth's generator; the low bits are poor.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let rounds = std::env::var("ROUNDS").map_or(100, |rounds| rounds.parse().unwrap());
    for (_, way) in ways() {
        mixed(&path, way);
        let good = fs::read(&path).unwrap();
        for round in 0..rounds {
            let mut bytes = good.clone();
            for _ in 0..=draw(4) {
                // Half of the time in the footer.
                let at =
                    if round % 2 == 0 { draw(bytes.len()) } else { bytes.len() / 2 + draw(bytes.len() / 2) };
                bytes[at] = draw(256) as u8;
            }
            fs::write(&path, &bytes).unwrap();
            let _ = csv(&[&path]);
        }
    }
}

/// A text column of one page, whose file is short.
fn repeated(path: &std::path::Path, text: &str, compression: Compression) {
    let way = plain().set_compression(compression).set_dictionary_enabled(false);
    let schema = "message table { required binary text (UTF8); }";
    file(path, schema, way, 1, |_, rows| column::<ByteArrayType>(rows, &bytes(&[text]), None));
}

#[test]
fn a_page_may_not_be_longer_than_it_says() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("table.parquet");
    repeated(&path, &"x".repeat(1 << 20), Compression::GZIP(Default::default()));
    csv(&[&path]).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    // The first header: the type of the page, then the bytes that it has when it is unpacked, a megabyte and 4 in groups of 7 bits.
    let size = [0x15, 0x88, 0x80, 0x80, 0x01];
    assert!(bytes[4..].starts_with(&[0x15, 0]) && bytes[6..].starts_with(&size), "{:?}", &bytes[4..16]);
    bytes[7] = 0x80;
    bytes[8] = 0x81;
    bytes[9] = 0x80;
    bytes[10] = 0x00;
    fs::write(&path, &bytes).unwrap();
    let error = csv(&[&path]).unwrap_err().to_string();
    assert!(error.contains("a page is longer than its header says"), "{error}");
    // Two gigabytes, which are refused before anything is unpacked.
    bytes[7..11].copy_from_slice(&[0xfe, 0xff, 0xff, 0x7f]);
    bytes.insert(11, 0);
    fs::write(&path, &bytes).unwrap();
    assert!(csv(&[&path]).is_err());
}

#[test]
fn texts_that_repeat_a_long_one_take_no_more_memory_than_they_may() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("table.parquet");
    let way = plain()
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(1 << 30)
        .set_column_encoding("text".into(), Encoding::DELTA_BYTE_ARRAY);
    let schema = "message table { required binary text (UTF8); }";
    // A file of a megabyte, whose texts have two gigabytes together.
    let long = "x".repeat(1 << 20);
    let texts = vec![parquet::data_type::ByteArray::from(long.as_str()); 2048];
    file(&path, schema, way, 1, |_, rows| column::<ByteArrayType>(rows, &texts, None));
    assert!(fs::metadata(&path).unwrap().len() < 2 << 20);
    assert!(matches!(csv(&[&path]).unwrap_err(), TableError::LargePages { .. }));
}
