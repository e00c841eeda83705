//! A task that computes nothing: what remains is the cost of a step. `bench/python.py` compares it with the same task in Python.
//!
//! ```text
//! PARAMETERS=10000 STEPS=2000 cargo run --release -p peergrad-examples --bin idle_task -- start
//! ```
//! It trains with two peers, as many samples as two a step. At the end each peer prints the median time from step to step.

use std::sync::Mutex;
use std::time::Instant;

use peergrad::prelude::*;

/// Any number of parameters, in eight tensors, whose gradient is always the same.
struct Idle {
    parameters: u32,
    steps: u32,
    /// When each gradient was asked for.
    asked_at: Mutex<Vec<Instant>>,
}

impl Task for Idle {
    fn manifest(&self) -> Manifest {
        let sizes = (0..8).map(|index| self.parameters / 8 + u32::from(index < self.parameters % 8));
        let tensors: Vec<_> = sizes.enumerate().map(|(index, size)| (format!("t{index}"), [size])).collect();
        Manifest::new(tensors.iter().map(|(name, shape)| (name.as_str(), &shape[..])))
    }

    fn sample_count(&self) -> u32 {
        2 * self.steps
    }

    fn gradient(&self, _: &[f32], _: &[u32], gradient: &mut [f32]) -> f64 {
        self.asked_at.lock().expect("no panic").push(Instant::now());
        gradient.fill(1e-3);
        1.0
    }

    fn held_out_count(&self) -> u32 {
        0
    }

    fn evaluate(&self, _: &[f32]) -> Evaluation {
        let asked_at = self.asked_at.lock().expect("no panic");
        let mut times: Vec<_> = asked_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        times.sort();
        if let Some(median) = times.get(times.len() / 2) {
            eprintln!("median step: {:.4} ms", median.as_secs_f64() * 1e3);
        }
        Evaluation { samples: 0, loss: 0.0, accuracy: None }
    }
}

/// A number from the environment.
fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() -> ExitCode {
    let (parameters, steps) = (number("PARAMETERS", 10_000), number("STEPS", 2000));
    let task = Idle { parameters, steps, asked_at: Mutex::default() };
    peergrad::train("idle", task).optimizer(Optimizer::SGD).learning_rate(0.001).epochs(1).batch(2).run()
}
