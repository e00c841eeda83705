//! The owners of chunks, as a member that sends them changes and requests sees them.

use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::table::{Request, TableMessage, WorkerId};

use super::TableLayout;
use super::replica_map::ReplicaMap;
use super::server::Outbox;

/// The tables, and the owner of each of their chunks in the present view.
pub(super) struct Owners {
    /// The sizes and rules of the tables, and how they are cut into chunks.
    pub(super) layout: Arc<TableLayout>,
    /// The holders of each chunk in the present view, the owner first.
    pub(super) replica_map: Arc<ReplicaMap>,
    /// This member's rank in the view.
    me: Rank,
}

impl Owners {
    /// The owners before the first view.
    pub(super) fn new(layout: Arc<TableLayout>) -> Self {
        Self { layout, replica_map: Arc::default(), me: Rank(0) }
    }

    /// Enters a view, in which this member has this rank.
    pub(super) fn enter(&mut self, me: Rank, replica_map: Arc<ReplicaMap>) {
        self.me = me;
        self.replica_map = replica_map;
    }

    /// The owner of a chunk.
    pub(super) fn of(&self, chunk: usize) -> Rank {
        self.replica_map.owner(chunk)
    }

    /// Sends a request to the owner of a chunk.
    pub(super) fn send(&self, chunk: usize, request: Request, out: &mut Outbox) {
        out.push((self.of(chunk), TableMessage::Request(request)));
    }

    /// This member's worker.
    pub(super) fn own_id(&self) -> WorkerId {
        self.replica_map.worker_id(self.me)
    }

    /// The ranks of all other members.
    pub(super) fn other_ranks(&self) -> impl Iterator<Item = Rank> {
        self.replica_map.ranks().filter(|rank| *rank != self.me)
    }

    /// The other members that keep the journal of a worker, which may be gone.
    pub(super) fn keepers(&self, worker: WorkerId) -> impl Iterator<Item = Rank> {
        self.replica_map.journal_keepers(worker).into_iter().filter(|rank| *rank != self.me)
    }
}
