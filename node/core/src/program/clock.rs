//! The clock: one batch of a worker that keeps its state in tables, and the operations on them.

use std::ops::Deref;
use std::sync::Arc;

use peergrad_models::task::StepInfo;
use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{IdempotencyKey, Map, Reduce, RowSet, Rows};

use crate::program::batch::Batch;
use crate::program::command::{ProgramCommand, Reply, TableOperation};
use crate::program::mailbox::{Mailbox, Pending};
use crate::table::{TableError, TableLayout};

/// One clock of a worker: the samples of one batch, for a program that keeps its state in [tables](crate::table). A new view does not
/// interrupt a clock.
///
/// A clock has to be ended: one that is dropped counts as ended without any of its samples.
///
/// Where leases are [portions](crate::table::TableSpec::portions), a clock is interrupted when another worker has completed a copy of its
/// samples. Then it counts as ended, and its additions that were not sent are dropped if clocks are atomic.
///
/// If the batch has no samples, the program should end the clock, for which other workers may wait. The node has pushed all additions by
/// then, and begins such a clock only when the read policy allows reads in it. If the batch [is over](Batch::is_over), the program should
/// [finish](Clock::finish).
pub struct Clock {
    /// The number of clocks that this worker has completed.
    pub number: u64,
    /// The position of the first of its samples in the order of their epoch: no other lease of the epoch begins there.
    pub position: u64,
    /// Whether this worker was the last to complete its samples, in the epoch before: only where [portions are
    /// kept](crate::table::Portions::Kept).
    pub is_kept: bool,
    /// The names, sizes and rules of the tables.
    pub layout: Arc<TableLayout>,
    /// The samples of the clock.
    pub(super) batch: Batch,
    /// Where its operations go.
    pub(super) mailbox: Mailbox,
}

impl Deref for Clock {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.batch
    }
}

impl Clock {
    /// What a task learns about this clock.
    #[must_use]
    pub fn info(&self) -> StepInfo {
        self.batch.info(self.number)
    }

    /// Runs `work` on a compute thread: see [`Step::compute`](crate::program::context::Step::compute).
    pub fn compute<T: Send + 'static>(
        &self,
        cost: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        self.mailbox.compute(self.turn, cost, work)
    }

    fn operate<T>(&self, operation: impl FnOnce(Reply<T>) -> TableOperation) -> Pending<T> {
        let turn = self.turn;
        self.mailbox.ask(|reply| ProgramCommand::Operate { turn, operation: operation(reply) })
    }

    fn tell(&self, operation: TableOperation) {
        self.mailbox.tell(self.turn, operation);
    }

    /// Reads rows, no staler than the read policy allows: (rows, width), in the order of their indices. They include this worker's own
    /// additions if owners add them ([`TableRule::Sum`](crate::table::TableRule::Sum)) as they arrive. Under another rule, a row that was
    /// read in this clock already may be as it was then: use [`pull`](Self::pull).
    ///
    /// # Errors
    /// If a row does not exist.
    pub fn get(&self, rows: RowSet) -> Result<Pending<Vec<f32>>, TableError> {
        match rows.bounds().map(|(_, last)| last).filter(|last| *last >= self.layout.row_count()) {
            Some(row) => Err(TableError::NoRow(row)),
            None => Ok(self.operate(|reply| TableOperation::Get { rows, reply })),
        }
    }

    /// Reads those of these rows that are not zero, no staler than the read policy allows. The additions of this worker are sent first, as
    /// by [`push`](Self::push). The rows are not cached: each call asks their owners. They may include additions of other workers that would be
    /// lost with their owner; a program that decides something by them adds to the rows itself and pushes before it acts.
    ///
    /// # Errors
    /// If a row does not exist, or these are more than 4294967295 rows.
    pub fn pull(&self, rows: impl Into<RowSet>) -> Result<Pending<Rows>, TableError> {
        let rows: RowSet = rows.into();
        if let Some((_, last)) = rows.bounds().filter(|(_, last)| *last >= self.layout.row_count()) {
            return Err(TableError::NoRow(last));
        }
        let (found, most) = (rows.len(), u32::MAX as usize);
        if found > most {
            return Err(TableError::TooMany { found, most });
        }
        Ok(self.operate(|reply| TableOperation::Pull { rows, reply }))
    }

    /// Reads all parameters (parameters), no staler than the read policy allows.
    ///
    /// # Panics
    /// The node panics if the task has parameters, and no table starts with them.
    pub fn parameters(&self) -> Pending<Arc<Buffer>> {
        self.operate(TableOperation::Parameters)
    }

    /// Adds numbers to rows. All additions to a row before the next [push](Clock::push), or the end of an atomic clock, are joined by the
    /// table's rule and sent as one.
    ///
    /// # Errors
    /// If a row does not exist or a number is not finite; nothing was added then.
    pub fn add(&self, rows: Rows) -> Result<(), TableError> {
        self.layout.check_rows(&rows)?;
        self.tell(TableOperation::Add(rows));
        Ok(())
    }

    /// As [`add`](Self::add), at once, and only if no worker has sent an addition with this key before. So workers that may do the same work
    /// add its result once: one takes over from another that was lost, or computes a [copy](crate::table::lease_table) of its samples. The
    /// additions of this worker so far are sent first, as by [`push`](Self::push).
    ///
    /// Each chunk decides for itself which of the additions with this key comes first. So workers should add the same numbers to the same
    /// rows. They need not have the same bits.
    ///
    /// # Errors
    /// If a row does not exist, a number is not finite, the number of the key is too large, or the table is applied by clock. Nothing was added
    /// then.
    pub fn add_once(&self, key: IdempotencyKey, rows: Rows) -> Result<(), TableError> {
        self.layout.check_rows(&rows)?;
        check_key(key)?;
        for range in rows.indices.ranges() {
            [range.start, range.end - 1]
                .into_iter()
                .try_for_each(|row| self.layout.check_keys(self.layout.chunk_of(row)))?;
        }
        self.tell(TableOperation::AddOnce(key, rows));
        Ok(())
    }

    /// Has the owners of a table compute with its vectors once, after all additions of this worker so far, which are sent first, as by
    /// [`push`](Self::push). If clocks are atomic, either all owners carry it out or none. The result survives the loss of owners when the
    /// next push is done.
    ///
    /// # Errors
    /// If the table or a vector does not exist, or the table's owners do not only add as additions arrive.
    pub fn map(&self, table: &str, map: Map) -> Result<(), TableError> {
        self.map_with(None, table, map)
    }

    /// As [`map`](Self::map), if no worker has sent an operation with this key before. So all workers may order the same operation: it is
    /// carried out once, even if the one that was first is lost before it has told all owners.
    ///
    /// # Errors
    /// As for [`map`](Self::map), or if the number of the key is too large.
    pub fn map_once(&self, key: IdempotencyKey, table: &str, map: Map) -> Result<(), TableError> {
        check_key(key)?;
        self.map_with(Some(key), table, map)
    }

    fn map_with(&self, key: Option<IdempotencyKey>, table: &str, map: Map) -> Result<(), TableError> {
        let chunks = self.layout.chunks(table)?;
        self.layout.check_map(chunks.start, &map)?;
        self.tell(TableOperation::Map { key, chunks, map });
        Ok(())
    }

    /// Has the owners of a table compute numbers from its vectors, no staler than the read policy allows, with all additions of this worker
    /// so far, which are sent first, as by [`push`](Self::push). A [`map`](Self::map) that this worker starts before the answer arrives may
    /// be included. The numbers are sums over all owners: (count), see [`Reduce`].
    ///
    /// # Errors
    /// If the table or a vector does not exist.
    pub fn reduce(&self, table: &str, reduce: Reduce) -> Result<Pending<Vec<f64>>, TableError> {
        let chunks = self.layout.chunks(table)?;
        self.layout.check_reduce(chunks.start, &reduce)?;
        Ok(self.operate(|reply| TableOperation::Reduce { chunks, reduce, reply }))
    }

    /// Sends all additions so far, of this clock and earlier ones. Done when they would survive the loss of their owners.
    ///
    /// If clocks are [atomic](crate::table::Atomicity::Clock), these additions are a transaction of their own: if this worker is lost before
    /// the clock ends, they stay in, and another worker computes its samples again. [`commit`](Self::commit) sends them together with the
    /// end.
    pub fn push(&self) -> Pending<()> {
        self.operate(TableOperation::Push)
    }

    /// Ends the clock; `stats` are the number and the summed loss of the samples that were computed.
    ///
    /// If clocks are [atomic](crate::table::Atomicity::Clock), this sends the additions that were not sent yet, all or none of which count.
    /// Otherwise they stay here until the next [push](Self::push), or until others wait for them.
    pub fn end(self, stats: SampleStats) {
        self.tell(TableOperation::End(stats));
    }

    /// [Ends](Self::end) the clock and sends all additions so far. Done when they would survive the loss of their owners.
    pub fn commit(self, stats: SampleStats) -> Pending<()> {
        self.operate(|reply| TableOperation::Commit { stats, reply })
    }

    /// Declares that this worker has no more clocks, so that no other worker waits for it. Its reads from now on are answered when all
    /// workers have finished. If the run has samples left, other workers get them, including the samples of this clock. Later additions of
    /// this worker do not count, and neither do those of an atomic clock that were not sent yet.
    pub fn finish(&self) {
        self.tell(TableOperation::Finish);
    }
}

fn check_key(key: IdempotencyKey) -> Result<(), TableError> {
    if key.is_valid() { Ok(()) } else { Err(TableError::LargeKey) }
}
