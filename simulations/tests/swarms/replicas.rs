//! Replicas of optimizer state: the parameters do not depend on their number; and if all members store all state, no state is sent and none
//! is lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use peergrad_collectives::plan::Topology;
use peergrad_config::single_process::train_single_process;
use peergrad_config::specification::RunFile;
use peergrad_core::io::FinalState;
use peergrad_core::program::loader::Loader;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{Message, Phase, TrainingMessage};
use peergrad_protocol::placement::Replicas;
use peergrad_protocol::view::Recovery;
use peergrad_simulations::cluster::Cluster;
use peergrad_simulations::filters::{Envelope, FrameAction};
use peergrad_simulations::host::Crash;
use peergrad_simulations::invariants::{InvariantSetup, Invariants};
use peergrad_simulations::oracles::replay::{REPLAY, Replay};
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::{FixedLoader, Squares};
use peergrad_simulations::workload::Workload;

use crate::common::{PARAMETERS, SAMPLES, ended, found, join, lan, run_out, setup, training};

/// Adam on sums that are exact in any order, so that the result does not depend on who owns what when.
fn exact(replicas: &str, topology: &str) -> Workload {
    let text = format!(
        "epochs = 15\nbatch = 64\n[optimizer]\nrule = \"adam\"\nrate = 0.01\n[shards]\nreplicas = {replicas}\n\
         [sync]\ntopology = \"{topology}\"\nsegment_kib = 1"
    );
    Workload::integers(&RunFile::parse(&text).unwrap(), 2000, 640).unwrap()
}

#[test]
fn parameters_do_not_depend_on_replicas() {
    for topology in ["ring", "direct"] {
        let mut digests = Vec::new();
        for replicas in ["1", "2", "\"all\""] {
            let workload = exact(replicas, topology);
            let plain = train_single_process(&workload.loaded, |_| ());
            let mut scenario = Scenario::new("replicas", 4, workload)
                .at(FaultTime::Step(20), Fault::Join { count: 1 })
                .at(FaultTime::Step(25), Fault::Join { count: 1 })
                .at(FaultTime::Step(110), Fault::Leave { targets: Targets::Peers(vec![1]) });
            scenario.sample_time = Duration::from_millis(2);
            scenario.expect.restarted = Some(false);
            let outcome = Simulation::new(&scenario, 8).run();
            assert_eq!(outcome.violations, [], "{replicas} replicas, {topology}");
            assert!(
                outcome.steps >= 150 && outcome.history.views.len() >= 3,
                "{replicas} replicas, {topology}"
            );
            let alone = ContentDigest::of(bytemuck::cast_slice(&plain)).to_string();
            assert_eq!(outcome.digest.as_ref(), Some(&alone), "{replicas} replicas, {topology}");
            digests.push(alone);
        }
        assert!(digests.iter().all(|digest| *digest == digests[0]));
    }
}

/// Two members crash at once: sometimes a member has completed the step, sometimes none has. The replay of the commit log, bit for bit, is
/// among the checks.
#[test]
fn steps_of_gathered_sums_restart_or_are_rolled_forward() {
    for topology in ["ring", "direct"] {
        let (mut forward, mut again, mut seed) = (0, 0, 0);
        // In a ring one of six is rolled forward; with the direct topology, all members complete a step at nearly the same time.
        while seed < 20 || (forward == 0 && seed < 300) {
            let text = format!(
                "epochs = 12\nbatch = 64\n[shards]\nreplicas = \"all\"\n[sync]\ntopology = \"{topology}\"\nsegment_kib = 1"
            );
            let workload = Workload::squares(&RunFile::parse(&text).unwrap(), 2000, 640).unwrap();
            let crash = |targets| Fault::Crash { targets, crash: Crash::Killed };
            let mut scenario = Scenario::new("two of five", 5, workload)
                .at(FaultTime::Step(10), crash(Targets::Any(2)))
                .at(FaultTime::Step(30), Fault::Join { count: 1 });
            scenario.sample_time = Duration::from_micros(100);
            scenario.faults[0].within = Duration::from_millis(4);
            scenario.expect.restarted = Some(false);
            let outcome = Simulation::new(&scenario, seed).run();
            assert_eq!(outcome.violations, [], "{topology}, seed {seed}");
            assert!(outcome.checked.contains(&REPLAY) && outcome.steps >= 120);
            for note in &outcome.history.views {
                if let Recovery::Resume(resume) = &note.view.recovery {
                    forward += usize::from(resume.forward.is_some());
                    again += usize::from(resume.forward.is_none() && resume.batch.is_some());
                }
            }
            seed += 1;
        }
        assert!(forward > 0 && again > 0, "{topology}: {forward} rolled forward, {again} restarted");
    }
}

/// Payload bytes of a run's segments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bytes {
    reduced: u64,
    gathered: u64,
    mirrored: u64,
}

/// Bytes sent in a run without faults, and its number of steps.
fn segment_bytes(peers: usize, replicas: &str, topology: &str) -> (Bytes, u64) {
    let mut simulation = Simulation::new(&Scenario::new("bytes", peers, exact(replicas, topology)), 3);
    let counted = Arc::<Mutex<Bytes>>::default();
    let counts = Arc::clone(&counted);
    simulation.cluster.add_filter(Box::new(move |envelope: &Envelope<'_>| {
        if let Some(Message::InView { message: TrainingMessage::Segment(segment), .. }) = envelope.message() {
            let bytes = envelope.frame.payload.as_ref().map_or(0, |payload| payload.byte_count() as u64);
            let mut counts = counts.lock().unwrap();
            match segment.phase {
                Phase::Reduce => counts.reduced += bytes,
                Phase::Gather => counts.gathered += bytes,
                Phase::Mirror => counts.mirrored += bytes,
            }
        }
        FrameAction::Pass
    }));
    let outcome = simulation.run();
    assert_eq!(outcome.violations, []);
    let counted = *counted.lock().unwrap();
    (counted, outcome.steps)
}

#[test]
fn replicas_at_all_members_take_no_extra_traffic() {
    for (topology, peers) in [("ring", 2), ("ring", 4), ("direct", 4)] {
        let (one, steps) = segment_bytes(peers, "1", topology);
        // Each member sends its vector except one share, twice a step.
        let vector = (peers - 1) as u64 * 2000 * 4 * steps;
        assert_eq!(one, Bytes { reduced: vector, gathered: vector, mirrored: 0 });
        assert_eq!(segment_bytes(peers, "\"all\"", topology).0, one, "{peers} peers, {topology}");
        let two = segment_bytes(peers, "2", topology).0;
        // With two members, two replicas are all.
        assert_eq!(two.mirrored, if peers == 2 { 0 } else { 2000 * 4 * steps });
    }
}

/// Peers of these capacities that train the small task, each with all replicas, under all invariants.
fn weighted(capacities: &[u8], topology: Topology) -> (Cluster, Vec<FinalState>) {
    let training =
        peergrad_core::program::loader::TrainingConfig { replicas: Replicas::All, ..training(topology) };
    let fixed = Arc::new(FixedLoader::new(Squares::new(PARAMETERS, SAMPLES), training));
    let mut cluster = lan(5);
    let known =
        InvariantSetup { loaded: fixed.loaded.clone(), integers: None, patience: Duration::from_secs(30) };
    let mut invariants = Invariants::all(&known);
    invariants.add(Replay::new(&fixed.loaded));
    cluster.set_invariants(invariants);
    let setup = |capacity| {
        let mut setup = setup(Arc::clone(&fixed) as Arc<dyn Loader>, None);
        setup.capacity = Some(capacity);
        setup
    };
    let mut hosts = vec![found(&mut cluster, capacities.len(), setup(capacities[0]))];
    for capacity in &capacities[1..] {
        hosts.push(join(&mut cluster, hosts[0], setup(*capacity)));
    }
    run_out(&mut cluster);
    let state = |&host| ended(&cluster, host).state.clone().expect("it trained");
    let states = hosts.iter().map(state).collect();
    (cluster, states)
}

#[test]
fn a_member_that_owns_nothing_still_stores_all_replicas() {
    for topology in [Topology::Ring, Topology::Direct] {
        let (cluster, states) = weighted(&[1, 0, 2, 0], topology);
        for state in &states {
            assert_eq!(state.digest, states[0].digest);
            // Two moments of all parameters, committed and pending.
            assert_eq!(state.optimizer_bytes, 2 * 2 * PARAMETERS as u64 * 4);
        }
        let shards: Vec<usize> = states.iter().map(|state| state.shard).collect();
        assert_eq!((shards[1], shards[3], shards[0] + shards[2]), (0, 0, PARAMETERS));
        crate::common::assert_nobody_is_blamed(&cluster);
    }
}
