//! Parquet files that tests write.
#![allow(dead_code, unreachable_pub)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray};
use parquet::data_type::{FixedLenByteArrayType, FloatType, Int32Type, Int64Type, Int96, Int96Type};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use peergrad_parquet::{Table, TableError};

pub type Group<'a> = SerializedRowGroupWriter<'a, File>;

/// Writes a file with this schema: `write` fills a row group, and hears its number.
pub fn file(
    path: &Path,
    schema: &str,
    properties: WriterPropertiesBuilder,
    groups: usize,
    mut write: impl FnMut(usize, &mut Group<'_>),
) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build())).unwrap();
    for group in 0..groups {
        let mut rows = writer.next_row_group().unwrap();
        write(group, &mut rows);
        rows.close().unwrap();
    }
    writer.close().unwrap();
}

pub fn column<T: DataType>(group: &mut Group<'_>, values: &[T::T], levels: Option<&[i16]>) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(values, levels, None).unwrap();
    column.close().unwrap();
}

pub fn bytes(values: &[&str]) -> Vec<ByteArray> {
    values.iter().map(|&value| ByteArray::from(value)).collect()
}

pub fn plain() -> WriterPropertiesBuilder {
    WriterProperties::builder()
}

/// Ways to write a file, each with a name.
pub fn ways() -> Vec<(&'static str, WriterPropertiesBuilder)> {
    let second = || plain().set_writer_version(WriterVersion::PARQUET_2_0);
    vec![
        ("plain", plain()),
        ("no dictionary", plain().set_dictionary_enabled(false)),
        ("snappy", plain().set_compression(Compression::SNAPPY)),
        ("gzip", plain().set_compression(Compression::GZIP(Default::default()))),
        ("gzip, second version", second().set_compression(Compression::GZIP(Default::default()))),
        ("zstd", plain().set_compression(Compression::ZSTD(ZstdLevel::default()))),
        ("lz4", plain().set_compression(Compression::LZ4_RAW)),
        ("second version", second()),
        ("second version without dictionary", second().set_dictionary_enabled(false)),
        ("small pages", second().set_data_page_row_count_limit(3).set_write_batch_size(2)),
        (
            "lengths",
            plain()
                .set_dictionary_enabled(false)
                .set_encoding(Encoding::PLAIN)
                .set_column_encoding("text".into(), Encoding::DELTA_LENGTH_BYTE_ARRAY),
        ),
    ]
}

const MIXED: &str = "message table {
    required boolean flag; required int32 small; optional int64 large; required float single; optional double twice;
    optional binary text (UTF8); required int32 day (DATE); required int64 at (TIMESTAMP(MICROS, true));
    required int32 price (DECIMAL(9, 2)); required int32 byte (INTEGER(8, false)); required int96 old;
    required fixed_len_byte_array(2) half (FLOAT16); required fixed_len_byte_array(16) id (UUID);
    required fixed_len_byte_array(5) sum (DECIMAL(10, 1)); required binary raw;
    optional group inner { required int32 x; } required group many (LIST) { repeated group list { required int32 element; } }
}";

/// A file with columns of all kinds, in two row groups of two rows.
pub fn mixed(path: &Path, properties: WriterPropertiesBuilder) {
    file(path, MIXED, properties, 2, |index, group| {
        let first = index as i32;
        column::<BoolType>(group, &[index == 0, true], None);
        column::<Int32Type>(group, &[-1 - first, 2], None);
        column::<Int64Type>(group, &[i64::MAX], Some(&[0, 1]));
        column::<FloatType>(group, &[0.1, 1e30], None);
        column::<DoubleType>(group, &[0.1], Some(&[1, 0]));
        column::<ByteArrayType>(group, &bytes(&["a, \"b\"\nc", "hé"]), Some(&[1, 1]));
        column::<Int32Type>(group, &[0, 20_513], None);
        column::<Int64Type>(group, &[0, -500_000], None);
        column::<Int32Type>(group, &[12345, -5], None);
        column::<Int32Type>(group, &[200, 1], None);
        let mut old = Int96::new();
        old.set_data(0, 0, 2_440_589);
        column::<Int96Type>(group, &[old, old], None);
        let fixed = |bytes: &[u8]| FixedLenByteArray::from(bytes.to_vec());
        column::<FixedLenByteArrayType>(group, &[fixed(&[0, 0x3c]), fixed(&[0, 0xc0])], None);
        column::<FixedLenByteArrayType>(group, &[fixed(&[1; 16]), fixed(&[255; 16])], None);
        column::<FixedLenByteArrayType>(group, &[fixed(&[0, 0, 0, 0, 15]), fixed(&[255; 5])], None);
        column::<ByteArrayType>(group, &bytes(&["x", "y"]), None);
        column::<Int32Type>(group, &[1], Some(&[1, 0]));
        let mut many = group.next_column().unwrap().unwrap();
        many.typed::<Int32Type>().write_batch(&[1, 2, 3], Some(&[1, 1, 1]), Some(&[0, 1, 0])).unwrap();
        many.close().unwrap();
    });
}

/// What [`mixed`] becomes.
pub const MIXED_CSV: &str = "flag,small,large,single,twice,text,day,at,price,byte,old,half,id,sum
1,-1,,0.1,0.1,\"a, \"\"b\"\"\nc\",1970-01-01,1970-01-01T00:00:00Z,123.45,200,1970-01-02T00:00:00,1,01010101-0101-0101-0101-010101010101,1.5
1,2,9223372036854775807,1e30,,hé,2026-03-01,1969-12-31T23:59:59.5Z,-0.05,1,1970-01-02T00:00:00,-2,ffffffff-ffff-ffff-ffff-ffffffffffff,-0.1
0,-2,,0.1,0.1,\"a, \"\"b\"\"\nc\",1970-01-01,1970-01-01T00:00:00Z,123.45,200,1970-01-02T00:00:00,1,01010101-0101-0101-0101-010101010101,1.5
1,2,9223372036854775807,1e30,,hé,2026-03-01,1969-12-31T23:59:59.5Z,-0.05,1,1970-01-02T00:00:00,-2,ffffffff-ffff-ffff-ffff-ffffffffffff,-0.1
";

/// What the files become as CSV.
pub fn csv(paths: &[&Path]) -> Result<String, TableError> {
    let table = Table::open(paths.iter().map(|&path| path.to_owned()).collect::<Vec<PathBuf>>())?;
    let mut out = vec![];
    table.write_csv(&mut out, &mut |done, all| assert!(done <= all))?;
    Ok(String::from_utf8(out).unwrap())
}
