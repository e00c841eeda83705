//! Reading: what a worker asks of owners, what it keeps of their answers, and how old that may be.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{QUESTIONS_MAX, STALENESS_BY_CLOCK_MAX};
use peergrad_protocol::table::{Asked, Names, Reduce, Row, Rows};

use super::{Client, Gate};
use crate::table::keeper::Outbox;
use crate::table::{TableError, When};

pub(super) struct Cached {
    /// Clocks that all workers had completed.
    pub(super) clock: u64,
    /// This worker's own clock when it asked.
    pub(super) asked_at: u64,
    /// What was changed here up to this number is in it.
    pub(super) sequence: u64,
    /// None: all of them are zero.
    pub(super) values: Vec<f32>,
}

/// A question that is not answered yet.
pub(super) struct Request {
    pub(super) chunk: usize,
    pub(super) question: Question,
    pub(super) at_least: u64,
    pub(super) asked_at: u64,
}

pub(super) enum Question {
    /// Rows for the cache.
    Rows(Names),
    /// Rows that go past the cache.
    Pull(Names),
    Reduce(Reduce),
}

/// Questions to one owner.
#[derive(Default)]
pub(super) struct Line {
    under_way: usize,
    /// By their numbers.
    later: VecDeque<u64>,
}

/// Questions to one owner that are under way at once; it would stand twice as many.
const UNDER_WAY_MAX: usize = QUESTIONS_MAX / 2;

/// What an owner has answered, and nobody has taken yet.
pub(super) enum Answer {
    Rows(Rows),
    Number(f64),
}

impl Client {
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

    /// Asks all owners for nothing but to be told where all workers are, as far as each of them knows.
    pub fn ask_where_all_are(&mut self, out: &mut Outbox) -> BTreeSet<u64> {
        let first: BTreeMap<Rank, usize> =
            (0..self.layout.chunk_count()).rev().map(|chunk| (self.places.owner(chunk), chunk)).collect();
        first.into_values().map(|chunk| self.request(chunk, Question::Rows(Names::default()), out)).collect()
    }

    pub(super) fn request(&mut self, chunk: usize, question: Question, out: &mut Outbox) -> u64 {
        let at_least = self.clock.map_or(0, |clock| self.gate().needed(clock));
        self.request_of(chunk, question, at_least, out)
    }

    pub(super) fn request_of(
        &mut self,
        chunk: usize,
        question: Question,
        at_least: u64,
        out: &mut Outbox,
    ) -> u64 {
        self.request_count += 1;
        let (number, asked_at) = (self.request_count, self.clock());
        self.requests.insert(number, Request { chunk, question, at_least, asked_at });
        self.ask_in_turn(number, out);
        number
    }

    /// Asks, unless its owner has enough to answer: then after that.
    fn ask_in_turn(&mut self, number: u64, out: &mut Outbox) {
        let Some(request) = self.requests.get(&number) else { return };
        let line = self.lines.entry(self.places.owner(request.chunk)).or_default();
        if line.under_way == UNDER_WAY_MAX {
            line.later.push_back(number);
        } else {
            line.under_way += 1;
            let asked = request.asked(number);
            self.ask(request.chunk, asked, out);
        }
    }

    /// A question about this chunk is answered: there is room for another one.
    pub(super) fn answered(&mut self, chunk: usize, out: &mut Outbox) {
        let Some(line) = self.lines.get_mut(&self.places.owner(chunk)) else { return };
        line.under_way = line.under_way.saturating_sub(1);
        if let Some(number) = line.later.pop_front() {
            self.ask_in_turn(number, out);
        }
    }

    /// In a new view: asks all that is not answered.
    pub(super) fn ask_again(&mut self, out: &mut Outbox) {
        self.lines.clear();
        let numbers: Vec<u64> = self.requests.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.ask_in_turn(number, out));
    }

    /// Asks to be told when all workers have come as far as this one.
    pub fn wait_for_all(&mut self, out: &mut Outbox) -> u64 {
        self.request_of(0, Question::Rows(Names::default()), self.clock(), out)
    }

    /// Whether it may be further ahead of the slowest, as far as it has heard, than owners can keep what is to be applied by clock.
    #[must_use]
    pub fn is_far_ahead(&self) -> bool {
        self.layout.tables().any(|table| table.when == When::ByClock)
            && self.clock() > self.least.saturating_add(STALENESS_BY_CLOCK_MAX)
    }

    /// The rows that were [pulled](Self::pull) and are not zero, once all are here.
    pub fn take_rows(&mut self, requests: &BTreeSet<u64>) -> Rows {
        let (mut ranges, mut values) = (Vec::new(), Vec::new());
        // Requests are numbered in the order of the rows.
        for request in requests {
            if let Some((_, Answer::Rows(rows))) = self.answers.remove(request) {
                ranges.extend(rows.names.ranges());
                values.extend(rows.values);
            }
        }
        Rows { names: ranges.into_iter().collect(), values }
    }

    /// What was asked for by [`reduce`](Self::reduce), once all is here.
    pub fn take_number(&mut self, requests: &BTreeSet<u64>) -> f64 {
        let numbers = requests.iter().filter_map(|request| match self.answers.remove(request) {
            Some((_, Answer::Number(number))) => Some(number),
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

    pub(super) fn is_fresh(&self, row: Row) -> bool {
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
    pub(super) fn shows_at_once(&self, chunk: usize) -> bool {
        self.layout.table_of(chunk).only_adds()
    }
}

/// Answers of owners.
impl Client {
    /// Rows have come, as they were when all workers had completed `clock` clocks, with all that was changed here up to `applied`.
    pub(super) fn on_got(
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
        if self.is_from_before(chunk, applied) {
            self.ask(chunk, request.asked(number), out);
            return Ok(());
        }
        let Some(request) = self.requests.remove(&number) else { return Ok(()) };
        self.answered(chunk, out);
        let clock = self.hear_clock(clock, request.asked_at);
        match request.question {
            Question::Rows(_) => {
                let asked_at = request.asked_at;
                let cached = |values| Cached { clock, asked_at, sequence: applied, values };
                for (row, values) in names.iter().zip(values.chunks_exact(width)) {
                    self.cache.insert(row, cached(values.to_vec()));
                }
                self.cache.extend(zero.iter().map(|row| (row, cached(Vec::new()))));
            }
            _ => _ = self.answers.insert(number, (request, Answer::Rows(Rows { names, values }))),
        }
        Ok(())
    }

    /// What columns come to has come, as they were when all workers had completed `clock` clocks, with all that was changed here up to
    /// `applied`.
    pub(super) fn on_reduced(
        &mut self,
        from: Rank,
        number: u64,
        (clock, applied): (u64, u64),
        value: f64,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let Some(request) = self.requests.get(&number) else { return Ok(()) };
        let chunk = request.chunk;
        if self.places.owner(chunk) != from {
            return Err(TableError::NotOwned(chunk));
        }
        if !matches!(request.question, Question::Reduce(_)) || value.is_nan() {
            return Err(TableError::NotAsked);
        }
        if self.is_from_before(chunk, applied) {
            self.ask(chunk, request.asked(number), out);
            return Ok(());
        }
        let Some(request) = self.requests.remove(&number) else { return Ok(()) };
        self.answered(chunk, out);
        self.hear_clock(clock, request.asked_at);
        self.answers.insert(number, (request, Answer::Number(value)));
        Ok(())
    }

    /// Asks once more for what has come of these chunks, and nobody has taken yet.
    pub(super) fn ask_anew(&mut self, chunks: &Range<usize>, out: &mut Outbox) {
        let is_of = |(_, (request, _)): &(&u64, &(Request, Answer))| chunks.contains(&request.chunk);
        let numbers: Vec<u64> = self.answers.iter().filter(is_of).map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some((request, _)) = self.answers.remove(&number) {
                self.requests.insert(number, request);
                self.ask_in_turn(number, out);
            }
        }
    }

    /// Whether an answer is from before columns of its chunk were changed here: of several chunks, all are told as they are after that.
    fn is_from_before(&self, chunk: usize, applied: u64) -> bool {
        self.mapped.get(&chunk).is_some_and(|mapped| applied < *mapped)
    }
}

impl Cached {
    /// Whether it may be used in this clock.
    pub(super) fn is_fresh(&self, gate: Gate, clock: u64) -> bool {
        match gate {
            Gate::None => self.asked_at == clock,
            Gate::Staleness(_) => self.clock >= gate.needed(clock),
        }
    }
}

impl Request {
    pub(super) fn asked(&self, request: u64) -> Asked {
        let (at_least, chunk) = (self.at_least, self.chunk as u32);
        match &self.question {
            Question::Rows(rows) | Question::Pull(rows) => {
                Asked::Get { request, at_least, chunk, rows: rows.clone() }
            }
            Question::Reduce(reduce) => Asked::Reduce { request, at_least, chunk, reduce: *reduce },
        }
    }
}
