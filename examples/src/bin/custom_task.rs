//! Your own task, trained by any number of peers: fit a parabola to noisy points.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin custom_task -- start
//! cargo run --release -p peergrad-examples --bin custom_task -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The run ends with a test loss of about 0.005 (the noise is uniform, at most 0.1), and with the same digest at both peers.

use peergrad::prelude::*;

/// y = a + b x + c x^2: three parameters.
struct Parabola;

/// Point `index`: x from -1 to 1, y on the parabola (1, -2, 3) with some noise.
fn point(index: u32) -> (f32, f32) {
    let x = (index % 201) as f32 / 100.0 - 1.0;
    let noise = (index.wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 * 0.2 - 0.1;
    (x, 1.0 - 2.0 * x + 3.0 * x * x + noise)
}

/// The x of point `index`, and how far the parabola of `parameters` is above the point.
fn error(parameters: &[f32], index: u32) -> (f32, f32) {
    let (x, y) = point(index);
    (x, parameters[0] + parameters[1] * x + parameters[2] * x * x - y)
}

impl Task for Parabola {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("coefficients", [3])
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
        let losses = (10_000..11_000).map(|index| f64::from(error(parameters, index).1.powi(2)));
        Evaluation { samples: 1000, loss: losses.sum::<f64>() / 1000.0, accuracy: None }
    }
}

fn main() -> ExitCode {
    peergrad::train("parabola", Parabola).optimizer(Optimizer::ADAM).epochs(40).batch(64).run()
}
