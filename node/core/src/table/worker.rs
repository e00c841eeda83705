//! The worker: a member's part as worker. What it has added and not heard of, what it has read, and when it may go on.
//!
//! # How it works
//! ```text
//! clock c:  get --> rows of clock c - s at least, from the cache or from their owners
//!           add --> put together by row until they are pushed
//!           end --> the tick: what was pushed comes before it
//! ```
//! A row in the cache has the clock that all workers had completed when it was read: it may be used at clock c if that is no less than
//! c - s, s being the *staleness* (0: BSP). Then it has in it all that was added in the clocks before c - s, and perhaps more; and what
//! this worker has added itself it always sees, where owners add it as it comes: what another rule makes of it only the owner knows.
//!
//! # Coming late
//! A worker that comes to a run that is under way has no clock until it has read something: then it is where the slowest was.

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
    /// Clocks that are complete here; `None`: it is new.
    clock: Option<u64>,
    /// The newest clock that all workers have completed, as far as it has heard.
    completed_by_all: u64,
    sequence: u64,
    /// What was added and not pushed, by row.
    coalesced: BTreeMap<Row, Vec<f32>>,
    /// What was sent and is not known to be safe, in order.
    log: VecDeque<Entry>,
    /// Bytes of it.
    log_bytes: usize,
    cache: BTreeMap<Row, CachedRow>,
    requests: BTreeMap<u64, PendingRead>,
    request_count: u64,
    /// By owner: queries that are under way, and those that come after them.
    queues: BTreeMap<Rank, RequestQueue>,
    /// By request: what does not go into the cache, and what was asked.
    answers: BTreeMap<u64, (PendingRead, ReadResult)>,
    /// By chunk of which columns were changed: under which number the last time.
    mapped: BTreeMap<usize, u64>,
    leases: HeldLeases,
    /// What it has asked last of all, if it leaves.
    final_request: Option<u64>,
}

/// Something that was changed: its part in one chunk.
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
    /// One that begins with the run, at clock 0, or `is_new` to one that is under way.
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

    /// A view begins: says again what may be lost, then the clock, then what it waits for.
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

    /// A chunk begins anew: what is known of it is not so any more.
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

    /// Clocks that are complete here.
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

    /// Samples up to this number are done: what came of them would outlive this worker.
    #[must_use]
    pub fn completed_leases(&self) -> u64 {
        self.leases.completed
    }

    /// Whether no worker ever waits for another one's clock.
    #[must_use]
    pub fn never_waits(&self) -> bool {
        self.read_schedule.never_waits()
    }

    /// Whether what has come for it is that there are no samples at present.
    #[must_use]
    pub fn has_empty_lease(&self) -> bool {
        self.leases.next.as_ref().is_some_and(|(_, lease, is_over)| lease.is_empty() && !is_over)
    }

    fn read_policy(&self) -> ReadPolicy {
        self.read_schedule.at(self.clock())
    }

    /// Whether everything that was added is safe.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.log.is_empty() && self.coalesced.is_empty()
    }

    /// The number of what was sent last.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Everything up to this number that was sent is safe.
    #[must_use]
    pub fn acknowledged_up_to(&self) -> u64 {
        self.log.front().map_or(self.sequence, |entry| entry.sequence - 1)
    }

    /// Whether so much is not known to be safe that no more is to be added at present.
    #[must_use]
    pub fn has_much_unacknowledged(&self) -> bool {
        self.log_bytes > UNACKNOWLEDGED_BYTES_MAX
    }

    /// What was added to a number of a row and is not known to be safe.
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
        // One overflow must not ruin what all share.
        if sum.iter().zip(added).all(|(sum, added)| (sum + added).is_finite()) {
            sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
        }
    }

    /// Sends what was added.
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

    /// Has owners do something to columns of these chunks, after all that was added so far.
    pub fn map(&mut self, chunks: Range<usize>, map: Map, out: &mut Outbox) {
        self.push(out);
        let clock = self.clock();
        for chunk in chunks.clone() {
            self.sequence += 1;
            self.send(Entry { sequence: self.sequence, clock, chunk, change: Change::Map(map) }, out);
            // Only the owner knows what has become of its rows.
            self.invalidate(chunk);
            self.mapped.insert(chunk, self.sequence);
        }
        self.repeat_answered(&chunks, out);
        self.close_leases();
    }

    /// The clock is over.
    pub fn tick(&mut self, out: &mut Outbox) {
        self.clock = Some((self.clock() + 1).min(STEPS_MAX));
        self.leases.current = None;
        if self.coalesced.is_empty() {
            self.close_leases();
            self.report_completed(out);
        }
        self.send_clock(out);
    }

    /// The worker has ended: nobody waits for it any more, and samples that it has not computed are for others. What it still reads is
    /// of when all have ended.
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

    /// A clock begins: a worker that is behind all others is where the last of them is.
    pub fn catch_up(&mut self, out: &mut Outbox) {
        let is_behind = self.clock.is_none_or(|clock| clock < self.completed_by_all);
        if is_behind && !self.has_finished() {
            self.clock = Some(self.completed_by_all);
            self.send_clock(out);
        }
    }

    /// An owner tells how far the slowest worker has come. Returns the clock that counts: if all others have ended, that is where this
    /// worker was when it asked.
    fn observe_clock(&mut self, clock: WorkerClock, asked_at: WorkerClock) -> WorkerClock {
        let clock = if clock == WorkerClock::Ended && !self.has_finished() { asked_at } else { clock };
        if let WorkerClock::At(clock) = clock {
            self.completed_by_all = self.completed_by_all.max(clock);
        }
        clock
    }

    /// An owner answers.
    ///
    /// # Errors
    /// No correct owner says that.
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

    /// About as many bytes as it takes in memory.
    fn bytes(&self) -> usize {
        let rows = match &self.change {
            Change::Add(rows) => rows.bytes(),
            Change::Map(_) => 0,
        };
        size_of::<Self>() + rows
    }

    /// What was added to which rows.
    fn rows<'a>(&'a self, layout: &TableLayout) -> impl Iterator<Item = (Row, &'a [f32])> {
        let rows = match &self.change {
            Change::Add(rows) => Some(rows),
            Change::Map(_) => None,
        };
        let width = layout.width(self.chunk);
        rows.into_iter().flat_map(move |rows| rows.indices.iter().zip(rows.values.chunks_exact(width)))
    }

    /// It is forgotten: a cached row that was read before it keeps it.
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
