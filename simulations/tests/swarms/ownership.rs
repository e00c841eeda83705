//! Ownership follows the lines: a member with a slow uplink owns little, so that steps take less time, and views change rarely for it.

use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_core::io::Event;
use peergrad_protocol::Instant;
use peergrad_protocol::limits::CAPACITY_DEFAULT;
use peergrad_protocol::view::View;
use peergrad_simulations::history::PeerHistory;
use peergrad_simulations::host::{Crash, HostId};
use peergrad_simulations::links::Links;
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

/// Bits a second.
const FAST: u64 = 100_000_000;
const SLOW: u64 = FAST / 10;
/// The peer with the slow uplink.
const SLOW_PEER: usize = 3;

/// What happened in a run.
struct Run {
    /// When each step was committed at peer 0, which no fault ends.
    commits: Vec<Instant>,
    /// By view, the capacities of its members, by peer.
    capacities: Vec<Vec<u8>>,
    /// By view, how many parameters the peer with the slow uplink owned after all moves.
    owned: Vec<usize>,
}

/// So many peers far from each other, one of them with a slow uplink, that train for so many epochs of ten steps.
fn scenario(peers: usize, epochs: u32, capacity: Option<u8>) -> Scenario {
    let text = format!("epochs = {epochs}\nbatch = 64\n[optimizer]\nrule = \"sgd\"\nrate = 0.01\n");
    let workload = Workload::integers(&RunFile::parse(&text).unwrap(), 200_000, 640).unwrap();
    let mut scenario = Scenario::new("ownership", peers, workload);
    scenario.links =
        Links { latency: Duration::from_millis(25), up: Some(FAST), down: Some(FAST), ..Links::lan() };
    scenario.capacity = capacity;
    scenario.sample_time = Duration::from_micros(100);
    scenario.at(FaultTime::Start(Duration::ZERO), throttle(SLOW_PEER, SLOW))
}

fn throttle(peer: usize, up: u64) -> Fault {
    Fault::Throttle { targets: Targets::Peers(vec![peer]), up, down: FAST, duration: None }
}

fn run(scenario: &Scenario) -> Run {
    let mut simulation = Simulation::new(scenario, 7);
    while simulation.tick() {}
    let events = simulation.cluster.events();
    let commits = events
        .iter()
        .filter(|(_, host, event)| *host == HostId(0) && matches!(event, Event::Committed(_)))
        .map(|(at, _, _)| *at)
        .collect();
    let outcome = simulation.finish();
    assert_eq!(outcome.violations, []);
    let peers = &outcome.history.peers;
    let of_view = |view: &View| {
        let rank = |peer: &PeerHistory| view.rank(&peer.peer);
        peers.iter().filter_map(rank).map(|rank| view.member(rank).capacity).collect()
    };
    let capacities = outcome.history.views.iter().map(|note| of_view(&note.view)).collect();
    let slow = HostId(SLOW_PEER as u32);
    let owned = outcome.history.views.iter().filter_map(|note| note.shards.get(&slow).copied()).collect();
    Run { commits, capacities, owned }
}

impl Run {
    /// The mean time of the steps that were committed from one time to another, in seconds of training.
    fn step_time(&self, from: u64, until: u64) -> f64 {
        let at = |second: u64| Instant(0).after(Duration::from_secs(second));
        let within: Vec<Instant> =
            self.commits.iter().copied().filter(|commit| (at(from)..at(until)).contains(commit)).collect();
        let [first, .., last] = within[..] else { panic!("steps were committed") };
        last.since(first).as_secs_f64() / (within.len() - 1) as f64
    }
}

#[test]
fn a_member_with_a_slow_uplink_owns_little_and_steps_take_less_time() {
    for (peers, gain) in [(4, 1.2), (8, 1.5)] {
        let equal = run(&scenario(peers, 30, Some(4)));
        let by_line = run(&scenario(peers, 30, None));
        let [before, after] = [&equal, &by_line].map(|run| run.step_time(60, 180));
        println!("{peers} peers: a step takes {before:.3} s with equal capacities, {after:.3} s by lines");
        assert!(before > gain * after, "{peers} peers: {before} s, {after} s");
        // The first view, the lines, and the capacities that follow from them.
        let mut last = vec![CAPACITY_DEFAULT; peers];
        assert_eq!(by_line.capacities[..2], [last.clone(), last.clone()]);
        last[SLOW_PEER] = 1;
        assert_eq!(by_line.capacities[2..], [last]);
        let (first, last) = (by_line.owned[0], by_line.owned[2]);
        assert!(2 * last < first, "{first} parameters, and then {last}");
    }
}

#[test]
fn members_with_many_rates_change_their_capacities_together_and_once() {
    let mut scenario = scenario(8, 20, None);
    for (peer, mbit) in [100, 60, 50, 35, 30, 20, 15, 10].into_iter().enumerate() {
        scenario = scenario.at(FaultTime::Start(Duration::ZERO), throttle(peer, mbit * 1_000_000));
    }
    let run = run(&scenario);
    assert_eq!(run.capacities[2..], [[13, 8, 7, 4, 4, 4, 2, 1]]);
}

#[test]
fn capacities_follow_lines_that_change_while_peers_join_and_crash() {
    let at = |second| FaultTime::Training(Duration::from_secs(second));
    let crash = Fault::Crash { targets: Targets::Peers(vec![2]), crash: Crash::PowerLost };
    let changing = scenario(5, 40, None)
        .at(at(60), Fault::Join { count: 2 })
        .at(at(120), crash)
        .at(at(180), throttle(SLOW_PEER, FAST))
        .at(at(180), throttle(1, SLOW));
    let by_line = run(&changing);
    // Peer 3 stays slow when others join and leave, and in the end peer 1 is.
    assert_eq!(by_line.capacities[2], [4, 4, 4, 1, 4]);
    let last_of = |members: usize| by_line.capacities.iter().rfind(|all| all.len() == members).unwrap();
    assert_eq!(*last_of(7), [4, 4, 4, 1, 4, 4, 4]);
    assert_eq!(*last_of(6), [4, 1, 4, 4, 4, 4]);
    let changed = by_line.capacities.windows(2).filter(|pair| pair[0].len() == pair[1].len());
    let changes = changed.filter(|pair| pair[0] != pair[1]).count();
    assert!(changes <= 3 && by_line.capacities.len() <= 12, "{:?}", by_line.capacities);
    let equal = run(&Scenario { capacity: Some(4), ..changing });
    for (from, until) in [(30, 60), (150, 180), (250, 300)] {
        let [before, after] = [&equal, &by_line].map(|run| run.step_time(from, until));
        println!("from {from} s on: a step takes {before:.3} s with equal capacities, {after:.3} s by lines");
        assert!(before > 1.2 * after, "from {from} s on: {before} s, {after} s");
    }
}
