//! The table: shared state of which every peer owns a part, and that workers read and add to at their own pace.
//!
//! ```text
//! worker (client)                     owner (keeper)                        copy (keeper)
//!   get rows, of a clock at least -->   waits until all workers are there
//!                                 <--   rows, and the clock they are of
//!   add to rows, with a sequence  -->   applies it, once   -- state of rows -->   keeps it
//!                                 <--   acknowledges it    <-- kept ------------
//!   tick: a clock is over         -->   counts it
//! ```
//! A table is cut into chunks as the parameters are, and a chunk has an owner and copies. Rows have a width; a row that was never
//! added to is zero and takes no room.
//!
//! # Exactly once
//! A worker numbers what it adds and sends it in that order. A chunk remembers the last number of each worker that is in it, and
//! that goes wherever the chunk goes: to its copies with each change, and to its next owner. An owner acknowledges what would outlive
//! it, so that a worker forgets it then and sends it again, under the same number, as long as it has not heard so. What it has not heard
//! of when the view changes goes to whoever is the owner now, before the worker says what its clock is: so a clock in a view stands
//! for everything that came before it, whatever was lost on the way.
//!
//! # Replication
//! A copy is told of rows, not of additions: what was added to a row while a frame was under way goes in the next one, once. It
//! holds what the owner's rule made of them, so that owner and copy are alike in every bit.

use peergrad_protocol::{Incarnation, PeerId};

pub mod client;
pub mod keeper;
#[cfg(test)]
mod lockstep;
pub mod store;

/// What a row is called.
pub type Row = u64;

/// How a table is laid out: the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows have names below this.
    pub rows: u64,
    /// Numbers of a row.
    pub width: usize,
    /// What the table is cut into.
    pub chunks: usize,
}

impl Shape {
    /// The chunk that a row is in: chunks are ranges of rows, as even as can be.
    pub fn chunk_of(&self, row: Row) -> usize {
        let per_chunk = self.rows.div_ceil(self.chunks as u64).max(1);
        usize::try_from(row / per_chunk).expect("a table has fewer chunks than this")
    }
}

/// A worker, in one life of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    /// Its key.
    pub peer: PeerId,
    /// Which of its lives.
    pub incarnation: Incarnation,
}

/// Numbers for rows of one chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Ascending.
    pub names: Vec<Row>,
    /// (rows, width), one row after the other.
    pub values: Vec<f32>,
}

/// What a worker says to an owner.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// Rows of a chunk, once all workers have completed so many clocks.
    Get {
        /// The worker's own number for it.
        request: u64,
        /// Clocks that all workers are to have completed.
        at_least: u64,
        /// Where the rows are.
        chunk: usize,
        /// Ascending.
        rows: Vec<Row>,
    },
    /// To be added to rows of a chunk.
    Add {
        /// One more than that of what the worker added before, to whatever chunk.
        sequence: u64,
        /// Where the rows are.
        chunk: usize,
        /// What is added to them.
        rows: Rows,
    },
    /// So many clocks are complete.
    Tick {
        /// How many.
        clock: u64,
    },
}

/// What an owner says to a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// Rows as they are, how many clocks all workers had completed, and the last number of this worker that is in the chunk.
    Got {
        /// The worker's number for it.
        request: u64,
        /// Clocks that all workers have completed.
        clock: u64,
        /// The worker's last sequence number that is in.
        applied: u64,
        /// (rows, width), one row after the other.
        values: Vec<f32>,
    },
    /// Everything up to this number that this owner was sent in this view outlives it.
    Added {
        /// The sequence number.
        up_to: u64,
    },
}

/// Something that no correct peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A row that the table, or the chunk, does not have.
    #[error("row {0} is not in chunk {1}")]
    Row(Row, usize),
    /// A chunk that the table does not have.
    #[error("there is no chunk {0}")]
    Chunk(usize),
    /// Rows that are not in order.
    #[error("rows that are not in ascending order")]
    Order,
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
    Backwards {
        /// What the worker says.
        told: u64,
        /// What it has said before.
        known: u64,
    },
    /// It is not the owner.
    #[error("chunk {0} is not owned here")]
    NotOwned(usize),
}

impl Rows {
    /// An error unless these rows are in the chunk, in order, each with its numbers.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self, shape: Shape, chunk: usize) -> Result<(), TableError> {
        check_names(shape, chunk, &self.names)?;
        let expected = self.names.len() * shape.width;
        if self.values.len() != expected {
            return Err(TableError::Length { found: self.values.len(), expected });
        }
        match self.values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(TableError::NotFinite(self.names[at / shape.width])),
            None => Ok(()),
        }
    }
}

/// An error unless there is such a chunk, and these rows are in it and in order.
fn check_names(shape: Shape, chunk: usize, names: &[Row]) -> Result<(), TableError> {
    if chunk >= shape.chunks {
        return Err(TableError::Chunk(chunk));
    }
    let is_in = |row: &Row| *row < shape.rows && shape.chunk_of(*row) == chunk;
    if let Some(row) = names.iter().find(|row| !is_in(row)) {
        return Err(TableError::Row(*row, chunk));
    }
    if names.is_sorted_by(|one, next| one < next) { Ok(()) } else { Err(TableError::Order) }
}
