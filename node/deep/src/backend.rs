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
    pub(crate) plain: Device,
    /// The same device, whose tensors remember how they were computed.
    recording: Device,
    /// The GPU, if it is one.
    #[cfg(feature = "wgpu")]
    pub(crate) gpu: Option<&'static crate::gpu::Gpu>,
}

impl Burn {
    /// On the processor.
    #[must_use]
    pub fn cpu() -> Self {
        Self::on(Device::flex())
    }

    pub(crate) fn on(device: Device) -> Self {
        Self {
            recording: device.clone().autodiff(),
            plain: device,
            #[cfg(feature = "wgpu")]
            gpu: None,
        }
    }

    /// The loss of a piece, and the gradient of each tensor of the weights that it has.
    pub(crate) fn piece_gradient(
        &self,
        architecture: &Architecture,
        weights: &Weights,
        piece: Piece,
    ) -> (Tensor<1>, Vec<Option<Tensor<1>>>) {
        let Piece { inputs, targets, weight, seeds } = piece;
        // Tensors of its own: burn would otherwise keep one record of what several threads compute.
        let weights = weights.tracked();
        let training = Training::new(&seeds);
        let outputs = forward(architecture, &weights, &inputs, Some(&training), &self.recording);
        let loss = summed_loss(outputs, &targets, &self.recording) * weight;
        let mut gradients = loss.backward();
        let mut found = weights.gradients(&mut gradients);
        // A statistic counts once for each sample.
        for (tensor, value) in training.into_statistics() {
            found[tensor] = Some(value * seeds.len() as f32);
        }
        (loss.inner(), found)
    }

    fn outputs_now(&self, architecture: &Architecture, parameters: &[f32], inputs: &Inputs) -> Vec<f32> {
        let weights = Weights::load(architecture, parameters, &self.plain);
        let outputs = forward(architecture, &weights, inputs, None, &self.plain);
        outputs.into_data().try_into_vec::<f32>().expect("outputs are f32")
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
        #[cfg(feature = "wgpu")]
        if let Some(gpu) = self.gpu {
            return gpu.alone(|| self.gradient_in_turn(architecture, parameters, count, pieces, gradient));
        }
        let weights = Weights::load(architecture, parameters, &self.plain);
        let sum = Sum { backend: self, architecture, weights: &weights, pieces };
        let at_once = Architecture::pieces_at_once(parameters.len());
        let starts = (0..count).step_by(at_once);
        starts.map(|start| sum.add(start..count.min(start + at_once), gradient)).sum()
    }

    fn outputs(&self, architecture: &Architecture, parameters: &[f32], inputs: &Inputs) -> Vec<f32> {
        #[cfg(feature = "wgpu")]
        if let Some(gpu) = self.gpu {
            return gpu.alone(|| self.outputs_now(architecture, parameters, inputs));
        }
        self.outputs_now(architecture, parameters, inputs)
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
        let (loss, found) =
            self.backend.piece_gradient(self.architecture, self.weights, (self.pieces)(index));
        let mut rest = gradient;
        for (found, length) in found.into_iter().zip(self.weights.lengths()) {
            let (sums, after) = rest.split_at_mut(length);
            if let Some(found) = found {
                let found = found.into_data();
                let found = found.as_slice::<f32>().expect("gradients are f32");
                sums.iter_mut().zip(found).for_each(|(sum, value)| *sum += value);
            }
            rest = after;
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
