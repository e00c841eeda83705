//! The server: a member's part as owner and as replica of chunks, in one view.
//!
//! # How it works
//! Additions are applied when they arrive, and the changed rows become *dirty* for each replica. A replica has one frame on its way at a
//! time, with all that was dirty when the frame was sent. Once the replica acknowledges the frame, the rows in it are safe there. Additions
//! that are safe at all replicas are acknowledged to their worker, in the order in which the worker sent them.
//!
//! # When a chunk changes hands
//! The new owner gets the chunk from a member that has stored it, and sends it to all new replicas. Until all of them have it, its earlier
//! holders keep it: so the chunk survives the loss of any one member. What is acknowledged meanwhile is at all new holders.
//!
//! # Clocks
//! Clocks belong to a view: a worker sends its clock after it has repeated what may be lost. So no read is answered before all workers have
//! done that. A new worker has no clock, and no other waits for it until it sends one; from then on it counts as at least as far as the
//! slowest. A worker that has ended has completed all clocks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::WAITING_REQUEST_BYTES_MAX;
use peergrad_protocol::table::{
    Operation, Request, Response, SampleLease, TableChange, TableMessage, WorkerId,
};

use super::TableError;
use super::lease_table::{self, LeasePolicy};
use super::replica_map::ReplicaMap;
use super::store::{ChunkDelta, StoredRows, TableStore};
use clocks::WorkerClocks;
use leases::LeaseRequest;
use replication::{Change, Dirty, Replication};

mod clocks;
mod departed;
mod leases;
mod replication;
mod waiting;

/// Messages and their receivers.
pub type Outbox = Vec<(Rank, TableMessage)>;

/// One member's tables, as owner and replica, in one view.
pub struct TableServer {
    /// This member's rank in the view.
    me: Rank,
    /// The members, and the holders of each chunk.
    replica_map: Arc<ReplicaMap>,
    /// The chunks that are stored here.
    store: TableStore,
    /// How many samples are leased in the run, and how many workers may have leases.
    lease_policy: LeasePolicy,
    /// How far each worker is.
    clocks: WorkerClocks,
    /// Reads that wait for a clock, in the order in which they arrived.
    waiting: Vec<(Rank, Request)>,
    /// For each worker, reads whose clock has come, but that wait until the worker has processed earlier responses.
    ready: BTreeMap<Rank, VecDeque<Request>>,
    /// For each worker, its lease request that cannot be granted yet.
    lease_requests: BTreeMap<Rank, LeaseRequest>,
    /// For each chunk that has not arrived yet, the requests for it.
    awaiting_chunk: BTreeMap<usize, Vec<(Rank, Request)>>,
    /// For each chunk that is here, additions of clocks that are too far ahead, as far as this owner knows.
    early: BTreeMap<usize, Vec<(Rank, Request)>>,
    /// What the replicas of the chunks owned here have, and what they lack.
    replication: Replication,
    /// What this owner knows about the changes and the waiting requests of each worker, by who sends them.
    workers: BTreeMap<Author, WorkerRecord>,
    /// The chunks owned here that may have numbers and leases of workers that are gone.
    unsettled: BTreeSet<usize>,
    /// For each chunk owned here, the workers that are gone and of which another member has sent changes in this view.
    replayed: BTreeMap<usize, BTreeSet<WorkerId>>,
}

/// Who makes changes: a member's worker, or one that is gone, of which a member sends the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Author {
    /// The member that sends the changes.
    sender: Rank,
    /// The worker that is gone; `None` for the sender's own worker.
    departed: Option<WorkerId>,
}

impl Author {
    /// The worker of this member.
    fn own(sender: Rank) -> Self {
        Self { sender, departed: None }
    }

    /// Whose change a request is.
    fn of(sender: Rank, request: &Request) -> Self {
        let departed = if let Request::Replay { worker, .. } = request { Some(*worker) } else { None };
        Self { sender, departed }
    }
}

/// The state that is passed on to the next view.
pub struct ViewHandover {
    /// The chunks that are stored here.
    store: TableStore,
    /// The members of the view before, and the holders of each chunk there.
    replica_map: Arc<ReplicaMap>,
    /// For each replica, the changes that it may lack.
    dirty: BTreeMap<WorkerId, BTreeMap<usize, Dirty>>,
}

/// What an owner knows about a worker's changes in this view.
#[derive(Default)]
struct WorkerRecord {
    /// The changes that are not safe yet, and the number of replicas that lack each.
    pending: BTreeMap<Change, usize>,
    /// The number of the worker's newest change here.
    newest: u64,
    /// The last number that was acknowledged to the worker.
    acknowledged: u64,
    /// The leases that are sent once they are safe, and whether the worker keeps their samples.
    leases: BTreeMap<u64, (SampleLease, bool)>,
    /// The number of its requests that wait, not counting changes.
    waiting_requests: usize,
    /// The bytes of all its requests that wait.
    waiting_bytes: usize,
    /// The first change that was refused because there was no room: no later change may be acknowledged. `None` if there was none.
    refused: Option<u64>,
}

impl ViewHandover {
    /// The chunks that are stored here.
    pub fn store_mut(&mut self) -> &mut TableStore {
        &mut self.store
    }

    /// The state before the first view of a member.
    #[must_use]
    pub fn new(store: TableStore) -> Self {
        Self { store, replica_map: Arc::default(), dirty: BTreeMap::new() }
    }
}

impl TableServer {
    /// Begins a view. Messages are appended to `out`.
    pub fn enter(
        me: Rank,
        replica_map: Arc<ReplicaMap>,
        lease_policy: LeasePolicy,
        handover: ViewHandover,
        out: &mut Outbox,
    ) -> Self {
        let ViewHandover { store, replica_map: before, mut dirty } = handover;
        let mut server = Self {
            me,
            lease_policy,
            clocks: WorkerClocks::default(),
            waiting: Vec::new(),
            ready: BTreeMap::new(),
            lease_requests: BTreeMap::new(),
            awaiting_chunk: BTreeMap::new(),
            early: BTreeMap::new(),
            replication: Replication::new(Arc::clone(&replica_map)),
            workers: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            replayed: BTreeMap::new(),
            store,
            replica_map,
        };
        server.hand_over_chunks(out);
        let replica_map = Arc::clone(&server.replica_map);
        let owned = |chunk: &usize| replica_map.owner(*chunk) == me;
        for chunk in (0..replica_map.holders.len()).filter(owned) {
            server.unsettled.insert(chunk);
            if replica_map.donor(chunk).is_some() {
                // The state of the chunk that was stored here may be old.
                server.store.drop_chunk(chunk);
                server.awaiting_chunk.insert(chunk, Vec::new());
            }
            if server.store.holds(chunk) {
                server.replication.begin_chunk(me, chunk, &before, &mut dirty);
                server.replication.check_chunk(chunk, out);
            }
        }
        server.replication.send_updates(&server.store, out);
        server
    }

    /// Sends the chunks of which this member is the donor, and marks those whose present state is here.
    fn hand_over_chunks(&mut self, out: &mut Outbox) {
        let Self { me, replica_map, store, .. } = self;
        let chunks = 0..replica_map.holders.len();
        // A view's record is input: it may name a donor that does not have the chunk.
        for chunk in chunks.clone().filter(|chunk| replica_map.donor(*chunk) == Some(*me)) {
            if store.holds(chunk) {
                let state = store.snapshot(chunk, None);
                out.push((replica_map.owner(chunk), TableMessage::Handover(state)));
            }
        }
        for chunk in chunks.filter(|chunk| replica_map.up_to_date[*chunk].contains(me)) {
            store.set_view_number(chunk, replica_map.view_number);
        }
        lease_table::forget(store.lease_table_mut(), |worker| replica_map.members.contains(worker));
    }

    /// The owner of these chunks says that all their holders have them, so other members may drop them. Returns those that the sender owns.
    pub fn on_replicated(&mut self, from: Rank, chunks: &ChunkSet) -> Vec<usize> {
        let count = self.replica_map.holders.len();
        let of_sender = |chunk: &usize| *chunk < count && self.replica_map.owner(*chunk) == from;
        let replicated: Vec<usize> = chunks.iter().filter(of_sender).collect();
        for chunk in &replicated {
            if !self.replica_map.holders[*chunk].contains(&self.me) {
                self.store.drop_chunk(*chunk);
            }
        }
        replicated
    }

    /// Ends the view.
    #[must_use]
    pub fn leave(self) -> ViewHandover {
        let dirty = self.replication.into_dirty();
        ViewHandover { dirty, store: self.store, replica_map: self.replica_map }
    }

    /// This member's rank in the view.
    pub(super) fn rank(&self) -> Rank {
        self.me
    }

    /// The members of the view, and the holders of each chunk.
    pub(super) fn replica_map(&self) -> &Arc<ReplicaMap> {
        &self.replica_map
    }

    /// The chunks that are stored here.
    #[must_use]
    pub fn store(&self) -> &TableStore {
        &self.store
    }

    /// A worker sends a request.
    ///
    /// # Errors
    /// The request is one that no correct worker sends.
    pub fn on_request(&mut self, from: Rank, request: Request, out: &mut Outbox) -> Result<(), TableError> {
        let chunk = self.check(&request)?;
        let has_lost_one = |worker: &WorkerRecord| worker.refused.is_some();
        let author = Author::of(from, &request);
        if request.change().is_some() && self.workers.get(&author).is_some_and(has_lost_one) {
            return Err(TableError::TooManyBytes(WAITING_REQUEST_BYTES_MAX));
        }
        if let (Some(worker), Some(chunk), Some(change)) = (author.departed, chunk, request.change())
            && let Err(error) = self.note_replay(chunk, worker)
        {
            self.workers.entry(author).or_default().refused.get_or_insert(change.sequence);
            return Err(error);
        }
        self.process(from, chunk, request, out)?;
        self.replication.send_updates(&self.store, out);
        Ok(())
    }

    /// Carries out a checked request, or keeps it until that is possible.
    fn process(
        &mut self,
        from: Rank,
        chunk: Option<usize>,
        request: Request,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        match chunk {
            Some(chunk) if !self.is_here(chunk) => {
                self.reserve(from, &request)?;
                self.awaiting_chunk.entry(chunk).or_default().push((from, request));
            }
            Some(chunk) if self.is_early(from, &request) => {
                self.reserve(from, &request)?;
                self.early.entry(chunk).or_default().push((from, request));
            }
            _ => self.answer(from, request, out)?,
        }
        Ok(())
    }

    /// Checks that a correct worker may send this request. Returns the chunk that it is about, if any. Of a read of rows, which may be about
    /// several, returns the first one that has not arrived, if any.
    ///
    /// # Errors
    /// What is wrong with the request.
    fn check(&self, request: &Request) -> Result<Option<usize>, TableError> {
        let layout = self.store.layout();
        let chunk = match request {
            Request::Get { rows, .. } => {
                layout.check_request(rows)?;
                if let Some(chunk) = layout.chunks_of(rows).find(|chunk| !self.owns(*chunk)) {
                    return Err(TableError::NotOwned(chunk));
                }
                layout.chunks_of(rows).find(|chunk| !self.is_here(*chunk))
            }
            Request::Replay { worker, .. } if self.replica_map.members.contains(worker) => {
                return Err(TableError::OtherWorker);
            }
            Request::Change(change) | Request::Replay { change, .. } => {
                layout.check_change(change)?;
                Some(change.chunk as usize)
            }
            Request::Reduce { chunk, reduce, .. } => {
                layout.check_reduce(*chunk as usize, reduce)?;
                Some(*chunk as usize)
            }
            Request::Lease { .. } | Request::Return { .. } => Some(0),
            Request::NewWorker | Request::Tick { .. } => None,
        };
        match chunk.filter(|chunk| !self.owns(*chunk)) {
            Some(chunk) => Err(TableError::NotOwned(chunk)),
            None => Ok(chunk),
        }
    }

    fn answer(&mut self, from: Rank, request: Request, out: &mut Outbox) -> Result<(), TableError> {
        match request {
            Request::NewWorker => self.on_new_worker(from, out),
            Request::Tick { clock } => self.on_tick(from, clock, out)?,
            Request::Change(ref change) | Request::Replay { ref change, .. } => {
                let author = Author::of(from, &request);
                let applied = self.apply_change(author, change);
                // If the worker is behind, all workers may have completed this clock already.
                self.apply_completed(applied.chunk());
                if let Operation::Complete { last_lease } = change.operation {
                    self.complete_leases(self.worker_of(author), last_lease, out);
                }
                self.await_replication(author, applied, out);
            }
            Request::Get { .. } | Request::Reduce { .. } => {
                if let Some(request) = self.try_read(from, request, out) {
                    self.reserve(from, &request)?;
                    self.waiting.push((from, request));
                }
            }
            Request::Lease { lease_number, samples, may_wait } => {
                self.grant_lease(from, LeaseRequest { lease_number, samples: samples.into(), may_wait }, out);
            }
            Request::Return { first_lease } => self.return_leases(from, first_lease, out),
        }
        Ok(())
    }

    fn owns(&self, chunk: usize) -> bool {
        self.replica_map.owner(chunk) == self.me
    }

    /// Whether this member is a holder of the chunk.
    pub(super) fn keeps(&self, chunk: usize) -> bool {
        self.replica_map.holders[chunk].contains(&self.me)
    }

    /// Whether a chunk that is owned here has arrived.
    fn is_here(&self, chunk: usize) -> bool {
        self.store.holds(chunk) && !self.awaiting_chunk.contains_key(&chunk)
    }

    // Reading and adding.

    /// Answers a read of chunks that are here, once its clock has come; otherwise returns the request.
    fn try_read(&self, from: Rank, request: Request, out: &mut Outbox) -> Option<Request> {
        let (Request::Get { min_clock, .. } | Request::Reduce { min_clock, .. }) = &request else {
            return None;
        };
        let Some(clock) = self.clock().filter(|clock| clock >= min_clock) else { return Some(request) };
        let response = match &request {
            Request::Get { request, rows, .. } => {
                let read = self.store.read(rows, &self.replica_map.worker_id(from));
                let StoredRows { applied, zero, values } = read;
                Response::Rows { request: *request, clock, applied, zero, values }
            }
            Request::Reduce { request, chunk, reduce, .. } => {
                let values = self.store.reduce(*chunk as usize, reduce);
                let applied = self.store.applied(*chunk as usize, &self.replica_map.worker_id(from));
                Response::Reduced { request: *request, clock, applied, values }
            }
            _ => return None,
        };
        out.push((from, TableMessage::Response(response)));
        None
    }

    fn worker_of(&self, author: Author) -> WorkerId {
        author.departed.unwrap_or_else(|| self.replica_map.worker_id(author.sender))
    }

    /// Applies a change to a chunk that is here, unless it is included already. Leases that it completes are yet to be
    /// [completed](Self::complete_leases).
    fn apply_change(&mut self, author: Author, change: &TableChange) -> Change {
        let worker = self.worker_of(author);
        let (sequence, chunk) = (change.sequence, change.chunk as usize);
        if !self.store.advance_sequence(chunk, worker, sequence) {
            return Change::Numbered(sequence, chunk);
        }
        let mut delta = ChunkDelta { workers: BTreeSet::from([worker]), ..ChunkDelta::default() };
        delta.has_new_keys = change.key.is_some_and(|key| self.store.use_key(chunk, key));
        if change.key.is_none() || delta.has_new_keys {
            match &change.operation {
                Operation::Add { clock, rows } => {
                    self.store.add(chunk, *clock, rows);
                    delta.rows = rows.indices.iter().collect();
                }
                Operation::Map(map) => delta.rows = self.store.map(chunk, map),
                Operation::Complete { .. } => {}
            }
        }
        self.replication.mark_dirty(chunk, &delta);
        Change::Numbered(sequence, chunk)
    }

    /// The worker gets an acknowledgement of this change once it is safe.
    fn await_replication(&mut self, worker: Author, change: Change, out: &mut Outbox) {
        let missing_at = self.replication.missing_at(worker, change);
        self.workers.entry(worker).or_default().record_change(change, missing_at);
        self.acknowledge(worker, out);
    }

    /// A change is safe at one more replica.
    fn on_change_replicated(&mut self, worker: Author, change: Change, out: &mut Outbox) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        let Some(count) = known.pending.get_mut(&change) else { return };
        *count -= 1;
        if *count == 0 {
            known.pending.remove(&change);
            self.acknowledge(worker, out);
        }
    }

    fn acknowledge(&mut self, author: Author, out: &mut Outbox) {
        let Some(worker) = self.workers.get_mut(&author) else { return };
        let to = author.sender;
        let first = worker.pending.keys().find_map(|change| match change {
            Change::Numbered(sequence, _) => Some(*sequence),
            Change::Leased(_) => None,
        });
        let up_to =
            [first, worker.refused].into_iter().flatten().min().map_or(worker.newest, |first| first - 1);
        if up_to > worker.acknowledged {
            worker.acknowledged = up_to;
            let response = match author.departed {
                None => Response::Acknowledged { up_to },
                Some(worker) => Response::ReplayAcknowledged { worker, up_to },
            };
            out.push((to, TableMessage::Response(response)));
        }
        let is_ready = |lease_number: &u64| !worker.pending.contains_key(&Change::Leased(*lease_number));
        let ready: Vec<u64> = worker.leases.keys().copied().filter(is_ready).collect();
        for lease_number in ready {
            if let Some((lease, is_kept)) = worker.leases.remove(&lease_number) {
                let leased = Response::Leased { lease_number, lease, is_kept, trained: None };
                out.push((to, TableMessage::Response(leased)));
            }
        }
    }
}

impl WorkerRecord {
    /// Records a change that `missing_at` replicas lack.
    fn record_change(&mut self, change: Change, missing_at: usize) {
        if let Change::Numbered(sequence, _) = change {
            self.newest = self.newest.max(sequence);
        }
        if missing_at > 0 {
            self.pending.insert(change, missing_at);
        } else {
            self.pending.remove(&change);
        }
    }
}

#[cfg(test)]
mod tests;
