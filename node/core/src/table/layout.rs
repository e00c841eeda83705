//! The layout of the tables of a run: where each row is, and which changes and reads it allows.

use std::iter;
use std::ops::Range;

use peergrad_protocol::limits::{CHUNKS_MAX, GET_VALUES_MAX, TABLE_CHUNK_BYTES_MAX, TABLE_ROWS_MAX};
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::table::{Assignment, Map, Operation, Reduce, Row, RowSet, Rows, TableChange};

use super::{ApplyMode, Init, Integer, LayoutError, Table, TableError, TableRule};

/// The layout of the tables of a run: the same at all members.
#[derive(Clone, Debug, PartialEq)]
pub struct TableLayout {
    /// The tables, in the order of their rows and chunks.
    tables: Vec<TableEntry>,
}

#[derive(Clone, Debug, PartialEq)]
struct TableEntry {
    /// The name, size and rule of the table.
    table: Table,
    /// The index of its first row among the rows of all tables.
    first_row: Row,
    /// The index of its first chunk among the chunks of all tables.
    first_chunk: usize,
    /// The index of its first number in the flat vector of parameters, if it starts with them.
    first_parameter: usize,
    /// How its rows are cut into chunks.
    chunks: Chunks,
}

impl TableEntry {
    /// The rows of one vector, in the order of its numbers.
    fn vector_rows(&self, vector: u32) -> impl Iterator<Item = Range<Row>> + use<> {
        let (first, vectors) = (self.first_row + u64::from(vector), self.table.vectors as u64);
        let (rows, step, count) = match vectors {
            1 => (self.table.rows, 1, 1),
            vectors => (1, vectors, self.table.rows_per_vector()),
        };
        (0..count).map(move |place| first + place * step..first + place * step + rows)
    }
}

impl TableLayout {
    /// As [`try_new`](Self::try_new).
    ///
    /// # Panics
    /// If the tables cannot be those of a run.
    #[must_use]
    pub fn new(tables: Vec<Table>) -> Self {
        Self::try_new(tables).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Lays out the tables one after the other.
    ///
    /// # Errors
    /// There is no table, or a table is empty or too large.
    pub fn try_new(tables: Vec<Table>) -> Result<Self, LayoutError> {
        if !(1..=CHUNKS_MAX).contains(&tables.len()) {
            return Err(LayoutError::TableCount(tables.len()));
        }
        let chunks_max = CHUNKS_MAX / tables.len();
        let (mut first_row, mut first_chunk, mut first_parameter) = (0, 0, 0);
        let lay = |table: Table| {
            let Table { rows, width, vectors, init, .. } = table;
            if rows == 0 || width == 0 || vectors == 0 {
                return Err(LayoutError::Empty(table.name));
            }
            if table.rule == TableRule::Integer && (width % 2 != 0 || init == Init::Parameters) {
                return Err(LayoutError::Integers { table: table.name, width });
            }
            if rows % vectors as u64 != 0 {
                return Err(LayoutError::Vectors { table: table.name, rows, vectors });
            }
            if rows > TABLE_ROWS_MAX - first_row {
                return Err(LayoutError::TooManyRows(table.name));
            }
            // The rows at the same place of all vectors are in one chunk.
            let chunks = Chunks::of_at_most(table.rows_per_vector() as usize, chunks_max);
            let chunk_rows = chunks.range(0).len().saturating_mul(vectors);
            if chunk_rows.saturating_mul(table.row_bytes_max()) > TABLE_CHUNK_BYTES_MAX {
                return Err(LayoutError::TooLarge(table.name));
            }
            let entry = TableEntry { first_row, first_chunk, first_parameter, chunks, table };
            first_row += rows;
            first_chunk += chunks.count();
            if init == Init::Parameters {
                first_parameter += entry.table.rows_per_vector() as usize * width;
            }
            Ok(entry)
        };
        Ok(Self { tables: tables.into_iter().map(lay).collect::<Result<_, _>>()? })
    }

    /// The tables.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().map(|entry| &entry.table)
    }

    /// The rows that start with the task's parameters; none if no table does.
    #[must_use]
    pub fn parameter_rows(&self) -> RowSet {
        let entries = self.tables.iter().filter(|entry| entry.table.init == Init::Parameters);
        entries.flat_map(|entry| entry.vector_rows(0)).collect()
    }

    /// The rows of one vector of a table, in the order of its numbers.
    ///
    /// # Errors
    /// There is no such table, or no such vector in it.
    pub fn vector_rows(&self, table: &str, vector: u32) -> Result<RowSet, TableError> {
        let entry = self.find(table)?;
        match entry.table.vectors {
            vectors if vector as usize >= vectors => Err(TableError::NoVector { vector, vectors }),
            _ => Ok(entry.vector_rows(vector).collect()),
        }
    }

    /// Writes a row of a table of parameters to its place in the flat vector. The last row may be longer than the rest of the vector.
    pub(crate) fn write_row(&self, chunk: usize, row: Row, values: &[f32], vector: &mut [f32]) {
        let place = &mut vector[self.parameter_start(chunk, row)..];
        let there = place.len().min(values.len());
        place[..there].copy_from_slice(&values[..there]);
    }

    /// The index of the row's first number in the flat vector of parameters, for a row of a chunk that starts with parameters.
    pub(crate) fn parameter_start(&self, chunk: usize, row: Row) -> usize {
        let TableEntry { table, first_row, first_parameter, .. } = self.entry(chunk);
        first_parameter + ((row - first_row) / table.vectors as u64) as usize * table.width
    }

    /// Whether the row of a chunk starts with parameters.
    pub(crate) fn is_parameter_row(&self, chunk: usize, row: Row) -> bool {
        let TableEntry { table, first_row, .. } = self.entry(chunk);
        table.init == Init::Parameters && (row - first_row).is_multiple_of(table.vectors as u64)
    }

    /// The number of chunks of all tables.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        let last = self.tables.last().expect("a run has a table");
        last.first_chunk + last.chunks.count()
    }

    /// The number of rows of all tables.
    #[must_use]
    pub fn row_count(&self) -> u64 {
        let last = self.tables.last().expect("a run has a table");
        last.first_row + last.table.rows
    }

    /// The number of values of all tables.
    #[must_use]
    pub fn value_count(&self) -> usize {
        self.tables().map(|table| table.rows as usize * table.width).sum()
    }

    /// The chunk that contains this row.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn chunk_of(&self, row: Row) -> usize {
        let entry = self.entry_of_row(row);
        let place = (row - entry.first_row) / entry.table.vectors as u64;
        entry.first_chunk + entry.chunks.at(place as usize)
    }

    /// The table that contains this row, if any does.
    fn entry_of_row(&self, row: Row) -> &TableEntry {
        let after = self.tables.partition_point(|entry| entry.first_row <= row);
        &self.tables[after - 1]
    }

    /// The rows of this chunk.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn range(&self, chunk: usize) -> Range<Row> {
        let entry = self.entry(chunk);
        let places = entry.chunks.range(chunk - entry.first_chunk);
        let [start, end] = [places.start, places.end].map(|place| (place * entry.table.vectors) as u64);
        entry.first_row + start..entry.first_row + end
    }

    /// The table that this chunk belongs to.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn table_of(&self, chunk: usize) -> &Table {
        &self.entry(chunk).table
    }

    /// The row after the last one of the table that this chunk belongs to.
    pub(super) fn table_end(&self, chunk: usize) -> Row {
        let entry = self.entry(chunk);
        entry.first_row + entry.table.rows
    }

    /// The number of values in a row of this chunk.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn width(&self, chunk: usize) -> usize {
        self.table_of(chunk).width
    }

    /// The numbers that are stored for a row of this chunk: values and moments.
    pub(crate) fn stride(&self, chunk: usize) -> usize {
        self.table_of(chunk).stride()
    }

    fn entry(&self, chunk: usize) -> &TableEntry {
        assert!(chunk < self.chunk_count(), "chunk {chunk} of {}", self.chunk_count());
        let after = self.tables.partition_point(|entry| entry.first_chunk <= chunk);
        &self.tables[after - 1]
    }

    /// The rows of the table with this name.
    ///
    /// # Errors
    /// There is no such table.
    pub fn rows(&self, table: &str) -> Result<Range<Row>, TableError> {
        let entry = self.find(table)?;
        Ok(entry.first_row..entry.first_row + entry.table.rows)
    }

    /// The chunks of the table with this name.
    ///
    /// # Errors
    /// There is no such table.
    pub(crate) fn chunks(&self, table: &str) -> Result<Range<usize>, TableError> {
        let entry = self.find(table)?;
        Ok(entry.first_chunk..entry.first_chunk + entry.chunks.count())
    }

    fn find(&self, table: &str) -> Result<&TableEntry, TableError> {
        self.tables.iter().find(|entry| entry.table.name == table).ok_or(TableError::NoTable)
    }

    /// These rows, cut where chunks begin: ranges in order, each with its chunk.
    ///
    /// # Panics
    /// If one of them is not a row.
    pub fn by_chunk(&self, rows: &RowSet) -> impl Iterator<Item = (usize, Range<Row>)> {
        let (mut ranges, mut rest) = (rows.ranges(), 0..0);
        let (mut chunk, mut of_chunk) = (0, self.range(0));
        iter::from_fn(move || {
            if rest.is_empty() {
                rest = ranges.next()?;
            }
            if !of_chunk.contains(&rest.start) {
                chunk = self.chunk_of(rest.start);
                of_chunk = self.range(chunk);
            }
            let part = rest.start..rest.end.min(of_chunk.end);
            rest.start = part.end;
            Some((chunk, part))
        })
    }

    /// The chunks of these rows, ascending.
    ///
    /// # Panics
    /// If one of them is not a row.
    pub fn chunks_of(&self, rows: &RowSet) -> impl Iterator<Item = usize> {
        let mut last = None;
        self.by_chunk(rows).map(|(chunk, _)| chunk).filter(move |chunk| last.replace(*chunk) != Some(*chunk))
    }

    /// The most rows of a table that one request may contain, if a row has `width` numbers.
    pub(super) fn rows_per_request_max(width: usize) -> usize {
        (GET_VALUES_MAX / width).max(1)
    }

    /// An error unless this chunk exists, and these rows are in it.
    pub(super) fn check_indices(&self, chunk: usize, indices: &RowSet) -> Result<(), TableError> {
        if chunk >= self.chunk_count() {
            return Err(TableError::NoChunk(chunk));
        }
        let range = self.range(chunk);
        let Some((first, last)) = indices.bounds() else { return Ok(()) };
        match [first, last].into_iter().find(|row| !range.contains(row)) {
            Some(row) => Err(TableError::RowOutsideChunk(row, chunk)),
            None => Ok(()),
        }
    }

    /// An error unless a worker may make this change.
    pub(super) fn check_change(&self, change: &TableChange) -> Result<(), TableError> {
        let chunk = change.chunk as usize;
        match &change.operation {
            Operation::Add { rows, .. } => {
                self.check_indices(chunk, &rows.indices)?;
                if change.key.is_some() {
                    self.check_keys(chunk)?;
                }
                self.check(chunk, rows, self.width(chunk))
            }
            Operation::Map(map) => self.check_map(chunk, map),
            Operation::Complete { .. } if chunk != 0 => Err(TableError::NoLeases(chunk)),
            Operation::Complete { .. } => Ok(()),
        }
    }

    /// An error unless one request may contain these rows.
    pub(super) fn check_request(&self, rows: &RowSet) -> Result<(), TableError> {
        let Some((first, last)) = rows.bounds() else { return Ok(()) };
        if last >= self.row_count() {
            return Err(TableError::NoRow(last));
        }
        let entry = self.entry_of_row(first);
        if last >= entry.first_row + entry.table.rows {
            return Err(TableError::SeveralTables);
        }
        let (found, most) = (rows.len(), Self::rows_per_request_max(entry.table.width));
        if found > most { Err(TableError::TooMany { found, most }) } else { Ok(()) }
    }

    /// An error unless these vectors exist and the owners of their table only add.
    pub(crate) fn check_map(&self, chunk: usize, map: &Map) -> Result<(), TableError> {
        if !map.is_short() {
            return Err(TableError::LongOperation);
        }
        for Assignment { to, terms } in &map.assignments {
            self.check_vectors(chunk, terms.iter().map(|(vector, _)| *vector).chain([*to]))?;
            if terms.iter().any(|(_, factor)| !factor.is_finite()) {
                return Err(TableError::NonFiniteFactor);
            }
        }
        if self.table_of(chunk).is_additive() { Ok(()) } else { Err(TableError::NotAdditive) }
    }

    /// An error unless these vectors exist.
    pub(crate) fn check_reduce(&self, chunk: usize, reduce: &Reduce) -> Result<(), TableError> {
        match reduce {
            Reduce::Dot(one, other) => self.check_vectors(chunk, [*one, *other]),
            Reduce::L1Norm(vector) | Reduce::NonzeroCount(vector) => self.check_vectors(chunk, [*vector]),
            Reduce::Gram(_) if !reduce.is_short() => Err(TableError::LongOperation),
            Reduce::Gram(vectors) => self.check_vectors(chunk, vectors.iter().copied()),
        }
    }

    fn check_vectors(&self, chunk: usize, named: impl IntoIterator<Item = u32>) -> Result<(), TableError> {
        self.check_indices(chunk, &RowSet::default())?;
        let vectors = self.table_of(chunk).vectors;
        match named.into_iter().find(|vector| *vector as usize >= vectors) {
            Some(vector) => Err(TableError::NoVector { vector, vectors }),
            None => Ok(()),
        }
    }

    /// An error unless changes of this chunk may have keys.
    pub(crate) fn check_keys(&self, chunk: usize) -> Result<(), TableError> {
        match self.table_of(chunk).apply_mode {
            ApplyMode::Immediate => Ok(()),
            ApplyMode::PerClock => Err(TableError::KeyPerClock),
        }
    }

    /// An error unless these rows exist, and each has the right count of numbers, all of them finite.
    ///
    /// # Errors
    /// What is wrong with the rows.
    pub fn check_rows(&self, rows: &Rows) -> Result<(), TableError> {
        let count = self.row_count();
        if let Some(row) = rows.indices.iter().find(|row| *row >= count) {
            return Err(TableError::NoRow(row));
        }
        let mut values = &rows.values[..];
        for row in rows.indices.iter() {
            let width = self.width(self.chunk_of(row));
            let Some((numbers, rest)) = values.split_at_checked(width) else {
                return Err(TableError::Length { found: values.len(), expected: width });
            };
            if numbers.iter().any(|value| !value.is_finite()) {
                return Err(TableError::NotFinite(row));
            }
            let is_integer = |pair: &[f32]| Integer::from_pair([pair[0], pair[1]]).is_some();
            if self.table_of(self.chunk_of(row)).rule == TableRule::Integer
                && !numbers.chunks_exact(2).all(is_integer)
            {
                return Err(TableError::NotInteger(row));
            }
            values = rest;
        }
        if values.is_empty() { Ok(()) } else { Err(TableError::Length { found: values.len(), expected: 0 }) }
    }

    /// An error unless these rows are in the chunk, each with `stride` numbers, all of them finite.
    pub(super) fn check(&self, chunk: usize, rows: &Rows, stride: usize) -> Result<(), TableError> {
        self.check_indices(chunk, &rows.indices)?;
        let expected = rows.indices.len() * stride;
        if rows.values.len() != expected {
            return Err(TableError::Length { found: rows.values.len(), expected });
        }
        match rows.values.iter().position(|value| !value.is_finite()) {
            Some(at) => {
                Err(TableError::NotFinite(rows.indices.iter().nth(at / stride).expect("it has numbers")))
            }
            None => Ok(()),
        }
    }
}
