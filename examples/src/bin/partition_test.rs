//! A partition test of your own task: what happens to its training when the network is cut, tried before you use real machines.
//!
//! ```text
//! $ cargo run --release -p peergrad-examples --bin partition_test
//! a cut of 1 s: 5 finished; 320 steps, test loss 0.0000
//! a cut of 10 s: 5 finished; 321 steps, test loss 0.0000
//! twenty seeds of each kept every invariant
//! ```
//! The nodes that otherwise run over libp2p train the task in simulated time. A short cut costs only time. During a long cut the
//! group of three peers trains on without the other two, which rejoin when the cut ends. No seed may break an invariant; the
//! simulator also compares each run with a single-process loop, and repeats it to see that every bit is the same.

use std::time::Duration;

use peergrad::prelude::*;
use peergrad::specification::RunFile;
use peergrad_simulations::links::Links;
use peergrad_simulations::scenario::{Fault, Groups, Scenario};
use peergrad_simulations::{Outcome, Simulation, Workload};

/// y = a + b x, from points without noise.
struct Line;

fn error(parameters: &[f32], index: u32) -> (f32, f32) {
    let x = (index % 200) as f32 / 100.0 - 1.0;
    (x, parameters[0] + parameters[1] * x - (1.0 - 2.0 * x))
}

impl Task for Line {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("line", [2])
    }

    fn sample_count(&self) -> u32 {
        1000
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let mut loss = 0.0;
        for &sample in samples {
            let (x, error) = error(parameters, sample);
            gradient[0] += 2.0 * error;
            gradient[1] += 2.0 * error * x;
            loss += f64::from(error * error);
        }
        loss
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let losses = (0..200).map(|index| f64::from(error(parameters, index).1.powi(2)));
        Evaluation { samples: 200, loss: losses.sum::<f64>() / 200.0, accuracy: None }
    }
}

/// Five peers on home connections, cut into groups of three and two, two seconds after training began.
fn cut_for(seconds: u64) -> Scenario {
    let run = RunFile::parse("epochs = 20\n[optimizer]\nrate = 0.02").expect("a run file");
    let workload = Workload::custom("line", Line, &run).expect("a task");
    let groups = Groups::Split(vec![3, 2]);
    let partition = Fault::Partition { groups, duration: Some(Duration::from_secs(seconds)) };
    let scenario = Scenario::new("line", 5, workload).on(Links::home());
    scenario.after(Duration::from_secs(2), partition)
}

fn describe(outcome: &Outcome) -> String {
    let endings: Vec<String> =
        outcome.endings.iter().map(|(ending, count)| format!("{count} {ending}")).collect();
    let loss = outcome.evaluation.map_or(String::new(), |e| format!(", test loss {:.4}", e.loss));
    format!("{}; {} steps{loss}", endings.join(", "), outcome.steps)
}

fn main() {
    let scenarios = [1, 10].map(|seconds| (seconds, cut_for(seconds)));
    for (seconds, scenario) in &scenarios {
        println!("a cut of {seconds} s: {}", describe(&Simulation::new(scenario, 1).run()));
    }
    for (_, scenario) in &scenarios {
        for seed in 0..20 {
            let outcome = Simulation::new(scenario, seed).run();
            assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        }
    }
    println!("twenty seeds of each kept every invariant");
}
