//! The cache of a worker: the rows that it has read, and how old they may be.

use std::ops::Range;

use peergrad_protocol::table::{Row, RowSet, WorkerClock};

use super::ReadPolicy;
use crate::table::TableLayout;
use crate::table::change_queue::QueuedChange;
use crate::table::row_blocks::RowBlocks;
use crate::table::row_index::RowIndex;

/// The rows that a worker has read and may read again.
#[derive(Default)]
pub(super) struct RowCache {
    /// The chunks by index; `None` for one of which no row is cached. Those behind the last one with rows may be missing.
    chunks: Vec<Option<Box<CachedChunk>>>,
}

/// The rows of one chunk, in the order in which they were first cached.
pub(super) struct CachedChunk {
    /// The place of each row in `rows`.
    row_index: RowIndex,
    /// How old each row is, and where its values are.
    rows: Vec<CachedRow>,
    /// The values of the rows that are not zero.
    row_blocks: RowBlocks,
    /// The number of rows that have room in `row_blocks`.
    block_rows: usize,
}

/// A row that was read from its owner.
struct CachedRow {
    /// When it was read.
    age: RowAge,
    /// The place of its values in the blocks; `None` if all of them are zero and always were.
    place: Option<u32>,
}

/// When a row was read.
#[derive(Clone, Copy)]
pub(super) struct RowAge {
    /// How far the slowest worker had come when the row was read.
    pub(super) clock: WorkerClock,
    /// How far this worker had come when it sent the request.
    pub(super) asked_at: WorkerClock,
    /// The row includes this worker's changes up to this number.
    pub(super) sequence: u64,
}

impl RowCache {
    /// The cached rows of a chunk, to which more may be added.
    pub(super) fn chunk_mut(&mut self, chunk: usize, layout: &TableLayout) -> &mut CachedChunk {
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let new = || Box::new(CachedChunk::new(layout.range(chunk), layout.width(chunk)));
        self.chunks[chunk].get_or_insert_with(new)
    }

    fn chunk(&self, chunk: usize) -> Option<&CachedChunk> {
        self.chunks.get(chunk)?.as_deref()
    }

    /// Those of these rows that a worker which has come to `clock` may not use: ranges in order, each with its chunk.
    pub(super) fn stale<'a>(
        &'a self,
        rows: &'a RowSet,
        (read_policy, clock): (ReadPolicy, WorkerClock),
        layout: &'a TableLayout,
    ) -> impl Iterator<Item = (usize, Range<Row>)> + 'a {
        layout.by_chunk(rows).flat_map(move |(index, rows)| {
            let chunk = self.chunk(index);
            // A chunk without cached rows lacks the whole range.
            let (whole, single) = if chunk.is_none() { (Some(rows), 0..0) } else { (None, rows) };
            let is_stale = move |row: &Row| {
                let cached = chunk.and_then(|chunk| chunk.get(*row));
                !cached.is_some_and(|cached| cached.age.is_fresh(read_policy, clock))
            };
            whole
                .into_iter()
                .chain(single.filter(is_stale).map(|row| row..row + 1))
                .map(move |rows| (index, rows))
        })
    }

    /// Removes the rows that a worker which has come to `clock` may not use any more.
    pub(super) fn evict_stale(&mut self, read_policy: ReadPolicy, clock: WorkerClock, layout: &TableLayout) {
        let is_fresh = |cached: &CachedRow| cached.age.is_fresh(read_policy, clock);
        for (index, slot) in self.chunks.iter_mut().enumerate() {
            let Some(chunk) = slot.take_if(|chunk| !chunk.rows.iter().all(is_fresh)) else { continue };
            if chunk.rows.iter().any(is_fresh) {
                let mut left = CachedChunk::new(layout.range(index), layout.width(index));
                for (row, at) in chunk.row_index.iter().filter(|(_, at)| is_fresh(&chunk.rows[*at])) {
                    left.insert(row, chunk.rows[at].age, chunk.values(&chunk.rows[at]));
                }
                *slot = Some(Box::new(left));
            }
        }
    }

    /// Drops all that is cached of a chunk.
    pub(super) fn invalidate(&mut self, chunk: usize) {
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            *chunk = None;
        }
    }

    /// A change is acknowledged and leaves the log: cached rows from before it include it from now on.
    pub(super) fn fold(&mut self, entry: &QueuedChange, layout: &TableLayout) {
        let (index, sequence) = (entry.change.chunk as usize, entry.change.sequence);
        let Some(chunk) = self.chunks.get_mut(index).and_then(Option::as_deref_mut) else { return };
        for (row, added) in entry.rows(layout) {
            let Some(at) = chunk.row_index.get(row) else { continue };
            if chunk.rows[at].age.sequence < sequence {
                chunk.rows[at].age.sequence = sequence;
                chunk.values_mut(at).iter_mut().zip(added).for_each(|(value, added)| *value += added);
            }
        }
    }

    /// The values of these rows, one after the other, and where each row is in them; `None` if some are not in the cache.
    pub(super) fn read(&self, rows: &RowSet, layout: &TableLayout) -> Option<(Vec<f32>, Vec<FoundRow>)> {
        let row_count = rows.len();
        let first = rows.bounds().map_or(0, |(first, _)| layout.chunk_of(first));
        let mut values = Vec::with_capacity(row_count * layout.width(first));
        let mut found = Vec::with_capacity(row_count);
        for (index, rows) in layout.by_chunk(rows) {
            let chunk = self.chunk(index)?;
            for row in rows {
                let cached = chunk.get(row)?;
                found.push(FoundRow { row, sequence: cached.age.sequence, place: values.len() });
                match chunk.values(cached) {
                    [] => values.resize(values.len() + chunk.row_blocks.stride(), 0.0),
                    numbers => values.extend_from_slice(numbers),
                }
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

impl CachedChunk {
    fn new(rows: Range<Row>, width: usize) -> Self {
        Self {
            row_index: RowIndex::new(rows),
            rows: Vec::new(),
            row_blocks: RowBlocks::new(width),
            block_rows: 0,
        }
    }

    fn get(&self, row: Row) -> Option<&CachedRow> {
        self.row_index.get(row).map(|at| &self.rows[at])
    }

    /// The values of a row; none if all of them are zero.
    fn values(&self, cached: &CachedRow) -> &[f32] {
        cached.place.map_or(&[], |place| self.row_blocks.row(place as usize))
    }

    /// The values of the row at this place of the index, also if all of them are zero.
    fn values_mut(&mut self, at: usize) -> &mut [f32] {
        let place = *self.rows[at].place.get_or_insert_with(|| {
            let place = self.block_rows;
            self.row_blocks.allocate(place);
            self.block_rows += 1;
            u32::try_from(place).expect("a chunk's cached rows fit into memory")
        });
        self.row_blocks.row_mut(place as usize)
    }

    /// Stores a row that was read, in the place of what is cached of it. It has no values if all of them are zero.
    pub(super) fn insert(&mut self, row: Row, age: RowAge, values: &[f32]) {
        let next = self.rows.len();
        let at = self.row_index.get_or_insert(row, next);
        if at == next {
            self.rows.push(CachedRow { age, place: None });
        }
        self.rows[at].age = age;
        if !values.is_empty() {
            self.values_mut(at).copy_from_slice(values);
        } else if self.rows[at].place.is_some() {
            self.values_mut(at).fill(0.0);
        }
    }
}

impl RowAge {
    fn is_fresh(self, read_policy: ReadPolicy, clock: WorkerClock) -> bool {
        match read_policy {
            ReadPolicy::Unbounded => self.asked_at == clock,
            ReadPolicy::Staleness(_) => self.clock >= read_policy.required_clock(clock),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    #[test]
    fn stale_rows_are_evicted_and_the_others_stay_as_they_are() {
        let layout = TableLayout::new(vec![Table::additive("counts", 64, 2)]);
        let mut cache = RowCache::default();
        let age = |clock| RowAge {
            clock: WorkerClock::At(clock),
            asked_at: WorkerClock::At(clock),
            sequence: clock,
        };
        for row in 0..40 {
            let values = [row as f32, 1.0];
            let values = if row % 3 == 0 { &[][..] } else { &values };
            cache.chunk_mut(layout.chunk_of(row), &layout).insert(row, age(row % 2), values);
        }
        let now = (ReadPolicy::Staleness(0), WorkerClock::At(1));
        let all = RowSet::range(0..64);
        let stale = |cache: &RowCache| -> Vec<Row> {
            cache.stale(&all, now, &layout).flat_map(|(_, rows)| rows).collect()
        };
        let expected: Vec<Row> = (0..64).filter(|row| row % 2 == 0 || *row >= 40).collect();
        assert_eq!(stale(&cache), expected);
        cache.evict_stale(now.0, now.1, &layout);
        assert_eq!(stale(&cache), expected);
        let kept: RowSet = (0..40).filter(|row| row % 2 == 1).collect();
        let (values, found) = cache.read(&kept, &layout).unwrap();
        for (found, values) in found.iter().zip(values.chunks_exact(2)) {
            let expected = if found.row % 3 == 0 { [0.0, 0.0] } else { [found.row as f32, 1.0] };
            assert_eq!((values, found.sequence), (&expected[..], 1));
        }
        assert!(cache.read(&RowSet::range(1..3), &layout).is_none());
        cache.invalidate(0);
        assert!(cache.read(&RowSet::range(1..2), &layout).is_none());
        // A row that is read again is as it was read last.
        let chunk = cache.chunk_mut(1, &layout);
        chunk.insert(17, age(2), &[]);
        chunk.insert(21, age(2), &[7.0, 8.0]);
        let (values, _) = cache.read(&[17, 21].into_iter().collect(), &layout).unwrap();
        assert_eq!(values, [0.0, 0.0, 7.0, 8.0]);
    }
}
