//! A task of one's own, trained by as many peers as one likes: fit a parabola to noisy points.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin custom_task -- start
//! cargo run --release -p peergrad-examples --bin custom_task -- join pg1...   (what `start` printed; on any machine)
//! ```
//! It ends with a test loss of about 0.005 (the noise is uniform within 0.1) and the same digest at both peers.

use std::process::ExitCode;

use peergrad::{Evaluation, Manifest, Task};

/// y = a + b x + c x^2: three parameters.
struct Parabola;

/// Point `index`: x from -1 to 1, y on the parabola (1, -2, 3) with some noise.
fn point(index: u32) -> (f32, f32) {
    let x = (index % 201) as f32 / 100.0 - 1.0;
    let noise = (index.wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 * 0.2 - 0.1;
    (x, 1.0 - 2.0 * x + 3.0 * x * x + noise)
}

fn error(parameters: &[f32], index: u32) -> (f32, f32) {
    let (x, y) = point(index);
    (x, parameters[0] + parameters[1] * x + parameters[2] * x * x - y)
}

impl Task for Parabola {
    fn manifest(&self) -> Manifest {
        Manifest::new([("coefficients", &[3][..])])
    }

    fn sample_count(&self) -> u32 {
        10_000
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let mut loss = 0.0;
        for &sample in samples {
            let (x, error) = error(parameters, sample);
            loss += f64::from(error * error);
            for (slope, power) in gradient.iter_mut().zip([1.0, x, x * x]) {
                *slope += 2.0 * error * power;
            }
        }
        loss
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let held_out = self.sample_count()..self.sample_count() + 1000;
        let losses = held_out.clone().map(|index| f64::from(error(parameters, index).1.powi(2)));
        Evaluation { samples: 1000, loss: losses.sum::<f64>() / 1000.0, accuracy: None }
    }
}

fn main() -> ExitCode {
    peergrad::run("parabola", Parabola)
}
