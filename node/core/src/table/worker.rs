//! The table worker: the part of a member that reads and adds. It stores unacknowledged additions and cached rows, and knows when it may
//! continue.
//!
//! # How it works
//! ```text
//! clock c:  get --> rows of clock c - s at least, from the cache or from their owners
//!           add --> put together by row until they are pushed
//!           end --> the tick: what was pushed comes before it
//! ```
//! A cached row has the clock that all workers had completed when it was read. It may be used at clock c if that is at least c - s, where s
//! is the *staleness* (0: BSP). Then the row includes all additions of the clocks before c - s, and perhaps more. Where owners add
//! additions when they arrive, a worker always sees its own ones too; under another rule, only the owner can compute their effect.
//!
//! # Late workers
//! A worker that joins a run in progress has no clock until it has read something; then its clock is that of the slowest worker.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::table::{
    IdempotencyKey, Map, Operation, Reduce, Response, Row, RowSet, Rows, WorkerClock, WorkerId,
};

use super::change_queue::QueuedChange;
use super::owners::Owners;
use super::replica_map::ReplicaMap;
use super::server::Outbox;
use super::{ApplyMode, Atomicity, TableError, TableLayout};
use cache::{RowAge, RowCache};
pub use changes::ChangeLog;
use clock::Announced;
pub use leases::{AcquiredLease, HeldLeases};
pub use read_policy::{ReadPolicy, ReadSchedule};
pub use reads::Reads;
use reads::{PendingRead, Query, ReadRows, RowsResponse};

mod cache;
mod changes;
mod clock;
mod leases;
mod read_policy;
mod reads;

/// One worker: it connects its changes, its reads and its leases with its clock.
pub struct TableWorker {
    /// The tables, and the owner of each of their chunks.
    owners: Owners,
    /// How old the rows that it reads may be, in each clock.
    read_schedule: ReadSchedule,
    /// What is added together or not at all if this worker is lost.
    atomicity: Atomicity,
    /// The number of clocks that it has completed; `None` for a new worker.
    clock: Option<u64>,
    /// What owners know of its clock.
    announced: Announced,
    /// The number of clocks that all workers have completed, as far as it knows.
    completed_by_all: u64,
    /// Its additions that are not acknowledged yet.
    changes: ChangeLog,
    /// The rows that it has read and may read again.
    cache: RowCache,
    /// Its requests to owners that are not answered, or whose results are not taken.
    reads: Reads,
    /// The samples that it is to compute.
    leases: HeldLeases,
}

/// When a worker starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerStart {
    /// With the run, at this clock: 0, or that of the checkpoint from which the run continues.
    At(u64),
    /// In a run in progress, without a clock.
    Late,
}

impl TableWorker {
    /// A worker that has not entered a view yet.
    #[must_use]
    pub fn new(
        layout: Arc<TableLayout>,
        read_schedule: ReadSchedule,
        atomicity: Atomicity,
        start: WorkerStart,
    ) -> Self {
        Self {
            owners: Owners::new(layout),
            read_schedule,
            atomicity,
            announced: Announced::Waits,
            clock: match start {
                WorkerStart::At(clock) => Some(clock),
                WorkerStart::Late => None,
            },
            completed_by_all: 0,
            changes: ChangeLog::default(),
            cache: RowCache::default(),
            reads: Reads::default(),
            leases: HeldLeases::default(),
        }
    }

    /// A view begins, in which this member has this rank. Sends again what may be lost: changes and requests. The clock follows with
    /// [`announce_clock`](Self::announce_clock).
    pub fn enter(&mut self, me: Rank, replica_map: Arc<ReplicaMap>, out: &mut Outbox) {
        self.owners.enter(me, replica_map);
        self.announced = Announced::Waits;
        self.leases.send_returned(&self.owners, out);
        let keepers = match self.atomicity {
            Atomicity::Clock => self.owners.keepers(self.owners.own_id()).collect(),
            Atomicity::Chunk => Vec::new(),
        };
        self.changes.queue.enter(&self.owners, keepers.into_iter(), out);
        self.reads.resend(&self.owners, self.changes.queue.released_up_to(), out);
        self.leases.send_request(&self.owners, out);
    }

    /// A keeper of this worker's journal has its changes up to this number.
    pub fn on_kept(&mut self, from: Rank, up_to: u64, out: &mut Outbox) {
        self.changes.queue.on_kept(from, up_to, &self.owners, out);
        self.after_release(out);
    }

    /// More changes may have been sent to their owners: what waits for that follows.
    fn after_release(&mut self, out: &mut Outbox) {
        self.reads.release(&self.owners, self.changes.queue.released_up_to(), out);
        self.send_clock(out);
    }

    /// Sends owners no new changes until [`end_hold`](Self::end_hold): a cut is taken.
    pub fn hold(&mut self) {
        self.changes.queue.hold();
    }

    /// Whether all changes are safe that it had sent to owners before the hold.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.changes.queue.is_held()
    }

    /// Sends the changes that have waited for the cut.
    pub fn end_hold(&mut self, out: &mut Outbox) {
        self.changes.queue.end_hold(&self.owners, out);
        self.after_release(out);
    }

    /// The clock of the first change that was not sent to its owner yet, and the members that it waits for. `None` if all were sent.
    #[must_use]
    pub fn awaited_for_journal(&self) -> Option<(WorkerClock, BTreeSet<Rank>)> {
        let clock = WorkerClock::At(self.changes.queue.held_since()?);
        Some((clock, self.changes.queue.awaited(&self.owners)))
    }

    /// Drops the cached rows of a chunk: it was reset, or an operation changed rows that only the owner knows.
    pub fn invalidate(&mut self, chunk: usize) {
        self.reads.forget_operation(chunk);
        self.cache.invalidate(chunk);
    }

    /// The worker, as the members of the view know it.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.owners.own_id()
    }

    /// The changes that are not acknowledged yet.
    #[must_use]
    pub fn changes(&self) -> &ChangeLog {
        &self.changes
    }

    /// The leases of this worker.
    #[must_use]
    pub fn leases(&self) -> &HeldLeases {
        &self.leases
    }

    /// The reads of this worker, to take the results of those that are answered.
    pub fn reads_mut(&mut self) -> &mut Reads {
        &mut self.reads
    }

    // Changing.

    /// Adds to a row.
    pub fn add(&mut self, row: Row, added: &[f32]) {
        let layout = &self.owners.layout;
        self.changes.add(row, added, &layout.table_of(layout.chunk_of(row)).rule);
    }

    /// Sends the additions that were not pushed yet.
    pub fn push(&mut self, out: &mut Outbox) {
        let transaction = self.changes.take_coalesced(self.clock(), &self.owners.layout);
        self.send_transaction(self.clock(), transaction, out);
        self.close_leases(out);
    }

    /// Sends the additions that were held back, since other workers may wait for them. Those of an atomic clock are sent at its end.
    pub fn push_held_back(&mut self, out: &mut Outbox) {
        if self.atomicity == Atomicity::Chunk {
            self.push(out);
        }
    }

    /// Has owners carry out these operations, one of each chunk, after all additions so far. With a key, each of them is carried out only if no
    /// worker has sent one with this key before.
    pub fn operate(
        &mut self,
        key: Option<IdempotencyKey>,
        operations: Vec<(usize, Operation)>,
        out: &mut Outbox,
    ) {
        self.push(out);
        let first = self.changes.last_sequence() + 1;
        let chunks: BTreeSet<usize> = operations.iter().map(|(chunk, _)| *chunk).collect();
        for (chunk, sequence) in chunks.iter().zip(first..) {
            // Only the owner knows the new rows.
            self.invalidate(*chunk);
            self.reads.note_operation(*chunk, sequence);
        }
        let operations = operations.into_iter().map(|(chunk, operation)| (chunk, key, operation)).collect();
        self.changes.queue.record(self.clock(), operations, &self.owners, out);
        self.after_release(out);
        self.reads.repeat_answered(&self.owners, &chunks, out);
        self.leases.close(self.changes.last_sequence());
    }

    /// As [`operate`](Self::operate), for one operation on vectors of all of these chunks.
    pub fn map(&mut self, chunks: Range<usize>, key: Option<IdempotencyKey>, map: &Map, out: &mut Outbox) {
        let operations = chunks.map(|chunk| (chunk, Operation::Map(map.clone()))).collect();
        self.operate(key, operations, out);
    }

    /// As [`operate`](Self::operate), for an addition to rows.
    pub fn add_once(&mut self, key: IdempotencyKey, rows: &Rows, out: &mut Outbox) {
        let operations = changes::by_chunk(rows, self.clock(), &self.owners.layout);
        self.operate(Some(key), operations, out);
    }

    fn send_transaction(&mut self, clock: u64, transaction: Vec<(usize, Operation)>, out: &mut Outbox) {
        let transaction =
            transaction.into_iter().map(|(chunk, operation)| (chunk, None, operation)).collect();
        self.changes.queue.record(clock, transaction, &self.owners, out);
        self.after_release(out);
    }

    // Leases.

    /// Asks for a lease of `samples` samples, unless one was asked for already.
    pub fn request_lease(&mut self, samples: u32, out: &mut Outbox) {
        // If no other worker will wait for this one, it need not run clocks without samples.
        let may_wait = self.never_waits();
        self.leases.request(&self.owners, samples, may_wait, out);
    }

    /// Whether another worker has completed a copy of the lease of the clock in progress since the last call.
    pub fn take_superseded(&mut self) -> bool {
        self.leases.take_superseded()
    }

    /// Asks how many samples were trained in the run once all are done. This worker has ended, and gets no lease.
    pub fn request_trained(&mut self, out: &mut Outbox) {
        if self.leases.are_complete() {
            self.leases.request(&self.owners, 1, true, out);
        }
    }

    /// Takes the answer to [`request_trained`](Self::request_trained); `None` until it has arrived.
    pub fn take_trained(&mut self) -> Option<u64> {
        self.leases.take_trained()
    }

    /// Takes the lease that was asked for; `None` until it has arrived.
    pub fn take_lease(&mut self) -> Option<AcquiredLease> {
        self.leases.take()
    }

    /// All additions have been sent: the leases that led to them are complete once they are safe.
    fn close_leases(&mut self, out: &mut Outbox) {
        self.leases.close(self.changes.last_sequence());
        self.report_completed(out);
    }

    /// Reports the leases whose additions are safe, unless they were completed together with the additions.
    fn report_completed(&mut self, out: &mut Outbox) {
        let completed = self.leases.complete(self.changes.acknowledged_up_to());
        if let Some(last_lease) = completed.filter(|_| self.atomicity == Atomicity::Chunk) {
            self.send_transaction(self.clock(), vec![(0, Operation::Complete { last_lease })], out);
        }
    }

    /// The worker is about to leave, between two clocks. Returns whether it may: its additions are safe, and the owner of the lease table has
    /// safely recorded that its leases are complete.
    pub fn wind_down(&mut self, out: &mut Outbox) -> bool {
        self.push(out);
        self.changes.is_flushed() && self.leases.are_complete()
    }

    // Reading.

    /// Requests those of these rows that may not be read from the cache in this clock. They can be read once [`has_all`](Self::has_all)
    /// holds.
    pub fn fetch(&mut self, rows: &RowSet, out: &mut Outbox) -> BTreeSet<u64> {
        let now = (self.read_policy(), self.progress());
        let stale = self.cache.stale(rows, now, &self.owners.layout);
        let requests = self.owners.by_request(stale);
        requests.into_iter().map(|(chunk, rows)| self.request(chunk, Query::Rows(rows), out)).collect()
    }

    /// Requests these rows without the cache, with all additions of this worker so far: for [`take_rows`](Self::take_rows).
    pub fn pull(&mut self, rows: &RowSet, out: &mut Outbox) -> BTreeSet<u64> {
        // Owners get the additions before the request.
        self.push(out);
        let requests = self.owners.by_request(self.owners.layout.by_chunk(rows));
        requests.into_iter().map(|(chunk, rows)| self.request(chunk, Query::Pull(rows), out)).collect()
    }

    /// The rows of a [pull](Self::pull) that are not zero, once all of its requests are answered.
    pub fn take_rows(&mut self, requests: &BTreeSet<u64>) -> Rows {
        self.reads.take_rows(requests, &self.owners.layout)
    }

    /// Requests numbers computed from vectors of these chunks, with all additions of this worker so far: for [`Reads::take_numbers`].
    pub fn reduce(&mut self, chunks: Range<usize>, reduce: &Reduce, out: &mut Outbox) -> BTreeSet<u64> {
        self.push(out);
        chunks.map(|chunk| self.request(chunk, Query::Reduce(reduce.clone()), out)).collect()
    }

    /// Sends a request without rows, whose answer says that the clock has come.
    pub fn wait_for_clock(&mut self, out: &mut Outbox) -> u64 {
        self.request(0, Query::Rows(RowSet::default()), out)
    }

    /// Sends a request without rows, which is answered when all workers have come as far as this one.
    pub fn wait_for_all(&mut self, out: &mut Outbox) -> u64 {
        self.request_at(0, Query::Rows(RowSet::default()), self.progress(), out)
    }

    /// Sends a request without rows to each owner, whose answer says how far that owner knows the slowest worker to be.
    pub fn query_clocks(&mut self, out: &mut Outbox) -> BTreeSet<u64> {
        let chunks = (0..self.owners.layout.chunk_count()).rev();
        let first: BTreeMap<Rank, usize> = chunks.map(|chunk| (self.owners.of(chunk), chunk)).collect();
        first.into_values().map(|chunk| self.request(chunk, Query::Rows(RowSet::default()), out)).collect()
    }

    fn request(&mut self, chunk: usize, query: Query, out: &mut Outbox) -> u64 {
        let min_clock = self.read_policy().required_clock(self.progress());
        self.request_at(chunk, query, min_clock, out)
    }

    fn request_at(&mut self, chunk: usize, query: Query, min_clock: WorkerClock, out: &mut Outbox) -> u64 {
        let asked_at = self.progress();
        // To rows of additive tables the worker itself adds its own changes, and no rows have those of a table that is applied by clock. For
        // other reads, their owner needs them first.
        let table = self.owners.layout.table_of(chunk);
        let needs_none = table.is_additive() || table.apply_mode == ApplyMode::PerClock;
        let after = match &query {
            Query::Rows(_) if needs_none => 0,
            Query::Rows(rows) | Query::Pull(rows) => {
                let chunks = self.owners.layout.chunks_of(rows);
                chunks.map(|chunk| self.changes.queue.last_of(chunk)).max().unwrap_or(0)
            }
            Query::Reduce(_) => self.changes.queue.last_of(chunk),
        };
        let read = PendingRead { whole: 0, chunk, query, min_clock, asked_at, after };
        self.reads.begin(&self.owners, read, out)
    }

    /// The progress that all workers must make before the next unanswered reads are answered, and the owners that answer these. `None` if
    /// all reads are answered.
    #[must_use]
    pub fn awaited(&self) -> Option<(WorkerClock, BTreeSet<Rank>)> {
        self.reads.awaited(&self.owners)
    }

    /// Whether all of these requests are answered.
    #[must_use]
    pub fn has_all(&self, requests: &BTreeSet<u64>) -> bool {
        self.reads.has_all(requests)
    }

    /// Reads rows from the cache, with this worker's additions; `None` if some are not in the cache.
    #[must_use]
    pub fn read(&self, rows: &RowSet) -> Option<Vec<f32>> {
        let layout = &self.owners.layout;
        let (mut values, found) = self.cache.read(rows, layout)?;
        self.changes.for_each_addition(layout, |row, sequence, added| {
            let Ok(at) = found.binary_search_by_key(&row, |found| found.row) else { return };
            if found[at].sequence < sequence {
                let values = &mut values[found[at].place..][..added.len()];
                values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
            }
        });
        Some(values)
    }

    /// Removes rows that are too old to be read again. Not to be called while the program waits for rows: some of them may be here already.
    pub fn evict_stale(&mut self) {
        self.cache.evict_stale(self.read_policy(), self.progress(), &self.owners.layout);
    }

    // Responses.

    /// An owner has sent a response.
    ///
    /// # Errors
    /// The response is one that no correct owner sends.
    pub fn on_response(
        &mut self,
        from: Rank,
        response: Response,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        match response {
            Response::Acknowledged { up_to } => {
                let Self { owners, cache, changes, .. } = self;
                let fold = |entry: &QueuedChange| {
                    if owners.layout.table_of(entry.change.chunk as usize).is_additive() {
                        cache.fold(entry, &owners.layout);
                    }
                };
                changes.queue.acknowledge(from, up_to, owners, fold, out);
                self.report_completed(out);
            }
            Response::ReplayAcknowledged { .. } => return Err(TableError::Unrequested),
            Response::Rows { request, clock, applied, zero, values } => {
                self.on_rows(from, clock, RowsResponse { number: request, applied, zero, values }, out)?;
            }
            Response::Reduced { request, clock, applied, values } => {
                let accepted =
                    self.reads.accept_numbers(&self.owners, (from, request, applied), &values, out)?;
                if let Some(read) = accepted {
                    self.observe_clock(clock, read.asked_at);
                    self.reads.keep_numbers(request, read, values);
                }
            }
            Response::Leased { .. } | Response::Superseded { .. } if self.owners.of(0) != from => {
                return Err(TableError::NotOwned(0));
            }
            Response::Superseded { lease_number } => self.leases.supersede(lease_number),
            Response::Leased { lease_number, lease, is_kept, trained } => {
                self.leases.receive(AcquiredLease { number: lease_number, lease, is_kept, trained });
            }
        }
        Ok(())
    }

    /// Rows have arrived. They are as of when all workers had completed `clock` clocks.
    fn on_rows(
        &mut self,
        from: Rank,
        clock: WorkerClock,
        response: RowsResponse,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let accepted = self.reads.accept_rows(&self.owners, from, response, out)?;
        let Some(arrived) = accepted else { return Ok(()) };
        let clock = self.observe_clock(clock, arrived.read.asked_at);
        match &arrived.read.query {
            Query::Rows(rows) => self.store_rows(rows, clock, &arrived),
            _ => self.reads.keep_rows(arrived),
        }
        Ok(())
    }

    /// Stores the rows of a response in the cache.
    fn store_rows(&mut self, rows: &RowSet, clock: WorkerClock, ReadRows { read, response, .. }: &ReadRows) {
        let (layout, asked_at) = (&self.owners.layout, read.asked_at);
        let mut applied = response.applied.iter().copied();
        let mut zero = response.zero.iter().peekable();
        let mut values = response.values.chunks_exact(layout.width(read.chunk));
        let (mut last, mut sequence) = (None, 0);
        for (index, rows) in layout.by_chunk(rows) {
            if last.replace(index) != Some(index) {
                sequence = applied.next().expect("each chunk has a number");
            }
            let (chunk, age) = (self.cache.chunk_mut(index, layout), RowAge { clock, asked_at, sequence });
            for row in rows {
                let is_zero = zero.next_if_eq(&row).is_some();
                let values = if is_zero { &[] } else { values.next().expect("each row has values") };
                chunk.insert(row, age, values);
            }
        }
    }
}

#[cfg(test)]
mod tests;
