//! The dense table: a CSV file as numbers, with one label for each row.
//!
//! # How it works
//! One pass over the unpacked bytes, with the layout of a [`Columns`]. Features are stored as `f64`, row-major; labels as indices into
//! their distinct texts. A line number is computed only for an error, by counting the line ends before the row.
//!
//! # Invariants
//! - No input makes the reader panic; every number it returns is finite.
//! - Unpacking stops at [`UNPACKED_BYTES_MAX`].
//!
//! # Not here
//! Missing values: a cell that is not a number is an error, because a value filled in silently makes the model wrong silently.

use std::borrow::Cow;
use std::io::Read;

use csv::ByteRecord;

use super::cells::{reader, shortened};
use super::columns::{Columns, TableText};
use super::encoding::line_ends;
use super::error::DenseTableError;
use super::label_texts::{LabelTexts, RowLocation, whole_text};
use super::limits::{ROWS_MAX, TABLE_VALUES_MAX, UNPACKED_BYTES_MAX};
use super::notation::{Decimal, Notation, is_missing};

/// The numbers and labels of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseTable {
    /// Features, (rows, columns) row-major; all finite.
    pub features: Vec<f64>,
    /// Feature columns.
    pub columns: usize,
    /// The label of each row.
    pub labels: LabelTexts,
}

/// The bytes of a file, unpacked if they start with the mark of a gzipped one.
///
/// # Errors
/// If they are damaged or unpack to more than [`UNPACKED_BYTES_MAX`].
pub fn unpack<'a>(file: &str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, DenseTableError> {
    unpack_at_most(file, bytes, UNPACKED_BYTES_MAX)
}

/// As [`unpack`], with another limit.
///
/// # Errors
/// If the bytes are damaged or unpack to more than `limit` bytes.
pub fn unpack_at_most<'a>(file: &str, bytes: &'a [u8], limit: u64) -> Result<Cow<'a, [u8]>, DenseTableError> {
    const GZIP_MARK: [u8; 2] = [0x1f, 0x8b];
    if !bytes.starts_with(&GZIP_MARK) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut unpacked = Vec::new();
    let decoder = flate2::read::MultiGzDecoder::new(bytes);
    decoder
        .take(limit + 1)
        .read_to_end(&mut unpacked)
        .map_err(|error| DenseTableError::Gzip { file: file.to_owned(), reason: error.to_string() })?;
    if unpacked.len() as u64 > limit {
        return Err(DenseTableError::TooLarge { file: file.to_owned(), limit });
    }
    Ok(Cow::Owned(unpacked))
}

impl DenseTable {
    /// Reads `bytes` (unpacked) with this layout; `file` is the name for errors.
    ///
    /// # Errors
    /// At the first row that cannot be used, or at which the table has too many numbers.
    pub fn read(file: &str, bytes: &[u8], layout: &Columns) -> Result<Self, DenseTableError> {
        Self::read_at_most(file, bytes, layout, TABLE_VALUES_MAX)
    }

    fn read_at_most(
        file: &str,
        bytes: &[u8],
        layout: &Columns,
        values_max: usize,
    ) -> Result<Self, DenseTableError> {
        let TableText { text, start } = layout.table(file, bytes)?;
        let mut rows = reader(&text[start..], layout.delimiter);
        let mut row = ByteRecord::new();
        let (features, labels) = (Vec::new(), LabelTexts::default());
        let mut table = Self { features, columns: layout.features.len(), labels };
        let (notations, decimal) = (layout.notations(), layout.decimal);
        let mut is_header = layout.header;
        while rows.read_byte_record(&mut row).unwrap_or(false) {
            let row_start = start as u64 + row.position().map_or(0, csv::Position::byte);
            let place = CellLocation { file, bytes: &text, start: row_start, decimal };
            if row.len() != layout.width {
                return Err(place.row_width(row.len(), layout.width));
            }
            if std::mem::take(&mut is_header) {
                continue;
            }
            check_values(file, table.rows() + 1, table.columns, values_max)?;
            for &column in &layout.features {
                table.features.push(place.feature(&row[column], column, notations[column])?);
            }
            let label = place.label(&row[layout.label], layout.label, notations[layout.label])?;
            if table.rows() == ROWS_MAX {
                return Err(DenseTableError::too_many_rows(file));
            }
            table.labels.push(label, || RowLocation::Line(place.line()));
        }
        match (table.rows() == 0, layout.header) {
            (false, _) => Ok(table),
            (true, true) => Err(DenseTableError::NoRows { file: file.to_owned() }),
            (true, false) => Err(DenseTableError::Empty { file: file.to_owned() }),
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.labels.rows().len()
    }
}

/// An error if a table of `rows` rows and `columns` columns has more than [`TABLE_VALUES_MAX`] numbers.
pub(super) fn check_size(file: &str, rows: usize, columns: usize) -> Result<(), DenseTableError> {
    check_values(file, rows, columns, TABLE_VALUES_MAX)
}

fn check_values(file: &str, rows: usize, columns: usize, limit: usize) -> Result<(), DenseTableError> {
    match rows.checked_mul(columns) {
        Some(values) if values <= limit => Ok(()),
        _ => Err(DenseTableError::TooManyValues { file: file.to_owned(), rows, columns }),
    }
}

/// The place of a row, from which an error computes the line number.
pub(super) struct CellLocation<'a> {
    pub(super) file: &'a str,
    pub(super) bytes: &'a [u8],
    /// The byte at which the reader began to look for the row; blank lines that it skipped come after it.
    pub(super) start: u64,
    /// The decimal mark of the file.
    pub(super) decimal: Decimal,
}

impl CellLocation<'_> {
    /// The byte at which the row begins, after blank lines.
    pub(super) fn row_start(&self) -> usize {
        let start = usize::try_from(self.start).unwrap_or(usize::MAX).min(self.bytes.len());
        let blank = self.bytes[start..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        start + blank
    }

    /// The row's line, from 1.
    pub(super) fn line(&self) -> u64 {
        1 + line_ends(&self.bytes[..self.row_start()])
    }

    pub(super) fn row_width(&self, found: usize, expected: usize) -> DenseTableError {
        DenseTableError::RowWidth { file: self.file.to_owned(), line: self.line(), found, expected }
    }

    /// The number in a feature cell.
    fn feature(&self, cell: &[u8], column: usize, notation: Notation) -> Result<f64, DenseTableError> {
        match notation.read(cell, self.decimal) {
            Some(value) if (value as f32).is_finite() => Ok(value),
            Some(_) => Err(self.not_finite(cell, column)),
            None => Err(self.not_a_number(cell, column, notation)),
        }
    }

    fn not_finite(&self, cell: &[u8], column: usize) -> DenseTableError {
        let (file, line) = (self.file.to_owned(), self.line());
        DenseTableError::NotFinite { file, line, column: column + 1, found: shortened(cell) }
    }

    fn not_a_number(&self, cell: &[u8], column: usize, notation: Notation) -> DenseTableError {
        let (file, line, column, found) = (self.file.to_owned(), self.line(), column + 1, shortened(cell));
        match notation {
            _ if is_missing(cell) => DenseTableError::Missing { file, line, column, found },
            Notation::Plain | Notation::Amount => DenseTableError::NotANumber { file, line, column, found },
            Notation::Percent => {
                DenseTableError::OtherNotation { file, line, column, found, expected: "a number with `%`" }
            }
            Notation::Boolean => {
                DenseTableError::OtherNotation { file, line, column, found, expected: "true or false" }
            }
        }
    }

    /// The text of a label cell: trimmed, and a number as `3` or `3.5`.
    pub(super) fn label<'a>(
        &self,
        cell: &'a [u8],
        column: usize,
        notation: Notation,
    ) -> Result<Cow<'a, str>, DenseTableError> {
        if cell.trim_ascii().is_empty() {
            return Err(DenseTableError::NoLabel {
                file: self.file.to_owned(),
                line: self.line(),
                column: column + 1,
            });
        }
        let text = || String::from_utf8_lossy(cell.trim_ascii());
        match notation.read(cell, self.decimal) {
            Some(value) if !(value as f32).is_finite() => Err(self.not_finite(cell, column)),
            Some(value) => Ok(match whole_text(value) {
                Some(whole) => Cow::Owned(whole),
                None if notation == Notation::Plain && self.decimal == Decimal::Point => text(),
                None if notation == Notation::Plain => Cow::Owned(text().replacen(',', ".", 1)),
                None => Cow::Owned(value.to_string()),
            }),
            None => Ok(text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::data::column_hints::ColumnHints;
    use crate::data::column_names::Column;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<DenseTable, DenseTableError> {
        read_with(bytes, &ColumnHints::default())
    }

    fn read_with(bytes: &[u8], hints: &ColumnHints) -> Result<DenseTable, DenseTableError> {
        let bytes = unpack("f.csv", bytes)?;
        DenseTable::read("f.csv", &bytes, &Columns::infer("f.csv", &bytes, hints)?.layout)
    }

    fn texts(table: &DenseTable) -> Vec<&str> {
        let distinct = table.labels.distinct();
        table.labels.rows().iter().map(|&index| distinct[index as usize].text.as_str()).collect()
    }

    fn gzipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_numbers() {
        let table = read(b"1,2,0\n3,4.5,1\n").unwrap();
        assert_eq!((table.features.as_slice(), table.columns), (&[1.0, 2.0, 3.0, 4.5][..], 2));
        assert_eq!(texts(&table), ["0", "1"]);
    }

    #[test]
    fn the_same_file_gzipped_with_windows_line_ends_and_a_byte_order_mark() {
        let expected = read(b"a,b,y\n1,2,cat\n3,4,dog\n").unwrap();
        for other in [
            gzipped(b"a,b,y\n1,2,cat\n3,4,dog\n"),
            b"\xef\xbb\xbfa,b,y\r\n1,2,cat\r\n3,4,dog\r\n".to_vec(),
            b"a;b;y\n 1 ;2; cat\n3;4;\"dog\"".to_vec(),
            b"a\tb\ty\n1.0\t2\tcat\n3\t4e0\tdog\n".to_vec(),
            b"a|b|y\n1|2|cat\n3|4|dog\n".to_vec(),
            b"a  b y\n 1 2  cat \n3\t4 dog\n".to_vec(),
            b"sep=;\na;b;y\n1,0;2;cat\n3;4,0;dog\n".to_vec(),
            b"# a table\n# a,b,y\n1,2,cat\n3,4,dog\n".to_vec(),
            b"\xff\xfea\0,\0b\0,\0y\0\n\x001\0,\x002\0,\0c\0a\0t\0\n\x003\0,\x004\0,\0d\0o\0g\0".to_vec(),
        ] {
            let mut table = read(&other).unwrap();
            assert_eq!((&table.features, texts(&table)), (&expected.features, texts(&expected)));
            table.labels = expected.labels.clone();
            assert_eq!(table, expected);
        }
    }

    #[test]
    fn columns_by_name_and_number() {
        let bytes = b"id,kind,x,z\n7,a,1,2\n8,b,3,4\n";
        let hints = ColumnHints {
            label: Some(Column::Name("kind".into())),
            features: Some(vec![Column::Number(4), Column::Name("x".into())]),
            ..ColumnHints::default()
        };
        let table = read_with(bytes, &hints).unwrap();
        assert_eq!(table.features, [2.0, 1.0, 4.0, 3.0]);
        assert_eq!(texts(&table), ["a", "b"]);
    }

    #[test]
    fn equal_whole_labels_are_one_label_however_written() {
        assert_eq!(texts(&read(b"1,3\n1,3.0\n1, 3\n1,3.5\n").unwrap()), ["3", "3", "3", "3.5"]);
    }

    #[track_caller]
    fn assert_error(bytes: &[u8], message: &str) {
        assert_eq!(read(bytes).unwrap_err().to_string(), message);
    }

    #[test]
    fn errors_name_file_line_column_and_remedy() {
        assert_error(b"", "f.csv: the file is empty; give a CSV file with one sample per line");
        assert_error(b" \n\n", "f.csv: the file is empty; give a CSV file with one sample per line");
        assert_error(
            b"1,2,0\n\n3,0\n",
            "f.csv, line 3: the row has 2 cells, but the first row has 3; complete the row or delete it",
        );
        assert_error(
            b"x,y\n1,0\r\nred,1\n",
            "f.csv, line 3, column 1: `red` is not a number; correct the cell, or leave the column out with `columns` in [data]",
        );
        assert_error(
            b"1,0\nNaN,1\n",
            "f.csv, line 2, column 1: `NaN` is not a finite 32-bit number; correct the cell or delete the row",
        );
        assert_error(
            b"1,0\n1e300,1\n",
            "f.csv, line 2, column 1: `1e300` is not a finite 32-bit number; correct the cell or delete the row",
        );
        assert_error(
            b"1,0\n1,\n",
            "f.csv, line 2, column 2: the label is empty; fill it in or delete the row",
        );
        assert_error(
            b"x,y\n1,0\n,1\n",
            "f.csv, line 3, column 1: a number is missing; fill it in, delete the row, or leave the column out with `columns` in [data]",
        );
        assert_error(
            b"x,y\nN/A,0\n2,1\n",
            "f.csv, line 2, column 1: a number is missing (`N/A`); fill it in, delete the row, or leave the column out with `columns` in [data]",
        );
        assert_error(
            b"x,y\n1%,0\n2%,1\n3,1\n",
            "f.csv, line 4, column 1: `3` is not a number with `%`, as the other cells of the column are; correct the cell, or leave the column out with `columns` in [data]",
        );
        assert_error(
            b"1\n2\n",
            "f.csv: there is no column besides the label: each row has a single cell; write commas, semicolons, tabs, | or spaces between the cells",
        );
    }

    #[test]
    fn a_header_alone_has_no_rows() {
        let hints = ColumnHints { header: Some(true), ..ColumnHints::default() };
        assert!(matches!(read_with(b"x,y\n", &hints), Err(DenseTableError::NoRows { .. })));
    }

    #[test]
    fn reading_stops_at_the_row_at_which_a_table_is_too_large() {
        let bytes = b"1,2,0\n3,4,1\n5,6,0\n";
        let layout = Columns::infer("f", bytes, &ColumnHints::default()).unwrap().layout;
        assert_eq!(DenseTable::read_at_most("f", bytes, &layout, 6).unwrap().rows(), 3);
        let error = DenseTable::read_at_most("f", bytes, &layout, 5).unwrap_err();
        assert_eq!(error, DenseTableError::TooManyValues { file: "f".to_owned(), rows: 3, columns: 2 });
    }

    #[test]
    fn a_table_that_is_too_large_is_refused() {
        assert_eq!(check_size("f", 1 << 14, 1 << 14), Ok(()));
        for (rows, columns) in [(1 << 14, (1 << 14) + 1), (usize::MAX, 2)] {
            assert!(matches!(check_size("f", rows, columns), Err(DenseTableError::TooManyValues { .. })));
        }
    }

    #[test]
    fn a_damaged_or_endless_archive_is_an_error() {
        let packed = gzipped(&[b'1'; 10_000]);
        assert!(matches!(unpack("f", &packed[..packed.len() - 9]), Err(DenseTableError::Gzip { .. })));
        assert!(matches!(unpack_at_most("f", &packed, 9_999), Err(DenseTableError::TooLarge { .. })));
        assert_eq!(unpack_at_most("f", &packed, 10_000).unwrap().len(), 10_000);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
            let _ = read(&[&[0x1f, 0x8b, 8, 0][..], &bytes].concat());
        }

        #[test]
        fn anything_like_a_table_is_read_or_refused(text in "[0-9a,;.\\n\\r\"\\-e ]{0,200}", header in any::<Option<bool>>()) {
            let hints = ColumnHints { header, ..ColumnHints::default() };
            if let Ok(table) = read_with(text.as_bytes(), &hints) {
                prop_assert!(table.rows() > 0);
                prop_assert_eq!(table.features.len(), table.rows() * table.columns);
                prop_assert!(table.features.iter().all(|value| value.is_finite()));
                prop_assert!(table.labels.rows().iter().all(|&label| (label as usize) < table.labels.distinct().len()));
            }
        }

        #[test]
        fn numbers_read_back(rows in prop::collection::vec((any::<f32>(), any::<f32>(), 0_u32..5), 1..20)) {
            prop_assume!(rows.iter().all(|(a, b, _)| a.is_finite() && b.is_finite()));
            let text: String = rows.iter().map(|(a, b, label)| format!("{a},{b:e},{label}\n")).collect();
            let table = read(text.as_bytes()).unwrap();
            let expected: Vec<f64> = rows.iter().flat_map(|(a, b, _)| [f64::from(*a), f64::from(*b)]).collect();
            let found: Vec<u32> = table.features.iter().map(|&value| (value as f32).to_bits()).collect();
            prop_assert_eq!(found, expected.iter().map(|&value| (value as f32).to_bits()).collect::<Vec<_>>());
        }
    }
}
