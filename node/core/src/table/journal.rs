//! The journal: changes of other members' workers that this member keeps until they are safe. So all changes of a transaction are carried out
//! or none, also if the worker is lost.
//!
//! ```text
//! worker                         keepers of its journal          owners
//!   a transaction          -->     keep it
//!                          <--     kept
//!   changes                ---------------------------------->     apply each once
//!                          <----------------------------------     acknowledge it, once replicas have it
//!   forget                 -->     forget it
//! ```
//! The keepers of a worker's journal are a function of the view: as many members as a chunk has replicas besides its owner.
//!
//! # If the worker is lost
//! In the next view, each member that has kept whole transactions of the worker takes its place: it gives them to those who are keepers now,
//! and then sends them to their owners. All of this comes before its own clock. So once all members have sent their clocks, an owner has all
//! changes of workers that are gone. What a keeper has of an incomplete transaction is dropped: no owner has any of it.
//!
//! # Invariants
//! - A member that has a transaction has all earlier transactions of that worker which are not safe. So owners may ignore a change with a
//!   lower number than the last one: they have it.
//! - As the state of a chunk, a transaction in progress survives the loss of all but one of the members that have it. If its worker and all
//!   its keepers are lost, or leave, before others have it, it may be carried out in part. Where chunks have only one holder, there is no
//!   journal.
//! - A member speaks only for its own worker and for workers that are gone. For the latter, the others trust it as they trust an owner.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{MEMBERS_MAX, WAITING_REQUEST_BYTES_MAX};
use peergrad_protocol::table::{JournalMessage, Operation, TableChange, TableMessage, WorkerId};

use super::change_queue::ChangeQueue;
use super::owners::Owners;
use super::replica_map::ReplicaMap;
use super::server::Outbox;
use super::{TableError, TableLayout};

/// The changes of other workers that this member keeps.
pub struct Journal {
    /// The tables, and the owner of each of their chunks.
    owners: Owners,
    /// The changes of each worker of the view.
    kept: BTreeMap<WorkerId, KeptChanges>,
    /// The changes of workers that are gone, which this member sends in their place.
    replays: BTreeMap<WorkerId, ChangeQueue>,
    /// For each member: the workers that are gone and of which it has sent changes in this view.
    senders: BTreeMap<Rank, BTreeSet<WorkerId>>,
}

/// The changes of one worker.
#[derive(Default)]
struct KeptChanges {
    /// The changes of whole transactions, in order, each with the number of the last change of its transaction.
    whole: VecDeque<(TableChange, u64)>,
    /// The number of the last change of the last whole transaction.
    whole_up_to: u64,
    /// For each member that sends changes of this worker, those of the transaction that is not whole yet. If the worker is gone, these may be
    /// several members.
    open: BTreeMap<Rank, OpenTransaction>,
    /// The bytes of all these changes.
    bytes: usize,
}

/// A transaction that is not whole yet.
#[derive(Default)]
struct OpenTransaction {
    /// Its changes so far.
    changes: Vec<TableChange>,
    /// Whether a change was refused in this view: then none that follow can be kept.
    has_refused: bool,
}

impl Journal {
    /// An empty journal, before the first view.
    #[must_use]
    pub fn new(layout: Arc<TableLayout>) -> Self {
        Self {
            owners: Owners::new(layout),
            kept: BTreeMap::new(),
            replays: BTreeMap::new(),
            senders: BTreeMap::new(),
        }
    }

    /// Enters a view, in which this member has this rank. It takes the place of workers that are gone.
    pub fn enter(&mut self, me: Rank, replica_map: Arc<ReplicaMap>, out: &mut Outbox) {
        let members: BTreeSet<WorkerId> = replica_map.members.iter().copied().collect();
        self.owners.enter(me, replica_map);
        self.senders.clear();
        self.kept.values_mut().for_each(KeptChanges::drop_open);
        let is_there = |(worker, _): &(WorkerId, KeptChanges)| members.contains(worker);
        let (here, departed) = std::mem::take(&mut self.kept).into_iter().partition(is_there);
        self.kept = here;
        let departed: BTreeMap<WorkerId, KeptChanges> = departed;
        for (worker, kept) in departed {
            let before = self.replays.remove(&worker).into_iter().flat_map(ChangeQueue::into_changes);
            let changes: BTreeMap<u64, (TableChange, u64)> = before
                .chain(kept.whole)
                .map(|(change, transaction)| (change.sequence, (change, transaction)))
                .collect();
            // Two copies of a transaction may lack different changes, which are safe: then its last change is another one.
            let mut end = 0;
            let changes = changes.into_values().map(|(change, transaction)| {
                end = if change.sequence <= end { transaction.max(end) } else { transaction };
                (change, end)
            });
            self.replays.insert(worker, ChangeQueue::of_departed(worker, changes));
        }
        self.replays.retain(|worker, queue| !queue.is_empty() && !members.contains(worker));
        for (worker, queue) in &mut self.replays {
            queue.enter(&self.owners, self.owners.keepers(*worker), out);
        }
    }

    /// Whether the changes of all workers that are gone were sent to their owners in this view.
    #[must_use]
    pub fn has_replayed(&self) -> bool {
        self.replays.values().all(|queue| queue.held_since().is_none())
    }

    /// Whether no changes of workers that are gone wait for their owners.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.replays.is_empty()
    }

    /// The members that changes of workers that are gone wait for.
    #[must_use]
    pub fn awaited(&self) -> BTreeSet<Rank> {
        self.replays.values().flat_map(|queue| queue.awaited(&self.owners)).collect()
    }

    /// A member sends a change to keep, keeps one of a worker that is gone, or needs one no more.
    ///
    /// # Errors
    /// The message is one that no correct member sends.
    pub fn on_message(
        &mut self,
        from: Rank,
        message: JournalMessage,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        match message {
            JournalMessage::Keep { worker, change, ends_transaction } => {
                self.keep(from, worker, change, ends_transaction, out)?;
            }
            JournalMessage::Kept { worker, up_to } => {
                if let Some(queue) = self.replays.get_mut(&worker) {
                    queue.on_kept(from, up_to, &self.owners, out);
                }
            }
            JournalMessage::Forget { worker, up_to } => {
                self.check_sender(from, &worker)?;
                if let Some(kept) = self.kept.get_mut(&worker) {
                    kept.forget(up_to);
                }
            }
        }
        Ok(())
    }

    /// An owner has changes of a worker that is gone, up to this number.
    pub fn on_acknowledged(&mut self, from: Rank, worker: WorkerId, up_to: u64, out: &mut Outbox) {
        if let Some(queue) = self.replays.get_mut(&worker) {
            queue.acknowledge(from, up_to, &self.owners, |_| {}, out);
            if queue.is_empty() {
                self.replays.remove(&worker);
            }
        }
    }

    fn keep(
        &mut self,
        from: Rank,
        worker: WorkerId,
        change: TableChange,
        ends_transaction: bool,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        self.check_sender(from, &worker)?;
        self.owners.layout.check_change(&change)?;
        if worker != self.owners.replica_map.worker_id(from) {
            let departed = self.senders.entry(from).or_default();
            if departed.len() == MEMBERS_MAX && !departed.contains(&worker) {
                return Err(TableError::TooManyDeparted(MEMBERS_MAX));
            }
            departed.insert(worker);
        }
        let (kept, sequence) = (self.kept.entry(worker).or_default(), change.sequence);
        kept.add(from, change, ends_transaction)?;
        if ends_transaction {
            let kept = JournalMessage::Kept { worker, up_to: sequence };
            out.push((from, TableMessage::Journal(kept)));
        }
        Ok(())
    }

    /// An error unless this member may speak for the worker: it is its own, or one that is gone.
    fn check_sender(&self, from: Rank, worker: &WorkerId) -> Result<(), TableError> {
        let replica_map = &self.owners.replica_map;
        let is_own = replica_map.worker_id(from) == *worker;
        if is_own || !replica_map.members.contains(worker) { Ok(()) } else { Err(TableError::OtherWorker) }
    }
}

impl KeptChanges {
    /// Keeps the next change that this member sends.
    ///
    /// # Errors
    /// It does not follow the one before, or too many bytes are kept for this worker.
    fn add(&mut self, from: Rank, change: TableChange, ends_transaction: bool) -> Result<(), TableError> {
        let open = self.open.entry(from).or_default();
        if change.sequence <= self.whole_up_to {
            // Another member has sent the transaction.
            self.bytes -= open.changes.drain(..).map(|change| change.bytes()).sum::<usize>();
            return Ok(());
        }
        // A transaction has at most one change of each chunk, and ends with that of leases: so its size is bounded by that of the tables.
        let is_completion = matches!(change.operation, Operation::Complete { .. });
        let follows = open.changes.last().is_none_or(|last| {
            let is_in_order = change.chunk > last.chunk || (is_completion && ends_transaction);
            change.sequence > last.sequence && is_in_order
        });
        let is_too_much = open.changes.is_empty() && self.bytes > WAITING_REQUEST_BYTES_MAX;
        if open.has_refused || !follows || is_too_much {
            open.has_refused = true;
            return Err(match is_too_much {
                true => TableError::TooManyBytes(WAITING_REQUEST_BYTES_MAX),
                false => TableError::OutOfOrder,
            });
        }
        let transaction = change.sequence;
        self.bytes += change.bytes();
        open.changes.push(change);
        if ends_transaction {
            let changes = std::mem::take(&mut open.changes);
            let (news, known): (Vec<_>, Vec<_>) =
                changes.into_iter().partition(|change| change.sequence > self.whole_up_to);
            self.bytes -= known.iter().map(TableChange::bytes).sum::<usize>();
            self.whole.extend(news.into_iter().map(|change| (change, transaction)));
            self.whole_up_to = transaction;
        }
        Ok(())
    }

    /// The changes up to this number are safe.
    fn forget(&mut self, up_to: u64) {
        let safe = self.whole.partition_point(|(_, transaction)| *transaction <= up_to);
        self.bytes -= self.whole.drain(..safe).map(|(change, _)| change.bytes()).sum::<usize>();
    }

    /// A view begins: the rest of an incomplete transaction never comes, or all of it comes again.
    fn drop_open(&mut self) {
        let open = std::mem::take(&mut self.open).into_values().flat_map(|open| open.changes);
        self.bytes -= open.map(|change| change.bytes()).sum::<usize>();
    }
}

#[cfg(test)]
mod tests;
