//! Tables: what programs that keep their state in tables compute; and sums are exact while peers join, leave, crash and are cut off.

use peergrad_config::specification::RunFile;
use peergrad_core::io::Event;
use peergrad_simulations::cluster::UserCommand;
use peergrad_simulations::host::HostId;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use crate::common::{assert_nobody_is_blamed, ended, run_until, run_until_training};

mod atomic;
mod austen;
mod counting;
mod keys;
mod lda;
mod lost;
mod registers;
mod sweeps;
mod throughput;
mod vectors;
mod ways;

/// The final parameters, which are equal at all peers, for integers as gradients, which do not depend on the parameters.
fn integers(peers: usize, epochs: u64, batch: usize, rate: f64, sync: &str) -> Vec<f32> {
    let text = format!(
        "epochs = {epochs}\nbatch = {batch}\n[optimizer]\nrule = \"sgd\"\nrate = {rate}\n[sync]\nsegment_kib = 1\n{sync}"
    );
    let run = RunFile::parse(&text).expect("it is a run file");
    let workload = Workload::integers(&run, 3000, 960).expect("all of it is allowed");
    let mut simulation = Simulation::new(&Scenario::new("tables", peers, workload), 5);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    let cluster = &simulation.cluster;
    let state = |host| ended(cluster, host).state.as_ref().expect("it has trained");
    let states: Vec<_> = cluster.hosts().ids().map(state).collect();
    assert!(states.windows(2).all(|pair| pair[0].digest == pair[1].digest), "one model in the end");
    states[0].parameters.to_vec()
}

/// A worker that leaves in good order finishes its samples first: they count, and no other worker computes them again.
#[test]
fn no_other_worker_repeats_the_samples_of_a_leaver() {
    let run = |sync: &str| {
        let text = format!(
            "epochs = 8\nbatch = 32\n[optimizer]\nrule = \"sgd\"\nrate = 0.25\n[sync]\nsegment_kib = 1\n{sync}"
        );
        Workload::integers(&RunFile::parse(&text).expect("it is a run file"), 3000, 960).expect("allowed")
    };
    let parameters = |workload: Workload, seed, leavers: &[u32]| {
        let scenario = Scenario::new("tables", 6, workload);
        let mut simulation = Simulation::new(&scenario, seed);
        run_until_training(&mut simulation.cluster);
        for (index, leaver) in leavers.iter().enumerate() {
            let clocks = 30 * (index + 1);
            run_until(&mut simulation.cluster, "more clocks", |cluster| {
                cluster.history().commits.len() > clocks
            });
            simulation.cluster.command(HostId(*leaver), UserCommand::Leave);
        }
        while simulation.tick() {}
        let states = simulation.cluster.events().iter().filter_map(|(_, _, event)| match event {
            Event::Ended(ended) if ended.outcome.is_ok() => ended.state.as_ref(),
            _ => None,
        });
        let states: Vec<Vec<f32>> = states.map(|state| state.parameters.to_vec()).collect();
        assert!(states.len() == 6 - leavers.len() && states.windows(2).all(|pair| pair[0] == pair[1]));
        states[0].clone()
    };
    let reference = parameters(run(""), 1, &[]);
    // Whichever worker leaves: one of them owns the lease table, whose replicas may not have its latest state yet.
    for leaver in 0..6 {
        for sync in ["", "\napply = \"by-step\""] {
            let sync = format!("kind = \"ssp\"\nstaleness = 0{sync}");
            assert!(parameters(run(&sync), 1, &[leaver]) == reference, "{leaver}, {sync}");
        }
    }
    for seed in 0..10 {
        for sync in [
            "kind = \"ssp\"\nstaleness = 0",
            "kind = \"ssp\"",
            "kind = \"downpour\"\nn_push = 5\nn_fetch = 2",
        ] {
            assert!(parameters(run(sync), seed, &[4, 0, 2]) == reference, "{seed}, {sync}");
        }
    }
}

/// However old the parameters are that they read, workers add the same: every sample of every epoch, once.
#[test]
fn every_sample_is_in_the_parameters_once() {
    for peers in [1, 2, 5, 8] {
        let reference = integers(peers, 3, 64, 0.25, "");
        for sync in ["staleness = 0", "staleness = 3", "staleness = 0\napply = \"by-step\""] {
            assert!(
                integers(peers, 3, 64, 0.25, &format!("kind = \"ssp\"\n{sync}")) == reference,
                "{peers}, {sync}"
            );
        }
        // Each worker has a batch of its own, so the rate of a sample has the same size.
        for sync in
            ["kind = \"async\"", "kind = \"downpour\"\nn_push = 4\nn_fetch = 3\nwarm_up = 200\nwave = 64"]
        {
            assert!(integers(peers, 3, 32, 0.125, sync) == reference, "{peers}, {sync}");
        }
    }
}
