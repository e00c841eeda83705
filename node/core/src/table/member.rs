//! One member's part in the tables: its worker, the chunks that it stores, the journal that it keeps for other workers, and its part in cuts.

use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::STEPS_MAX;
use peergrad_protocol::table::{CutMessage, JournalMessage, Request, Response, TableMessage};

use super::TableError;
use super::cut::{Cut, CutStep};
use super::journal::Journal;
use super::lease_table::LeasePolicy;
use super::replica_map::ReplicaMap;
use super::server::{Outbox, TableServer, ViewHandover};
use super::worker::TableWorker;
use crate::state::checkpoint::SavedTables;

/// One member's part in the tables, from view to view.
pub struct TableMember {
    /// The part that reads and adds.
    pub worker: TableWorker,
    /// The chunks that this member stores. `None` only before its first view, and while one is being entered.
    server: Option<TableServer>,
    /// The changes of other members' workers that this member keeps until they are safe.
    journal: Journal,
    /// The chunks whose holders all have their present state.
    replicated: ChunkSet,
    /// Its part in the cut that is being taken.
    cut: Cut,
    /// The cut that it has taken and nobody has saved yet.
    taken: Option<TakenCut>,
}

/// What a member has of a cut.
#[derive(Clone, Debug, PartialEq)]
pub struct TakenCut {
    /// The number of the cut, larger than those of all earlier cuts of the run: it counts views, and attempts in each view.
    pub number: u64,
    /// The chunks that the member stores, and its clock.
    pub saved: SavedTables,
}

/// Whether a member has taken in enough of the responses to it to get more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// It may get responses.
    Small,
    /// Its reads wait.
    Large,
}

impl TableMember {
    /// A member with this worker and journal, before its first view.
    #[must_use]
    pub fn new(worker: TableWorker, journal: Journal) -> Self {
        Self {
            worker,
            server: None,
            journal,
            replicated: ChunkSet::default(),
            cut: Cut::default(),
            taken: None,
        }
    }

    /// Leaves the view, with the chunks that this member has stored in it.
    pub fn leave(&mut self) -> ViewHandover {
        self.server.take().expect("a member keeps chunks in every view").leave()
    }

    /// Enters a view, in which this member has this rank, with the chunks that it has stored.
    pub fn enter(
        &mut self,
        me: Rank,
        replica_map: &Arc<ReplicaMap>,
        lease_policy: LeasePolicy,
        handover: ViewHandover,
        out: &mut Outbox,
    ) {
        self.replicated = ChunkSet::default();
        self.cut = Cut::default();
        self.server = Some(TableServer::enter(me, Arc::clone(replica_map), lease_policy, handover, out));
        // Owners get what this member has kept of workers that are gone before its clock.
        self.journal.enter(me, Arc::clone(replica_map), out);
        self.worker.enter(me, Arc::clone(replica_map), out);
        self.announce_clock(out);
    }

    /// The chunks that this member stores.
    #[must_use]
    pub fn server(&self) -> &TableServer {
        self.server.as_ref().expect("a member keeps chunks in every view")
    }

    /// The chunks that this member stores, to answer or end something.
    pub fn server_mut(&mut self) -> &mut TableServer {
        self.server.as_mut().expect("a member keeps chunks in every view")
    }

    /// The changes of other members' workers that this member keeps until they are safe.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Whether all holders of all chunks have the chunks' present state.
    #[must_use]
    pub fn are_replicated(&self) -> bool {
        self.replicated.len() == self.server().replica_map().holders.len()
    }

    /// Takes in a message of a member, which may be this one.
    ///
    /// # Errors
    /// The message is one that no correct member sends.
    pub fn on_message(
        &mut self,
        from: Rank,
        message: TableMessage,
        backlog: Backlog,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let result = self.take_in(from, message, backlog, out);
        self.report_held(out);
        result
    }

    fn take_in(
        &mut self,
        from: Rank,
        message: TableMessage,
        backlog: Backlog,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let server = self.server.as_mut().expect("a member keeps chunks in every view");
        match message {
            TableMessage::Cut(message) => self.on_cut(from, message, out),
            TableMessage::Request(request @ (Request::Get { .. } | Request::Reduce { .. }))
                if backlog == Backlog::Large || server.has_ready(from) =>
            {
                server.defer(from, request)
            }
            TableMessage::Request(request) => server.on_request(from, request, out),
            TableMessage::Response(Response::ReplayAcknowledged { worker, up_to }) => {
                self.journal.on_acknowledged(from, worker, up_to, out);
                Ok(())
            }
            TableMessage::Response(response) => self.worker.on_response(from, response, out),
            TableMessage::Journal(JournalMessage::Kept { worker, up_to }) if worker == self.worker.id() => {
                self.worker.on_kept(from, up_to, out);
                Ok(())
            }
            TableMessage::Journal(message) => {
                let result = self.journal.on_message(from, message, out);
                self.announce_clock(out);
                result
            }
            TableMessage::Handover(chunk) => server.on_handover(from, &chunk, out),
            TableMessage::ReplicaUpdate(update) => server.on_replica_update(from, &update, out),
            TableMessage::ReplicaAck(number) => {
                server.on_replica_ack(from, number, out);
                Ok(())
            }
            TableMessage::Replicated(chunks) => {
                self.replicated.extend(server.on_replicated(from, &chunks));
                Ok(())
            }
        }
    }

    /// Tells owners this member's clock, once they have what it has kept of workers that are gone.
    fn announce_clock(&mut self, out: &mut Outbox) {
        if self.journal.has_replayed() {
            self.worker.announce_clock(out);
        }
    }

    // Cuts.

    /// This member, which has the lowest rank, asks all members for a cut, unless one is being taken or chunks are on their way. Returns
    /// whether it asks.
    pub fn begin_cut(&mut self, out: &mut Outbox) -> bool {
        let ranks = self.server().replica_map().ranks();
        self.are_replicated() && self.cut.begin(ranks, out)
    }

    /// This member, which has the lowest rank, gives up a cut that takes too long. Returns whether a cut was in progress.
    pub fn give_up_cut(&mut self, out: &mut Outbox) -> bool {
        let ranks = self.server().replica_map().ranks();
        self.cut.give_up(ranks, out)
    }

    /// The cut that was taken since the last call, if one was.
    pub fn take_cut(&mut self) -> Option<TakenCut> {
        self.taken.take()
    }

    /// Takes a cut of a member that is alone; `None` if it does not have all chunks.
    pub fn cut_alone(&mut self) -> Option<TakenCut> {
        let chunk_count = self.server().replica_map().holders.len();
        if !(0..chunk_count).all(|chunk| self.server().store().holds(chunk)) {
            return None;
        }
        let attempt = self.cut.take_alone();
        Some(self.copies(attempt))
    }

    /// Copies of the chunks that are stored here, for the cut of this attempt.
    fn copies(&self, attempt: u64) -> TakenCut {
        let server = self.server();
        TakenCut {
            number: cut_number(server.replica_map().view_number, attempt),
            saved: SavedTables {
                chunks: server.store().saved(|chunk| server.keeps(chunk)),
                clock: self.worker.announced_clock(),
            },
        }
    }

    fn on_cut(&mut self, from: Rank, message: CutMessage, out: &mut Outbox) -> Result<(), TableError> {
        let (me, members) = (self.server().rank(), self.server().replica_map().members.len());
        match self.cut.on_message(from, message, (me, members), out)? {
            None => {}
            Some(CutStep::Hold) => self.worker.hold(),
            Some(CutStep::Take(attempt)) => {
                self.taken = Some(self.copies(attempt));
                self.worker.end_hold(out);
            }
            Some(CutStep::Release) => self.worker.end_hold(out),
        }
        Ok(())
    }

    /// Says that this member is held, once that is so: the changes are safe that it had sent, for its own worker and for those that are gone,
    /// and all holders have their chunks.
    fn report_held(&mut self, out: &mut Outbox) {
        if self.cut.is_holding()
            && self.worker.is_held()
            && self.journal.is_settled()
            && self.are_replicated()
        {
            self.cut.report_held(out);
        }
    }

    /// The last messages of a member that is about to leave, between two clocks. Returns whether it may: it owes nothing to owners.
    pub fn wind_down(&mut self, out: &mut Outbox) -> bool {
        self.worker.wind_down(out) && self.journal.is_settled()
    }
}

/// The number of a cut: that of its view, and then that of the attempt.
fn cut_number(view_number: u64, attempt: u64) -> u64 {
    /// Room for an attempt in each of a million seconds.
    const ATTEMPTS_MAX: u64 = 1 << 20;
    view_number.saturating_mul(ATTEMPTS_MAX).saturating_add(attempt.min(ATTEMPTS_MAX - 1)).min(STEPS_MAX)
}
