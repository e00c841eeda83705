//! The owners of chunks, as a member that sends them changes and requests sees them.

use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::table::{Request, Row, RowSet, RowSetBuilder, TableMessage, WorkerId};

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

    /// Groups rows into those that one request may contain: of one table and one owner, and not too many. Each group is named by its first
    /// chunk. The parts are ranges in order, each with its chunk; so are the rows of each group, and the groups by their first rows.
    pub(super) fn by_request(
        &self,
        parts: impl Iterator<Item = (usize, Range<Row>)>,
    ) -> Vec<(usize, RowSet)> {
        let mut groups: Vec<RequestRows> = Vec::new();
        for (chunk, mut rows) in parts {
            let (owner, layout) = (self.of(chunk), &*self.layout);
            while !rows.is_empty() {
                // Rows ascend, and so do tables: a group of an earlier table gets no more rows.
                let newest = groups.iter().rposition(|group| group.owner == owner);
                let open = newest.filter(|at| groups[*at].room > 0 && rows.start < groups[*at].table_end);
                let open = open.unwrap_or_else(|| {
                    groups.push(RequestRows::new(owner, chunk, layout));
                    groups.len() - 1
                });
                let group = &mut groups[open];
                let end = rows.end.min(rows.start + group.room);
                group.room -= end - rows.start;
                group.rows.push(rows.start..end);
                rows.start = end;
            }
        }
        groups.into_iter().map(|group| (group.first_chunk, group.rows.finish())).collect()
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

/// The rows of one request, while they are gathered.
struct RequestRows {
    /// The owner of all their chunks.
    owner: Rank,
    /// The chunk of the first of them.
    first_chunk: usize,
    /// The row after the last one of their table.
    table_end: Row,
    /// How many more there may be.
    room: u64,
    /// The rows so far.
    rows: RowSetBuilder,
}

impl RequestRows {
    fn new(owner: Rank, first_chunk: usize, layout: &TableLayout) -> Self {
        let room = TableLayout::rows_per_request_max(layout.width(first_chunk)) as u64;
        let table_end = layout.table_end(first_chunk);
        Self { owner, first_chunk, table_end, room, rows: RowSetBuilder::default() }
    }
}
