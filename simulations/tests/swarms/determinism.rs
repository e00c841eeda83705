//! Determinism: a scenario and a seed are one run, event for event, on any machine.
//!
//! # Committed hashes
//! Some scenarios compute with integers only, so that their results do not depend on a machine's rounding: their hashes are in `hashes.txt`
//! and must be equal everywhere. They change with every change of what is sent when. If such a change was intended, write them again, and
//! say why in the commit message:
//! ```text
//! UPDATE_HASHES=1 cargo test -p peergrad-simulations --test swarms determinism
//! ```

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::thread;

use peergrad_collectives::plan::Topology;
use peergrad_config::specification::RunFile;
use peergrad_simulations::host::Crash;
use peergrad_simulations::links::Links;
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::scenario::named::named;
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use crate::common::{squares, swarm};

/// Training with integers only: powers of two as rate and batch, and sums far below 2^24.
fn integers(topology: &str) -> Workload {
    let text = format!(
        "epochs = 2\nbatch = 64\n[optimizer]\nrule = \"sgd\"\nrate = 0.5\n\
         [sync]\ntopology = \"{topology}\"\nsegment_kib = 1"
    );
    let run = RunFile::parse(&text).expect("a run file");
    Workload::integers(&run, 3000, 640).expect("all of it is allowed")
}

fn ring_in_one_room() -> Scenario {
    Scenario::new("3 peers, ring, lan", 3, integers("ring"))
}

fn direct_between_homes() -> Scenario {
    Scenario::new("5 peers, direct, home", 5, integers("direct")).on(Links::home())
}

fn crash_between_continents() -> Scenario {
    Scenario::new("4 peers, ring, continents, crash", 4, integers("ring"))
        .on(Links::continents())
        .at(FaultTime::Step(5), Fault::Crash { targets: Targets::Any(1), crash: Crash::PowerLost })
}

fn trouble() -> Scenario {
    named("trouble", Size::Sweep).expect("it is one of them").expect("it can be read")
}

/// Scenarios and seeds whose hashes are committed.
fn committed_runs() -> Vec<(Scenario, u64)> {
    vec![
        (ring_in_one_room(), 1),
        (direct_between_homes(), 1),
        (crash_between_continents(), 1),
        // With these seeds there are several peers on distant links, machines that sleep, and links that are cut.
        (trouble(), 3),
        (trouble(), 7),
    ]
}

/// The hash of a run without violations.
fn trace_hash(scenario: &Scenario, seed: u64) -> String {
    let outcome = Simulation::new(scenario, seed).run();
    assert_eq!(outcome.violations, [], "{}, seed {seed}", scenario.name);
    assert!(outcome.peers > 1, "{}, seed {seed}: one peer alone says little", scenario.name);
    outcome.trace_hash
}

#[test]
fn a_seed_repeats_a_run_and_another_seed_changes_it() {
    let fixed = Arc::new(squares(Topology::Ring));
    let trace = |seed| swarm(4, &fixed, seed).0.trace().digest();
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

#[test]
fn a_seed_replays_event_for_event() {
    for scenario in [direct_between_homes(), crash_between_continents(), trouble()] {
        let mut runs = [(); 2].map(|()| Simulation::new(&scenario, 7));
        runs.iter_mut().for_each(|run| run.cluster.trace_mut().keep_lines(1));
        let mut is_going_on = true;
        while is_going_on {
            let [first, second] = runs.each_mut().map(|run| {
                let has_ticked = run.tick();
                let trace = run.cluster.trace();
                (has_ticked, trace.lines().last().cloned(), trace.digest(), run.cluster.next_at())
            });
            assert_eq!(first, second, "{}", scenario.name);
            is_going_on = first.0;
        }
        let [first, second] = runs.map(Simulation::finish);
        assert_eq!(first.violations, []);
        assert_eq!((first.trace_hash, first.digest), (second.trace_hash, second.digest));
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "whole simulations beside each other, as a sweep runs them")]
fn threads_do_not_matter() {
    let scenario = trouble();
    let here = [0, 7].map(|seed| trace_hash(&scenario, seed));
    let elsewhere = thread::scope(|scope| {
        let hash_of = |seed| trace_hash(&scenario, seed);
        let threads = [0, 7].map(|seed| scope.spawn(move || hash_of(seed)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(here, elsewhere);
    assert_ne!(here[0], here[1]);
}

#[test]
fn committed_hashes_are_the_same_on_any_machine() {
    let mut found = String::new();
    for (scenario, seed) in committed_runs() {
        let hash = trace_hash(&scenario, seed);
        writeln!(found, "{hash}  seed {seed}  {}", scenario.name).unwrap();
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/swarms/hashes.txt");
    if env::var_os("UPDATE_HASHES").is_some() {
        fs::write(file, &found).unwrap();
    }
    let committed = fs::read_to_string(file).unwrap();
    assert_eq!(
        committed.lines().collect::<Vec<_>>(),
        found.lines().collect::<Vec<_>>(),
        "not the committed hashes; if a change was meant to do that: UPDATE_HASHES=1"
    );
}
