//! Your own network, written with the tensors of burn: two spirals, which no straight line separates.
//!
//! ```text
//! cargo run --release -p peergrad-examples --features deep --bin custom_network -- start
//! cargo run --release -p peergrad-examples --features deep --bin custom_network -- join pg1...   (what `start` printed)
//! ```
//! The run ends with a test accuracy above 0.95, and with the same digest at both peers. A network of any layers is trained like this one:
//! name its tensors, and compute a loss from them. burn finds the gradient.

use burn_tensor::activation::{log_softmax, tanh};
use burn_tensor::{Device, Int, Tensor, TensorData};
use peergrad::prelude::*;

/// Two inputs, two hidden layers, two classes.
struct Spirals;

const HIDDEN: u32 = 32;
const TRAINED: u32 = 4000;
const HELD_OUT: u32 = 500;

/// Point `index`: its place, and on which of the two spirals it is.
fn point(index: u32) -> ([f32; 2], i64) {
    let along = (index.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
    let (radius, class) = (0.1 + along, i64::from(index % 2));
    let angle = 9.0 * along + std::f32::consts::PI * class as f32;
    ([radius * angle.cos(), radius * angle.sin()], class)
}

/// The outputs of these points, (points, classes), and the weights that they were computed from.
fn forward(parameters: &[f32], points: &[u32], device: &Device) -> (Tensor<2>, Vec<Tensor<2>>) {
    let manifest = Spirals.manifest();
    let weights = manifest.tensors().map(|(tensor, range)| {
        let shape = [tensor.shape[0] as usize, tensor.shape[1] as usize];
        Tensor::<2>::from_data(TensorData::new(parameters[range].to_vec(), shape), device).require_grad()
    });
    let weights: Vec<Tensor<2>> = weights.collect();
    let places: Vec<f32> = points.iter().flat_map(|&index| point(index).0).collect();
    let inputs = Tensor::from_data(TensorData::new(places, [points.len(), 2]), device);
    let dense = |values: Tensor<2>, layer: usize| {
        values.matmul(weights[2 * layer].clone()) + weights[2 * layer + 1].clone()
    };
    let hidden = tanh(dense(tanh(dense(inputs, 0)), 1));
    (dense(hidden, 2), weights)
}

impl Task for Spirals {
    fn manifest(&self) -> Manifest {
        let [inner, outer] = [[HIDDEN, HIDDEN], [1, HIDDEN]];
        Manifest::tensor("first.weight", [2, HIDDEN])
            .and("first.bias", outer)
            .and("second.weight", inner)
            .and("second.bias", outer)
            .and("last.weight", [HIDDEN, 2])
            .and("last.bias", [1, 2])
    }

    /// A simple rule, whose bits are the same on every machine.
    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        for (value, index) in parameters.iter_mut().zip(0_u64..) {
            let mixed = (seed ^ index)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(31)
                .wrapping_mul(0xd6e8_feb8_6659_fd93);
            *value = ((mixed >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.6;
        }
    }

    fn sample_count(&self) -> u32 {
        TRAINED
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        if samples.is_empty() {
            return 0.0;
        }
        let device = Device::flex().autodiff();
        let (outputs, weights) = forward(parameters, samples, &device);
        let classes: Vec<i64> = samples.iter().map(|&index| point(index).1).collect();
        let classes = Tensor::<2, Int>::from_data(TensorData::new(classes, [samples.len(), 1]), &device);
        let loss = log_softmax(outputs, 1).gather(1, classes).sum().neg();
        let mut gradients = loss.backward();
        let slopes = weights.iter().flat_map(|weight| {
            let slope = weight.grad_remove(&mut gradients).expect("every weight matters");
            slope.into_data().try_into_vec::<f32>().expect("slopes are f32")
        });
        gradient.iter_mut().zip(slopes).for_each(|(place, slope)| *place = slope);
        f64::from(loss.into_scalar::<f32>())
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let points: Vec<u32> = (TRAINED..TRAINED + HELD_OUT).collect();
        let (outputs, _) = forward(parameters, &points, &Device::flex());
        let shares = log_softmax(outputs, 1).into_data().try_into_vec::<f32>().expect("outputs are f32");
        let own = |(row, &index): (&[f32], &u32)| f64::from(row[point(index).1 as usize]);
        let own: Vec<f64> = shares.chunks(2).zip(&points).map(own).collect();
        let right = own.iter().filter(|share| **share > 0.5_f64.ln()).count();
        let count = f64::from(HELD_OUT);
        Evaluation {
            samples: HELD_OUT,
            loss: -own.iter().sum::<f64>() / count,
            accuracy: Some(right as f64 / count),
        }
    }
}

fn main() -> ExitCode {
    peergrad::train("spirals", Spirals)
        .optimizer(Optimizer::ADAM)
        .learning_rate(0.01)
        .epochs(60)
        .batch(64)
        .run()
}
