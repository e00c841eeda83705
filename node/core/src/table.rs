//! Tables: shared state of which each member stores a part, and which workers read and add to at their own pace.
//!
//! ```text
//! worker                              owner (server)                        replica (server)
//!   get rows, of a clock at least -->   waits until all workers are there
//!                                 <--   rows, and the clock they are of
//!   add to rows, with a sequence  -->   applies it, once   -- state of rows -->   stores it
//!                                 <--   acknowledges it    <-- acknowledged ----
//!   tick: a clock is over         -->   counts it
//! ```
//! A run has one table or several. Each is cut into chunks as the parameters are, and a chunk has an owner and replicas. All rows of a
//! table have the same width. A row that was never added to is zero and takes no memory.
//!
//! # Exactly once
//! A worker numbers its additions and sends them in that order. Each chunk stores the number of the last addition that it includes, for
//! each worker. These numbers are part of the chunk: they go to its replicas with each change, and to its next owner. An owner acknowledges
//! an addition when it would survive the owner's loss. Until then the worker keeps the addition and sends it again, under the same number.
//! After a view change a worker sends all unacknowledged additions to the present owners, and only then its clock. So a clock in a view
//! includes everything that came before it, whatever was lost on the way.
//!
//! # Replication
//! A replica receives rows, not additions. What is added to a row while a frame is on its way goes into the next frame, once. A row is sent
//! as the owner's rule has left it, so owner and replica are equal in every bit.
//!
//! # Samples
//! Workers go at their own pace, so a step's number does not say what each of them computes. The owner of the first chunk leases samples to
//! workers, and the lease table is stored with that chunk. See [`lease_table`].

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

pub use error::{LayoutError, TableError};
use peergrad_protocol::limits::{
    CHUNKS_MAX, GET_VALUES_MAX, PENDING_CLOCKS_MAX, PER_CLOCK_STALENESS_MAX, TABLE_CHUNK_BYTES_MAX,
    TABLE_ROWS_MAX,
};
use peergrad_protocol::manifest::Chunks;
pub use peergrad_protocol::table::{Map, Reduce, Row, RowSet, Rows};
use peergrad_protocol::table::{Operation, TableChange};
pub use rule::{RowChange, RowRule, TableRule};
pub use worker::{ReadPolicy, ReadSchedule};

mod change_queue;
mod cut;
mod error;
pub mod journal;
pub mod lease_table;
#[cfg(test)]
mod lockstep;
pub mod member;
mod owners;
pub mod replica_map;
mod rule;
pub mod server;
pub mod store;
pub mod worker;

/// A table, as a program declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The table's name.
    pub name: Cow<'static, str>,
    /// The number of its rows.
    pub rows: u64,
    /// The numbers in a row.
    pub width: usize,
    /// What its owners do with additions.
    pub rule: TableRule,
    /// When they do so.
    pub apply_mode: ApplyMode,
    /// The initial values of its rows.
    pub init: Init,
}

/// The initial values of a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// Zeros: a row that was never added to takes no memory.
    Zeros,
    /// The initial parameters of the task, one row after the other. All rows exist from the beginning. If several tables start with
    /// parameters, these lie one table after the other in the flat vector.
    Parameters,
}

/// The tables of a program, and how its workers advance.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// The names, sizes and rules of the tables.
    pub layout: Arc<TableLayout>,
    /// When a worker may read, for each clock.
    pub read_schedule: ReadSchedule,
    /// Whether the run's batch size is that of one worker's clock, or of one clock of all workers together.
    pub batch_scope: BatchScope,
    /// What is added together or not at all if a worker is lost.
    pub atomicity: Atomicity,
    /// Samples that only the first worker computes, at the start of the run.
    pub warm_up: u64,
    /// Samples after the warm-up that are leased before one more worker is admitted; `None`: all are admitted at once.
    pub wave: Option<NonZeroU64>,
}

/// What is added together or not at all if a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// All additions of a clock, which are sent when it ends: other members keep them in a journal before owners get them. So each of them
    /// travels twice or more, and owners get them one round trip later. Each sample counts exactly once. This needs replicas: where chunks
    /// have only one holder, there is no journal.
    ///
    /// What a program sends before the end of the clock, by a push, a pull, a map or a reduction, is a transaction of its own.
    Clock,
    /// Each chunk's additions separately. They are sent when they are pushed. The samples of a lost worker's last clocks may count
    /// twice, in part or as a whole.
    Chunk,
}

impl TableSpec {
    /// These tables, with the same read policy in all clocks. The batch is that of each worker, all workers are admitted at once, and the
    /// additions of a clock are atomic.
    ///
    /// # Panics
    /// As [`TableLayout::new`].
    #[must_use]
    pub fn new(tables: Vec<Table>, read_policy: ReadPolicy) -> Self {
        Self {
            layout: Arc::new(TableLayout::new(tables)),
            read_schedule: ReadSchedule::constant(read_policy),
            batch_scope: BatchScope::PerWorker,
            atomicity: Atomicity::Clock,
            warm_up: 0,
            wave: None,
        }
    }

    /// Checks that the read policy suits the tables.
    ///
    /// # Panics
    /// If a table is applied by clock, and the read policy lets workers be too far apart for that.
    pub(crate) fn check(&self) {
        let is_per_clock = self.layout.tables().any(|table| table.apply_mode == ApplyMode::PerClock);
        assert!(
            !is_per_clock || self.read_schedule.allows_per_clock(),
            "a table that is applied by clock needs a staleness of {PER_CLOCK_STALENESS_MAX} at most"
        );
    }
}

/// What the run's batch size counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchScope {
    /// The samples of all workers in one clock: each worker gets its part.
    Global,
    /// The samples of each worker in one clock.
    PerWorker,
}

/// When an owner applies an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyMode {
    /// When it arrives.
    Immediate,
    /// Once all workers have completed the clock in which it was added, together with all other additions of that clock. No worker sees it
    /// before, not even the one that has added it.
    PerClock,
}

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

impl Table {
    /// A table that starts at zero, and whose owners add each addition when it arrives.
    #[must_use]
    pub fn additive(name: impl Into<Cow<'static, str>>, rows: u64, width: usize) -> Self {
        let (rule, apply_mode, init) = (TableRule::Sum, ApplyMode::Immediate, Init::Zeros);
        Self { name: name.into(), rows, width, rule, apply_mode, init }
    }

    /// The most bytes that a row takes in a message to another member, with all that belongs to it.
    fn row_bytes_max(&self) -> usize {
        /// The row's index, its count of updates, and the index again for pending additions.
        const BESIDES: usize = 16;
        let pending = if self.apply_mode == ApplyMode::PerClock { PENDING_CLOCKS_MAX } else { 0 };
        let numbers = self.width.saturating_mul(1 + self.rule.moments() + pending);
        numbers.saturating_mul(size_of::<f32>()).saturating_add(BESIDES + 8 * pending)
    }

    /// Whether owners add each addition when it arrives.
    fn is_additive(&self) -> bool {
        self.rule == TableRule::Sum && self.apply_mode == ApplyMode::Immediate
    }
}

impl Table {
    /// The numbers that are stored for a row: values and moments.
    fn stride(&self) -> usize {
        self.width * (1 + self.rule.moments())
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
            let Table { rows, width, init, .. } = table;
            if rows == 0 || width == 0 {
                return Err(LayoutError::Empty(table.name));
            }
            if rows > TABLE_ROWS_MAX - first_row {
                return Err(LayoutError::TooManyRows(table.name));
            }
            let chunks = Chunks::of_at_most(rows as usize, chunks_max);
            if chunks.range(0).len().saturating_mul(table.row_bytes_max()) > TABLE_CHUNK_BYTES_MAX {
                return Err(LayoutError::TooLarge(table.name));
            }
            let entry = TableEntry { first_row, first_chunk, first_parameter, chunks, table };
            first_row += rows;
            first_chunk += chunks.count();
            if init == Init::Parameters {
                first_parameter += rows as usize * width;
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
        entries.map(|entry| entry.first_row..entry.first_row + entry.table.rows).collect()
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
        first_parameter + (row - first_row) as usize * table.width
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
        let after = self.tables.partition_point(|entry| entry.first_row <= row);
        let entry = &self.tables[after - 1];
        entry.first_chunk + entry.chunks.at((row - entry.first_row) as usize)
    }

    /// The rows of this chunk.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn range(&self, chunk: usize) -> Range<Row> {
        let entry = self.entry(chunk);
        let rows = entry.chunks.range(chunk - entry.first_chunk);
        entry.first_row + rows.start as u64..entry.first_row + rows.end as u64
    }

    /// The table that this chunk belongs to.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn table_of(&self, chunk: usize) -> &Table {
        &self.entry(chunk).table
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

    /// Groups row indices by chunk. A chunk's indices are in several parts if they are more than one request may contain.
    ///
    /// # Panics
    /// If one of them is not a row.
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

    /// The most rows of a chunk that one request may contain.
    fn rows_per_request_max(&self, chunk: usize) -> usize {
        (GET_VALUES_MAX / self.width(chunk)).max(1)
    }

    /// An error unless this chunk exists, and these rows are in it.
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

    /// An error unless a worker may make this change.
    fn check_change(&self, change: &TableChange) -> Result<(), TableError> {
        let chunk = change.chunk as usize;
        match &change.operation {
            Operation::Add { rows, .. } => {
                self.check_indices(chunk, &rows.indices)?;
                self.check(chunk, rows, self.width(chunk))
            }
            Operation::Map(map) => self.check_map(chunk, *map),
            Operation::Complete { .. } if chunk != 0 => Err(TableError::NoLeases(chunk)),
            Operation::Complete { .. } => Ok(()),
        }
    }

    /// An error unless one request may contain these rows of this chunk.
    fn check_request(&self, chunk: usize, indices: &RowSet) -> Result<(), TableError> {
        self.check_indices(chunk, indices)?;
        let (found, most) = (indices.len(), self.rows_per_request_max(chunk));
        if found > most { Err(TableError::TooMany { found, most }) } else { Ok(()) }
    }

    /// An error unless these columns exist and the owners of their table only add.
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

    /// An error unless these columns exist.
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
            values = rest;
        }
        if values.is_empty() { Ok(()) } else { Err(TableError::Length { found: values.len(), expected: 0 }) }
    }

    /// An error unless these rows are in the chunk, each with `stride` numbers, all of them finite.
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
