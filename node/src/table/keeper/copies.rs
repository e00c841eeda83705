//! Copies, at an owner and at a copy: what they have to be told, and what is safe once they have kept it.

use std::collections::BTreeMap;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::TABLE_FRAME_BYTES;
use peergrad_protocol::table::{Rows, State, States, Word};

use super::{Keeper, Outbox, Part, TableError};

/// What a copy of a chunk may not have been told.
#[derive(Clone, Debug)]
pub(super) enum Dirty {
    /// Anything.
    Whole,
    /// Some of it.
    Part(Part),
}

#[derive(Default)]
pub(super) struct Copy {
    /// Of the frame under way, or the last one.
    number: u64,
    dirty: BTreeMap<usize, Dirty>,
    /// The chunk whose turn it is to be told.
    turn: usize,
    /// What the next frame will make safe.
    next: Vec<(Rank, Change)>,
    under_way: Option<UnderWay>,
}

/// A frame that a copy has not kept yet.
#[derive(Default)]
pub(super) struct UnderWay {
    dirty: BTreeMap<usize, Dirty>,
    /// What is safe at the copy once it has.
    changes: Vec<(Rank, Change)>,
}

/// What a worker has changed: something that it added, by its number, or samples that it was dealt, by theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Added(u64, usize),
    Dealt(u64),
}

impl Change {
    pub(super) fn chunk(self) -> usize {
        if let Self::Added(_, chunk) = self { chunk } else { 0 }
    }
}

impl Copy {
    /// It has to be told something of a chunk.
    pub(super) fn add(&mut self, chunk: usize, dirty: Dirty) {
        add_to(&mut self.dirty, chunk, dirty);
    }

    /// What it is told next: each chunk in its turn, so that those which change all the time leave room for the others.
    fn take_dirty(&mut self) -> Option<(usize, Dirty)> {
        let mut from_turn = self.dirty.range(self.turn..).chain(&self.dirty);
        let chunk = *from_turn.next()?.0;
        self.turn = chunk + 1;
        self.dirty.remove_entry(&chunk)
    }

    /// Whether it has still to be told all of a chunk.
    pub(super) fn lacks(&self, chunk: usize) -> bool {
        matches!(self.dirty.get(&chunk), Some(Dirty::Whole))
    }

    /// What it may not have been told.
    pub(super) fn into_dirty(self) -> BTreeMap<usize, Dirty> {
        let mut dirty = self.under_way.map(|frame| frame.dirty).unwrap_or_default();
        self.dirty.into_iter().for_each(|(chunk, more)| add_to(&mut dirty, chunk, more));
        dirty
    }

    /// The number of the frame that it has not kept yet.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> Option<u64> {
        self.under_way.as_ref().map(|_| self.number)
    }
}

impl Keeper {
    /// Another member gives something to keep.
    ///
    /// # Errors
    /// No correct peer gives that.
    pub fn on_states(&mut self, from: Rank, states: &States, out: &mut Outbox) -> Result<(), TableError> {
        for state in &states.states {
            self.store.check(state)?;
            let chunk = state.chunk as usize;
            let is_to_come = states.number == 0 && self.places.donor(chunk) == Some(from) && self.owns(chunk);
            let is_copy = states.number > 0 && self.places.owner(chunk) == from && self.keeps(chunk);
            if !is_to_come && !is_copy {
                return Err(TableError::NotOwned(chunk));
            }
        }
        for state in &states.states {
            let chunk = state.chunk as usize;
            if states.number == 0 && !self.held.contains_key(&chunk) {
                continue;
            }
            self.store.take(state);
            self.store.set_epoch(chunk, self.places.epoch);
            if states.number == 0 {
                self.begin_to_own(from, chunk, out);
            }
        }
        if states.number > 0 {
            out.push((from, Word::Kept(states.number)));
        }
        self.tell_copies(out);
        Ok(())
    }

    /// A chunk is here that is owned here.
    fn begin_to_own(&mut self, donor: Rank, chunk: usize, out: &mut Outbox) {
        // One who keeps a copy and gave it has it.
        for copy in self.places.copies(chunk).iter().filter(|copy| **copy != donor) {
            self.copies.entry(*copy).or_default().add(chunk, Dirty::Whole);
        }
        self.look_for_unsettled(chunk, out);
        let held = self.held.remove(&chunk).unwrap_or_default();
        if chunk == 0 {
            self.take_back_hands();
        }
        // Clocks did not wait for the chunk: whoever reads sees all that came before them.
        let (changes, questions): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(_, asked)| asked.change().is_some());
        self.put_in(chunk, changes, out);
        for (worker, asked) in questions {
            if asked.at_least().is_some() {
                self.ready.entry(worker).or_default().push_back(asked);
            } else {
                self.let_go(worker, &asked);
                self.answer(worker, asked, out).expect("whoever deals refuses nothing");
            }
        }
    }

    /// A copy has kept what it was told.
    pub fn on_kept(&mut self, from: Rank, number: u64, out: &mut Outbox) {
        let Some(copy) = self.copies.get_mut(&from).filter(|copy| copy.number == number) else { return };
        let UnderWay { dirty, changes } = copy.under_way.take().unwrap_or_default();
        for (worker, change) in changes {
            self.safe(worker, change, out);
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
            self.tell_settled(&settled, out);
        }
        self.tell_copies(out);
    }

    /// Copies of a chunk have to be told something.
    pub(super) fn mark(&mut self, chunk: usize, part: &Part) {
        for copy in self.places.copies(chunk) {
            let copy = self.copies.entry(*copy).or_default();
            copy.add(chunk, Dirty::Part(part.clone()));
        }
    }

    /// At how many copies a change is not safe before they have kept what they are, or will be, told.
    pub(super) fn expect(&mut self, worker: Rank, change: Change) -> usize {
        let chunk = change.chunk();
        let mut unsafe_at = 0;
        for copy in self.places.copies(chunk) {
            let copy = self.copies.entry(*copy).or_default();
            let is_under_way = |frame: &&mut UnderWay| frame.dirty.contains_key(&chunk);
            if copy.dirty.contains_key(&chunk) {
                copy.next.push((worker, change));
                unsafe_at += 1;
            } else if let Some(frame) = copy.under_way.as_mut().filter(is_under_way) {
                frame.changes.push((worker, change));
                unsafe_at += 1;
            }
        }
        unsafe_at
    }

    /// Each copy that has kept all it was told is told what is new.
    pub(super) fn tell_copies(&mut self, out: &mut Outbox) {
        for (rank, copy) in &mut self.copies {
            if copy.under_way.is_some() || copy.dirty.is_empty() {
                continue;
            }
            let (mut states, mut bytes, mut dirty) = (Vec::new(), 0, BTreeMap::new());
            while bytes < TABLE_FRAME_BYTES
                && let Some((chunk, what)) = copy.take_dirty()
            {
                let state = match &what {
                    Dirty::Whole => self.store.state(chunk, None),
                    Dirty::Part(part) => self.store.state(chunk, Some(part)),
                };
                bytes += state_bytes(&state);
                states.push(state);
                dirty.insert(chunk, what);
            }
            let is_told = |(_, change): &(Rank, Change)| dirty.contains_key(&change.chunk());
            let (changes, next) = std::mem::take(&mut copy.next).into_iter().partition(is_told);
            copy.next = next;
            copy.under_way = Some(UnderWay { dirty, changes });
            copy.number += 1;
            out.push((*rank, Word::States(States { number: copy.number, states })));
        }
    }
}

/// Adds to what has to be told of a chunk.
fn add_to(dirty: &mut BTreeMap<usize, Dirty>, chunk: usize, more: Dirty) {
    match (dirty.entry(chunk).or_insert_with(|| Dirty::Part(Part::default())), more) {
        (Dirty::Whole, _) => {}
        (known, Dirty::Whole) => *known = Dirty::Whole,
        (Dirty::Part(part), Dirty::Part(more)) => part.extend(more),
    }
}

/// About as many bytes as a state takes on the wire.
fn state_bytes(state: &State) -> usize {
    let numbers = |rows: &Rows| (rows.values.len() + rows.names.len()) * size_of::<f32>();
    /// Of a worker, with the last number of it.
    const WRITER_BYTES: usize = 50;
    state.applied.len() * WRITER_BYTES
        + numbers(&state.rows)
        + state.pending.iter().map(|(_, rows)| numbers(rows)).sum::<usize>()
}
