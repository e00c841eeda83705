//! Reads: the requests of a worker to owners, from when they are sent until their results are taken.
//!
//! A read is about chunks of one owner. If they have several owners in a later view, it is split: one part keeps its number, and the others
//! get new ones. For who waits for the read, all of them are one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::WAITING_REQUESTS_MAX;
use peergrad_protocol::table::{Reduce, Request, Row, RowSet, Rows, WorkerClock};

use super::Owners;
use crate::table::server::Outbox;
use crate::table::{TableError, TableLayout};

/// The reads of a worker.
#[derive(Default)]
pub struct Reads {
    /// The reads that are not answered, by number.
    pending: BTreeMap<u64, PendingRead>,
    /// The number of the last read.
    count: u64,
    /// For each read that was split, the numbers of the parts that have new ones.
    parts: BTreeMap<u64, Vec<u64>>,
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
    /// The number that the program waits for: the read's own, or that of the read that it is a part of.
    pub(super) whole: u64,
    /// A chunk whose owner is asked: the first one that is read, if any is.
    pub(super) chunk: usize,
    /// What is read.
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

/// A response with rows.
pub(super) struct RowsResponse {
    /// The number of the read.
    pub(super) number: u64,
    /// For each chunk of the rows, the last change of this worker that it includes.
    pub(super) applied: Vec<u64>,
    /// The rows that are zero.
    pub(super) zero: RowSet,
    /// The values of the others, one row after the other.
    pub(super) values: Vec<f32>,
}

/// A response with rows that fits its read.
pub(super) struct ReadRows {
    /// The read that it answers.
    pub(super) read: PendingRead,
    /// The rows that are not zero.
    pub(super) indices: RowSet,
    /// The response.
    pub(super) response: RowsResponse,
}

impl Reads {
    /// Whether all of these reads are answered.
    #[must_use]
    pub fn has_all(&self, requests: &BTreeSet<u64>) -> bool {
        requests.iter().all(|request| self.is_answered(*request))
    }

    /// Whether this read is answered.
    pub(super) fn is_answered(&self, request: u64) -> bool {
        let is_pending = |number: &u64| self.pending.contains_key(number);
        !is_pending(&request) && !self.parts.get(&request).is_some_and(|parts| parts.iter().any(is_pending))
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
    pub(super) fn take_rows(&mut self, requests: &BTreeSet<u64>, layout: &TableLayout) -> Rows {
        let mut read = Vec::new();
        for number in self.take_parts(requests) {
            if let Some((_, ReadResult::Rows(rows))) = self.answers.remove(&number) {
                read.push(rows);
            }
        }
        // The rows of different owners are between each other.
        let mut pieces: Vec<(Range<Row>, &[f32])> = Vec::new();
        for rows in &read {
            let mut rest = &rows.values[..];
            for range in rows.indices.ranges() {
                let width = layout.width(layout.chunk_of(range.start));
                let (values, after) = rest.split_at((range.end - range.start) as usize * width);
                pieces.push((range, values));
                rest = after;
            }
        }
        pieces.sort_unstable_by_key(|(range, _)| range.start);
        let mut values = Vec::with_capacity(pieces.iter().map(|(_, values)| values.len()).sum());
        pieces.iter().for_each(|(_, more)| values.extend_from_slice(more));
        Rows { indices: pieces.into_iter().map(|(range, _)| range).collect(), values }
    }

    /// The numbers of these reads, and of all parts that they were split into.
    fn take_parts(&mut self, requests: &BTreeSet<u64>) -> Vec<u64> {
        let parts_of = |number: &u64| self.parts.remove(number).unwrap_or_default();
        let parts: Vec<u64> = requests.iter().flat_map(parts_of).collect();
        requests.iter().copied().chain(parts).collect()
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
        self.pending.insert(self.count, PendingRead { whole: self.count, ..read });
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
        let operated = match self.operated.is_empty() {
            true => None,
            false => read.chunks(&owners.layout).filter_map(|chunk| self.operated.get(&chunk)).max(),
        };
        let after = read.after.max(operated.copied().unwrap_or(0));
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
        // Nobody may have taken the results of reads that were split before.
        let is_known = |number: &u64| self.pending.contains_key(number) || self.answers.contains_key(number);
        self.parts.retain(|number, parts| is_known(number) || parts.iter().any(is_known));
        for (number, read) in std::mem::take(&mut self.pending) {
            self.begin_again(owners, number, read, out);
        }
    }

    /// Sends a read again, to the present owners of its chunks.
    fn begin_again(&mut self, owners: &Owners, number: u64, read: PendingRead, out: &mut Outbox) {
        let (mut number, whole) = (number, read.whole);
        for (index, part) in read.by_owner(owners).into_iter().enumerate() {
            if index > 0 {
                self.count += 1;
                number = self.count;
                self.parts.entry(whole).or_default().push(number);
            }
            self.pending.insert(number, part);
            self.send_or_hold(owners, number, out);
        }
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
        let is_of = |(_, (read, _)): &(&u64, &(PendingRead, ReadResult))| {
            read.chunks(&owners.layout).any(|chunk| chunks.contains(&chunk))
        };
        let numbers: Vec<u64> = self.answers.iter().filter(is_of).map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some((read, _)) = self.answers.remove(&number) {
                self.begin_again(owners, number, read, out);
            }
        }
    }

    // Responses.

    /// Rows have arrived. Returns them with the read that they answer; `None` if nothing waits for them, or they are outdated and requested
    /// again.
    pub(super) fn accept_rows(
        &mut self,
        owners: &Owners,
        from: Rank,
        response: RowsResponse,
        out: &mut Outbox,
    ) -> Result<Option<ReadRows>, TableError> {
        let RowsResponse { number, applied, zero, values } = &response;
        let Some(read) = self.pending.get(number) else { return Ok(None) };
        if owners.of(read.chunk) != from {
            return Err(TableError::NotOwned(read.chunk));
        }
        let (Query::Rows(rows) | Query::Pull(rows)) = &read.query else {
            return Err(TableError::Unrequested);
        };
        let indices = rows.without(zero).ok_or(TableError::Unrequested)?;
        let width = owners.layout.width(read.chunk);
        let (found, expected) = (values.len(), indices.len() * width);
        if found != expected {
            return Err(TableError::Length { found, expected });
        }
        if !are_finite(values) {
            let at = values.iter().position(|value| !value.is_finite()).unwrap_or_default();
            return Err(TableError::NotFinite(indices.iter().nth(at / width).unwrap_or_default()));
        }
        let (found, expected) = (applied.len(), owners.layout.chunks_of(rows).count());
        if found != expected {
            return Err(TableError::Length { found, expected });
        }
        let of_chunks = owners.layout.chunks_of(rows).zip(applied);
        let is_outdated = self.is_outdated(of_chunks);
        let read = self.take_answered(owners, *number, is_outdated, out);
        Ok(read.map(|read| ReadRows { read, indices, response }))
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
        let is_outdated = self.is_outdated([(read.chunk, &applied)]);
        Ok(self.take_answered(owners, number, is_outdated, out))
    }

    /// Whether a response is from before this worker's last operation on one of these chunks, of which it includes the worker's changes up
    /// to these numbers.
    fn is_outdated<'a>(&self, of_chunks: impl IntoIterator<Item = (usize, &'a u64)>) -> bool {
        let is_before = |(chunk, applied): (usize, &u64)| {
            self.operated.get(&chunk).is_some_and(|operated| applied < operated)
        };
        !self.operated.is_empty() && of_chunks.into_iter().any(is_before)
    }

    /// Takes out an answered read, and sends the next one to its owner. If the response is outdated, the read is sent again: of several
    /// chunks, all must be read after the change.
    fn take_answered(
        &mut self,
        owners: &Owners,
        number: u64,
        is_outdated: bool,
        out: &mut Outbox,
    ) -> Option<PendingRead> {
        let owner = owners.of(self.pending.get(&number)?.chunk);
        if let Some(queue) = self.queues.get_mut(&owner) {
            queue.in_flight = queue.in_flight.saturating_sub(1);
        }
        let read = if is_outdated { None } else { self.pending.remove(&number) };
        if is_outdated {
            self.send_or_hold(owners, number, out);
        }
        let next = self.queues.get_mut(&owner).and_then(|queue| queue.later.pop_front());
        if let Some(next) = next {
            self.send_in_turn(owners, next, out);
        }
        read
    }

    /// Keeps rows until they are taken.
    pub(super) fn keep_rows(&mut self, ReadRows { read, indices, response }: ReadRows) {
        let rows = Rows { indices, values: response.values };
        self.answers.insert(response.number, (read, ReadResult::Rows(rows)));
    }

    /// Keeps numbers until they are taken.
    pub(super) fn keep_numbers(&mut self, number: u64, read: PendingRead, values: Vec<f64>) {
        self.answers.insert(number, (read, ReadResult::Numbers(values)));
    }
}

impl PendingRead {
    /// The chunks that are read.
    fn chunks<'a>(&'a self, layout: &'a TableLayout) -> impl Iterator<Item = usize> + 'a {
        let (rows, reduced) = match &self.query {
            Query::Rows(rows) | Query::Pull(rows) => (Some(rows), None),
            Query::Reduce(_) => (None, Some(self.chunk)),
        };
        rows.into_iter().flat_map(|rows| layout.chunks_of(rows)).chain(reduced)
    }

    /// The read, in parts whose chunks have one owner each. There is at least one.
    fn by_owner(self, owners: &Owners) -> Vec<Self> {
        let rows = match &self.query {
            Query::Rows(rows) | Query::Pull(rows) => rows,
            Query::Reduce(_) => return vec![self],
        };
        let mut parts = owners.by_request(owners.layout.by_chunk(rows));
        if parts.len() <= 1 {
            return vec![self];
        }
        let part = |(chunk, rows)| {
            let is_cached = matches!(self.query, Query::Rows(_));
            let query = if is_cached { Query::Rows(rows) } else { Query::Pull(rows) };
            Self { chunk, query, ..self }
        };
        parts.drain(..).map(part).collect()
    }

    fn to_request(&self, request: u64) -> Request {
        let min_clock = self.min_clock;
        match &self.query {
            Query::Rows(rows) | Query::Pull(rows) => Request::Get { request, min_clock, rows: rows.clone() },
            Query::Reduce(reduce) => {
                Request::Reduce { request, min_clock, chunk: self.chunk as u32, reduce: reduce.clone() }
            }
        }
    }
}

/// Whether all values are finite. Without an early end, so several are compared at once.
fn are_finite(values: &[f32]) -> bool {
    values.iter().fold(true, |so_far, value| so_far & value.is_finite())
}
