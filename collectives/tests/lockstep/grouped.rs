//! Rounds of changing groups: members of other groups are ahead or behind, and all rounds share the same links.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use peergrad_collectives::codec::Codecs;
use peergrad_collectives::combine::Combine;
use peergrad_collectives::credit::LinkCredits;
use peergrad_collectives::groups::Groups;
use peergrad_collectives::plan::{Plan, ShardLayout, Topology};
use peergrad_collectives::round::{Action, Round, RoundContribution, SegmentLabel};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::{Buffer, Pool};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

const LEN: usize = 240;
const ROUNDS: u64 = 7;
const WINDOW: u32 = 3;

struct Member {
    links: LinkCredits,
    values: Vec<f32>,
    /// Rounds in progress, by number; at most two.
    live: VecDeque<(u64, Round)>,
    /// The plan of the newest round; `None` before the first.
    plan: Option<Arc<Plan>>,
    /// Segments of rounds that have not begun at this member.
    early: Vec<(usize, u64, SegmentLabel, Buffer)>,
    completed: u64,
}

/// A segment of a round, or credit for one.
type Packet = Option<(u64, SegmentLabel, Buffer)>;

struct Swarm {
    groups: Groups,
    /// The topology of even rounds, and of odd ones.
    topologies: [Topology; 2],
    members: Vec<Member>,
    /// By (from, to): packets in transit.
    queues: BTreeMap<(usize, usize), VecDeque<Packet>>,
    pool: Pool,
}

impl Swarm {
    fn begin(&mut self, rank: usize) {
        let count = self.members.len();
        let number = self.members[rank].completed;
        let group: Arc<[usize]> = self.groups.of(rank, count, number).into();
        let owners: Vec<usize> = (0..group.len()).collect();
        let layout = Arc::new(ShardLayout::even(LEN, group.len(), &owners, 8));
        let place = group.binary_search(&rank).expect("it is in its group");
        let plan = Arc::new(Plan {
            layout,
            topology: self.topologies[number as usize % 2],
            combine: Combine::Sum,
            codecs: Codecs::default(),
            rank: place,
            group: Some(group),
            contributors: None,
        });
        let member = &mut self.members[rank];
        let mut contribution = self.pool.take(LEN);
        contribution.copy_from_slice(&member.values);
        let stats = SampleStats { samples: 1, loss: 0.0 };
        let pool = self.pool.clone();
        member.plan = Some(Arc::clone(&plan));
        member.live.push_back((
            number,
            Round::new(plan, RoundContribution::whole(contribution, stats), || pool.take(LEN)),
        ));
        for (from, number, label, payload) in std::mem::take(&mut self.members[rank].early) {
            self.take(rank, from, number, label, payload);
        }
        self.go_on(rank);
    }

    fn take(&mut self, rank: usize, from: usize, number: u64, label: SegmentLabel, payload: Buffer) {
        let member = &mut self.members[rank];
        let Some((_, round)) = member.live.iter_mut().find(|(live, _)| *live == number) else {
            assert!(number >= member.completed, "a segment of a round that is over");
            member.early.push((from, number, label, payload));
            return;
        };
        let mut actions = Vec::new();
        let pool = self.pool.clone();
        round.receive(from, label, payload, || pool.take(LEN), &self.pool, &mut actions).expect("as planned");
        self.carry_out(rank, number, actions);
    }

    fn carry_out(&mut self, rank: usize, number: u64, actions: Vec<Action>) {
        for action in actions {
            let (to, packet) = match action {
                Action::Send { to, label, payload } => (to, Some((number, label, payload))),
                Action::Grant { to, .. } => (to, None),
            };
            self.queues.entry((rank, to)).or_default().push_back(packet);
        }
    }

    /// Does everything that a member can do without a further packet: means, segments, the end of a round.
    fn go_on(&mut self, rank: usize) {
        loop {
            let member = &mut self.members[rank];
            if let Some((_, round)) = member.live.back_mut()
                && round.is_reduced()
                && !round.is_final()
            {
                if let (Some((vector, stats)), Some(plan)) = (round.own_shard(), &member.plan) {
                    let own = plan.own().ranges().iter().cloned().flatten();
                    own.for_each(|element| vector[element] /= stats.samples as f32);
                }
                round.gather(round.summed(), &self.pool);
            }
            let mut sent = Vec::new();
            for (number, round) in &mut member.live {
                let mut actions = Vec::new();
                round.pump(&mut member.links, &self.pool, None, &mut actions);
                sent.push((*number, actions));
                if !round.is_drained() {
                    // Segments of the next round could fill the links that this one needs.
                    break;
                }
            }
            if member.live.len() == 2 && member.live[0].1.is_drained() {
                member.live.pop_front();
            }
            let is_alone = member.live.len() == 1;
            let mut has_completed = false;
            if let Some((number, round)) = member.live.back_mut()
                && is_alone
                && *number == member.completed
                && round.is_complete()
            {
                member.values = round.complete(|| unreachable!("there are elements")).to_vec();
                member.completed += 1;
                has_completed = true;
            }
            sent.into_iter().for_each(|(number, actions)| self.carry_out(rank, number, actions));
            if !has_completed {
                return;
            }
        }
    }

    fn run(&mut self, generator: &mut ChaCha8Rng) {
        loop {
            let can_begin = |rank: &usize| {
                let member = &self.members[*rank];
                let has_begun = member.live.back().is_some_and(|(number, _)| *number == member.completed);
                member.completed < ROUNDS && !has_begun
            };
            let begins: Vec<usize> = (0..self.members.len()).filter(can_begin).collect();
            let deliveries: Vec<(usize, usize)> =
                self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(edge, _)| *edge).collect();
            if begins.is_empty() && deliveries.is_empty() {
                return;
            }
            let choice = generator.random_range(0..begins.len() + deliveries.len());
            if let Some(rank) = begins.get(choice) {
                self.begin(*rank);
                continue;
            }
            let (from, to) = deliveries[choice - begins.len()];
            let packet = self.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("just seen");
            match packet {
                Some((number, label, payload)) => self.take(to, from, number, label, payload),
                None => {
                    let _ = self.members[to].links.return_credit(from, 1);
                }
            }
            self.go_on(to);
        }
    }
}

fn value(rank: usize, element: usize) -> f32 {
    ((rank * 31 + element * 7) % 97) as f32
}

/// No order of events makes members wait for ever, each round is the mean of its groups, and the total does not change.
#[test]
fn rounds_of_changing_groups_end_in_any_order_of_events() {
    for seed in 0..120 {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let count = generator.random_range(2..14);
        let topologies = [seed % 2, seed / 2 % 2].map(|bit| [Topology::Ring, Topology::Direct][bit as usize]);
        let groups = Groups { size: Some(generator.random_range(2..6)), seed, is_shuffled: seed % 5 > 0 };
        let member = |rank| Member {
            links: LinkCredits::new(count, WINDOW),
            values: (0..LEN).map(|element| value(rank, element)).collect(),
            live: VecDeque::new(),
            plan: None,
            early: Vec::new(),
            completed: 0,
        };
        let members = (0..count).map(member).collect();
        let mut swarm = Swarm { groups, topologies, members, queues: BTreeMap::new(), pool: Pool::new(100) };
        swarm.run(&mut generator);

        let start = |rank| (0..LEN).map(|element| f64::from(value(rank, element))).collect();
        let mut expected: Vec<Vec<f64>> = (0..count).map(start).collect();
        for round in 0..ROUNDS {
            for group in groups.partition(count, round) {
                let mean = |element| {
                    let sum: f64 = group.iter().map(|rank| expected[*rank][element]).sum();
                    sum / group.len() as f64
                };
                let means: Vec<f64> = (0..LEN).map(mean).collect();
                group.iter().for_each(|rank| expected[*rank].clone_from(&means));
            }
        }
        for (rank, member) in swarm.members.iter().enumerate() {
            assert_eq!(
                member.completed, ROUNDS,
                "member {rank} of {count} is stuck: {groups:?}, {topologies:?}"
            );
            for (found, expected) in member.values.iter().zip(&expected[rank]) {
                assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} {expected}");
            }
            for other in (0..count).filter(|other| *other != rank) {
                assert_eq!(member.links.credit(other), WINDOW, "credits are lost");
            }
        }
    }
}
