//! The table engine: training where the program keeps its state in tables.
//!
//! Where a program keeps its state in [tables](crate::table) there are no steps: each worker has its own clock. The view's record says
//! which members have each chunk now, and which are to store it; all chunks move at once. A new view interrupts nothing that the program
//! has begun: pending requests are sent again to the chunk's new owner.
//!
//! # How it works
//! Messages to another member are concatenated and cut into segments, which are sent as credit allows, like those of a round. A received
//! segment is decoded at once and its credit returned; a request that has to wait for a clock waits in the server.
//!
//! # Invariants
//! - While the next view is agreed on, no frame is taken in or sent: this member's report stays true.
//! - A chunk that no member holds keeps a view from being chosen. (See `view_change/tables.rs`.)

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_protocol::message::{MemberReport, TrainingMessage};
use peergrad_protocol::table::{Rows, WorkerId};
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Buffer, PeerId, Rank, StepNumber, ViewDigest};

use super::base::EngineBase;
use crate::io::{Event, Output, Reject};
use crate::membership::TableStatus;
use crate::node_report::Wait;
use crate::peer_links::LinkFlow;
use crate::program::command::Reply;
use crate::state::assignment::BatchAssignment;
use crate::state::checkpoint::{Checkpoint, SavedTables};
use crate::state::shard_map::ShardMap;
use crate::table::lease_table::LeasePolicy;
use crate::table::member::TableMember;
use crate::table::replica_map::ReplicaMap;
use crate::table::server::ViewHandover;
use crate::table::store::TableStore;
use crate::table::worker::{TableWorker, WorkerStart};
use crate::table::{BatchScope, TableLayout, TableSpec};
use exchange::Exchange;
use program::{ClockProgress, LeaseProgress, Waiting};

mod checkpoints;
mod exchange;
mod program;
mod stream;

/// The table engine of one member: it connects the [program](program) with the [exchange](Exchange) of messages, from view to view.
pub(crate) struct TableEngine {
    /// This member, its view, its links, and the run.
    pub(super) base: EngineBase,
    /// Whether the batch size counts the samples of one worker in a clock, or those of all workers.
    batch_scope: BatchScope,
    /// How many samples are leased in the run, and how many workers may have leases.
    lease_policy: LeasePolicy,
    /// The step that every view of the run begins at: tables take no steps.
    first_step: StepNumber,
    /// The assignment of that step in the run's record: no member trains it.
    assignment: Arc<BatchAssignment>,
    /// The parameters that the program has last read, or the initial ones.
    parameters: Arc<Buffer>,
    /// This member's worker and stored chunks, and the streams to the other members.
    exchange: Exchange,
    /// The replies that the program waits for.
    waiting: Waiting,
    /// The samples that were leased to this member's worker.
    leases: LeaseProgress,
    /// The clock that the program has begun last.
    clock: ClockProgress,
    /// Whether this member is about to leave the run.
    departure: Departure,
}

/// Whether this member is about to leave the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// It is not leaving.
    Staying,
    /// Its worker begins no more clocks, and some of its additions are not safe yet.
    WindingDown,
    /// All additions of its worker are safe, and the owner of the lease table knows that it leaves.
    WoundDown,
}

impl Departure {
    fn is_leaving(self) -> bool {
        self != Self::Staying
    }
}

impl TableEngine {
    /// The engine in this member's first view, with these parameters, and with the checkpoint that this member has of the view's first step.
    pub(super) fn new(
        base: EngineBase,
        table_spec: TableSpec,
        parameters: Arc<Buffer>,
        checkpoint: Option<&Checkpoint>,
        out: &mut Vec<Output>,
    ) -> Self {
        let TableSpec { layout, read_schedule, batch_scope, atomicity, warm_up, wave, portions } = table_spec;
        let config = &base.loaded.config;
        let (epochs, samples) = (config.epochs, u64::from(base.loaded.task.sample_count()));
        let first_step = base.view().first_step();
        let batch = (config.round_size(), samples);
        let view = (&**base.view(), base.digest());
        let saved =
            checkpoint.and_then(|checkpoint| checkpoint.tables.as_ref()).filter(|_| !base.is_newcomer());
        let start = match saved {
            Some(SavedTables { clock, .. }) => clock.map_or(WorkerStart::Late, WorkerStart::At),
            None if base.is_newcomer() => WorkerStart::Late,
            None => WorkerStart::At(0),
        };
        let worker = TableWorker::new(Arc::clone(&layout), read_schedule, atomicity, start);
        let mut engine = Self {
            assignment: base.cache.assignment(&BatchAssignment::default(), batch, view, first_step),
            exchange: Exchange::new(base.rank, layout, worker),
            lease_policy: LeasePolicy { epochs, samples, warm_up, wave, portions },
            waiting: Waiting::default(),
            leases: LeaseProgress::at_clock(start),
            clock: ClockProgress::default(),
            departure: Departure::Staying,
            batch_scope,
            first_step,
            parameters,
            base,
        };
        // After a restart without checkpoints no member has any chunk: all of them start with their initial values.
        let is_founded = match &engine.base.view().recovery {
            Recovery::Initialize => true,
            Recovery::Resume(resume) => resume.is_restored,
        };
        let (replica_map, layout) = (replica_map(&engine.base.shard_map), &engine.exchange.layout);
        let store = match saved {
            Some(saved) => TableStore::restored(Arc::clone(layout), &saved.chunks)
                .expect("a checkpoint is of the run's tables, or it is not used"),
            None if is_founded && first_step.0 == 0 => {
                initial_store(layout, &replica_map, engine.base.rank, &engine.parameters)
            }
            None => TableStore::new(Arc::clone(layout)),
        };
        engine.enter_exchange(replica_map, ViewHandover::new(store));
        engine.make_progress(out);
        engine
    }

    /// Lost chunks restart from their initial values, at their next holders.
    fn restart_chunks(&mut self, chunks: &[u32], replica_map: &ReplicaMap, handover: &mut ViewHandover) {
        if chunks.is_empty() {
            return;
        }
        let loaded = &self.base.loaded;
        let mut parameters = vec![0.0; loaded.manifest.parameter_count()];
        loaded.initial(&mut parameters);
        let Exchange { layout, member: TableMember { worker, .. }, .. } = &mut self.exchange;
        let chunks = chunks.iter().map(|chunk| *chunk as usize);
        for chunk in chunks.filter(|chunk| *chunk < layout.chunk_count()) {
            worker.invalidate(chunk);
            handover.store_mut().drop_chunk(chunk);
            if replica_map.up_to_date[chunk].contains(&self.base.rank) {
                handover.store_mut().create_chunk(chunk, &initial_rows(layout, chunk, &parameters));
            }
        }
    }

    fn enter_exchange(&mut self, replica_map: ReplicaMap, handover: ViewHandover) {
        self.exchange.enter(self.base.rank, replica_map, self.lease_policy, handover);
        self.waiting.reset();
    }
}

/// The chunks that the member of this rank stores at the start of a run, with their initial values.
fn initial_store(
    layout: &Arc<TableLayout>,
    replica_map: &ReplicaMap,
    rank: Rank,
    parameters: &[f32],
) -> TableStore {
    let mut store = TableStore::new(Arc::clone(layout));
    for chunk in 0..layout.chunk_count() {
        if replica_map.holders[chunk].contains(&rank) {
            store.create_chunk(chunk, &initial_rows(layout, chunk, parameters));
        }
    }
    store
}

/// The initial rows of a chunk, in a run with these initial parameters.
fn initial_rows(layout: &TableLayout, chunk: usize, parameters: &[f32]) -> Rows {
    let (range, width) = (layout.range(chunk), layout.width(chunk));
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    for row in range.filter(|row| layout.is_parameter_row(chunk, *row)) {
        let start = layout.parameter_start(chunk, row);
        // The last row may be longer than the rest of the parameters.
        let there = &parameters[start.min(parameters.len())..(start + width).min(parameters.len())];
        if there.iter().any(|value| *value != 0.0) {
            indices.push(row);
            values.extend_from_slice(there);
            values.resize(indices.len() * width, 0.0);
        }
    }
    Rows { indices: indices.into_iter().collect(), values }
}

/// The holders of each chunk in a view, and which of them have its present state.
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

impl TableEngine {
    // The view.

    /// Enters `view`. `flows` as for [`EngineBase::enter`].
    pub(super) fn enter(
        &mut self,
        (view, digest): (&Arc<View>, ViewDigest),
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) {
        self.base.enter(view, digest, flows, out);
        let mut handover = self.exchange.leave();
        let (replica_map, restarted) = (replica_map(&self.base.shard_map), &view.moves.restarted);
        self.restart_chunks(restarted, &replica_map, &mut handover);
        if !restarted.is_empty() {
            let retrains_all = restarted.contains(&0);
            out.push(Output::Event(Event::ChunksLost { chunks: restarted.len(), retrains_all }));
        }
        self.enter_exchange(replica_map, handover);
        self.base.is_frozen = false;
        self.make_progress(out);
        if self.base.barrier.is_waiting() {
            self.send_complete(out);
        }
    }

    /// Resumes in the same view.
    pub(super) fn thaw(&mut self, out: &mut Vec<Output>) {
        self.base.is_frozen = false;
        // A member that has sent something malformed would send it again.
        let _ = self.process_table_frames(out);
        self.make_progress(out);
    }

    /// Returns the credit of all held segments: training is over at this member. A program that waits for a view continues to wait.
    pub(super) fn leave(
        mut self,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) -> Option<Reply<()>> {
        self.base.leave(flows, out);
        self.waiting.ready.take()
    }

    // Links.

    /// Takes in a message of another member, with its payload if it has one.
    ///
    /// # Errors
    /// The sender is not a member, or no correct member sends this here and now.
    pub(super) fn receive(
        &mut self,
        from: PeerId,
        message: &TrainingMessage,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        match message {
            TrainingMessage::Tables => {
                self.receive_segment(from, payload.ok_or(Reject::MalformedTableMessage)?, out)
            }
            // No run with tables has snapshots, so there is nothing to keep.
            TrainingMessage::TakeSnapshot(_) => Ok(()),
            _ => Err(Reject::OutOfPlace),
        }
    }

    /// Takes in a segment of another member's messages.
    fn receive_segment(
        &mut self,
        from: PeerId,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.base.flow_control.rank_of(&from, self.base.view()).ok_or(Reject::NotAMember)?;
        self.base.flow_control.hold(rank)?;
        self.exchange.streams.early.push_back((rank, payload));
        if self.base.is_frozen { Ok(()) } else { self.process_table_frames(out) }
    }

    fn process_table_frames(&mut self, out: &mut Vec<Output>) -> Result<(), Reject> {
        let mut result = Ok(());
        while let Some((from, payload)) = self.exchange.streams.early.pop_front() {
            result = result.and(self.exchange.receive(from, payload.bytes()));
            if self.base.flow_control.use_up(from.index(), true) {
                out.push(Output::Credit { to: self.base.view().member(from).peer, segments: 1 });
            }
        }
        self.make_progress(out);
        result
    }

    /// There is a new link to a member, with nothing on its way yet.
    pub(super) fn link_up(&mut self, rank: Rank, out: &mut Vec<Output>) {
        self.base.flow_control.link_up(rank);
        self.make_progress(out);
    }

    /// An input has arrived: an idle worker may begin a clock again.
    pub(crate) fn wake(&mut self) {
        self.clock.is_idle = false;
    }

    /// Does all that can be done now: takes in messages to itself, replies to the program, and sends what credit allows.
    pub(super) fn make_progress(&mut self, out: &mut Vec<Output>) {
        if self.base.is_frozen {
            return;
        }
        self.end_superseded_clock();
        self.shut_down_worker();
        self.request_lease();
        self.begin_clock_if_possible();
        self.report_completed_leases(out);
        let Self { base, exchange, waiting, .. } = self;
        exchange.deliver_to_self();
        if let Some(parameters) = waiting.answer(base, exchange) {
            self.parameters = parameters;
        }
        exchange.streams.flush(base, out);
        exchange.answer_ready();
        exchange.streams.flush(base, out);
        self.save_cut(out);
        if let Some(reply) = self.waiting.ready.take() {
            let _ = reply.send(());
        }
    }

    // Leaving.

    /// The program has ended: tells the other members, and waits until all of them have said so.
    pub(super) fn close(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        self.base.close(reply);
        self.clock.current = None;
        self.base.omissions.add(self.leases.take_left_out());
        if !self.base.is_frozen {
            self.send_complete(out);
        }
    }

    fn send_complete(&self, out: &mut Vec<Output>) {
        self.base.send_complete(self.first_step, self.base.omissions.counted(), out);
    }

    /// A user has ended the run: no more samples are leased.
    pub(crate) fn end_run(&mut self, out: &mut Vec<Output>) {
        if self.exchange.close_leases() {
            self.make_progress(out);
        }
    }

    /// This member is about to leave: its worker begins no more clocks.
    pub(crate) fn wind_down(&mut self, out: &mut Vec<Output>) {
        if self.departure == Departure::Staying {
            self.departure = Departure::WindingDown;
        }
        self.make_progress(out);
    }

    /// Whether it may leave: the additions of all samples that its worker has computed are safe, and the owner of the lease table knows.
    pub(super) fn has_wound_down(&self) -> bool {
        self.departure == Departure::WoundDown
    }

    /// The last messages of a worker that leaves and is between two clocks.
    fn shut_down_worker(&mut self) {
        let is_between = self.clock.current.is_none();
        if self.departure.is_leaving() && (is_between || self.exchange.member.worker.has_finished()) {
            self.departure = match self.exchange.wind_down() {
                true => Departure::WoundDown,
                false => Departure::WindingDown,
            };
        }
    }

    // The account.

    /// The step that the view's record names: it never changes.
    pub(super) fn first_step(&self) -> StepNumber {
        self.first_step
    }

    /// The clock of this member's worker.
    pub(super) fn clock(&self) -> StepNumber {
        StepNumber(self.leases.clocks)
    }

    /// The first assignment in a view's record, which no member trains.
    pub(super) fn assignment(&self) -> &Arc<BatchAssignment> {
        &self.assignment
    }

    /// The parameters that the program has last read, or the initial ones.
    pub(super) fn parameters(&self) -> &Arc<Buffer> {
        &self.parameters
    }

    /// Whether there are no samples to train.
    pub(super) fn is_over(&self) -> bool {
        self.assignment.is_over(self.base.loaded.config.epochs)
    }

    /// The chunks of this member, for the choice of the next view.
    pub(super) fn report(&self) -> MemberReport {
        let (states, older) = self.exchange.held_chunks(&self.base.shard_map);
        MemberReport {
            complete: Some(self.first_step),
            states,
            states_before: Some(older),
            awaited: self.exchange.awaited(),
            ..MemberReport::default()
        }
    }

    /// Bytes of the moments that owners' rules keep beside the values of rows, at this member.
    pub(super) fn moment_bytes(&self) -> u64 {
        self.exchange.server().store().moment_bytes()
    }

    /// The state of the tables for membership.
    pub(super) fn status(&self) -> TableStatus {
        TableStatus {
            clock: self.clock(),
            are_replicated: self.exchange.member.are_replicated(),
            is_reading: self.waiting.is_reading(),
        }
    }

    /// What the program of this member waits for.
    pub(super) fn wait(&self) -> Wait {
        if self.base.barrier.is_waiting() {
            Wait::Closing
        } else if self.base.is_frozen {
            Wait::View
        } else if self.waiting.is_for_tables() {
            Wait::Rows
        } else {
            Wait::Program
        }
    }
}
