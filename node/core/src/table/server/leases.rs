//! Samples, at the owner of the first chunk: it deals them, and takes them back from workers that are gone.

use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::LEASES_MAX;
use peergrad_protocol::table::{LastLease, LeaseTable, Response, SampleLease, TableMessage, WorkerId};

use super::super::lease_table;
use super::replication::Change;
use super::{ChunkDelta, Outbox, TableServer};

/// Samples that a worker asks for.
#[derive(Clone, Copy)]
pub(super) struct LeaseRequest {
    /// Its number for them.
    pub(super) lease_number: u64,
    pub(super) samples: u64,
    /// Whether nobody waits for it meanwhile.
    pub(super) may_wait: bool,
}

impl TableServer {
    /// A worker is done with samples, or gives them back.
    pub(super) fn update_leases(
        &mut self,
        from: Rank,
        number: u64,
        change: fn(&mut LeaseTable, WorkerId, u64) -> bool,
        out: &mut Outbox,
    ) {
        let worker = self.replica_map.worker_id(from);
        if change(self.store.lease_table_mut(), worker, number) {
            self.mark_dirty(0, &ChunkDelta::leases([worker]));
            self.retry_lease_requests(out);
        }
    }

    /// What workers that are gone were dealt comes back, if that is kept here: at the owner, and at replicas, who need not be told.
    pub(super) fn reclaim_leases(&mut self) {
        let replica_map = Arc::clone(&self.replica_map);
        if lease_table::reclaim(self.store.lease_table_mut(), |worker| replica_map.members.contains(worker))
            && self.owns(0)
            && self.is_here(0)
        {
            self.mark_dirty(0, &ChunkDelta::leases([]));
        }
    }

    /// A worker asks for samples.
    pub(super) fn grant_lease(&mut self, from: Rank, request: LeaseRequest, out: &mut Outbox) {
        let LeaseRequest { lease_number, samples, may_wait } = request;
        let worker = self.replica_map.worker_id(from);
        let known = self.store.lease_table_mut().outstanding.iter().find(|held| held.worker == worker);
        let is_new = known.is_none_or(|known| LastLease::Number(lease_number) > known.last);
        // What it has not sent yet, nobody else can wait for; but where nobody waits for it, it may wait for too many of them to be safe.
        let holds_some =
            known.is_some_and(|known| !known.leases.is_empty() && known.leases.len() < LEASES_MAX);
        if let Some(lease) =
            self.lease_policy.grant(self.store.lease_table_mut(), worker, lease_number, samples)
        {
            if is_new {
                self.mark_dirty(0, &ChunkDelta::leases([worker]));
                // Others may have waited until so much was dealt.
                self.retry_lease_requests(out);
            }
            let change = Change::Leased(lease_number);
            let missing_at = self.replicas_missing(from, change);
            let record = self.workers.entry(from).or_default();
            record.leases.insert(lease_number, lease);
            if missing_at > 0 {
                record.pending.insert(change, missing_at);
            }
            return self.acknowledge(from, out);
        }
        let is_over = self.lease_policy.is_over(self.store.lease_table_mut());
        // Others may wait for its clock, too, unless they have ended.
        let has_others = self.clocks.iter().any(|(rank, clock)| *rank != from && clock.is_running());
        if is_over || holds_some || (has_others && !may_wait) {
            out.push((
                from,
                TableMessage::Response(Response::Leased {
                    lease_number,
                    lease: SampleLease::default(),
                    is_over,
                }),
            ));
        } else {
            self.lease_requests.insert(from, request);
        }
    }

    /// Perhaps everything is done.
    pub(super) fn retry_lease_requests(&mut self, out: &mut Outbox) {
        for (worker, request) in std::mem::take(&mut self.lease_requests) {
            self.grant_lease(worker, request, out);
        }
    }
}
