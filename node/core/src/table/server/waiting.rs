//! Waiting requests at an owner: for a clock, for a chunk, or until their worker has processed earlier responses.

use std::collections::VecDeque;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{WAITING_REQUEST_BYTES_MAX, WAITING_REQUESTS_MAX};
use peergrad_protocol::table::{Operation, Request, WorkerClock};

use super::{Author, Change, Outbox, TableError, TableServer, WorkerRecord};

impl TableServer {
    /// Reserves room for a request that has to wait here; a request of this member's own worker always has room. A change is not
    /// acknowledged meanwhile.
    pub(super) fn reserve(&mut self, from: Rank, request: &Request) -> Result<(), TableError> {
        let bytes_max = if from == self.me { usize::MAX } else { WAITING_REQUEST_BYTES_MAX };
        let result = self.workers.entry(Author::own(from)).or_default().reserve(request, bytes_max);
        if let Some(change) = request.change() {
            let author = self.workers.entry(Author::of(from, request)).or_default();
            match result {
                Ok(()) => author.record_change(Change::Numbered(change.sequence, change.chunk as usize), 1),
                Err(_) => _ = author.refused.get_or_insert(change.sequence),
            }
        }
        result
    }

    /// Returns the room of a request that no longer waits.
    pub(super) fn release(&mut self, from: Rank, request: &Request) {
        self.workers.entry(Author::own(from)).or_default().release(request);
    }

    /// Keeps a request until its worker has processed earlier responses.
    ///
    /// # Errors
    /// The request is one that no correct worker sends, or there is no room for it.
    pub fn defer(&mut self, from: Rank, request: Request) -> Result<(), TableError> {
        self.check(&request)?;
        self.reserve(from, &request)?;
        self.ready.entry(from).or_default().push_back(request);
        Ok(())
    }

    /// The workers with reads that can be answered now.
    #[must_use]
    pub fn ready(&self) -> Vec<Rank> {
        self.ready.keys().copied().collect()
    }

    /// Whether a worker has a read that can be answered now.
    #[must_use]
    pub fn has_ready(&self, from: Rank) -> bool {
        self.ready.contains_key(&from)
    }

    /// Answers a worker's first read that can be answered now. Returns false if there is none.
    pub fn answer_ready(&mut self, from: Rank, out: &mut Outbox) -> bool {
        let Some(request) = self.ready.get_mut(&from).and_then(VecDeque::pop_front) else {
            self.ready.remove(&from);
            return false;
        };
        self.release(from, &request);
        let chunk = self.check(&request).expect("it was checked when it came");
        self.process(from, chunk, request, out).expect("there is room for what there was room for before");
        true
    }

    /// Carries out requests that waited for their chunk or for their clock. First come the additions of clocks that all workers have
    /// completed, so that all additions of one clock are applied together. The rest follows as far as there is room.
    pub(super) fn apply_waiting(&mut self, chunk: usize, waiting: Vec<(Rank, Request)>, out: &mut Outbox) {
        let least = self.clock();
        let (mut changes, mut rest) = (Vec::new(), Vec::<(Rank, Request)>::new());
        for (worker, request) in waiting {
            self.release(worker, &request);
            let author = Author::of(worker, &request);
            let is_before = |clock: u64| least.is_some_and(|least| WorkerClock::At(clock) < least);
            let complete = request.change().filter(
                |change| matches!(change.operation, Operation::Add { clock, .. } if is_before(clock)),
            );
            match complete {
                Some(change) if rest.iter().all(|(sender, before)| Author::of(*sender, before) != author) => {
                    changes.push((author, self.apply_change(author, change)));
                }
                _ => rest.push((worker, request)),
            }
        }
        self.apply_completed(chunk);
        changes.into_iter().for_each(|(worker, change)| self.await_replication(worker, change, out));
        for (worker, request) in rest {
            self.process(worker, Some(chunk), request, out)
                .expect("there is room for what there was room for before");
        }
    }
}

impl WorkerRecord {
    /// Reserves room for a request of this worker, whose waiting requests may take this many bytes.
    fn reserve(&mut self, request: &Request, bytes_max: usize) -> Result<(), TableError> {
        let bytes = self.waiting_bytes + request.bytes();
        if bytes > bytes_max {
            return Err(TableError::TooManyBytes(bytes_max));
        }
        if request.change().is_none() {
            if self.waiting_requests == WAITING_REQUESTS_MAX {
                return Err(TableError::TooManyRequests(WAITING_REQUESTS_MAX));
            }
            self.waiting_requests += 1;
        }
        self.waiting_bytes = bytes;
        Ok(())
    }

    /// Returns the room of a request.
    fn release(&mut self, request: &Request) {
        self.waiting_bytes -= request.bytes();
        self.waiting_requests -= usize::from(request.change().is_none());
    }
}
