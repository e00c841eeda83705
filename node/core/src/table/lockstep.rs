//! A simulated run of tables in one loop: frames of different links overtake each other, members join, leave and die, chunks move, and sums
//! must be exact.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::table::{Row, RowSet, Rows, TableChunk, TableMessage, WorkerId};
use peergrad_protocol::{Incarnation, PeerId, Rank};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::journal::Journal;
use super::lease_table::LeasePolicy;
use super::member::{Backlog, TableMember};
use super::replica_map::ReplicaMap;
use super::server::{Outbox, ViewHandover};
use super::store::TableStore;
use super::worker::{ReadPolicy, ReadSchedule, TableWorker, WorkerStart};
use super::{ApplyMode, Atomicity, Init, Table, TableLayout, TableRule};

const ROWS: u64 = 200;
/// A count, minus twice the count, and a number whose sum over all rows no clock changes.
const WIDTH: usize = 3;
const CHUNKS: usize = 12;

fn layout(apply_mode: ApplyMode) -> Arc<TableLayout> {
    let rule = TableRule::Sum;
    let layout = TableLayout::new(vec![Table {
        name: "counts".into(),
        rows: ROWS,
        width: WIDTH,
        vectors: 1,
        rule,
        apply_mode,
        init: Init::Zeros,
    }]);
    assert_eq!(layout.chunk_count(), CHUNKS);
    Arc::new(layout)
}

struct Peer {
    member: TableMember,
    /// The number of the worker's last change before this view, if some keeper of its changes may have been lost.
    unkept_up_to: Option<u64>,
    /// The rows and requests that the worker waits for; `None` between clocks.
    wants: Option<(RowSet, BTreeSet<u64>)>,
    /// The worker's additions, by row.
    added: BTreeMap<Row, u64>,
}

struct Swarm {
    layout: Arc<TableLayout>,
    generator: ChaCha8Rng,
    read_policy: ReadPolicy,
    atomicity: Atomicity,
    replicas: usize,
    replica_map: Arc<ReplicaMap>,
    peers: BTreeMap<WorkerId, Peer>,
    links: BTreeMap<(Rank, Rank), VecDeque<TableMessage>>,
    names: u64,
    /// By row: what the lost workers had added, and how much of it was acknowledged to them.
    lost: BTreeMap<Row, (u64, u64)>,
    /// The most clocks that a worker was ahead of the slowest when it read.
    ahead: u64,
    /// The chunks of each cut that was taken, by the view and the number of the cut: of each chunk, the copies of its holders.
    cuts: BTreeMap<(u64, u64), BTreeMap<u32, Vec<TableChunk>>>,
}

impl Swarm {
    fn new(seed: u64, count: usize, (read_policy, atomicity, apply_mode): Policies) -> Self {
        let generator = ChaCha8Rng::seed_from_u64(seed);
        let mut swarm = Self {
            layout: layout(apply_mode),
            generator,
            read_policy,
            atomicity,
            replicas: 2,
            replica_map: Arc::default(),
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            names: 0,
            lost: BTreeMap::new(),
            ahead: 0,
            cuts: BTreeMap::new(),
        };
        let founders = (0..count).map(|_| swarm.name()).collect();
        swarm.enter(founders);
        swarm
    }

    fn name(&mut self) -> WorkerId {
        self.names += 1;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.names.to_be_bytes());
        WorkerId { peer: PeerId(key), incarnation: Incarnation(1) }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.generator.random_range(0..below)
    }

    /// The holders of a chunk: the members with the best scores.
    fn holders(&self, members: &[WorkerId], chunk: usize) -> Vec<Rank> {
        let score = |rank: &Rank| {
            let key = members[rank.index()].peer.0;
            *blake3::hash(&[&key[..], &(chunk as u64).to_be_bytes()].concat()).as_bytes()
        };
        let mut ranks: Vec<Rank> = (0..members.len()).map(Rank::from_index).collect();
        ranks.sort_by_key(score);
        ranks.truncate(self.replicas);
        ranks
    }

    /// The next view of these members.
    fn replica_map(&self, members: Vec<WorkerId>) -> ReplicaMap {
        let is_first = self.peers.is_empty();
        let rank = |name: &WorkerId| Rank::from_index(members.iter().position(|it| it == name).unwrap());
        let mut replica_map =
            ReplicaMap { view_number: self.replica_map.view_number + 1, ..ReplicaMap::default() };
        for chunk in 0..CHUNKS {
            let holders = self.holders(&members, chunk);
            let view_number = |name: &WorkerId| {
                self.peers.get(name).and_then(|peer| peer.member.server().store().view_number(chunk))
            };
            let was_to = |name: &WorkerId| {
                let before = self.replica_map.members.iter().position(|it| it == name).map(Rank::from_index);
                before.is_some_and(|before| self.replica_map.holders[chunk].contains(&before))
            };
            let worth = |name: &WorkerId| view_number(name).map(|view_number| (view_number, was_to(name)));
            let best = members.iter().filter_map(worth).max();
            assert!(is_first || best.is_some(), "chunk {chunk} is nowhere");
            let is_current = |name: &&WorkerId| is_first || worth(name) == best;
            replica_map.up_to_date.push(members.iter().filter(is_current).map(rank).collect());
            replica_map.holders.push(holders);
        }
        let is_new = |name: &&WorkerId| !is_first && !self.peers.contains_key(name);
        replica_map.newcomers = members.iter().filter(is_new).map(rank).collect();
        replica_map.members = members;
        replica_map
    }

    /// Begins a new view. All frames on their way are dropped.
    fn enter(&mut self, members: Vec<WorkerId>) {
        let gone: Vec<WorkerId> = self.peers.keys().filter(|name| !members.contains(name)).copied().collect();
        let has_lost = !gone.is_empty();
        for name in gone {
            let peer = self.peers.remove(&name).unwrap();
            for (row, added) in peer.added {
                let known = self.lost.entry(row).or_default();
                *known = (
                    known.0 + added,
                    known.1 + added
                        - peer.member.worker.changes().unacknowledged(&self.layout, row, 0) as u64,
                );
            }
        }
        let is_first = self.peers.is_empty();
        let replica_map = Arc::new(self.replica_map(members));
        self.links.clear();
        for (rank, name) in replica_map.members.clone().into_iter().enumerate() {
            let me = Rank::from_index(rank);
            let mut may_lack_keepers = has_lost;
            let (mut member, handover, wants, added) = match self.peers.remove(&name) {
                Some(peer) => {
                    may_lack_keepers |= !peer.is_kept();
                    let Peer { mut member, wants, added, .. } = peer;
                    let handover = member.leave();
                    (member, handover, wants, added)
                }
                None => {
                    let mut store = TableStore::new(Arc::clone(&self.layout));
                    let mine = (0..CHUNKS).filter(|chunk| replica_map.holders[*chunk].contains(&me));
                    mine.filter(|_| is_first).for_each(|chunk| store.create_chunk(chunk, &Rows::default()));
                    let start = if is_first { WorkerStart::At(0) } else { WorkerStart::Late };
                    let schedule = ReadSchedule::constant(self.read_policy);
                    let layout = || Arc::clone(&self.layout);
                    let worker = TableWorker::new(layout(), schedule, self.atomicity, start);
                    let member = TableMember::new(worker, Journal::new(layout()));
                    (member, ViewHandover::new(store), None, BTreeMap::new())
                }
            };
            let mut out = Vec::new();
            let unkept_up_to = may_lack_keepers.then(|| member.worker.changes().last_sequence());
            member.enter(me, &replica_map, LeasePolicy::default(), handover, &mut out);
            let peer = Peer { member, unkept_up_to, wants, added };
            self.peers.insert(name, peer);
            self.replica_map = Arc::clone(&replica_map);
            self.post(me, out);
        }
    }

    /// Whether all chunks and the transactions of changes in progress are at another member too. With two replicas, one member may die at a
    /// time.
    fn can_spare(&self, name: WorkerId) -> bool {
        let peer = &self.peers[&name];
        if !peer.is_kept() || !peer.member.journal().is_settled() {
            return false;
        }
        let worth = |other: &WorkerId, chunk: usize| {
            let is_other = |rank: &Rank| self.replica_map.members[rank.index()] == *other;
            let view_number = self.peers[other].member.server().store().view_number(chunk)?;
            Some((view_number, self.replica_map.holders[chunk].iter().any(is_other)))
        };
        let is_spared = |chunk: usize| {
            let mine = worth(&name, chunk);
            self.peers.keys().any(|other| *other != name && worth(other, chunk) >= mine)
        };
        (0..CHUNKS).all(is_spared)
    }

    fn post(&mut self, from: Rank, out: Outbox) {
        for (to, message) in out {
            self.links.entry((from, to)).or_default().push_back(message);
        }
    }

    /// Delivers a frame, or lets a worker act. Returns false if nothing is left to do until all workers have completed `clocks` clocks.
    fn step(&mut self, clocks: u64) -> bool {
        let ready: Vec<(Rank, Rank)> =
            self.links.iter().filter(|(_, frames)| !frames.is_empty()).map(|(link, _)| *link).collect();
        let idle: Vec<Rank> = (0..self.replica_map.members.len())
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
        self.peers.get_mut(&self.replica_map.members[rank.index()]).expect("a member")
    }

    fn deliver(&mut self, (from, to): (Rank, Rank)) {
        let message = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front).unwrap();
        assert!(message.is_valid(), "{message:?}");
        let mut out = Vec::new();
        let peer = self.peer(to);
        peer.member.on_message(from, message, Backlog::Small, &mut out).unwrap();
        for rank in peer.member.server().ready() {
            while peer.member.server_mut().answer_ready(rank, &mut out) {}
        }
        if let Some(cut) = peer.member.take_cut() {
            let copies = self.cuts.entry((self.replica_map.view_number, cut.number)).or_default();
            cut.saved.chunks.into_iter().for_each(|chunk| copies.entry(chunk.chunk).or_default().push(chunk));
        }
        self.post(to, out);
    }

    /// The member of lowest rank asks for a cut, or gives up the one that it has asked for.
    fn change_cut(&mut self) {
        let (mut out, gives_up) = (Vec::new(), self.draw(10) == 0);
        let member = &mut self.peer(Rank(0)).member;
        let _ = if gives_up { member.give_up_cut(&mut out) } else { member.begin_cut(&mut out) };
        self.post(Rank(0), out);
    }

    /// Checks that the holders of a chunk have the same copies in each cut. Returns how many cuts have all chunks, and how many of these have
    /// each clock in whole or not at all.
    fn check_cuts(&self) -> (usize, usize) {
        let mut whole = (0, 0);
        for copies in self.cuts.values() {
            let mut sum = 0.0;
            for copies in copies.values() {
                assert!(copies.iter().all(|copy| *copy == copies[0]), "holders have the same copies");
                for row in copies[0].rows.values.chunks_exact(WIDTH) {
                    assert_eq!(row[1], -2.0 * row[0]);
                    sum += row[2];
                }
            }
            if copies.len() == CHUNKS {
                whole = (whole.0 + 1, whole.1 + usize::from(sum == 0.0));
            }
        }
        let numbers: Vec<u64> = self.cuts.keys().map(|(_, number)| *number).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        whole
    }

    fn can_go_on(&self, rank: Rank, clocks: u64) -> bool {
        let peer = &self.peers[&self.replica_map.members[rank.index()]];
        match &peer.wants {
            Some((_, requests)) => peer.member.worker.has_all(requests),
            None => peer.member.worker.clock() < clocks,
        }
    }

    /// The worker begins or ends a clock.
    fn work(&mut self, rank: Rank) {
        let slowest = self.peers.values().map(|peer| peer.member.worker.clock()).min().unwrap();
        let rows: BTreeSet<Row> = (0..4).map(|_| self.draw(ROWS as usize) as Row).collect();
        let rows: RowSet = rows.into_iter().collect();
        let (mut out, atomicity) = (Vec::new(), self.atomicity);
        let is_additive = self.layout.table_of(0).is_additive();
        let peer = self.peer(rank);
        match peer.wants.take() {
            None => {
                let requests = peer.member.worker.fetch(&rows, &mut out);
                peer.wants = Some((rows, requests));
            }
            Some((rows, _)) => {
                peer.member.worker.catch_up(&mut out);
                let values = peer.member.worker.read(&rows).unwrap();
                for (at, (row, values)) in rows.iter().zip(values.chunks_exact(WIDTH)).enumerate() {
                    let own = peer.added.get(&row).copied().unwrap_or(0) as f32;
                    assert!(values[0] >= own || !is_additive, "a worker sees its own");
                    assert_eq!(values[1], -2.0 * values[0], "a row is read as a whole");
                    let last = (at + 1 == rows.len()).then(|| -((rows.len() - 1) as f32));
                    peer.member.worker.add(row, &[1.0, -2.0, last.unwrap_or(1.0)]);
                    *peer.added.entry(row).or_default() += 1;
                }
                let ahead = peer.member.worker.clock().saturating_sub(slowest);
                if atomicity == Atomicity::Chunk {
                    peer.member.worker.push(&mut out);
                }
                peer.member.worker.tick(&mut out);
                self.ahead = self.ahead.max(ahead);
            }
        }
        self.post(rank, out);
    }

    /// All sums are the additions of the present workers and, of the lost ones, at least what was acknowledged and at most what they added.
    /// Returns whether all clocks are in as a whole.
    fn check(&self) -> bool {
        let mut sum = 0.0;
        for row in 0..ROWS {
            let chunk = self.layout.chunk_of(row);
            let added: u64 = self.peers.values().filter_map(|peer| peer.added.get(&row)).sum();
            let (most, safe) = self.lost.get(&row).copied().unwrap_or_default();
            let mut states = BTreeSet::new();
            for holder in &self.replica_map.holders[chunk] {
                let server = &self.peers[&self.replica_map.members[holder.index()]].member.server();
                let read = server.store().read(&RowSet::range(row..row + 1), &self.replica_map.members[0]);
                let (value, other, part) = match read.values[..] {
                    [value, other, part] => (value, other, part),
                    _ => (0.0, 0.0, 0.0),
                };
                sum += part;
                assert_eq!(other, -2.0 * value);
                let value = value as u64;
                assert!(
                    (added + safe..=added + most).contains(&value),
                    "row {row}: {value}, {added} + {safe}..{most}"
                );
                states.insert(value);
            }
            assert_eq!(states.len(), 1, "owner and replicas are alike");
        }
        assert!(
            self.peers
                .values()
                .all(|peer| peer.member.worker.changes().is_flushed() && peer.member.journal().is_settled())
        );
        sum == 0.0
    }
}

impl Peer {
    /// Whether the keepers of this view have all changes from before it that owners may have.
    fn is_kept(&self) -> bool {
        self.unkept_up_to.is_none_or(|last| self.member.worker.changes().released_up_to() >= last)
    }
}

/// How workers read and add, and when owners apply what they add.
type Policies = (ReadPolicy, Atomicity, ApplyMode);

fn churn(seed: u64, policies: Policies, changes: usize) -> Swarm {
    let mut swarm = Swarm::new(seed, 5, policies);
    let clocks = 30 + changes as u64 * 4;
    for _ in 0..changes {
        for _ in 0..swarm.draw(400) {
            swarm.step(clocks);
            if swarm.draw(20) == 0 {
                swarm.change_cut();
            }
        }
        let mut members = swarm.replica_map.members.clone();
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
    while swarm.step(clocks) {
        if swarm.draw(200) == 0 {
            swarm.change_cut();
        }
    }
    let slow: Vec<u64> = swarm.peers.values().map(|peer| peer.member.worker.clock()).collect();
    assert!(slow.iter().all(|clock| *clock >= clocks), "nothing waits on the departed: {slow:?}");
    swarm
}

#[test]
fn sums_are_exact_while_workers_join_leave_and_crash() {
    let policies = |seed: u64, atomicity| match seed % 5 {
        0 => (ReadPolicy::Unbounded, atomicity, ApplyMode::Immediate),
        1 => (ReadPolicy::Staleness(0), atomicity, ApplyMode::Immediate),
        2 => (ReadPolicy::Staleness(3), atomicity, ApplyMode::Immediate),
        3 => (ReadPolicy::Staleness(0), atomicity, ApplyMode::PerClock),
        _ => (ReadPolicy::Staleness(3), atomicity, ApplyMode::PerClock),
    };
    let seeds = |atomicity, seed_count| {
        let are_whole = move |seed: u64| churn(seed, policies(seed, atomicity), 8).check();
        (0..seed_count).map(are_whole)
    };
    let torn = seeds(Atomicity::Chunk, 60).filter(|is_whole| !is_whole).count();
    assert!(torn > 0, "the clocks of lost workers are in as far as they got");
    let torn: Vec<usize> = seeds(Atomicity::Clock, 240)
        .enumerate()
        .filter(|(_, is_whole)| !is_whole)
        .map(|(seed, _)| seed)
        .collect();
    assert_eq!(torn, [0; 0], "seeds with clocks that are in only in part");
}

#[test]
fn cuts_have_all_of_a_clock_or_nothing() {
    let read_policies = [ReadPolicy::Unbounded, ReadPolicy::Staleness(0), ReadPolicy::Staleness(3)];
    let cuts = |apply_mode| {
        let seeds = (1000..1060).map(move |seed| (seed, read_policies[seed as usize % 3]));
        seeds.map(move |(seed, read_policy)| churn(seed, (read_policy, Atomicity::Clock, apply_mode), 8))
    };
    for apply_mode in [ApplyMode::Immediate, ApplyMode::PerClock] {
        let (taken, whole) = cuts(apply_mode)
            .map(|swarm| swarm.check_cuts())
            .fold((0, 0), |sum, of_swarm| (sum.0 + of_swarm.0, sum.1 + of_swarm.1));
        assert!(taken > 200, "{taken} cuts");
        assert_eq!(whole, taken, "cuts with all of each clock, or nothing");
    }
}

#[test]
fn no_worker_is_further_ahead_than_the_bound() {
    for bound in [0, 1, 3] {
        let ahead: Vec<u64> = (0..20)
            .map(|seed| {
                churn(seed, (ReadPolicy::Staleness(bound), Atomicity::Chunk, ApplyMode::Immediate), 0).ahead
            })
            .collect();
        assert!(ahead.iter().all(|ahead| *ahead <= bound) && ahead.contains(&bound), "{bound}: {ahead:?}");
    }
    let unbounded = (ReadPolicy::Unbounded, Atomicity::Chunk, ApplyMode::Immediate);
    assert!((0..20).any(|seed| churn(seed, unbounded, 0).ahead > 3));
}
