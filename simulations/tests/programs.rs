//! Programs other than the ring: what they compute, what they send, and that members end with one model.

use peergrad::specification::RunFile;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

mod common;
use common::{assert_nobody_is_blamed, committed, ended};

/// Integers as gradients, which depend on no parameter; `peers` get equal parts of every batch.
fn integers(peers: usize, sync: &str) -> Simulation {
    let batch = 16 * peers;
    let text = format!(
        "passes = 3\nbatch = {batch}\n[optimizer]\nrule = \"sgd\"\nrate = 0.125\n[sync]\nsegment_kib = 1\n{sync}"
    );
    let run = RunFile::parse(&text).expect("it is a run file");
    let workload = Workload::integers(&run, 3000, 12 * batch as u32).expect("all of it is allowed");
    simulated(peers, workload)
}

/// The digits, with Adam.
fn digits(peers: usize, passes: u64, sync: &str) -> Simulation {
    let text = format!("passes = {passes}\nbatch = 64\n[sync]\n{sync}");
    let run = RunFile::parse(&text).expect("it is a run file");
    simulated(peers, Workload::digits(&run).expect("all of it is allowed"))
}

fn simulated(peers: usize, workload: Workload) -> Simulation {
    let scenario = Scenario::new("programs", peers, workload);
    let mut simulation = Simulation::new(&scenario, 5);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    simulation
}

/// What all peers end with, which is the same.
fn parameters(simulation: &Simulation) -> Vec<f32> {
    let cluster = &simulation.cluster;
    let state = |host| ended(cluster, host).state.as_ref().expect("it has trained");
    let states: Vec<_> = cluster.hosts().map(state).collect();
    assert!(states.windows(2).all(|pair| pair[0].digest == pair[1].digest), "one model in the end");
    states[0].parameters.to_vec()
}

fn sent(simulation: &Simulation) -> u64 {
    simulation.cluster.history().traffic.total
}

/// Where gradients do not depend on the parameters, the mean over all members is what the ring computes, whoever averages
/// with whom on the way: a mean within a group changes no total.
#[test]
fn averaging_in_groups_preserves_the_total() {
    for peers in [2, 7, 13, 16] {
        let ring = parameters(&integers(peers, ""));
        for groups in ["", "group = 3", "group = 4\ntopology = \"direct\"", "shuffle = false\ngroup = 4"] {
            let found = parameters(&integers(peers, &format!("kind = \"ds-sync\"\n{groups}")));
            for (found, ring) in found.iter().zip(&ring) {
                assert!((found - ring).abs() < 1e-5, "{peers} peers, {groups}: {found} and {ring}");
            }
        }
    }
}

#[test]
fn a_round_of_local_steps_costs_what_one_step_does() {
    for kind in ["local", "diloco"] {
        let run = |local_steps| {
            let simulation = digits(4, 32, &format!("kind = \"{kind}\"\nlocal_steps = {local_steps}"));
            let host = simulation.cluster.hosts().next().expect("there are peers");
            let rounds = committed(&simulation.cluster, host).len();
            parameters(&simulation);
            (rounds as f64, sent(&simulation) as f64)
        };
        let (every_step, every_step_bytes) = run(1);
        for local_steps in [8, 23] {
            let (rounds, bytes) = run(local_steps);
            let (fewer, less) = (every_step / rounds, every_step_bytes / bytes);
            // What is sent besides tensors does not fall.
            assert!((fewer / less - 1.0).abs() < 0.2, "{kind} {local_steps}: {fewer} and {less}");
        }
    }
}

/// One member, alone, does by itself what it would under the ring: local steps are steps.
#[test]
fn one_member_alone_takes_the_same_steps_under_every_program() {
    let ring = parameters(&digits(1, 3, ""));
    for sync in ["kind = \"ds-sync\"", "kind = \"local\"\nlocal_steps = 1"] {
        let found = parameters(&digits(1, 3, sync));
        let apart = found.iter().zip(&ring).map(|(found, ring)| (found - ring).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-5, "{sync}: {apart}");
    }
}

#[test]
fn all_programs_learn_the_digits() {
    for sync in
        ["kind = \"ds-sync\"", "kind = \"local\"\nlocal_steps = 4", "kind = \"diloco\"\nlocal_steps = 4"]
    {
        let simulation = digits(9, 20, sync);
        let host = simulation.cluster.hosts().next().expect("there are peers");
        let state = ended(&simulation.cluster, host).state.as_ref().expect("it has trained");
        let accuracy =
            state.evaluation.and_then(|evaluation| evaluation.accuracy).expect("digits have classes");
        assert!(accuracy > 0.93, "{sync}: {accuracy}");
        assert_eq!(state.left_out, 0);
        assert_eq!(state.samples, 20 * 1438);
    }
}
