//! Changes: what a worker has added or mapped, until it is safe.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use peergrad_protocol::limits::UNACKNOWLEDGED_BYTES_MAX;
use peergrad_protocol::table::{Operation, Row, Rows};

use crate::table::change_queue::{ChangeQueue, QueuedChange};
use crate::table::{TableLayout, TableRule};

/// The changes of a worker that are not acknowledged yet, in order.
#[derive(Default)]
pub struct ChangeLog {
    /// The additions that were not pushed yet, by row.
    coalesced: BTreeMap<Row, Vec<f32>>,
    /// The changes that were pushed and are not acknowledged.
    pub(super) queue: ChangeQueue,
}

impl ChangeLog {
    /// Whether all additions are acknowledged.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty() && self.coalesced.is_empty()
    }

    /// The number of the last change that was pushed.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        self.queue.last()
    }

    /// All changes up to this number are acknowledged.
    #[must_use]
    pub fn acknowledged_up_to(&self) -> u64 {
        self.queue.acknowledged_up_to()
    }

    /// Whether so much is unacknowledged that the worker must not add more at present.
    #[must_use]
    pub fn has_much_unacknowledged(&self) -> bool {
        self.queue.bytes() > UNACKNOWLEDGED_BYTES_MAX
    }

    /// Whether all additions were pushed.
    pub(super) fn is_pushed(&self) -> bool {
        self.coalesced.is_empty()
    }

    /// All changes up to this number were sent to their owners.
    #[cfg(test)]
    pub(in crate::table) fn released_up_to(&self) -> u64 {
        self.queue.released_up_to()
    }

    /// The unacknowledged additions to one number of a row.
    #[cfg(test)]
    pub(in crate::table) fn unacknowledged(&self, layout: &TableLayout, row: Row, number: usize) -> f32 {
        let in_entry = |entry: &QueuedChange| {
            entry.rows(layout).find(|(name, _)| *name == row).map_or(0.0, |(_, added)| added[number])
        };
        let sent: f32 = self.queue.entries().map(in_entry).sum();
        sent + self.coalesced.get(&row).map_or(0.0, |added| added[number])
    }

    /// Drops the additions that were not pushed.
    pub(super) fn discard(&mut self) {
        self.coalesced.clear();
    }

    /// Adds to a row of a table with this rule.
    pub(super) fn add(&mut self, row: Row, added: &[f32], rule: &TableRule) {
        match self.coalesced.entry(row) {
            Entry::Vacant(new) => _ = new.insert(added.to_vec()),
            Entry::Occupied(mut earlier) => rule.combine(earlier.get_mut(), added),
        }
    }

    /// Takes the additions that were not pushed yet, by chunk, as changes of this clock.
    pub(super) fn take_coalesced(&mut self, clock: u64, layout: &TableLayout) -> Vec<(usize, Operation)> {
        let coalesced = std::mem::take(&mut self.coalesced);
        parts(coalesced.iter().map(|(row, added)| (*row, &added[..])), clock, layout)
    }

    /// Calls `add` for each unacknowledged addition to a chunk whose owner adds additions when they arrive, with the row and the number of
    /// the change.
    pub(super) fn for_each_addition(&self, layout: &TableLayout, mut add: impl FnMut(Row, u64, &[f32])) {
        // The worker can apply its own additions to such a chunk before the owner does.
        let is_additive = |chunk: usize| layout.table_of(chunk).is_additive();
        for entry in self.queue.entries().filter(|entry| is_additive(entry.change.chunk as usize)) {
            entry.rows(layout).for_each(|(row, added)| add(row, entry.change.sequence, added));
        }
        let coalesced = self.coalesced.iter().filter(|(row, _)| is_additive(layout.chunk_of(**row)));
        coalesced.for_each(|(row, added)| add(*row, u64::MAX, added));
    }
}

/// Additions of this clock to these rows, by chunk. The rows are in order, and exist.
pub(super) fn by_chunk(rows: &Rows, clock: u64, layout: &TableLayout) -> Vec<(usize, Operation)> {
    let mut rest = &rows.values[..];
    let each = rows.indices.iter().map(|row| {
        let (added, after) = rest.split_at(layout.width(layout.chunk_of(row)));
        rest = after;
        (row, added)
    });
    parts(each, clock, layout)
}

fn parts<'a>(
    rows: impl Iterator<Item = (Row, &'a [f32])>,
    clock: u64,
    layout: &TableLayout,
) -> Vec<(usize, Operation)> {
    let mut parts: BTreeMap<usize, (Vec<Row>, Vec<f32>)> = BTreeMap::new();
    for (row, added) in rows {
        let (indices, values) = parts.entry(layout.chunk_of(row)).or_default();
        indices.push(row);
        values.extend_from_slice(added);
    }
    let operation = |(indices, values): (Vec<Row>, _)| {
        let rows = Rows { indices: indices.into_iter().collect(), values };
        Operation::Add { clock, rows }
    };
    parts.into_iter().map(|(chunk, part)| (chunk, operation(part))).collect()
}

impl QueuedChange {
    /// The additions of the entry whose effect this worker knows, by row.
    pub(super) fn rows<'a>(
        &'a self,
        layout: &TableLayout,
    ) -> impl Iterator<Item = (Row, &'a [f32])> + use<'a> {
        // Only the owner knows whether a change with a key has an effect.
        let rows = match &self.change.operation {
            Operation::Add { rows, .. } if self.change.key.is_none() => Some(rows),
            _ => None,
        };
        let width = layout.width(self.change.chunk as usize);
        rows.into_iter().flat_map(move |rows| rows.indices.iter().zip(rows.values.chunks_exact(width)))
    }
}
