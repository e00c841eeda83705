//! Parameter groups: a swarm of any size updates each tensor as its group says, and as one loop does.

use std::ops::Range;
use std::time::Duration;

use peergrad_config::single_process::train_single_process;
use peergrad_config::specification::RunFile;
use peergrad_models::optimizer::ParameterGroups;
use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::manifest::Manifest;
use peergrad_simulations::host::Crash;
use peergrad_simulations::oracles::plain::PLAIN;
use peergrad_simulations::oracles::replay::REPLAY;
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::{Integers, Squares};
use peergrad_simulations::workload::Workload;

use crate::common::{assert_nobody_is_blamed, committed, ended, parameters};

/// The tensors of the tests; their borders are not those of chunks.
const TENSORS: [(&str, u32); 5] = [
    ("layer.weight", 901),
    ("layer.bias", 37),
    ("norm.mean", 63),
    ("norm.weight", 299),
    ("head.weight", 700),
];
/// The elements of all tensors.
const PARAMETERS: usize = 2000;
/// The elements of `norm.mean`.
const MEAN: Range<usize> = 938..1001;

/// A statistic, a layer without decay, one that learns more slowly, and one that does not learn.
const GROUPS: &str = "
    [[optimizer.groups]]\ntensors = [\"norm.mean\"]\nstatistic = true
    [[optimizer.groups]]\ntensors = [\"*.bias\", \"norm.*\"]\nweight_decay = 0.0\nrate_factor = 0.5
    [[optimizer.groups]]\ntensors = [\"head*\"]\nrate_factor = 0.0\n";

/// Another task's model, with tensors, and with a running mean of what samples give.
struct Normalized<T> {
    task: T,
    /// The share of the mean that is kept from one step to the next.
    kept: f32,
}

impl<T: Task> Task for Normalized<T> {
    fn manifest(&self) -> Manifest {
        TENSORS.iter().fold(Manifest::default(), |manifest, (name, len)| manifest.and(name, [*len]))
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        self.task.initial(seed, parameters);
    }

    fn sample_count(&self) -> u32 {
        self.task.sample_count()
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        let loss = self.task.gradient(parameters, samples, gradient);
        for (element, value) in gradient[MEAN].iter_mut().enumerate() {
            let of_sample = |sample: &u32| ((*sample as usize + element) % 11) as f32;
            let sum: f32 = samples.iter().map(of_sample).sum();
            let running = self.kept * parameters[MEAN.start + element] * samples.len() as f32;
            *value = running + (1.0 - self.kept) * sum;
        }
        loss
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        self.task.evaluate(parameters)
    }
}

/// Sums that are exact in any order.
fn exact(text: &str) -> Workload {
    let task = Normalized { task: Integers::new(PARAMETERS, 640), kept: 0.0 };
    Workload::custom("exact", task, &RunFile::parse(text).unwrap()).unwrap()
}

/// A problem that can be learned, with a running mean.
fn squares(text: &str) -> Workload {
    let task = Normalized { task: Squares::new(PARAMETERS, 740), kept: 0.75 };
    Workload::custom("normalized", task, &RunFile::parse(text).unwrap()).unwrap()
}

/// The same run without groups.
fn ungrouped(workload: &Workload) -> Workload {
    let mut workload = workload.clone();
    workload.loaded.config.groups = ParameterGroups::default();
    workload
}

fn initial(workload: &Workload) -> Vec<f32> {
    let mut parameters = vec![0.0; PARAMETERS];
    workload.loaded.task.initial(workload.loaded.config.seed, &mut parameters);
    parameters
}

fn simulated(peers: usize, workload: &Workload) -> Simulation {
    let mut simulation = Simulation::new(&Scenario::new("groups", peers, workload.clone()), 11);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    simulation
}

/// Adam, momentum and plain steps, with decay. Members come and go.
#[test]
fn a_swarm_holds_the_bits_of_one_loop() {
    let rules = ["\"adam\"\nrate = 0.01", "\"momentum\"\nrate = 0.05", "\"sgd\"\nrate = 0.05"];
    for (rule, topology) in rules.into_iter().zip(["ring", "direct", "auto"]) {
        for replicas in ["1", "2", "\"all\""] {
            let workload = exact(&format!(
                "epochs = 12\nbatch = 64\n[optimizer]\nrule = {rule}\nweight_decay = 0.1\n{GROUPS}\
                 [shards]\nreplicas = {replicas}\n[sync]\ntopology = \"{topology}\"\nsegment_kib = 1"
            ));
            let plain = train_single_process(&workload.loaded, |_| ());
            assert_ne!(plain, train_single_process(&ungrouped(&workload).loaded, |_| ()));
            assert!(plain[MEAN].iter().all(|mean| (4.0..6.0).contains(mean)), "means of 0 to 10");
            assert_eq!(plain[1300..], initial(&workload)[1300..], "a rate of 0");
            for peers in [1, 2, 4] {
                let found = parameters(&simulated(peers, &workload));
                assert!(found == plain, "{rule}, {topology}, {replicas} replicas, {peers} peers");
            }
            let mut scenario = Scenario::new("groups", 4, workload)
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
fn a_running_mean_follows_the_plain_loop() {
    for (topology, clip) in [("ring", ""), ("direct", ""), ("direct", "clip_norm = 0.02\n")] {
        let workload = squares(&format!(
            "epochs = 8\nbatch = 30\n[optimizer]\nrule = \"adamw\"\nrate = 0.01\nweight_decay = 0.1\n{clip}{GROUPS}\
             [sync]\ntopology = \"{topology}\"\nsegment_kib = 1"
        ));
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
            for (found, plain) in found[MEAN].iter().zip(&plain[MEAN]) {
                assert!((found - plain).abs() < 5e-6 * plain.abs(), "{found} and {plain}");
            }
            let outcome = simulation.finish();
            assert_eq!(outcome.violations, []);
            assert!([PLAIN, REPLAY].iter().all(|oracle| outcome.checked.contains(oracle)));
        }
    }
}

/// Rounded parameters with a master copy, rounded gradients, a crash after which replicas continue: the replay, bit for bit.
#[test]
fn codecs_and_crashes_keep_the_groups() {
    let without_statistic = GROUPS.replace("statistic = true", "rate_factor = 2.0");
    for (sync, groups) in [
        ("parameters = \"bf16\"", GROUPS),
        ("gradients = \"int8\"\nparameters = \"int8\"", &without_statistic),
        ("combine = \"mean\"\ntopology = \"ring\"", GROUPS),
    ] {
        for seed in 0..3 {
            let workload = squares(&format!(
                "epochs = 8\nbatch = 30\n[optimizer]\nrule = \"adamw\"\nrate = 0.01\n{groups}\
                 [shards]\nreplicas = 2\n[sync]\n{sync}\nsegment_kib = 1"
            ));
            let crash = Fault::Crash { targets: Targets::Any(1), crash: Crash::Killed };
            let mut scenario = Scenario::new("groups", 5, workload)
                .at(FaultTime::Step(30), crash)
                .at(FaultTime::Step(60), Fault::Join { count: 1 });
            scenario.sample_time = Duration::from_millis(1);
            scenario.expect.restarted = Some(false);
            let outcome = Simulation::new(&scenario, seed).run();
            assert_eq!(outcome.violations, [], "{sync}, seed {seed}");
            assert!(outcome.checked.contains(&REPLAY), "{sync}");
        }
    }
}

/// With one local step in a round, a mean of parameters is a step with the mean gradient.
#[test]
fn members_that_train_by_themselves_use_the_groups() {
    let optimizer = "epochs = 6\nbatch = 32\n[optimizer]\nrule = \"sgd\"\nrate = 0.05\nweight_decay = 0.1\n";
    let trained = GROUPS.replace("statistic = true", "rate_factor = 2.0");
    let diloco = "kind = \"diloco\"\nlocal_steps = 1\nouter_rate = 1.0\nouter_momentum = 0.0";
    for (sync, groups) in [
        ("kind = \"local\"\nlocal_steps = 1", GROUPS),
        (diloco, GROUPS),
        ("kind = \"ds-sync\"\ngroup = 4", &trained),
    ] {
        let plain = train_single_process(&squares(&format!("{optimizer}{groups}")).loaded, |_| ());
        let workload = squares(&format!("{optimizer}{groups}[sync]\nsegment_kib = 1\n{sync}"));
        for peers in [1, 2, 4] {
            let found = parameters(&simulated(peers, &workload));
            for (element, (found, plain)) in found.iter().zip(&plain).enumerate() {
                let apart = (found - plain).abs() / plain.abs().max(1.0);
                assert!(apart < 5e-6, "{sync}, {peers} peers, element {element}: {found} and {plain}");
            }
        }
    }
}

/// The outer momentum of `diloco` does not carry a statistic beyond its mean.
#[test]
fn an_outer_optimizer_leaves_statistics_alone() {
    let found = |peers, kind: &str| {
        let text = format!("epochs = 4\nbatch = 64\n{GROUPS}[sync]\nkind = \"{kind}\"\nlocal_steps = 3");
        parameters(&simulated(peers, &exact(&text)))
    };
    for peers in [1, 4] {
        let (outer, mean) = (found(peers, "diloco"), found(peers, "local"));
        assert_eq!(outer[MEAN], mean[MEAN], "{peers} peers");
        assert_ne!(outer[..MEAN.start], mean[..MEAN.start]);
    }
}

/// A member that is late in a step has no program there, but updates what it owns like all others.
#[test]
fn late_members_use_the_groups() {
    let task = Normalized { task: Integers::new(PARAMETERS, 640), kept: 1.0 };
    let text = format!(
        "epochs = 4\nbatch = 64\n[optimizer]\nrule = \"sgd\"\nrate = 0.05\n{GROUPS}\
         [sync]\nkind = \"backup-workers\"\nbackups = 2"
    );
    let workload = Workload::custom("late", task, &RunFile::parse(&text).unwrap()).unwrap();
    let simulation = simulated(4, &workload);
    let host = simulation.cluster.hosts().ids().next().unwrap();
    assert!(ended(&simulation.cluster, host).state.as_ref().unwrap().left_out > 0, "some are late");
    let (found, initial) = (parameters(&simulation), initial(&workload));
    assert_eq!(found[MEAN], initial[MEAN], "a mean that is kept as it is");
    assert_eq!(found[1300..], initial[1300..], "a rate of 0");
    assert!(
        found[..901].iter().zip(&initial).all(|(found, initial)| found != initial),
        "the rest is trained"
    );
}
