//! Leases at a worker: the samples that it is to compute, and when it has completed them.

use std::collections::VecDeque;

use peergrad_protocol::limits::LEASES_MAX;
use peergrad_protocol::table::{Request, SampleLease, WorkerClock};

use super::{Query, RowSet, TableWorker};
use crate::table::server::Outbox;

/// The leases of this worker.
#[derive(Default)]
pub(super) struct HeldLeases {
    /// The number of the last lease that it has asked for.
    pub(super) count: u64,
    /// The lease that it waits for: its number, the number of samples, and whether no other worker waits for this one meanwhile.
    pub(super) requested: Option<(u64, u32, bool)>,
    /// The response that has arrived and is not taken yet: the lease's number, the lease, and whether all samples are done.
    pub(super) next: Option<(u64, SampleLease, bool)>,
    /// Each lease that was taken and is not complete, with the number of the last addition that it led to, once all of them are sent.
    pub(super) taken: VecDeque<(u64, Option<u64>)>,
    /// The lease of the clock in progress, whose additions are not complete yet.
    pub(super) current: Option<u64>,
    /// The leases up to this number are complete.
    pub(super) completed: u64,
    /// Set when the worker has ended: it computes no leases from this number on.
    pub(super) first_returned: Option<u64>,
}

/// A lease to compute, or the information that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquiredLease {
    /// The worker's number for the lease.
    pub number: u64,
    /// The samples; empty if there are none at present.
    pub lease: SampleLease,
    /// Whether every sample of every epoch is done.
    pub is_over: bool,
}

impl TableWorker {
    /// Asks for a lease of `samples` samples, unless one was asked for already.
    pub fn request_lease(&mut self, samples: u32, out: &mut Outbox) {
        if self.leases.requested.is_some() || self.leases.next.is_some() {
            return;
        }
        self.leases.count += 1;
        // If no other worker will wait for this one, it need not run clocks without samples.
        self.leases.requested = Some((self.leases.count, samples, self.never_waits()));
        self.send_lease_request(out);
    }

    pub(super) fn send_lease_request(&self, out: &mut Outbox) {
        if let Some((lease_number, samples, may_wait)) = self.leases.requested {
            self.send_request(0, Request::Lease { lease_number, samples, may_wait }, out);
        }
    }

    /// Takes the lease that was asked for; `None` until it has arrived.
    pub fn take_lease(&mut self) -> Option<AcquiredLease> {
        let (number, lease, is_over) = self.leases.next.take()?;
        if !lease.is_empty() {
            self.leases.taken.push_back((number, None));
            self.leases.current = Some(number);
        }
        Some(AcquiredLease { number, lease, is_over })
    }

    /// All additions of the leases taken so far have been sent, except for the clock in progress: the leases are complete once those
    /// additions are safe.
    pub(super) fn close_leases(&mut self) {
        let (last, current) = (self.sequence, self.leases.current);
        let over = self.leases.taken.iter_mut().filter(|(number, _)| Some(*number) != current);
        over.for_each(|(_, until)| _ = until.get_or_insert(last));
    }

    /// Whether it has as many incomplete leases as a worker may have.
    #[must_use]
    pub fn has_many_leases(&self) -> bool {
        self.leases.taken.len() + 1 >= LEASES_MAX
    }

    /// The worker has ended and computes no more samples.
    pub(super) fn drop_leases(&mut self) {
        let leases = &mut self.leases;
        // The lease of the clock in progress is not complete.
        leases.taken.retain(|(number, _)| Some(*number) != leases.current);
        let wanted = leases.requested.take().map(|(number, ..)| number);
        let next = leases.next.take().map(|(number, ..)| number);
        let first = leases.current.take().or(wanted).or(next).unwrap_or(leases.count + 1);
        leases.first_returned.get_or_insert(first);
    }

    /// Tells the owner which leases other workers are to compute.
    pub(super) fn return_leases(&self, out: &mut Outbox) {
        if let Some(first_lease) = self.leases.first_returned {
            self.send_request(0, Request::Return { first_lease }, out);
        }
    }

    /// The worker is about to leave, between two clocks. Returns whether it may: its additions are safe, and the owner of the lease table
    /// knows.
    pub fn wind_down(&mut self, out: &mut Outbox) -> bool {
        self.push(out);
        if !self.is_flushed() || !self.leases.taken.is_empty() {
            return false;
        }
        // The owner that answers this request has received all earlier ones.
        let query = Query::Rows(RowSet::default());
        let last = self.final_request.unwrap_or_else(|| self.request_of(0, query, WorkerClock::At(0), out));
        self.final_request = Some(last);
        !self.requests.contains_key(&last)
    }

    pub(super) fn report_completed(&mut self, out: &mut Outbox) {
        let acknowledged_up_to = self.acknowledged_up_to();
        let before = self.leases.completed;
        while let Some((lease_number, Some(until))) = self.leases.taken.front().copied()
            && until <= acknowledged_up_to
        {
            self.leases.completed = lease_number;
            self.leases.taken.pop_front();
        }
        if self.leases.completed > before {
            self.send_request(0, Request::Complete { last_lease: self.leases.completed }, out);
        }
    }
}
