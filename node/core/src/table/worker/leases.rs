//! Leases at a worker: the samples that it is to compute, and when it has completed them.

use std::collections::VecDeque;

use peergrad_protocol::limits::LEASES_MAX;
use peergrad_protocol::table::{Request, SampleLease};

use super::Owners;
use crate::table::server::Outbox;

/// The leases of this worker.
#[derive(Default)]
pub struct HeldLeases {
    /// The number of the last lease that it has asked for.
    count: u64,
    /// The lease that it waits for. `None` if it has asked for none, or the response has arrived.
    requested: Option<RequestedLease>,
    /// The response that has arrived and is not taken yet.
    next: Option<AcquiredLease>,
    /// Each lease that was taken and is not complete, with the number of the last change that it led to, once all of them are sent.
    taken: VecDeque<(u64, Option<u64>)>,
    /// The lease of the clock in progress, whose additions are not complete yet.
    current: Option<u64>,
    /// The leases up to this number are complete.
    completed: u64,
    /// Whether another worker has completed a copy of the current lease.
    is_superseded: bool,
    /// Set when the worker has ended: it computes no leases from this number on.
    first_returned: Option<u64>,
}

/// A lease that a worker has asked for.
#[derive(Clone, Copy)]
struct RequestedLease {
    /// The worker's number for the lease.
    number: u64,
    /// The number of samples.
    samples: u32,
    /// Whether no other worker waits for this one meanwhile.
    may_wait: bool,
}

/// A lease to compute, or the information that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquiredLease {
    /// The worker's number for the lease.
    pub number: u64,
    /// The samples; empty if there are none at present.
    pub lease: SampleLease,
    /// Whether this worker has completed the same samples in the epoch before.
    pub is_kept: bool,
    /// Once no sample is left to compute, and all are done: how many were trained in the run.
    pub trained: Option<u64>,
}

impl HeldLeases {
    /// The leases up to this number are complete: their additions would survive the loss of this worker.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether the response that has arrived says that there are no samples at present.
    #[must_use]
    pub fn next_is_empty(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.lease.is_empty() && next.trained.is_none())
    }

    /// Whether it has as many incomplete leases as a worker may have.
    #[must_use]
    pub fn are_many(&self) -> bool {
        self.taken.len() + 1 >= LEASES_MAX
    }

    /// Whether all leases that were taken are complete.
    pub(super) fn are_complete(&self) -> bool {
        self.taken.is_empty()
    }

    /// Whether the worker has ended and computes no more leases.
    pub(super) fn are_returned(&self) -> bool {
        self.first_returned.is_some()
    }

    /// Asks for a lease of `samples` samples, unless one was asked for already. If the worker `may_wait`, it gets no empty lease.
    pub(super) fn request(&mut self, owners: &Owners, samples: u32, may_wait: bool, out: &mut Outbox) {
        if self.requested.is_some() || self.next.is_some() {
            return;
        }
        self.count += 1;
        self.requested = Some(RequestedLease { number: self.count, samples, may_wait });
        self.send_request(owners, out);
    }

    /// Sends the request for a lease, for the first time or in a new view.
    pub(super) fn send_request(&self, owners: &Owners, out: &mut Outbox) {
        if let Some(RequestedLease { number, samples, may_wait }) = self.requested {
            owners.send(0, Request::Lease { lease_number: number, samples, may_wait }, out);
        }
    }

    /// The owner has answered.
    pub(super) fn receive(&mut self, acquired: AcquiredLease) {
        if self.requested.take_if(|wanted| wanted.number == acquired.number).is_some() {
            self.next = Some(acquired);
        }
    }

    /// Takes the lease that was asked for; `None` until it has arrived.
    pub(super) fn take(&mut self) -> Option<AcquiredLease> {
        let acquired = self.next.take()?;
        if !acquired.lease.is_empty() {
            self.taken.push_back((acquired.number, None));
            self.current = Some(acquired.number);
        }
        Some(acquired)
    }

    /// Another worker has completed a copy of this lease. It is nevertheless reported as complete: the owner of the lease table may be lost
    /// before others know that it is.
    pub(super) fn supersede(&mut self, number: u64) {
        self.is_superseded |= self.current == Some(number);
        if self.next.take_if(|next| next.number == number).is_some() {
            self.taken.push_back((number, None));
        }
    }

    /// Whether another worker has completed a copy of the lease of the clock in progress since the last call.
    pub(super) fn take_superseded(&mut self) -> bool {
        std::mem::take(&mut self.is_superseded)
    }

    /// Takes the number of samples that were trained in the run, once this worker has ended and the owner has sent it.
    pub(super) fn take_trained(&mut self) -> Option<u64> {
        self.next.take()?.trained
    }

    /// The clock in progress ends. Returns the last lease that is over with it, if there is one.
    pub(super) fn end_clock(&mut self) -> Option<u64> {
        self.is_superseded = false;
        self.current = None;
        self.taken.iter().rev().find(|(_, until)| until.is_none()).map(|(number, _)| *number)
    }

    /// All additions of the leases taken so far have been sent, up to the number `last`, except for the clock in progress: the leases are
    /// complete once those additions are safe.
    pub(super) fn close(&mut self, last: u64) {
        let current = self.current;
        let over = self.taken.iter_mut().filter(|(number, _)| Some(*number) != current);
        over.for_each(|(_, until)| _ = until.get_or_insert(last));
    }

    /// Additions up to this number are safe. Returns the number of the last lease that is complete with them, if there is another one.
    pub(super) fn complete(&mut self, acknowledged_up_to: u64) -> Option<u64> {
        let before = self.completed;
        while let Some((lease_number, Some(until))) = self.taken.front().copied()
            && until <= acknowledged_up_to
        {
            self.completed = lease_number;
            self.taken.pop_front();
        }
        (self.completed > before).then_some(self.completed)
    }

    /// The worker has ended and computes no more samples. Returns whether a clock with samples was in progress.
    pub(super) fn drop_unfinished(&mut self) -> bool {
        // The lease of the clock in progress is not complete.
        self.taken.retain(|(number, _)| Some(*number) != self.current);
        let wanted = self.requested.take().map(|wanted| wanted.number);
        let next = self.next.take().map(|next| next.number);
        let current = self.current.take();
        let first = current.or(wanted).or(next).unwrap_or(self.count + 1);
        self.first_returned.get_or_insert(first);
        current.is_some()
    }

    /// Tells the owner which leases other workers are to compute: when the worker ends, and in each view after that.
    pub(super) fn send_returned(&self, owners: &Owners, out: &mut Outbox) {
        if let Some(first_lease) = self.first_returned {
            owners.send(0, Request::Return { first_lease }, out);
        }
    }
}
