//! Replication: what an owner has to send to its replicas, and which changes are safe once they have acknowledged it.

use std::collections::BTreeMap;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::REPLICA_UPDATE_BYTES;
use peergrad_protocol::table::{ReplicaUpdate, Rows, TableChunk, TableMessage};

use super::{ChunkDelta, Outbox, TableError, TableServer};

/// The part of a chunk that a replica may lack.
#[derive(Clone, Debug)]
pub(super) enum Dirty {
    /// The whole chunk.
    Whole,
    /// Some rows, numbers of workers, or leases.
    Delta(ChunkDelta),
}

#[derive(Default)]
pub(super) struct Replica {
    /// The number of the frame on its way, or of the last one.
    number: u64,
    dirty: BTreeMap<usize, Dirty>,
    /// The chunk that is considered first for the next frame.
    turn: usize,
    /// The changes that the next frames make safe.
    next: Vec<(Rank, Change)>,
    in_flight: Option<InFlight>,
}

/// A frame that a replica has not acknowledged yet.
#[derive(Default)]
pub(super) struct InFlight {
    dirty: BTreeMap<usize, Dirty>,
    /// The changes that are safe at the replica once it acknowledges the frame.
    changes: Vec<(Rank, Change)>,
}

/// A change by a worker: an addition, with its sequence number and chunk, or a lease, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Added(u64, usize),
    Leased(u64),
}

impl Change {
    pub(super) fn chunk(self) -> usize {
        if let Self::Added(_, chunk) = self { chunk } else { 0 }
    }
}

impl Replica {
    /// Marks a part of a chunk as missing at this replica.
    pub(super) fn add(&mut self, chunk: usize, dirty: Dirty) {
        add_to(&mut self.dirty, chunk, dirty);
    }

    /// The next chunk to send, and the part of it. Chunks take turns, so that those which change all the time leave room for others.
    fn take_dirty(&mut self) -> Option<(usize, Dirty)> {
        let mut from_turn = self.dirty.range(self.turn..).chain(&self.dirty);
        let chunk = *from_turn.next()?.0;
        self.turn = chunk + 1;
        self.dirty.remove_entry(&chunk)
    }

    /// Whether the whole chunk has still to be sent to this replica.
    pub(super) fn lacks(&self, chunk: usize) -> bool {
        matches!(self.dirty.get(&chunk), Some(Dirty::Whole))
    }

    /// All parts that this replica may lack.
    pub(super) fn into_dirty(self) -> BTreeMap<usize, Dirty> {
        let mut dirty = self.in_flight.map(|frame| frame.dirty).unwrap_or_default();
        self.dirty.into_iter().for_each(|(chunk, more)| add_to(&mut dirty, chunk, more));
        dirty
    }

    /// The number of the frame that it has not acknowledged yet, if there is one.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|_| self.number)
    }
}

impl TableServer {
    /// The donor of a chunk hands it over to this member, its new owner.
    ///
    /// # Errors
    /// The chunk does not fit its table, the sender is not its donor, or this member is not its owner. Nothing is changed.
    pub fn on_handover(
        &mut self,
        from: Rank,
        state: &TableChunk,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        self.store.check(state)?;
        let chunk = state.chunk as usize;
        if self.replica_map.donor(chunk) != Some(from) || !self.owns(chunk) {
            return Err(TableError::NotOwned(chunk));
        }
        if self.awaiting_chunk.contains_key(&chunk) {
            self.receive(state);
            self.take_ownership(from, chunk, out);
        }
        self.send_updates(out);
        Ok(())
    }

    /// The owner of chunks sends their changes to this member, a replica.
    ///
    /// # Errors
    /// A chunk does not fit its table, the sender does not own it, or this member is no replica of it. Nothing is changed.
    pub fn on_replica_update(
        &mut self,
        from: Rank,
        update: &ReplicaUpdate,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        for state in &update.chunks {
            self.store.check(state)?;
            let chunk = state.chunk as usize;
            if self.replica_map.owner(chunk) != from || !self.keeps(chunk) {
                return Err(TableError::NotOwned(chunk));
            }
        }
        update.chunks.iter().for_each(|state| self.receive(state));
        out.push((from, TableMessage::ReplicaAck(update.number)));
        self.send_updates(out);
        Ok(())
    }

    fn receive(&mut self, state: &TableChunk) {
        self.store.receive_chunk(state);
        self.store.set_view_number(state.chunk as usize, self.replica_map.view_number);
    }

    /// The chunk has arrived at this member, its new owner.
    fn take_ownership(&mut self, donor: Rank, chunk: usize, out: &mut Outbox) {
        // If the donor is a replica, it has the chunk.
        for replica in self.replica_map.other_holders(chunk).iter().filter(|replica| **replica != donor) {
            self.replicas.entry(*replica).or_default().add(chunk, Dirty::Whole);
        }
        self.check_replication(chunk, out);
        let held = self.awaiting_chunk.remove(&chunk).unwrap_or_default();
        if chunk == 0 {
            self.reclaim_leases();
        }
        // Clocks did not wait for the chunk, so reads must include all changes that waited for it.
        let (changes, questions): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(_, request)| request.change().is_some());
        self.apply_waiting(chunk, changes, out);
        for (worker, request) in questions {
            if request.min_clock().is_some() {
                self.ready.entry(worker).or_default().push_back(request);
            } else {
                self.release(worker, &request);
                self.answer(worker, request, out).expect("whoever deals refuses nothing");
            }
        }
    }

    /// A replica has stored a frame.
    pub fn on_replica_ack(&mut self, from: Rank, number: u64, out: &mut Outbox) {
        let Some(replica) = self.replicas.get_mut(&from).filter(|replica| replica.number == number) else {
            return;
        };
        let InFlight { dirty, changes } = replica.in_flight.take().unwrap_or_default();
        for (worker, change) in changes {
            self.on_change_replicated(worker, change, out);
        }
        let whole = dirty.iter().filter(|(_, dirty)| matches!(dirty, Dirty::Whole)).map(|(chunk, _)| *chunk);
        let mut replicated = Vec::new();
        for chunk in whole {
            let Some(lacking) = self.unreplicated.get_mut(&chunk) else { continue };
            lacking.remove(&from);
            if lacking.is_empty() {
                self.unreplicated.remove(&chunk);
                replicated.push(chunk);
            }
        }
        if !replicated.is_empty() {
            self.announce_replicated(&replicated, out);
        }
        self.send_updates(out);
    }

    /// Marks a part of a chunk as missing at all its replicas.
    pub(super) fn mark_dirty(&mut self, chunk: usize, part: &ChunkDelta) {
        for replica in self.replica_map.other_holders(chunk) {
            let replica = self.replicas.entry(*replica).or_default();
            replica.add(chunk, Dirty::Delta(part.clone()));
        }
    }

    /// The number of replicas that lack a change until they acknowledge a frame that is on its way or yet to be sent.
    pub(super) fn replicas_missing(&mut self, worker: Rank, change: Change) -> usize {
        let chunk = change.chunk();
        let mut missing_at = 0;
        for replica in self.replica_map.other_holders(chunk) {
            let replica = self.replicas.entry(*replica).or_default();
            let is_in_flight = |frame: &&mut InFlight| frame.dirty.contains_key(&chunk);
            if replica.dirty.contains_key(&chunk) {
                replica.next.push((worker, change));
                missing_at += 1;
            } else if let Some(frame) = replica.in_flight.as_mut().filter(is_in_flight) {
                frame.changes.push((worker, change));
                missing_at += 1;
            }
        }
        missing_at
    }

    /// Sends the next changes to each replica that has acknowledged its last frame.
    pub(super) fn send_updates(&mut self, out: &mut Outbox) {
        for (rank, replica) in &mut self.replicas {
            if replica.in_flight.is_some() || replica.dirty.is_empty() {
                continue;
            }
            let (mut chunks, mut bytes, mut dirty) = (Vec::new(), 0, BTreeMap::new());
            while bytes < REPLICA_UPDATE_BYTES
                && let Some((chunk, what)) = replica.take_dirty()
            {
                let state = match &what {
                    Dirty::Whole => self.store.snapshot(chunk, None),
                    Dirty::Delta(part) => self.store.snapshot(chunk, Some(part)),
                };
                bytes += state_bytes(&state);
                chunks.push(state);
                dirty.insert(chunk, what);
            }
            let is_told = |(_, change): &(Rank, Change)| dirty.contains_key(&change.chunk());
            let (changes, next) = std::mem::take(&mut replica.next).into_iter().partition(is_told);
            replica.next = next;
            replica.in_flight = Some(InFlight { dirty, changes });
            replica.number += 1;
            out.push((*rank, TableMessage::ReplicaUpdate(ReplicaUpdate { number: replica.number, chunks })));
        }
    }
}

/// Adds to the missing parts of a chunk.
fn add_to(dirty: &mut BTreeMap<usize, Dirty>, chunk: usize, more: Dirty) {
    match (dirty.entry(chunk).or_insert_with(|| Dirty::Delta(ChunkDelta::default())), more) {
        (Dirty::Whole, _) => {}
        (known, Dirty::Whole) => *known = Dirty::Whole,
        (Dirty::Delta(part), Dirty::Delta(more)) => part.extend(more),
    }
}

/// The approximate number of bytes that a chunk's state takes on the wire.
fn state_bytes(state: &TableChunk) -> usize {
    let numbers = |rows: &Rows| (rows.values.len() + rows.indices.len()) * size_of::<f32>();
    /// The bytes of a worker's id and the number of its last change.
    const WORKER_ID_BYTES: usize = 50;
    state.applied.len() * WORKER_ID_BYTES
        + numbers(&state.rows)
        + state.pending.iter().map(|(_, rows)| numbers(rows)).sum::<usize>()
}
