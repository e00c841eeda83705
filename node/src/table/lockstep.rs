//! Many tables in one loop: frames of different links that overtake each other, members that come, go and die, chunks that move,
//! and sums that have to be right to the unit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::table::{Names, Row, Rows, Word, Writer};
use peergrad_protocol::{Incarnation, PeerId, Rank};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::client::{Client, Gate, Gates};
use super::dealing::Deck;
use super::keeper::{Carried, Keeper, Outbox, Places};
use super::store::Store;
use super::{Begins, Layout, Table, TableRule, When};

const ROWS: u64 = 200;
const WIDTH: usize = 2;
const CHUNKS: usize = 12;

fn layout() -> Arc<Layout> {
    let (rule, when) = (TableRule::Sum, When::AtOnce);
    let layout = Layout::new(vec![Table {
        name: "counts",
        rows: ROWS,
        width: WIDTH,
        rule,
        when,
        begins: Begins::AtZero,
    }]);
    assert_eq!(layout.chunk_count(), CHUNKS);
    Arc::new(layout)
}

struct Peer {
    client: Client,
    keeper: Keeper,
    /// Rows that it waits for, and what it has asked for, if it has begun a clock.
    wants: Option<(Names, BTreeSet<u64>)>,
    /// By row: what it has added.
    added: BTreeMap<Row, u64>,
}

struct Swarm {
    layout: Arc<Layout>,
    generator: ChaCha8Rng,
    gate: Gate,
    copies: usize,
    places: Arc<Places>,
    peers: BTreeMap<Writer, Peer>,
    links: BTreeMap<(Rank, Rank), VecDeque<Word>>,
    names: u64,
    /// By row: what those who died had added, and what of it they knew to be safe.
    lost: BTreeMap<Row, (u64, u64)>,
    /// How far a worker was ahead of the slowest when it read, at most.
    ahead: u64,
}

impl Swarm {
    fn new(seed: u64, count: usize, copies: usize, gate: Gate) -> Self {
        let generator = ChaCha8Rng::seed_from_u64(seed);
        let mut swarm = Self {
            layout: layout(),
            generator,
            gate,
            copies,
            places: Arc::default(),
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            names: 0,
            lost: BTreeMap::new(),
            ahead: 0,
        };
        let founders = (0..count).map(|_| swarm.name()).collect();
        swarm.enter(founders);
        swarm
    }

    fn name(&mut self) -> Writer {
        self.names += 1;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.names.to_be_bytes());
        Writer { peer: PeerId(key), incarnation: Incarnation(1) }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.generator.random_range(0..below)
    }

    /// Who keeps a chunk: the best scores.
    fn holders(&self, members: &[Writer], chunk: usize) -> Vec<Rank> {
        let score = |rank: &Rank| {
            let key = members[rank.index()].peer.0;
            *blake3::hash(&[&key[..], &(chunk as u64).to_be_bytes()].concat()).as_bytes()
        };
        let mut ranks: Vec<Rank> = (0..members.len()).map(Rank::from_index).collect();
        ranks.sort_by_key(score);
        ranks.truncate(self.copies);
        ranks
    }

    /// The next view of these members.
    fn places(&self, members: Vec<Writer>) -> Places {
        let is_first = self.peers.is_empty();
        let rank = |name: &Writer| Rank::from_index(members.iter().position(|it| it == name).unwrap());
        let mut places = Places { epoch: self.places.epoch + 1, ..Places::default() };
        for chunk in 0..CHUNKS {
            let holders = self.holders(&members, chunk);
            let epoch =
                |name: &Writer| self.peers.get(name).and_then(|peer| peer.keeper.store().epoch(chunk));
            let was_to = |name: &Writer| {
                let before = self.places.members.iter().position(|it| it == name).map(Rank::from_index);
                before.is_some_and(|before| self.places.holders[chunk].contains(&before))
            };
            let worth = |name: &Writer| epoch(name).map(|epoch| (epoch, was_to(name)));
            let best = members.iter().filter_map(worth).max();
            assert!(is_first || best.is_some(), "chunk {chunk} is nowhere");
            let is_current = |name: &&Writer| is_first || worth(name) == best;
            places.current.push(members.iter().filter(is_current).map(rank).collect());
            places.holders.push(holders);
        }
        let is_new = |name: &&Writer| !is_first && !self.peers.contains_key(name);
        places.newcomers = members.iter().filter(is_new).map(rank).collect();
        places.members = members;
        places
    }

    /// A new view. Whatever is under way is dropped.
    fn enter(&mut self, members: Vec<Writer>) {
        let gone: Vec<Writer> = self.peers.keys().filter(|name| !members.contains(name)).copied().collect();
        for name in gone {
            let peer = self.peers.remove(&name).unwrap();
            for (row, added) in peer.added {
                let known = self.lost.entry(row).or_default();
                *known = (known.0 + added, known.1 + added - peer.client.unsettled(row, 0) as u64);
            }
        }
        let is_first = self.peers.is_empty();
        let places = Arc::new(self.places(members));
        self.links.clear();
        for (rank, name) in places.members.clone().into_iter().enumerate() {
            let me = Rank::from_index(rank);
            let (carried, mut client, wants, added) = match self.peers.remove(&name) {
                Some(Peer { client, keeper, wants, added }) => (keeper.leave(), client, wants, added),
                None => {
                    let mut store = Store::new(Arc::clone(&self.layout));
                    let mine = (0..CHUNKS).filter(|chunk| places.holders[*chunk].contains(&me));
                    mine.filter(|_| is_first).for_each(|chunk| store.begin(chunk, &Rows::default()));
                    let client = Client::new(Arc::clone(&self.layout), Gates::of(self.gate), !is_first);
                    (Carried::nothing(store), client, None, BTreeMap::new())
                }
            };
            let mut out = Vec::new();
            let keeper = Keeper::enter(me, Arc::clone(&places), Deck::default(), carried, &mut out);
            client.enter(Arc::clone(&places), &mut out);
            self.peers.insert(name, Peer { client, keeper, wants, added });
            self.places = Arc::clone(&places);
            self.post(me, out);
        }
    }

    /// Whether all chunks are somewhere else too: with two copies, one may die at a time.
    fn can_spare(&self, name: Writer) -> bool {
        let worth = |other: &Writer, chunk: usize| {
            let is_other = |rank: &Rank| self.places.members[rank.index()] == *other;
            let epoch = self.peers[other].keeper.store().epoch(chunk)?;
            Some((epoch, self.places.holders[chunk].iter().any(is_other)))
        };
        let is_spared = |chunk: usize| {
            let mine = worth(&name, chunk);
            self.peers.keys().any(|other| *other != name && worth(other, chunk) >= mine)
        };
        (0..CHUNKS).all(is_spared)
    }

    fn post(&mut self, from: Rank, out: Outbox) {
        for (to, word) in out {
            self.links.entry((from, to)).or_default().push_back(word);
        }
    }

    /// Delivers a frame, or has a worker do something. False if nothing is left to do until all have done so many clocks.
    fn step(&mut self, clocks: u64) -> bool {
        let ready: Vec<(Rank, Rank)> =
            self.links.iter().filter(|(_, frames)| !frames.is_empty()).map(|(link, _)| *link).collect();
        let idle: Vec<Rank> = (0..self.places.members.len())
            .map(Rank::from_index)
            .filter(|rank| self.can_go_on(*rank, clocks))
            .collect();
        if ready.is_empty() && idle.is_empty() {
            return false;
        }
        let chosen = self.draw(ready.len() + idle.len());
        match ready.get(chosen) {
            Some(link) => self.deliver(*link),
            None => self.work(idle[chosen - ready.len()]),
        }
        true
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers.get_mut(&self.places.members[rank.index()]).expect("a member")
    }

    fn deliver(&mut self, (from, to): (Rank, Rank)) {
        let word = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front).unwrap();
        assert!(word.is_valid(), "{word:?}");
        let mut out = Vec::new();
        let peer = self.peer(to);
        match word {
            Word::Asked(asked) => peer.keeper.on_asked(from, asked, &mut out).unwrap(),
            Word::Told(told) => peer.client.on_told(from, told, &mut out).unwrap(),
            Word::States(states) => peer.keeper.on_states(from, &states, &mut out).unwrap(),
            Word::Kept(number) => peer.keeper.on_kept(from, number, &mut out),
            Word::Settled(chunks) => _ = peer.keeper.on_settled(from, &chunks),
        }
        for rank in peer.keeper.ready() {
            while peer.keeper.answer_ready(rank, &mut out) {}
        }
        self.post(to, out);
    }

    fn can_go_on(&self, rank: Rank, clocks: u64) -> bool {
        let peer = &self.peers[&self.places.members[rank.index()]];
        match &peer.wants {
            Some((_, requests)) => peer.client.has(requests),
            None => peer.client.clock() < clocks,
        }
    }

    /// A worker begins a clock, or ends it.
    fn work(&mut self, rank: Rank) {
        let slowest = self.peers.values().map(|peer| peer.client.clock()).min().unwrap();
        let rows: BTreeSet<Row> = (0..4).map(|_| self.draw(ROWS as usize) as Row).collect();
        let rows: Names = rows.into_iter().collect();
        let mut out = Vec::new();
        let peer = self.peer(rank);
        match peer.wants.take() {
            None => {
                let requests = peer.client.fetch(&rows, &mut out);
                peer.wants = Some((rows, requests));
            }
            Some((rows, _)) => {
                peer.client.catch_up(&mut out);
                let values = peer.client.read(&rows).unwrap();
                for (row, values) in rows.iter().zip(values.chunks_exact(WIDTH)) {
                    let own = peer.added.get(&row).copied().unwrap_or(0) as f32;
                    assert!(values[0] >= own, "a worker sees its own");
                    assert_eq!(values[1], -2.0 * values[0], "a row is read as a whole");
                    peer.client.add(row, &[1.0, -2.0]);
                    *peer.added.entry(row).or_default() += 1;
                }
                let ahead = peer.client.clock().saturating_sub(slowest);
                peer.client.push(&mut out);
                peer.client.tick(&mut out);
                self.ahead = self.ahead.max(ahead);
            }
        }
        self.post(rank, out);
    }

    /// All sums are what those who live have added, and of those who died what they knew to be safe, and perhaps more.
    fn check(&self) {
        for row in 0..ROWS {
            let chunk = self.layout.chunk_of(row);
            let added: u64 = self.peers.values().filter_map(|peer| peer.added.get(&row)).sum();
            let (most, safe) = self.lost.get(&row).copied().unwrap_or_default();
            let mut states = BTreeSet::new();
            for holder in &self.places.holders[chunk] {
                let keeper = &self.peers[&self.places.members[holder.index()]].keeper;
                let (value, other) = match keeper.store().read(chunk, &Names::range(row..row + 1)).1[..] {
                    [value, other] => (value, other),
                    _ => (0.0, 0.0),
                };
                assert_eq!(other, -2.0 * value);
                let value = value as u64;
                assert!(
                    (added + safe..=added + most).contains(&value),
                    "row {row}: {value}, {added} + {safe}..{most}"
                );
                states.insert(value);
            }
            assert_eq!(states.len(), 1, "owner and copies are alike");
        }
        assert!(self.peers.values().all(|peer| peer.client.is_settled()));
    }
}

fn churn(seed: u64, gate: Gate, changes: usize) -> Swarm {
    let mut swarm = Swarm::new(seed, 5, 2, gate);
    let clocks = 30 + changes as u64 * 4;
    for _ in 0..changes {
        for _ in 0..swarm.draw(400) {
            swarm.step(clocks);
        }
        let mut members = swarm.places.members.clone();
        let kind = swarm.draw(3);
        let dead = swarm.draw(members.len());
        if kind > 0 && members.len() > 3 && swarm.can_spare(members[dead]) {
            members.remove(dead);
        }
        if kind < 2 && members.len() < 8 {
            let at = swarm.draw(members.len() + 1);
            let name = swarm.name();
            members.insert(at, name);
        }
        swarm.enter(members);
    }
    while swarm.step(clocks) {}
    let slow: Vec<u64> = swarm.peers.values().map(|peer| peer.client.clock()).collect();
    assert!(slow.iter().all(|clock| *clock >= clocks), "nothing waits on the departed: {slow:?}");
    swarm
}

#[test]
fn sums_are_exact_whoever_comes_goes_and_dies() {
    for seed in 0..300 {
        churn(seed, [Gate::None, Gate::Staleness(0), Gate::Staleness(3)][seed as usize % 3], 8).check();
    }
}

#[test]
fn no_worker_is_further_ahead_than_the_bound() {
    for bound in [0, 1, 3] {
        let ahead: Vec<u64> = (0..20).map(|seed| churn(seed, Gate::Staleness(bound), 0).ahead).collect();
        assert!(ahead.iter().all(|ahead| *ahead <= bound) && ahead.contains(&bound), "{bound}: {ahead:?}");
    }
    assert!(churn(1, Gate::None, 0).ahead > 3);
}
