//! L-BFGS over portions of each pass: the minimum does not depend on who computes, who is lost, and who is slow.

use std::path::Path;

use peergrad_core::io::Event;
use peergrad_models::task::Task;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::simulation::Simulation;

/// Data of 30 features, and of 123 that are mostly zero; each with a model for it.
const CANCER: (&str, &str) = ("breast_cancer.csv.gz", "softmax");
const ADULT: (&str, &str) = ("a9a.libsvm.gz", "logistic");
/// The factor of the L2 penalty.
const L2: f64 = 1e-3;

/// A run on this data; `None` if the file is not here.
fn scenario(
    (file, model): (&str, &str),
    peers: usize,
    sync: &str,
    more: &str,
    epochs: u64,
) -> Option<Scenario> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    if !folder.join(file).exists() {
        eprintln!("skipped: {} is not here", folder.display());
        return None;
    }
    let text = format!(
        "about = \"l-bfgs\"\npeers = {peers}\n[task]\nkind = \"file\"\nsample_time = \"1ms\"\n[run]\nepochs = {epochs}\n\
         [run.data]\nfile = \"{file}\"\n[run.model]\nkind = \"{model}\"\n[run.optimizer]\nweight_decay = {L2}\n\
         [run.shards]\nreplicas = 2\n[run.sync]\nkind = \"l-bfgs\"\n{sync}\n{more}"
    );
    Some(parse("l-bfgs", &text, &folder, Size::Full).expect("it is a scenario"))
}

/// The objective at these parameters: the mean loss of the training samples, and the penalty.
fn objective(task: &dyn Task, parameters: &[f32]) -> f64 {
    let samples: Vec<u32> = (0..task.sample_count()).collect();
    let loss = task.gradient(parameters, &samples, &mut vec![0.0; parameters.len()]);
    let squared: f64 = parameters.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    loss / samples.len() as f64 + L2 / 2.0 * squared
}

/// How a run has ended.
#[derive(Debug)]
struct End {
    objective: f64,
    /// The passes over the samples.
    passes: f64,
    /// The virtual seconds of training.
    seconds: f64,
}

/// The end of the run, which is the same at all peers.
fn end(scenario: &Scenario, seed: u64) -> End {
    let task = &*scenario.workload.loaded.task;
    let mut simulation = Simulation::new(scenario, seed);
    while simulation.tick() {}
    let events = simulation.cluster.events().iter();
    let states: Vec<_> = events
        .filter_map(|event| match &event.2 {
            Event::Ended(ended) if ended.outcome.is_ok() => ended.state.clone(),
            _ => None,
        })
        .collect();
    assert!(!states.is_empty() && states.iter().all(|state| state.digest == states[0].digest), "seed {seed}");
    let seconds = simulation.cluster.history().training_time().as_secs_f64();
    assert_eq!(simulation.finish().violations, [], "seed {seed}");
    let passes = states[0].samples as f64 / f64::from(task.sample_count());
    End { objective: objective(task, &states[0].parameters), passes, seconds }
}

const TROUBLE: &str = r#"
[[faults]]
at = "1s"
within = "2s"
kind = "churn"
times = 8
every = "3s"
[[faults]]
at = "4s"
within = "3s"
kind = "blackout"
for = "1s"
every = "100ms"
[run.checkpoints]
seconds = 2
"#;

/// Workers die in the middle of a pass, of a decision and of the operations that follow from it; owners die; and once all lose power.
#[test]
fn the_minimum_is_the_same_whoever_is_killed_when() {
    for (data, seeds) in [(CANCER, 6), (ADULT, 3)] {
        let Some(alone) = scenario(data, 1, "", "", 300) else { return };
        let alone = end(&alone, 0);
        println!("{data:?}, alone: {alone:?}");
        for seed in 0..seeds {
            let more = if seed == 0 { "" } else { TROUBLE };
            let together = end(&scenario(data, 4, "", more, 300).expect("it was here"), seed);
            println!("seed {seed}: {together:?}");
            let difference = (together.objective - alone.objective).abs() / alone.objective;
            assert!(difference < 1e-6, "seed {seed}: {difference}");
        }
    }
}

/// One peer computes five times as long for a sample as the others.
#[test]
fn a_slow_peer_delays_passes_of_small_portions_by_little() {
    let slow = "[[faults]]\nat_start = \"0s\"\nkind = \"slow\"\npeers = [3]\nslower = 5\n";
    let seconds = |sync, more| {
        let end = end(&scenario(CANCER, 4, sync, more, 20)?, 1);
        println!("{sync:?} {more:?}: {end:?}");
        Some(end.seconds / end.passes)
    };
    let Some(even) = seconds("", "") else { return };
    let uneven = seconds("", slow).expect("it was here");
    println!("{:.2} times as long with a slow peer", uneven / even);
    assert!(uneven < 1.4 * even, "{uneven} and {even}");
}

/// The objective is within 1e-4 of its minimum after far fewer passes than plain stochastic gradient descent needs.
#[test]
fn it_needs_few_passes() {
    let Some(longest) = scenario(CANCER, 4, "", "", 300) else { return };
    let least = end(&longest, 3).objective;
    let is_close = |objective: f64| objective - least < 1e-4 * least;
    let after = |epochs| end(&scenario(CANCER, 4, "", "", epochs).expect("it was here"), 3).objective;
    let passes = (1..60).find(|epochs| is_close(after(*epochs))).expect("it comes close");
    let task = &*longest.workload.loaded.task;
    let sgd =
        [0.01, 0.03, 0.1, 0.3, 1.0].into_iter().filter_map(|rate| passes_of_sgd(task, rate, is_close)).min();
    println!("{passes} passes; plain SGD: {sgd:?}");
    assert!(sgd.is_none_or(|sgd| sgd >= 50 * passes), "{passes} and {sgd:?}");
}

/// The passes that stochastic gradient descent with batches of 32 samples needs; `None` if they are more than 3,000.
fn passes_of_sgd(task: &dyn Task, rate: f32, is_close: impl Fn(f64) -> bool) -> Option<u64> {
    let mut parameters = vec![0.0; task.manifest().parameter_count()];
    let mut gradient = parameters.clone();
    let samples: Vec<u32> = (0..task.sample_count()).collect();
    (1..=3000).find(|_| {
        for batch in samples.chunks(32) {
            task.gradient(&parameters, batch, &mut gradient);
            for (parameter, slope) in parameters.iter_mut().zip(&gradient) {
                *parameter -= rate * (slope / batch.len() as f32 + L2 as f32 * *parameter);
            }
        }
        is_close(objective(task, &parameters))
    })
}
