//! Runs that end before their epochs are over: because a user says so, or because the model does not get better any more.

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_core::io::Event;
use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;
use peergrad_simulations::host::Crash;
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::Squares;
use peergrad_simulations::workload::Workload;

use crate::common::{assert_nobody_is_blamed, ended, events_of};

/// A parameter that each step moves on by the rate. It is best after [`BEST`] steps.
struct Passing;

/// The number of steps after which [`Passing`] has the lowest held-out loss.
const BEST: u32 = 40;

impl Task for Passing {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("place", [64])
    }

    fn sample_count(&self) -> u32 {
        640
    }

    fn gradient(&self, _: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(-(samples.len() as f32));
        samples.len() as f64
    }

    fn held_out_count(&self) -> u32 {
        10
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let away = f64::from(parameters[0]) - f64::from(BEST);
        Evaluation { samples: 10, loss: away * away, accuracy: None }
    }
}

/// The same, where an evaluation takes as long as many steps.
struct SlowToEvaluate(Passing);

impl Task for SlowToEvaluate {
    fn manifest(&self) -> Manifest {
        self.0.manifest()
    }

    fn sample_count(&self) -> u32 {
        self.0.sample_count()
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        self.0.gradient(parameters, samples, gradient)
    }

    fn held_out_count(&self) -> u32 {
        2000
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        self.0.evaluate(parameters)
    }
}

fn passing(sync: &str) -> Workload {
    let text = format!(
        "epochs = 100\nbatch = 64\n[optimizer]\nrule = \"sgd\"\nrate = 1.0\n\
         [evaluation]\nevery = 10\nstop_after = 3\n[sync]\nsegment_kib = 1\n{sync}"
    );
    Workload::custom("passing", Passing, &RunFile::parse(&text).unwrap()).unwrap()
}

fn squares(sync: &str) -> Workload {
    let text = format!("epochs = 100\nbatch = 64\n[sync]\n{sync}");
    Workload::custom("squares", Squares::new(300, 740), &RunFile::parse(&text).unwrap()).unwrap()
}

fn simulated(scenario: &Scenario, seed: u64) -> Simulation {
    let mut simulation = Simulation::new(scenario, seed);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    simulation
}

/// Checks that all peers but those that a fault has ended are done with one model, and returns the steps and samples behind it.
#[track_caller]
fn agreed_end(simulation: &Simulation, case: &str) -> (u64, u64) {
    let cluster = &simulation.cluster;
    let done: Vec<_> =
        cluster.hosts().ids().map(|host| ended(cluster, host)).filter(|end| end.outcome.is_ok()).collect();
    let states: Vec<_> = done.iter().map(|end| end.state.as_ref().expect("it has trained")).collect();
    let first = states.first().unwrap_or_else(|| panic!("{case}: nobody is done"));
    for state in &states {
        assert_eq!((state.digest, state.samples), (first.digest, first.samples), "{case}");
    }
    (first.steps, first.samples)
}

#[test]
fn a_run_that_any_peer_ends_has_one_model_in_each_kind() {
    for kind in ["sync", "backup-workers", "local", "diloco", "ds-sync", "ssp", "async", "downpour", "l-bfgs"]
    {
        for seed in 0..4 {
            let target = Fault::EndRun { targets: Targets::Any(1) };
            let scenario = Scenario::new("end", 4, squares(&format!("kind = \"{kind}\"")))
                .at(FaultTime::Training(Duration::from_millis(40 + 17 * seed)), target);
            let outcome = Simulation::new(&scenario, seed).run();
            assert_eq!(outcome.violations, [], "{kind}, seed {seed}");
            let simulation = simulated(&scenario, seed);
            let (_, samples) = agreed_end(&simulation, kind);
            assert!((1..74_000).contains(&samples), "{kind}, seed {seed}: {samples} samples");
        }
    }
}

#[test]
fn an_alone_peer_ends_its_run() {
    let scenario = Scenario::new("end", 1, squares("kind = \"sync\""))
        .at(FaultTime::Step(20), Fault::EndRun { targets: Targets::Any(1) });
    let (steps, samples) = agreed_end(&simulated(&scenario, 1), "alone");
    assert!((21..300).contains(&steps) && samples < 74_000, "{steps} steps");
}

/// The evaluations that the peers have reported: the steps of each, and whether it was the best.
fn evaluations(simulation: &Simulation) -> BTreeSet<(u64, bool)> {
    let cluster = &simulation.cluster;
    let all = cluster.hosts().ids().flat_map(|host| events_of(cluster, host));
    let evaluated = all.filter_map(|event| match event {
        Event::Evaluated { steps, is_best, .. } => Some((steps.0, *is_best)),
        _ => None,
    });
    evaluated.collect()
}

/// The best models that the peers have kept: the steps of each, and whether it was still there.
fn kept(simulation: &Simulation) -> BTreeSet<(u64, bool)> {
    let cluster = &simulation.cluster;
    let all = cluster.hosts().ids().flat_map(|host| events_of(cluster, host));
    let kept = all.filter_map(|event| match event {
        Event::BestKept { steps, result } => Some((steps.0, result.is_ok())),
        _ => None,
    });
    kept.collect()
}

#[test]
fn a_model_that_gets_worse_ends_the_run_and_its_best_checkpoint_is_known() {
    for sync in ["", "kind = \"backup-workers\"\nbackups = 1", "kind = \"local\"\nlocal_steps = 1"] {
        for peers in [1, 2, 5] {
            let simulation = simulated(&Scenario::new("evaluation", peers, passing(sync)), 3);
            let (steps, _) = agreed_end(&simulation, sync);
            let found = evaluations(&simulation);
            let best = [10, 20, 30, 40].map(|steps| (steps, true));
            let worse = [50, 60, 70].map(|steps| (steps, false));
            assert!(best.iter().chain(&worse).all(|it| found.contains(it)), "{sync}, {peers}: {found:?}");
            assert!(found.iter().all(|(steps, is_best)| *is_best == (*steps <= 40)), "{found:?}");
            assert!((70..400).contains(&steps), "{sync}, {peers} peers: {steps} steps");
            assert_eq!(kept(&simulation), BTreeSet::from(best), "{sync}, {peers} peers");
        }
    }
}

/// Evaluations that take longer than the steps between them, and than checkpoints are kept: one at a time, and no best model is lost.
#[test]
fn slow_evaluations_lose_no_best_model() {
    for peers in [1, 3] {
        let mut workload = passing("");
        let task = SlowToEvaluate(Passing);
        workload.loaded.task = std::sync::Arc::new(task);
        workload.loaded.config.checkpoints_kept = 1;
        let simulation = simulated(&Scenario::new("evaluation", peers, workload), 5);
        agreed_end(&simulation, "slow");
        let (found, kept) = (evaluations(&simulation), kept(&simulation));
        assert!(found.len() > 3, "{found:?}");
        let best: BTreeSet<(u64, bool)> = found.into_iter().filter(|(_, is_best)| *is_best).collect();
        assert_eq!(kept, best, "{peers} peers");
    }
}

#[test]
fn an_agreed_end_survives_the_loss_of_members_and_of_all_power() {
    for seed in 0..40 {
        let end = Fault::EndRun { targets: Targets::Peers(vec![0]) };
        let crash = Fault::Crash { targets: Targets::Any(1), crash: Crash::Killed };
        let mut scenario = Scenario::new("end", 5, squares("kind = \"sync\""))
            .at(FaultTime::Training(Duration::from_millis(600)), end.clone())
            .at(FaultTime::Training(Duration::from_millis(620 + 20 * seed)), crash);
        scenario.sample_time = Duration::from_millis(3);
        assert_eq!(Simulation::new(&scenario, seed).run().violations, [], "crash, seed {seed}");

        let (duration, every) = (Duration::from_secs(2), Duration::ZERO);
        let cut = Fault::Blackout { duration, every, count: None, damaged: 0 };
        let mut scenario = Scenario::new("end", 3, squares("kind = \"sync\"\n[checkpoints]\nseconds = 1"))
            .at(FaultTime::Training(Duration::from_millis(2500)), end)
            .at(FaultTime::Training(Duration::from_millis(2520 + 20 * seed)), cut);
        scenario.sample_time = Duration::from_millis(5);
        assert_eq!(Simulation::new(&scenario, seed).run().violations, [], "power cut, seed {seed}");
    }
}

#[test]
fn evaluations_survive_the_loss_of_members_and_joiners_agree_on_the_best() {
    let crash = |targets| Fault::Crash { targets, crash: Crash::Killed };
    for seed in 0..6 {
        let mut scenario = Scenario::new("evaluation", 4, passing(""))
            .at(FaultTime::Step(15), crash(Targets::Any(1)))
            .at(FaultTime::Step(35), Fault::Join { count: 1 })
            .at(FaultTime::Step(48), crash(Targets::Any(1)));
        scenario.sample_time = Duration::from_millis(1);
        let outcome = Simulation::new(&scenario, seed).run();
        assert_eq!(outcome.violations, [], "seed {seed}");
        let mut simulation = Simulation::new(&scenario, seed);
        while simulation.tick() {}
        let found = evaluations(&simulation);
        assert!(found.iter().all(|(steps, is_best)| !is_best || *steps <= 40), "seed {seed}: {found:?}");
        assert!(
            [(10, true), (20, true), (30, true)].iter().all(|it| found.contains(it)),
            "seed {seed}: {found:?}"
        );
        assert!(found.last().is_some_and(|(steps, _)| (70..200).contains(steps)), "seed {seed}: {found:?}");
        let kept = kept(&simulation);
        assert!(
            kept.iter().all(|(steps, is_there)| *is_there || *steps <= 30),
            "a joiner has none before: {kept:?}"
        );
    }
}
