//! Parquet files of all kinds, as CSV and as text.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;

use common::*;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{ByteArrayType, DoubleType, Int32Type};
use peergrad_parquet::{Table, TableError};

#[test]
fn all_kinds_of_columns_become_csv() {
    let place = tempfile::tempdir().unwrap();
    for (name, way) in ways() {
        let path = place.path().join("table.parquet");
        mixed(&path, way);
        assert_eq!(csv(&[&path]).unwrap(), MIXED_CSV, "{name}");
        let table = Table::open(vec![path]).unwrap();
        assert_eq!((table.rows(), table.columns()), (4, 14), "{name}");
        let left_out: Vec<String> = table.left_out().iter().map(ToString::to_string).collect();
        assert_eq!(
            left_out,
            ["\"raw\" holds bytes that are no text", "\"inner\" holds structs", "\"many\" holds lists"]
        );
    }
}

#[test]
fn many_rows_and_pages_keep_their_order() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("long.parquet");
    let schema =
        "message table { required int32 index; optional double value; required binary word (UTF8); }";
    for encoding in [Encoding::PLAIN, Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
        let way = plain()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(encoding == Encoding::PLAIN)
            .set_column_encoding("word".into(), encoding)
            .set_data_page_row_count_limit(700)
            .set_write_batch_size(100);
        file(&path, schema, way, 3, |group, rows| {
            let indices: Vec<i32> = (0..5000).map(|row| group as i32 * 5000 + row).collect();
            column::<Int32Type>(rows, &indices, None);
            let levels: Vec<i16> = indices.iter().map(|index| i16::from(index % 7 != 0)).collect();
            let values: Vec<f64> =
                indices.iter().filter(|&index| index % 7 != 0).map(|&index| f64::from(index) / 3.0).collect();
            column::<DoubleType>(rows, &values, Some(&levels));
            let words: Vec<String> = indices.iter().map(|index| format!("word {}", index / 10)).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            column::<ByteArrayType>(rows, &bytes(&words), None);
        });
        let found = csv(&[&path]).unwrap();
        let mut lines = found.lines();
        assert_eq!(lines.next(), Some("index,value,word"));
        for (index, line) in (0..15_000).zip(&mut lines) {
            let value = if index % 7 == 0 { String::new() } else { (f64::from(index) / 3.0).to_string() };
            assert_eq!(line, format!("{index},{value},word {}", index / 10), "{encoding}");
        }
        assert_eq!(lines.next(), None);
    }
}

#[test]
fn texts_are_joined_without_empty_ones() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("texts.parquet");
    let schema = "message table { required int32 id; optional binary text (STRING); }";
    file(&path, schema, plain(), 2, |_, rows| {
        column::<Int32Type>(rows, &[1, 2, 3], None);
        column::<ByteArrayType>(rows, &bytes(&["one\n", " \n"]), Some(&[1, 0, 1]));
    });
    let table = Table::open(vec![path]).unwrap();
    assert_eq!(table.text_columns(), ["text"]);
    let mut out = vec![];
    let texts = table.write_text("text", &mut out, &mut |_, _| {}).unwrap();
    assert_eq!((texts.count, texts.empty), (2, 4));
    assert_eq!(out, b"one\n\n\none\n");
    let missing = table.write_text("id", &mut vec![], &mut |_, _| {}).unwrap_err().to_string();
    assert!(missing.ends_with("no column of texts called \"id\"; it has the column \"text\""), "{missing}");
}

#[test]
fn files_of_a_table_must_have_the_same_columns() {
    let place = tempfile::tempdir().unwrap();
    let [one, two, three, four] =
        ["1.parquet", "2.parquet", "3.parquet", "4.parquet"].map(|name| place.path().join(name));
    let write = |path: &std::path::Path, schema: &str, first: i32| {
        let levels = schema.contains("optional").then_some(&[1, 1][..]);
        file(path, schema, plain(), 1, |_, rows| column::<Int32Type>(rows, &[first, first + 1], levels));
    };
    write(&one, "message table { required int32 x; }", 1);
    write(&two, "message other { optional int32 x; }", 3);
    assert_eq!(csv(&[&one, &two]).unwrap(), "x\n1\n2\n3\n4\n");
    write(&three, "message table { required int32 y; }", 1);
    let renamed = csv(&[&one, &three]).unwrap_err().to_string();
    assert!(
        renamed.contains("1.parquet and ") && renamed.contains("3.parquet have different columns: \"x\""),
        "{renamed}"
    );
    file(&four, "message table { required int32 x; required int32 y; }", plain(), 1, |_, rows| {
        column::<Int32Type>(rows, &[1], None);
        column::<Int32Type>(rows, &[2], None);
    });
    let extra = csv(&[&one, &four]).unwrap_err().to_string();
    assert!(extra.contains("only one has \"y\""), "{extra}");
}

#[test]
fn what_cannot_be_converted_is_named() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("table.parquet");
    let error = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        csv(&[&path]).unwrap_err()
    };
    assert!(matches!(error(b""), TableError::Empty { .. }));
    assert!(matches!(error(b"a,b\n1,2\n"), TableError::NotParquet { .. }));
    assert!(matches!(error(b"PA"), TableError::NotParquet { .. }));
    assert!(matches!(error(b"PAR1 and so on, for a while"), TableError::CutOff { .. }));
    assert!(matches!(error(b"PARE and so on"), TableError::Encrypted { .. }));
    assert!(matches!(error(b"PAR1\xff\xff\xff\x7fPAR1"), TableError::Footer { .. }));
    assert!(matches!(csv(&[place.path()]).unwrap_err(), TableError::Read { .. }));
    assert!(matches!(csv(&[&place.path().join("none")]).unwrap_err(), TableError::Read { .. }));
    let schema = "message table { required int32 x; }";
    file(&path, schema, plain(), 0, |_, _| {});
    assert!(matches!(csv(&[&path]).unwrap_err(), TableError::NoRows { .. }));
    file(&path, schema, plain().set_compression(Compression::LZ4), 0, |_, _| {});
    let raw = "message table { required binary raw; }";
    file(&path, raw, plain(), 1, |_, rows| column::<ByteArrayType>(rows, &bytes(&["x"]), None));
    let unusable = csv(&[&path]).unwrap_err().to_string();
    assert!(unusable.contains("(\"raw\" holds bytes that are no text)"), "{unusable}");
    let hadoop = plain().set_compression(Compression::LZ4);
    file(&path, schema, hadoop, 1, |_, rows| column::<Int32Type>(rows, &[1], None));
    let codec = csv(&[&path]).unwrap_err().to_string();
    assert!(codec.contains("\"x\"") && codec.contains("LZ4 in the form of Hadoop"), "{codec}");
    let text = "message table { required binary text (UTF8); }";
    file(&path, text, plain(), 1, |_, rows| {
        column::<ByteArrayType>(rows, &[vec![0xff, 0xfe].into()], None);
    });
    let latin = csv(&[&path]).unwrap_err().to_string();
    assert!(latin.contains("\"text\"") && latin.contains("not in UTF-8"), "{latin}");
}
