//! Reads: the requests of a worker to owners, from when they are sent until their results are taken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use peergrad_protocol::Rank;
use peergrad_protocol::limits::WAITING_REQUESTS_MAX;
use peergrad_protocol::table::{Reduce, Request, RowSet, Rows, WorkerClock};

use super::Owners;
use crate::table::TableError;
use crate::table::server::Outbox;

/// The reads of a worker.
#[derive(Default)]
pub struct Reads {
    /// The reads that are not answered, by number.
    pending: BTreeMap<u64, PendingRead>,
    /// The number of the last read.
    count: u64,
    /// For each owner, the reads on their way and those that follow.
    queues: BTreeMap<Rank, RequestQueue>,
    /// The results that are not cached, by read, with the reads.
    answers: BTreeMap<u64, (PendingRead, ReadResult)>,
    /// For each chunk on which this worker had an operation carried out, the number of the last one.
    operated: BTreeMap<usize, u64>,
    /// This worker's changes up to this number were sent to their owners.
    released: u64,
    /// The numbers of the reads that are to be sent after changes which are not sent yet, each with the number of the last of these changes.
    held: Vec<(u64, u64)>,
}

/// A read that is not answered yet.
pub(super) struct PendingRead {
    /// The chunk that is read.
    pub(super) chunk: usize,
    /// What is read of the chunk.
    pub(super) query: Query,
    /// The progress that all workers must have made before the owner answers.
    pub(super) min_clock: WorkerClock,
    /// The worker's own progress when it asked.
    pub(super) asked_at: WorkerClock,
    /// The number of the worker's last change that the answer has to include.
    pub(super) after: u64,
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
struct RequestQueue {
    /// How many reads are on their way.
    in_flight: usize,
    /// The numbers of the reads that are yet to be sent.
    later: VecDeque<u64>,
}

/// The most reads from one owner that are on their way at once; the owner would accept twice as many.
const IN_FLIGHT_MAX: usize = WAITING_REQUESTS_MAX / 2;

/// The result of a read that is not cached and not taken yet.
enum ReadResult {
    Rows(Rows),
    Numbers(Vec<f64>),
}

/// Rows of a response, which were checked.
pub(super) struct ReadRows {
    /// The read that the response answers.
    pub(super) read: PendingRead,
    /// The rows that are not zero.
    pub(super) rows: Rows,
}

impl Reads {
    /// Whether all of these reads are answered.
    #[must_use]
    pub fn has_all(&self, requests: &BTreeSet<u64>) -> bool {
        requests.iter().all(|request| self.is_answered(*request))
    }

    /// Whether this read is answered.
    pub(super) fn is_answered(&self, request: u64) -> bool {
        !self.pending.contains_key(&request)
    }

    /// The progress that all workers must make before the next reads that were sent are answered, and the owners that answer these. `None` if
    /// all of them are answered.
    pub(super) fn awaited(&self, owners: &Owners) -> Option<(WorkerClock, BTreeSet<Rank>)> {
        let held: BTreeSet<u64> = self.held.iter().map(|(_, number)| *number).collect();
        let sent = || self.pending.iter().filter(|(number, _)| !held.contains(number)).map(|(_, read)| read);
        let least = sent().map(|read| read.min_clock).min()?;
        let next = sent().filter(|read| read.min_clock == least);
        Some((least, next.map(|read| owners.of(read.chunk)).collect()))
    }

    /// The rows of a [pull](super::TableWorker::pull) that are not zero, once all reads are answered.
    pub fn take_rows(&mut self, requests: &BTreeSet<u64>) -> Rows {
        let (mut ranges, mut values) = (Vec::new(), Vec::new());
        // Reads are numbered in the order of their rows.
        for request in requests {
            if let Some((_, ReadResult::Rows(rows))) = self.answers.remove(request) {
                ranges.extend(rows.indices.ranges());
                values.extend(rows.values);
            }
        }
        Rows { indices: ranges.into_iter().collect(), values }
    }

    /// The result of a [`reduce`](super::TableWorker::reduce), once all reads are answered.
    pub fn take_numbers(&mut self, requests: &BTreeSet<u64>) -> Vec<f64> {
        let mut sums = Vec::new();
        for request in requests {
            if let Some((_, ReadResult::Numbers(numbers))) = self.answers.remove(request) {
                sums.resize(numbers.len(), 0.0);
                sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            }
        }
        sums
    }

    /// Begins a read. Returns its number.
    pub(super) fn begin(&mut self, owners: &Owners, read: PendingRead, out: &mut Outbox) -> u64 {
        self.count += 1;
        self.pending.insert(self.count, read);
        self.send_or_hold(owners, self.count, out);
        self.count
    }

    /// This worker's changes up to this number were sent to their owners: sends the reads that are to follow them.
    pub(super) fn release(&mut self, owners: &Owners, released: u64, out: &mut Outbox) {
        self.released = released;
        let (ready, held) =
            std::mem::take(&mut self.held).into_iter().partition(|(after, _)| *after <= released);
        self.held = held;
        let ready: Vec<(u64, u64)> = ready;
        ready.into_iter().for_each(|(_, number)| self.send_in_turn(owners, number, out));
    }

    /// Sends a read, once the changes that its answer has to include are on their way.
    fn send_or_hold(&mut self, owners: &Owners, number: u64, out: &mut Outbox) {
        let Some(read) = self.pending.get(&number) else { return };
        let after = self.operated.get(&read.chunk).copied().unwrap_or(0).max(read.after);
        if after > self.released {
            self.held.push((after, number));
        } else {
            self.send_in_turn(owners, number, out);
        }
    }

    /// Sends a read, or queues it if enough reads from its owner are on their way.
    fn send_in_turn(&mut self, owners: &Owners, number: u64, out: &mut Outbox) {
        let Some(read) = self.pending.get(&number) else { return };
        let queue = self.queues.entry(owners.of(read.chunk)).or_default();
        if queue.in_flight == IN_FLIGHT_MAX {
            queue.later.push_back(number);
        } else {
            queue.in_flight += 1;
            owners.send(read.chunk, read.to_request(number), out);
        }
    }

    /// In a new view, in which changes up to the number `released` were sent to their owners: sends all unanswered reads again.
    pub(super) fn resend(&mut self, owners: &Owners, released: u64, out: &mut Outbox) {
        self.queues.clear();
        self.held.clear();
        self.released = released;
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.send_or_hold(owners, number, out));
    }

    // Operations of owners.

    /// A chunk restarts: nothing is known of it.
    pub(super) fn forget_operation(&mut self, chunk: usize) {
        self.operated.remove(&chunk);
    }

    /// The rows of a chunk were changed by the change of this number, in a way that only its owner knows.
    pub(super) fn note_operation(&mut self, chunk: usize, sequence: u64) {
        self.operated.insert(chunk, sequence);
    }

    /// Repeats the reads from these chunks whose results were not taken yet.
    pub(super) fn repeat_answered(&mut self, owners: &Owners, chunks: &BTreeSet<usize>, out: &mut Outbox) {
        let is_of = |(_, (read, _)): &(&u64, &(PendingRead, ReadResult))| chunks.contains(&read.chunk);
        let numbers: Vec<u64> = self.answers.iter().filter(is_of).map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some((read, _)) = self.answers.remove(&number) {
                self.pending.insert(number, read);
                self.send_or_hold(owners, number, out);
            }
        }
    }

    // Responses.

    /// Rows have arrived, which include this worker's changes up to `applied`. Returns them; `None` if nothing waits for them, or they are
    /// outdated and requested again.
    pub(super) fn accept_rows(
        &mut self,
        owners: &Owners,
        (from, number, applied): (Rank, u64, u64),
        zero: &RowSet,
        values: Vec<f32>,
        out: &mut Outbox,
    ) -> Result<Option<ReadRows>, TableError> {
        let Some(read) = self.pending.get(&number) else { return Ok(None) };
        let (chunk, width) = (read.chunk, owners.layout.width(read.chunk));
        if owners.of(chunk) != from {
            return Err(TableError::NotOwned(chunk));
        }
        let (Query::Rows(rows) | Query::Pull(rows)) = &read.query else {
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
        let read = self.take_answered(owners, (number, applied), out);
        Ok(read.map(|read| ReadRows { read, rows: Rows { indices, values } }))
    }

    /// Numbers for vectors have arrived, which include this worker's changes up to `applied`. Returns the read that they answer; `None` if
    /// nothing waits for them, or they are outdated and requested again.
    pub(super) fn accept_numbers(
        &mut self,
        owners: &Owners,
        (from, number, applied): (Rank, u64, u64),
        values: &[f64],
        out: &mut Outbox,
    ) -> Result<Option<PendingRead>, TableError> {
        let Some(read) = self.pending.get(&number) else { return Ok(None) };
        if owners.of(read.chunk) != from {
            return Err(TableError::NotOwned(read.chunk));
        }
        let expected = if let Query::Reduce(reduce) = &read.query { Some(reduce.count()) } else { None };
        if expected != Some(values.len()) || values.iter().any(|value| value.is_nan()) {
            return Err(TableError::Unrequested);
        }
        Ok(self.take_answered(owners, (number, applied), out))
    }

    /// Takes out an answered read, and sends the next one to its owner. A response from before this worker's last operation on the
    /// chunk is requested again: of several chunks, all must be read after the change.
    fn take_answered(
        &mut self,
        owners: &Owners,
        (number, applied): (u64, u64),
        out: &mut Outbox,
    ) -> Option<PendingRead> {
        let chunk = self.pending.get(&number)?.chunk;
        if let Some(queue) = self.queues.get_mut(&owners.of(chunk)) {
            queue.in_flight = queue.in_flight.saturating_sub(1);
        }
        let is_outdated = self.operated.get(&chunk).is_some_and(|operated| applied < *operated);
        let read = if is_outdated { None } else { self.pending.remove(&number) };
        if is_outdated {
            self.send_or_hold(owners, number, out);
        }
        let next = self.queues.get_mut(&owners.of(chunk)).and_then(|queue| queue.later.pop_front());
        if let Some(next) = next {
            self.send_in_turn(owners, next, out);
        }
        read
    }

    /// Keeps rows until they are taken.
    pub(super) fn keep_rows(&mut self, number: u64, ReadRows { read, rows }: ReadRows) {
        self.answers.insert(number, (read, ReadResult::Rows(rows)));
    }

    /// Keeps numbers until they are taken.
    pub(super) fn keep_numbers(&mut self, number: u64, read: PendingRead, values: Vec<f64>) {
        self.answers.insert(number, (read, ReadResult::Numbers(values)));
    }
}

impl PendingRead {
    fn to_request(&self, request: u64) -> Request {
        let (min_clock, chunk) = (self.min_clock, self.chunk as u32);
        match &self.query {
            Query::Rows(rows) | Query::Pull(rows) => {
                Request::Get { request, min_clock, chunk, rows: rows.clone() }
            }
            Query::Reduce(reduce) => Request::Reduce { request, min_clock, chunk, reduce: reduce.clone() },
        }
    }
}
