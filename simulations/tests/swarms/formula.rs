//! The time of an all-reduce in virtual time agrees with the textbook formula, with equal lines, with one slow line and with losses; and
//! links without credit do not stop a ring.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_core::node::NodeState;
use peergrad_protocol::Instant;
use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{Message, TrainingMessage};
use peergrad_simulations::filters::{Envelope, FrameAction, FrameFilter};
use peergrad_simulations::host::HostId;
use peergrad_simulations::links::Links;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

const LATENCY: f64 = 0.010;
/// Longer than it takes to open the links; it varies by a tenth.
const JOB_TIME: Duration = Duration::from_millis(30);
/// The member that proposed the first view is in it earlier than the others, by a latency and a disk write; and job times differ a little.
const HEAD_START: f64 = LATENCY + 0.004;
/// In bytes a second.
const RATE: f64 = 12_500_000.0;
/// Number of elements: 1.5 MiB, so that half of it is one segment.
const PARAMETERS: usize = 393_216;

fn lines() -> Links {
    Links {
        latency: Duration::from_secs_f64(LATENCY),
        jitter: Duration::ZERO,
        up: Some(8 * RATE as u64),
        down: Some(8 * RATE as u64),
        ..Links::lan()
    }
}

fn one_step(peers: usize, topology: &str) -> Scenario {
    let text = format!(
        "epochs = 1\nbatch = 64\n[optimizer]\nrule = \"sgd\"\nrate = 1.0\n[sync]\ntopology = \"{topology}\"\nsegment_kib = 1024"
    );
    let workload = Workload::integers(&RunFile::parse(&text).unwrap(), PARAMETERS, 64).unwrap();
    let mut scenario = Scenario::new("all-reduce", peers, workload).on(lines());
    // All members compute until all links are open.
    scenario.sample_time = JOB_TIME * peers as u32 / 64;
    scenario
}

/// Notes when each peer sends its first segment.
fn first_segments(simulation: &mut Simulation) -> Arc<Mutex<BTreeMap<HostId, Instant>>> {
    let first = Arc::<Mutex<BTreeMap<HostId, Instant>>>::default();
    let noted = Arc::clone(&first);
    simulation.cluster.add_filter(Box::new(move |envelope: &Envelope<'_>| {
        if let Some(Message::InView { message: TrainingMessage::Segment(_), .. }) = envelope.message() {
            noted.lock().unwrap().entry(envelope.from).or_insert(envelope.at);
        }
        FrameAction::Pass
    }));
    first
}

/// Seconds from the last peer's first segment until all members have all parameters; and by rank the host and the bytes of its shard.
fn all_reduce(mut simulation: Simulation) -> (f64, Vec<(HostId, f64)>) {
    let first = first_segments(&mut simulation);
    let mut shards = Vec::new();
    while simulation.tick() {
        let cluster = &simulation.cluster;
        let standings = || cluster.hosts().ids().filter_map(|host| cluster.hosts().node_state(host));
        let is_complete = |standing| matches!(standing, NodeState::Member(member) if member.complete == 1);
        if let Some(note) = cluster.history().views.first().filter(|_| shards.is_empty()) {
            let members = note.view.members.iter().map(|member| cluster.hosts().of(member.peer)[0]);
            if note.shards.len() == note.view.members.len() {
                shards = members.map(|host| (host, note.shards[&host] as f64 * 4.0)).collect();
            }
        }
        if !shards.is_empty() && standings().count() > 0 && standings().all(is_complete) {
            let first = *first.lock().unwrap().values().max().expect("segments were sent");
            return (cluster.now().since(first).as_secs_f64(), shards);
        }
    }
    panic!("{:?}", simulation.cluster.invariants().violations());
}

#[test]
fn equal_lines_take_the_time_of_the_formula() {
    for topology in ["ring", "direct"] {
        for peers in [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64] {
            let (found, shards) = all_reduce(Simulation::new(&one_step(peers, topology), 3));
            let largest = shards.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
            let others = (peers - 1) as f64;
            let formula = match topology {
                "ring" => 2.0 * others * (LATENCY + largest / RATE),
                _ => 2.0 * (LATENCY + others * largest / RATE),
            };
            // The first segment of a member that begins earlier arrives before those of the others.
            assert!(
                found > 0.95 * (formula - HEAD_START) && found < 1.05 * formula,
                "{topology}, {peers} peers: {found:.4} s, by the formula {formula:.4} s"
            );
        }
    }
}

/// With a loss of 0.1 % and a round trip of 20 ms, TCP has 38.73 packets of 1448 bytes in flight by the formula of Mathis et al. A lost
/// packet may delay each of the two halves by another round trip, and the time until it is noticed.
#[test]
fn lines_with_losses_take_the_time_of_tcp() {
    for connections in [1, 2, 4] {
        for topology in ["ring", "direct"] {
            let lossy = Links { loss_per_million: 1000, connections, ..lines() };
            let (found, shards) = all_reduce(Simulation::new(&one_step(2, topology).on(lossy), 3));
            let largest = shards.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
            let rate = f64::from(connections) * 38.73 * 1448.0 / (2.0 * LATENCY);
            assert!(rate < RATE, "the line is not what limits it");
            let formula = 2.0 * (LATENCY + largest / rate);
            let delays = 2.0 * (2.0 * LATENCY + 0.010);
            assert!(
                found > 0.95 * (formula - HEAD_START) && found < 1.05 * formula + delays,
                "{topology}, {connections} connections: {found:.4} s, by the formula {formula:.4} s and up to {delays:.4} s more"
            );
        }
    }
}

#[test]
fn one_slow_line_takes_the_time_of_its_recurrence() {
    for peers in [3, 5, 8] {
        let mut simulation = Simulation::new(&one_step(peers, "ring"), 3);
        let slow = HostId(1);
        simulation.cluster.throttle(slow, Some((8.0 * RATE / 10.0) as u64), Some(8 * RATE as u64));
        let (found, shards) = all_reduce(simulation);
        let rates: Vec<f64> =
            shards.iter().map(|(host, _)| if *host == slow { RATE / 10.0 } else { RATE }).collect();
        let sizes: Vec<f64> = shards.iter().map(|(_, bytes)| *bytes).collect();
        let expected = ring_by_hand(&rates, &sizes);
        let apart = (found / expected - 1.0).abs();
        assert!(apart < 0.05, "{peers} peers: {found:.4} s, by hand {expected:.4} s");
    }
}

/// The time of a ring whose rank `r` sends at `rates[r]` and owns `sizes[r]` bytes: shard by shard, hop by hop, each line one transfer at a
/// time; forwarded shards go before new ones.
fn ring_by_hand(rates: &[f64], sizes: &[f64]) -> f64 {
    let count = rates.len();
    let mut free = vec![0.0; count];
    // The reduce-scatter of a shard begins at the member after its owner and makes count - 1 hops, the all-gather count - 1 more.
    let start = |rank| Token { ready: 0.0, rank, shard: (rank + count - 1) % count, hops: 0 };
    let mut tokens: Vec<Token> = (0..count).map(start).collect();
    let mut end = 0.0;
    while !tokens.is_empty() {
        let departure = |token: &Token| f64::max(free[token.rank], token.ready);
        let (at, rank) = tokens
            .iter()
            .map(|token| (departure(token), token.rank))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .expect("there are tokens");
        let is_start = |token: &Token| token.hops.is_multiple_of(count - 1);
        let next = (0..tokens.len())
            .filter(|&index| tokens[index].rank == rank && tokens[index].ready <= at)
            .min_by(|&a, &b| {
                let key = |index: usize| (is_start(&tokens[index]), tokens[index].ready);
                key(a).0.cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1))
            });
        let token = tokens.swap_remove(next.expect("one is ready"));
        free[rank] = at + sizes[token.shard] / rates[rank];
        let ready = free[rank] + LATENCY;
        if token.hops + 1 == 2 * (count - 1) {
            end = f64::max(end, ready);
        } else {
            tokens.push(Token { ready, rank: (rank + 1) % count, hops: token.hops + 1, ..token });
        }
    }
    end
}

/// A shard on its way through the ring.
struct Token {
    ready: f64,
    rank: usize,
    shard: usize,
    hops: usize,
}

/// Counts the credit that is left on each link, and stores the minimum.
#[derive(Default)]
struct Count {
    left: BTreeMap<(HostId, HostId), u32>,
    least: Arc<Mutex<BTreeMap<(HostId, HostId), u32>>>,
}

impl FrameFilter for Count {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        if let Some(Message::InView { message: TrainingMessage::Segment(_), .. }) = envelope.message() {
            let link = (envelope.from, envelope.to);
            let left = self.left.entry(link).or_insert(LINK_SEGMENTS);
            *left -= 1;
            let mut least = self.least.lock().unwrap();
            let least = least.entry(link).or_insert(*left);
            *least = (*least).min(*left);
        }
        FrameAction::Pass
    }

    fn on_credit(&mut self, from: HostId, to: HostId, segments: u32) -> u32 {
        *self.left.entry((to, from)).or_insert(LINK_SEGMENTS) += segments;
        segments
    }
}

#[test]
fn a_ring_whose_credit_is_used_up_on_all_links_still_progresses() {
    // Hundreds of small segments for each shard, on lines with a long latency.
    let text = "epochs = 3\nbatch = 64\n[optimizer]\nrule = \"sgd\"\nrate = 1.0\n[sync]\ntopology = \"ring\"\n\
                segment_kib = 1";
    let workload = Workload::integers(&RunFile::parse(text).unwrap(), 300_000, 64).unwrap();
    let mut scenario = Scenario::new("credit", 4, workload).on(Links::home());
    scenario.expect.patience = Duration::from_secs(120);
    let mut simulation = Simulation::new(&scenario, 1);
    let count = Count::default();
    let least = Arc::clone(&count.least);
    simulation.cluster.add_filter(Box::new(count));
    let outcome = simulation.run();
    assert_eq!((outcome.violations, outcome.steps), (vec![], 3));
    let least = least.lock().unwrap();
    assert_eq!(least.len(), 4, "each peer sends to its neighbour only");
    assert!(least.values().all(|&least| least == 0), "{least:?}");
}
