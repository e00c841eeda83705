//! Comparison: scenarios that train the same model in different ways, measured after each epoch.
//!
//! The measure is the loss on held-out samples: against samples trained, against time, and against bytes. The same seed gives the same
//! initial parameters and the same order of the samples, so runs can be compared pair by pair.

use std::sync::Arc;
use std::time::Duration;

use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::Buffer;

use crate::history::History;
use crate::scenario::Scenario;
use crate::simulation::{Outcome, Simulation};

/// The course of one run.
pub struct TrainingCurve {
    /// Measurements, about one for each epoch.
    pub points: Vec<CurvePoint>,
    /// The measurement at the end; `None` if the run did not get there.
    pub end: Option<CurvePoint>,
    /// The result of the run.
    pub outcome: Outcome,
}

/// One measurement of a run.
#[derive(Clone, Copy, Debug)]
pub struct CurvePoint {
    /// Number of samples trained so far.
    pub samples: u64,
    /// Virtual time from the first view to the newest committed step.
    pub time: Duration,
    /// Bytes that all peers have sent so far.
    pub bytes: u64,
    /// Evaluation of the mean of all members' parameters.
    pub evaluation: Evaluation,
    /// Evaluation of the member whose local parameters are the worst.
    pub worst: Evaluation,
}

/// Runs `scenario`. `seed` determines all random choices, including the initial parameters and the order of samples.
#[must_use]
pub fn measure(scenario: &Scenario, seed: u64) -> TrainingCurve {
    let mut scenario = scenario.clone();
    scenario.workload.loaded.config.seed = seed;
    let loaded = scenario.workload.loaded.clone();
    let run_size = loaded.run_size();
    let (steps, all_samples) = (run_size.steps, run_size.samples * run_size.epochs);
    let steps_per_epoch = (steps / loaded.config.epochs).max(1);
    let mut simulation = Simulation::new(&scenario, seed);
    let mut points = Vec::new();
    let mut due = steps_per_epoch;
    while simulation.tick() {
        let history = simulation.cluster.history();
        let Some(newest) = history.commits.last() else { continue };
        let taken = newest.committed.step.0 + 1;
        if taken < due || taken >= steps {
            continue;
        }
        due = taken + steps_per_epoch;
        let dealt = (u128::from(taken) * u128::from(all_samples) / u128::from(steps)) as u64;
        let samples = dealt.saturating_sub(left_out(history));
        let time = history.training_time();
        let bytes = history.traffic.total;
        let cluster = &simulation.cluster;
        let all: Vec<&Arc<Buffer>> =
            cluster.hosts().ids().filter_map(|host| cluster.hosts().parameters(host)).collect();
        if let Some((evaluation, worst)) = evaluate(&*loaded.task, &all) {
            points.push(CurvePoint { samples, time, bytes, evaluation, worst });
        }
    }
    let outcome = simulation.finish();
    let end = outcome.evaluation.map(|evaluation| CurvePoint {
        samples: all_samples.saturating_sub(left_out(&outcome.history)),
        time: outcome.history.training_time(),
        bytes: outcome.history.traffic.total,
        evaluation,
        worst: evaluation,
    });
    TrainingCurve { points, end, outcome }
}

/// Samples that are in no step.
fn left_out(history: &History) -> u64 {
    history.commits.iter().map(|note| note.committed.left_out).sum()
}

/// Evaluations of the mean of all members' parameters, and of the worst member's.
fn evaluate(task: &dyn Task, all: &[&Arc<Buffer>]) -> Option<(Evaluation, Evaluation)> {
    let (first, others) = all.split_first()?;
    let evaluation = task.evaluate(first);
    if others.iter().all(|other| other[..] == first[..]) {
        return Some((evaluation, evaluation));
    }
    let mut sums: Vec<f64> = first.iter().map(|element| f64::from(*element)).collect();
    for other in others {
        sums.iter_mut().zip(other.iter()).for_each(|(sum, element)| *sum += f64::from(*element));
    }
    let mean: Vec<f32> = sums.iter().map(|sum| (sum / all.len() as f64) as f32).collect();
    let evaluations = others.iter().map(|other| task.evaluate(other));
    let worst =
        evaluations.fold(evaluation, |worst, other| if is_worse(&other, &worst) { other } else { worst });
    Some((task.evaluate(&mean), worst))
}

fn is_worse(one: &Evaluation, other: &Evaluation) -> bool {
    match (one.accuracy, other.accuracy) {
        (Some(one), Some(other)) => one < other,
        _ => one.loss > other.loss,
    }
}
