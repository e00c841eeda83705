//! What waits at an owner: for a clock, for a chunk, or for its worker to take in what it was told.

use std::collections::VecDeque;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{WAITING_REQUEST_BYTES_MAX, WAITING_REQUESTS_MAX};
use peergrad_protocol::table::{Request, WorkerClock};

use super::{Change, Outbox, TableError, TableServer, WorkerRecord};

impl TableServer {
    /// Something has to wait here; a change is not acknowledged meanwhile.
    pub(super) fn reserve(&mut self, from: Rank, request: &Request) -> Result<(), TableError> {
        let is_own = from == self.me;
        let worker = self.workers.entry(from).or_default();
        worker.reserve(request, is_own)?;
        if let Some((sequence, chunk)) = request.change() {
            worker.record_change(Change::Added(sequence, chunk as usize), 1);
        }
        Ok(())
    }

    /// Something waits no longer.
    pub(super) fn release(&mut self, from: Rank, request: &Request) {
        self.workers.entry(from).or_default().release(request);
    }

    /// Holds a question until its worker has taken in what it was told before.
    ///
    /// # Errors
    /// No correct peer asks that, or so much.
    pub fn defer(&mut self, from: Rank, request: Request) -> Result<(), TableError> {
        self.check(&request)?;
        self.reserve(from, &request)?;
        self.ready.entry(from).or_default().push_back(request);
        Ok(())
    }

    /// Those who have asked what can be answered now.
    #[must_use]
    pub fn ready(&self) -> Vec<Rank> {
        self.ready.keys().copied().collect()
    }

    /// Whether a worker has asked what can be answered now.
    #[must_use]
    pub fn has_ready(&self, from: Rank) -> bool {
        self.ready.contains_key(&from)
    }

    /// Answers the first question of a worker that can be answered now. False if there is none.
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

    /// Puts in what had to wait for its chunk, or for its clock. What has been added in clocks that all have completed comes first, all
    /// of it, so that of one clock all is applied together; of the rest as much as there is room for then.
    pub(super) fn apply_waiting(&mut self, chunk: usize, waiting: Vec<(Rank, Request)>, out: &mut Outbox) {
        let least = self.clock();
        let (mut changes, mut rest) = (Vec::new(), Vec::<(Rank, Request)>::new());
        for (worker, request) in waiting {
            self.release(worker, &request);
            let is_complete = matches!(request, Request::Add { clock, .. } if least.is_some_and(|least| WorkerClock::At(clock) < least));
            if !is_complete || rest.iter().any(|(before, _)| *before == worker) {
                rest.push((worker, request));
            } else if let Some(change) = self.apply_change(worker, &request) {
                changes.push((worker, change));
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
    /// Something of it has to wait: of another peer's worker no more than there is room for.
    pub(super) fn reserve(&mut self, request: &Request, is_own: bool) -> Result<(), TableError> {
        let bytes = self.waiting_bytes + request.bytes();
        if bytes > WAITING_REQUEST_BYTES_MAX && !is_own {
            if let Some((sequence, _)) = request.change() {
                self.refused.get_or_insert(sequence);
            }
            return Err(TableError::TooManyBytes(WAITING_REQUEST_BYTES_MAX));
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

    /// It waits no longer.
    pub(super) fn release(&mut self, request: &Request) {
        self.waiting_bytes -= request.bytes();
        self.waiting_requests -= usize::from(request.change().is_none());
    }
}
