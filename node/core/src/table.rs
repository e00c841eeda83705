//! The table: shared state of which every peer owns a part, and that workers read and add to at their own pace.
//!
//! ```text
//! worker (worker)                     owner (server)                        copy (server)
//!   get rows, of a clock at least -->   waits until all workers are there
//!                                 <--   rows, and the clock they are of
//!   add to rows, with a sequence  -->   applies it, once   -- state of rows -->   keeps it
//!                                 <--   acknowledges it    <-- kept ------------
//!   tick: a clock is over         -->   counts it
//! ```
//! A run has one table or several. Each is cut into chunks as the parameters are, and a chunk has an owner and replicas. Rows have a
//! width; a row that was never added to is zero and takes no room.
//!
//! # Exactly once
//! A worker numbers what it adds and sends it in that order. A chunk remembers the last number of each worker that is in it, and
//! that goes wherever the chunk goes: to its replicas with each change, and to its next owner. An owner acknowledges what would outlive
//! it, so that a worker forgets it then and sends it again, under the same number, as long as it has not heard so. What it has not heard
//! of when the view changes goes to whoever is the owner now, before the worker says what its clock is: so a clock in a view stands
//! for everything that came before it, whatever was lost on the way.
//!
//! # Replication
//! A copy is told of rows, not of additions: what was added to a row while a frame was under way goes in the next one, once. It
//! holds what the owner's rule made of them, so that owner and copy are alike in every bit.
//!
//! # Samples
//! Workers go at their own pace, so nobody can know from a step's number what each of them computes: the owner of the first chunk
//! deals, and what it has dealt is kept with that chunk. See [`lease_table`].

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use peergrad_models::optimizer::{Optimizer, Schedule};
use peergrad_protocol::limits::{
    CHUNKS_MAX, GET_VALUES_MAX, PENDING_CLOCKS_MAX, PER_CLOCK_STALENESS_MAX, TABLE_CHUNK_BYTES_MAX,
    TABLE_ROWS_MAX,
};
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::table::WorkerClock;
pub use peergrad_protocol::table::{Map, Reduce, Row, RowSet, Rows};
pub use worker::{ReadPolicy, ReadSchedule};

pub mod lease_table;
#[cfg(test)]
mod lockstep;
pub mod server;
pub mod store;
pub mod worker;

/// A table, as a program wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What it is called.
    pub name: &'static str,
    /// How many rows it can have.
    pub rows: u64,
    /// Numbers of a row.
    pub width: usize,
    /// What becomes of what is added.
    pub rule: TableRule,
    /// When.
    pub apply_mode: ApplyMode,
    /// What its rows begin with.
    pub init: Init,
}

/// What the rows of a table begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// Zeros: a row that was never added to takes no room.
    Zeros,
    /// The initial parameters of the task, one row after the other: all rows are there from the beginning.
    Parameters,
}

/// What a program keeps in tables, and how its workers go on.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// The tables.
    pub layout: Arc<TableLayout>,
    /// When a worker may read.
    pub read_schedule: ReadSchedule,
    /// How many samples a worker is dealt for a clock.
    pub batch_scope: BatchScope,
    /// Samples that the first worker has to itself.
    pub warm_up: u64,
    /// Samples after the warm-up that are leased before one more worker comes in; `None`: all come in at once.
    pub wave: Option<NonZeroU64>,
}

impl TableSpec {
    /// These tables, with the same read policy for ever; each worker has a batch of its own, and all come at once.
    ///
    /// # Panics
    /// As [`TableLayout::new`].
    #[must_use]
    pub fn new(tables: Vec<Table>, read_policy: ReadPolicy) -> Self {
        Self {
            layout: Arc::new(TableLayout::new(tables)),
            read_schedule: ReadSchedule::constant(read_policy),
            batch_scope: BatchScope::PerWorker,
            warm_up: 0,
            wave: None,
        }
    }

    /// Checked once for all that is made of it.
    ///
    /// # Panics
    /// If a table is applied by clock, and workers may be too far from each other for that.
    pub(crate) fn check(&self) {
        let is_per_clock = self.layout.tables().any(|table| table.apply_mode == ApplyMode::PerClock);
        assert!(
            !is_per_clock || self.read_schedule.allows_per_clock(),
            "a table that is applied by clock needs a staleness of {PER_CLOCK_STALENESS_MAX} at most"
        );
    }
}

/// Whose a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchScope {
    /// That of all workers in one clock: each is dealt its part.
    Global,
    /// That of each worker.
    PerWorker,
}

/// What becomes of what is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TableRule {
    /// It is added.
    Sum,
    /// It is a gradient, which the optimizer applies.
    Optimizer {
        /// How.
        rule: Optimizer,
        /// At which rate, by the clock of whoever adds.
        schedule: Schedule,
    },
}

/// When an owner applies what is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyMode {
    /// As it comes.
    Immediate,
    /// Once all workers have completed the clock in which it was added: then all of that together. Nobody sees it before,
    /// the one who has added it included.
    PerClock,
}

/// How the tables of a run are laid out: the same at all members.
#[derive(Clone, Debug, PartialEq)]
pub struct TableLayout {
    tables: Vec<TableEntry>,
}

#[derive(Clone, Debug, PartialEq)]
struct TableEntry {
    table: Table,
    first_row: Row,
    first_chunk: usize,
    chunks: Chunks,
}

impl Table {
    /// One that begins at zero, and whose owners add what they are sent as it comes.
    #[must_use]
    pub fn additive(name: &'static str, rows: u64, width: usize) -> Self {
        let (rule, apply_mode, init) = (TableRule::Sum, ApplyMode::Immediate, Init::Zeros);
        Self { name, rows, width, rule, apply_mode, init }
    }

    /// Bytes of a row at most, with all that belongs to it, where it is told to another member.
    fn row_bytes_max(&self) -> usize {
        /// Its name, the updates behind it, and the name again where something is to be applied.
        const BESIDES: usize = 16;
        let pending = if self.apply_mode == ApplyMode::PerClock { PENDING_CLOCKS_MAX } else { 0 };
        let numbers = self.width.saturating_mul(1 + self.rule.moments() + pending);
        numbers.saturating_mul(size_of::<f32>()).saturating_add(BESIDES + 8 * pending)
    }

    /// Whether owners add what they are sent as it comes.
    fn is_additive(&self) -> bool {
        self.rule == TableRule::Sum && self.apply_mode == ApplyMode::Immediate
    }
}

impl TableRule {
    /// Numbers that are kept for each of a row's.
    fn moments(&self) -> usize {
        match self {
            Self::Sum => 0,
            Self::Optimizer { rule, .. } => rule.moment_count(),
        }
    }
}

impl Table {
    /// Numbers that are kept of a row: values and moments.
    fn stride(&self) -> usize {
        self.width * (1 + self.rule.moments())
    }
}

impl TableLayout {
    /// Lays tables out one after the other.
    ///
    /// # Panics
    /// If there is none, or one without rows or numbers, or more rows than indices, or chunks that are too large to be told whole.
    #[must_use]
    pub fn new(tables: Vec<Table>) -> Self {
        assert!(!tables.is_empty(), "a run has a table");
        let chunks_max = CHUNKS_MAX / tables.len();
        let (mut first_row, mut first_chunk) = (0, 0);
        let lay = |table: Table| {
            assert!(table.rows > 0 && table.width > 0, "table {} is empty", table.name);
            let chunks =
                Chunks::of_at_most(usize::try_from(table.rows).expect("rows are counted"), chunks_max);
            let chunk_bytes = chunks.range(0).len().saturating_mul(table.row_bytes_max());
            assert!(chunk_bytes <= TABLE_CHUNK_BYTES_MAX, "table {}: too many rows, or too wide", table.name);
            let entry = TableEntry { first_row, first_chunk, chunks, table };
            first_row += entry.table.rows;
            first_chunk += chunks.count();
            assert!(first_row <= TABLE_ROWS_MAX, "{first_row} rows");
            entry
        };
        Self { tables: tables.into_iter().map(lay).collect() }
    }

    /// The tables.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().map(|entry| &entry.table)
    }

    /// The rows that begin at the task's parameters.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn parameter_rows(&self) -> RowSet {
        let is_it = |entry: &&TableEntry| entry.table.init == Init::Parameters;
        let entry =
            self.tables.iter().find(is_it).expect("a program reads the parameters that it has a table of");
        RowSet::range(entry.first_row..entry.first_row + entry.table.rows)
    }

    /// The first row of the table that a chunk is of.
    pub(crate) fn first_row_of_table(&self, chunk: usize) -> Row {
        self.entry(chunk).first_row
    }

    /// Chunks of all tables.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        let last = self.tables.last().expect("a run has a table");
        last.first_chunk + last.chunks.count()
    }

    /// Rows of all tables.
    #[must_use]
    pub fn row_count(&self) -> u64 {
        let last = self.tables.last().expect("a run has a table");
        last.first_row + last.table.rows
    }

    /// Numbers of all tables.
    #[must_use]
    pub fn value_count(&self) -> usize {
        self.tables().map(|table| table.rows as usize * table.width).sum()
    }

    /// The chunk that a row is in.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn chunk_of(&self, row: Row) -> usize {
        let after = self.tables.partition_point(|entry| entry.first_row <= row);
        let entry = &self.tables[after - 1];
        entry.first_chunk + entry.chunks.at((row - entry.first_row) as usize)
    }

    /// The rows of a chunk.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn range(&self, chunk: usize) -> Range<Row> {
        let entry = self.entry(chunk);
        let rows = entry.chunks.range(chunk - entry.first_chunk);
        entry.first_row + rows.start as u64..entry.first_row + rows.end as u64
    }

    /// The table that a chunk is of.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn table_of(&self, chunk: usize) -> &Table {
        &self.entry(chunk).table
    }

    /// Numbers of a row of a chunk.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn width(&self, chunk: usize) -> usize {
        self.table_of(chunk).width
    }

    /// Numbers that are kept of a row of a chunk: values and moments.
    fn stride(&self, chunk: usize) -> usize {
        self.table_of(chunk).stride()
    }

    fn entry(&self, chunk: usize) -> &TableEntry {
        assert!(chunk < self.chunk_count(), "chunk {chunk} of {}", self.chunk_count());
        let after = self.tables.partition_point(|entry| entry.first_chunk <= chunk);
        &self.tables[after - 1]
    }

    /// The rows of the table of this name.
    ///
    /// # Errors
    /// There is no such table.
    pub fn rows(&self, table: &str) -> Result<Range<Row>, TableError> {
        let entry = self.find(table)?;
        Ok(entry.first_row..entry.first_row + entry.table.rows)
    }

    /// The chunks of the table of this name.
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

    /// The indices in each chunk, where all of them are rows; in parts, where they are more than one question may ask for.
    ///
    /// # Panics
    /// If one of them is none.
    #[must_use]
    pub fn by_chunk(&self, indices: &RowSet) -> Vec<(usize, RowSet)> {
        let mut parts: Vec<(usize, u64, Vec<Range<Row>>)> = Vec::new();
        for mut range in indices.ranges() {
            while !range.is_empty() {
                let is_in = |(chunk, room, _): &&mut (usize, u64, Vec<Range<Row>>)| {
                    *room > 0 && self.range(*chunk).contains(&range.start)
                };
                if parts.last_mut().filter(is_in).is_none() {
                    let chunk = self.chunk_of(range.start);
                    parts.push((chunk, self.rows_per_request_max(chunk) as u64, Vec::new()));
                }
                let (chunk, room, ranges) = parts.last_mut().expect("there is one by now");
                let end = self.range(*chunk).end.min(range.end).min(range.start + *room);
                *room -= end - range.start;
                ranges.push(range.start..end);
                range.start = end;
            }
        }
        parts.into_iter().map(|(chunk, _, ranges)| (chunk, ranges.into_iter().collect())).collect()
    }

    /// Rows of a chunk that one question may ask for.
    fn rows_per_request_max(&self, chunk: usize) -> usize {
        (GET_VALUES_MAX / self.width(chunk)).max(1)
    }

    /// An error unless there is such a chunk, and these rows are in it.
    fn check_indices(&self, chunk: usize, indices: &RowSet) -> Result<(), TableError> {
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

    /// An error unless a question may ask for these rows of a chunk.
    fn check_request(&self, chunk: usize, indices: &RowSet) -> Result<(), TableError> {
        self.check_indices(chunk, indices)?;
        let (found, most) = (indices.len(), self.rows_per_request_max(chunk));
        if found > most { Err(TableError::TooMany { found, most }) } else { Ok(()) }
    }

    /// An error unless there are such columns, of a table whose owners only add.
    pub(crate) fn check_map(&self, chunk: usize, map: Map) -> Result<(), TableError> {
        let (columns, by) = match map {
            Map::Axpy { by, from, to } => ([from, to], by),
            Map::Scale { by, column } => ([column; 2], by),
        };
        self.check_columns(chunk, columns)?;
        if !self.table_of(chunk).is_additive() {
            return Err(TableError::NotAdditive);
        }
        if by.is_finite() { Ok(()) } else { Err(TableError::NonFiniteFactor) }
    }

    /// An error unless there are such columns.
    pub(crate) fn check_reduce(&self, chunk: usize, reduce: Reduce) -> Result<(), TableError> {
        match reduce {
            Reduce::Dot(one, other) => self.check_columns(chunk, [one, other]),
            Reduce::L1Norm(column) | Reduce::NonzeroCount(column) => self.check_columns(chunk, [column; 2]),
        }
    }

    fn check_columns(&self, chunk: usize, columns: [u32; 2]) -> Result<(), TableError> {
        self.check_indices(chunk, &RowSet::default())?;
        let width = self.width(chunk);
        match columns.into_iter().find(|column| *column as usize >= width) {
            Some(column) => Err(TableError::NoColumn { column, width }),
            None => Ok(()),
        }
    }

    /// An error unless there are such rows, each with its numbers, all of them finite.
    ///
    /// # Errors
    /// What is wrong with them.
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
            values = rest;
        }
        if values.is_empty() { Ok(()) } else { Err(TableError::Length { found: values.len(), expected: 0 }) }
    }

    /// An error unless these rows are in the chunk, each with so many numbers, all of them finite.
    fn check(&self, chunk: usize, rows: &Rows, stride: usize) -> Result<(), TableError> {
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

/// Something that no correct peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A row that no table has.
    #[error("there is no row {0}")]
    NoRow(Row),
    /// A row that the chunk does not have.
    #[error("row {0} is not in chunk {1}")]
    RowOutsideChunk(Row, usize),
    /// A chunk that the table does not have.
    #[error("there is no chunk {0}")]
    NoChunk(usize),
    /// A table that there is not.
    #[error("there is no table of this name")]
    NoTable,
    /// A column that the rows do not have.
    #[error("there is no column {column}: rows have {width}")]
    NoColumn {
        /// Which.
        column: u32,
        /// Numbers of a row.
        width: usize,
    },
    /// Something else than an addition, in a table whose owners update by a rule, or by clock.
    #[error("owners do not add to this table as it comes: it can only be added to")]
    NotAdditive,
    /// A factor that is not a number.
    #[error("a factor that is not finite")]
    NonFiniteFactor,
    /// More rows than one question may ask for.
    #[error("{found} rows at once, and at most {most} are told")]
    TooMany {
        /// How many.
        found: usize,
        /// How many may be asked for.
        most: usize,
    },
    /// Rows that were not asked for.
    #[error("rows that were not asked for")]
    Unrequested,
    /// More or fewer numbers than the rows have.
    #[error("{found} numbers for {expected}")]
    Length {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Something that is not a number.
    #[error("a value that is not finite, for row {0}")]
    NotFinite(Row),
    /// A clock that goes backwards.
    #[error("clock {told} after clock {known}")]
    ClockBackwards {
        /// What the worker says.
        told: WorkerClock,
        /// What it has said before.
        known: WorkerClock,
    },
    /// It is not the owner.
    #[error("chunk {0} is not owned here")]
    NotOwned(usize),
    /// More questions than a worker has.
    #[error("more than {0} questions at once")]
    TooManyRequests(usize),
    /// More that has to wait than an owner has room for.
    #[error("more than {0} bytes that have to wait")]
    TooManyBytes(usize),
}
