//! The client: a member's part as worker. What it has added and not heard of, what it has read, and when it may go on.
//!
//! # How it works
//! ```text
//! clock c:  get --> rows of clock c - s at least, from the cache or from their owners
//!           add --> put together by row until they are pushed
//!           end --> the tick: what was pushed comes before it
//! ```
//! A row in the cache has the clock that all workers had completed when it was read: it may be used at clock c if that is no less than
//! c - s, s being the *staleness* (0: BSP). Then it has in it all that was added in the clocks before c - s, and perhaps more; and what
//! this worker has added itself it always sees, where owners add it as it comes: what another rule makes of it only the owner knows.
//!
//! # Coming late
//! A worker that comes to a run that is under way has no clock until it has read something: then it is where the slowest was.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{STEPS_MAX, UNSAFE_BYTES_MAX};
use peergrad_protocol::table::{Asked, Map, Names, Row, Rows, Told, Word};

use super::keeper::{Outbox, Places};
use super::{Layout, TableError};
pub use gates::{Gate, Gates};
use hands::Hands;
pub use hands::Taken;
use reading::{Answer, Cached, Line, Question, Request};

mod gates;
mod hands;
mod reading;

/// One worker.
pub struct Client {
    layout: Arc<Layout>,
    gates: Gates,
    places: Arc<Places>,
    /// Clocks that are complete here; `None`: it is new.
    clock: Option<u64>,
    /// The newest clock that all workers have completed, as far as it has heard.
    least: u64,
    sequence: u64,
    /// What was added and not pushed, by row.
    coalesced: BTreeMap<Row, Vec<f32>>,
    /// What was sent and is not known to be safe, in order.
    log: VecDeque<Entry>,
    /// Bytes of it.
    log_bytes: usize,
    cache: BTreeMap<Row, Cached>,
    requests: BTreeMap<u64, Request>,
    request_count: u64,
    /// By owner: questions that are under way, and those that come after them.
    lines: BTreeMap<Rank, Line>,
    /// By request: what does not go into the cache, and what was asked.
    answers: BTreeMap<u64, (Request, Answer)>,
    /// By chunk of which columns were changed: under which number the last time.
    mapped: BTreeMap<usize, u64>,
    dealt: Hands,
    /// What it has asked last of all, if it leaves.
    farewell: Option<u64>,
}

/// Something that was changed: its part in one chunk.
struct Entry {
    sequence: u64,
    clock: u64,
    chunk: usize,
    change: Change,
}

enum Change {
    Add(Rows),
    Map(Map),
}

impl Client {
    /// One that begins with the run, at clock 0, or `is_new` to one that is under way.
    #[must_use]
    pub fn new(layout: Arc<Layout>, gates: Gates, is_new: bool) -> Self {
        Self {
            layout,
            gates,
            places: Arc::default(),
            clock: (!is_new).then_some(0),
            least: 0,
            sequence: 0,
            coalesced: BTreeMap::new(),
            log: VecDeque::new(),
            log_bytes: 0,
            cache: BTreeMap::new(),
            requests: BTreeMap::new(),
            request_count: 0,
            lines: BTreeMap::new(),
            answers: BTreeMap::new(),
            mapped: BTreeMap::new(),
            farewell: None,
            dealt: Hands::default(),
        }
    }

    /// A view begins: says again what may be lost, then the clock, then what it waits for.
    pub fn enter(&mut self, places: Arc<Places>, out: &mut Outbox) {
        self.places = places;
        for entry in &self.log {
            self.ask(entry.chunk, entry.asked(), out);
        }
        self.tell_clock(out);
        if self.dealt.done > 0 {
            self.ask(0, Asked::Done { hands: self.dealt.done }, out);
        }
        self.give_back(out);
        self.ask_again(out);
        self.ask_for_hand(out);
    }

    /// A chunk begins anew: what is known of it is not so any more.
    pub fn forget(&mut self, chunk: usize) {
        self.mapped.remove(&chunk);
        let rows: Vec<Row> = self.cache.range(self.layout.range(chunk)).map(|(row, _)| *row).collect();
        rows.iter().for_each(|row| _ = self.cache.remove(row));
    }

    fn ask(&self, chunk: usize, asked: Asked, out: &mut Outbox) {
        out.push((self.places.owner(chunk), Word::Asked(asked)));
    }

    fn tell_clock(&self, out: &mut Outbox) {
        let asked = || self.clock.map_or(Asked::Enter, |clock| Asked::Tick { clock });
        out.extend(self.places.ranks().map(|rank| (rank, Word::Asked(asked()))));
    }

    /// Clocks that are complete here.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock.unwrap_or(0)
    }

    /// Whether it has no clock yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.clock.is_none()
    }

    /// Samples up to this number are done: what came of them would outlive this worker.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.dealt.done
    }

    /// Whether no worker ever waits for another one's clock.
    #[must_use]
    pub fn waits_for_nobody(&self) -> bool {
        self.gates.wait_for_nobody()
    }

    /// Whether what has come for it is that there are no samples at present.
    #[must_use]
    pub fn has_empty_hand(&self) -> bool {
        self.dealt.next.as_ref().is_some_and(|(_, hand, is_over)| hand.is_empty() && !is_over)
    }

    fn gate(&self) -> Gate {
        self.gates.at(self.clock())
    }

    /// Whether everything that was added is safe.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.log.is_empty() && self.coalesced.is_empty()
    }

    /// The number of what was sent last.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sequence
    }

    /// Everything up to this number that was sent is safe.
    #[must_use]
    pub fn safe_up_to(&self) -> u64 {
        self.log.front().map_or(self.sequence, |entry| entry.sequence - 1)
    }

    /// Whether so much is not known to be safe that no more is to be added at present.
    #[must_use]
    pub fn has_much_unsafe(&self) -> bool {
        self.log_bytes > UNSAFE_BYTES_MAX
    }

    /// What was added to a number of a row and is not known to be safe.
    #[cfg(test)]
    pub(super) fn unsettled(&self, row: Row, number: usize) -> f32 {
        let in_entry = |entry: &Entry| {
            entry.rows(&self.layout).find(|(name, _)| *name == row).map_or(0.0, |(_, added)| added[number])
        };
        let sent: f32 = self.log.iter().map(in_entry).sum();
        sent + self.coalesced.get(&row).map_or(0.0, |added| added[number])
    }

    // Adding.

    /// Adds to a row.
    pub fn add(&mut self, row: Row, added: &[f32]) {
        let sum = self.coalesced.entry(row).or_insert_with(|| vec![0.0; added.len()]);
        // One overflow must not ruin what all share.
        if sum.iter().zip(added).all(|(sum, added)| (sum + added).is_finite()) {
            sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
        }
    }

    /// Sends what was added.
    pub fn push(&mut self, out: &mut Outbox) {
        let clock = self.clock();
        let mut parts: BTreeMap<usize, (Vec<Row>, Vec<f32>)> = BTreeMap::new();
        for (row, added) in std::mem::take(&mut self.coalesced) {
            let (names, values) = parts.entry(self.layout.chunk_of(row)).or_default();
            names.push(row);
            values.extend_from_slice(&added);
        }
        for (chunk, (names, values)) in parts {
            self.sequence += 1;
            let change = Change::Add(Rows { names: names.into_iter().collect(), values });
            self.send(Entry { sequence: self.sequence, clock, chunk, change }, out);
        }
        self.close_hands();
        self.tell_done(out);
    }

    fn send(&mut self, entry: Entry, out: &mut Outbox) {
        self.ask(entry.chunk, entry.asked(), out);
        self.log_bytes += entry.bytes();
        self.log.push_back(entry);
    }

    /// Has owners do something to columns of these chunks, after all that was added so far.
    pub fn map(&mut self, chunks: Range<usize>, map: Map, out: &mut Outbox) {
        self.push(out);
        let clock = self.clock();
        for chunk in chunks.clone() {
            self.sequence += 1;
            self.send(Entry { sequence: self.sequence, clock, chunk, change: Change::Map(map) }, out);
            // Only the owner knows what has become of its rows.
            self.forget(chunk);
            self.mapped.insert(chunk, self.sequence);
        }
        self.ask_anew(&chunks, out);
        self.close_hands();
    }

    /// The clock is over.
    pub fn tick(&mut self, out: &mut Outbox) {
        self.clock = Some((self.clock() + 1).min(STEPS_MAX));
        self.dealt.current = None;
        if self.coalesced.is_empty() {
            self.close_hands();
            self.tell_done(out);
        }
        self.tell_clock(out);
    }

    /// The worker has ended: nobody waits for it any more, and samples that it has not computed are for others. What it still reads is
    /// of when all have ended.
    pub fn finish(&mut self, out: &mut Outbox) {
        self.drop_hands();
        self.push(out);
        self.give_back(out);
        self.clock = Some(STEPS_MAX);
        self.gates = Gates::of(Gate::Staleness(0));
        self.tell_clock(out);
    }

    /// Whether the worker has ended.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.dealt.ends_before.is_some()
    }

    /// A clock begins: a worker that is behind all others is where the last of them is.
    pub fn catch_up(&mut self, out: &mut Outbox) {
        if self.clock.is_none_or(|clock| clock < self.least) {
            self.clock = Some(self.least);
            self.tell_clock(out);
        }
    }

    /// An owner says which clock all workers have completed. If all others have ended, that is where this one was when it asked.
    fn hear_clock(&mut self, clock: u64, asked_at: u64) -> u64 {
        let clock = if clock < STEPS_MAX || self.has_finished() { clock } else { asked_at };
        self.least = self.least.max(clock);
        clock
    }

    /// An owner answers.
    ///
    /// # Errors
    /// No correct owner says that.
    pub fn on_told(&mut self, from: Rank, told: Told, out: &mut Outbox) -> Result<(), TableError> {
        match told {
            Told::Added { up_to } => {
                let mut log = std::mem::take(&mut self.log);
                log.retain(|entry| {
                    let is_safe = entry.sequence <= up_to && self.places.owner(entry.chunk) == from;
                    if is_safe {
                        self.log_bytes -= entry.bytes();
                    }
                    if is_safe && self.shows_at_once(entry.chunk) {
                        entry.fold_into(&mut self.cache, &self.layout);
                    }
                    !is_safe
                });
                self.log = log;
                self.tell_done(out);
            }
            Told::Got { request, clock, applied, zero, values } => {
                self.on_got(from, request, (clock, applied), &zero, values, out)?;
            }
            Told::Reduced { request, clock, applied, value } => {
                self.on_reduced(from, request, (clock, applied), value, out)?;
            }
            Told::Dealt { .. } if self.places.owner(0) != from => return Err(TableError::NotOwned(0)),
            Told::Dealt { hand, dealt, is_over } => {
                if self.dealt.wanted.take_if(|(wanted, ..)| *wanted == hand).is_some() {
                    self.dealt.next = Some((hand, dealt, is_over));
                }
            }
        }
        Ok(())
    }
}

impl Entry {
    fn asked(&self) -> Asked {
        let Self { sequence, clock, ref change, .. } = *self;
        let chunk = self.chunk as u32;
        match change {
            Change::Add(rows) => Asked::Add { sequence, clock, chunk, rows: rows.clone() },
            Change::Map(map) => Asked::Map { sequence, chunk, map: *map },
        }
    }

    /// About as many bytes as it takes in memory.
    fn bytes(&self) -> usize {
        let rows = match &self.change {
            Change::Add(rows) => rows.bytes(),
            Change::Map(_) => 0,
        };
        size_of::<Self>() + rows
    }

    /// What was added to which rows.
    fn rows<'a>(&'a self, layout: &Layout) -> impl Iterator<Item = (Row, &'a [f32])> {
        let rows = match &self.change {
            Change::Add(rows) => Some(rows),
            Change::Map(_) => None,
        };
        let width = layout.width(self.chunk);
        rows.into_iter().flat_map(move |rows| rows.names.iter().zip(rows.values.chunks_exact(width)))
    }

    /// It is forgotten: a cached row that was read before it keeps it.
    fn fold_into(&self, cache: &mut BTreeMap<Row, Cached>, layout: &Layout) {
        for (row, added) in self.rows(layout) {
            if let Some(cached) = cache.get_mut(&row).filter(|cached| cached.sequence < self.sequence) {
                cached.values.resize(added.len(), 0.0);
                cached.values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
                cached.sequence = self.sequence;
            }
        }
    }
}

#[cfg(test)]
mod tests;
