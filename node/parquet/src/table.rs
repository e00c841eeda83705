//! A table in one or several Parquet files, and what it becomes.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::file::metadata::ParquetMetaData;

use crate::error::TableError;
use crate::footer;
use crate::limits::OUTPUT_BYTES_MAX;
use crate::row_group::RowGroup;
use crate::schema::{Column, Kind, LeftOut, Schema};

/// A table in files with the same columns, whose rows follow each other.
#[derive(Clone, Debug)]
pub struct Table {
    /// At least one.
    paths: Vec<PathBuf>,
    schema: Schema,
    /// Rows of all files.
    rows: u64,
}

/// The texts of a column that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// How many were written.
    pub count: u64,
    /// Rows without a text: nulls, and nothing but white space.
    pub empty: u64,
}

impl Table {
    /// Opens Parquet files with the same columns, at least one file.
    ///
    /// # Errors
    /// If a file cannot be read, is no Parquet file, or is encrypted; if its footer is damaged or too long; if files have different columns;
    /// or if there is no row, or no column that can be used.
    ///
    /// # Panics
    /// If there are no paths.
    pub fn open(paths: Vec<PathBuf>) -> Result<Self, TableError> {
        let first = paths.first().expect("a table has a file");
        let (mut rows, mut schema) = (0_u64, None);
        for path in &paths {
            let metadata = footer::open(path)?.1;
            let here = Schema::of(&metadata);
            check_files(path, &metadata, &here)?;
            rows = rows.saturating_add(rows_of(path, &metadata)?);
            match &schema {
                None => schema = Some(here),
                Some(known) => check_same(first, known, path, &here)?,
            }
        }
        let schema = schema.expect("there is a file");
        if rows == 0 {
            return Err(TableError::NoRows { path: first.display().to_string() });
        }
        if schema.columns.is_empty() {
            let left_out = schema.left_out;
            return Err(TableError::NoColumns { path: first.display().to_string(), left_out });
        }
        Ok(Self { paths, schema, rows })
    }

    /// Rows of all files.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Number of columns that are used.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.schema.columns.len()
    }

    /// The columns that are left out, in their order.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOut] {
        &self.schema.left_out
    }

    /// The names of the columns of texts, in their order.
    #[must_use]
    pub fn text_columns(&self) -> Vec<&str> {
        self.texts().map(|column| column.name.as_str()).collect()
    }

    fn texts(&self) -> impl Iterator<Item = &Column> {
        self.schema.columns.iter().filter(|column| column.kind == Kind::Text)
    }

    /// Writes a CSV file: a line with the names of the columns, then one for each row.
    ///
    /// Numbers have the shortest text that reads back as the same number; truth values are 0 and 1. Dates and times are texts such as
    /// `2026-03-01` and `2026-03-01T09:30:00.5Z`. Nulls are empty.
    ///
    /// - `progress`: hears how many rows are done, and of how many.
    ///
    /// # Errors
    /// If a file cannot be read any more, or is damaged, or if `out` cannot be written. The error of a damaged page comes only here.
    pub fn write_csv(
        &self,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TableError> {
        let columns: Vec<&Column> = self.schema.columns.iter().collect();
        let mut out = csv::Writer::from_writer(Bounded { out, bytes: 0 });
        let failed = |error: csv::Error| self.cannot_write(&io::Error::from(error));
        for column in &columns {
            out.write_field(&column.name).map_err(failed)?;
        }
        out.write_record(None::<&[u8]>).map_err(failed)?;
        self.read_rows(&columns, progress, &mut |group, text| {
            group.row(text, &mut |cell| out.write_field(cell.unwrap_or("")).map_err(failed))?;
            out.write_record(None::<&[u8]>).map_err(failed)
        })?;
        out.flush().map_err(|error| self.cannot_write(&error))
    }

    /// Writes the texts of a column, with an empty line between two. Rows without a text are left out.
    ///
    /// - `name`: the name of a column of texts.
    /// - `progress`: hears how many rows are done, and of how many.
    ///
    /// # Errors
    /// As [`write_csv`](Self::write_csv); or if there is no such column, or no row has a text.
    pub fn write_text(
        &self,
        name: &str,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Texts, TableError> {
        let path = || self.paths[0].display().to_string();
        let Some(column) = self.texts().find(|column| column.name == name) else {
            let texts = self.text_columns().into_iter().map(str::to_owned).collect();
            return Err(TableError::NoTextColumn { path: path(), column: name.to_owned(), texts });
        };
        let mut out = Bounded { out, bytes: 0 };
        let mut texts = Texts::default();
        self.read_rows(&[column], progress, &mut |group, text| {
            group.row(text, &mut |cell| {
                let Some(cell) = cell.filter(|cell| !cell.trim().is_empty()) else {
                    texts.empty += 1;
                    return Ok(());
                };
                let between = if texts.count == 0 { "" } else { BETWEEN };
                texts.count += 1;
                let written = out.write_all(between.as_bytes()).and_then(|()| out.write_all(cell.as_bytes()));
                written.map_err(|error| self.cannot_write(&error))
            })
        })?;
        out.flush().map_err(|error| self.cannot_write(&error))?;
        if texts.count == 0 {
            return Err(TableError::NoTexts { path: path(), column: name.to_owned() });
        }
        Ok(texts)
    }

    /// Reads these columns of all files, and calls `write` for each row, with room for a text.
    fn read_rows(
        &self,
        columns: &[&Column],
        progress: &mut dyn FnMut(u64, u64),
        write: &mut dyn FnMut(&mut RowGroup<'_>, &mut String) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let (mut done, mut text) = (0_u64, String::new());
        for path in &self.paths {
            // A file may have changed since its footer was checked.
            let (file, metadata) = footer::open(path)?;
            let here = Schema::of(&metadata);
            check_files(path, &metadata, &here)?;
            check_same(&self.paths[0], &self.schema, path, &here)?;
            let name = path.display().to_string();
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            let file = Arc::new(file);
            for group in metadata.row_groups() {
                let mut group = RowGroup::begin((&name, &file, length), group, columns)?;
                loop {
                    let rows = group.read()?;
                    if rows == 0 {
                        break;
                    }
                    (0..rows).try_for_each(|_| write(&mut group, &mut text))?;
                    done += rows as u64;
                    progress(done, self.rows.max(done));
                }
            }
        }
        Ok(())
    }

    fn cannot_write(&self, error: &io::Error) -> TableError {
        match error.get_ref() {
            Some(inner) if inner.is::<TooLong>() => {
                TableError::TooLong { path: self.paths[0].display().to_string() }
            }
            _ => TableError::Write { reason: error.to_string() },
        }
    }
}

/// Checks the columns that are used: their pages must be in this file, and compressed in a way that we can undo.
fn check_files(path: &Path, metadata: &ParquetMetaData, schema: &Schema) -> Result<(), TableError> {
    let name = || path.display().to_string();
    for (group, column) in metadata
        .row_groups()
        .iter()
        .flat_map(|group| schema.columns.iter().map(move |column| (group, column)))
    {
        let chunk = group.column(column.leaf);
        if chunk.file_path().is_some() {
            let reason = "its pages are in another file".to_owned();
            return Err(TableError::Footer { path: name(), reason });
        }
        let codec = match chunk.compression() {
            Compression::UNCOMPRESSED
            | Compression::SNAPPY
            | Compression::GZIP(_)
            | Compression::ZSTD(_)
            | Compression::LZ4_RAW => continue,
            Compression::LZO => "LZO",
            Compression::BROTLI(_) => "Brotli",
            Compression::LZ4 => "LZ4 in the form of Hadoop",
        };
        let column = column.name.clone();
        return Err(TableError::Compression { path: name(), column, codec: codec.to_owned() });
    }
    Ok(())
}

/// Rows of a file.
fn rows_of(path: &Path, metadata: &ParquetMetaData) -> Result<u64, TableError> {
    let counts = metadata.row_groups().iter().map(|group| u64::try_from(group.num_rows()).ok());
    let rows = counts.sum::<Option<u64>>();
    rows.ok_or_else(|| TableError::Footer {
        path: path.display().to_string(),
        reason: "a number of rows is negative".to_owned(),
    })
}

fn check_same(first: &Path, known: &Schema, other: &Path, here: &Schema) -> Result<(), TableError> {
    known.difference(here).map_or(Ok(()), |difference| {
        let (first, other) = (first.display().to_string(), other.display().to_string());
        Err(TableError::OtherSchema { first, other, difference })
    })
}

/// A file that may not become longer than allowed.
struct Bounded<'a> {
    out: &'a mut dyn Write,
    /// Bytes that were written.
    bytes: u64,
}

/// More would be written than is allowed.
#[derive(Debug, thiserror::Error)]
#[error("too long")]
struct TooLong;

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes + bytes.len() as u64 > OUTPUT_BYTES_MAX {
            return Err(io::Error::other(TooLong));
        }
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What stands between two texts.
const BETWEEN: &str = "\n\n";
