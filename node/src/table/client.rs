//! The client: a member's part as worker. What it has added and not heard of, what it has read, and when it may go on.
//!
//! # How it works
//! ```text
//! clock c:  get --> rows of clock c - s at least, from the cache or from their owners
//!           add --> put together by row until they are pushed, or the clock is over
//!           end --> everything that was added, then the tick
//! ```
//! A row in the cache has the clock that all workers had completed when it was read: it may be used at clock c if that is no less than
//! c - s, s being the *staleness* (0: BSP). Then it has in it all that was added in the clocks before c - s, and perhaps more; and what
//! this worker has added itself it always sees, where owners add it as it comes: what another rule makes of it only the owner knows.
//!
//! # Coming late
//! A worker that comes to a run that is under way has no clock until it has read something: then it is where the slowest was.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::STEPS_MAX;
use peergrad_protocol::table::{Asked, Hand, Names, Row, Rows, Told, Word};

use super::keeper::{Outbox, Places};
use super::{Layout, TableError, TableRule, When};

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
    cache: BTreeMap<Row, Cached>,
    requests: BTreeMap<u64, Request>,
    request_count: u64,
    dealt: Hands,
}

/// The gate of each clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates {
    /// From which clock on which one.
    from: BTreeMap<u64, Gate>,
}

impl Gates {
    /// The same one for ever.
    #[must_use]
    pub fn of(gate: Gate) -> Self {
        Self { from: BTreeMap::from([(0, gate)]) }
    }

    /// Another one from a clock on.
    #[must_use]
    pub fn then(mut self, clock: u64, gate: Gate) -> Self {
        self.from.insert(clock, gate);
        self
    }

    /// The one of this clock.
    #[must_use]
    pub fn at(&self, clock: u64) -> Gate {
        self.from.range(..=clock).next_back().map_or(Gate::None, |(_, gate)| *gate)
    }
}

/// Something that was added: one part of it.
struct Entry {
    sequence: u64,
    clock: u64,
    chunk: usize,
    rows: Rows,
}

struct Cached {
    /// Clocks that all workers had completed.
    clock: u64,
    /// This worker's own clock when it asked.
    asked_at: u64,
    /// What was added here up to this number is in it.
    sequence: u64,
    values: Vec<f32>,
}

/// A read that is not answered yet.
struct Request {
    chunk: usize,
    rows: Names,
    at_least: u64,
    asked_at: u64,
}

/// Samples that this worker was dealt.
#[derive(Default)]
struct Hands {
    /// Numbers that were used.
    count: u64,
    /// What it waits for: the number, how many, and whether there need to be some.
    wanted: Option<(u64, u32, bool)>,
    /// What has come and was not taken.
    next: Option<(u64, Hand, bool)>,
    /// By hand that was taken: the last number of what came of it, once it is all sent.
    taken: VecDeque<(u64, Option<u64>)>,
    /// Hands up to this one are done.
    done: u64,
}

/// Samples to compute, or that there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The worker's number for them.
    pub number: u64,
    /// Which; none: there are none at present.
    pub hand: Hand,
    /// Every sample of every pass is done.
    pub is_over: bool,
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
            cache: BTreeMap::new(),
            requests: BTreeMap::new(),
            request_count: 0,
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
        for (number, request) in &self.requests {
            self.ask(request.chunk, request.asked(*number), out);
        }
        if self.dealt.done > 0 {
            self.ask(0, Asked::Done { hands: self.dealt.done }, out);
        }
        self.ask_for_hand(out);
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

    /// What was added to a number of a row and is not known to be safe.
    #[must_use]
    pub fn unsettled(&self, row: Row, number: usize) -> f32 {
        let in_entry = |entry: &Entry| {
            let at = entry.rows.names.iter().position(|name| name == row)?;
            Some(entry.rows.values[at * self.layout.width(entry.chunk) + number])
        };
        let sent: f32 = self.log.iter().filter_map(in_entry).sum();
        sent + self.coalesced.get(&row).map_or(0.0, |added| added[number])
    }

    // Samples.

    /// Asks for so many samples, unless it has asked already.
    pub fn want_hand(&mut self, samples: u32, out: &mut Outbox) {
        if self.dealt.wanted.is_some() || self.dealt.next.is_some() {
            return;
        }
        self.dealt.count += 1;
        // Where nobody waits for this worker, it need not go on with nothing.
        let may_wait = self.gate() == Gate::None;
        self.dealt.wanted = Some((self.dealt.count, samples, may_wait));
        self.ask_for_hand(out);
    }

    fn ask_for_hand(&self, out: &mut Outbox) {
        if let Some((hand, samples, may_wait)) = self.dealt.wanted {
            self.ask(0, Asked::Deal { hand, samples, may_wait }, out);
        }
    }

    /// The samples that were asked for, once they are here.
    pub fn take_hand(&mut self) -> Option<Taken> {
        let (number, hand, is_over) = self.dealt.next.take()?;
        if !hand.is_empty() {
            self.dealt.taken.push_back((number, None));
        }
        Some(Taken { number, hand, is_over })
    }

    /// All that came of the hands that were taken so far has been sent: once it is safe, they are done.
    fn close_hands(&mut self) {
        let last = self.sequence;
        self.dealt.taken.iter_mut().for_each(|(_, until)| _ = until.get_or_insert(last));
    }

    fn tell_done(&mut self, out: &mut Outbox) {
        let safe_up_to = self.safe_up_to();
        let before = self.dealt.done;
        while let Some((hand, Some(until))) = self.dealt.taken.front().copied()
            && until <= safe_up_to
        {
            self.dealt.done = hand;
            self.dealt.taken.pop_front();
        }
        if self.dealt.done > before {
            self.ask(0, Asked::Done { hands: self.dealt.done }, out);
        }
    }

    // Reading.

    /// Sees to it that these rows can be read in this clock: what it has asked for is here once [`has`](Self::has) says so.
    pub fn fetch(&mut self, rows: &Names, out: &mut Outbox) -> BTreeSet<u64> {
        let missing: Names = rows.iter().filter(|row| !self.is_fresh(*row)).collect();
        let parts = self.layout.by_chunk(&missing);
        parts.into_iter().map(|(chunk, rows)| self.request(chunk, rows, out)).collect()
    }

    /// Asks for nothing but to be told when its clock has come.
    pub fn wait(&mut self, out: &mut Outbox) -> u64 {
        self.request(0, Names::default(), out)
    }

    fn request(&mut self, chunk: usize, rows: Names, out: &mut Outbox) -> u64 {
        self.request_count += 1;
        let (number, asked_at) = (self.request_count, self.clock());
        let at_least = self.clock.map_or(0, |clock| self.gate().needed(clock));
        let request = Request { chunk, rows, at_least, asked_at };
        self.ask(chunk, request.asked(number), out);
        self.requests.insert(number, request);
        number
    }

    /// Whether all that was asked for is here.
    #[must_use]
    pub fn has(&self, requests: &BTreeSet<u64>) -> bool {
        requests.iter().all(|request| !self.requests.contains_key(request))
    }

    fn is_fresh(&self, row: Row) -> bool {
        let Some(cached) = self.cache.get(&row) else { return false };
        match self.gate() {
            Gate::None => cached.asked_at == self.clock(),
            gate @ Gate::Staleness(_) => cached.clock >= gate.needed(self.clock()),
        }
    }

    /// Rows as they are here, with what was added here; `None`: some are not here.
    #[must_use]
    pub fn read(&self, rows: &Names) -> Option<Vec<f32>> {
        let mut values = Vec::new();
        // Names, what of this worker's is in the values, and where they are.
        let mut found = Vec::with_capacity(rows.len());
        for row in rows.iter() {
            let cached = self.cache.get(&row)?;
            found.push((row, cached.sequence, values.len()));
            values.extend_from_slice(&cached.values);
        }
        let mut add = |row: Row, sequence: u64, added: &[f32]| {
            let Ok(at) = found.binary_search_by_key(&row, |(row, ..)| *row) else { return };
            let (_, known, place) = found[at];
            if known < sequence {
                let values = &mut values[place..][..added.len()];
                values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
            }
        };
        for entry in self.log.iter().filter(|entry| self.shows_at_once(entry.chunk)) {
            entry.rows(&self.layout).for_each(|(row, added)| add(row, entry.sequence, added));
        }
        let coalesced =
            self.coalesced.iter().filter(|(row, _)| self.shows_at_once(self.layout.chunk_of(**row)));
        coalesced.for_each(|(row, added)| add(*row, u64::MAX, added));
        Some(values)
    }

    /// Whether owners add what they are sent as it comes, so that it can be seen here before they have.
    fn shows_at_once(&self, chunk: usize) -> bool {
        let table = self.layout.table_of(chunk);
        table.rule == TableRule::Sum && table.when == When::AtOnce
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
            let rows = Rows { names: names.into_iter().collect(), values };
            let entry = Entry { sequence: self.sequence, clock, chunk, rows };
            self.ask(chunk, entry.asked(), out);
            self.log.push_back(entry);
        }
        self.close_hands();
        self.tell_done(out);
    }

    /// The clock is over.
    pub fn tick(&mut self, out: &mut Outbox) {
        self.clock = Some((self.clock() + 1).min(STEPS_MAX));
        self.tell_clock(out);
    }

    /// The worker has ended: nobody waits for it any more. What it still reads is of when all have.
    pub fn finish(&mut self, out: &mut Outbox) {
        self.push(out);
        self.clock = Some(STEPS_MAX);
        self.gates = Gates::of(Gate::Staleness(0));
        self.tell_clock(out);
    }

    /// A clock begins: a worker that is behind all others is where the last of them is.
    pub fn catch_up(&mut self, out: &mut Outbox) {
        if self.clock.is_none_or(|clock| clock < self.least) {
            self.clock = Some(self.least);
            self.tell_clock(out);
        }
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
                    if is_safe && self.shows_at_once(entry.chunk) {
                        entry.fold_into(&mut self.cache, &self.layout);
                    }
                    !is_safe
                });
                self.log = log;
                self.tell_done(out);
            }
            Told::Got { request: number, clock, applied: sequence, values } => {
                let Some(Request { chunk, rows, .. }) = self.requests.get(&number) else { return Ok(()) };
                let (chunk, width) = (*chunk, self.layout.width(*chunk));
                if self.places.owner(chunk) != from {
                    return Err(TableError::NotOwned(chunk));
                }
                let (found, expected) = (values.len(), rows.len() * width);
                if found != expected {
                    return Err(TableError::Length { found, expected });
                }
                if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                    return Err(TableError::NotFinite(rows.iter().nth(at / width).unwrap_or_default()));
                }
                let Some(Request { rows, asked_at, .. }) = self.requests.remove(&number) else {
                    return Ok(());
                };
                self.least = self.least.max(clock);
                for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
                    let values = values.to_vec();
                    self.cache.insert(row, Cached { clock, asked_at, sequence, values });
                }
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
        let Self { sequence, clock, chunk, ref rows } = *self;
        Asked::Add { sequence, clock, chunk: chunk as u32, rows: rows.clone() }
    }

    fn rows<'a>(&'a self, layout: &Layout) -> impl Iterator<Item = (Row, &'a [f32])> {
        self.rows.names.iter().zip(self.rows.values.chunks_exact(layout.width(self.chunk)))
    }

    /// It is forgotten: a cached row that was read before it keeps it.
    fn fold_into(&self, cache: &mut BTreeMap<Row, Cached>, layout: &Layout) {
        for (row, added) in self.rows(layout) {
            if let Some(cached) = cache.get_mut(&row).filter(|cached| cached.sequence < self.sequence) {
                cached.values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
                cached.sequence = self.sequence;
            }
        }
    }
}

impl Request {
    fn asked(&self, request: u64) -> Asked {
        let Self { chunk, ref rows, at_least, .. } = *self;
        Asked::Get { request, at_least, chunk: chunk as u32, rows: rows.clone() }
    }
}
