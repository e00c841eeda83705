//! The rows that a member keeps, as an owner or as a copy: their values, what the rule keeps of them, and whose additions are in.

use std::collections::{BTreeMap, BTreeSet};

use super::{Row, Rows, Shape, Writer};
use crate::optimizer::Rule;

/// What becomes of what is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TableRule {
    /// It is added.
    Sum,
    /// It is a gradient, which the optimizer applies at this learning rate.
    Stock {
        /// Which.
        rule: Rule,
        /// Its learning rate.
        rate: f64,
    },
}

impl TableRule {
    /// Numbers that are kept for each of a row's.
    fn moments(&self) -> usize {
        match self {
            Self::Sum => 0,
            Self::Stock { rule, .. } => rule.moment_count(),
        }
    }
}

/// The chunks that are here.
pub struct Store {
    shape: Shape,
    rule: TableRule,
    chunks: BTreeMap<usize, Chunk>,
    /// Room for a row's next moments.
    room: Vec<f32>,
}

/// Rows of one chunk, in the order in which they were first added to.
#[derive(Clone, Debug, Default)]
struct Chunk {
    places: BTreeMap<Row, usize>,
    /// By place: values, then moments, one after the other.
    numbers: Vec<f32>,
    /// By place: how many updates are behind it.
    updates: Vec<u32>,
    /// The last number of each worker that is in.
    applied: BTreeMap<Writer, u64>,
    /// The last view of which it is known that all that was acknowledged before it is in.
    epoch: u64,
}

/// Rows of a chunk with everything that belongs to them, for another member to keep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Which one.
    pub chunk: usize,
    /// Whether it is the whole chunk, and what was kept of it before is void.
    pub is_whole: bool,
    /// Rows with their values and moments.
    pub rows: Rows,
    /// By row: updates behind it.
    pub updates: Vec<u32>,
    /// The last sequence numbers that are in it; not of all workers, if it is not the whole chunk.
    pub applied: Vec<(Writer, u64)>,
}

impl Store {
    /// One that keeps nothing yet.
    #[must_use]
    pub fn new(shape: Shape, rule: TableRule) -> Self {
        Self { shape, rule, chunks: BTreeMap::new(), room: Vec::new() }
    }

    /// How the table is laid out.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether a chunk is here.
    #[must_use]
    pub fn holds(&self, chunk: usize) -> bool {
        self.chunks.contains_key(&chunk)
    }

    /// Of which view a chunk is, if it is here.
    #[must_use]
    pub fn epoch(&self, chunk: usize) -> Option<u64> {
        self.chunks.get(&chunk).map(|chunk| chunk.epoch)
    }

    /// A chunk that is here is of this view.
    pub fn set_epoch(&mut self, chunk: usize, epoch: u64) {
        if let Some(chunk) = self.chunks.get_mut(&chunk) {
            chunk.epoch = epoch;
        }
    }

    /// Keeps a chunk in which nothing is yet.
    pub fn begin(&mut self, chunk: usize) {
        self.chunks.entry(chunk).or_default();
    }

    /// Keeps a chunk no longer.
    pub fn drop_chunk(&mut self, chunk: usize) {
        self.chunks.remove(&chunk);
    }

    /// The last number of a worker that is in a chunk.
    #[must_use]
    pub fn applied(&self, chunk: usize, writer: &Writer) -> u64 {
        self.chunks.get(&chunk).and_then(|chunk| chunk.applied.get(writer)).copied().unwrap_or(0)
    }

    /// Forgets those who do not write any more.
    pub fn forget_writers(&mut self, writes: impl Fn(&Writer) -> bool) {
        self.chunks.values_mut().for_each(|chunk| chunk.applied.retain(|writer, _| writes(writer)));
    }

    /// Adds to rows of a chunk, unless that is in already. False if it is.
    ///
    /// # Panics
    /// If the chunk is not here.
    pub fn add(&mut self, chunk: usize, writer: Writer, sequence: u64, rows: &Rows) -> bool {
        let (width, stride) = (self.shape.width, self.stride());
        let chunk = self.chunks.get_mut(&chunk).expect("what is added to is here");
        if chunk.applied.get(&writer).is_some_and(|last| sequence <= *last) {
            return false;
        }
        chunk.applied.insert(writer, sequence);
        for (name, added) in rows.names.iter().zip(rows.values.chunks_exact(width)) {
            let place = chunk.place(*name, stride);
            let (values, moments) = chunk.numbers[place * stride..][..stride].split_at_mut(width);
            match self.rule {
                TableRule::Sum => values.iter_mut().zip(added).for_each(|(value, added)| *value += added),
                TableRule::Stock { rule, rate } => {
                    let update = rule.update(rate, chunk.updates[place] + 1, 1.0);
                    let (mut new, old) = (added.to_vec(), &*moments);
                    self.room.clear();
                    self.room.resize(old.len(), 0.0);
                    update.apply(values, &mut new, old, &mut self.room);
                    if new.iter().chain(&self.room).any(|number| !number.is_finite()) {
                        // One overflow must not ruin what all share.
                        continue;
                    }
                    values.copy_from_slice(&new);
                    moments.copy_from_slice(&self.room);
                }
            }
            chunk.updates[place] += 1;
        }
        true
    }

    /// Values of rows of a chunk: (rows, width).
    ///
    /// # Panics
    /// If the chunk is not here.
    #[must_use]
    pub fn read(&self, chunk: usize, names: &[Row]) -> Vec<f32> {
        let (width, stride) = (self.shape.width, self.stride());
        let chunk = &self.chunks[&chunk];
        let mut values = vec![0.0; names.len() * width];
        for (name, values) in names.iter().zip(values.chunks_exact_mut(width)) {
            if let Some(place) = chunk.places.get(name) {
                values.copy_from_slice(&chunk.numbers[place * stride..][..width]);
            }
        }
        values
    }

    /// These rows of a chunk that is here, and how far these writers are in it, for a copy that has the rest; `None`: all, for one that
    /// has nothing.
    ///
    /// # Panics
    /// If the chunk, or one of the rows, is not here.
    #[must_use]
    pub fn state(&self, index: usize, part: Option<(&BTreeSet<Row>, &BTreeSet<Writer>)>) -> State {
        let stride = self.stride();
        let chunk = &self.chunks[&index];
        let mut state = State { chunk: index, is_whole: part.is_none(), ..State::default() };
        state.rows.names = match part {
            Some((names, _)) => names.iter().copied().collect(),
            None => chunk.places.keys().copied().collect(),
        };
        for name in &state.rows.names {
            let place = chunk.places[name];
            state.rows.values.extend_from_slice(&chunk.numbers[place * stride..][..stride]);
            state.updates.push(chunk.updates[place]);
        }
        let is_told = |writer: &Writer| part.is_none_or(|(_, writers)| writers.contains(writer));
        let applied = chunk.applied.iter().filter(|(writer, _)| is_told(writer));
        state.applied = applied.map(|(writer, last)| (*writer, *last)).collect();
        state
    }

    /// Keeps what another member has sent.
    pub fn take(&mut self, state: &State) {
        let stride = self.stride();
        let chunk = self.chunks.entry(state.chunk).or_default();
        if state.is_whole {
            *chunk = Chunk::default();
        }
        let numbers = state.rows.values.chunks_exact(stride);
        for ((name, numbers), updates) in state.rows.names.iter().zip(numbers).zip(&state.updates) {
            let place = chunk.place(*name, stride);
            chunk.numbers[place * stride..][..stride].copy_from_slice(numbers);
            chunk.updates[place] = *updates;
        }
        chunk.applied.extend(state.applied.iter().copied());
    }

    fn stride(&self) -> usize {
        self.shape.width * (1 + self.rule.moments())
    }
}

impl Chunk {
    /// Where a row is; it is made, if it was not there.
    fn place(&mut self, name: Row, stride: usize) -> usize {
        let next = self.updates.len();
        let place = *self.places.entry(name).or_insert(next);
        if place == next {
            self.numbers.resize((next + 1) * stride, 0.0);
            self.updates.push(0);
        }
        place
    }
}
