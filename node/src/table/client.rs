//! The client: a member's part as worker. What it has added and not heard of, what it has read, and when it may go on.
//!
//! # How it works
//! ```text
//! clock c:  get --> rows of clock c - s at least, from the cache or from their owners
//!           add --> put together by row until the clock is over, and then sent
//!           end --> everything that was added, then the tick
//! ```
//! A row in the cache has the clock that all workers had completed when it was read: it may be used at clock c if that is no less than
//! c - s, s being the *staleness* (0: BSP). Then it has in it all that was added in the clocks before c - s, and perhaps more; and what
//! this worker has added itself it always sees, if owners add it as it is: what another rule makes of it only the owner knows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::Rank;

use super::keeper::Places;
use super::{Asked, Row, Rows, Shape, Told};

/// When a worker may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Once all others are at most so many clocks behind.
    Staleness(u64),
    /// Always.
    None,
}

impl Gate {
    /// The clock that a row must be of, to be read in this one.
    #[must_use]
    pub fn needed(self, clock: u64) -> u64 {
        match self {
            Self::Staleness(bound) => clock.saturating_sub(bound),
            Self::None => 0,
        }
    }
}

/// One worker.
pub struct Client {
    shape: Shape,
    gate: Gate,
    /// Whether owners add what they are sent, so that it can be seen here before they have.
    is_sum: bool,
    places: Arc<Places>,
    /// Clocks that are complete here.
    clock: u64,
    sequence: u64,
    /// What this clock has added, by row.
    coalesced: BTreeMap<Row, Vec<f32>>,
    /// What was sent and is not known to be safe, in order.
    log: VecDeque<Entry>,
    cache: BTreeMap<Row, Cached>,
    requests: BTreeMap<u64, Request>,
    request_count: u64,
}

/// Something that was added: one part of it.
struct Entry {
    sequence: u64,
    chunk: usize,
    rows: Rows,
}

struct Cached {
    clock: u64,
    /// What was added here up to this number is in it.
    sequence: u64,
    values: Vec<f32>,
}

/// A read that is not answered yet.
struct Request {
    chunk: usize,
    rows: Vec<Row>,
    at_least: u64,
}

impl Entry {
    /// It is forgotten: a cached row that was read before it keeps it.
    fn fold_into(&self, cache: &mut BTreeMap<Row, Cached>, width: usize) {
        for (row, added) in self.rows.names.iter().zip(self.rows.values.chunks_exact(width)) {
            if let Some(cached) = cache.get_mut(row).filter(|cached| cached.sequence < self.sequence) {
                cached.values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
                cached.sequence = self.sequence;
            }
        }
    }
}

impl Client {
    /// One that begins at this clock. `is_sum`: what it adds is added, so that it can be seen here at once.
    #[must_use]
    pub fn new(shape: Shape, gate: Gate, is_sum: bool, clock: u64) -> Self {
        Self {
            shape,
            gate,
            is_sum,
            places: Arc::default(),
            clock,
            sequence: 0,
            coalesced: BTreeMap::new(),
            log: VecDeque::new(),
            cache: BTreeMap::new(),
            requests: BTreeMap::new(),
            request_count: 0,
        }
    }

    /// A view begins: says again what may be lost, then the clock, then what is still to be read.
    pub fn enter(&mut self, places: Arc<Places>, out: &mut Vec<(Rank, Asked)>) {
        self.places = places;
        for entry in &self.log {
            let rows = entry.rows.clone();
            let asked = Asked::Add { sequence: entry.sequence, chunk: entry.chunk, rows };
            out.push((self.places.owner(entry.chunk), asked));
        }
        self.tell_clock(out);
        for (number, request) in &self.requests {
            let (chunk, rows) = (request.chunk, request.rows.clone());
            let asked = Asked::Get { request: *number, at_least: request.at_least, chunk, rows };
            out.push((self.places.owner(chunk), asked));
        }
    }

    /// Clocks that are complete here.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Whether everything that was added is safe.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.log.is_empty() && self.coalesced.is_empty()
    }

    /// What was added to a number of a row and is not known to be safe.
    #[must_use]
    pub fn unsettled(&self, row: Row, number: usize) -> f32 {
        let in_entry = |entry: &Entry| {
            let at = entry.rows.names.iter().position(|name| *name == row)?;
            Some(entry.rows.values[at * self.shape.width + number])
        };
        let sent: f32 = self.log.iter().filter_map(in_entry).sum();
        sent + self.coalesced.get(&row).map_or(0.0, |added| added[number])
    }

    /// Sees to it that these rows can be read in this clock; they can, once [`read`](Self::read) says so.
    pub fn fetch(&mut self, rows: &BTreeSet<Row>, out: &mut Vec<(Rank, Asked)>) {
        let at_least = self.gate.needed(self.clock);
        let mut missing: BTreeMap<usize, Vec<Row>> = BTreeMap::new();
        for row in rows.iter().filter(|row| !self.is_fresh(row)) {
            missing.entry(self.shape.chunk_of(*row)).or_default().push(*row);
        }
        for (chunk, rows) in missing {
            let is_asked = |request: &Request| {
                request.chunk == chunk && request.rows == rows && request.at_least == at_least
            };
            if self.requests.values().any(is_asked) {
                continue;
            }
            self.request_count += 1;
            let request = self.request_count;
            self.requests.insert(request, Request { chunk, rows: rows.clone(), at_least });
            out.push((self.places.owner(chunk), Asked::Get { request, at_least, chunk, rows }));
        }
    }

    fn is_fresh(&self, row: &Row) -> bool {
        self.cache.get(row).is_some_and(|cached| cached.clock >= self.gate.needed(self.clock))
    }

    /// Rows as they may be read in this clock, with what was added here; `None`: some are not here yet.
    #[must_use]
    pub fn read(&self, rows: &BTreeSet<Row>) -> Option<Vec<f32>> {
        let width = self.shape.width;
        if !rows.iter().all(|row| self.is_fresh(row)) {
            return None;
        }
        let mut values = Vec::with_capacity(rows.len() * width);
        rows.iter().for_each(|row| values.extend_from_slice(&self.cache[row].values));
        if !self.is_sum {
            return Some(values);
        }
        let place: BTreeMap<Row, usize> = rows.iter().copied().zip((0..).step_by(width)).collect();
        let mut add = |row: &Row, added: &[f32]| {
            if let Some(place) = place.get(row) {
                values[*place..][..width].iter_mut().zip(added).for_each(|(value, added)| *value += added);
            }
        };
        for entry in &self.log {
            for (row, added) in entry.rows.names.iter().zip(entry.rows.values.chunks_exact(width)) {
                if self.cache.get(row).is_some_and(|cached| cached.sequence < entry.sequence) {
                    add(row, added);
                }
            }
        }
        self.coalesced.iter().for_each(|(row, added)| add(row, added));
        Some(values)
    }

    /// Adds to a row.
    pub fn add(&mut self, row: Row, added: &[f32]) {
        let width = self.shape.width;
        let sum = self.coalesced.entry(row).or_insert_with(|| vec![0.0; width]);
        sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
    }

    /// The clock is over: what was added is sent, and then that it is over.
    pub fn tick(&mut self, out: &mut Vec<(Rank, Asked)>) {
        self.push(out);
        self.clock += 1;
        self.tell_clock(out);
    }

    /// Sends what was added.
    pub fn push(&mut self, out: &mut Vec<(Rank, Asked)>) {
        let mut parts: BTreeMap<usize, Rows> = BTreeMap::new();
        for (row, added) in std::mem::take(&mut self.coalesced) {
            let part = parts.entry(self.shape.chunk_of(row)).or_default();
            part.names.push(row);
            part.values.extend_from_slice(&added);
        }
        for (chunk, rows) in parts {
            self.sequence += 1;
            let sequence = self.sequence;
            out.push((self.places.owner(chunk), Asked::Add { sequence, chunk, rows: rows.clone() }));
            self.log.push_back(Entry { sequence, chunk, rows });
        }
    }

    fn tell_clock(&self, out: &mut Vec<(Rank, Asked)>) {
        let ranks = (0..self.places.members.len()).map(Rank::from_index);
        out.extend(ranks.map(|rank| (rank, Asked::Tick { clock: self.clock })));
    }

    /// An owner answers.
    pub fn on_told(&mut self, from: Rank, told: Told) {
        match told {
            Told::Added { up_to } => {
                let (places, cache) = (&self.places, &mut self.cache);
                let (width, is_sum) = (self.shape.width, self.is_sum);
                self.log.retain(|entry| {
                    let is_safe = entry.sequence <= up_to && places.owner(entry.chunk) == from;
                    if is_safe && is_sum {
                        entry.fold_into(cache, width);
                    }
                    !is_safe
                });
            }
            Told::Got { request, clock, applied: sequence, values } => {
                let Some(Request { rows, .. }) = self.requests.remove(&request) else { return };
                for (row, values) in rows.into_iter().zip(values.chunks_exact(self.shape.width)) {
                    self.cache.insert(row, Cached { clock, sequence, values: values.to_vec() });
                }
            }
        }
    }

    /// A worker that comes late begins where the others are.
    pub fn catch_up(&mut self, clock: u64) {
        self.clock = self.clock.max(clock);
    }
}
