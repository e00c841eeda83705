//! Tables, in a session: the program's operations, the words of others, and the way that words take.
//!
//! Where a program keeps its state in [tables](crate::table), a session takes no steps: each worker has a clock of its own. The view's
//! record says who keeps which chunk now, and where it is to be; all of them move at once. Nothing that the program has begun is
//! interrupted by a new view: what may be lost of it is said again.
//!
//! # Words on their way
//! Words to another member are put one behind the other and cut into segments, which credit lets go as it does those of a round. What
//! is taken in uses no credit up for longer than that takes: whoever has to wait for a clock waits in the keeper.
//!
//! # Invariants
//! - While the next view is agreed on, nothing is taken in or sent: what this member has reported stays true.
//! - A chunk that nobody holds keeps a view from being chosen. (See `succession/tables.rs`.)

use std::collections::VecDeque;
use std::sync::Arc;

use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::message::Report;
use peergrad_protocol::table::{Asked, Rows, Word, Writer};
use peergrad_protocol::view::{Member, Recovery};
use peergrad_protocol::{Buffer, PeerId, Rank, StepNumber};

use super::Session;
use crate::geometry::Geometry;
use crate::io::{Event, Output, Reject};
use crate::loader::Loaded;
use crate::membership::TableFacts;
use crate::table::client::Client;
use crate::table::dealing::Deck;
use crate::table::keeper::{Carried, Keeper, Places};
use crate::table::store::Store;
use crate::table::{Begins, Layout, Shared, Split, TableError};
use program::{Hands, Waiting};
use words::Stream;

mod program;
mod words;

/// The tables of a run, as one member sees them.
pub(super) struct Tables {
    layout: Arc<Layout>,
    split: Split,
    deck: Deck,
    me: Rank,
    client: Client,
    /// `None`: a view is being entered.
    keeper: Option<Keeper>,
    /// Words of this member to itself.
    own: VecDeque<Word>,
    /// By rank.
    streams: Vec<Stream>,
    /// What has come while nothing is taken in.
    early: VecDeque<(Rank, Buffer)>,
    /// Chunks that all who are to keep them do.
    settled: ChunkSet,
    waiting: Waiting,
    hands: Hands,
    /// It has begun a clock in which there is nothing to do, and begins none before anything comes from others.
    rests: bool,
    /// It begins no clock any more.
    is_leaving: bool,
    has_wound_down: bool,
}

impl Tables {
    /// Those of a run that begins, or `is_new` of one that this member comes to.
    pub(super) fn new(loaded: &Loaded, shared: Shared, rank: Rank, is_new: bool) -> Self {
        let Shared { layout, gates, split, warm_up, wave } = shared;
        let (passes, samples) = (loaded.training.passes, u64::from(loaded.task.sample_count()));
        Self {
            client: Client::new(Arc::clone(&layout), gates, is_new),
            keeper: None,
            deck: Deck { passes, samples, warm_up, wave },
            me: rank,
            own: VecDeque::new(),
            streams: Vec::new(),
            early: VecDeque::new(),
            settled: ChunkSet::default(),
            waiting: Waiting::default(),
            hands: Hands::default(),
            rests: false,
            is_leaving: false,
            has_wound_down: false,
            split,
            layout,
        }
    }

    /// Begins with what a run begins with: chunks that are kept here, of these parameters.
    fn found(&self, places: &Places, parameters: &[f32]) -> Carried {
        let mut store = Store::new(Arc::clone(&self.layout));
        for chunk in 0..self.layout.chunk_count() {
            if places.holders[chunk].contains(&self.me) {
                store.begin(chunk, &initial(&self.layout, chunk, parameters));
            }
        }
        Carried::nothing(store)
    }

    /// Chunks that were lost begin anew, at those who are to keep them.
    fn restart(&mut self, chunks: &[u32], places: &Places, carried: &mut Carried, loaded: &Loaded) {
        if chunks.is_empty() {
            return;
        }
        let mut parameters = vec![0.0; loaded.manifest.parameter_count()];
        loaded.task.initial(loaded.training.seed, &mut parameters);
        let chunks = chunks.iter().map(|chunk| *chunk as usize);
        for chunk in chunks.filter(|chunk| *chunk < self.layout.chunk_count()) {
            self.client.forget(chunk);
            carried.store_mut().drop_chunk(chunk);
            if places.current[chunk].contains(&self.me) {
                carried.store_mut().begin(chunk, &initial(&self.layout, chunk, &parameters));
            }
        }
    }

    fn enter(&mut self, places: Places, carried: Carried) {
        let (places, mut out) = (Arc::new(places), Vec::new());
        self.own.clear();
        self.early.clear();
        self.streams = places.members.iter().map(|_| Stream::default()).collect();
        self.settled = ChunkSet::default();
        self.keeper = Some(Keeper::enter(self.me, Arc::clone(&places), self.deck, carried, &mut out));
        self.client.enter(places, &mut out);
        self.waiting.enter_anew();
        self.post(out);
    }

    fn keeper(&self) -> &Keeper {
        self.keeper.as_ref().expect("a member keeps chunks in every view")
    }

    /// Takes in what another member, or this one, says.
    fn hear(&mut self, from: Rank, word: Word) -> Result<(), TableError> {
        let mut out = Vec::new();
        let keeper = self.keeper.as_mut().expect("a member keeps chunks in every view");
        let result = match word {
            Word::Asked(asked @ (Asked::Get { .. } | Asked::Reduce { .. }))
                if self.streams[from.index()].is_long() || keeper.has_ready(from) =>
            {
                keeper.postpone(from, asked)
            }
            Word::Asked(asked) => keeper.on_asked(from, asked, &mut out),
            Word::Told(told) => self.client.on_told(from, told, &mut out),
            Word::States(states) => keeper.on_states(from, &states, &mut out),
            Word::Kept(number) => {
                keeper.on_kept(from, number, &mut out);
                Ok(())
            }
            Word::Settled(chunks) => {
                self.settled.extend(keeper.on_settled(from, &chunks));
                Ok(())
            }
        };
        self.post(out);
        self.answer_ready();
        result
    }

    /// Answers what can be answered, but for the questions of those who have not taken in yet what they were told before.
    fn answer_ready(&mut self) {
        for rank in self.keeper().ready() {
            let mut out = Vec::new();
            while !self.streams[rank.index()].is_long()
                && self.keeper.as_mut().is_some_and(|keeper| keeper.answer_ready(rank, &mut out))
            {
                self.post(std::mem::take(&mut out));
            }
        }
    }

    /// Takes in what this member says to itself.
    fn hear_own(&mut self) {
        while let Some(word) = self.own.pop_front() {
            self.hear(self.me, word).expect("a member says nothing wrong to itself");
        }
    }

    /// Which chunks are here as they are now: those that are to be kept here, and those of which others may have a later state.
    fn held(&self, geometry: &Geometry) -> (ChunkSet, ChunkSet) {
        let store = self.keeper().store();
        let is_now = |chunk: &usize| store.epoch(*chunk) == Some(geometry.view.epoch.0);
        let is_kept = |chunk: &usize| geometry.target.keepers(*chunk).contains(&self.me);
        (0..self.layout.chunk_count()).filter(is_now).partition(is_kept)
    }
}

/// What rows of a chunk begin with.
fn initial(layout: &Layout, chunk: usize, parameters: &[f32]) -> Rows {
    let (range, width) = (layout.range(chunk), layout.width(chunk));
    if layout.table_of(chunk).begins == Begins::AtZero {
        return Rows::default();
    }
    let first = layout.first_of_its_table(chunk);
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for row in range {
        let start = (row - first) as usize * width;
        // The last row may have room for more.
        let there = &parameters[start.min(parameters.len())..(start + width).min(parameters.len())];
        if there.iter().any(|value| *value != 0.0) {
            names.push(row);
            values.extend_from_slice(there);
            values.resize(names.len() * width, 0.0);
        }
    }
    Rows { names: names.into_iter().collect(), values }
}

/// Who keeps what in a view.
fn places(geometry: &Geometry) -> Places {
    let view = &geometry.view;
    let writer = |member: &Member| Writer { peer: member.peer, incarnation: member.incarnation };
    let holders: Vec<Vec<Rank>> =
        (0..geometry.target.chunk_count()).map(|chunk| geometry.target.keepers(chunk).to_vec()).collect();
    let mut current = holders.clone();
    for moved in &view.moves.list {
        if let Some(current) = current.get_mut(moved.chunk as usize) {
            current.clone_from(&moved.from);
        }
    }
    Places {
        members: view.members.iter().map(writer).collect(),
        holders,
        newcomers: view.newcomers().iter().copied().collect(),
        current,
        epoch: view.epoch.0,
    }
}

impl Session {
    /// The clock that this member is in, where its program has tables.
    pub(super) fn clock(&self) -> Option<StepNumber> {
        self.tables.as_ref().map(|tables| StepNumber(tables.hands.clocks))
    }

    /// Whether its program keeps its state in tables.
    pub(crate) fn has_tables(&self) -> bool {
        self.tables.is_some()
    }

    /// Something has come from outside.
    pub(crate) fn wake(&mut self) {
        if let Some(tables) = &mut self.tables {
            tables.rests = false;
        }
    }

    /// How far this member is: its step, or its worker's clock.
    pub(crate) fn at(&self) -> StepNumber {
        self.clock().unwrap_or(self.step)
    }

    /// Begins in the first view that this member is in.
    pub(super) fn begin_tables(&mut self) {
        // After a stop of all nobody has anything: it begins anew.
        let is_founded = match &self.view().recovery {
            Recovery::Found => true,
            Recovery::Resume(resume) => resume.is_restored,
        };
        let Self { tables: Some(tables), geometry, complete, .. } = self else { return };
        let places = places(geometry);
        let carried = match complete {
            Some(parameters) if is_founded => tables.found(&places, parameters),
            _ => Carried::nothing(Store::new(Arc::clone(&tables.layout))),
        };
        tables.enter(places, carried);
        self.is_open = true;
    }

    /// Goes on in another view.
    pub(super) fn enter_tables(&mut self, out: &mut Vec<Output>) {
        let Self { tables: Some(tables), geometry, rank, .. } = self else { return };
        let mut carried = tables.keeper.take().expect("a member keeps chunks in every view").leave();
        tables.me = *rank;
        let (places, restarted) = (places(geometry), &geometry.view.moves.restarted);
        tables.restart(restarted, &places, &mut carried, &self.loaded);
        if !restarted.is_empty() {
            let deals_anew = restarted.contains(&0);
            out.push(Output::Event(Event::ChunksLost { chunks: restarted.len(), deals_anew }));
        }
        tables.enter(places, carried);
        self.is_open = true;
        self.is_frozen = false;
        self.settle(out);
    }

    /// Words of another member.
    ///
    /// # Errors
    /// No correct member says them.
    pub(crate) fn words(
        &mut self,
        from: PeerId,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.wiring.rank_of(&from, self.view()).ok_or(Reject::NotAMember)?;
        let Some(tables) = &mut self.tables else { return Err(Reject::OutOfPlace) };
        self.wiring.hold(rank)?;
        tables.early.push_back((rank, payload));
        if self.is_frozen { Ok(()) } else { self.take_words(out) }
    }

    /// Takes in the words that have come.
    fn take_words(&mut self, out: &mut Vec<Output>) -> Result<(), Reject> {
        let mut result = Ok(());
        while let Some(tables) = &mut self.tables
            && let Some((from, payload)) = tables.early.pop_front()
        {
            result = result.and(tables.take(from, payload.bytes()));
            if self.wiring.use_up(from.index()) {
                out.push(Output::Credit { to: self.view().member(from).peer, segments: 1 });
            }
        }
        self.settle(out);
        result
    }

    /// Goes on in the same view.
    pub(super) fn thaw_tables(&mut self, out: &mut Vec<Output>) {
        // Whoever says something wrong says it again.
        let _ = self.take_words(out);
    }

    /// Does all that can be done now: takes in what this member says to itself, answers the program, sends what credit allows.
    pub(super) fn settle_tables(&mut self, out: &mut Vec<Output>) {
        self.take_leave();
        self.want_hand();
        self.begin_clock_if_possible();
        self.commit_hands(out);
        let Self { tables: Some(tables), wiring, geometry, segments, vectors, complete, .. } = self else {
            return;
        };
        tables.hear_own();
        let room = || vectors.take(self.loaded.manifest.parameter_count());
        if let Some(parameters) = tables.answer(room) {
            *complete = Some(parameters);
        }
        tables.pump(&mut wiring.links, geometry, segments, out);
        tables.answer_ready();
        tables.pump(&mut wiring.links, geometry, segments, out);
    }

    // Leaving.

    /// This member wants to leave: where there are tables, its worker begins no clock any more.
    pub(crate) fn wind_down(&mut self, out: &mut Vec<Output>) {
        if let Some(tables) = &mut self.tables {
            tables.is_leaving = true;
            self.settle(out);
        }
    }

    /// Whether it may leave: what came of the samples that its worker has computed is safe, and whoever deals knows.
    pub(crate) fn has_wound_down(&self) -> bool {
        self.tables.as_ref().is_none_or(|tables| tables.has_wound_down)
    }

    /// A worker that leaves, and is between two clocks, says its last words.
    fn take_leave(&mut self) {
        let is_between = self.current.is_none();
        let leaves = |tables: &&mut Tables| tables.is_leaving && (is_between || tables.client.has_finished());
        if let Some(tables) = self.tables.as_mut().filter(leaves) {
            let mut out = Vec::new();
            tables.has_wound_down = tables.client.wind_down(&mut out);
            tables.post(out);
        }
    }

    // The account.

    /// Where this member is, and what it holds, where there are tables.
    pub(super) fn report_of_tables(&self) -> Option<Report> {
        let (states, older) = self.tables.as_ref()?.held(&self.geometry);
        Some(Report { complete: Some(self.step), states, states_before: Some(older), ..Report::default() })
    }

    /// Bytes of what owners' rules keep beside the values of rows that are kept here, where there are tables.
    pub(super) fn moment_bytes_of_tables(&self) -> Option<u64> {
        let keeper = self.tables.as_ref()?.keeper.as_ref()?;
        Some(keeper.store().moment_bytes())
    }

    /// What membership has to know of tables, where there are some.
    pub(super) fn table_facts(&self) -> Option<TableFacts> {
        let tables = self.tables.as_ref()?;
        Some(TableFacts {
            clock: StepNumber(tables.hands.clocks),
            are_settled: tables.settled.len() == tables.layout.chunk_count(),
            is_reading: tables.waiting.is_reading(),
        })
    }
}
