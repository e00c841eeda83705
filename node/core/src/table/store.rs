//! The table store: the rows that a member stores, as owner or replica. It has their values, the moments of the rule, the additions that
//! are not applied yet, and the number of each worker's last included change.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::limits::PENDING_CLOCKS_MAX;
use peergrad_protocol::table::{
    IdempotencyKey, LeaseTable, Row, RowSet, RowSetBuilder, Rows, TableChunk, UsedKeys, WorkerClock, WorkerId,
};

use super::row_blocks::RowBlocks;
use super::row_index::RowIndex;
use super::{ApplyMode, Table, TableError, TableLayout, lease_table};

mod saved;
mod vectors;

/// The chunks that are stored here.
pub struct TableStore {
    /// The sizes and rules of the tables, and how they are cut into chunks.
    layout: Arc<TableLayout>,
    /// The chunks by index; `None` for a chunk that is not stored here.
    chunks: Vec<Option<Box<StoredChunk>>>,
    /// Which worker computes which samples; valid if the first chunk is stored here.
    lease_table: LeaseTable,
    /// Memory for the next values and moments of a row.
    room: Vec<f32>,
}

/// The rows of one chunk, in the order in which they were first added to.
#[derive(Clone, Debug)]
struct StoredChunk {
    /// The place of each row that exists.
    row_index: RowIndex,
    /// The numbers of each row, by place: values, then moments.
    row_blocks: RowBlocks,
    /// The count of updates of each row, by place.
    updates: Vec<u32>,
    /// The additions of each clock that not all workers have completed, by row.
    pending: BTreeMap<u64, BTreeMap<Row, Vec<f32>>>,
    /// For each worker, the number of its last change that is included; sorted by worker.
    applied: Vec<(WorkerId, u64)>,
    /// The keys of the changes that are included.
    used_keys: UsedKeys,
    /// The number of the last view for which it is known that all changes acknowledged before it are included.
    view_number: u64,
}

/// Rows that were read for a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredRows {
    /// For each chunk of the rows, in order: the number of the worker's last change that it includes; 0 if there is none.
    pub applied: Vec<u64>,
    /// Those of the rows that are zero.
    pub zero: RowSet,
    /// The values of the others, shape (rows, width).
    pub values: Vec<f32>,
}

/// The part of a chunk that is sent to a replica which has the rest.
#[derive(Clone, Debug, Default)]
pub struct ChunkDelta {
    /// The rows that have changed.
    pub rows: BTreeSet<Row>,
    /// The workers whose changes are in those rows.
    pub workers: BTreeSet<WorkerId>,
    /// Whether the keys of included changes are more than before.
    pub has_new_keys: bool,
    /// The workers whose leases have changed. `None` if the lease table has not changed.
    pub leased: Option<BTreeSet<WorkerId>>,
}

impl ChunkDelta {
    /// A change of the leases of these workers.
    #[must_use]
    pub fn leases(workers: impl IntoIterator<Item = WorkerId>) -> Self {
        Self { leased: Some(workers.into_iter().collect()), ..Self::default() }
    }

    /// Adds another part.
    pub fn extend(&mut self, more: Self) {
        self.rows.extend(more.rows);
        self.workers.extend(more.workers);
        self.has_new_keys |= more.has_new_keys;
        if let Some(dealt) = more.leased {
            self.leased.get_or_insert_default().extend(dealt);
        }
    }
}

impl TableStore {
    /// A store without chunks.
    #[must_use]
    pub fn new(layout: Arc<TableLayout>) -> Self {
        let chunks = vec![None; layout.chunk_count()];
        Self { layout, chunks, lease_table: LeaseTable::default(), room: Vec::new() }
    }

    /// The names, sizes and rules of the tables.
    #[must_use]
    pub fn layout(&self) -> &TableLayout {
        &self.layout
    }

    fn chunk(&self, index: usize) -> Option<&StoredChunk> {
        self.chunks.get(index)?.as_deref()
    }

    fn chunk_mut(&mut self, index: usize) -> Option<&mut StoredChunk> {
        self.chunks.get_mut(index)?.as_deref_mut()
    }

    /// A chunk; an empty one is created if it is not here.
    fn chunk_or_create(&mut self, index: usize) -> &mut StoredChunk {
        let layout = &self.layout;
        let new = || Box::new(StoredChunk::new(layout.range(index), layout.table_of(index).stride()));
        self.chunks[index].get_or_insert_with(new)
    }

    /// Whether a chunk is stored here.
    #[must_use]
    pub fn holds(&self, chunk: usize) -> bool {
        self.chunk(chunk).is_some()
    }

    /// The number of the view that a chunk belongs to; `None` if the chunk is not stored here.
    #[must_use]
    pub fn view_number(&self, chunk: usize) -> Option<u64> {
        self.chunk(chunk).map(|chunk| chunk.view_number)
    }

    /// Sets the view that a chunk belongs to, if the chunk is stored here.
    pub fn set_view_number(&mut self, chunk: usize, view_number: u64) {
        if let Some(chunk) = self.chunk_mut(chunk) {
            chunk.view_number = view_number;
        }
    }

    /// Stores a new chunk with these rows and no changes.
    pub fn create_chunk(&mut self, chunk: usize, rows: &Rows) {
        let width = self.layout.width(chunk);
        let chunk = self.chunk_or_create(chunk);
        for (row, values) in rows.indices.iter().zip(rows.values.chunks_exact(width)) {
            let place = chunk.place(row);
            chunk.row_blocks.row_mut(place)[..width].copy_from_slice(values);
        }
    }

    /// Drops a chunk.
    pub fn drop_chunk(&mut self, chunk: usize) {
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            *chunk = None;
        }
        if chunk == 0 {
            self.lease_table = LeaseTable::default();
        }
    }

    /// The number of the worker's last change that the chunk includes; 0 if there is none.
    #[must_use]
    pub fn applied(&self, chunk: usize, worker: &WorkerId) -> u64 {
        self.chunk(chunk).and_then(|chunk| chunk.applied(worker)).unwrap_or(0)
    }

    /// Which worker computes which samples; valid if the first chunk is stored here.
    pub fn lease_table_mut(&mut self) -> &mut LeaseTable {
        &mut self.lease_table
    }

    /// The workers whose numbers a chunk has.
    pub fn workers(&self, chunk: usize) -> impl Iterator<Item = WorkerId> {
        self.chunk(chunk).into_iter().flat_map(|chunk| &chunk.applied).map(|(worker, _)| *worker)
    }

    /// Forgets the number of a worker that sends no more changes.
    pub fn forget_worker(&mut self, chunk: usize, worker: WorkerId) {
        if let Some(chunk) = self.chunk_mut(chunk) {
            chunk.set_applied(worker, 0);
        }
    }

    /// Records the number of a worker's change. Returns false if the chunk includes that change already.
    ///
    /// # Panics
    /// If the chunk is not stored here.
    pub fn advance_sequence(&mut self, chunk: usize, worker: WorkerId, sequence: u64) -> bool {
        self.chunk_mut(chunk).expect("what is changed is here").advance_sequence(worker, sequence)
    }

    /// Records the key of a change. Returns false if the chunk includes a change with this key, or one of a later round.
    ///
    /// # Panics
    /// If the chunk is not stored here.
    pub fn use_key(&mut self, chunk: usize, key: IdempotencyKey) -> bool {
        self.chunk_mut(chunk).expect("what is changed is here").used_keys.insert(key)
    }

    /// Adds to rows of a chunk, in this clock of a worker.
    ///
    /// # Panics
    /// If the chunk is not stored here.
    pub fn add(&mut self, chunk: usize, clock: u64, rows: &Rows) {
        let Self { layout, chunks, room, .. } = self;
        let known = chunks[chunk].as_deref_mut().expect("what is added to is here");
        let table = layout.table_of(chunk);
        let rows = rows.indices.iter().zip(rows.values.chunks_exact(table.width));
        match table.apply_mode {
            ApplyMode::Immediate => rows.for_each(|(row, added)| known.apply(table, row, clock, added, room)),
            ApplyMode::PerClock => {
                let pending = known.pending.entry(clock).or_default();
                for (row, added) in rows {
                    match pending.entry(row) {
                        Entry::Vacant(new) => _ = new.insert(added.to_vec()),
                        Entry::Occupied(mut sum) => table.rule.combine(sum.get_mut(), added),
                    }
                }
            }
        }
    }

    /// Whether the chunk has room for additions of this clock, which wait until all workers have completed the clock.
    #[must_use]
    pub fn has_pending_room(&self, chunk: usize, clock: u64) -> bool {
        self.chunk(chunk).is_none_or(|chunk| {
            chunk.pending.len() < PENDING_CLOCKS_MAX || chunk.pending.contains_key(&clock)
        })
    }

    /// Bytes of the moments, beside the values of rows.
    #[must_use]
    pub fn moment_bytes(&self) -> u64 {
        let of_chunk = |(index, chunk): (usize, &Option<Box<StoredChunk>>)| {
            let moments = self.layout.stride(index) - self.layout.width(index);
            chunk.as_ref().map_or(0, |chunk| chunk.updates.len() * moments * size_of::<f32>())
        };
        self.chunks.iter().enumerate().map(of_chunk).sum::<usize>() as u64
    }

    /// Whether a chunk has additions that are not applied.
    #[must_use]
    pub fn has_pending(&self, chunk: usize) -> bool {
        self.chunk(chunk).is_some_and(|chunk| !chunk.pending.is_empty())
    }

    /// The newest clock with additions to the chunk that are not applied; `None` if there are none.
    #[must_use]
    pub fn last_pending(&self, chunk: usize) -> Option<u64> {
        self.chunk(chunk)?.pending.keys().next_back().copied()
    }

    /// Applies the additions of clocks that all workers have completed, where `least` is how far the slowest has come. Returns the changed
    /// rows.
    pub fn apply_completed(&mut self, chunk: usize, least: WorkerClock) -> BTreeSet<Row> {
        let mut changed = BTreeSet::new();
        let Self { layout, chunks, room, .. } = self;
        let Some(known) = chunks.get_mut(chunk).and_then(Option::as_deref_mut) else { return changed };
        while let Some(first) =
            known.pending.first_entry().filter(|first| WorkerClock::At(*first.key()) < least)
        {
            let (clock, sums) = first.remove_entry();
            for (row, sum) in sums {
                known.apply(layout.table_of(chunk), row, clock, &sum, room);
                changed.insert(row);
            }
        }
        changed
    }

    /// Reads rows of chunks of one table, for this worker.
    ///
    /// # Panics
    /// If one of the chunks is not stored here.
    #[must_use]
    pub fn read(&self, rows: &RowSet, worker: &WorkerId) -> StoredRows {
        let Some((first, _)) = rows.bounds() else { return StoredRows::default() };
        let width = self.layout.width(self.layout.chunk_of(first));
        let mut zero = RowSetBuilder::default();
        let mut applied = Vec::new();
        let mut values = Vec::with_capacity((rows.len() * width).min(ROOM_VALUES));
        let mut last = None;
        for (index, range) in self.layout.by_chunk(rows) {
            let chunk = self.chunk(index).expect("what is read is here");
            if last.replace(index) != Some(index) {
                applied.push(chunk.applied(worker).unwrap_or(0));
            }
            let mut next = range.start;
            for (row, place) in chunk.row_index.range(range.clone()) {
                let numbers = &chunk.row_blocks.row(place)[..width];
                if numbers.iter().any(|number| *number != 0.0) {
                    zero.push(next..row);
                    values.extend_from_slice(numbers);
                    next = row + 1;
                }
            }
            zero.push(next..range.end);
        }
        StoredRows { applied, zero: zero.finish(), values }
    }

    /// The part of a chunk to send to a replica that has the rest; with `None`, the whole chunk.
    ///
    /// # Panics
    /// If the chunk is not stored here.
    #[must_use]
    pub fn snapshot(&self, index: usize, part: Option<&ChunkDelta>) -> TableChunk {
        let width = self.layout.width(index);
        let chunk = self.chunk(index).expect("a replicated chunk is stored here");
        let is_wanted = |row: &Row| part.is_none_or(|part| part.rows.contains(row));
        let rows: Vec<(Row, usize)> = match part {
            None => chunk.row_index.iter().collect(),
            // Some of these rows may have only pending additions, and no values yet.
            Some(part) => {
                part.rows.iter().filter_map(|row| Some((*row, chunk.row_index.get(*row)?))).collect()
            }
        };
        let mut values = Vec::with_capacity(rows.len() * chunk.row_blocks.stride());
        rows.iter().for_each(|(_, place)| values.extend_from_slice(chunk.row_blocks.row(*place)));
        let pending = chunk.pending.iter().map(|(clock, sums)| {
            let sent = sums.iter().filter(|(row, _)| is_wanted(row));
            let mut values = Vec::with_capacity(sums.len() * width);
            let indices =
                sent.inspect(|(_, sum)| values.extend_from_slice(sum)).map(|(row, _)| *row).collect();
            (*clock, Rows { indices, values })
        });
        let applied = match part {
            None => chunk.applied.clone(),
            Some(part) => {
                let number = |worker: &WorkerId| (*worker, chunk.applied(worker).unwrap_or(0));
                part.workers.iter().map(number).collect()
            }
        };
        let used_keys = part.is_none_or(|part| part.has_new_keys).then(|| chunk.used_keys.clone());
        let lease_table = match part {
            None => Some(self.lease_table.clone()),
            Some(part) => part.leased.as_ref().map(|workers| lease_table::update(&self.lease_table, workers)),
        };
        TableChunk {
            chunk: index as u32,
            is_whole: part.is_none(),
            rows: Rows { indices: rows.iter().map(|(row, _)| *row).collect(), values },
            updates: rows.iter().map(|(_, place)| chunk.updates[*place]).collect(),
            pending: pending.filter(|(_, rows)| !rows.indices.is_empty()).collect(),
            applied,
            used_keys,
            lease_table: lease_table.filter(|_| index == 0),
        }
    }

    /// Checks that another member can have such a state.
    ///
    /// # Errors
    /// What is wrong with the state.
    pub fn check(&self, state: &TableChunk) -> Result<(), TableError> {
        let chunk = state.chunk as usize;
        self.layout.check_indices(chunk, &state.rows.indices)?;
        self.layout.check(chunk, &state.rows, self.layout.stride(chunk))?;
        let (found, expected) = (state.updates.len(), state.rows.indices.len());
        if found != expected {
            return Err(TableError::Length { found, expected });
        }
        state
            .pending
            .iter()
            .try_for_each(|(_, rows)| self.layout.check(chunk, rows, self.layout.width(chunk)))
    }

    /// Stores the state that another member has sent, which must be [checked](Self::check).
    pub fn receive_chunk(&mut self, state: &TableChunk) {
        let index = state.chunk as usize;
        let (width, stride) = (self.layout.width(index), self.layout.stride(index));
        if state.is_whole {
            self.chunks[index] = None;
        }
        let chunk = self.chunk_or_create(index);
        let numbers = state.rows.values.chunks_exact(stride);
        for ((row, numbers), updates) in state.rows.indices.iter().zip(numbers).zip(&state.updates) {
            let place = chunk.place(row);
            chunk.row_blocks.row_mut(place).copy_from_slice(numbers);
            chunk.updates[place] = *updates;
        }
        // A message with a row has all its pending additions.
        let sent =
            state.rows.indices.iter().chain(state.pending.iter().flat_map(|(_, rows)| rows.indices.iter()));
        let sent: BTreeSet<Row> = sent.collect();
        chunk.pending.retain(|_, sums| {
            sums.retain(|row, _| !sent.contains(row));
            !sums.is_empty()
        });
        for (clock, rows) in &state.pending {
            if chunk.pending.len() == PENDING_CLOCKS_MAX && !chunk.pending.contains_key(clock) {
                // No correct owner has more pending clocks, and no replica would accept more.
                break;
            }
            let values = rows.values.chunks_exact(width).map(<[f32]>::to_vec);
            chunk.pending.entry(*clock).or_default().extend(rows.indices.iter().zip(values));
        }
        state.applied.iter().for_each(|(worker, last)| chunk.set_applied(*worker, *last));
        if let Some(used_keys) = &state.used_keys {
            chunk.used_keys.clone_from(used_keys);
        }
        if let (0, Some(lease_table)) = (index, &state.lease_table) {
            if state.is_whole {
                self.lease_table = LeaseTable::default();
            }
            lease_table::apply_update(&mut self.lease_table, lease_table);
        }
    }
}

/// How many values there is room for at once, before it is known how many of the rows are not zero.
const ROOM_VALUES: usize = 1 << 14;

impl StoredChunk {
    fn new(rows: Range<Row>, stride: usize) -> Self {
        Self {
            row_index: RowIndex::new(rows),
            row_blocks: RowBlocks::new(stride),
            updates: Vec::new(),
            pending: BTreeMap::new(),
            applied: Vec::new(),
            used_keys: UsedKeys::default(),
            view_number: 0,
        }
    }

    /// Records the number of a worker's change. Returns false if the chunk includes that change already.
    fn advance_sequence(&mut self, worker: WorkerId, sequence: u64) -> bool {
        let is_news = self.applied(&worker).is_none_or(|last| sequence > last);
        if is_news {
            self.set_applied(worker, sequence);
        }
        is_news
    }

    /// The place of a row, which is created if necessary.
    fn place(&mut self, row: Row) -> usize {
        let next = self.updates.len();
        let place = self.row_index.get_or_insert(row, next);
        if place == next {
            self.row_blocks.allocate(next);
            self.updates.push(0);
        }
        place
    }

    /// Applies an addition of this clock to a row, unless the row would overflow. `room` is memory for a row.
    fn apply(&mut self, table: &Table, row: Row, clock: u64, added: &[f32], room: &mut Vec<f32>) {
        let place = self.place(row);
        let changes = self.updates[place];
        if table.rule.apply(self.row_blocks.row_mut(place), (added, clock, changes), room) {
            self.updates[place] = changes.saturating_add(1);
        }
    }

    fn applied(&self, worker: &WorkerId) -> Option<u64> {
        let place = self.applied.binary_search_by(|(known, _)| known.cmp(worker)).ok()?;
        Some(self.applied[place].1)
    }

    /// Sets the number of a worker's last change; with 0, the worker is forgotten.
    fn set_applied(&mut self, worker: WorkerId, last: u64) {
        match self.applied.binary_search_by(|(known, _)| known.cmp(&worker)) {
            Ok(place) if last == 0 => _ = self.applied.remove(place),
            Ok(place) => self.applied[place].1 = last,
            Err(place) if last > 0 => self.applied.insert(place, (worker, last)),
            Err(_) => {}
        }
    }
}
