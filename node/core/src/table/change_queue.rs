//! The change queue: the changes of one worker, in order, from when they are made until they are safe at their owners.
//!
//! # Transactions
//! Changes that belong together are a *transaction*. If the queue has a journal, the members that keep it get a whole transaction first. Its
//! changes are *released*, which means sent to their owners, once all keepers have it. So if the worker is lost, either no owner has any of
//! them, or a keeper has all of them and sends them in the worker's place. Owners apply each only once, also if several members send it.
//!
//! Without a journal, each change is sent at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use peergrad_protocol::Rank;
use peergrad_protocol::limits::JOURNAL_BYTES_MAX;
use peergrad_protocol::table::{
    IdempotencyKey, JournalMessage, Operation, Request, TableChange, TableMessage, WorkerId,
};

use super::owners::Owners;
use super::server::Outbox;

/// The changes of one worker that are not acknowledged yet.
#[derive(Default)]
pub(super) struct ChangeQueue {
    /// The worker, if it is gone and this member has taken its place; `None` for this member's own worker.
    departed: Option<WorkerId>,
    /// The number of the last change.
    last: u64,
    /// The changes that are not acknowledged, in order.
    entries: VecDeque<QueuedChange>,
    /// The bytes of `entries`.
    bytes: usize,
    /// The changes up to this number were sent to their owners in this view.
    released: u64,
    /// The members that keep the journal in this view; of each, up to which number it has said to keep the changes.
    keepers: BTreeMap<Rank, u64>,
    /// The changes up to this number were sent to the keepers in this view.
    sent_to_keepers: u64,
    /// The transactions that were sent to keepers, in this view or before, and that they were not told to forget: the number of each, and its
    /// bytes.
    kept_transactions: VecDeque<(u64, usize)>,
    /// The bytes of `kept_transactions`.
    kept_bytes: usize,
    /// For each chunk, the sequence number of the worker's last change to it.
    last_by_chunk: BTreeMap<usize, u64>,
    /// The changes after this number wait until a cut is taken; `None` while none is.
    hold_after: Option<u64>,
    /// The number of the last change before this view, if some up to it are not acknowledged: keepers of earlier views may have them.
    before_view: Option<u64>,
}

/// One change.
pub(super) struct QueuedChange {
    /// The change itself.
    pub(super) change: TableChange,
    /// The worker's clock in which it was made.
    clock: u64,
    /// The number of the last change of its transaction.
    transaction: u64,
}

impl ChangeQueue {
    /// The changes that a worker which is gone has made, with the transactions that they belong to. They are in the order of their numbers.
    pub(super) fn of_departed(worker: WorkerId, changes: impl Iterator<Item = (TableChange, u64)>) -> Self {
        let entries: VecDeque<QueuedChange> =
            changes.map(|(change, transaction)| QueuedChange { change, clock: 0, transaction }).collect();
        Self {
            departed: Some(worker),
            last: entries.back().map_or(0, |entry| entry.change.sequence),
            bytes: entries.iter().map(QueuedChange::bytes).sum(),
            entries,
            ..Self::default()
        }
    }

    /// Its changes that are not acknowledged, with the transactions that they belong to.
    pub(super) fn into_changes(self) -> impl Iterator<Item = (TableChange, u64)> {
        self.entries.into_iter().map(|entry| (entry.change, entry.transaction))
    }

    /// The changes that are not acknowledged, in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = &QueuedChange> {
        self.entries.iter()
    }

    /// The sequence number of the worker's last change to this chunk; 0 if it has made none.
    pub(super) fn last_of(&self, chunk: usize) -> u64 {
        self.last_by_chunk.get(&chunk).copied().unwrap_or(0)
    }

    /// Whether all changes are acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes of the changes that are not acknowledged.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of the last change.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// All changes up to this number are acknowledged.
    pub(super) fn acknowledged_up_to(&self) -> u64 {
        self.entries.front().map_or(self.last, |entry| entry.change.sequence - 1)
    }

    /// The first change that was not sent to its owner in this view.
    fn first_held(&self) -> Option<&QueuedChange> {
        self.entries.get(self.entries.partition_point(|entry| entry.change.sequence <= self.released))
    }

    /// All changes up to this number were sent to their owners.
    pub(super) fn released_up_to(&self) -> u64 {
        self.first_held().map_or(self.last, |entry| entry.change.sequence - 1)
    }

    /// The clock of the first change that was not sent to its owner yet; `None` if all were sent.
    pub(super) fn held_since(&self) -> Option<u64> {
        self.first_held().map(|entry| entry.clock)
    }

    /// The members that the first change waits for which was not sent to its owner yet: keepers that have yet to say that they keep it; or,
    /// if they have no room for it, the owner of the oldest change that is not acknowledged. None if all changes were sent.
    pub(super) fn awaited(&self, owners: &Owners) -> BTreeSet<Rank> {
        let (Some(held), Some(oldest)) = (self.first_held(), self.entries.front()) else {
            return BTreeSet::new();
        };
        if held.change.sequence > self.sent_to_keepers {
            return BTreeSet::from([owners.of(oldest.change.chunk as usize)]);
        }
        let lacks = |(_, kept): &(&Rank, &u64)| **kept < held.change.sequence;
        self.keepers.iter().filter(lacks).map(|(rank, _)| *rank).collect()
    }

    /// Enters a view in which these members keep the journal.
    pub(super) fn enter(&mut self, owners: &Owners, keepers: impl Iterator<Item = Rank>, out: &mut Outbox) {
        self.released = 0;
        self.hold_after = None;
        self.sent_to_keepers = 0;
        self.keepers = keepers.map(|rank| (rank, 0)).collect();
        self.before_view = Some(self.last);
        self.forget(owners, out);
        self.send_to_keepers(owners, out);
        self.release(owners, out);
    }

    /// Records a transaction of changes that are made in this clock, each with its chunk and perhaps a key.
    pub(super) fn record(
        &mut self,
        clock: u64,
        transaction: Vec<(usize, Option<IdempotencyKey>, Operation)>,
        owners: &Owners,
        out: &mut Outbox,
    ) {
        let end = self.last + transaction.len() as u64;
        for (chunk, key, operation) in transaction {
            self.last += 1;
            self.last_by_chunk.insert(chunk, self.last);
            let change = TableChange { sequence: self.last, chunk: chunk as u32, key, operation };
            let entry = QueuedChange { change, clock, transaction: end };
            self.bytes += entry.bytes();
            self.entries.push_back(entry);
        }
        self.send_to_keepers(owners, out);
        self.release(owners, out);
    }

    /// Sends the next transactions to the keepers of the journal, as far as these have room.
    fn send_to_keepers(&mut self, owners: &Owners, out: &mut Outbox) {
        if self.keepers.is_empty() {
            return;
        }
        let worker = self.worker(owners);
        let first = self.entries.partition_point(|entry| entry.change.sequence <= self.sent_to_keepers);
        for at in first..self.entries.len() {
            let QueuedChange { change, transaction, .. } = &self.entries[at];
            // The keepers of the view before may still have all of an earlier transaction.
            if self.kept_transactions.back().is_none_or(|(last, _)| last < transaction) {
                if self.kept_bytes > JOURNAL_BYTES_MAX {
                    break;
                }
                let its = self.entries.range(at..).take_while(|entry| entry.transaction == *transaction);
                let bytes = its.map(|entry| entry.change.bytes()).sum();
                self.kept_transactions.push_back((*transaction, bytes));
                self.kept_bytes += bytes;
            }
            // The last change of a transaction may be acknowledged before others.
            let ends_transaction =
                self.entries.get(at + 1).is_none_or(|next| next.transaction != *transaction);
            for rank in self.keepers.keys() {
                let keep = JournalMessage::Keep { worker, change: change.clone(), ends_transaction };
                out.push((*rank, TableMessage::Journal(keep)));
            }
            self.sent_to_keepers = change.sequence;
        }
    }

    fn worker(&self, owners: &Owners) -> WorkerId {
        self.departed.unwrap_or_else(|| owners.own_id())
    }

    /// Sends the changes that all keepers have to their owners.
    fn release(&mut self, owners: &Owners, out: &mut Outbox) {
        let kept_up_to = self.keepers.values().min().copied().unwrap_or(u64::MAX);
        let kept_up_to = kept_up_to.min(self.hold_after.unwrap_or(u64::MAX));
        let first = self.entries.partition_point(|entry| entry.change.sequence <= self.released);
        for entry in self.entries.range(first..) {
            let TableChange { sequence, chunk, .. } = entry.change;
            if sequence > kept_up_to {
                break;
            }
            let change = entry.change.clone();
            let request = match self.departed {
                None => Request::Change(change),
                Some(worker) => Request::Replay { worker, change },
            };
            owners.send(chunk as usize, request, out);
            self.released = sequence;
        }
    }

    /// Holds back the changes that no owner can have: those that were sent to owners neither in this view nor, perhaps, before it. They are
    /// whole transactions.
    pub(super) fn hold(&mut self) {
        self.hold_after = Some(self.released_up_to().max(self.before_view.unwrap_or(0)));
    }

    /// Whether all changes are safe that were not held back.
    pub(super) fn is_held(&self) -> bool {
        self.hold_after.is_some_and(|last| self.acknowledged_up_to() >= last)
    }

    /// Sends the changes that were held back.
    pub(super) fn end_hold(&mut self, owners: &Owners, out: &mut Outbox) {
        self.hold_after = None;
        self.release(owners, out);
    }

    /// A keeper keeps the changes up to this number.
    pub(super) fn on_kept(&mut self, from: Rank, up_to: u64, owners: &Owners, out: &mut Outbox) {
        if let Some(kept) = self.keepers.get_mut(&from) {
            *kept = up_to.max(*kept);
            self.release(owners, out);
        }
    }

    /// An owner acknowledges the changes of its chunks up to this number. `on_safe` is called for each.
    pub(super) fn acknowledge(
        &mut self,
        from: Rank,
        up_to: u64,
        owners: &Owners,
        mut on_safe: impl FnMut(&QueuedChange),
        out: &mut Outbox,
    ) {
        let bytes = &mut self.bytes;
        self.entries.retain(|entry| {
            let TableChange { sequence, chunk, .. } = entry.change;
            let is_safe = sequence <= up_to && owners.of(chunk as usize) == from;
            if is_safe {
                *bytes -= entry.bytes();
                on_safe(entry);
            }
            !is_safe
        });
        self.forget(owners, out);
    }

    /// Tells the keepers which whole transactions they may forget; and all members, once all changes from before this view are safe.
    fn forget(&mut self, owners: &Owners, out: &mut Outbox) {
        if self.keepers.is_empty() {
            return;
        }
        let first_unsafe = self.entries.front().map_or(u64::MAX, |entry| entry.transaction);
        let safe = self.kept_transactions.partition_point(|(transaction, _)| *transaction < first_unsafe);
        let are_safe = safe > 0;
        self.kept_bytes -= self.kept_transactions.drain(..safe).map(|(_, bytes)| bytes).sum::<usize>();
        let up_to = self.acknowledged_up_to();
        let forget = JournalMessage::Forget { worker: self.worker(owners), up_to };
        let message = |rank: Rank| (rank, TableMessage::Journal(forget.clone()));
        if self.before_view.take_if(|before| up_to >= *before).is_some() {
            out.extend(owners.other_ranks().map(message));
        } else if are_safe {
            out.extend(self.keepers.keys().copied().map(message));
        }
        if are_safe {
            self.send_to_keepers(owners, out);
        }
    }
}

impl QueuedChange {
    /// An estimate of the memory that the entry takes, in bytes.
    fn bytes(&self) -> usize {
        size_of::<u64>() * 2 + self.change.bytes()
    }
}
