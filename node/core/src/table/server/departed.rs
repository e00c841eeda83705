//! Workers that are gone, at an owner: what it knows of them, until all members have sent what they had kept of their changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::MEMBERS_MAX;
use peergrad_protocol::table::{Request, WorkerId};

use super::super::TableError;
use super::super::lease_table;
use super::{ChunkDelta, Outbox, TableServer};

impl TableServer {
    /// A member sends a change of a worker that is gone.
    ///
    /// # Errors
    /// The chunk has changes of as many such workers as it has room for.
    pub(super) fn note_replay(&mut self, chunk: usize, worker: WorkerId) -> Result<(), TableError> {
        let replayed = self.replayed.entry(chunk).or_default();
        if !replayed.contains(&worker) {
            let is_gone = |known: &WorkerId| !self.replica_map.members.contains(known);
            let known: BTreeSet<WorkerId> = self.store.workers(chunk).filter(is_gone).collect();
            if !known.contains(&worker) && known.union(replayed).count() >= MEMBERS_MAX {
                return Err(TableError::TooManyDeparted(MEMBERS_MAX));
            }
            replayed.insert(worker);
        }
        Ok(())
    }

    /// Whether changes of workers that are gone wait for others' clocks.
    fn has_early_replays(&self, chunk: usize) -> bool {
        let is_replay = |(_, request): &(Rank, Request)| matches!(request, Request::Replay { .. });
        self.early.get(&chunk).is_some_and(|early| early.iter().any(is_replay))
    }

    /// Once all members have sent their clocks, and with that all that they had kept of workers which are gone: forgets these workers'
    /// numbers, and takes back their leases. If a member has sent changes of such a worker in this view, it may send them again in the
    /// next one, so the worker's number is kept until then.
    pub(super) fn settle_departed(&mut self, out: &mut Outbox) {
        let lacks_replays = || {
            self.workers.iter().any(|(author, known)| author.departed.is_some() && known.refused.is_some())
        };
        if self.unsettled.is_empty() || !self.clocks.are_sent(&self.replica_map) || lacks_replays() {
            return;
        }
        let replica_map = Arc::clone(&self.replica_map);
        let is_there = |worker: &WorkerId| replica_map.members.contains(worker);
        let is_complete = |chunk: &usize| self.is_here(*chunk) && !self.has_early_replays(*chunk);
        let (here, awaited): (BTreeSet<usize>, BTreeSet<usize>) =
            self.unsettled.iter().partition(|chunk| is_complete(chunk));
        self.unsettled = awaited;
        for chunk in &here {
            let is_replayed = |worker: &WorkerId| {
                self.replayed.get(chunk).is_some_and(|replayed| replayed.contains(worker))
            };
            let workers =
                self.store.workers(*chunk).filter(|worker| !is_there(worker) && !is_replayed(worker));
            let forgotten: BTreeSet<WorkerId> = workers.collect();
            if !forgotten.is_empty() {
                forgotten.iter().for_each(|worker| self.store.forget_worker(*chunk, *worker));
                let delta = ChunkDelta { workers: forgotten, ..ChunkDelta::default() };
                self.replication.mark_dirty(*chunk, &delta);
            }
        }
        if here.contains(&0) {
            let reclaimed = lease_table::reclaim(self.store.lease_table_mut(), is_there);
            if !reclaimed.is_empty() {
                self.replication.mark_dirty(0, &ChunkDelta::leases(reclaimed));
                self.retry_lease_requests(out);
            }
        }
    }
}
