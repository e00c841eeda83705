//! Tables, in a session: the program's operations, the words of others, and the way that words take.
//!
//! Where a program keeps its state in [tables](crate::table), a session takes no steps: each worker has a clock of its own. The view's
//! record says who keeps which chunk now, and where it is to be; all of them move at once. Nothing that the program has begun is
//! interrupted by a new view: what may be lost of it is said again.
//!
//! # Words on their way
//! Words to another member are put one behind the other and cut into segments, which credit lets go as it does those of a round. What
//! is taken in uses no credit up for longer than that takes: whoever has to wait for a clock waits in the server.
//!
//! # Invariants
//! - While the next view is agreed on, nothing is taken in or sent: what this member has reported stays true.
//! - A chunk that nobody holds keeps a view from being chosen. (See `view_change/tables.rs`.)

use std::collections::VecDeque;
use std::sync::Arc;

use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::message::MemberReport;
use peergrad_protocol::table::{Request, Rows, TableMessage, WorkerId};
use peergrad_protocol::view::{Member, Recovery};
use peergrad_protocol::{Buffer, PeerId, Rank, StepNumber};

use super::Training;
use crate::io::{Event, Output, Reject};
use crate::membership::TableSnapshot;
use crate::program::loader::Loaded;
use crate::state::shard_map::ShardMap;
use crate::table::lease_table::LeasePolicy;
use crate::table::server::{ReplicaMap, TableServer, ViewHandover};
use crate::table::store::TableStore;
use crate::table::worker::TableWorker;
use crate::table::{BatchScope, Init, TableError, TableLayout, TableSpec};
use program::{LeaseProgress, Waiting};
use stream::MessageStream;

mod program;
mod stream;

/// The tables of a run, as one member sees them.
pub(super) struct TableEngine {
    layout: Arc<TableLayout>,
    batch_scope: BatchScope,
    lease_policy: LeasePolicy,
    me: Rank,
    worker: TableWorker,
    /// `None`: a view is being entered.
    server: Option<TableServer>,
    /// Words of this member to itself.
    to_self: VecDeque<TableMessage>,
    /// By rank.
    streams: Vec<MessageStream>,
    /// What has come while nothing is taken in.
    early: VecDeque<(Rank, Buffer)>,
    /// Chunks that all who are to keep them do.
    replicated: ChunkSet,
    waiting: Waiting,
    leases: LeaseProgress,
    /// It has begun a clock in which there is nothing to do, and begins none before anything comes from others.
    is_idle: bool,
    /// It begins no clock any more.
    is_leaving: bool,
    has_wound_down: bool,
}

impl TableEngine {
    /// Those of a run that begins, or `is_new` of one that this member comes to.
    pub(super) fn new(loaded: &Loaded, table_spec: TableSpec, rank: Rank, is_new: bool) -> Self {
        let TableSpec { layout, read_schedule, batch_scope, warm_up, wave } = table_spec;
        let (epochs, samples) = (loaded.config.epochs, u64::from(loaded.task.sample_count()));
        Self {
            worker: TableWorker::new(Arc::clone(&layout), read_schedule, is_new),
            server: None,
            lease_policy: LeasePolicy { epochs, samples, warm_up, wave },
            me: rank,
            to_self: VecDeque::new(),
            streams: Vec::new(),
            early: VecDeque::new(),
            replicated: ChunkSet::default(),
            waiting: Waiting::default(),
            leases: LeaseProgress::default(),
            is_idle: false,
            is_leaving: false,
            has_wound_down: false,
            batch_scope,
            layout,
        }
    }

    /// Begins with what a run begins with: chunks that are kept here, of these parameters.
    fn initial_state(&self, replica_map: &ReplicaMap, parameters: &[f32]) -> ViewHandover {
        let mut store = TableStore::new(Arc::clone(&self.layout));
        for chunk in 0..self.layout.chunk_count() {
            if replica_map.holders[chunk].contains(&self.me) {
                store.create_chunk(chunk, &initial_rows(&self.layout, chunk, parameters));
            }
        }
        ViewHandover::new(store)
    }

    /// Chunks that were lost begin anew, at those who are to keep them.
    fn restart_chunks(
        &mut self,
        chunks: &[u32],
        replica_map: &ReplicaMap,
        handover: &mut ViewHandover,
        loaded: &Loaded,
    ) {
        if chunks.is_empty() {
            return;
        }
        let mut parameters = vec![0.0; loaded.manifest.parameter_count()];
        loaded.task.initial(loaded.config.seed, &mut parameters);
        let chunks = chunks.iter().map(|chunk| *chunk as usize);
        for chunk in chunks.filter(|chunk| *chunk < self.layout.chunk_count()) {
            self.worker.invalidate(chunk);
            handover.store_mut().drop_chunk(chunk);
            if replica_map.up_to_date[chunk].contains(&self.me) {
                handover.store_mut().create_chunk(chunk, &initial_rows(&self.layout, chunk, &parameters));
            }
        }
    }

    fn enter(&mut self, replica_map: ReplicaMap, handover: ViewHandover) {
        let (replica_map, mut out) = (Arc::new(replica_map), Vec::new());
        self.to_self.clear();
        self.early.clear();
        self.streams = replica_map.members.iter().map(|_| MessageStream::default()).collect();
        self.replicated = ChunkSet::default();
        self.server = Some(TableServer::enter(
            self.me,
            Arc::clone(&replica_map),
            self.lease_policy,
            handover,
            &mut out,
        ));
        self.worker.enter(replica_map, &mut out);
        self.waiting.reset();
        self.send(out);
    }

    fn server(&self) -> &TableServer {
        self.server.as_ref().expect("a member keeps chunks in every view")
    }

    /// Takes in what another member, or this one, says.
    fn on_message(&mut self, from: Rank, message: TableMessage) -> Result<(), TableError> {
        let mut out = Vec::new();
        let server = self.server.as_mut().expect("a member keeps chunks in every view");
        let result = match message {
            TableMessage::Request(request @ (Request::Get { .. } | Request::Reduce { .. }))
                if self.streams[from.index()].is_backlogged() || server.has_ready(from) =>
            {
                server.defer(from, request)
            }
            TableMessage::Request(request) => server.on_request(from, request, &mut out),
            TableMessage::Response(response) => self.worker.on_response(from, response, &mut out),
            TableMessage::ReplicaUpdate(update) => server.on_replica_update(from, &update, &mut out),
            TableMessage::ReplicaAck(number) => {
                server.on_replica_ack(from, number, &mut out);
                Ok(())
            }
            TableMessage::Replicated(chunks) => {
                self.replicated.extend(server.on_replicated(from, &chunks));
                Ok(())
            }
        };
        self.send(out);
        self.answer_ready();
        result
    }

    /// Answers what can be answered, but for the questions of those who have not taken in yet what they were told before.
    fn answer_ready(&mut self) {
        for rank in self.server().ready() {
            let mut out = Vec::new();
            while !self.streams[rank.index()].is_backlogged()
                && self.server.as_mut().is_some_and(|server| server.answer_ready(rank, &mut out))
            {
                self.send(std::mem::take(&mut out));
            }
        }
    }

    /// Takes in what this member says to itself.
    fn deliver_to_self(&mut self) {
        while let Some(message) = self.to_self.pop_front() {
            self.on_message(self.me, message).expect("a member says nothing wrong to itself");
        }
    }

    /// Which chunks are here as they are now: those that are to be kept here, and those of which others may have a later state.
    fn held_chunks(&self, shard_map: &ShardMap) -> (ChunkSet, ChunkSet) {
        let store = self.server().store();
        let is_now = |chunk: &usize| store.view_number(*chunk) == Some(shard_map.view.number.0);
        let is_kept = |chunk: &usize| shard_map.target.replica_holders(*chunk).contains(&self.me);
        (0..self.layout.chunk_count()).filter(is_now).partition(is_kept)
    }
}

/// What rows of a chunk begin with.
fn initial_rows(layout: &TableLayout, chunk: usize, parameters: &[f32]) -> Rows {
    let (range, width) = (layout.range(chunk), layout.width(chunk));
    if layout.table_of(chunk).init == Init::Zeros {
        return Rows::default();
    }
    let first = layout.first_row_of_table(chunk);
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    for row in range {
        let start = (row - first) as usize * width;
        // The last row may have room for more.
        let there = &parameters[start.min(parameters.len())..(start + width).min(parameters.len())];
        if there.iter().any(|value| *value != 0.0) {
            indices.push(row);
            values.extend_from_slice(there);
            values.resize(indices.len() * width, 0.0);
        }
    }
    Rows { indices: indices.into_iter().collect(), values }
}

/// Who keeps what in a view.
fn replica_map(shard_map: &ShardMap) -> ReplicaMap {
    let view = &shard_map.view;
    let worker_id = |member: &Member| WorkerId { peer: member.peer, incarnation: member.incarnation };
    let holders: Vec<Vec<Rank>> = (0..shard_map.target.chunk_count())
        .map(|chunk| shard_map.target.replica_holders(chunk).to_vec())
        .collect();
    let mut up_to_date = holders.clone();
    for moved in &view.moves.list {
        if let Some(up_to_date) = up_to_date.get_mut(moved.chunk as usize) {
            up_to_date.clone_from(&moved.from);
        }
    }
    ReplicaMap {
        members: view.members.iter().map(worker_id).collect(),
        holders,
        newcomers: view.newcomers().iter().copied().collect(),
        up_to_date,
        view_number: view.number.0,
    }
}

impl Training {
    /// The clock that this member is in, where its program has tables.
    pub(super) fn clock(&self) -> Option<StepNumber> {
        self.tables.as_ref().map(|tables| StepNumber(tables.leases.clocks))
    }

    /// Whether its program keeps its state in tables.
    pub(crate) fn has_tables(&self) -> bool {
        self.tables.is_some()
    }

    /// Something has come from outside.
    pub(crate) fn wake(&mut self) {
        if let Some(tables) = &mut self.tables {
            tables.is_idle = false;
        }
    }

    /// How far this member is: its step, or its worker's clock.
    pub(crate) fn at(&self) -> StepNumber {
        self.clock().unwrap_or(self.step)
    }

    /// Begins in the first view that this member is in.
    pub(super) fn begin_tables(&mut self) {
        // After a stop of all nobody has anything: it begins anew.
        let is_founded = match &self.view().recovery {
            Recovery::Initialize => true,
            Recovery::Resume(resume) => resume.is_restored,
        };
        let Self { tables: Some(tables), shard_map, commit, .. } = self else { return };
        let replica_map = replica_map(shard_map);
        let handover = match &commit.complete {
            Some(parameters) if is_founded => tables.initial_state(&replica_map, parameters),
            _ => ViewHandover::new(TableStore::new(Arc::clone(&tables.layout))),
        };
        tables.enter(replica_map, handover);
        self.is_open = true;
    }

    /// Goes on in another view.
    pub(super) fn enter_tables(&mut self, out: &mut Vec<Output>) {
        let Self { tables: Some(tables), shard_map, rank, .. } = self else { return };
        let mut handover = tables.server.take().expect("a member keeps chunks in every view").leave();
        tables.me = *rank;
        let (replica_map, restarted) = (replica_map(shard_map), &shard_map.view.moves.restarted);
        tables.restart_chunks(restarted, &replica_map, &mut handover, &self.loaded);
        if !restarted.is_empty() {
            let retrains_all = restarted.contains(&0);
            out.push(Output::Event(Event::ChunksLost { chunks: restarted.len(), retrains_all }));
        }
        tables.enter(replica_map, handover);
        self.is_open = true;
        self.is_frozen = false;
        self.make_progress(out);
    }

    /// Words of another member.
    ///
    /// # Errors
    /// No correct member says them.
    pub(crate) fn on_table_frame(
        &mut self,
        from: PeerId,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.flow_control.rank_of(&from, self.view()).ok_or(Reject::NotAMember)?;
        let Some(tables) = &mut self.tables else { return Err(Reject::OutOfPlace) };
        self.flow_control.hold(rank)?;
        tables.early.push_back((rank, payload));
        if self.is_frozen { Ok(()) } else { self.process_table_frames(out) }
    }

    /// Takes in the words that have come.
    fn process_table_frames(&mut self, out: &mut Vec<Output>) -> Result<(), Reject> {
        let mut result = Ok(());
        while let Some(tables) = &mut self.tables
            && let Some((from, payload)) = tables.early.pop_front()
        {
            result = result.and(tables.receive(from, payload.bytes()));
            if self.flow_control.use_up(from.index()) {
                out.push(Output::Credit { to: self.view().member(from).peer, segments: 1 });
            }
        }
        self.make_progress(out);
        result
    }

    /// Goes on in the same view.
    pub(super) fn thaw_tables(&mut self, out: &mut Vec<Output>) {
        // Whoever says something wrong says it again.
        let _ = self.process_table_frames(out);
    }

    /// Does all that can be done now: takes in what this member says to itself, answers the program, sends what credit allows.
    pub(super) fn drive_tables(&mut self, out: &mut Vec<Output>) {
        self.shut_down_worker();
        self.request_lease();
        self.begin_clock_if_possible();
        self.report_completed_leases(out);
        let Self { tables: Some(tables), flow_control, shard_map, segments, vectors, commit, .. } = self
        else {
            return;
        };
        tables.deliver_to_self();
        let room = || vectors.take(self.loaded.manifest.parameter_count());
        if let Some(parameters) = tables.answer(room) {
            commit.complete = Some(parameters);
        }
        tables.flush(&mut flow_control.links, shard_map, segments, out);
        tables.answer_ready();
        tables.flush(&mut flow_control.links, shard_map, segments, out);
    }

    // Leaving.

    /// This member wants to leave: where there are tables, its worker begins no clock any more.
    pub(crate) fn wind_down(&mut self, out: &mut Vec<Output>) {
        if let Some(tables) = &mut self.tables {
            tables.is_leaving = true;
            self.make_progress(out);
        }
    }

    /// Whether it may leave: what came of the samples that its worker has computed is safe, and whoever deals knows.
    pub(crate) fn has_wound_down(&self) -> bool {
        self.tables.as_ref().is_none_or(|tables| tables.has_wound_down)
    }

    /// A worker that leaves, and is between two clocks, says its last words.
    fn shut_down_worker(&mut self) {
        let is_between = self.current.is_none();
        let leaves =
            |tables: &&mut TableEngine| tables.is_leaving && (is_between || tables.worker.has_finished());
        if let Some(tables) = self.tables.as_mut().filter(leaves) {
            let mut out = Vec::new();
            tables.has_wound_down = tables.worker.wind_down(&mut out);
            tables.send(out);
        }
    }

    // The account.

    /// Where this member is, and what it holds, where there are tables.
    pub(super) fn table_report(&self) -> Option<MemberReport> {
        let (states, older) = self.tables.as_ref()?.held_chunks(&self.shard_map);
        Some(MemberReport {
            complete: Some(self.step),
            states,
            states_before: Some(older),
            ..MemberReport::default()
        })
    }

    /// Bytes of what owners' rules keep beside the values of rows that are kept here, where there are tables.
    pub(super) fn table_moment_bytes(&self) -> Option<u64> {
        let server = self.tables.as_ref()?.server.as_ref()?;
        Some(server.store().moment_bytes())
    }

    /// What membership has to know of tables, where there are some.
    pub(super) fn table_snapshot(&self) -> Option<TableSnapshot> {
        let tables = self.tables.as_ref()?;
        Some(TableSnapshot {
            clock: StepNumber(tables.leases.clocks),
            are_replicated: tables.replicated.len() == tables.layout.chunk_count(),
            is_reading: tables.waiting.is_reading(),
        })
    }
}
