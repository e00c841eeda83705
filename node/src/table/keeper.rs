//! The keeper: a member's part as owner and as copy of chunks, in one view.
//!
//! # How it works
//! What is added is applied as it comes, and rows that it changed are *dirty* for each copy. A copy has one frame under way at a
//! time, with all that was dirty when it left; once the copy has kept it, everything whose rows were in it is safe there. What is safe
//! at all copies is acknowledged, in the order in which its worker sent it.
//!
//! # When a chunk changes hands
//! Its new owner gets it from one who has kept it, and tells all others who are to keep it. Until each of them has it, whoever has
//! kept it before goes on keeping it: so whoever dies, it is somewhere. What is acknowledged meanwhile is at all who are to keep it.
//!
//! # Clocks
//! They are of a view: a worker says where it is, after it has sent again what may be lost. So nobody reads before all have done that.
//! A worker that has come with the view is not waited for until it says where it is, and then it is not behind the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_protocol::Rank;

use super::store::{State, Store};
use super::{Asked, Row, TableError, Told, Writer, check_names};

/// Who keeps what, and who works, in one view.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// By rank: who it is.
    pub members: Vec<Writer>,
    /// By chunk: who keeps it, the owner first.
    pub holders: Vec<Vec<Rank>>,
    /// Those who have come with this view.
    pub newcomers: BTreeSet<Rank>,
    /// Who gives a chunk to its owner, where that has not got it as it is now.
    pub donors: BTreeMap<usize, Rank>,
    /// By chunk: who has it as it is now.
    pub current: Vec<BTreeSet<Rank>>,
    /// The number of the view.
    pub epoch: u64,
}

impl Places {
    /// The owner of a chunk.
    #[must_use]
    pub fn owner(&self, chunk: usize) -> Rank {
        self.holders[chunk][0]
    }

    /// Who keeps a chunk beside its owner.
    fn copies(&self, chunk: usize) -> &[Rank] {
        &self.holders[chunk][1..]
    }

    fn who(&self, rank: Rank) -> Writer {
        self.members[rank.index()]
    }
}

/// What is to be sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Sent {
    /// To a worker.
    Told(Rank, Told),
    /// To one who is to keep this.
    States(Rank, States),
    /// To an owner: its frame of this number is kept here.
    Kept(Rank, u64),
    /// To all: whoever is to keep these chunks does.
    Settled(Vec<usize>),
}

/// What a member gives to another one to keep.
#[derive(Clone, Debug, PartialEq)]
pub struct States {
    /// Frames to one copy are numbered from 1; 0: a chunk for its new owner.
    pub number: u64,
    /// Chunks, or parts of them.
    pub states: Vec<State>,
}

/// One member's part, in one view.
pub struct Keeper {
    me: Rank,
    places: Arc<Places>,
    store: Store,
    clocks: BTreeMap<Rank, u64>,
    /// Reads that wait for a clock, in the order in which they came.
    waiting: Vec<(Rank, Asked)>,
    /// By chunk that is to come: what was asked of it meanwhile.
    held: BTreeMap<usize, Vec<(Rank, Asked)>>,
    /// Chunks that are owned here, and that not all who are to keep them do: who does not.
    unsettled: BTreeMap<usize, BTreeSet<Rank>>,
    copies: BTreeMap<Rank, Copy>,
    workers: BTreeMap<Rank, Worker>,
}

/// What goes on into the next view.
pub struct Carried {
    store: Store,
    places: Arc<Places>,
    /// What each copy may not have been told.
    dirty: BTreeMap<Writer, BTreeMap<usize, Dirty>>,
}

/// What a copy of a chunk may not have been told.
#[derive(Clone, Debug)]
enum Dirty {
    /// Anything.
    Whole,
    /// These rows, and whose additions are in them.
    Rows(BTreeSet<Row>, BTreeSet<Writer>),
}

#[derive(Default)]
struct Copy {
    /// Of the frame under way, or the last one.
    number: u64,
    dirty: BTreeMap<usize, Dirty>,
    /// Additions that the next frame will make safe.
    next: Vec<(Rank, Part)>,
    under_way: Option<UnderWay>,
}

/// A frame that a copy has not kept yet.
#[derive(Default)]
struct UnderWay {
    dirty: BTreeMap<usize, Dirty>,
    /// Additions that are safe at the copy once it has.
    parts: Vec<(Rank, Part)>,
}

/// A part of what a worker adds at once: its number, and the chunk.
type Part = (u64, usize);

/// Additions of a worker that came in this view.
#[derive(Default)]
struct Worker {
    /// Those that are not safe yet, and at how many members they are not.
    pending: BTreeMap<Part, usize>,
    newest: u64,
    /// What it was told last.
    told: u64,
}

impl Carried {
    /// Before the first view that a member is in.
    #[must_use]
    pub fn nothing(store: Store) -> Self {
        Self { store, places: Arc::default(), dirty: BTreeMap::new() }
    }
}

/// Whether in these places one owned a chunk of which the other kept a copy.
fn has_told(places: &Places, owner: Writer, copy: Writer, chunk: usize) -> bool {
    let rank = |who| places.members.iter().position(|member| *member == who).map(Rank::from_index);
    let Some(holders) = places.holders.get(chunk) else { return false };
    rank(owner) == Some(holders[0]) && rank(copy).is_some_and(|copy| holders[1..].contains(&copy))
}

impl Keeper {
    /// Begins a view. What is to be sent goes to `out`.
    pub fn enter(me: Rank, places: Arc<Places>, carried: Carried, out: &mut Vec<Sent>) -> Self {
        let mut keeper = Self {
            me,
            clocks: BTreeMap::new(),
            waiting: Vec::new(),
            held: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            copies: BTreeMap::new(),
            workers: BTreeMap::new(),
            store: carried.store,
            places,
        };
        let places = Arc::clone(&keeper.places);
        for (chunk, donor) in places.donors.iter().filter(|(_, donor)| **donor == me) {
            let (owner, states) = (places.owner(*chunk), vec![keeper.store.state(*chunk, None)]);
            debug_assert_ne!(owner, *donor);
            out.push(Sent::States(owner, States { number: 0, states }));
        }
        for (chunk, current) in places.current.iter().enumerate() {
            if current.contains(&me) {
                keeper.store.set_epoch(chunk, places.epoch);
            }
        }
        keeper.store.forget_writers(|writer| places.members.contains(writer));
        let mut dirty = carried.dirty;
        for chunk in (0..places.holders.len()).filter(|chunk| places.owner(*chunk) == me) {
            if places.donors.contains_key(&chunk) {
                // What was kept of it here may be old.
                keeper.store.drop_chunk(chunk);
                keeper.held.insert(chunk, Vec::new());
            }
            if !keeper.store.holds(chunk) {
                continue;
            }
            for copy in places.copies(chunk) {
                let (mine, theirs) = (places.who(me), places.who(*copy));
                let is_current = places.current[chunk].contains(copy);
                let known = if is_current && has_told(&carried.places, mine, theirs, chunk) {
                    dirty.get_mut(&theirs).and_then(|dirty| dirty.remove(&chunk))
                } else {
                    Some(Dirty::Whole)
                };
                let copy = keeper.copies.entry(*copy).or_default();
                copy.dirty.extend(known.map(|dirty| (chunk, dirty)));
            }
            keeper.look_for_unsettled(chunk, out);
        }
        keeper.tell_copies(out);
        keeper
    }

    /// Who has not got an owned chunk that is here; all are told at once, if there is nobody.
    fn look_for_unsettled(&mut self, chunk: usize, out: &mut Vec<Sent>) {
        let lacks = |(_, copy): &(&Rank, &Copy)| matches!(copy.dirty.get(&chunk), Some(Dirty::Whole));
        let lacking: BTreeSet<Rank> = self.copies.iter().filter(lacks).map(|(rank, _)| *rank).collect();
        if lacking.is_empty() {
            out.push(Sent::Settled(vec![chunk]));
        } else {
            self.unsettled.insert(chunk, lacking);
        }
    }

    /// Whoever is to keep these chunks does: nobody else need.
    pub fn on_settled(&mut self, from: Rank, chunks: &[usize]) {
        for chunk in chunks {
            let holders = &self.places.holders[*chunk];
            if holders[0] == from && !holders.contains(&self.me) {
                self.store.drop_chunk(*chunk);
            }
        }
    }

    /// The view is over.
    #[must_use]
    pub fn leave(self) -> Carried {
        let dirty = self.copies.into_iter().map(|(rank, copy)| {
            let mut dirty = copy.under_way.map(|frame| frame.dirty).unwrap_or_default();
            copy.dirty.into_iter().for_each(|(chunk, more)| add_to(&mut dirty, chunk, more));
            (self.places.who(rank), dirty)
        });
        Carried { dirty: dirty.collect(), store: self.store, places: self.places }
    }

    /// What is kept here.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// So many clocks all workers have completed, as far as is known here; `None`: somebody has not said yet.
    #[must_use]
    pub fn clock(&self) -> Option<u64> {
        let ranks = (0..self.places.members.len()).map(Rank::from_index);
        let mut known = ranks.filter_map(|rank| match self.clocks.get(&rank) {
            Some(clock) => Some(Some(*clock)),
            None if self.places.newcomers.contains(&rank) => None,
            None => Some(None),
        });
        known.try_fold(u64::MAX, |least, clock| Some(least.min(clock?))).filter(|least| *least < u64::MAX)
    }

    /// A worker asks something.
    ///
    /// # Errors
    /// No correct peer asks that.
    pub fn on_asked(&mut self, from: Rank, asked: Asked, out: &mut Vec<Sent>) -> Result<(), TableError> {
        let shape = self.store.shape();
        let chunk = match &asked {
            Asked::Get { chunk, rows, .. } => {
                check_names(shape, *chunk, rows)?;
                Some(*chunk)
            }
            Asked::Add { chunk, rows, .. } => {
                rows.check(shape, *chunk)?;
                Some(*chunk)
            }
            Asked::Tick { .. } => None,
        };
        if let Some(chunk) = chunk.filter(|chunk| self.places.owner(*chunk) != self.me) {
            return Err(TableError::NotOwned(chunk));
        }
        match asked {
            Asked::Tick { clock } => self.ticked(from, clock, out)?,
            Asked::Add { sequence, chunk, .. } if !self.is_here(chunk) => {
                self.workers.entry(from).or_default().note((sequence, chunk), 1);
                self.held.entry(chunk).or_default().push((from, asked));
            }
            Asked::Get { chunk, .. } if !self.is_here(chunk) => {
                self.held.entry(chunk).or_default().push((from, asked));
            }
            Asked::Add { sequence, chunk, rows } => self.add(from, (sequence, chunk), &rows, out),
            Asked::Get { .. } => self.get(from, asked, out),
        }
        self.tell_copies(out);
        Ok(())
    }

    /// Another member gives something to keep.
    pub fn on_states(&mut self, from: Rank, states: &States, out: &mut Vec<Sent>) {
        for state in &states.states {
            if states.number == 0 && !self.held.contains_key(&state.chunk) {
                continue;
            }
            self.store.take(state);
            self.store.set_epoch(state.chunk, self.places.epoch);
            if states.number > 0 {
                continue;
            }
            for copy in self.places.copies(state.chunk).iter().filter(|copy| **copy != from) {
                self.copies.entry(*copy).or_default().dirty.insert(state.chunk, Dirty::Whole);
            }
            self.look_for_unsettled(state.chunk, out);
            for (worker, asked) in self.held.remove(&state.chunk).unwrap_or_default() {
                match asked {
                    Asked::Add { sequence, chunk, rows } => self.add(worker, (sequence, chunk), &rows, out),
                    asked => self.get(worker, asked, out),
                }
            }
        }
        if states.number > 0 {
            out.push(Sent::Kept(from, states.number));
        }
        self.tell_copies(out);
    }

    /// A copy has kept what it was told.
    pub fn on_kept(&mut self, from: Rank, number: u64, out: &mut Vec<Sent>) {
        let Some(copy) = self.copies.get_mut(&from).filter(|copy| copy.number == number) else { return };
        let UnderWay { dirty, parts } = copy.under_way.take().unwrap_or_default();
        for (worker, part) in parts {
            self.safe(worker, part, out);
        }
        let whole = dirty.iter().filter(|(_, dirty)| matches!(dirty, Dirty::Whole)).map(|(chunk, _)| *chunk);
        let mut settled = Vec::new();
        for chunk in whole {
            let Some(lacking) = self.unsettled.get_mut(&chunk) else { continue };
            lacking.remove(&from);
            if lacking.is_empty() {
                self.unsettled.remove(&chunk);
                settled.push(chunk);
            }
        }
        if !settled.is_empty() {
            out.push(Sent::Settled(settled));
        }
        self.tell_copies(out);
    }

    /// Whether a chunk that is owned here has come.
    fn is_here(&self, chunk: usize) -> bool {
        self.store.holds(chunk) && !self.held.contains_key(&chunk)
    }

    fn ticked(&mut self, from: Rank, clock: u64, out: &mut Vec<Sent>) -> Result<(), TableError> {
        let before = self.clock();
        let clock = match self.clocks.get(&from) {
            Some(known) if clock < *known => {
                return Err(TableError::Backwards { told: clock, known: *known });
            }
            None if self.places.newcomers.contains(&from) => clock.max(before.unwrap_or(0)),
            _ => clock,
        };
        self.clocks.insert(from, clock);
        if self.clock() != before {
            for (worker, asked) in std::mem::take(&mut self.waiting) {
                self.get(worker, asked, out);
            }
        }
        Ok(())
    }

    /// Answers a read of a chunk that is here, once its clock has come.
    fn get(&mut self, from: Rank, asked: Asked, out: &mut Vec<Sent>) {
        let Asked::Get { request, at_least, chunk, rows } = &asked else { return };
        match self.clock().filter(|clock| clock >= at_least) {
            Some(clock) => {
                let values = self.store.read(*chunk, rows);
                let applied = self.store.applied(*chunk, &self.places.who(from));
                out.push(Sent::Told(from, Told::Got { request: *request, clock, applied, values }));
            }
            None => self.waiting.push((from, asked)),
        }
    }

    fn add(&mut self, from: Rank, part: Part, rows: &super::Rows, out: &mut Vec<Sent>) {
        let (sequence, chunk) = part;
        let writer = self.places.who(from);
        let is_new = self.store.add(chunk, writer, sequence, rows);
        let mut unsafe_at = 0;
        for copy in self.places.copies(chunk) {
            let copy = self.copies.entry(*copy).or_default();
            if is_new {
                let names = rows.names.iter().copied().collect();
                add_to(&mut copy.dirty, chunk, Dirty::Rows(names, BTreeSet::from([writer])));
            }
            if copy.dirty.contains_key(&chunk) {
                copy.next.push((from, part));
                unsafe_at += 1;
            } else if let Some(frame) =
                copy.under_way.as_mut().filter(|frame| frame.dirty.contains_key(&chunk))
            {
                frame.parts.push((from, part));
                unsafe_at += 1;
            }
        }
        self.workers.entry(from).or_default().note(part, unsafe_at);
        self.acknowledge(from, out);
    }

    /// An addition is safe at one member more.
    fn safe(&mut self, worker: Rank, part: Part, out: &mut Vec<Sent>) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        if let Some(count) = known.pending.get_mut(&part) {
            *count -= 1;
            if *count == 0 {
                known.pending.remove(&part);
                self.acknowledge(worker, out);
            }
        }
    }

    fn acknowledge(&mut self, to: Rank, out: &mut Vec<Sent>) {
        let Some(worker) = self.workers.get_mut(&to) else { return };
        let up_to = worker.pending.first_key_value().map_or(worker.newest, |((first, _), _)| first - 1);
        if up_to > worker.told {
            worker.told = up_to;
            out.push(Sent::Told(to, Told::Added { up_to }));
        }
    }

    /// Each copy that has kept all it was told is told what is new.
    fn tell_copies(&mut self, out: &mut Vec<Sent>) {
        for (rank, copy) in &mut self.copies {
            if copy.under_way.is_some() || copy.dirty.is_empty() {
                continue;
            }
            let dirty = std::mem::take(&mut copy.dirty);
            let state = |(chunk, dirty): (&usize, &Dirty)| match dirty {
                Dirty::Whole => self.store.state(*chunk, None),
                Dirty::Rows(rows, writers) => self.store.state(*chunk, Some((rows, writers))),
            };
            let states = dirty.iter().map(state).collect();
            copy.under_way = Some(UnderWay { dirty, parts: std::mem::take(&mut copy.next) });
            copy.number += 1;
            out.push(Sent::States(*rank, States { number: copy.number, states }));
        }
    }
}

impl Worker {
    /// A part has come that is not safe at so many members.
    fn note(&mut self, part: Part, unsafe_at: usize) {
        self.newest = self.newest.max(part.0);
        if unsafe_at > 0 {
            self.pending.insert(part, unsafe_at);
        } else {
            self.pending.remove(&part);
        }
    }
}

fn add_to(dirty: &mut BTreeMap<usize, Dirty>, chunk: usize, more: Dirty) {
    match (dirty.entry(chunk).or_insert_with(|| Dirty::Rows(BTreeSet::new(), BTreeSet::new())), more) {
        (Dirty::Whole, _) => {}
        (known, Dirty::Whole) => *known = Dirty::Whole,
        (Dirty::Rows(rows, writers), Dirty::Rows(more, others)) => {
            rows.extend(more);
            writers.extend(others);
        }
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::{Incarnation, PeerId};

    use super::super::store::TableRule;
    use super::super::{Rows, Shape};
    use super::*;
    use crate::optimizer::Rule;

    const SHAPE: Shape = Shape { rows: 8, width: 1, chunks: 2 };

    /// Two members that work; the first owns both chunks, and the other keeps copies.
    fn keepers(rule: TableRule) -> [Keeper; 2] {
        let who = |byte| Writer { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
        let ranks = [Rank::from_index(0), Rank::from_index(1)];
        let places = Arc::new(Places {
            members: vec![who(1), who(2)],
            holders: vec![ranks.to_vec(); 2],
            current: vec![BTreeSet::from(ranks); 2],
            epoch: 1,
            ..Places::default()
        });
        ranks.map(|rank| {
            let mut store = Store::new(SHAPE, rule);
            (0..2).for_each(|chunk| store.begin(chunk));
            Keeper::enter(rank, Arc::clone(&places), Carried::nothing(store), &mut Vec::new())
        })
    }

    /// The owner, whose copy has been told that there is nothing.
    fn owner(rule: TableRule) -> Keeper {
        let [mut owner, _] = keepers(rule);
        owner.on_kept(Rank::from_index(1), 1, &mut Vec::new());
        owner
    }

    fn add(sequence: u64, names: &[Row], values: &[f32]) -> Asked {
        let rows = Rows { names: names.to_vec(), values: values.to_vec() };
        Asked::Add { sequence, chunk: SHAPE.chunk_of(names[0]), rows }
    }

    fn get(request: u64, at_least: u64, row: Row) -> Asked {
        Asked::Get { request, at_least, chunk: SHAPE.chunk_of(row), rows: vec![row] }
    }

    fn asked(keeper: &mut Keeper, from: usize, asked: Asked) -> Vec<Sent> {
        let mut out = Vec::new();
        keeper.on_asked(Rank::from_index(from), asked, &mut out).unwrap();
        out
    }

    #[test]
    fn what_no_correct_worker_sends_is_refused_and_changes_nothing() {
        let mut keeper = owner(TableRule::Sum);
        let (one, mut out) = (Rank::from_index(1), Vec::new());
        asked(&mut keeper, 1, Asked::Tick { clock: 5 });
        let wrong = Rows { names: vec![1, 2], values: vec![1.0] };
        for (asked, error) in [
            (add(1, &[8], &[1.0]), TableError::Chunk(2)),
            (Asked::Get { request: 1, at_least: 0, chunk: 2, rows: vec![] }, TableError::Chunk(2)),
            (add(1, &[0, 4], &[1.0, 1.0]), TableError::Row(4, 0)),
            (add(1, &[1, 0], &[1.0, 1.0]), TableError::Order),
            (add(1, &[1, 1], &[1.0, 1.0]), TableError::Order),
            (add(1, &[1, 2], &[1.0, f32::NAN]), TableError::NotFinite(2)),
            (Asked::Add { sequence: 1, chunk: 0, rows: wrong }, TableError::Length { found: 1, expected: 2 }),
            (Asked::Tick { clock: 4 }, TableError::Backwards { told: 4, known: 5 }),
        ] {
            assert_eq!(keeper.on_asked(one, asked.clone(), &mut out), Err(error), "{asked:?}");
        }
        assert!(out.is_empty() && keeper.store().read(0, &[0, 1, 2]) == [0.0; 3]);
        let [_, mut copy] = keepers(TableRule::Sum);
        assert_eq!(copy.on_asked(one, add(1, &[0], &[1.0]), &mut out), Err(TableError::NotOwned(0)));
    }

    #[test]
    fn an_addition_is_acknowledged_once_its_copy_has_it_and_those_meanwhile_go_together() {
        let [mut owner, mut copy] = keepers(TableRule::Sum);
        let (me, other) = (Rank::from_index(0), Rank::from_index(1));
        owner.on_kept(other, 1, &mut Vec::new());
        let mut sent = asked(&mut owner, 1, add(1, &[0], &[1.0]));
        let Some(Sent::States(_, first)) = sent.pop() else { panic!("{sent:?}") };
        assert!(sent.is_empty(), "it is not safe yet");
        assert!(asked(&mut owner, 1, add(2, &[0, 1], &[1.0, 5.0])).is_empty());
        assert!(asked(&mut owner, 0, add(1, &[0], &[1.0])).is_empty());
        assert!(
            asked(&mut owner, 1, add(2, &[0, 1], &[1.0, 5.0])).is_empty(),
            "sent again, it is in already"
        );
        let mut out = Vec::new();
        copy.on_states(me, &first, &mut out);
        assert_eq!((out.pop(), copy.store().read(0, &[0])), (Some(Sent::Kept(me, 2)), vec![1.0]));
        owner.on_kept(other, 2, &mut out);
        let [Sent::Told(to, Told::Added { up_to: 1 }), Sent::States(_, second)] = &out[..] else {
            panic!("{out:?}")
        };
        assert_eq!((*to, second.states.len(), &second.states[0].rows.values), (other, 1, &vec![3.0, 5.0]));
        copy.on_states(me, second, &mut Vec::new());
        assert_eq!(copy.store().state(0, None), owner.store().state(0, None));
    }

    #[test]
    fn a_read_waits_for_its_clock_and_no_longer() {
        let mut keeper = owner(TableRule::Sum);
        assert!(asked(&mut keeper, 0, get(1, 2, 0)).is_empty());
        assert!(asked(&mut keeper, 0, Asked::Tick { clock: 3 }).is_empty(), "the other has not said");
        assert!(asked(&mut keeper, 1, Asked::Tick { clock: 1 }).is_empty());
        let sent = asked(&mut keeper, 1, Asked::Tick { clock: 2 });
        let got = Told::Got { request: 1, clock: 2, applied: 0, values: vec![0.0] };
        assert_eq!(sent, [Sent::Told(Rank::from_index(0), got)]);
    }

    #[test]
    fn an_owner_s_rule_has_a_row_s_own_history() {
        let rule = Rule::Adagrad { epsilon: 0.0, weight_decay: 0.0 };
        let mut keeper = owner(TableRule::Stock { rule, rate: 0.5 });
        asked(&mut keeper, 1, add(1, &[0], &[3.0]));
        asked(&mut keeper, 1, add(2, &[0, 1], &[4.0, 7.0]));
        // Sums of squares 9, then 25; and 49.
        assert_eq!(keeper.store().read(0, &[0, 1]), [-0.5 - 0.5 * 4.0 / 5.0, -0.5]);
        // One that overflows is passed by.
        asked(&mut keeper, 1, add(3, &[1], &[f32::MAX]));
        assert_eq!(keeper.store().read(0, &[1]), [-0.5]);
    }
}
