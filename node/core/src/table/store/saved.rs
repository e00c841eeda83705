//! Saved chunks: what a checkpoint has of the rows that a member stores.

use std::sync::Arc;

use peergrad_protocol::table::{LeaseTable, TableChunk, WorkerClock};

use super::TableStore;
use crate::table::{TableError, TableLayout, lease_table};

impl TableStore {
    /// Copies of those of these chunks that are stored here, for a checkpoint. Nothing is under way in them: the additions that wait for a clock
    /// are applied, since after a restart all workers are at the same clock; no worker has a number; and no samples are leased.
    #[must_use]
    pub fn saved(&self, is_wanted: impl Fn(usize) -> bool) -> Vec<TableChunk> {
        let copy = |chunk: usize| {
            let mut one = Self {
                layout: Arc::clone(&self.layout),
                chunks: vec![None; self.chunks.len()],
                lease_table: LeaseTable::default(),
                room: Vec::new(),
            };
            one.chunks[chunk].clone_from(&self.chunks[chunk]);
            one.apply_completed(chunk, WorkerClock::Ended);
            one.chunk_mut(chunk)?.applied.clear();
            if chunk == 0 {
                one.lease_table.clone_from(&self.lease_table);
                lease_table::reclaim(&mut one.lease_table, |_| false);
                lease_table::forget(&mut one.lease_table, |_| false);
            }
            Some(one.snapshot(chunk, None))
        };
        (0..self.layout.chunk_count()).filter(|chunk| is_wanted(*chunk)).filter_map(copy).collect()
    }

    /// A store with these chunks, which are from a checkpoint.
    ///
    /// # Errors
    /// The chunks do not fit the tables.
    pub fn restored(layout: Arc<TableLayout>, chunks: &[TableChunk]) -> Result<Self, TableError> {
        let mut store = Self::new(layout);
        for chunk in chunks {
            store.check(chunk)?;
            store.receive_chunk(chunk);
        }
        Ok(store)
    }
}
