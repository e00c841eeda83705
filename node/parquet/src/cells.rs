//! The cells of a column, read from its pages a few rows at a time and written as text.

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{AsBytes, DataType};
use parquet::errors::ParquetError;

use crate::number_text::{decimal, float, half, of_bytes, uuid};
use crate::schema::Kind;
use crate::time_text::{date, time, timestamp, timestamp96};

/// The cells of a column.
pub(crate) trait Cells {
    /// Forgets the rows that were read before and reads the next ones, at most `rows`. Returns how many there are.
    fn read(&mut self, rows: usize) -> Result<usize, ParquetError>;

    /// Forgets the rows that were read.
    fn clear(&mut self);

    /// Appends the text of the next row's cell. Returns whether there is one: nulls have none.
    ///
    /// # Errors
    /// If the cell is no text in UTF-8, or is a number of too many digits.
    fn write_next(&mut self, out: &mut String) -> Result<bool, &'static str>;
}

/// The cells of one physical type; `write` appends the text of a value.
struct Typed<T: DataType, F> {
    reader: ColumnReaderImpl<T>,
    /// The values that were read, without nulls.
    values: Vec<T::T>,
    /// For each row that was read 1, or 0 if it is null; empty if no row can be.
    levels: Vec<i16>,
    is_optional: bool,
    /// How many rows were written, and how many values.
    row: usize,
    value: usize,
    write: F,
}

impl<T, F> Cells for Typed<T, F>
where
    T: DataType,
    F: Fn(&T::T, &mut String) -> Result<(), &'static str>,
{
    fn read(&mut self, rows: usize) -> Result<usize, ParquetError> {
        self.clear();
        let levels = self.is_optional.then_some(&mut self.levels);
        let (records, ..) = self.reader.read_records(rows, levels, None, &mut self.values)?;
        Ok(records)
    }

    fn clear(&mut self) {
        self.values.clear();
        self.levels.clear();
        (self.row, self.value) = (0, 0);
    }

    fn write_next(&mut self, out: &mut String) -> Result<bool, &'static str> {
        let is_null = self.is_optional && self.levels.get(self.row).is_none_or(|&level| level == 0);
        self.row += 1;
        if is_null {
            return Ok(false);
        }
        let value = self.values.get(self.value).ok_or("fewer values than rows")?;
        self.value += 1;
        (self.write)(value, out)?;
        Ok(true)
    }
}

/// The cells of a column of this kind.
pub(crate) fn cells(reader: ColumnReader, kind: Kind, is_optional: bool) -> Box<dyn Cells> {
    match reader {
        ColumnReader::BoolColumnReader(reader) => typed(reader, is_optional, |&value, out| {
            out.push(if value { '1' } else { '0' });
            Ok(())
        }),
        ColumnReader::Int32ColumnReader(reader) => typed(reader, is_optional, move |&value, out| {
            whole(value.into(), u64::from(value.cast_unsigned()), kind, out)
        }),
        ColumnReader::Int64ColumnReader(reader) => {
            typed(reader, is_optional, move |&value, out| whole(value, value.cast_unsigned(), kind, out))
        }
        ColumnReader::Int96ColumnReader(reader) => typed(reader, is_optional, |value, out| {
            timestamp96(value.data(), out);
            Ok(())
        }),
        ColumnReader::FloatColumnReader(reader) => typed(reader, is_optional, |&value, out| {
            float(value, out);
            Ok(())
        }),
        ColumnReader::DoubleColumnReader(reader) => typed(reader, is_optional, |&value, out| {
            float(value, out);
            Ok(())
        }),
        ColumnReader::ByteArrayColumnReader(reader) => {
            typed(reader, is_optional, move |value, out| bytes(value.as_bytes(), kind, out))
        }
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            typed(reader, is_optional, move |value, out| bytes(value.as_bytes(), kind, out))
        }
    }
}

fn typed<T: DataType, F>(reader: ColumnReaderImpl<T>, is_optional: bool, write: F) -> Box<dyn Cells>
where
    F: Fn(&T::T, &mut String) -> Result<(), &'static str> + 'static,
{
    Box::new(Typed { reader, values: vec![], levels: vec![], is_optional, row: 0, value: 0, write })
}

/// Writes a whole number, `signed` or `unsigned`, or what it stands for.
fn whole(signed: i64, unsigned: u64, kind: Kind, out: &mut String) -> Result<(), &'static str> {
    match kind {
        Kind::Decimal { scale } => decimal(signed.into(), scale, out),
        Kind::Date => date(signed, out),
        Kind::Time { unit } => time(signed, unit, out),
        Kind::Timestamp { unit, is_utc } => timestamp(signed, unit, is_utc, out),
        Kind::Integer { is_signed: false } => out.push_str(&unsigned.to_string()),
        _ => out.push_str(&signed.to_string()),
    }
    Ok(())
}

/// Writes what bytes stand for.
fn bytes(value: &[u8], kind: Kind, out: &mut String) -> Result<(), &'static str> {
    match kind {
        Kind::Decimal { scale } => {
            let number = of_bytes(value).ok_or("a number has more than 38 digits")?;
            decimal(number, scale, out);
        }
        Kind::Uuid => uuid(value, out),
        Kind::Half => {
            let bits = value.first_chunk().ok_or("a number is too short")?;
            float(half(u16::from_le_bytes(*bits)), out);
        }
        _ => out.push_str(std::str::from_utf8(value).map_err(|_| "a text is not in UTF-8")?),
    }
    Ok(())
}
