//! A swarm in lockstep: members with rounds and mirrors, queues between them, and one delivery at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::combine::Combine;
use peergrad_collectives::credit::LinkCredits;
use peergrad_collectives::mirror::{Mirror, MirrorPlan, parts};
use peergrad_collectives::plan::{Plan, ShardLayout};
use peergrad_collectives::round::{Action, Round, RoundContribution, SegmentLabel};
use peergrad_protocol::message::{Phase, SampleStats};
use peergrad_protocol::{Buffer, Pool};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::case::{Adversary, Allocations, Case, Rule, are_same_bits, below, updated};

pub(crate) enum Packet {
    Segment {
        round: usize,
        label: SegmentLabel,
        payload: Buffer,
    },
    /// A segment of the view before: it is not used, but credit for it is returned.
    Stale,
    Credit,
}

pub(crate) struct Member {
    pub(crate) plan: Arc<Plan>,
    pub(crate) links: LinkCredits,
    pub(crate) vectors: Pool,
    /// Shared by all members, as if buffers returned to the member that received them.
    pub(crate) segments: Pool,
    pub(crate) turns: VecDeque<Turn>,
    pub(crate) early: VecDeque<(usize, usize, SegmentLabel, Buffer)>,
    /// The contribution to the next round, kept from before the interruption; `None` if there was none.
    pub(crate) kept: Option<RoundContribution>,
    pub(crate) begun: usize,
    pub(crate) completed: usize,
    /// By sender: segments received and not yet granted.
    pub(crate) held: Vec<u32>,
    /// By sender: the credit that this member keeps as soon as it may.
    surplus: Vec<u32>,
    /// Space for the packed sums of the next mirror.
    room: Vec<f32>,
}

/// A member's part in one round.
pub(crate) struct Turn {
    pub(crate) number: usize,
    pub(crate) round: Round,
    pub(crate) mirror: Mirror,
    /// Sums of others' shards, where this member keeps replicas.
    pub(crate) replicated: Vec<f32>,
    /// How many elements of the member's own shard, from its beginning, have their final values.
    updated: usize,
}

pub(crate) struct Swarm {
    pub(crate) case: Case,
    /// By rank: the person whose contribution it adds.
    pub(crate) persons: Vec<usize>,
    pub(crate) window: u32,
    pub(crate) layout: Arc<ShardLayout>,
    mirror_plan: Arc<MirrorPlan>,
    pub(crate) generator: ChaCha8Rng,
    pub(crate) members: Vec<Member>,
    /// By (from, to): packets in transit.
    pub(crate) queues: Vec<Vec<VecDeque<Packet>>>,
    pub(crate) sums: Vec<Vec<f32>>,
}

#[derive(Clone, Copy)]
enum Choice {
    Begin(usize),
    /// A member learns more of its contribution.
    Extend(usize),
    /// An owner does its update later than at once, a part of its shard at a time.
    Update(usize),
    Deliver {
        from: usize,
        to: usize,
    },
}

impl Swarm {
    pub(crate) fn new(case: Case, seed: u64) -> Self {
        Self::of((0..case.rank_count).collect(), case, case.window(), seed)
    }

    /// A swarm of `persons`, one for each rank.
    pub(crate) fn of(persons: Vec<usize>, case: Case, window: u32, seed: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let count = case.rank_count;
        let (layout, mirror_plan) = case.place(&mut generator);
        let layout = Arc::new(layout);
        let segments = Pool::new(1000);
        let member = |rank| {
            let plan = Plan {
                layout: Arc::clone(&layout),
                topology: case.topology,
                combine: Combine::Sum,
                codecs: case.codecs,
                rank,
                group: None,
                contributors: case.contributors(),
            };
            Member {
                links: match case.rule {
                    Rule::Greedy => LinkCredits::with_reserve(count, window, 0),
                    _ => LinkCredits::new(count, window),
                },
                plan: Arc::new(plan),
                vectors: Pool::new(8),
                segments: segments.clone(),
                turns: VecDeque::new(),
                early: VecDeque::new(),
                kept: None,
                begun: 0,
                completed: 0,
                held: vec![0; count],
                surplus: vec![case.surplus; count],
                room: Vec::new(),
            }
        };
        let members = (0..count).map(member).collect();
        let queues = (0..count).map(|_| (0..count).map(|_| VecDeque::new()).collect()).collect();
        let sums = (0..case.round_count).map(|round| case.plain_sum(&layout, &persons, round)).collect();
        Self {
            case,
            persons,
            window,
            layout,
            mirror_plan: Arc::new(mirror_plan),
            generator,
            members,
            queues,
            sums,
        }
    }

    pub(crate) fn run(&mut self) {
        while self.advance() {}
        for (rank, member) in self.members.iter().enumerate() {
            assert_eq!(member.completed, self.case.round_count, "rank {rank} is stuck in {:?}", self.case);
            assert!(member.turns.is_empty(), "rank {rank} still owes segments in {:?}", self.case);
            for (other, receiver) in self.members.iter().enumerate() {
                let kept = self.case.surplus - receiver.surplus[rank];
                let credit = member.links.credit(other) + kept;
                assert_eq!(credit, self.window, "trays to {other} are lost in {:?}", self.case);
            }
        }
    }

    /// Carries out one event that is possible now. Returns false if no event is.
    pub(crate) fn advance(&mut self) -> bool {
        match self.choose() {
            Some(Choice::Begin(rank)) => self.begin(rank),
            Some(Choice::Extend(rank)) => self.extend(rank),
            Some(Choice::Update(rank)) => self.update(rank),
            Some(Choice::Deliver { from, to }) => self.deliver(from, to),
            None => return false,
        }
        true
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
        let can_update = |rank: &usize| self.members[*rank].turns.iter().any(Turn::can_update);
        choices.extend((0..count).filter(can_update).map(Choice::Update));
        let can_extend = |rank: &usize| self.members[*rank].turns.iter().any(|turn| !turn.round.is_known());
        choices.extend((0..count).filter(can_extend).map(Choice::Extend));
        match self.case.adversary {
            Adversary::Eager if !begins.is_empty() => choices = begins,
            _ => choices.extend(begins),
        }
        if let Adversary::Starve(victim) = self.case.adversary {
            let spares = |choice: &Choice| match *choice {
                Choice::Begin(rank)
                | Choice::Extend(rank)
                | Choice::Update(rank)
                | Choice::Deliver { to: rank, .. } => rank != victim,
            };
            if choices.iter().any(spares) {
                choices.retain(spares);
            }
        }
        if choices.is_empty() { None } else { Some(choices[below(&mut self.generator, choices.len())]) }
    }

    fn begin(&mut self, rank: usize) {
        let (person, len) = (self.persons[rank], self.case.len);
        let member = &mut self.members[rank];
        let number = member.begun;
        member.begun += 1;
        let contribution = member.kept.take().unwrap_or_else(|| {
            if !member.plan.contributes(rank) {
                return RoundContribution::whole(member.vectors.take(0), SampleStats::default());
            }
            let known = if self.case.in_parts { below(&mut self.generator, len + 1) } else { len };
            let mut vector = member.vectors.take(len);
            vector[..known].copy_from_slice(&self.case.contribution(person, number)[..known]);
            vector[known..].fill(f32::NAN);
            RoundContribution { vector, stats: Case::stats(person, number), known }
        });
        let topology = self.case.topology_of(number);
        let plan = Arc::new(Plan { topology, ..Plan::clone(&member.plan) });
        let round = Round::new(plan, contribution, || member.vectors.take(len));
        let mirror =
            Mirror::new(Arc::clone(&self.mirror_plan), rank, Codec::F32, std::mem::take(&mut member.room));
        member.turns.push_back(Turn { number, round, mirror, replicated: vec![0.0; len], updated: 0 });
        assert!(member.turns.len() <= 2, "a round ends before the next but one begins");
        self.take_in_early(rank);
        self.drive(rank);
    }

    fn take_in_early(&mut self, rank: usize) {
        for (round, from, label, payload) in std::mem::take(&mut self.members[rank].early) {
            self.take_in(rank, from, round, label, payload);
        }
    }

    /// The next elements of a contribution are known, or all that are left.
    fn extend(&mut self, rank: usize) {
        let (person, len) = (self.persons[rank], self.case.len);
        let member = &mut self.members[rank];
        let turn = member.turns.iter_mut().find(|turn| !turn.round.is_known());
        let turn = turn.expect("chosen because there is one");
        let contribution = self.case.contribution(person, turn.number);
        let known = turn.round.known();
        let next = known + below(&mut self.generator, len - known + 1);
        let vectors = &member.vectors;
        if next < len {
            turn.round.extend(&contribution[known..next], || vectors.take(len));
        } else {
            let mut vector = vectors.take(len);
            vector.copy_from_slice(&contribution);
            let contribution = RoundContribution::whole(vector, Case::stats(person, turn.number));
            turn.round.make_known(contribution, || vectors.take(len));
        }
        self.take_in_early(rank);
        self.drive(rank);
    }

    fn update(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        let turn = member.turns.iter_mut().find(|turn| turn.can_update());
        turn.expect("chosen because there is one").update(
            &member.plan,
            &member.segments,
            self.case.gathers_sums,
        );
        self.drive(rank);
    }

    fn deliver(&mut self, from: usize, to: usize) {
        match self.queues[from][to].pop_front().expect("chosen because it is not empty") {
            Packet::Credit => assert!(self.members[to].links.return_credit(from, 1)),
            Packet::Stale => self.queues[to][from].push_back(Packet::Credit),
            Packet::Segment { round, label, payload } => {
                self.members[to].held[from] += 1;
                assert!(self.members[to].held[from] <= self.window, "over the window in {:?}", self.case);
                self.take_in(to, from, round, label, payload);
            }
        }
        self.drive(to);
    }

    fn take_in(&mut self, rank: usize, from: usize, number: usize, label: SegmentLabel, payload: Buffer) {
        let member = &mut self.members[rank];
        let Some(turn) = member.turns.iter_mut().find(|turn| turn.number == number) else {
            assert_eq!(number, member.begun, "at most one round early");
            let is_needed = member.plan.contributes(rank);
            assert!(
                label.phase == Phase::Reduce || !is_needed,
                "a result needs every contribution, ours too"
            );
            member.early.push_back((number, from, label, payload));
            return;
        };
        if !turn.round.can_receive(label.phase, label.owner, label.index) {
            member.early.push_back((number, from, label, payload));
            return;
        }
        let mut out = Vec::new();
        if label.phase == Phase::Mirror {
            turn.copy_in(from, label, &payload);
            out.push(Action::Grant { to: from, may_keep: false });
        } else {
            let room = || member.vectors.take(member.plan.layout.len());
            turn.round
                .receive(from, label, payload, room, &member.segments, &mut out)
                .expect("members follow the plan");
        }
        self.carry_out(rank, number, out);
    }

    /// Does all that a member can do.
    fn drive(&mut self, rank: usize) {
        for index in 0..self.members[rank].turns.len() {
            let mut out = Vec::new();
            let member = &mut self.members[rank];
            let goes_another_way = index > 0 && self.case.alternates && self.case.rule != Rule::Hasty;
            if goes_another_way && !member.turns[0].round.is_drained() {
                break;
            }
            let turn = &mut member.turns[index];
            let number = turn.number;
            turn.round.pump(&mut member.links, &member.segments, None, &mut out);
            if self.case.rule != Rule::Overtake || number + 1 == member.begun {
                turn.mirror.pump(&mut member.links, &member.segments, &mut out);
            }
            // Sums that are changed in place must have been sent before.
            let is_free = turn.round.is_sent() || !self.case.gathers_sums;
            let is_complete = turn.round.is_complete() && turn.mirror.is_received() && is_free;
            if is_complete && member.completed == number {
                member.completed += 1;
                if self.case.gathers_sums {
                    turn.round.gathered().iter_mut().for_each(|element| *element = updated(*element));
                }
                let vector = turn.round.complete(|| member.vectors.take(0));
                let expected = self.case.result(&self.layout, &self.sums[number]);
                assert_eq!(**vector, *expected, "rank {rank}, round {number}, {:?}", self.case);
                let stats = self.case.plain_stats(&self.layout, &self.persons, rank, number);
                assert_eq!(turn.round.stats().samples, stats.samples);
                assert_eq!(turn.round.stats().loss.to_bits(), stats.loss.to_bits(), "{:?}", self.case);
                self.check_replicated(rank, index);
            }
            self.carry_out(rank, number, out);
        }
        if self.case.rule == Rule::Overtake {
            self.pump_mirror_last(rank);
        }
        let member = &mut self.members[rank];
        let completed = member.completed;
        let is_over =
            |turn: &Turn| turn.number < completed && turn.round.is_drained() && turn.mirror.is_sent();
        if member.turns.front().is_some_and(is_over)
            && let Some(turn) = member.turns.pop_front()
        {
            member.room = turn.mirror.recycle();
        }
    }

    /// Sends the rest of a step's mirror after the segments of the next step.
    fn pump_mirror_last(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        let mut out = Vec::new();
        let Some(turn) = member.turns.front_mut() else { return };
        turn.mirror.pump(&mut member.links, &member.segments, &mut out);
        let number = turn.number;
        self.carry_out(rank, number, out);
    }

    /// Checks that the sums in a member's replicas are the owners' sums.
    pub(crate) fn check_replicated(&self, rank: usize, turn: usize) {
        let Turn { number, mirror, replicated, .. } = &self.members[rank].turns[turn];
        for owner in 0..self.case.rank_count {
            for index in 0..mirror.held_segments(owner) {
                for range in mirror.segment_ranges(owner, index).iter().cloned() {
                    let (found, expected) = (&replicated[range.clone()], &self.sums[*number][range]);
                    assert!(are_same_bits(found, expected), "rank {rank} of {owner}, {:?}", self.case);
                }
            }
        }
    }

    fn carry_out(&mut self, rank: usize, round: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, label, payload } => {
                    self.queues[rank][to].push_back(Packet::Segment { round, label, payload });
                }
                Action::Grant { to, may_keep } => {
                    let member = &mut self.members[rank];
                    member.held[to] -= 1;
                    if member.surplus[to] > 0 && (may_keep || self.case.rule == Rule::KeepAll) {
                        member.surplus[to] -= 1;
                    } else {
                        self.queues[rank][to].push_back(Packet::Credit);
                    }
                }
            }
        }
    }

    pub(crate) fn allocations(&self) -> Allocations {
        let vectors = self.members.iter().map(|member| member.vectors.allocated_count()).sum();
        Allocations { vectors, segments: self.members[0].segments.allocated_count() }
    }
}

impl Turn {
    fn can_update(&self) -> bool {
        let is_over = self.round.is_reduced() && !self.round.is_final();
        is_over || self.round.summed() > self.updated
    }

    /// The owner's update between the halves of a round, for half of what is there: sends the sums to the holders of replicas, then
    /// overwrites them. If sums are gathered, there is no update.
    fn update(&mut self, plan: &Plan, segments: &Pool, gathers_sums: bool) {
        let count = self.updated + (self.round.summed() - self.updated).div_ceil(2);
        if let Some((vector, stats)) = self.round.own_shard().filter(|_| !gathers_sums) {
            for (range, place) in parts(plan.own().ranges()) {
                let part = |count: usize| range.start + count.saturating_sub(place).min(range.len());
                let range = part(self.updated)..part(count);
                self.mirror.pack(&range, vector, stats);
                vector[range].iter_mut().for_each(|element| *element = updated(*element));
            }
        }
        self.updated = count;
        self.round.gather(count, segments);
    }

    /// Stores a segment of sums in this member's replicas.
    fn copy_in(&mut self, from: usize, label: SegmentLabel, payload: &[f32]) {
        let SegmentLabel { owner, index, .. } = label;
        assert!(self.mirror.admit(from, owner, index, size_of_val(payload)), "members follow the plan");
        for (range, offset) in parts(self.mirror.segment_ranges(owner, index)) {
            self.replicated[range.clone()].copy_from_slice(&payload[offset..offset + range.len()]);
        }
    }
}
