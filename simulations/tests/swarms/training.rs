//! Results: a swarm computes what one loop computes, members agree bit for bit, and values that are not finite do no harm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::plan::Topology;
use peergrad_config::single_process::train_single_process;
use peergrad_config::specification::RunFile;
use peergrad_core::io::Failure;
use peergrad_models::task::Task;
use peergrad_protocol::id::ContentDigest;
use peergrad_simulations::cluster::Cluster;
use peergrad_simulations::host::HostId;
use peergrad_simulations::invariants::{InvariantSetup, Invariants};
use peergrad_simulations::oracles::plain::PLAIN;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::{AlteredTask, FixedLoader, InParts, Squares};
use peergrad_simulations::workload::Workload;

use crate::common::{
    PARAMETERS, SAMPLES, STEPS, assert_nobody_is_blamed, committed, ended, gathered, run_out, swarm, training,
};

/// The small task as a workload.
fn workload(topology: Topology) -> Workload {
    let run = RunFile::parse("").expect("nothing has to be there");
    let mut workload = Workload::squares(&run, PARAMETERS, SAMPLES).expect("all of it is allowed");
    // Segments of a hundred elements are smaller than a run file allows.
    workload.loaded.config = training(topology);
    workload
}

/// `peers` peers that train it, run to the end under every invariant.
fn simulated(peers: usize, workload: &Workload, seed: u64) -> Simulation {
    let scenario = Scenario::new("squares", peers, workload.clone());
    let mut simulation = Simulation::new(&scenario, seed);
    while simulation.tick() {}
    simulation
}

#[test]
fn a_swarm_of_any_size_follows_the_plain_reference() {
    for topology in [Topology::Ring, Topology::Direct] {
        let workload = workload(topology);
        let mut plain_losses = Vec::new();
        let plain_parameters = train_single_process(&workload.loaded, |step| plain_losses.push(step.loss));
        for count in [1, 2, 4, 8] {
            let simulation = simulated(count, &workload, 11);
            let cluster = &simulation.cluster;
            assert_nobody_is_blamed(cluster);
            assert_eq!(cluster.hosts().ids().count(), count);
            for host in cluster.hosts().ids() {
                assert_eq!(ended(cluster, host).outcome, Ok(()));
                let committed = committed(cluster, host);
                assert_eq!(committed.len(), STEPS);
                for (committed, plain) in committed.iter().zip(&plain_losses) {
                    let (step, ours) = (committed.step.0, committed.loss);
                    let apart = (ours - plain).abs() / plain.abs();
                    assert!(apart < 5e-6, "{count} peers, step {step}: {ours} and {plain}");
                }
                let state = ended(cluster, host).state.as_ref().expect("it trained");
                assert_eq!(state.parameters.len(), plain_parameters.len());
                let mut pairs = state.parameters.iter().zip(&plain_parameters);
                assert!(pairs.all(|(ours, plain)| (ours - plain).abs() < 1e-4));
                assert_eq!(state.samples, 8 * u64::from(SAMPLES));
            }
            let outcome = simulation.finish();
            assert_eq!(outcome.violations, []);
            assert!(outcome.checked.contains(&PLAIN), "{:?}", outcome.checked);
        }
    }
}

/// Sums keep their order, hence their bits, and a step takes less time.
#[test]
fn contributions_in_parts_change_no_bit() {
    for topology in [Topology::Ring, Topology::Direct] {
        let mut whole = Scenario::new("squares", 4, workload(topology));
        whole.sample_time = Duration::from_millis(1);
        let mut in_parts = whole.clone();
        in_parts.workload = whole.workload.clone().in_parts();
        let [whole, in_parts] = [whole, in_parts].map(|scenario| Simulation::new(&scenario, 5).run());
        assert_eq!((whole.violations, in_parts.violations), (vec![], vec![]));
        assert!(whole.digest.is_some() && whole.digest == in_parts.digest);
        assert!(in_parts.time < whole.time, "{:?} and {:?}", in_parts.time, whole.time);
    }
}

#[test]
fn members_hold_the_same_bits_after_every_step() {
    let simulation = simulated(5, &workload(Topology::Ring), 2);
    let mut digests: BTreeMap<u64, Vec<ContentDigest>> = BTreeMap::new();
    for host in simulation.cluster.hosts().ids() {
        for committed in committed(&simulation.cluster, host) {
            let digest = committed.digest.expect("asked for at every step");
            digests.entry(committed.step.0).or_default().push(digest);
        }
    }
    assert_eq!(digests.len(), STEPS);
    for (step, digests) in digests {
        assert_eq!(digests.len(), 5);
        assert!(digests.iter().all(|digest| *digest == digests[0]), "members differ after step {step}");
    }
    assert_eq!(simulation.finish().violations, []);
}

#[test]
fn optimizer_memory_falls_with_the_number_of_members() {
    let fixed = Arc::new(crate::common::squares(Topology::Ring));
    for count in [1, 2, 4, 8] {
        let (cluster, hosts) = swarm(count, &fixed, 1);
        let bytes = |&host| ended(&cluster, host).state.as_ref().expect("it trained").optimizer_bytes;
        let sizes: Vec<u64> = hosts.iter().map(bytes).collect();
        // Two moments of all parameters, committed and pending.
        let whole = 2 * 2 * PARAMETERS as u64 * 4;
        assert_eq!(sizes.iter().sum::<u64>(), whole);
        let fair = whole / count as u64;
        assert!(sizes.iter().all(|size| *size <= fair * 5 / 4 + 16 * 16), "{sizes:?} of {fair}");
    }
}

/// Overflows in two ways: with sample 5 so that the member notices, and always so that only the sum of several members is infinite.
fn overflow(task: &dyn Task, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
    let loss = task.gradient(parameters, samples, gradient);
    if samples.contains(&5) {
        gradient[17] = f32::NAN;
    }
    // Finite at each member, infinite in their sum.
    gradient[18] = 3e38;
    loss
}

/// A swarm of three whose gradients are handed out in parts, and overflow at the last element in the samples that `is_bad` selects.
fn overflowing_in_parts(is_bad: fn(&[u32]) -> bool) -> (Cluster, Vec<HostId>) {
    let gradient = move |task: &dyn Task, parameters: &[f32], samples: &[u32], gradient: &mut [f32]| {
        let loss = task.gradient(parameters, samples, gradient);
        if is_bad(samples) {
            gradient[PARAMETERS - 1] = f32::INFINITY;
        }
        loss
    };
    let task = Arc::new(Squares::new(PARAMETERS, SAMPLES));
    let task = InParts(Arc::new(AlteredTask { task, gradient: Arc::new(gradient) }));
    let fixed = Arc::new(FixedLoader::new(task, training(Topology::Ring)));
    let (mut cluster, hosts) = gathered(3, &fixed, 4);
    // Without the oracle, for which contributions are whole.
    let patience = Duration::from_secs(30);
    let setup = InvariantSetup { loaded: fixed.loaded.clone(), integers: None, patience };
    cluster.set_invariants(Invariants::all(&setup));
    run_out(&mut cluster);
    (cluster, hosts)
}

#[test]
fn an_overflow_behind_a_part_that_was_sent_shows_in_the_loss() {
    let (cluster, hosts) = overflowing_in_parts(|samples| samples.contains(&5));
    let state = |host| ended(&cluster, host).state.as_ref().expect("it trained");
    let bad_losses =
        committed(&cluster, hosts[0]).iter().filter(|step| !step.loss.is_finite()).count() as u64;
    assert!((1..=8).contains(&bad_losses), "{bad_losses} of the 8 steps with the bad sample");
    for &host in &hosts {
        let state = state(host);
        assert_eq!(state.digest, ended(&cluster, hosts[0]).state.as_ref().expect("it trained").digest);
        assert!(state.parameters.iter().all(|parameter| parameter.is_finite()));
        assert_eq!(
            state.left_out,
            10 * (8 - bad_losses),
            "without a part, all of a contribution is left out"
        );
    }
    assert!(state(hosts[0]).evaluation.expect("it finished").loss < 0.2, "the others were trained");
}

#[test]
fn a_run_whose_gradients_always_overflow_behind_a_part_ends() {
    let (cluster, hosts) = overflowing_in_parts(|_| true);
    for host in hosts {
        assert!(matches!(ended(&cluster, host).outcome, Err(Failure::Diverged { .. })));
    }
}

#[test]
fn a_contribution_that_overflows_is_left_out_and_reported() {
    let task =
        AlteredTask { task: Arc::new(Squares::new(PARAMETERS, SAMPLES)), gradient: Arc::new(overflow) };
    let (cluster, hosts) = swarm(3, &Arc::new(FixedLoader::new(task, training(Topology::Ring))), 4);
    let state = |&host| ended(&cluster, host).state.as_ref().expect("it trained");
    let states: Vec<_> = hosts.iter().map(state).collect();
    for state in &states {
        assert_eq!(state.digest, states[0].digest);
        assert!(state.parameters.iter().all(|parameter| parameter.is_finite()));
        // The part of the batch with sample 5, once in each epoch.
        assert_eq!((state.left_out, state.samples), (80, 8 * u64::from(SAMPLES) - 80));
    }
    assert!(states[0].evaluation.expect("it finished").loss < 0.2, "the others were trained");
}
