//! What training costs while owners change: a peer joins, a peer leaves, and chunks move from step to step meanwhile.

use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_protocol::Instant;
use peergrad_protocol::view::Recovery;
use peergrad_simulations::history::History;
use peergrad_simulations::links::Links;
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

/// Four peers with Adam on lines of 15 Mbit/s: the two vectors that a member sends in a step take as long as its gradient.
fn training() -> Scenario {
    let text =
        "epochs = 60\nbatch = 64\n[optimizer]\nrule = \"adam\"\nrate = 0.001\n[sync]\nsegment_kib = 16";
    let workload = Workload::squares(&RunFile::parse(text).unwrap(), PARAMETERS, 640).unwrap();
    let lines = Links { up: Some(15_000_000), down: Some(15_000_000), ..Links::lan() };
    let mut scenario = Scenario::new("moving", 4, workload).on(lines);
    scenario.sample_time = Duration::from_millis(10);
    scenario
}

const PARAMETERS: usize = 30_000;

/// When a step was known to be committed.
fn at(history: &History, step: u64) -> Instant {
    history.commits.iter().find(|commit| commit.committed.step.0 == step).unwrap().at
}

/// The time of a step while the chunks of the last view with moves are moving, divided by that of a later step with the same members; and
/// the number of steps that the moves take.
fn slowdown(scenario: &Scenario, seed: u64) -> (f64, u64) {
    let outcome = Simulation::new(scenario, seed).run();
    assert_eq!(outcome.violations, [], "seed {seed}");
    let history = &outcome.history;
    let moving = history.views.iter().rev().find(|note| !note.view.moves.list.is_empty()).unwrap();
    let Recovery::Resume(resume) = &moving.view.recovery else { panic!("the first view moves nothing") };
    assert!(!resume.is_interruption(), "nobody is interrupted");
    let moves = &moving.view.moves;
    let steps = (moves.list.len() as u64).div_ceil(u64::from(moves.rate));
    // In the first step of the view, the joiner computes no gradient.
    let (first, last) = (resume.step.0 + 1, resume.step.0 + steps);
    let time =
        |from: u64, to: u64| at(history, to).since(at(history, from)).as_secs_f64() / (to - from) as f64;
    (time(first, last) / time(last + 1, last + steps), steps)
}

fn check_rate(scenario: &Scenario) {
    for seed in 0..3 {
        let (slowdown, steps) = slowdown(scenario, seed);
        assert!(steps >= 8, "it takes {steps} steps, too few to measure");
        assert!(slowdown < 1.0 / RATE_MIN, "seed {seed}: a step takes {slowdown:.3} of its time");
    }
}

#[test]
fn the_share_of_a_joiner_moves_during_training() {
    let scenario = training().at(FaultTime::Training(Duration::from_secs(2)), Fault::Join { count: 1 });
    check_rate(&scenario);
}

#[test]
fn the_share_of_a_leaver_moves_during_training() {
    let targets = Targets::Peers(vec![2]);
    let scenario = training().at(FaultTime::Training(Duration::from_secs(2)), Fault::Leave { targets });
    check_rate(&scenario);
}

/// Training must keep this share of its step rate.
const RATE_MIN: f64 = 0.9;
