//! Replication: what an owner has to send to its replicas, and which changes are safe once they have acknowledged it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::REPLICA_UPDATE_BYTES;
use peergrad_protocol::table::{ReplicaUpdate, Rows, TableChunk, TableMessage, WorkerId};

use super::super::store::TableStore;
use super::{Author, ChunkDelta, Outbox, ReplicaMap, TableError, TableServer};

/// The part of a chunk that a replica may lack.
#[derive(Clone, Debug)]
pub(super) enum Dirty {
    /// The whole chunk.
    Whole,
    /// Some rows, numbers of workers, or leases.
    Delta(ChunkDelta),
}

/// A replica of chunks that are owned here.
#[derive(Default)]
struct Replica {
    /// The number of the frame on its way, or of the last one.
    number: u64,
    /// For each chunk, what changed since it was last sent and is yet to be sent.
    dirty: BTreeMap<usize, Dirty>,
    /// The chunk that is considered first for the next frame.
    turn: usize,
    /// The changes that the next frames make safe.
    next: Vec<(Author, Change)>,
    /// The frame that is on its way; `None` if the replica has acknowledged all.
    in_flight: Option<InFlight>,
}

/// A frame that a replica has not acknowledged yet.
#[derive(Default)]
struct InFlight {
    /// For each chunk, what the frame contains: it is dirty again if the view changes before the replica acknowledges it.
    dirty: BTreeMap<usize, Dirty>,
    /// The changes that are safe at the replica once it acknowledges the frame.
    changes: Vec<(Author, Change)>,
}

/// A change of a chunk by a worker, with its sequence number and chunk, or a lease that the worker gets, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Numbered(u64, usize),
    Leased(u64),
}

impl Change {
    pub(super) fn chunk(self) -> usize {
        if let Self::Numbered(_, chunk) = self { chunk } else { 0 }
    }
}

impl Replica {
    /// Marks a part of a chunk as missing at this replica.
    fn add(&mut self, chunk: usize, dirty: Dirty) {
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
    fn lacks(&self, chunk: usize) -> bool {
        matches!(self.dirty.get(&chunk), Some(Dirty::Whole))
    }

    /// All parts that this replica may lack.
    fn into_dirty(self) -> BTreeMap<usize, Dirty> {
        let mut dirty = self.in_flight.map(|frame| frame.dirty).unwrap_or_default();
        self.dirty.into_iter().for_each(|(chunk, more)| add_to(&mut dirty, chunk, more));
        dirty
    }

    /// The number of the frame that it has not acknowledged yet, if there is one.
    #[cfg(test)]
    fn in_flight(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|_| self.number)
    }
}

/// What the replicas of the chunks that are owned here have, and what they lack.
pub(super) struct Replication {
    /// The members, and the holders of each chunk.
    replica_map: Arc<ReplicaMap>,
    /// For each member that holds replicas of chunks owned here: what it is sent.
    replicas: BTreeMap<Rank, Replica>,
    /// The chunks owned here that some of their replicas lack, with those replicas.
    unreplicated: BTreeMap<usize, BTreeSet<Rank>>,
}

impl Replication {
    /// The replicas in a view, before anything is known of them.
    pub(super) fn new(replica_map: Arc<ReplicaMap>) -> Self {
        Self { replica_map, replicas: BTreeMap::new(), unreplicated: BTreeMap::new() }
    }

    /// A chunk begins to be owned by the member of rank `me`, in this view, which `before` precedes: its replicas lack what they lacked
    /// before, or all of it if they were not its replicas.
    pub(super) fn begin_chunk(
        &mut self,
        me: Rank,
        chunk: usize,
        before: &ReplicaMap,
        dirty: &mut BTreeMap<WorkerId, BTreeMap<usize, Dirty>>,
    ) {
        let replica_map = &self.replica_map;
        for replica in replica_map.other_holders(chunk) {
            let (mine, theirs) = (replica_map.worker_id(me), replica_map.worker_id(*replica));
            let is_current = replica_map.up_to_date[chunk].contains(replica);
            let known = if is_current && was_replicating(before, mine, theirs, chunk) {
                dirty.get_mut(&theirs).and_then(|dirty| dirty.remove(&chunk))
            } else {
                Some(Dirty::Whole)
            };
            let replica = self.replicas.entry(*replica).or_default();
            known.into_iter().for_each(|dirty| replica.add(chunk, dirty));
        }
    }

    /// A chunk has arrived from its donor: its other replicas lack all of it.
    fn begin_received_chunk(&mut self, donor: Rank, chunk: usize) {
        // If the donor is a replica, it has the chunk.
        for replica in self.replica_map.other_holders(chunk).iter().filter(|replica| **replica != donor) {
            self.replicas.entry(*replica).or_default().add(chunk, Dirty::Whole);
        }
    }

    /// Records which replicas lack an owned chunk. If there are none, all members learn at once that it is replicated.
    pub(super) fn check_chunk(&mut self, chunk: usize, out: &mut Outbox) {
        let lacks = |(_, replica): &(&Rank, &Replica)| replica.lacks(chunk);
        let lacking: BTreeSet<Rank> = self.replicas.iter().filter(lacks).map(|(rank, _)| *rank).collect();
        if lacking.is_empty() {
            self.announce(&[chunk], out);
        } else {
            self.unreplicated.insert(chunk, lacking);
        }
    }

    fn announce(&self, chunks: &[usize], out: &mut Outbox) {
        let chunks: ChunkSet = chunks.iter().copied().collect();
        out.extend(self.replica_map.ranks().map(|rank| (rank, TableMessage::Replicated(chunks.clone()))));
    }

    /// A replica has stored the frame of this number. Returns what was in the frame; `None` if no such frame is on its way.
    fn acknowledged(&mut self, from: Rank, number: u64) -> Option<InFlight> {
        let replica = self.replicas.get_mut(&from).filter(|replica| replica.number == number)?;
        Some(replica.in_flight.take().unwrap_or_default())
    }

    /// A replica has all that these parts name. If all replicas have a whole chunk now, all members learn so.
    fn note_stored(&mut self, from: Rank, dirty: &BTreeMap<usize, Dirty>, out: &mut Outbox) {
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
            self.announce(&replicated, out);
        }
    }

    /// The parts that each replica may lack at the end of the view.
    pub(super) fn into_dirty(self) -> BTreeMap<WorkerId, BTreeMap<usize, Dirty>> {
        let Self { replica_map, replicas, .. } = self;
        let dirty = |(rank, replica): (Rank, Replica)| (replica_map.worker_id(rank), replica.into_dirty());
        replicas.into_iter().map(dirty).collect()
    }

    /// The number of the frame that a replica has not acknowledged yet, if there is one.
    #[cfg(test)]
    pub(super) fn in_flight(&self, rank: Rank) -> Option<u64> {
        self.replicas.get(&rank)?.in_flight()
    }

    /// Marks a part of a chunk as missing at all its replicas.
    pub(super) fn mark_dirty(&mut self, chunk: usize, part: &ChunkDelta) {
        for replica in self.replica_map.other_holders(chunk) {
            let replica = self.replicas.entry(*replica).or_default();
            replica.add(chunk, Dirty::Delta(part.clone()));
        }
    }

    /// The number of replicas that lack a change until they acknowledge a frame that is on its way or yet to be sent.
    pub(super) fn missing_at(&mut self, worker: Author, change: Change) -> usize {
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
    pub(super) fn send_updates(&mut self, store: &TableStore, out: &mut Outbox) {
        for (rank, replica) in &mut self.replicas {
            if replica.in_flight.is_some() || replica.dirty.is_empty() {
                continue;
            }
            let (mut chunks, mut bytes, mut dirty) = (Vec::new(), 0, BTreeMap::new());
            while bytes < REPLICA_UPDATE_BYTES
                && let Some((chunk, what)) = replica.take_dirty()
            {
                let state = match &what {
                    Dirty::Whole => store.snapshot(chunk, None),
                    Dirty::Delta(part) => store.snapshot(chunk, Some(part)),
                };
                bytes += state_bytes(&state);
                chunks.push(state);
                dirty.insert(chunk, what);
            }
            let is_dirty = |(_, change): &(Author, Change)| dirty.contains_key(&change.chunk());
            let (changes, next) = std::mem::take(&mut replica.next).into_iter().partition(is_dirty);
            replica.next = next;
            replica.in_flight = Some(InFlight { dirty, changes });
            replica.number += 1;
            out.push((*rank, TableMessage::ReplicaUpdate(ReplicaUpdate { number: replica.number, chunks })));
        }
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
        self.replication.send_updates(&self.store, out);
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
        self.replication.send_updates(&self.store, out);
        Ok(())
    }

    fn receive(&mut self, state: &TableChunk) {
        self.store.receive_chunk(state);
        self.store.set_view_number(state.chunk as usize, self.replica_map.view_number);
    }

    /// The chunk has arrived at this member, its new owner.
    fn take_ownership(&mut self, donor: Rank, chunk: usize, out: &mut Outbox) {
        self.replication.begin_received_chunk(donor, chunk);
        self.replication.check_chunk(chunk, out);
        let held = self.awaiting_chunk.remove(&chunk).unwrap_or_default();
        // Clocks did not wait for the chunk, so reads must include all changes that waited for it.
        let (changes, questions): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(_, request)| request.change().is_some());
        self.apply_waiting(chunk, changes, out);
        for (worker, request) in questions {
            if request.min_clock().is_some() {
                self.ready.entry(worker).or_default().push_back(request);
            } else {
                self.release(worker, &request);
                self.answer(worker, request, out)
                    .expect("the owner of the lease table refuses no request that it has accepted");
            }
        }
        self.settle_departed(out);
    }

    /// A replica has stored a frame.
    pub fn on_replica_ack(&mut self, from: Rank, number: u64, out: &mut Outbox) {
        let Some(InFlight { dirty, changes }) = self.replication.acknowledged(from, number) else { return };
        for (worker, change) in changes {
            self.on_change_replicated(worker, change, out);
        }
        self.replication.note_stored(from, &dirty, out);
        self.replication.send_updates(&self.store, out);
    }
}

/// Whether in this replica map `owner` owned the chunk and `replica` stored a replica of it.
fn was_replicating(replica_map: &ReplicaMap, owner: WorkerId, replica: WorkerId, chunk: usize) -> bool {
    let rank = |who| replica_map.members.iter().position(|member| *member == who).map(Rank::from_index);
    let Some(holders) = replica_map.holders.get(chunk) else { return false };
    rank(owner) == Some(holders[0]) && rank(replica).is_some_and(|replica| holders[1..].contains(&replica))
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
    /// The bytes of the number of a key.
    const KEY_BYTES: usize = 5;
    let keys = state.used_keys.as_ref().map_or(0, |keys| keys.numbers.len());
    state.applied.len() * WORKER_ID_BYTES
        + keys * KEY_BYTES
        + numbers(&state.rows)
        + state.pending.iter().map(|(_, rows)| numbers(rows)).sum::<usize>()
}
