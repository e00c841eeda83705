//! Reads: what a worker requests from owners, what it caches, and how old that may be.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{PER_CLOCK_STALENESS_MAX, WAITING_REQUESTS_MAX};
use peergrad_protocol::table::{Reduce, Request, Row, RowSet, Rows, WorkerClock};

use super::{ReadPolicy, TableWorker};
use crate::table::server::Outbox;
use crate::table::{ApplyMode, TableError};

pub(super) struct CachedRow {
    /// How far the slowest worker had come when the row was read.
    pub(super) clock: WorkerClock,
    /// How far this worker had come when it sent the request.
    pub(super) asked_at: WorkerClock,
    /// The row includes this worker's changes up to this number.
    pub(super) sequence: u64,
    /// The row's values; empty if all of them are zero.
    pub(super) values: Vec<f32>,
}

/// A read that is not answered yet.
pub(super) struct PendingRead {
    pub(super) chunk: usize,
    pub(super) query: Query,
    pub(super) min_clock: WorkerClock,
    pub(super) asked_at: WorkerClock,
}

pub(super) enum Query {
    /// Rows for the cache.
    Rows(RowSet),
    /// Rows that are not cached.
    Pull(RowSet),
    Reduce(Reduce),
}

/// The reads from one owner.
#[derive(Default)]
pub(super) struct RequestQueue {
    in_flight: usize,
    /// The numbers of the reads that are yet to be sent.
    later: VecDeque<u64>,
}

/// The most reads from one owner that are on their way at once; the owner would accept twice as many.
const IN_FLIGHT_MAX: usize = WAITING_REQUESTS_MAX / 2;

/// The result of a read that is not cached and not taken yet.
pub(super) enum ReadResult {
    Rows(Rows),
    Value(f64),
}

impl TableWorker {
    /// Requests those of these rows that may not be read from the cache in this clock. They can be read once [`has_all`](Self::has_all)
    /// holds.
    pub fn fetch(&mut self, rows: &RowSet, out: &mut Outbox) -> BTreeSet<u64> {
        let missing: RowSet = rows.iter().filter(|row| !self.is_fresh(*row)).collect();
        let parts = self.layout.by_chunk(&missing);
        parts.into_iter().map(|(chunk, rows)| self.request(chunk, Query::Rows(rows), out)).collect()
    }

    /// Requests these rows without the cache, with all additions of this worker so far: for [`take_rows`](Self::take_rows).
    pub fn pull(&mut self, rows: &RowSet, out: &mut Outbox) -> BTreeSet<u64> {
        // Owners get the additions before the request.
        self.push(out);
        let parts = self.layout.by_chunk(rows);
        parts.into_iter().map(|(chunk, rows)| self.request(chunk, Query::Pull(rows), out)).collect()
    }

    /// Requests a number computed from columns of these chunks, with all additions of this worker so far: for
    /// [`take_value`](Self::take_value).
    pub fn reduce(&mut self, chunks: Range<usize>, reduce: Reduce, out: &mut Outbox) -> BTreeSet<u64> {
        self.push(out);
        chunks.map(|chunk| self.request(chunk, Query::Reduce(reduce), out)).collect()
    }

    /// Sends a request without rows, whose answer says that the clock has come.
    pub fn wait_for_clock(&mut self, out: &mut Outbox) -> u64 {
        self.request(0, Query::Rows(RowSet::default()), out)
    }

    /// Sends a request without rows to each owner, whose answer says how far that owner knows the slowest worker to be.
    pub fn query_clocks(&mut self, out: &mut Outbox) -> BTreeSet<u64> {
        let first: BTreeMap<Rank, usize> = (0..self.layout.chunk_count())
            .rev()
            .map(|chunk| (self.replica_map.owner(chunk), chunk))
            .collect();
        first.into_values().map(|chunk| self.request(chunk, Query::Rows(RowSet::default()), out)).collect()
    }

    pub(super) fn request(&mut self, chunk: usize, query: Query, out: &mut Outbox) -> u64 {
        let min_clock = self.read_policy().required_clock(self.progress());
        self.request_of(chunk, query, min_clock, out)
    }

    pub(super) fn request_of(
        &mut self,
        chunk: usize,
        query: Query,
        min_clock: WorkerClock,
        out: &mut Outbox,
    ) -> u64 {
        self.request_count += 1;
        let (number, asked_at) = (self.request_count, self.progress());
        self.requests.insert(number, PendingRead { chunk, query, min_clock, asked_at });
        self.send_in_turn(number, out);
        number
    }

    /// Sends a request, or queues it if enough requests to its owner are on their way.
    fn send_in_turn(&mut self, number: u64, out: &mut Outbox) {
        let Some(request) = self.requests.get(&number) else { return };
        let queue = self.queues.entry(self.replica_map.owner(request.chunk)).or_default();
        if queue.in_flight == IN_FLIGHT_MAX {
            queue.later.push_back(number);
        } else {
            queue.in_flight += 1;
            let message = request.to_request(number);
            self.send_request(request.chunk, message, out);
        }
    }

    /// A read of this chunk is answered: sends the next one to its owner.
    pub(super) fn on_answered(&mut self, chunk: usize, out: &mut Outbox) {
        let Some(queue) = self.queues.get_mut(&self.replica_map.owner(chunk)) else { return };
        queue.in_flight = queue.in_flight.saturating_sub(1);
        if let Some(number) = queue.later.pop_front() {
            self.send_in_turn(number, out);
        }
    }

    /// In a new view: sends all unanswered requests again.
    pub(super) fn resend_requests(&mut self, out: &mut Outbox) {
        self.queues.clear();
        let numbers: Vec<u64> = self.requests.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.send_in_turn(number, out));
    }

    /// Sends a request without rows, which is answered when all workers have come as far as this one.
    pub fn wait_for_all(&mut self, out: &mut Outbox) -> u64 {
        self.request_of(0, Query::Rows(RowSet::default()), self.progress(), out)
    }

    /// Whether this worker may be further ahead of the slowest, as far as it knows, than owners can keep additions that are applied by
    /// clock.
    #[must_use]
    pub fn is_far_ahead(&self) -> bool {
        self.layout.tables().any(|table| table.apply_mode == ApplyMode::PerClock)
            && self.clock() > self.completed_by_all.saturating_add(PER_CLOCK_STALENESS_MAX)
    }

    /// The rows of a [pull](Self::pull) that are not zero, once all requests are answered.
    pub fn take_rows(&mut self, requests: &BTreeSet<u64>) -> Rows {
        let (mut ranges, mut values) = (Vec::new(), Vec::new());
        // Requests are numbered in the order of their rows.
        for request in requests {
            if let Some((_, ReadResult::Rows(rows))) = self.answers.remove(request) {
                ranges.extend(rows.indices.ranges());
                values.extend(rows.values);
            }
        }
        Rows { indices: ranges.into_iter().collect(), values }
    }

    /// The result of a [`reduce`](Self::reduce), once all requests are answered.
    pub fn take_value(&mut self, requests: &BTreeSet<u64>) -> f64 {
        let numbers = requests.iter().filter_map(|request| match self.answers.remove(request) {
            Some((_, ReadResult::Value(number))) => Some(number),
            _ => None,
        });
        numbers.sum()
    }

    /// Removes rows that are too old to be read again. Not to be called while the program waits for rows: some of them may be here already.
    pub fn evict_stale(&mut self) {
        let (read_policy, clock) = (self.read_policy(), self.progress());
        self.cache.retain(|_, cached| cached.is_fresh(read_policy, clock));
    }

    /// Whether all of these requests are answered.
    #[must_use]
    pub fn has_all(&self, requests: &BTreeSet<u64>) -> bool {
        requests.iter().all(|request| !self.requests.contains_key(request))
    }

    pub(super) fn is_fresh(&self, row: Row) -> bool {
        self.cache.get(&row).is_some_and(|cached| cached.is_fresh(self.read_policy(), self.progress()))
    }

    /// Reads rows from the cache, with this worker's additions; `None` if some are not in the cache.
    #[must_use]
    pub fn read(&self, rows: &RowSet) -> Option<Vec<f32>> {
        let mut values = Vec::new();
        // Each row's index, the last change of this worker that its values include, and the place of the values.
        let mut found = Vec::with_capacity(rows.len());
        for row in rows.iter() {
            let cached = self.cache.get(&row)?;
            found.push((row, cached.sequence, values.len()));
            values.extend_from_slice(&cached.values);
            if cached.values.is_empty() {
                values.resize(values.len() + self.layout.width(self.layout.chunk_of(row)), 0.0);
            }
        }
        let mut add = |row: Row, sequence: u64, added: &[f32]| {
            let Ok(at) = found.binary_search_by_key(&row, |(row, ..)| *row) else { return };
            let (_, known, place) = found[at];
            if known < sequence {
                let values = &mut values[place..][..added.len()];
                values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
            }
        };
        for entry in self.log.iter().filter(|entry| self.is_additive(entry.chunk)) {
            entry.rows(&self.layout).for_each(|(row, added)| add(row, entry.sequence, added));
        }
        let coalesced =
            self.coalesced.iter().filter(|(row, _)| self.is_additive(self.layout.chunk_of(**row)));
        coalesced.for_each(|(row, added)| add(*row, u64::MAX, added));
        Some(values)
    }

    /// Whether the chunk's owner adds additions when they arrive, so that this worker can apply its own ones before.
    pub(super) fn is_additive(&self, chunk: usize) -> bool {
        self.layout.table_of(chunk).is_additive()
    }
}

/// Responses of owners.
impl TableWorker {
    /// Rows have arrived. They are as of when all workers had completed `clock` clocks, and include this worker's changes up to `applied`.
    pub(super) fn on_rows(
        &mut self,
        from: Rank,
        number: u64,
        (clock, applied): (WorkerClock, u64),
        zero: &RowSet,
        values: Vec<f32>,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let Some(request) = self.requests.get(&number) else { return Ok(()) };
        let (chunk, width) = (request.chunk, self.layout.width(request.chunk));
        if self.replica_map.owner(chunk) != from {
            return Err(TableError::NotOwned(chunk));
        }
        let (Query::Rows(rows) | Query::Pull(rows)) = &request.query else {
            return Err(TableError::Unrequested);
        };
        let indices = rows.without(zero).ok_or(TableError::Unrequested)?;
        let (found, expected) = (values.len(), indices.len() * width);
        if found != expected {
            return Err(TableError::Length { found, expected });
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(TableError::NotFinite(indices.iter().nth(at / width).unwrap_or_default()));
        }
        if self.is_outdated(chunk, applied) {
            self.send_request(chunk, request.to_request(number), out);
            return Ok(());
        }
        let Some(request) = self.requests.remove(&number) else { return Ok(()) };
        self.on_answered(chunk, out);
        let clock = self.observe_clock(clock, request.asked_at);
        match request.query {
            Query::Rows(_) => {
                let asked_at = request.asked_at;
                let cached = |values| CachedRow { clock, asked_at, sequence: applied, values };
                for (row, values) in indices.iter().zip(values.chunks_exact(width)) {
                    self.cache.insert(row, cached(values.to_vec()));
                }
                self.cache.extend(zero.iter().map(|row| (row, cached(Vec::new()))));
            }
            _ => _ = self.answers.insert(number, (request, ReadResult::Rows(Rows { indices, values }))),
        }
        Ok(())
    }

    /// The number for columns has arrived. It is as of when all workers had completed `clock` clocks, and includes this worker's changes up
    /// to `applied`.
    pub(super) fn on_reduced(
        &mut self,
        from: Rank,
        number: u64,
        (clock, applied): (WorkerClock, u64),
        value: f64,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let Some(request) = self.requests.get(&number) else { return Ok(()) };
        let chunk = request.chunk;
        if self.replica_map.owner(chunk) != from {
            return Err(TableError::NotOwned(chunk));
        }
        if !matches!(request.query, Query::Reduce(_)) || value.is_nan() {
            return Err(TableError::Unrequested);
        }
        if self.is_outdated(chunk, applied) {
            self.send_request(chunk, request.to_request(number), out);
            return Ok(());
        }
        let Some(request) = self.requests.remove(&number) else { return Ok(()) };
        self.on_answered(chunk, out);
        self.observe_clock(clock, request.asked_at);
        self.answers.insert(number, (request, ReadResult::Value(value)));
        Ok(())
    }

    /// Repeats the requests to these chunks whose results were not taken yet.
    pub(super) fn repeat_answered(&mut self, chunks: &Range<usize>, out: &mut Outbox) {
        let is_of = |(_, (request, _)): &(&u64, &(PendingRead, ReadResult))| chunks.contains(&request.chunk);
        let numbers: Vec<u64> = self.answers.iter().filter(is_of).map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some((request, _)) = self.answers.remove(&number) {
                self.requests.insert(number, request);
                self.send_in_turn(number, out);
            }
        }
    }

    /// Whether a response is from before this worker's last change of columns of the chunk: of several chunks, all must be read after it.
    fn is_outdated(&self, chunk: usize, applied: u64) -> bool {
        self.mapped.get(&chunk).is_some_and(|mapped| applied < *mapped)
    }
}

impl CachedRow {
    /// Whether a worker that has come to `clock` may use the row.
    pub(super) fn is_fresh(&self, read_policy: ReadPolicy, clock: WorkerClock) -> bool {
        match read_policy {
            ReadPolicy::Unbounded => self.asked_at == clock,
            ReadPolicy::Staleness(_) => self.clock >= read_policy.required_clock(clock),
        }
    }
}

impl PendingRead {
    pub(super) fn to_request(&self, request: u64) -> Request {
        let (min_clock, chunk) = (self.min_clock, self.chunk as u32);
        match &self.query {
            Query::Rows(rows) | Query::Pull(rows) => {
                Request::Get { request, min_clock, chunk, rows: rows.clone() }
            }
            Query::Reduce(reduce) => Request::Reduce { request, min_clock, chunk, reduce: *reduce },
        }
    }
}
