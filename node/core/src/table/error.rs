//! What can be wrong with the rows, vectors and clocks that a program or another member names.

use std::borrow::Cow;

use peergrad_protocol::limits::{
    CHUNKS_MAX, ROUND_KEYS_MAX, TABLE_CHUNK_BYTES_MAX, TABLE_ROWS_MAX, VECTOR_ASSIGNMENTS_MAX,
    VECTOR_TERMS_MAX,
};
use peergrad_protocol::table::{Row, WorkerClock};

/// Why tables cannot be those of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No table, or too many.
    #[error("{0} tables: a run has 1 to {CHUNKS_MAX}")]
    TableCount(usize),
    /// A table without rows, or with rows without numbers.
    #[error("table `{0}` is empty: give at least one row, with at least one number")]
    Empty(Cow<'static, str>),
    /// More rows than indices.
    #[error("table `{0}` has too many rows: all tables together have at most {TABLE_ROWS_MAX}")]
    TooManyRows(Cow<'static, str>),
    /// Vectors of unlike length.
    #[error("table `{table}` has {rows} rows for {vectors} vectors: give each vector as many rows")]
    Vectors {
        /// The table's name.
        table: Cow<'static, str>,
        /// Its rows.
        rows: u64,
        /// Its vectors.
        vectors: usize,
    },
    /// A table of integers whose rows end in the middle of one, or that starts with parameters.
    #[error(
        "table `{table}` has {width} numbers in a row, for integers: give it two for each, and let it start with zeros"
    )]
    Integers {
        /// The table's name.
        table: Cow<'static, str>,
        /// The numbers in a row.
        width: usize,
    },
    /// A chunk that is too large for one message.
    #[error(
        "table `{0}` is too large: give it fewer or shorter rows (a chunk may take {TABLE_CHUNK_BYTES_MAX} bytes)"
    )]
    TooLarge(Cow<'static, str>),
}

/// What is wrong with a table message that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A row that is in no table.
    #[error("there is no row {0}")]
    NoRow(Row),
    /// A row that the chunk does not have.
    #[error("row {0} is not in chunk {1}")]
    RowOutsideChunk(Row, usize),
    /// Rows of several tables in one request.
    #[error("rows of several tables in one request")]
    SeveralTables,
    /// A chunk that the table does not have.
    #[error("there is no chunk {0}")]
    NoChunk(usize),
    /// No table has this name.
    #[error("there is no table of this name")]
    NoTable,
    /// A vector that the table does not have.
    #[error("there is no vector {vector}: the table has {vectors}")]
    NoVector {
        /// The vector's number.
        vector: u32,
        /// The vectors of the table.
        vectors: usize,
    },
    /// An operation that names too many vectors.
    #[error(
        "an operation on more than {VECTOR_TERMS_MAX} vectors, or more than {VECTOR_ASSIGNMENTS_MAX} of them at once"
    )]
    LongOperation,
    /// A key that a chunk cannot record.
    #[error("an idempotency key whose number is {ROUND_KEYS_MAX} or more")]
    LargeKey,
    /// A change with a key, of a table that is applied by clock.
    #[error("this table is applied by clock: a change of it cannot have an idempotency key")]
    KeyPerClock,
    /// A change other than an addition, to a table whose owners update by a rule or by clock.
    #[error("the owners of this table update it by a rule or by clock: it can only be added to")]
    NotAdditive,
    /// A factor that is not a number.
    #[error("a factor that is not finite")]
    NonFiniteFactor,
    /// More rows than one request may contain.
    #[error("{found} rows in one request; the limit is {most}")]
    TooMany {
        /// The number of rows.
        found: usize,
        /// The most rows that a request may contain.
        most: usize,
    },
    /// Rows that were not requested.
    #[error("rows that were not requested")]
    Unrequested,
    /// More or fewer numbers than the rows have.
    #[error("{found} numbers for {expected}")]
    Length {
        /// How many numbers were sent.
        found: usize,
        /// How many numbers the rows have.
        expected: usize,
    },
    /// A value that is not finite.
    #[error("a value that is not finite, for row {0}")]
    NotFinite(Row),
    /// A pair of numbers that holds no integer, for a table of integers.
    #[error("a pair of numbers that holds no integer, for row {0}: make pairs with `Integer::to_pair`")]
    NotInteger(Row),
    /// A clock that goes backwards.
    #[error("clock {sent} after clock {known}")]
    ClockBackwards {
        /// The clock that the worker has sent.
        sent: WorkerClock,
        /// The clock that it had sent before.
        known: WorkerClock,
    },
    /// A change of a worker that is neither the sender's nor gone.
    #[error("a change of another member's worker, which is not gone")]
    OtherWorker,
    /// A change to keep that does not follow the one before.
    #[error("a change that does not follow the one before it")]
    OutOfOrder,
    /// A message about a cut from a member that does not send it, or before what must come first.
    #[error("a message about a checkpoint that does not come from this member here")]
    CutOutOfOrder,
    /// Changes of too many workers that are gone.
    #[error("changes of more than {0} workers that are gone")]
    TooManyDeparted(usize),
    /// The lease table is not stored with this chunk.
    #[error("leases that are completed with chunk {0}")]
    NoLeases(usize),
    /// This member is not the owner of the chunk.
    #[error("chunk {0} is not owned here")]
    NotOwned(usize),
    /// More requests at once than a worker may send.
    #[error("more than {0} requests at once")]
    TooManyRequests(usize),
    /// More waiting bytes than an owner has room for.
    #[error("more than {0} bytes of waiting requests")]
    TooManyBytes(usize),
}
