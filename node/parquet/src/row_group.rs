//! A row group: the same rows of each column, of which a few are in memory at a time.
//!
//! ```text
//! row group    column a: page page page      the next rows of a
//!              column b: page page      -->  the next rows of b  -->  lines, or texts
//!              column c: page                the next rows of c
//! ```
//! A file has one or more row groups. Pages of different columns end at different rows; so each column has a reader of its own, which
//! unpacks its next page when it needs it.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::reader::get_column_reader;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::cells::{Cells, cells};
use crate::error::TableError;
use crate::limits::{BATCH_BYTES, BATCH_ROWS_MAX, BATCH_VALUES};
use crate::page_memory::{PageMemory, TooLarge};
use crate::page_source::PageSource;
use crate::pages::CheckedPages;
use crate::schema::Column;

/// Where the pages of a column are counted.
#[derive(Clone, Debug)]
pub(crate) struct ColumnPlace {
    /// Its place among the columns that are read.
    pub(crate) column: usize,
    pub(crate) memory: Arc<PageMemory>,
}

/// A row group that is being read.
pub(crate) struct RowGroup<'a> {
    /// The file, for errors.
    path: &'a str,
    columns: &'a [&'a Column],
    cells: Vec<Box<dyn Cells>>,
    memory: Arc<PageMemory>,
    /// Rows that were not read yet.
    missing: u64,
    /// How many rows are read at once.
    batch: usize,
}

impl<'a> RowGroup<'a> {
    /// Begins to read these columns of a row group. `file` is the open file and its length in bytes.
    pub(crate) fn begin(
        (path, file, length): (&'a str, &Arc<File>, u64),
        metadata: &RowGroupMetaData,
        columns: &'a [&'a Column],
    ) -> Result<Self, TableError> {
        let memory = Arc::new(PageMemory::new(columns.len()));
        let missing = u64::try_from(metadata.num_rows()).unwrap_or(0);
        let mut readers = vec![];
        for (index, column) in columns.iter().enumerate() {
            let place = ColumnPlace { column: index, memory: Arc::clone(&memory) };
            let chunk = metadata.column(column.leaf);
            let begun = catch_unwind(AssertUnwindSafe(|| {
                open_column((Arc::clone(file), length), chunk, place, column)
            }));
            let cells = begun.unwrap_or_else(|_| Err(gave_up()));
            readers.push(cells.map_err(|error| of_column(path, column, &error))?);
        }
        let batch = batch_rows(metadata, columns);
        Ok(Self { path, columns, cells: readers, memory, missing, batch })
    }

    /// Reads the next rows of all columns and returns how many they are; 0 at the end.
    pub(crate) fn read(&mut self) -> Result<usize, TableError> {
        let rows = self.missing.min(self.batch as u64) as usize;
        if rows == 0 {
            return Ok(0);
        }
        for (index, (column, cells)) in self.columns.iter().zip(&mut self.cells).enumerate() {
            cells.clear();
            self.memory.release(index);
            let read = catch_unwind(AssertUnwindSafe(|| cells.read(rows))).unwrap_or_else(|_| Err(gave_up()));
            let count = read.map_err(|error| of_column(self.path, column, &error))?;
            if count != rows {
                return Err(damaged(self.path, column, "it has fewer rows than the file says"));
            }
        }
        self.missing -= rows as u64;
        Ok(rows)
    }

    /// Writes the cells of the next row that was read, each after `out` was emptied.
    ///
    /// `write`: hears the text of each cell, or `None` if it is null.
    pub(crate) fn row(
        &mut self,
        out: &mut String,
        write: &mut dyn FnMut(Option<&str>) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        for (column, cells) in self.columns.iter().zip(&mut self.cells) {
            out.clear();
            let is_there = cells.write_next(out).map_err(|reason| damaged(self.path, column, reason))?;
            write(is_there.then_some(out.as_str()))?;
        }
        Ok(())
    }
}

/// The cells of a column in a row group.
fn open_column(
    file: (Arc<File>, u64),
    chunk: &ColumnChunkMetaData,
    place: ColumnPlace,
    column: &Column,
) -> Result<Box<dyn Cells>, ParquetError> {
    let is_gzip = matches!(chunk.compression(), Compression::GZIP(_));
    let source = PageSource::new(file, (place.column, Arc::clone(&place.memory)), is_gzip);
    // How many rows there are matters only to readers with an index of pages.
    let pages = SerializedPageReader::new(Arc::new(source), chunk, 0, None)?;
    let is_optional = chunk.column_descr().max_def_level() > 0;
    let pages = CheckedPages { pages, place, is_optional };
    let reader = get_column_reader(chunk.column_descr_ptr(), Box::new(pages));
    Ok(cells(reader, column.kind, is_optional))
}

/// How many rows are read at once: fewer if they are long, or have many columns.
fn batch_rows(metadata: &RowGroupMetaData, columns: &[&Column]) -> usize {
    let bytes: u64 = columns
        .iter()
        .map(|column| u64::try_from(metadata.column(column.leaf).uncompressed_size()).unwrap_or(0))
        .fold(0, u64::saturating_add);
    let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
    let row_bytes = (bytes / rows.max(1)).max(1);
    let of_bytes = (BATCH_BYTES / row_bytes).min(BATCH_ROWS_MAX as u64) as usize;
    of_bytes.min(BATCH_VALUES / columns.len().max(1)).max(1)
}

fn gave_up() -> ParquetError {
    ParquetError::General("the decoder gave up".to_owned())
}

/// The error of a column, in our words.
fn of_column(path: &str, column: &Column, error: &ParquetError) -> TableError {
    match error {
        ParquetError::External(inner) if inner.is::<TooLarge>() => {
            TableError::LargePages { path: path.to_owned(), column: column.name.clone() }
        }
        ParquetError::General(reason) | ParquetError::NYI(reason) | ParquetError::EOF(reason) => {
            damaged(path, column, reason)
        }
        ParquetError::External(inner) => damaged(path, column, &inner.to_string()),
        other => damaged(path, column, &other.to_string()),
    }
}

fn damaged(path: &str, column: &Column, reason: &str) -> TableError {
    TableError::Page { path: path.to_owned(), column: column.name.clone(), reason: reason.to_owned() }
}
