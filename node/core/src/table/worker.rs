//! The table worker: the part of a member that reads and adds. It stores unacknowledged additions and cached rows, and knows when it may go
//! on.
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

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{STEPS_MAX, UNACKNOWLEDGED_BYTES_MAX};
use peergrad_protocol::table::{Map, Request, Response, Row, RowSet, Rows, TableMessage, WorkerClock};

use super::server::{Outbox, ReplicaMap};
use super::{TableError, TableLayout};
pub use leases::AcquiredLease;
use leases::HeldLeases;
pub use read_policy::{ReadPolicy, ReadSchedule};
use reads::{CachedRow, PendingRead, Query, ReadResult, RequestQueue};

mod leases;
mod read_policy;
mod reads;

/// One worker.
pub struct TableWorker {
    layout: Arc<TableLayout>,
    read_schedule: ReadSchedule,
    replica_map: Arc<ReplicaMap>,
    /// The number of clocks that it has completed; `None` for a new worker.
    clock: Option<u64>,
    /// The number of clocks that all workers have completed, as far as it knows.
    completed_by_all: u64,
    sequence: u64,
    /// The additions that were not pushed yet, by row.
    coalesced: BTreeMap<Row, Vec<f32>>,
    /// The changes that were sent and not acknowledged, in order.
    log: VecDeque<Entry>,
    /// The bytes of `log`.
    log_bytes: usize,
    cache: BTreeMap<Row, CachedRow>,
    requests: BTreeMap<u64, PendingRead>,
    request_count: u64,
    /// For each owner, the reads on their way and those that follow.
    queues: BTreeMap<Rank, RequestQueue>,
    /// The results that are not cached, by request, with the requests.
    answers: BTreeMap<u64, (PendingRead, ReadResult)>,
    /// For each chunk whose columns this worker has changed, the number of its last change.
    mapped: BTreeMap<usize, u64>,
    leases: HeldLeases,
    /// The last request of a worker that leaves; `None` before it.
    final_request: Option<u64>,
}

/// One change of one chunk.
struct Entry {
    sequence: u64,
    clock: u64,
    chunk: usize,
    change: Change,
}

enum Change {
    Add(Rows),
    Map(Map),
}

impl TableWorker {
    /// A worker that starts with the run, at clock 0; with `is_new`, one that joins a run in progress.
    #[must_use]
    pub fn new(layout: Arc<TableLayout>, read_schedule: ReadSchedule, is_new: bool) -> Self {
        Self {
            layout,
            read_schedule,
            replica_map: Arc::default(),
            clock: (!is_new).then_some(0),
            completed_by_all: 0,
            sequence: 0,
            coalesced: BTreeMap::new(),
            log: VecDeque::new(),
            log_bytes: 0,
            cache: BTreeMap::new(),
            requests: BTreeMap::new(),
            request_count: 0,
            queues: BTreeMap::new(),
            answers: BTreeMap::new(),
            mapped: BTreeMap::new(),
            final_request: None,
            leases: HeldLeases::default(),
        }
    }

    /// A view begins: repeats the changes that may be lost, then sends the clock, then repeats its requests.
    pub fn enter(&mut self, replica_map: Arc<ReplicaMap>, out: &mut Outbox) {
        self.replica_map = replica_map;
        for entry in &self.log {
            self.send_request(entry.chunk, entry.to_request(), out);
        }
        self.send_clock(out);
        if self.leases.completed > 0 {
            self.send_request(0, Request::Complete { last_lease: self.leases.completed }, out);
        }
        self.return_leases(out);
        self.resend_requests(out);
        self.send_lease_request(out);
    }

    /// A chunk restarts, or its owner alone knows its rows: drops all that is cached of it.
    pub fn invalidate(&mut self, chunk: usize) {
        self.mapped.remove(&chunk);
        let rows: Vec<Row> = self.cache.range(self.layout.range(chunk)).map(|(row, _)| *row).collect();
        rows.iter().for_each(|row| _ = self.cache.remove(row));
    }

    fn send_request(&self, chunk: usize, request: Request, out: &mut Outbox) {
        out.push((self.replica_map.owner(chunk), TableMessage::Request(request)));
    }

    fn send_clock(&self, out: &mut Outbox) {
        let request = || {
            if self.is_new() { Request::NewWorker } else { Request::Tick { clock: self.progress() } }
        };
        out.extend(self.replica_map.ranks().map(|rank| (rank, TableMessage::Request(request()))));
    }

    /// The number of clocks that it has completed.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock.unwrap_or(0)
    }

    /// How far the worker has come.
    pub(super) fn progress(&self) -> WorkerClock {
        if self.has_finished() { WorkerClock::Ended } else { WorkerClock::At(self.clock()) }
    }

    /// Whether it has no clock yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.clock.is_none()
    }

    /// The leases up to this number are complete: their additions would survive the loss of this worker.
    #[must_use]
    pub fn completed_leases(&self) -> u64 {
        self.leases.completed
    }

    /// Whether no worker ever waits for another one's clock.
    #[must_use]
    pub fn never_waits(&self) -> bool {
        self.read_schedule.never_waits()
    }

    /// Whether the response that has arrived says that there are no samples at present.
    #[must_use]
    pub fn has_empty_lease(&self) -> bool {
        self.leases.next.as_ref().is_some_and(|(_, lease, is_over)| lease.is_empty() && !is_over)
    }

    fn read_policy(&self) -> ReadPolicy {
        self.read_schedule.at(self.clock())
    }

    /// Whether all additions are acknowledged.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.log.is_empty() && self.coalesced.is_empty()
    }

    /// The number of the last change that was sent.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// All changes up to this number are acknowledged.
    #[must_use]
    pub fn acknowledged_up_to(&self) -> u64 {
        self.log.front().map_or(self.sequence, |entry| entry.sequence - 1)
    }

    /// Whether so much is unacknowledged that the worker must not add more at present.
    #[must_use]
    pub fn has_much_unacknowledged(&self) -> bool {
        self.log_bytes > UNACKNOWLEDGED_BYTES_MAX
    }

    /// The unacknowledged additions to one number of a row.
    #[cfg(test)]
    pub(super) fn unacknowledged(&self, row: Row, number: usize) -> f32 {
        let in_entry = |entry: &Entry| {
            entry.rows(&self.layout).find(|(name, _)| *name == row).map_or(0.0, |(_, added)| added[number])
        };
        let sent: f32 = self.log.iter().map(in_entry).sum();
        sent + self.coalesced.get(&row).map_or(0.0, |added| added[number])
    }

    // Adding.

    /// Adds to a row.
    pub fn add(&mut self, row: Row, added: &[f32]) {
        let sum = self.coalesced.entry(row).or_insert_with(|| vec![0.0; added.len()]);
        // One overflow must not ruin the shared values.
        if sum.iter().zip(added).all(|(sum, added)| (sum + added).is_finite()) {
            sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
        }
    }

    /// Sends the additions that were not pushed yet.
    pub fn push(&mut self, out: &mut Outbox) {
        let clock = self.clock();
        let mut parts: BTreeMap<usize, (Vec<Row>, Vec<f32>)> = BTreeMap::new();
        for (row, added) in std::mem::take(&mut self.coalesced) {
            let (indices, values) = parts.entry(self.layout.chunk_of(row)).or_default();
            indices.push(row);
            values.extend_from_slice(&added);
        }
        for (chunk, (indices, values)) in parts {
            self.sequence += 1;
            let change = Change::Add(Rows { indices: indices.into_iter().collect(), values });
            self.send(Entry { sequence: self.sequence, clock, chunk, change }, out);
        }
        self.close_leases();
        self.report_completed(out);
    }

    fn send(&mut self, entry: Entry, out: &mut Outbox) {
        self.send_request(entry.chunk, entry.to_request(), out);
        self.log_bytes += entry.bytes();
        self.log.push_back(entry);
    }

    /// Has owners apply `map` to columns of these chunks, after all additions so far.
    pub fn map(&mut self, chunks: Range<usize>, map: Map, out: &mut Outbox) {
        self.push(out);
        let clock = self.clock();
        for chunk in chunks.clone() {
            self.sequence += 1;
            self.send(Entry { sequence: self.sequence, clock, chunk, change: Change::Map(map) }, out);
            // Only the owner knows the new rows.
            self.invalidate(chunk);
            self.mapped.insert(chunk, self.sequence);
        }
        self.repeat_answered(&chunks, out);
        self.close_leases();
    }

    /// Ends the clock.
    pub fn tick(&mut self, out: &mut Outbox) {
        self.clock = Some((self.clock() + 1).min(STEPS_MAX));
        self.leases.current = None;
        if self.coalesced.is_empty() {
            self.close_leases();
            self.report_completed(out);
        }
        self.send_clock(out);
    }

    /// The worker has ended: no other worker waits for it any more, and others compute the samples that it has not computed. Its later
    /// reads are answered when all workers have ended.
    pub fn finish(&mut self, out: &mut Outbox) {
        self.drop_leases();
        self.push(out);
        self.return_leases(out);
        self.clock.get_or_insert(0);
        self.read_schedule = ReadSchedule::constant(ReadPolicy::Staleness(0));
        self.send_clock(out);
    }

    /// Whether the worker has ended.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.leases.first_returned.is_some()
    }

    /// A clock begins. A worker that is behind all others takes the clock of the slowest of them.
    pub fn catch_up(&mut self, out: &mut Outbox) {
        let is_behind = self.clock.is_none_or(|clock| clock < self.completed_by_all);
        if is_behind && !self.has_finished() {
            self.clock = Some(self.completed_by_all);
            self.send_clock(out);
        }
    }

    /// An owner has sent how far the slowest worker has come. Returns the clock that counts: if all others have ended, the clock that this
    /// worker had when it sent the request.
    fn observe_clock(&mut self, clock: WorkerClock, asked_at: WorkerClock) -> WorkerClock {
        let clock = if clock == WorkerClock::Ended && !self.has_finished() { asked_at } else { clock };
        if let WorkerClock::At(clock) = clock {
            self.completed_by_all = self.completed_by_all.max(clock);
        }
        clock
    }

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
                let mut log = std::mem::take(&mut self.log);
                log.retain(|entry| {
                    let is_safe = entry.sequence <= up_to && self.replica_map.owner(entry.chunk) == from;
                    if is_safe {
                        self.log_bytes -= entry.bytes();
                    }
                    if is_safe && self.is_additive(entry.chunk) {
                        entry.fold_into(&mut self.cache, &self.layout);
                    }
                    !is_safe
                });
                self.log = log;
                self.report_completed(out);
            }
            Response::Rows { request, clock, applied, zero, values } => {
                self.on_rows(from, request, (clock, applied), &zero, values, out)?;
            }
            Response::Reduced { request, clock, applied, value } => {
                self.on_reduced(from, request, (clock, applied), value, out)?;
            }
            Response::Leased { .. } if self.replica_map.owner(0) != from => {
                return Err(TableError::NotOwned(0));
            }
            Response::Leased { lease_number, lease, is_over } => {
                if self.leases.requested.take_if(|(wanted, ..)| *wanted == lease_number).is_some() {
                    self.leases.next = Some((lease_number, lease, is_over));
                }
            }
        }
        Ok(())
    }
}

impl Entry {
    fn to_request(&self) -> Request {
        let Self { sequence, clock, ref change, .. } = *self;
        let chunk = self.chunk as u32;
        match change {
            Change::Add(rows) => Request::Add { sequence, clock, chunk, rows: rows.clone() },
            Change::Map(map) => Request::Map { sequence, chunk, map: *map },
        }
    }

    /// The approximate number of bytes that the entry takes in memory.
    fn bytes(&self) -> usize {
        let rows = match &self.change {
            Change::Add(rows) => rows.bytes(),
            Change::Map(_) => 0,
        };
        size_of::<Self>() + rows
    }

    /// The additions of the entry, by row.
    fn rows<'a>(&'a self, layout: &TableLayout) -> impl Iterator<Item = (Row, &'a [f32])> {
        let rows = match &self.change {
            Change::Add(rows) => Some(rows),
            Change::Map(_) => None,
        };
        let width = layout.width(self.chunk);
        rows.into_iter().flat_map(move |rows| rows.indices.iter().zip(rows.values.chunks_exact(width)))
    }

    /// The entry is acknowledged and leaves the log: cached rows from before it include it from now on.
    fn fold_into(&self, cache: &mut BTreeMap<Row, CachedRow>, layout: &TableLayout) {
        for (row, added) in self.rows(layout) {
            if let Some(cached) = cache.get_mut(&row).filter(|cached| cached.sequence < self.sequence) {
                cached.values.resize(added.len(), 0.0);
                cached.values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
                cached.sequence = self.sequence;
            }
        }
    }
}

#[cfg(test)]
mod tests;
