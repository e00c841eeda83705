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
use std::sync::Arc;

pub use error::{LayoutError, TableError};
pub use integer::Integer;
pub use layout::TableLayout;
pub use lease_table::Portions;
use peergrad_protocol::limits::{KEPT_PORTIONS_MAX, PENDING_CLOCKS_MAX, PER_CLOCK_STALENESS_MAX};
pub use peergrad_protocol::table::{IdempotencyKey, Map, Reduce, Row, RowSet, Rows};
pub use rule::{RowChange, RowRule, TableRule};
pub use worker::{ReadPolicy, ReadSchedule};

mod change_queue;
mod cut;
mod error;
mod integer;
pub mod journal;
mod layout;
pub mod lease_table;
#[cfg(test)]
mod lockstep;
pub mod member;
mod owners;
pub mod replica_map;
mod row_blocks;
mod row_index;
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
    /// How many vectors the table holds, side by side. Row 0 has the first numbers of vector 0, row 1 those of vector 1, and so on; after the
    /// first numbers of the last vector come the next ones of vector 0. So the same part of all vectors has one owner, who can
    /// [compute](Map) with them. Most tables hold one vector.
    pub vectors: usize,
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
    /// parameters, these lie one table after the other in the flat vector. In a table of several vectors, the first one starts with them, and
    /// the others with zeros.
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
    /// If an epoch is leased in [portions](lease_table), and only when the one before is done: how it is cut into them. The batch size does
    /// not matter then.
    pub portions: Option<Portions>,
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
            portions: None,
        }
    }

    /// Checks that the read policy suits the tables, and the number of portions.
    ///
    /// # Panics
    /// If a table is applied by clock, and the read policy lets workers be too far apart for that; or if workers keep too many portions.
    pub(crate) fn check(&self) {
        let is_per_clock = self.layout.tables().any(|table| table.apply_mode == ApplyMode::PerClock);
        assert!(
            !is_per_clock || self.read_schedule.allows_per_clock(),
            "a table that is applied by clock needs a staleness of {PER_CLOCK_STALENESS_MAX} at most"
        );
        assert!(
            !matches!(self.portions, Some(Portions::Kept(count)) if count.get() > KEPT_PORTIONS_MAX as u64),
            "workers keep at most {KEPT_PORTIONS_MAX} portions"
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

impl Table {
    /// A table that starts at zero, and whose owners add each addition when it arrives.
    #[must_use]
    pub fn additive(name: impl Into<Cow<'static, str>>, rows: u64, width: usize) -> Self {
        let (rule, apply_mode, init) = (TableRule::Sum, ApplyMode::Immediate, Init::Zeros);
        Self { name: name.into(), rows, width, vectors: 1, rule, apply_mode, init }
    }

    /// An additive table of several vectors of `length` numbers, with `width` numbers in a row. The last rows of the vectors may be longer than
    /// what is left of them.
    #[must_use]
    pub fn of_vectors(
        name: impl Into<Cow<'static, str>>,
        vectors: usize,
        length: usize,
        width: usize,
    ) -> Self {
        let rows = length.div_ceil(width.max(1)).saturating_mul(vectors) as u64;
        Self { vectors, ..Self::additive(name, rows, width) }
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

    /// The numbers that are stored for a row: values and moments.
    fn stride(&self) -> usize {
        self.width * (1 + self.rule.moments())
    }

    /// The rows of one vector; if there are several, those at the same places of the others are between them.
    fn rows_per_vector(&self) -> u64 {
        self.rows / self.vectors as u64
    }
}
