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
//! A worker that is new has no clock, and is not waited for until it says that it has one; then it is not behind the others. One that
//! has ended has completed all clocks there are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::limits::WAITING_BYTES_MAX;
use peergrad_protocol::table::{Asked, Hand, States, Told, Word, Writer};

use super::TableError;
use super::dealing::{self, Deck};
use super::store::{Part, Store};
use clocks::Clock;
use copies::{Change, Copy, Dirty};
use hands::Wanted;

mod clocks;
mod copies;
mod hands;
mod waiting;

/// Who keeps what, and who works, in one view.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// By rank: who it is.
    pub members: Vec<Writer>,
    /// By chunk: who keeps it, the owner first.
    pub holders: Vec<Vec<Rank>>,
    /// Those who have come with this view.
    pub newcomers: BTreeSet<Rank>,
    /// By chunk: who has it as it is now. The first of them gives it to its owner, unless that is one of them.
    pub current: Vec<Vec<Rank>>,
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

    /// Who gives a chunk to its owner, where that has not got it as it is now.
    fn donor(&self, chunk: usize) -> Option<Rank> {
        let current = &self.current[chunk];
        current.first().copied().filter(|_| !current.contains(&self.owner(chunk)))
    }

    fn who(&self, rank: Rank) -> Writer {
        self.members[rank.index()]
    }

    /// Everybody.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.members.len()).map(Rank::from_index)
    }
}

/// Words, and whom they go to.
pub type Outbox = Vec<(Rank, Word)>;

/// One member's part, in one view.
pub struct Keeper {
    me: Rank,
    places: Arc<Places>,
    store: Store,
    deck: Deck,
    clocks: BTreeMap<Rank, Clock>,
    /// The clock that all are in, as long as nobody has one.
    begins_at: u64,
    /// Reads that wait for a clock, in the order in which they came.
    waiting: Vec<(Rank, Asked)>,
    /// By worker: questions that can be answered, once it has taken in what it was told before.
    ready: BTreeMap<Rank, VecDeque<Asked>>,
    /// By worker: the samples that it waits for.
    wants_hand: BTreeMap<Rank, Wanted>,
    /// By chunk that is to come: what was asked of it meanwhile.
    held: BTreeMap<usize, Vec<(Rank, Asked)>>,
    /// By chunk that is here: what was added in clocks that are too far ahead, as far as is known here.
    early: BTreeMap<usize, Vec<(Rank, Asked)>>,
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

/// What a worker has changed in this view.
#[derive(Default)]
struct Worker {
    /// What is not safe yet, and at how many members it is not.
    pending: BTreeMap<Change, usize>,
    newest: u64,
    /// What it was told last.
    told: u64,
    /// What it is told once it is safe.
    hands: BTreeMap<u64, Hand>,
    /// Questions of it that wait.
    questions: usize,
    /// Bytes of all of it that waits.
    waiting_bytes: usize,
    /// The first change that was refused, for which there was no room: none after it may count.
    refused: Option<u64>,
}

impl Carried {
    /// What is kept.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

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
    pub fn enter(me: Rank, places: Arc<Places>, deck: Deck, carried: Carried, out: &mut Outbox) -> Self {
        let mut keeper = Self {
            me,
            deck,
            clocks: BTreeMap::new(),
            begins_at: 0,
            waiting: Vec::new(),
            ready: BTreeMap::new(),
            wants_hand: BTreeMap::new(),
            held: BTreeMap::new(),
            early: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            copies: BTreeMap::new(),
            workers: BTreeMap::new(),
            store: carried.store,
            places,
        };
        let places = Arc::clone(&keeper.places);
        let is_there = |writer: &Writer| places.members.contains(writer);
        let owned = |chunk: &usize| places.owner(*chunk) == me;
        let chunks = 0..places.holders.len();
        // A record is input: it may name one who has not got the chunk.
        let gives = |chunk: &usize| places.donor(*chunk) == Some(me) && keeper.store.holds(*chunk);
        for chunk in chunks.clone().filter(gives) {
            let states = vec![keeper.store.state(chunk, None)];
            out.push((places.owner(chunk), Word::States(States { number: 0, states })));
        }
        for chunk in chunks.clone().filter(|chunk| places.current[*chunk].contains(&me)) {
            keeper.store.set_epoch(chunk, places.epoch);
        }
        keeper.store.forget_writers(is_there);
        let mut dirty = carried.dirty;
        for chunk in chunks.filter(owned) {
            if places.donor(chunk).is_some() {
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
                known.into_iter().for_each(|dirty| copy.add(chunk, dirty));
            }
            keeper.look_for_unsettled(chunk, out);
        }
        keeper.take_back_hands();
        keeper.tell_copies(out);
        keeper
    }

    /// Who has not got an owned chunk that is here; all are told at once, if there is nobody.
    fn look_for_unsettled(&mut self, chunk: usize, out: &mut Outbox) {
        let lacks = |(_, copy): &(&Rank, &Copy)| copy.lacks(chunk);
        let lacking: BTreeSet<Rank> = self.copies.iter().filter(lacks).map(|(rank, _)| *rank).collect();
        if lacking.is_empty() {
            self.tell_settled(&[chunk], out);
        } else {
            self.unsettled.insert(chunk, lacking);
        }
    }

    fn tell_settled(&self, chunks: &[usize], out: &mut Outbox) {
        let chunks: ChunkSet = chunks.iter().copied().collect();
        out.extend(self.places.ranks().map(|rank| (rank, Word::Settled(chunks.clone()))));
    }

    /// Whoever is to keep these chunks does: nobody else need. Those of them that are the sender's.
    pub fn on_settled(&mut self, from: Rank, chunks: &ChunkSet) -> Vec<usize> {
        let count = self.places.holders.len();
        let of_sender = |chunk: &usize| *chunk < count && self.places.owner(*chunk) == from;
        let settled: Vec<usize> = chunks.iter().filter(of_sender).collect();
        for chunk in &settled {
            if !self.places.holders[*chunk].contains(&self.me) {
                self.store.drop_chunk(*chunk);
            }
        }
        settled
    }

    /// The view is over.
    #[must_use]
    pub fn leave(self) -> Carried {
        let dirty = self.copies.into_iter().map(|(rank, copy)| (self.places.who(rank), copy.into_dirty()));
        Carried { dirty: dirty.collect(), store: self.store, places: self.places }
    }

    /// What is kept here.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A worker asks something.
    ///
    /// # Errors
    /// No correct peer asks that.
    pub fn on_asked(&mut self, from: Rank, asked: Asked, out: &mut Outbox) -> Result<(), TableError> {
        let chunk = self.check(&asked)?;
        let has_lost_one = |worker: &Worker| worker.refused.is_some();
        if asked.change().is_some() && self.workers.get(&from).is_some_and(has_lost_one) {
            return Err(TableError::Hoard(WAITING_BYTES_MAX));
        }
        self.take_in(from, chunk, asked, out)?;
        self.tell_copies(out);
        Ok(())
    }

    /// Does what was asked, and checked, or holds it until that can be done.
    fn take_in(
        &mut self,
        from: Rank,
        chunk: Option<usize>,
        asked: Asked,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        match chunk {
            Some(chunk) if !self.is_here(chunk) => {
                self.hold(from, &asked)?;
                self.held.entry(chunk).or_default().push((from, asked));
            }
            Some(chunk) if self.is_early(from, &asked) => {
                self.hold(from, &asked)?;
                self.early.entry(chunk).or_default().push((from, asked));
            }
            _ => self.answer(from, asked, out)?,
        }
        Ok(())
    }

    /// Whether a correct peer may ask that, and about which chunk.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&self, asked: &Asked) -> Result<Option<usize>, TableError> {
        let layout = self.store.layout();
        let chunk = match asked {
            Asked::Get { chunk, rows, .. } => {
                layout.check_question(*chunk as usize, rows)?;
                Some(*chunk as usize)
            }
            Asked::Add { chunk, rows, .. } => {
                layout.check_names(*chunk as usize, &rows.names)?;
                layout.check(*chunk as usize, rows, layout.width(*chunk as usize))?;
                Some(*chunk as usize)
            }
            Asked::Map { chunk, map, .. } => {
                layout.check_map(*chunk as usize, *map)?;
                Some(*chunk as usize)
            }
            Asked::Reduce { chunk, reduce, .. } => {
                layout.check_reduce(*chunk as usize, *reduce)?;
                Some(*chunk as usize)
            }
            Asked::Deal { .. } | Asked::Done { .. } | Asked::Back { .. } => Some(0),
            Asked::Enter | Asked::Tick { .. } => None,
        };
        match chunk.filter(|chunk| !self.owns(*chunk)) {
            Some(chunk) => Err(TableError::NotOwned(chunk)),
            None => Ok(chunk),
        }
    }

    fn answer(&mut self, from: Rank, asked: Asked, out: &mut Outbox) -> Result<(), TableError> {
        match asked {
            Asked::Enter => self.entered(from, out),
            Asked::Tick { clock } => self.ticked(from, clock, out)?,
            Asked::Add { .. } | Asked::Map { .. } => {
                if let Some(change) = self.put(from, &asked) {
                    // Of a worker that is behind, all have completed the clock.
                    self.complete(change.chunk());
                    self.promise(from, change, out);
                }
            }
            Asked::Get { .. } | Asked::Reduce { .. } => {
                if let Some(asked) = self.tell(from, asked, out) {
                    self.hold(from, &asked)?;
                    self.waiting.push((from, asked));
                }
            }
            Asked::Deal { hand, samples, may_wait } => {
                self.deal(from, Wanted { hand, samples: samples.into(), may_wait }, out);
            }
            Asked::Done { hands } => self.change_hands(from, hands, dealing::done, out),
            Asked::Back { hands } => {
                self.wants_hand.remove(&from);
                self.change_hands(from, hands, dealing::back, out);
            }
        }
        Ok(())
    }

    fn owns(&self, chunk: usize) -> bool {
        self.places.owner(chunk) == self.me
    }

    /// Whether a chunk is to be kept here.
    fn keeps(&self, chunk: usize) -> bool {
        self.places.holders[chunk].contains(&self.me)
    }

    /// Whether a chunk that is owned here has come.
    fn is_here(&self, chunk: usize) -> bool {
        self.store.holds(chunk) && !self.held.contains_key(&chunk)
    }

    // Reading and adding.

    /// Answers a question about a chunk that is here, once its clock has come; otherwise gives it back.
    fn tell(&self, from: Rank, asked: Asked, out: &mut Outbox) -> Option<Asked> {
        let (Asked::Get { at_least, .. } | Asked::Reduce { at_least, .. }) = &asked else { return None };
        let Some(clock) = self.clock().filter(|clock| clock >= at_least) else { return Some(asked) };
        let told = match &asked {
            Asked::Get { request, chunk, rows, .. } => {
                let (zero, values) = self.store.read(*chunk as usize, rows);
                let applied = self.store.applied(*chunk as usize, &self.places.who(from));
                Told::Got { request: *request, clock, applied, zero, values }
            }
            Asked::Reduce { request, chunk, reduce, .. } => {
                let value = self.store.reduce(*chunk as usize, *reduce);
                let applied = self.store.applied(*chunk as usize, &self.places.who(from));
                Told::Reduced { request: *request, clock, applied, value }
            }
            _ => return None,
        };
        out.push((from, Word::Told(told)));
        None
    }

    /// Changes a chunk that is here, unless that is in already; `None`: this changes nothing.
    fn put(&mut self, from: Rank, asked: &Asked) -> Option<Change> {
        let writer = self.places.who(from);
        let (sequence, chunk, changed) = match asked {
            Asked::Add { sequence, clock, chunk, rows } => {
                let is_news = self.store.add(*chunk as usize, writer, *sequence, *clock, rows);
                (*sequence, *chunk as usize, is_news.then(|| rows.names.iter().collect()))
            }
            Asked::Map { sequence, chunk, map } => {
                (*sequence, *chunk as usize, self.store.map(*chunk as usize, writer, *sequence, *map))
            }
            _ => return None,
        };
        if let Some(rows) = changed {
            self.mark(chunk, &Part { rows, writers: BTreeSet::from([writer]), dealt: None });
        }
        Some(Change::Added(sequence, chunk))
    }

    /// A worker is told of a change once it is safe.
    fn promise(&mut self, worker: Rank, change: Change, out: &mut Outbox) {
        let unsafe_at = self.expect(worker, change);
        self.workers.entry(worker).or_default().note(change, unsafe_at);
        self.acknowledge(worker, out);
    }

    /// A change is safe at one member more.
    fn safe(&mut self, worker: Rank, change: Change, out: &mut Outbox) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        let Some(count) = known.pending.get_mut(&change) else { return };
        *count -= 1;
        if *count == 0 {
            known.pending.remove(&change);
            self.acknowledge(worker, out);
        }
    }

    fn acknowledge(&mut self, to: Rank, out: &mut Outbox) {
        let Some(worker) = self.workers.get_mut(&to) else { return };
        let first = worker.pending.keys().find_map(|change| match change {
            Change::Added(sequence, _) => Some(*sequence),
            Change::Dealt(_) => None,
        });
        let up_to =
            [first, worker.refused].into_iter().flatten().min().map_or(worker.newest, |first| first - 1);
        if up_to > worker.told {
            worker.told = up_to;
            out.push((to, Word::Told(Told::Added { up_to })));
        }
        let is_ready = |hand: &u64| !worker.pending.contains_key(&Change::Dealt(*hand));
        let ready: Vec<u64> = worker.hands.keys().copied().filter(is_ready).collect();
        for hand in ready {
            if let Some(dealt) = worker.hands.remove(&hand) {
                out.push((to, Word::Told(Told::Dealt { hand, dealt, is_over: false })));
            }
        }
    }
}

impl Worker {
    /// Something was added that is not safe at so many members.
    fn note(&mut self, change: Change, unsafe_at: usize) {
        if let Change::Added(sequence, _) = change {
            self.newest = self.newest.max(sequence);
        }
        if unsafe_at > 0 {
            self.pending.insert(change, unsafe_at);
        } else {
            self.pending.remove(&change);
        }
    }
}

#[cfg(test)]
mod tests;
