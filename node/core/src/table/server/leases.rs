//! Leases, at the owner of the first chunk: it leases samples to workers, and takes them back from workers that are gone.

use peergrad_protocol::Rank;
use peergrad_protocol::limits::LEASES_MAX;
use peergrad_protocol::table::{LastLease, Response, SampleLease, TableMessage, WorkerId};

use super::super::lease_table::{self, Completed};
use super::replication::Change;
use super::{Author, ChunkDelta, Outbox, TableServer};

/// A worker's request for a lease.
#[derive(Clone, Copy)]
pub(super) struct LeaseRequest {
    /// The worker's number for the lease.
    pub(super) lease_number: u64,
    /// How many samples the worker asks for.
    pub(super) samples: u64,
    /// Whether no other worker waits for this one meanwhile.
    pub(super) may_wait: bool,
}

impl TableServer {
    /// A worker has completed its leases up to this number. Workers that have copies of them learn so.
    pub(super) fn complete_leases(&mut self, worker: WorkerId, last_lease: u64, out: &mut Outbox) {
        let Completed { changed, superseded } =
            self.lease_policy.complete(self.store.lease_table_mut(), worker, last_lease);
        if !changed.is_empty() {
            self.replication.mark_dirty(0, &ChunkDelta::leases(changed));
        }
        for (worker, lease_number) in superseded {
            let Some(rank) = self.replica_map.rank_of(&worker) else { continue };
            let known = self.workers.get_mut(&Author::own(rank));
            let response = match known.and_then(|known| known.leases.remove(&lease_number)) {
                // The worker does not have it yet, and gets none in its place.
                Some(_) => no_lease(lease_number, None),
                None => Response::Superseded { lease_number },
            };
            out.push((rank, TableMessage::Response(response)));
        }
        self.retry_lease_requests(out);
    }

    /// A worker has ended, and returns its leases from this number on.
    pub(super) fn return_leases(&mut self, from: Rank, first_lease: u64, out: &mut Outbox) {
        self.lease_requests.remove(&from);
        let worker = self.replica_map.worker_id(from);
        if lease_table::end(self.store.lease_table_mut(), worker, first_lease) {
            self.replication.mark_dirty(0, &ChunkDelta::leases([worker]));
            self.retry_lease_requests(out);
        }
    }

    /// Leases no more samples, if the lease table is here: the run ends when those that are leased are done. Returns whether this is news.
    pub(crate) fn close_leases(&mut self, out: &mut Outbox) -> bool {
        let is_news = self.owns(0) && self.is_here(0) && lease_table::close(self.store.lease_table_mut());
        if is_news {
            self.replication.mark_dirty(0, &ChunkDelta::leases([]));
            self.retry_lease_requests(out);
        }
        is_news
    }

    /// A worker requests a lease.
    pub(super) fn grant_lease(&mut self, from: Rank, request: LeaseRequest, out: &mut Outbox) {
        let LeaseRequest { lease_number, samples, may_wait } = request;
        let samples = self.lease_policy.lease_samples(samples, self.replica_map.members.len() as u64);
        let worker = self.replica_map.worker_id(from);
        let known = self.store.lease_table_mut().outstanding.iter().find(|held| held.worker == worker);
        let is_new = known.is_none_or(|known| LastLease::Number(lease_number) > known.last);
        // Another worker has completed a copy of this lease before the worker got it.
        let is_superseded = known.is_some_and(|known| {
            let is_held = known.leases.iter().any(|(of, _)| *of == lease_number);
            !is_new && known.last != LastLease::Ended && !is_held
        });
        // If the worker's leases are not complete because it has not sent its additions, no other worker can help, so it must continue. If
        // it has too many leases, and no worker waits for it, it may wait for some to become safe.
        let holds_some =
            known.is_some_and(|known| !known.leases.is_empty() && known.leases.len() < LEASES_MAX);
        if let Some(lease) =
            self.lease_policy.grant(self.store.lease_table_mut(), worker, lease_number, samples)
        {
            if is_new {
                self.replication.mark_dirty(0, &ChunkDelta::leases([worker]));
                // Other workers may have waited until so many samples were leased.
                self.retry_lease_requests(out);
            }
            let is_kept = lease_table::is_kept(self.store.lease_table_mut(), worker, &lease);
            let change = Change::Leased(lease_number);
            let author = Author::own(from);
            let missing_at = self.replication.missing_at(author, change);
            let record = self.workers.entry(author).or_default();
            record.leases.insert(lease_number, (lease, is_kept));
            if missing_at > 0 {
                record.pending.insert(change, missing_at);
            }
            return self.acknowledge(author, out);
        }
        let trained = self.lease_policy.trained(self.store.lease_table_mut());
        // Other workers that have not ended may wait for this worker's clock.
        let has_others = self.clocks.has_others_running(from);
        if trained.is_some() || holds_some || is_superseded || (has_others && !may_wait) {
            out.push((from, TableMessage::Response(no_lease(lease_number, trained))));
        } else {
            self.lease_requests.insert(from, request);
        }
    }

    /// Tries the waiting lease requests again: perhaps all samples are done.
    pub(super) fn retry_lease_requests(&mut self, out: &mut Outbox) {
        for (worker, request) in std::mem::take(&mut self.lease_requests) {
            self.grant_lease(worker, request, out);
        }
    }
}

/// The answer to a worker that gets no samples.
fn no_lease(lease_number: u64, trained: Option<u64>) -> Response {
    Response::Leased { lease_number, lease: SampleLease::default(), is_kept: false, trained }
}
