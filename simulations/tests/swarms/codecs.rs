//! Codecs in a swarm: every step is replayed bit for bit, whatever happens to the members; also bytes saved, and the loss of accuracy.

use std::path::Path;

use peergrad_config::specification::RunFile;
use peergrad_simulations::oracles::replay::REPLAY;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use crate::common::ended;

const CODECS: [&str; 5] = ["f32", "bf16", "f16", "int8", "top-k"];

fn lossy(gradients: &str, parameters: &str) -> String {
    format!("gradients = \"{gradients}\"\nparameters = \"{parameters}\"")
}

/// Runs a swarm in which members crash and join. All invariants hold, and members have what the replay of the commit log computes: encoded
/// contributions, residuals, sums, and parameters.
fn survive(peers: usize, run: &str, seed: u64) {
    let text = format!(
        "about = \"codecs\"\npeers = {peers}\n[task]\nkind = \"squares\"\nsample_time = \"20ms\"\n\
         [run]\nepochs = 8\nbatch = 64\n{run}\n\
         [[faults]]\nat = \"500ms\"\nwithin = \"100ms\"\nkind = \"join\"\ncount = 1\n\
         [[faults]]\nat = \"700ms\"\nkind = \"churn\"\ntimes = 6\nevery = \"2s\"\n\
         [expect]\njoiners = \"join\"\n"
    );
    let scenario = parse("codecs", &text, Path::new("."), Size::Full).expect("it is a scenario");
    let mut simulation = Simulation::new(&scenario, seed);
    while simulation.tick() {}
    let outcome = simulation.finish();
    assert_eq!(outcome.violations, [], "{run}, seed {seed}");
    assert!(outcome.checked.contains(&REPLAY), "{run}");
}

#[test]
fn every_step_matches_the_replay_of_its_commit_log() {
    for (seed, gradients) in (0..).zip(CODECS) {
        for parameters in ["f32", "bf16", "f16", "int8"] {
            survive(5, &format!("[run.sync]\n{}", lossy(gradients, parameters)), seed);
        }
    }
}

/// If all members store all replicas, sums are gathered; if there is one copy, or the rule has no state, sums are not sent.
#[test]
fn every_step_matches_the_replay_of_its_log_with_any_number_of_replicas() {
    let sgd = "[run.optimizer]\nrule = \"sgd\"\nrate = 0.05\n";
    for (peers, replicas) in [(2, "2"), (4, "\"all\""), (5, "1"), (5, "3")] {
        for optimizer in ["", sgd] {
            for (gradients, parameters) in
                [("int8", "int8"), ("bf16", "f32"), ("f32", "bf16"), ("top-k", "bf16")]
            {
                let sync = format!("[run.sync]\n{}", lossy(gradients, parameters));
                survive(peers, &format!("{optimizer}{sync}\n[run.shards]\nreplicas = {replicas}\n"), 3);
            }
        }
    }
}

/// Newcomers whose first view ends before they have completed a step have no residual.
#[test]
fn a_newcomer_whose_first_view_ends_early_has_no_residual() {
    let text = format!(
        "about = \"codecs\"\npeers = 5\n[links]\npreset = \"continents\"\n\
         [task]\nkind = \"digits\"\nsample_time = \"1ms\"\n[run]\nepochs = 1\nbatch = 128\n\
         [run.optimizer]\nrule = \"momentum\"\nrate = 0.02\n[run.sync]\nsegment_kib = 1\n{}\n\
         [[faults]]\nkind = \"restart\"\nat = \"350ms\"\nany = 2\nfor = \"224ms\"\n\
         [[faults]]\nkind = \"restart\"\nat = \"3959ms\"\nwithin = \"57ms\"\nany = 1\nfor = \"822ms\"\ndisk = \"lost\"\n",
        lossy("bf16", "bf16")
    );
    let scenario = parse("codecs", &text, Path::new("."), Size::Full).expect("it is a scenario");
    for seed in [2, 18, 19] {
        let mut simulation = Simulation::new(&scenario, seed);
        while simulation.tick() {}
        assert_eq!(simulation.finish().violations, [], "seed {seed}");
    }
}

/// Bytes, and held-out accuracy, of a run on the digits.
fn digits(peers: usize, sync: &str) -> (f64, f64) {
    let text = format!("epochs = 20\nbatch = 64\n[sync]\ntopology = \"direct\"\n{sync}");
    let workload = Workload::digits(&RunFile::parse(&text).expect("it is a run file"));
    let scenario = Scenario::new("codecs", peers, workload.expect("all of it is allowed"));
    let mut simulation = Simulation::new(&scenario, 5);
    while simulation.tick() {}
    let cluster = &simulation.cluster;
    let host = cluster.hosts().ids().next().expect("there are peers");
    let evaluation = ended(cluster, host).state.as_ref().and_then(|state| state.evaluation);
    let accuracy = evaluation.and_then(|evaluation| evaluation.accuracy).expect("digits have classes");
    (cluster.history().traffic.total as f64, accuracy)
}

#[test]
fn lossy_codecs_learn_the_same_with_fewer_bytes() {
    for (peers, bf16_share, int8_share) in [(4, 0.6, 0.4), (2, 0.65, 0.5)] {
        let (bytes, accuracy) = digits(peers, "");
        for (codec, share) in [("bf16", bf16_share), ("f16", bf16_share), ("int8", int8_share)] {
            let (fewer, found) = digits(peers, &lossy(codec, codec));
            assert!(fewer < share * bytes, "{peers} peers, {codec}: {} of the bytes", fewer / bytes);
            assert!((found - accuracy).abs() < 0.012, "{codec}: {found}, and {accuracy} without");
        }
    }
}

/// Without residuals and without a master copy, such codecs would ruin the accuracy.
#[test]
fn the_coarsest_codecs_still_learn() {
    let (bytes, accuracy) = digits(4, "");
    let (fewer, found) = digits(4, "gradients = \"top-k\"\none_in = 50\nparameters = \"int8\"");
    assert!(fewer < 0.4 * bytes, "{} of the bytes", fewer / bytes);
    assert!(accuracy - found < 0.02, "{found}, and {accuracy} without");
    let (_, found) =
        digits(4, "kind = \"diloco\"\nlocal_steps = 4\ngradients = \"int8\"\nparameters = \"bf16\"");
    assert!(found > 0.95, "{found}");
}
