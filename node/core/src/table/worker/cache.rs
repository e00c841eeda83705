//! The cache of a worker: the rows that it has read, and how old they may be.

use std::collections::BTreeMap;
use std::ops::Range;

use peergrad_protocol::table::{Row, RowSet, WorkerClock};

use super::ReadPolicy;
use crate::table::TableLayout;
use crate::table::change_queue::QueuedChange;

/// The rows that a worker has read and may read again.
#[derive(Default)]
pub(super) struct RowCache {
    /// The values of each row, and how old they may be.
    rows: BTreeMap<Row, CachedRow>,
}

/// A row that was read from its owner.
pub(super) struct CachedRow {
    /// How far the slowest worker had come when the row was read.
    pub(super) clock: WorkerClock,
    /// How far this worker had come when it sent the request.
    pub(super) asked_at: WorkerClock,
    /// The row includes this worker's changes up to this number.
    pub(super) sequence: u64,
    /// The row's values; empty if all of them are zero.
    pub(super) values: Vec<f32>,
}

impl RowCache {
    pub(super) fn insert(&mut self, row: Row, cached: CachedRow) {
        self.rows.insert(row, cached);
    }

    /// Whether a worker that has come to `clock` may use the row.
    pub(super) fn is_fresh(&self, row: Row, read_policy: ReadPolicy, clock: WorkerClock) -> bool {
        self.rows.get(&row).is_some_and(|cached| cached.is_fresh(read_policy, clock))
    }

    /// Removes the rows that a worker which has come to `clock` may not use any more.
    pub(super) fn evict_stale(&mut self, read_policy: ReadPolicy, clock: WorkerClock) {
        self.rows.retain(|_, cached| cached.is_fresh(read_policy, clock));
    }

    /// Drops all that is cached of these rows.
    pub(super) fn invalidate(&mut self, rows: Range<Row>) {
        let rows: Vec<Row> = self.rows.range(rows).map(|(row, _)| *row).collect();
        rows.iter().for_each(|row| _ = self.rows.remove(row));
    }

    /// A change is acknowledged and leaves the log: cached rows from before it include it from now on.
    pub(super) fn fold(&mut self, entry: &QueuedChange, layout: &TableLayout) {
        for (row, added) in entry.rows(layout) {
            if let Some(cached) =
                self.rows.get_mut(&row).filter(|cached| cached.sequence < entry.change.sequence)
            {
                cached.values.resize(added.len(), 0.0);
                cached.values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
                cached.sequence = entry.change.sequence;
            }
        }
    }

    /// The values of these rows, one after the other, and where each row is in them; `None` if some are not in the cache.
    pub(super) fn read(&self, rows: &RowSet, layout: &TableLayout) -> Option<(Vec<f32>, Vec<FoundRow>)> {
        let mut values = Vec::new();
        let mut found = Vec::with_capacity(rows.len());
        for row in rows.iter() {
            let cached = self.rows.get(&row)?;
            found.push(FoundRow { row, sequence: cached.sequence, place: values.len() });
            values.extend_from_slice(&cached.values);
            if cached.values.is_empty() {
                values.resize(values.len() + layout.width(layout.chunk_of(row)), 0.0);
            }
        }
        Some((values, found))
    }
}

/// A row that was found in the cache.
pub(super) struct FoundRow {
    pub(super) row: Row,
    /// The last change of this worker that its values include.
    pub(super) sequence: u64,
    /// The index of its first value.
    pub(super) place: usize,
}

impl CachedRow {
    fn is_fresh(&self, read_policy: ReadPolicy, clock: WorkerClock) -> bool {
        match read_policy {
            ReadPolicy::Unbounded => self.asked_at == clock,
            ReadPolicy::Staleness(_) => self.clock >= read_policy.required_clock(clock),
        }
    }
}
