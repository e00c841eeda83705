//! The exchange: messages between this member's worker, the chunks that are stored here, and the other members.
//!
//! A message from this member to itself takes the same way as any other, but needs no link.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::STEPS_MAX;
use peergrad_protocol::message::{Awaited, AwaitedAt, Stage};
use peergrad_protocol::table::{TableMessage, WorkerClock};
use peergrad_protocol::{Rank, StepNumber};

use super::stream::MessageStreams;
use crate::io::Reject;
use crate::state::shard_map::ShardMap;
use crate::table::journal::Journal;
use crate::table::lease_table::LeasePolicy;
use crate::table::member::{Backlog, TableMember};
use crate::table::replica_map::ReplicaMap;
use crate::table::server::{Outbox, TableServer, ViewHandover};
use crate::table::worker::TableWorker;
use crate::table::{TableError, TableLayout};

/// This member's part in the tables, and the streams that connect it with the other members.
pub(super) struct Exchange {
    /// The names, sizes and rules of the tables, and how they are cut into chunks.
    pub(super) layout: Arc<TableLayout>,
    /// This member's rank in the view.
    rank: Rank,
    /// Its worker, the chunks that it stores, and the journal that it keeps for other workers.
    pub(super) member: TableMember,
    /// For each member: the messages to it that are not sent yet, and what has arrived of the next message from it.
    pub(super) streams: MessageStreams,
}

impl Exchange {
    /// The exchange of a member of this rank, before it has entered its first view.
    pub(super) fn new(rank: Rank, layout: Arc<TableLayout>, worker: TableWorker) -> Self {
        let member = TableMember::new(worker, Journal::new(Arc::clone(&layout)));
        Self { layout, rank, member, streams: MessageStreams::default() }
    }

    /// Leaves the view, with the chunks that this member has stored in it.
    pub(super) fn leave(&mut self) -> ViewHandover {
        self.member.leave()
    }

    /// Serves the chunks that this member, which has this rank, holds in the view, from those that it has stored.
    pub(super) fn enter(
        &mut self,
        rank: Rank,
        replica_map: ReplicaMap,
        lease_policy: LeasePolicy,
        handover: ViewHandover,
    ) {
        let mut out = Vec::new();
        self.rank = rank;
        self.streams = MessageStreams::new(replica_map.members.len());
        self.member.enter(rank, &Arc::new(replica_map), lease_policy, handover, &mut out);
        self.send(out);
    }

    /// The last messages before this member leaves. Returns whether it may leave.
    pub(super) fn wind_down(&mut self) -> bool {
        let mut out = Vec::new();
        let is_done = self.member.wind_down(&mut out);
        self.send(out);
        is_done
    }

    /// The chunks that this member stores.
    pub(super) fn server(&self) -> &TableServer {
        self.member.server()
    }

    /// Appends messages to their streams.
    pub(super) fn send(&mut self, out: Outbox) {
        self.streams.append(self.rank, out);
    }

    /// Takes in a segment of another member's messages.
    pub(super) fn receive(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Reject> {
        let mut incoming = self.streams.extend_incoming(from, bytes);
        let mut refused = Ok(());
        while let Some(message) = incoming.next_message()? {
            refused = refused.and(self.on_message(from, message).map_err(Reject::Table));
            self.deliver_to_self();
        }
        self.streams.keep_incoming(from, incoming);
        refused
    }

    /// Takes in a message from another member, or from this one.
    fn on_message(&mut self, from: Rank, message: TableMessage) -> Result<(), TableError> {
        let backlog = if self.streams.is_backlogged(from) { Backlog::Large } else { Backlog::Small };
        let mut out = Vec::new();
        let result = self.member.on_message(from, message, backlog, &mut out);
        self.send(out);
        self.answer_ready();
        result
    }

    /// Answers the requests that can be answered now, except for members that have yet to read earlier responses.
    pub(super) fn answer_ready(&mut self) {
        for rank in self.server().ready() {
            let mut out = Vec::new();
            while !self.streams.is_backlogged(rank) && self.member.server_mut().answer_ready(rank, &mut out) {
                self.send(std::mem::take(&mut out));
            }
        }
    }

    /// No more samples are leased. Returns whether the lease table is here, and was open.
    pub(super) fn close_leases(&mut self) -> bool {
        let mut out = Vec::new();
        let was_open = self.member.server_mut().close_leases(&mut out);
        self.send(out);
        self.deliver_to_self();
        was_open
    }

    /// Takes in this member's messages to itself.
    pub(super) fn deliver_to_self(&mut self) {
        while let Some(message) = self.streams.to_self.pop_front() {
            self.on_message(self.rank, message).expect("a member sends no malformed message to itself");
        }
    }

    /// The chunks whose present state is here: first those that this member holds, then those that other members hold, which may have a
    /// later state.
    pub(super) fn held_chunks(&self, shard_map: &ShardMap) -> (ChunkSet, ChunkSet) {
        let store = self.server().store();
        let is_now = |chunk: &usize| store.view_number(*chunk) == Some(shard_map.view.number.0);
        let is_kept = |chunk: &usize| shard_map.target.replica_holders(*chunk).contains(&self.rank);
        (0..self.layout.chunk_count()).filter(is_now).partition(is_kept)
    }

    /// The earliest thing that this member waits for, and the members that owe it. An owner answers a read once all workers have made the
    /// progress that the read needs; a worker makes it once its own reads before that are answered.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        let others = |ranks: BTreeSet<Rank>| -> Vec<Rank> {
            ranks.into_iter().filter(|rank| *rank != self.rank).collect()
        };
        let at = |clock, stage| {
            let step = match clock {
                WorkerClock::At(clock) => StepNumber(clock),
                WorkerClock::Ended => StepNumber(STEPS_MAX),
            };
            AwaitedAt { step, stage, hop: 0 }
        };
        let server = self.server();
        let donors = others(server.awaited_donors().collect());
        let chunks = (!donors.is_empty()).then(|| (at(WorkerClock::At(0), Stage::Chunks), donors));
        let clocks = server.awaited_clocks();
        let clocks =
            clocks.map(|(clock, from)| (at(clock, Stage::Clocks), others(from.into_iter().collect())));
        let rows = self.member.worker.awaited().map(|(clock, from)| (at(clock, Stage::Rows), others(from)));
        let kept = self
            .member
            .worker
            .awaited_for_journal()
            .map(|(clock, from)| (at(clock, Stage::Journal), others(from)));
        let replayed = (at(WorkerClock::At(0), Stage::Journal), others(self.member.journal().awaited()));
        let all = chunks.into_iter().chain(clocks).chain(rows).chain(kept).chain([replayed]);
        let (at, from) = all.filter(|(_, from)| !from.is_empty()).min()?;
        Some(Awaited { at, from })
    }
}
