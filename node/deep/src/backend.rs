//! The backend: from pieces to losses, gradients and outputs.

use std::ops::Range;

use burn_tensor::activation::log_softmax;
use burn_tensor::{Device, Int, Tensor, TensorData};
use peergrad_models::deep::{Architecture, Backend, Inputs, Piece, Targets};

use crate::convolutional;
use crate::training::Training;
use crate::transformer;
use crate::weights::Weights;

/// Computes with burn, on one device.
#[derive(Clone, Debug)]
pub struct Burn {
    plain: Device,
    /// The same device, whose tensors remember how they were computed.
    recording: Device,
}

impl Burn {
    /// On the processor.
    #[must_use]
    pub fn cpu() -> Self {
        Self::on(Device::flex())
    }

    fn on(device: Device) -> Self {
        Self { recording: device.clone().autodiff(), plain: device }
    }
}

impl Backend for Burn {
    fn gradient(
        &self,
        architecture: &Architecture,
        parameters: &[f32],
        count: usize,
        pieces: &(dyn Fn(usize) -> Piece + Sync),
        gradient: &mut [f32],
    ) -> f64 {
        gradient.fill(0.0);
        let weights = Weights::load(architecture, parameters, &self.plain);
        let sum = Sum { backend: self, architecture, weights: &weights, pieces };
        let at_once = Architecture::pieces_at_once(parameters.len());
        let starts = (0..count).step_by(at_once);
        starts.map(|start| sum.add(start..count.min(start + at_once), gradient)).sum()
    }

    fn outputs(&self, architecture: &Architecture, parameters: &[f32], inputs: &Inputs) -> Vec<f32> {
        let weights = Weights::load(architecture, parameters, &self.plain);
        let outputs = forward(architecture, &weights, inputs, None, &self.plain);
        outputs.into_data().try_into_vec::<f32>().expect("outputs are f32")
    }
}

/// A sum over pieces.
struct Sum<'a> {
    backend: &'a Burn,
    architecture: &'a Architecture,
    weights: &'a Weights,
    pieces: &'a (dyn Fn(usize) -> Piece + Sync),
}

impl Sum<'_> {
    /// Adds the gradients of these pieces to `gradient`, and returns their loss. Pieces are computed on the threads of the pool and added in
    /// an order that does not depend on these.
    fn add(&self, pieces: Range<usize>, gradient: &mut [f32]) -> f64 {
        if pieces.len() == 1 {
            return self.add_piece(pieces.start, gradient);
        }
        let middle = pieces.start + pieces.len() / 2;
        let mut second = vec![0.0; gradient.len()];
        let losses = rayon_core::join(
            || self.add(pieces.start..middle, gradient),
            || self.add(middle..pieces.end, &mut second),
        );
        gradient.iter_mut().zip(&second).for_each(|(sum, value)| *sum += value);
        losses.0 + losses.1
    }

    fn add_piece(&self, index: usize, gradient: &mut [f32]) -> f64 {
        let Piece { inputs, targets, weight, seeds } = (self.pieces)(index);
        let device = &self.backend.recording;
        // Tensors of its own: burn would otherwise keep one record of what several threads compute.
        let weights = self.weights.tracked();
        let training = Training::new(&seeds);
        let outputs = forward(self.architecture, &weights, &inputs, Some(&training), device);
        let loss = summed_loss(outputs, &targets, device) * weight;
        let mut gradients = loss.backward();
        weights.add_gradients(&mut gradients, gradient);
        for (tensor, values) in training.into_statistics() {
            weights.add_statistic(tensor, values, seeds.len(), gradient);
        }
        f64::from(loss.into_scalar::<f32>())
    }
}

/// The outputs, (rows, outputs).
fn forward(
    architecture: &Architecture,
    weights: &Weights,
    inputs: &Inputs,
    training: Option<&Training<'_>>,
    device: &Device,
) -> Tensor<2> {
    match (architecture, inputs) {
        (Architecture::Convolutional(net), Inputs::Pictures { values, count }) => {
            let shape = net.input();
            let data = TensorData::new(values.clone(), [*count, shape.channels, shape.height, shape.width]);
            convolutional::forward(net, weights, Tensor::from_data(data, device), training)
        }
        (Architecture::Transformer(net), Inputs::Tokens { tokens, count }) => {
            let length = tokens.len() / count;
            let tokens: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
            let tokens = Tensor::from_data(TensorData::new(tokens, [*count, length]), device);
            transformer::forward(net, weights, tokens, training.map(|training| training.seeds))
        }
        _ => panic!("inputs of another kind of network"),
    }
}

/// The loss of these outputs (rows, outputs), summed over the rows.
fn summed_loss(outputs: Tensor<2>, targets: &Targets, device: &Device) -> Tensor<1> {
    match targets {
        Targets::Classes(classes) => {
            let indices: Vec<i64> = classes.iter().map(|&class| i64::from(class)).collect();
            let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [classes.len(), 1]), device);
            log_softmax(outputs, 1).gather(1, indices).sum().neg()
        }
        Targets::Numbers(numbers) => {
            let numbers = TensorData::new(numbers.clone(), [numbers.len(), 1]);
            (outputs - Tensor::from_data(numbers, device)).square().sum() * 0.5
        }
    }
}
