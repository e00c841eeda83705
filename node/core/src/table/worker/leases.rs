//! Hands: the samples that a worker is dealt, and when it is done with them.

use std::collections::VecDeque;

use peergrad_protocol::limits::LEASES_MAX;
use peergrad_protocol::table::{Request, SampleLease, WorkerClock};

use super::{Query, RowSet, TableWorker};
use crate::table::server::Outbox;

/// Samples that this worker was dealt.
#[derive(Default)]
pub(super) struct HeldLeases {
    /// Numbers that were used.
    pub(super) count: u64,
    /// What it waits for: the number, how many, and whether nobody waits for this worker meanwhile.
    pub(super) requested: Option<(u64, u32, bool)>,
    /// What has come and was not taken.
    pub(super) next: Option<(u64, SampleLease, bool)>,
    /// By lease that was taken: the last number of what came of it, once it is all sent.
    pub(super) taken: VecDeque<(u64, Option<u64>)>,
    /// The one of the clock in progress: what comes of it is not all added yet.
    pub(super) current: Option<u64>,
    /// Hands up to this one are done.
    pub(super) completed: u64,
    /// The worker has ended, and computes none from this one on.
    pub(super) first_returned: Option<u64>,
}

/// Samples to compute, or that there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquiredLease {
    /// The worker's number for them.
    pub number: u64,
    /// Which; none: there are none at present.
    pub lease: SampleLease,
    /// Every sample of every epoch is done.
    pub is_over: bool,
}

impl TableWorker {
    /// Asks for so many samples, unless it has asked already.
    pub fn request_lease(&mut self, samples: u32, out: &mut Outbox) {
        if self.leases.requested.is_some() || self.leases.next.is_some() {
            return;
        }
        self.leases.count += 1;
        // Where nobody will wait for this worker, it need not go on with nothing.
        self.leases.requested = Some((self.leases.count, samples, self.never_waits()));
        self.send_lease_request(out);
    }

    pub(super) fn send_lease_request(&self, out: &mut Outbox) {
        if let Some((lease_number, samples, may_wait)) = self.leases.requested {
            self.send_request(0, Request::Lease { lease_number, samples, may_wait }, out);
        }
    }

    /// The samples that were asked for, once they are here.
    pub fn take_lease(&mut self) -> Option<AcquiredLease> {
        let (number, lease, is_over) = self.leases.next.take()?;
        if !lease.is_empty() {
            self.leases.taken.push_back((number, None));
            self.leases.current = Some(number);
        }
        Some(AcquiredLease { number, lease, is_over })
    }

    /// All that came of the hands that were taken so far has been sent, but for that of the clock in progress: once it is safe, they are
    /// done.
    pub(super) fn close_leases(&mut self) {
        let (last, current) = (self.sequence, self.leases.current);
        let over = self.leases.taken.iter_mut().filter(|(number, _)| Some(*number) != current);
        over.for_each(|(_, until)| _ = until.get_or_insert(last));
    }

    /// Whether it has taken as many as it is given before any of them is done.
    #[must_use]
    pub fn has_many_leases(&self) -> bool {
        self.leases.taken.len() + 1 >= LEASES_MAX
    }

    /// The worker has ended: it computes no samples any more.
    pub(super) fn drop_leases(&mut self) {
        let leases = &mut self.leases;
        // The one of the clock in progress is not over.
        leases.taken.retain(|(number, _)| Some(*number) != leases.current);
        let wanted = leases.requested.take().map(|(number, ..)| number);
        let next = leases.next.take().map(|(number, ..)| number);
        let first = leases.current.take().or(wanted).or(next).unwrap_or(leases.count + 1);
        leases.first_returned.get_or_insert(first);
    }

    /// Says which samples others are to compute.
    pub(super) fn return_leases(&self, out: &mut Outbox) {
        if let Some(first_lease) = self.leases.first_returned {
            self.send_request(0, Request::Return { first_lease }, out);
        }
    }

    /// The worker leaves, between two clocks. Whether it may: what came of its samples is safe, and whoever deals has heard so.
    pub fn wind_down(&mut self, out: &mut Outbox) -> bool {
        self.push(out);
        if !self.is_flushed() || !self.leases.taken.is_empty() {
            return false;
        }
        // Whoever answers this has heard what came before.
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
