//! Members join and depart, and what they train is counted in three ways: by sums of integers, by positions of the epochs, and by a replay
//! of everything; each works by itself.

use std::path::Path;

use peergrad_simulations::invariants::{InvariantSetup, Invariants};
use peergrad_simulations::liveness::LIVENESS;
use peergrad_simulations::oracles::plain::PLAIN;
use peergrad_simulations::oracles::replay::{REPLAY, Replay};
use peergrad_simulations::scenario::EXPECTATION;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::{Outcome, Scenario, Simulation};

const COUNTING: [&str; 3] = ["exactly once (invariant 3)", "every sample once (invariant 6)", REPLAY];

/// A small swarm that moves integers, with a batch size that neither the number of members nor a power of two divides.
fn scenario(faults: &str) -> Scenario {
    let text = format!(
        "about = \"counted out\"\npeers = 5\n\
         [task]\nkind = \"integers\"\nparameters = 900\nsamples = 500\nsample_time = \"2ms\"\n\
         [run]\nepochs = 4\nbatch = 48\n[run.optimizer]\nrule = \"sgd\"\nrate = 0.3\n\
         [run.sync]\nsegment_kib = 1\n{faults}\n[expect]\nloss_tolerance =1e-6\n"
    );
    parse("counting", &text, Path::new("."), Size::Full).expect("a scenario file")
}

/// One run with the counting invariants only.
fn counted(scenario: &Scenario, seed: u64) -> Outcome {
    let mut simulation = Simulation::new(scenario, seed);
    let known = InvariantSetup {
        loaded: scenario.workload.loaded.clone(),
        integers: scenario.workload.integers.clone(),
        patience: std::time::Duration::MAX,
    };
    let mut invariants = Invariants::all(&known);
    invariants.add(Replay::new(&known.loaded));
    simulation.cluster.set_invariants(invariants.subset(&COUNTING));
    simulation.run()
}

#[track_caller]
fn assert_counted(outcome: &Outcome, seed: u64) {
    // Other tests check how the run ends for each peer.
    let broken: Vec<_> =
        outcome.violations.iter().filter(|violation| violation.invariant != EXPECTATION).collect();
    assert!(broken.is_empty(), "seed {seed}: {broken:?}");
    for name in COUNTING.into_iter().chain([PLAIN, LIVENESS]) {
        assert!(outcome.checked.contains(&name), "{name} was not asked");
    }
    assert_eq!((outcome.samples_trained, outcome.samples_left_out), (2000, 0), "seed {seed}");
    assert_eq!((outcome.samples_lost, outcome.samples_repeated()), (0, 0), "seed {seed}");
}

#[test]
fn a_crash_during_a_step_loses_and_repeats_no_samples() {
    let crash = "[[faults]]\nat_step = 9\nwithin = \"25ms\"\nkind = \"crash\"\nany = 1";
    let mut redone = 0;
    for seed in 0..10 {
        let outcome = counted(&scenario(crash), seed);
        assert_counted(&outcome, seed);
        assert_eq!(outcome.history.views.len(), 2, "seed {seed}");
        redone += outcome.history.redone.len();
    }
    assert!(redone > 0, "a batch was restarted");
}

#[test]
fn joiners_and_leavers_lose_and_repeat_no_samples() {
    let faults = "[[faults]]\nat = \"100ms\"\nwithin = \"100ms\"\nkind = \"join\"\ncount = 2\n\
                  [[faults]]\nat = \"400ms\"\nwithin = \"100ms\"\nkind = \"leave\"\nany = 1";
    for seed in 0..10 {
        let outcome = counted(&scenario(faults), seed);
        assert_counted(&outcome, seed);
        assert!(outcome.history.views.len() > 1, "seed {seed}");
    }
}
