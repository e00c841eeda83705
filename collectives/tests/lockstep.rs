//! Rounds in lockstep against the plain sum: every combination of ranks, lengths, topologies and credit, with an
//! adversary who decides which link delivers next, and members that begin each round at different times.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use peergrad_collectives::links::Links;
use peergrad_collectives::plan::{Layout, Plan, Topology};
use peergrad_collectives::round::{Action, Label, Round};
use peergrad_protocol::message::{Phase, Tally};
use peergrad_protocol::{Buffer, Pool};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

const RANKS: Range<usize> = 1..17;
const LENGTHS: [usize; 5] = [0, 1, 7, 1000, 65537];
const TOPOLOGIES: [Topology; 2] = [Topology::Ring, Topology::Direct];
const CREDIT: Range<u32> = 1..9;

#[test]
fn every_member_gets_the_plain_sum() {
    for rank_count in RANKS {
        for len in LENGTHS {
            for topology in TOPOLOGIES {
                for credit in CREDIT {
                    let case = Case {
                        rank_count,
                        len,
                        topology,
                        credit,
                        round_count: 1,
                        adversary: Adversary::Random,
                        rule: Rule::Bubble,
                    };
                    case.check(seed(&[rank_count as u64, len as u64, u64::from(credit)]));
                }
            }
        }
    }
}

#[test]
fn rounds_that_follow_each_other_do_not_mix() {
    for rank_count in [2, 3, 5, 8] {
        for topology in TOPOLOGIES {
            for credit in [1, 2, 4] {
                for adversary in
                    [Adversary::Random, Adversary::Eager, Adversary::Starve(1), Adversary::Starve(0)]
                {
                    let case = Case {
                        rank_count,
                        len: 1000,
                        topology,
                        credit,
                        round_count: 6,
                        adversary,
                        rule: Rule::Bubble,
                    };
                    case.check(seed(&[rank_count as u64, u64::from(credit)]));
                }
            }
        }
    }
}

#[test]
fn nothing_vector_sized_is_allocated_after_the_first_round() {
    for topology in TOPOLOGIES {
        let case = |round_count| Case {
            rank_count: 4,
            len: 65537,
            topology,
            credit: 3,
            round_count,
            adversary: Adversary::Random,
            rule: Rule::Bubble,
        };
        let Allocations { vectors, segments } = case(30).check(5);
        assert!(vectors <= 2 * 4, "contribution and result of each member, but {vectors} vectors");
        // Trays in the whole swarm (twice: the first segments may be short ones), not segments of 30 rounds.
        let links = if topology == Topology::Ring { 4 } else { 4 * 3 };
        let trays = u64::from(case(30).window()) * links;
        assert!(segments <= 2 * trays, "{segments} segments for {trays} trays");
    }
}

/// Planted: members that start segments until every tray is taken. The ring fills with segments that nobody can pass on.
#[test]
#[should_panic(expected = "is stuck")]
fn a_ring_without_a_place_for_relays_gets_stuck() {
    let case = Case {
        rank_count: 3,
        len: 65537,
        topology: Topology::Ring,
        credit: 1,
        round_count: 1,
        adversary: Adversary::Eager,
        rule: Rule::Greedy,
    };
    case.check(1);
}

/// When a member may start a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// While relays still have room.
    Bubble,
    /// Whenever there is a tray.
    Greedy,
}

#[derive(Clone, Copy, Debug)]
enum Adversary {
    /// Delivers in random order across links.
    Random,
    /// Lets members begin their next round as early as they can.
    Eager,
    /// Delivers nothing to one member, and lets it begin nothing, while anything else can happen.
    Starve(usize),
}

#[derive(Clone, Copy, Debug)]
struct Case {
    rank_count: usize,
    len: usize,
    topology: Topology,
    credit: u32,
    round_count: usize,
    adversary: Adversary,
    rule: Rule,
}

/// Buffers that a case asked the allocator for.
struct Allocations {
    vectors: u64,
    segments: u64,
}

impl Case {
    fn check(self, seed: u64) -> Allocations {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let layout = Arc::new(self.layout(&mut generator));
        let mut swarm = Swarm::new(self, layout, generator);
        swarm.run();
        swarm.allocations()
    }

    /// Shards of random chunks: unequal, non-contiguous, some of them empty.
    fn layout(&self, generator: &mut ChaCha8Rng) -> Layout {
        let chunk_len = (self.len / 64).max(1);
        let mut owned = vec![Vec::new(); self.rank_count];
        for start in (0..self.len).step_by(chunk_len) {
            // The smaller of two draws: low ranks own more, high ranks may own nothing.
            let owner = (below(generator, self.rank_count)).min(below(generator, self.rank_count));
            owned[owner].push(start..(start + chunk_len).min(self.len));
        }
        Layout::new(self.len, owned, (self.len / 50).max(3))
    }

    fn window(&self) -> u32 {
        // Credit is what a member may have started itself; relays have one place more.
        self.credit + u32::from(self.topology == Topology::Ring && self.rank_count > 2)
    }

    fn contribution(&self, rank: usize, round: usize) -> Vec<f32> {
        let mut generator = ChaCha8Rng::seed_from_u64(seed(&[rank as u64, round as u64, 77]));
        (0..self.len).map(|_| (generator.next_u32() >> 8) as f32 / 1e5 - 80.0).collect()
    }

    fn tally(rank: usize, round: usize) -> Tally {
        Tally { samples: 10 * rank as u64 + 1, loss: 0.1 * (rank + round) as f64 }
    }

    /// The sum in the plan's order, by one loop.
    fn plain_sum(&self, layout: &Layout, round: usize) -> Vec<f32> {
        let contributions: Vec<Vec<f32>> =
            (0..self.rank_count).map(|rank| self.contribution(rank, round)).collect();
        let mut sums = vec![0.0; self.len];
        for owner in 0..self.rank_count {
            for element in layout.shard(owner).ranges().iter().cloned().flatten() {
                let mut order = (1..=self.rank_count).map(|distance| (owner + distance) % self.rank_count);
                let first = order.next().expect("at least one rank");
                sums[element] =
                    order.fold(contributions[first][element], |sum, rank| sum + contributions[rank][element]);
            }
        }
        sums
    }
}

enum Parcel {
    Segment { round: usize, label: Label, payload: Buffer },
    Credit,
}

struct Member {
    plan: Arc<Plan>,
    links: Links,
    vectors: Pool,
    /// Shared by all, as if segments went home to where they were read.
    segments: Pool,
    rounds: VecDeque<(usize, Round)>,
    early: VecDeque<(usize, usize, Label, Buffer)>,
    begun: usize,
    completed: usize,
    /// By sender: segments received and not yet granted.
    held: Vec<u32>,
}

struct Swarm {
    case: Case,
    layout: Arc<Layout>,
    generator: ChaCha8Rng,
    members: Vec<Member>,
    /// By (from, to): what is on its way.
    queues: Vec<Vec<VecDeque<Parcel>>>,
    sums: Vec<Vec<f32>>,
}

#[derive(Clone, Copy)]
enum Choice {
    Begin(usize),
    Deliver { from: usize, to: usize },
}

impl Swarm {
    fn new(case: Case, layout: Arc<Layout>, generator: ChaCha8Rng) -> Self {
        let count = case.rank_count;
        let segments = Pool::new(1000);
        let member = |rank| {
            let plan = Plan { layout: Arc::clone(&layout), topology: case.topology, rank };
            Member {
                links: Links::new(count, case.window(), plan.has_relays() && case.rule == Rule::Bubble),
                plan: Arc::new(plan),
                vectors: Pool::new(8),
                segments: segments.clone(),
                rounds: VecDeque::new(),
                early: VecDeque::new(),
                begun: 0,
                completed: 0,
                held: vec![0; count],
            }
        };
        let members = (0..count).map(member).collect();
        let queues = (0..count).map(|_| (0..count).map(|_| VecDeque::new()).collect()).collect();
        let sums = (0..case.round_count).map(|round| case.plain_sum(&layout, round)).collect();
        Self { case, layout, generator, members, queues, sums }
    }

    fn run(&mut self) {
        while let Some(choice) = self.choose() {
            match choice {
                Choice::Begin(rank) => self.begin(rank),
                Choice::Deliver { from, to } => self.deliver(from, to),
            }
        }
        for (rank, member) in self.members.iter().enumerate() {
            assert_eq!(member.completed, self.case.round_count, "rank {rank} is stuck in {:?}", self.case);
            assert!(member.rounds.is_empty(), "rank {rank} still owes segments in {:?}", self.case);
        }
    }

    fn choose(&mut self) -> Option<Choice> {
        let count = self.case.rank_count;
        let can_begin = |rank: &usize| {
            let member = &self.members[*rank];
            member.begun == member.completed && member.begun < self.case.round_count
        };
        let begins: Vec<Choice> = (0..count).filter(can_begin).map(Choice::Begin).collect();
        let mut choices: Vec<Choice> = (0..count * count)
            .map(|pair| (pair / count, pair % count))
            .filter(|&(from, to)| !self.queues[from][to].is_empty())
            .map(|(from, to)| Choice::Deliver { from, to })
            .collect();
        match self.case.adversary {
            Adversary::Eager if !begins.is_empty() => choices = begins,
            _ => choices.extend(begins),
        }
        if let Adversary::Starve(victim) = self.case.adversary {
            let spares = |choice: &Choice| match *choice {
                Choice::Begin(rank) | Choice::Deliver { to: rank, .. } => rank != victim,
            };
            if choices.iter().any(spares) {
                choices.retain(spares);
            }
        }
        if choices.is_empty() { None } else { Some(choices[below(&mut self.generator, choices.len())]) }
    }

    fn begin(&mut self, rank: usize) {
        let round_number = self.members[rank].begun;
        let values = self.case.contribution(rank, round_number);
        let member = &mut self.members[rank];
        member.begun += 1;
        let mut contribution = member.vectors.take(values.len());
        contribution.copy_from_slice(&values);
        let tally = Case::tally(rank, round_number);
        let room = || member.vectors.take(values.len());
        let round = Round::new(Arc::clone(&member.plan), contribution, tally, room);
        member.rounds.push_back((round_number, round));
        for (round, from, label, payload) in std::mem::take(&mut member.early) {
            self.take_in(rank, from, round, label, payload);
        }
        self.settle(rank);
    }

    fn deliver(&mut self, from: usize, to: usize) {
        match self.queues[from][to].pop_front().expect("chosen because it is not empty") {
            Parcel::Credit => assert!(self.members[to].links.give_back(from, 1)),
            Parcel::Segment { round, label, payload } => {
                self.members[to].held[from] += 1;
                assert!(
                    self.members[to].held[from] <= self.case.window(),
                    "over the window in {:?}",
                    self.case
                );
                self.take_in(to, from, round, label, payload);
            }
        }
        self.settle(to);
    }

    fn take_in(&mut self, rank: usize, from: usize, number: usize, label: Label, payload: Buffer) {
        let member = &mut self.members[rank];
        let Some((_, round)) = member.rounds.iter_mut().find(|(begun, _)| *begun == number) else {
            assert_eq!(number, member.begun, "at most one round early");
            assert_eq!(label.phase, Phase::Reduce, "a result needs every contribution, ours too");
            member.early.push_back((number, from, label, payload));
            return;
        };
        let mut out = Vec::new();
        let room = || member.vectors.take(member.plan.layout.len());
        round.receive(from, label, payload, room, &mut out).expect("members follow the plan");
        self.carry_out(rank, number, out);
    }

    /// Lets a member do all it can.
    fn settle(&mut self, rank: usize) {
        for index in 0..self.members[rank].rounds.len() {
            let mut out = Vec::new();
            let member = &mut self.members[rank];
            let (number, round) = &mut member.rounds[index];
            let number = *number;
            if round.is_reduced() {
                round.gather();
            }
            round.pump(&mut member.links, &member.segments, &mut out);
            if round.is_complete() && member.completed == number {
                member.completed += 1;
                let vector = round.complete(|| member.vectors.take(0));
                let expected = expected_tally(&self.case, &self.layout, rank, number);
                assert_eq!(**vector, *self.sums[number], "rank {rank}, round {number}, {:?}", self.case);
                assert_eq!(round.tally().samples, expected.samples);
                assert_eq!(round.tally().loss.to_bits(), expected.loss.to_bits(), "{:?}", self.case);
            }
            self.carry_out(rank, number, out);
        }
        let member = &mut self.members[rank];
        let completed = member.completed;
        member.rounds.retain(|(number, round)| *number >= completed || !round.is_drained());
    }

    fn carry_out(&mut self, rank: usize, round: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, label, payload } => {
                    self.queues[rank][to].push_back(Parcel::Segment { round, label, payload });
                }
                Action::Grant { to } => {
                    self.members[rank].held[to] -= 1;
                    self.queues[rank][to].push_back(Parcel::Credit);
                }
            }
        }
    }

    fn allocations(&self) -> Allocations {
        let vectors = self.members.iter().map(|member| member.vectors.allocated_count()).sum();
        Allocations { vectors, segments: self.members[0].segments.allocated_count() }
    }
}

/// The tally of the first owner's shard, added up in the plan's order; with nothing to own, everyone's own.
fn expected_tally(case: &Case, layout: &Layout, rank: usize, round: usize) -> Tally {
    let Some(owner) = layout.first_owner() else { return Case::tally(rank, round) };
    let mut order = (1..=case.rank_count).map(|distance| (owner + distance) % case.rank_count);
    let mut total = Case::tally(order.next().expect("at least one rank"), round);
    order.for_each(|rank| total += Case::tally(rank, round));
    total
}

fn seed(parts: &[u64]) -> u64 {
    parts.iter().fold(1, |seed, part| seed * 1_000_003 + part)
}

fn below(generator: &mut ChaCha8Rng, bound: usize) -> usize {
    (generator.next_u32() as usize) % bound
}
