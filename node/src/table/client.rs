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
use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::STEPS_MAX;
use peergrad_protocol::table::{Asked, Hand, Map, Names, Reduce, Row, Rows, Told, Word};

use super::keeper::{Outbox, Places};
use super::{Layout, TableError};

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
    /// By request: what does not go into the cache.
    answers: BTreeMap<u64, Answer>,
    /// By chunk of which columns were changed: under which number the last time.
    mapped: BTreeMap<usize, u64>,
    dealt: Hands,
    /// What it has asked last of all, if it leaves.
    farewell: Option<u64>,
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

    /// Whether no worker ever waits for another one's clock.
    #[must_use]
    pub fn wait_for_nobody(&self) -> bool {
        self.from.values().all(|gate| *gate == Gate::None)
    }

    /// The one of this clock.
    #[must_use]
    pub fn at(&self, clock: u64) -> Gate {
        self.from.range(..=clock).next_back().map_or(Gate::None, |(_, gate)| *gate)
    }
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

struct Cached {
    /// Clocks that all workers had completed.
    clock: u64,
    /// This worker's own clock when it asked.
    asked_at: u64,
    /// What was changed here up to this number is in it.
    sequence: u64,
    /// None: all of them are zero.
    values: Vec<f32>,
}

/// A question that is not answered yet.
struct Request {
    chunk: usize,
    question: Question,
    at_least: u64,
    asked_at: u64,
}

enum Question {
    /// Rows for the cache.
    Rows(Names),
    /// Rows that go past the cache.
    Pull(Names),
    Reduce(Reduce),
}

/// What an owner has answered, and nobody has taken yet.
enum Answer {
    Rows(Rows),
    Number(f64),
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
        for (number, request) in &self.requests {
            self.ask(request.chunk, request.asked(*number), out);
        }
        if self.dealt.done > 0 {
            self.ask(0, Asked::Done { hands: self.dealt.done }, out);
        }
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

    /// What was added to a number of a row and is not known to be safe.
    #[must_use]
    pub fn unsettled(&self, row: Row, number: usize) -> f32 {
        let in_entry = |entry: &Entry| {
            entry.rows(&self.layout).find(|(name, _)| *name == row).map_or(0.0, |(_, added)| added[number])
        };
        let sent: f32 = self.log.iter().map(in_entry).sum();
        sent + self.coalesced.get(&row).map_or(0.0, |added| added[number])
    }

    // Samples.

    /// Asks for so many samples, unless it has asked already.
    pub fn want_hand(&mut self, samples: u32, out: &mut Outbox) {
        if self.dealt.wanted.is_some() || self.dealt.next.is_some() {
            return;
        }
        self.dealt.count += 1;
        // Where nobody will wait for this worker, it need not go on with nothing.
        self.dealt.wanted = Some((self.dealt.count, samples, self.waits_for_nobody()));
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

    /// The worker leaves, between two clocks. Whether it may: what came of its samples is safe, and whoever deals has heard so.
    pub fn wind_down(&mut self, out: &mut Outbox) -> bool {
        self.push(out);
        if !self.is_settled() || !self.dealt.taken.is_empty() {
            return false;
        }
        // Whoever answers this has heard what came before.
        let question = Question::Rows(Names::default());
        let last = self.farewell.unwrap_or_else(|| self.request_of(0, question, 0, out));
        self.farewell = Some(last);
        !self.requests.contains_key(&last)
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
        parts.into_iter().map(|(chunk, rows)| self.request(chunk, Question::Rows(rows), out)).collect()
    }

    /// Asks for these rows past the cache, with all that was added here: for [`take_rows`](Self::take_rows).
    pub fn pull(&mut self, rows: &Names, out: &mut Outbox) -> BTreeSet<u64> {
        // An owner is asked after it was told.
        self.push(out);
        let parts = self.layout.by_chunk(rows);
        parts.into_iter().map(|(chunk, rows)| self.request(chunk, Question::Pull(rows), out)).collect()
    }

    /// Asks what columns of these chunks come to, with all that was added here: for [`take_number`](Self::take_number).
    pub fn reduce(&mut self, chunks: Range<usize>, reduce: Reduce, out: &mut Outbox) -> BTreeSet<u64> {
        self.push(out);
        chunks.map(|chunk| self.request(chunk, Question::Reduce(reduce), out)).collect()
    }

    /// Asks for nothing but to be told when its clock has come.
    pub fn wait(&mut self, out: &mut Outbox) -> u64 {
        self.request(0, Question::Rows(Names::default()), out)
    }

    fn request(&mut self, chunk: usize, question: Question, out: &mut Outbox) -> u64 {
        let at_least = self.clock.map_or(0, |clock| self.gate().needed(clock));
        self.request_of(chunk, question, at_least, out)
    }

    fn request_of(&mut self, chunk: usize, question: Question, at_least: u64, out: &mut Outbox) -> u64 {
        self.request_count += 1;
        let (number, asked_at) = (self.request_count, self.clock());
        let request = Request { chunk, question, at_least, asked_at };
        self.ask(chunk, request.asked(number), out);
        self.requests.insert(number, request);
        number
    }

    /// The rows that were [pulled](Self::pull) and are not zero, once all are here.
    pub fn take_rows(&mut self, requests: &BTreeSet<u64>) -> Rows {
        let (mut ranges, mut values) = (Vec::new(), Vec::new());
        // Requests are numbered in the order of the rows.
        for request in requests {
            if let Some(Answer::Rows(rows)) = self.answers.remove(request) {
                ranges.extend(rows.names.ranges());
                values.extend(rows.values);
            }
        }
        Rows { names: ranges.into_iter().collect(), values }
    }

    /// What was asked for by [`reduce`](Self::reduce), once all is here.
    pub fn take_number(&mut self, requests: &BTreeSet<u64>) -> f64 {
        let numbers = requests.iter().filter_map(|request| match self.answers.remove(request) {
            Some(Answer::Number(number)) => Some(number),
            _ => None,
        });
        numbers.sum()
    }

    /// Forgets rows that are too old to be read again. Not while somebody waits for rows: of those some may be here already.
    pub fn forget_stale(&mut self) {
        let (gate, clock) = (self.gate(), self.clock());
        self.cache.retain(|_, cached| cached.is_fresh(gate, clock));
    }

    /// Whether all that was asked for is here.
    #[must_use]
    pub fn has(&self, requests: &BTreeSet<u64>) -> bool {
        requests.iter().all(|request| !self.requests.contains_key(request))
    }

    fn is_fresh(&self, row: Row) -> bool {
        self.cache.get(&row).is_some_and(|cached| cached.is_fresh(self.gate(), self.clock()))
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
            if cached.values.is_empty() {
                values.resize(values.len() + self.layout.width(self.layout.chunk_of(row)), 0.0);
            }
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
        self.layout.table_of(chunk).only_adds()
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
            let entry = Entry { sequence: self.sequence, clock, chunk, change };
            self.ask(chunk, entry.asked(), out);
            self.log.push_back(entry);
        }
        self.close_hands();
        self.tell_done(out);
    }

    /// Has owners do something to columns of these chunks, after all that was added so far.
    pub fn map(&mut self, chunks: Range<usize>, map: Map, out: &mut Outbox) {
        self.push(out);
        let clock = self.clock();
        for chunk in chunks {
            self.sequence += 1;
            let entry = Entry { sequence: self.sequence, clock, chunk, change: Change::Map(map) };
            self.ask(chunk, entry.asked(), out);
            self.log.push_back(entry);
            // Only the owner knows what has become of its rows.
            self.forget(chunk);
            self.mapped.insert(chunk, self.sequence);
        }
        self.close_hands();
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

    /// Whether the worker has ended.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.clock == Some(STEPS_MAX)
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
            Told::Got { request, clock, applied, zero, values } => {
                self.on_got(from, request, (clock, applied), &zero, values, out)?;
            }
            Told::Reduced { request: number, clock, value } => {
                let Some(request) = self.requests.get(&number) else { return Ok(()) };
                let (chunk, is_reduce) = (request.chunk, matches!(request.question, Question::Reduce(_)));
                if self.places.owner(chunk) != from {
                    return Err(TableError::NotOwned(chunk));
                }
                if !is_reduce || value.is_nan() {
                    return Err(TableError::NotAsked);
                }
                self.requests.remove(&number);
                self.least = self.least.max(clock);
                self.answers.insert(number, Answer::Number(value));
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

/// Answers of owners.
impl Client {
    /// Rows have come, as they were when all workers had completed `clock` clocks, with all that was changed here up to `applied`.
    fn on_got(
        &mut self,
        from: Rank,
        number: u64,
        (clock, applied): (u64, u64),
        zero: &Names,
        values: Vec<f32>,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let Some(request) = self.requests.get(&number) else { return Ok(()) };
        let (chunk, width) = (request.chunk, self.layout.width(request.chunk));
        if self.places.owner(chunk) != from {
            return Err(TableError::NotOwned(chunk));
        }
        let (Question::Rows(asked) | Question::Pull(asked)) = &request.question else {
            return Err(TableError::NotAsked);
        };
        let names = asked.without(zero).ok_or(TableError::NotAsked)?;
        let (found, expected) = (values.len(), names.len() * width);
        if found != expected {
            return Err(TableError::Length { found, expected });
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(TableError::NotFinite(names.iter().nth(at / width).unwrap_or_default()));
        }
        if applied < self.mapped.get(&chunk).copied().unwrap_or(0) {
            // They were read before their columns were changed.
            self.ask(chunk, request.asked(number), out);
            return Ok(());
        }
        let Some(Request { question, asked_at, .. }) = self.requests.remove(&number) else { return Ok(()) };
        self.least = self.least.max(clock);
        match question {
            Question::Rows(_) => {
                let cached = |values| Cached { clock, asked_at, sequence: applied, values };
                for (row, values) in names.iter().zip(values.chunks_exact(width)) {
                    self.cache.insert(row, cached(values.to_vec()));
                }
                self.cache.extend(zero.iter().map(|row| (row, cached(Vec::new()))));
            }
            _ => _ = self.answers.insert(number, Answer::Rows(Rows { names, values })),
        }
        Ok(())
    }
}

impl Cached {
    /// Whether it may be used in this clock.
    fn is_fresh(&self, gate: Gate, clock: u64) -> bool {
        match gate {
            Gate::None => self.asked_at == clock,
            Gate::Staleness(_) => self.clock >= gate.needed(clock),
        }
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

impl Request {
    fn asked(&self, request: u64) -> Asked {
        let (at_least, chunk) = (self.at_least, self.chunk as u32);
        match &self.question {
            Question::Rows(rows) | Question::Pull(rows) => {
                Asked::Get { request, at_least, chunk, rows: rows.clone() }
            }
            Question::Reduce(reduce) => Asked::Reduce { request, at_least, chunk, reduce: *reduce },
        }
    }
}
