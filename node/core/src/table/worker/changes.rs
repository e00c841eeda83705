//! Changes: what a worker has added or mapped, until it is safe.

use std::collections::{BTreeMap, VecDeque};

use peergrad_protocol::limits::UNACKNOWLEDGED_BYTES_MAX;
use peergrad_protocol::table::{Map, Request, Row, Rows};

use crate::table::TableLayout;

/// The changes of a worker that are not acknowledged yet, in order.
#[derive(Default)]
pub struct ChangeLog {
    /// The number of the last change that was sent.
    sequence: u64,
    /// The additions that were not pushed yet, by row.
    coalesced: BTreeMap<Row, Vec<f32>>,
    /// The changes that were sent and not acknowledged.
    sent: VecDeque<Entry>,
    /// The bytes of `sent`.
    bytes: usize,
}

/// One change of one chunk.
pub(super) struct Entry {
    /// The number of the change, from 1 on, by which owners apply it only once.
    pub(super) sequence: u64,
    /// The worker's clock in which it was made.
    clock: u64,
    /// The chunk that it changes.
    pub(super) chunk: usize,
    /// The addition or mapping itself.
    change: Change,
}

pub(super) enum Change {
    Add(Rows),
    Map(Map),
}

impl ChangeLog {
    /// Whether all additions are acknowledged.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.sent.is_empty() && self.coalesced.is_empty()
    }

    /// The number of the last change that was sent.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// All changes up to this number are acknowledged.
    #[must_use]
    pub fn acknowledged_up_to(&self) -> u64 {
        self.sent.front().map_or(self.sequence, |entry| entry.sequence - 1)
    }

    /// Whether so much is unacknowledged that the worker must not add more at present.
    #[must_use]
    pub fn has_much_unacknowledged(&self) -> bool {
        self.bytes > UNACKNOWLEDGED_BYTES_MAX
    }

    /// Whether all additions were pushed.
    pub(super) fn is_pushed(&self) -> bool {
        self.coalesced.is_empty()
    }

    /// The unacknowledged additions to one number of a row.
    #[cfg(test)]
    pub(in crate::table) fn unacknowledged(&self, layout: &TableLayout, row: Row, number: usize) -> f32 {
        let in_entry = |entry: &Entry| {
            entry.rows(layout).find(|(name, _)| *name == row).map_or(0.0, |(_, added)| added[number])
        };
        let sent: f32 = self.sent.iter().map(in_entry).sum();
        sent + self.coalesced.get(&row).map_or(0.0, |added| added[number])
    }

    /// Adds to a row.
    pub(super) fn add(&mut self, row: Row, added: &[f32]) {
        let sum = self.coalesced.entry(row).or_insert_with(|| vec![0.0; added.len()]);
        // One overflow must not ruin the shared values.
        if sum.iter().zip(added).all(|(sum, added)| (sum + added).is_finite()) {
            sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
        }
    }

    /// Takes the additions that were not pushed yet, by chunk.
    pub(super) fn take_coalesced(
        &mut self,
        layout: &TableLayout,
    ) -> impl Iterator<Item = (usize, Change)> + use<> {
        let mut parts: BTreeMap<usize, (Vec<Row>, Vec<f32>)> = BTreeMap::new();
        for (row, added) in std::mem::take(&mut self.coalesced) {
            let (indices, values) = parts.entry(layout.chunk_of(row)).or_default();
            indices.push(row);
            values.extend_from_slice(&added);
        }
        let change = |(indices, values): (Vec<Row>, _)| {
            Change::Add(Rows { indices: indices.into_iter().collect(), values })
        };
        parts.into_iter().map(move |(chunk, part)| (chunk, change(part)))
    }

    /// Records the next change, which belongs to this clock, and is sent now.
    pub(super) fn record(&mut self, clock: u64, chunk: usize, change: Change) -> Request {
        self.sequence += 1;
        let entry = Entry { sequence: self.sequence, clock, chunk, change };
        let request = entry.to_request();
        self.bytes += entry.bytes();
        self.sent.push_back(entry);
        request
    }

    /// The changes that were sent and not acknowledged, in order.
    pub(super) fn sent(&self) -> impl Iterator<Item = &Entry> {
        self.sent.iter()
    }

    /// An owner, to whom `is_its` says which chunks belong, acknowledges the changes up to this number. `on_safe` is called for each.
    pub(super) fn acknowledge(
        &mut self,
        up_to: u64,
        is_its: impl Fn(usize) -> bool,
        mut on_safe: impl FnMut(&Entry),
    ) {
        let bytes = &mut self.bytes;
        self.sent.retain(|entry| {
            let is_safe = entry.sequence <= up_to && is_its(entry.chunk);
            if is_safe {
                *bytes -= entry.bytes();
                on_safe(entry);
            }
            !is_safe
        });
    }

    /// Calls `add` for each unacknowledged addition to a chunk whose owner adds additions when they arrive, with the row and the number of
    /// the change.
    pub(super) fn for_each_addition(&self, layout: &TableLayout, mut add: impl FnMut(Row, u64, &[f32])) {
        // The worker can apply its own additions to such a chunk before the owner does.
        let is_additive = |chunk: usize| layout.table_of(chunk).is_additive();
        for entry in self.sent.iter().filter(|entry| is_additive(entry.chunk)) {
            entry.rows(layout).for_each(|(row, added)| add(row, entry.sequence, added));
        }
        let coalesced = self.coalesced.iter().filter(|(row, _)| is_additive(layout.chunk_of(**row)));
        coalesced.for_each(|(row, added)| add(*row, u64::MAX, added));
    }
}

impl Entry {
    pub(super) fn to_request(&self) -> Request {
        let Self { sequence, clock, ref change, .. } = *self;
        let chunk = self.chunk as u32;
        match change {
            Change::Add(rows) => Request::Add { sequence, clock, chunk, rows: rows.clone() },
            Change::Map(map) => Request::Map { sequence, chunk, map: *map },
        }
    }

    /// The approximate number of bytes that the entry takes in memory.
    fn bytes(&self) -> usize {
        let rows = match &self.change {
            Change::Add(rows) => rows.bytes(),
            Change::Map(_) => 0,
        };
        size_of::<Self>() + rows
    }

    /// The additions of the entry, by row.
    pub(super) fn rows<'a>(
        &'a self,
        layout: &TableLayout,
    ) -> impl Iterator<Item = (Row, &'a [f32])> + use<'a> {
        let rows = match &self.change {
            Change::Add(rows) => Some(rows),
            Change::Map(_) => None,
        };
        let width = layout.width(self.chunk);
        rows.into_iter().flat_map(move |rows| rows.indices.iter().zip(rows.values.chunks_exact(width)))
    }
}
