//! Clipping by the global norm: a swarm of any size clips as one loop does, and all members agree on the factor, whatever happens to them.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peergrad_config::single_process::train_single_process;
use peergrad_config::specification::RunFile;
use peergrad_core::program::loader::TrainingConfig;
use peergrad_models::task::Task;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{Message, TrainingMessage};
use peergrad_simulations::filters::{Envelope, FrameAction};
use peergrad_simulations::host::Crash;
use peergrad_simulations::oracles::plain::PLAIN;
use peergrad_simulations::oracles::replay::REPLAY;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::scenario::named::NAMED;
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::AlteredTask;
use peergrad_simulations::workload::Workload;

use crate::common::{assert_nobody_is_blamed, committed, ended, parameters};

fn simulated(peers: usize, workload: &Workload) -> Simulation {
    let mut simulation = Simulation::new(&Scenario::new("clipping", peers, workload.clone()), 11);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    simulation
}

/// In how many steps of the plain loop the gradient is clipped, and how many steps there are.
fn clipped_steps(workload: &Workload) -> (usize, usize) {
    let counts = Arc::new(Mutex::new((0, 0)));
    let limit = f64::from(workload.loaded.config.clip_norm.unwrap());
    let counting = Arc::clone(&counts);
    let gradient = move |task: &dyn Task, parameters: &[f32], samples: &[u32], gradient: &mut [f32]| {
        let loss = task.gradient(parameters, samples, gradient);
        let squares: f64 = gradient.iter().map(|element| f64::from(*element) * f64::from(*element)).sum();
        let mut counts = counting.lock().unwrap();
        counts.0 += usize::from(squares.sqrt() / samples.len() as f64 > limit);
        counts.1 += 1;
        loss
    };
    let mut loaded = workload.loaded.clone();
    loaded.task = Arc::new(AlteredTask { task: Arc::clone(&loaded.task), gradient: Arc::new(gradient) });
    train_single_process(&loaded, |_| ());
    *counts.lock().unwrap()
}

/// The same run without clipping.
fn unclipped(workload: &Workload) -> Workload {
    let mut workload = workload.clone();
    workload.loaded.config = TrainingConfig { clip_norm: None, ..workload.loaded.config };
    workload
}

/// Sums of integers are exact in any order, and so are the sums of their squares.
#[test]
fn a_swarm_holds_the_bits_of_one_loop() {
    let rules = ["\"adam\"\nrate = 0.01", "\"momentum\"\nrate = 0.5", "\"sgd\"\nrate = 0.5"];
    for (rule, topology) in rules.into_iter().zip(["ring", "direct", "auto"]) {
        for replicas in ["1", "2", "\"all\""] {
            let text = format!(
                "epochs = 12\nbatch = 64\n[optimizer]\nrule = {rule}\nclip_norm = 1.0\n\
                 [shards]\nreplicas = {replicas}\n[sync]\ntopology = \"{topology}\"\nsegment_kib = 1"
            );
            let workload = Workload::integers(&RunFile::parse(&text).unwrap(), 2000, 650).unwrap();
            let (clipped, steps) = clipped_steps(&workload);
            assert!(clipped * 2 > steps, "{clipped} of {steps} steps");
            let plain = train_single_process(&workload.loaded, |_| ());
            assert_ne!(plain, train_single_process(&unclipped(&workload).loaded, |_| ()));
            for peers in [1, 2, 4] {
                let found = parameters(&simulated(peers, &workload));
                assert!(found == plain, "{rule}, {topology}, {replicas} replicas, {peers} peers");
            }
            let mut scenario = Scenario::new("clipping", 4, workload)
                .at(FaultTime::Step(20), Fault::Join { count: 1 })
                .at(FaultTime::Step(60), Fault::Leave { targets: Targets::Peers(vec![1]) });
            scenario.sample_time = Duration::from_millis(2);
            let outcome = Simulation::new(&scenario, 8).run();
            assert_eq!(outcome.violations, [], "{rule}, {topology}, {replicas} replicas");
            let alone = ContentDigest::of(bytemuck::cast_slice(&plain)).to_string();
            assert_eq!(outcome.digest, Some(alone), "{rule}, {topology}, {replicas} replicas");
        }
    }
}

#[test]
fn a_swarm_of_any_size_follows_the_plain_loop() {
    for topology in ["ring", "direct"] {
        let text = format!(
            "epochs = 8\nbatch = 30\n[optimizer]\nrule = \"adamw\"\nrate = 0.003\nweight_decay = 0.1\nclip_norm = 0.1\n\
             [sync]\ntopology = \"{topology}\"\nsegment_kib = 1"
        );
        let workload = Workload::squares(&RunFile::parse(&text).unwrap(), 2000, 740).unwrap();
        let (clipped, steps) = clipped_steps(&workload);
        assert!(clipped * 2 > steps, "{clipped} of {steps} steps");
        let mut losses = Vec::new();
        let plain = train_single_process(&workload.loaded, |step| losses.push(step.loss));
        for peers in [1, 2, 4] {
            let simulation = simulated(peers, &workload);
            let host = simulation.cluster.hosts().ids().next().unwrap();
            let committed = committed(&simulation.cluster, host);
            assert_eq!(committed.len(), losses.len());
            for (committed, plain) in committed.iter().zip(&losses) {
                let apart = (committed.loss - plain).abs() / plain.abs();
                assert!(apart < 5e-6, "{peers} peers, {topology}: {} and {plain}", committed.loss);
            }
            let found = parameters(&simulation);
            assert!(found.iter().zip(&plain).all(|(found, plain)| (found - plain).abs() < 1e-4));
            let outcome = simulation.finish();
            assert_eq!(outcome.violations, []);
            assert!([PLAIN, REPLAY].iter().all(|oracle| outcome.checked.contains(oracle)));
        }
    }
}

/// The replay computes the same factor from the commit log, bit for bit: with codecs, with replicas and without, with crashes and joiners.
#[test]
fn codecs_and_crashes_do_not_change_the_factor() {
    for (sync, replicas) in [
        ("topology = \"ring\"", "2"),
        ("topology = \"direct\"", "\"all\""),
        ("parameters = \"bf16\"", "3"),
        ("gradients = \"int8\"\nparameters = \"int8\"", "2"),
        ("gradients = \"top-k\"\none_in = 10", "\"all\""),
    ] {
        for seed in 0..4 {
            let text = format!(
                "epochs = 8\nbatch = 30\n[optimizer]\nrate = 0.01\nclip_norm = 0.05\n\
                 [shards]\nreplicas = {replicas}\n[sync]\n{sync}\nsegment_kib = 1"
            );
            let workload = Workload::squares(&RunFile::parse(&text).unwrap(), 2000, 740).unwrap();
            let crash = Fault::Crash { targets: Targets::Any(1), crash: Crash::Killed };
            let mut scenario = Scenario::new("clipping", 5, workload)
                .at(FaultTime::Step(30), crash)
                .at(FaultTime::Step(60), Fault::Join { count: 1 });
            scenario.sample_time = Duration::from_micros(200);
            scenario.faults[0].within = Duration::from_millis(4);
            scenario.expect.restarted = Some(false);
            let outcome = Simulation::new(&scenario, seed).run();
            assert_eq!(outcome.violations, [], "{sync}, seed {seed}");
            assert!(outcome.checked.contains(&REPLAY), "{sync}");
        }
    }
}

/// The scenarios of the simulator, with clipping in addition.
#[test]
fn faults_of_all_kinds_are_survived() {
    for name in [
        "kill-mid-step",
        "founder-dies",
        "one-of-two",
        "joiners-between",
        "churn",
        "moving",
        "uneven",
        "partition",
        "merge",
        "halves",
        "replicas-lost",
        "all-replicas",
        "power-cut",
        "lost-frames",
        "repeated-frames",
        "withheld-sums",
        "withheld-values",
        "late-frames",
        "backup-workers",
        "compressed",
        "long-lines",
    ] {
        let (_, text) = NAMED.iter().find(|(other, _)| *other == name).unwrap();
        let text = if text.contains("[run.optimizer]") {
            text.replace("[run.optimizer]", "[run.optimizer]\nclip_norm = 0.05")
        } else {
            format!("{text}\n[run.optimizer]\nclip_norm = 0.05\n")
        };
        let scenario = parse(name, &text, Path::new("."), Size::Sweep).unwrap();
        for seed in 0..2 {
            let outcome = Simulation::new(&scenario, seed).run();
            assert_eq!(outcome.violations, [], "{name}, seed {seed}");
        }
    }
}

/// A member that stops sending norms holds up all others. They name it, and go on without it.
#[test]
fn a_member_that_withholds_norms_is_left_out() {
    let (_, text) = NAMED.iter().find(|(name, _)| *name == "withheld-values").unwrap();
    for topology in ["ring", "direct"] {
        let text = format!(
            "{}\n[run.optimizer]\nclip_norm = 0.05\n[run.sync]\ntopology = \"{topology}\"\n",
            text.replace("of = \"gather\"", "of = \"norms\"")
        );
        let scenario = parse("withheld-norms", &text, Path::new("."), Size::Sweep).unwrap();
        for seed in 0..5 {
            let outcome = Simulation::new(&scenario, seed).run();
            assert_eq!(outcome.violations, [], "{topology}, seed {seed}");
            let last = outcome.history.views.last().unwrap();
            assert_eq!(last.view.members.len(), 4, "{topology}, seed {seed}");
        }
    }
}

/// Plain steps of a limited length: no run goes further than its steps together.
#[test]
fn late_members_clip_as_well() {
    let text = "epochs = 4\nbatch = 64\n[optimizer]\nrule = \"sgd\"\nrate = 1.0\nclip_norm = 0.001\n\
        [sync]\nkind = \"backup-workers\"\nbackups = 2\nsegment_kib = 1";
    let workload = Workload::integers(&RunFile::parse(text).unwrap(), 2000, 640).unwrap();
    let simulation = simulated(4, &workload);
    let host = simulation.cluster.hosts().ids().next().unwrap();
    assert!(ended(&simulation.cluster, host).state.as_ref().unwrap().left_out > 0, "some are late");
    let far: f64 = parameters(&simulation).iter().map(|element| f64::from(element * element)).sum();
    let steps = committed(&simulation.cluster, host).len() as f64;
    assert!(far > 0.0 && far.sqrt() <= steps * 0.001, "{} after {steps} steps", far.sqrt());
}

/// A peer alone takes local steps as the plain loop takes steps: each is clipped by itself.
#[test]
fn local_steps_are_clipped() {
    let optimizer = "epochs = 6\nbatch = 32\n[optimizer]\nrule = \"sgd\"\nrate = 0.05\nclip_norm = 0.05\n";
    let squares = |sync: &str| {
        let run = RunFile::parse(&format!("{optimizer}[sync]\nsegment_kib = 1\n{sync}")).unwrap();
        Workload::squares(&run, 2000, 640).unwrap()
    };
    let plain = train_single_process(&squares("").loaded, |_| ());
    assert_ne!(plain, train_single_process(&unclipped(&squares("")).loaded, |_| ()));
    let diloco = "kind = \"diloco\"\nlocal_steps = 4\nouter_rate = 1.0\nouter_momentum = 0.0";
    for sync in ["kind = \"local\"\nlocal_steps = 4", diloco, "kind = \"ds-sync\""] {
        let found = parameters(&simulated(1, &squares(sync)));
        for (found, plain) in found.iter().zip(&plain) {
            assert!((found - plain).abs() < 5e-6, "{sync}: {found} and {plain}");
        }
        // With more peers, no member waits for norms, since each has its own.
        parameters(&simulated(4, &squares(sync)));
    }
}

/// One small message from each owner to each other member, in each step; none where every member has all sums.
#[test]
fn owners_tell_their_norms_once() {
    for (replicas, per_step) in [("1", 4 * 3), ("\"all\"", 0)] {
        let text = format!(
            "epochs = 3\nbatch = 64\n[optimizer]\nclip_norm = 1.0\n[shards]\nreplicas = {replicas}\n[sync]\nsegment_kib = 1"
        );
        let workload = Workload::integers(&RunFile::parse(&text).unwrap(), 2000, 640).unwrap();
        let mut simulation = Simulation::new(&Scenario::new("norms", 4, workload), 3);
        let counted = Arc::<Mutex<u64>>::default();
        let count = Arc::clone(&counted);
        simulation.cluster.add_filter(Box::new(move |envelope: &Envelope<'_>| {
            if let Some(Message::InView { message: TrainingMessage::ShardNorm(_), .. }) = envelope.message() {
                *count.lock().unwrap() += 1;
            }
            FrameAction::Pass
        }));
        let outcome = simulation.run();
        assert_eq!(outcome.violations, []);
        assert_eq!(*counted.lock().unwrap(), per_step * outcome.steps, "{replicas} replicas");
    }
}
