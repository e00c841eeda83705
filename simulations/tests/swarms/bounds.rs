//! Bounds in whole swarms: every mode keeps the parameters inside, and synchronous swarms follow the plain loop.

use peergrad_config::single_process::train_single_process;
use peergrad_config::specification::RunFile;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use crate::common::{assert_nobody_is_blamed, parameters};

/// Least squares whose best parameters are partly outside the bounds.
fn workload(optimizer: &str, sync: &str) -> Workload {
    let text = format!(
        "epochs = 10\nbatch = 32\n[optimizer]\n{optimizer}\nbounds = [-0.25, 0.5]\n[sync]\n{sync}\nsegment_kib = 1\n"
    );
    Workload::squares(&RunFile::parse(&text).unwrap(), 500, 640)
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn trained(workload: &Workload, peers: usize) -> Vec<f32> {
    let mut simulation = Simulation::new(&Scenario::new("bounds", peers, workload.clone()), 5);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    let found = parameters(&simulation);
    assert_eq!(simulation.finish().violations, []);
    found
}

#[test]
fn every_mode_keeps_the_parameters_inside() {
    for sync in [
        "kind = \"sync\"",
        "kind = \"sync\"\nparameters = \"bf16\"",
        "kind = \"backup-workers\"\nbackups = 1",
        "kind = \"local\"\nlocal_steps = 3",
        "kind = \"diloco\"\nlocal_steps = 3\nouter_rate = 1.0\nouter_momentum = 0.9",
        "kind = \"ds-sync\"",
        "kind = \"ssp\"\nstaleness = 3",
        "kind = \"ssp\"\nstaleness = 3\napply = \"at-once\"",
        "kind = \"async\"",
        "kind = \"downpour\"\nn_push = 2\nn_fetch = 2",
    ] {
        for optimizer in ["rule = \"sgd\"\nrate = 2.0", "rule = \"adam\"\nrate = 0.05"] {
            let found = trained(&workload(optimizer, sync), 3);
            assert!(found.iter().all(|value| (-0.25..=0.5).contains(value)), "{optimizer} {sync}");
            let at_ends = found.iter().filter(|&&value| value == -0.25 || value == 0.5).count();
            // The mean of several members' values is at an end only if all of them are.
            let is_averaged = ["local", "diloco", "ds-sync"].iter().any(|kind| sync.contains(kind));
            assert!(
                (is_averaged || at_ends > 20) && at_ends < 480,
                "{optimizer} {sync}: {at_ends} at the ends"
            );
        }
    }
}

#[test]
fn a_synchronous_swarm_follows_the_plain_loop() {
    for topology in ["ring", "direct"] {
        let workload = workload("rule = \"adam\"\nrate = 0.02", &format!("topology = \"{topology}\""));
        let plain = train_single_process(&workload.loaded, |_| ());
        for peers in [1, 2, 4] {
            let found = trained(&workload, peers);
            let largest =
                found.iter().zip(&plain).map(|(found, plain)| (found - plain).abs()).fold(0.0, f32::max);
            assert!(largest < 1e-3, "{peers} peers, {topology}: {largest}");
        }
    }
}
