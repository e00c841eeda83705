//! The program's operations: clocks, reads, additions, and the samples behind them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::ledger::Span;
use peergrad_protocol::message::Tally;
use peergrad_protocol::table::{Hand, Names, Rows};
use peergrad_protocol::{Buffer, StepNumber};

use super::super::{Current, Session};
use super::Tables;
use crate::io::{Committed, Event, Output};
use crate::peer::{BegunClock, Operation, Reply};
use crate::table::client::Taken;
use crate::table::dealing::Deck;
use crate::table::{Layout, Split};

/// What the program waits for.
#[derive(Default)]
pub(super) struct Waiting {
    begin: Option<Reply<BegunClock>>,
    /// What it has asked for to learn what the clock is, where it is new.
    entering: Option<BTreeSet<u64>>,
    /// What it has asked to learn when it may end a clock in which it has nothing to do.
    idling: Option<BTreeSet<u64>>,
    reads: Vec<(BTreeSet<u64>, Read)>,
    /// What it has sent, up to which number.
    pushed: VecDeque<(u64, Reply<()>)>,
}

impl Waiting {
    /// In a new view, the owners are others.
    pub(super) fn enter_anew(&mut self) {
        self.entering = None;
    }

    /// Whether the program waits for rows.
    pub(super) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }
}

/// A read, and where it goes.
enum Read {
    Rows(Names, Reply<Vec<f32>>),
    Pulled(Reply<Rows>),
    Parameters(Reply<Arc<Buffer>>),
    /// As they are in the end.
    LastParameters(Reply<Arc<Buffer>>),
    Number(Reply<f64>),
}

/// Samples that the program was given.
#[derive(Default)]
pub(super) struct Hands {
    /// Of the clock in progress: their number, and the pass that they are of.
    current: Option<(u64, u64)>,
    /// The newest pass that any were of.
    pass: u64,
    /// By number: what came of them, as long as that is not safe.
    computed: BTreeMap<u64, Computed>,
    /// Which part of all that there is to be dealt was, when this member was dealt something last.
    progress: f64,
    /// Clocks that are complete here.
    pub(super) clocks: u64,
    /// There was nothing for it the last time.
    has_none: bool,
    /// There is nothing left to be dealt.
    is_over: bool,
}

/// What came of a clock.
struct Computed {
    clock: u64,
    pass: u64,
    tally: Tally,
}

impl Session {
    /// Hands out the next clock, once it can begin.
    pub(crate) fn begin_clock(&mut self, reply: Reply<BegunClock>, out: &mut Vec<Output>) {
        if let Some(tables) = &mut self.tables {
            tables.waiting.begin = Some(reply);
            self.settle(out);
        }
    }

    /// The next samples are asked for before they are needed.
    pub(super) fn want_hand(&mut self) {
        let member_count = self.view().members.len() as u64;
        let goes_on = |tables: &&mut Tables| {
            !tables.hands.is_over && !tables.is_leaving && !tables.client.has_finished()
        };
        let Some(tables) = self.tables.as_mut().filter(goes_on) else { return };
        let batch = self.loaded.training.batch_size;
        let samples = match tables.split {
            Split::AmongAll => batch.div_ceil(member_count),
            Split::EachItsOwn => batch,
        };
        let mut out = Vec::new();
        // Others may wait for that; and with so many that are not done it would be dealt no more.
        if tables.hands.has_none || tables.client.has_many_hands() {
            tables.client.push(&mut out);
        }
        // As long as it holds some, it would be told of none at once, again and again.
        if !tables.hands.has_none || tables.client.is_settled() {
            tables.client.want_hand(u32::try_from(samples).unwrap_or(u32::MAX), &mut out);
        }
        tables.post(out);
        tables.hear_own();
    }

    pub(super) fn begin_clock_if_possible(&mut self) {
        let (rank, member_count) = (self.rank, self.view().members.len());
        let begins = |tables: &&mut Tables| tables.waiting.begin.is_some() && !tables.is_leaving;
        let Some(tables) = self.tables.as_mut().filter(begins) else { return };
        if (tables.rests && member_count > 1) || !tables.has_clock() || !tables.may_begin() {
            return;
        }
        let Some(Taken { number, hand, is_over }) = tables.client.take_hand() else { return };
        let training = &self.loaded.training;
        let order = self.memo.order(training, hand.pass, self.loaded.task.sample_count());
        let of = |span: &Span| order.get(span.start as usize..span.end as usize).unwrap_or(&[]);
        let samples: Arc<[u32]> = hand.spans.iter().flat_map(of).copied().collect();
        tables.hands.take(number, &hand, is_over, tables.deck);
        tables.rests = hand.is_empty() && !is_over;
        self.turn += 1;
        self.current = Some(Current::new(self.turn, false));
        let clock = tables.client.clock();
        let begun = BegunClock {
            turn: self.turn,
            number: clock,
            is_over,
            pass: hand.pass,
            rate: training.schedule.rate(clock),
            samples,
            rank,
            member_count,
            layout: Arc::clone(&tables.layout),
        };
        if let Some(reply) = tables.waiting.begin.take() {
            // A program that no longer waits has ended.
            let _ = reply.send(begun);
        }
        self.want_hand();
    }

    /// Does something in the clock that the program was handed out last.
    pub(crate) fn operate(&mut self, operation: Operation, out: &mut Vec<Output>) {
        if let Some(tables) = &mut self.tables {
            if tables.operate(operation) {
                self.current = None;
            }
            self.settle(out);
        }
    }

    /// Tells the user of samples whose worth has become safe.
    pub(super) fn commit_hands(&mut self, out: &mut Vec<Output>) {
        let Self { tables: Some(tables), loaded, own_trained, .. } = self else { return };
        while let Some(first) = tables.hands.computed.first_entry()
            && *first.key() <= tables.client.done()
        {
            let Computed { clock, pass, tally } = first.remove();
            *own_trained += tally.samples;
            out.push(Output::Event(Event::Committed(Committed {
                step: StepNumber(clock),
                pass,
                steps_expected: tables.hands.clocks_expected(clock),
                loss: tally.loss / tally.samples.max(1) as f64,
                samples: tally.samples,
                left_out: 0,
                may_be_late: false,
                is_own: true,
                rate: loaded.training.schedule.rate(clock),
                digest: None,
            })));
        }
    }

    /// Samples that all workers have computed, where there are tables: all there are, once they are done; before, what this one has.
    pub(in crate::session) fn samples_of_tables(&self) -> Option<u64> {
        let Tables { deck, hands, .. } = self.tables.as_ref()?;
        Some(if hands.is_over { deck.passes.saturating_mul(deck.samples) } else { self.own_trained })
    }

    /// The newest pass that this member was dealt samples of, where there are tables.
    pub(in crate::session) fn pass_of_tables(&self) -> Option<u64> {
        self.tables.as_ref().map(|tables| tables.hands.pass)
    }

    /// Whether the program waits for rows, for samples, or for what it has added to be safe.
    pub(in crate::session) fn waits_for_rows(&self) -> bool {
        self.tables.as_ref().is_some_and(|tables| {
            let Waiting { begin, reads, pushed, .. } = &tables.waiting;
            begin.is_some() || !reads.is_empty() || !pushed.is_empty()
        })
    }
}

impl Tables {
    /// Whether this worker has a clock. One that is new is where the slowest of the others is, once it has heard where that is.
    fn has_clock(&mut self) -> bool {
        let mut out = Vec::new();
        if self.client.is_new() && self.waiting.entering.is_none() {
            self.waiting.entering = Some(self.client.ask_where_all_are(&mut out));
            self.post(std::mem::take(&mut out));
            self.hear_own();
        }
        let has_entered = self.waiting.entering.as_ref().is_none_or(|asked| self.client.has(asked));
        if has_entered {
            self.waiting.entering = None;
            self.client.catch_up(&mut out);
        }
        self.post(out);
        has_entered
    }

    /// Whether the next clock may begin: not while too much of what came before is under way. With nothing to do in it a worker has
    /// nothing to get ahead with, and waits for all others; and one that has not read for long waits as if it did.
    fn may_begin(&mut self) -> bool {
        if self.client.has_much_unsafe() {
            return false;
        }
        let idles = self.client.has_empty_hand() && !self.client.waits_for_nobody();
        if !idles && !self.client.is_far_ahead() {
            return true;
        }
        if self.waiting.idling.is_none() {
            let mut out = Vec::new();
            let asked = if idles { self.client.wait_for_all(&mut out) } else { self.client.wait(&mut out) };
            self.waiting.idling = Some(BTreeSet::from([asked]));
            self.post(out);
            self.hear_own();
        }
        let may_begin = self.waiting.idling.as_ref().is_some_and(|asked| self.client.has(asked));
        if may_begin {
            self.waiting.idling = None;
        }
        may_begin
    }

    /// Does something for the program; whether its clock is over with that.
    fn operate(&mut self, operation: Operation) -> bool {
        let (client, mut out) = (&mut self.client, Vec::new());
        let mut is_over = false;
        match operation {
            Operation::Add(_) | Operation::Map { .. } if client.has_finished() => {}
            Operation::End(_) if client.has_finished() => is_over = true,
            Operation::Get { rows, reply } => {
                let asked = client.fetch(&rows, &mut out);
                self.waiting.reads.push((asked, Read::Rows(rows, reply)));
            }
            Operation::Pull { rows, reply } => {
                let asked = client.pull(&Names::range(rows), &mut out);
                self.waiting.reads.push((asked, Read::Pulled(reply)));
            }
            Operation::Parameters(reply) if client.has_finished() => {
                let asked = client.pull(&self.layout.parameters(), &mut out);
                self.waiting.reads.push((asked, Read::LastParameters(reply)));
            }
            Operation::Map { chunks, map } => client.map(chunks, map, &mut out),
            Operation::Reduce { chunks, reduce, reply } => {
                let asked = client.reduce(chunks, reduce, &mut out);
                self.waiting.reads.push((asked, Read::Number(reply)));
            }
            Operation::Parameters(reply) => {
                let asked = client.fetch(&self.layout.parameters(), &mut out);
                self.waiting.reads.push((asked, Read::Parameters(reply)));
            }
            Operation::Add(rows) => {
                let mut values = &rows.values[..];
                for row in rows.names.iter() {
                    let (added, rest) = values.split_at(self.layout.width(self.layout.chunk_of(row)));
                    client.add(row, added);
                    values = rest;
                }
            }
            Operation::Push(reply) => {
                client.push(&mut out);
                self.waiting.pushed.push_back((client.sent(), reply));
            }
            Operation::End(tally) => {
                self.hands.end(client.clock(), tally);
                client.tick(&mut out);
                if self.waiting.reads.is_empty() {
                    client.forget_stale();
                }
                is_over = true;
            }
            Operation::Finish => client.finish(&mut out),
        }
        self.post(out);
        is_over
    }

    /// Answers what can be answered. The parameters, if they were asked for.
    pub(super) fn answer(&mut self, room: impl Fn() -> Buffer) -> Option<Arc<Buffer>> {
        let mut parameters = None;
        // What was forgotten meanwhile, as something has become of it, is asked for again; perhaps of this member.
        while let (newest, true) = self.answer_once(&room) {
            parameters = newest.or(parameters);
            self.hear_own();
        }
        parameters
    }

    /// As [`answer`](Self::answer), and whether there may be more to answer.
    fn answer_once(&mut self, room: &impl Fn() -> Buffer) -> (Option<Arc<Buffer>>, bool) {
        let (client, layout, mut parameters) = (&mut self.client, &self.layout, None);
        let mut give = |values: &dyn Fn(&mut [f32]), reply: Reply<Arc<Buffer>>| {
            let mut vector = room();
            values(&mut vector);
            let vector = Arc::new(vector);
            parameters = Some(Arc::clone(&vector));
            let _ = reply.send(vector);
        };
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting.reads).into_iter().partition(|(asked, _)| client.has(asked));
        self.waiting.reads = waiting;
        let (is_any, mut out) = (!ready.is_empty(), Vec::new());
        // A program that no longer waits has ended.
        for (asked, read) in ready {
            match read {
                Read::Rows(rows, reply) => match client.read(&rows) {
                    Some(values) => _ = reply.send(values),
                    None => {
                        let asked = client.fetch(&rows, &mut out);
                        self.waiting.reads.push((asked, Read::Rows(rows, reply)));
                    }
                },
                Read::Pulled(reply) => _ = reply.send(client.take_rows(&asked)),
                Read::Number(reply) => _ = reply.send(client.take_number(&asked)),
                Read::Parameters(reply) => match client.read(&layout.parameters()) {
                    Some(values) => give(&|vector| vector.copy_from_slice(&values[..vector.len()]), reply),
                    None => {
                        let asked = client.fetch(&layout.parameters(), &mut out);
                        self.waiting.reads.push((asked, Read::Parameters(reply)));
                    }
                },
                Read::LastParameters(reply) => {
                    let rows = client.take_rows(&asked);
                    give(&|vector| spread(&rows, layout, vector), reply);
                }
            }
        }
        let safe_up_to = client.safe_up_to();
        let are_safe = self.waiting.pushed.partition_point(|(sent, _)| *sent <= safe_up_to);
        self.waiting.pushed.drain(..are_safe).for_each(|(_, reply)| _ = reply.send(()));
        self.post(out);
        (parameters, is_any)
    }
}

/// Rows of the table of parameters as a flat vector.
fn spread(rows: &Rows, layout: &Layout, vector: &mut [f32]) {
    vector.fill(0.0);
    let Some((first, _)) = layout.parameters().ends() else { return };
    let width = layout.width(layout.chunk_of(first));
    for (row, values) in rows.names.iter().zip(rows.values.chunks_exact(width)) {
        let place = &mut vector[(row - first) as usize * width..];
        // The last row may have room for more.
        let there = place.len().min(width);
        place[..there].copy_from_slice(&values[..there]);
    }
}

impl Hands {
    fn take(&mut self, number: u64, hand: &Hand, is_over: bool, deck: Deck) {
        self.is_over |= is_over;
        self.has_none = hand.is_empty();
        self.pass = self.pass.max(hand.pass);
        self.current = (!hand.is_empty()).then_some((number, hand.pass));
        let end = hand.spans.iter().map(|span| span.end).max().unwrap_or(0);
        let dealt = hand.pass as f64 * deck.samples as f64 + end as f64;
        self.progress = self.progress.max(dealt / (deck.passes as f64 * deck.samples as f64));
    }

    fn end(&mut self, clock: u64, tally: Tally) {
        self.clocks = clock + 1;
        if let Some((number, pass)) = self.current.take() {
            self.computed.insert(number, Computed { clock, pass, tally });
        }
    }

    /// How many clocks this member will have had, if all goes on as it did, when this one was the last.
    fn clocks_expected(&self, clock: u64) -> u64 {
        let clocks = clock + 1;
        ((clocks as f64 / self.progress.max(f64::MIN_POSITIVE)).ceil() as u64).max(clocks)
    }
}
