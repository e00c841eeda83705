//! The backend: from pieces to losses, gradients and outputs.

use std::ops::Range;

use burn_tensor::activation::log_softmax;
use burn_tensor::{Device, Int, Tensor, TensorData};
use peergrad_models::deep::{Architecture, Backend, Inputs, Piece, Targets};
use peergrad_models::task::KnownGradient;

use crate::convolutional;
use crate::pass::Pass;
use crate::training::Training;
use crate::transformer;
use crate::weights::Weights;

/// Computes with burn, on one device.
#[derive(Clone, Debug)]
pub struct Burn {
    pub(crate) plain: Device,
    /// The same device, whose tensors remember how they were computed.
    pub(crate) recording: Device,
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
        mut finished: Option<&mut KnownGradient<'_>>,
    ) -> f64 {
        gradient.fill(0.0);
        #[cfg(feature = "wgpu")]
        if let Some(gpu) = self.gpu {
            return gpu.alone(|| self.gradient_in_turn(architecture, parameters, count, pieces, gradient));
        }
        let weights = Weights::load(architecture, parameters, &self.plain);
        let lengths = weights.lengths().collect();
        let sum = Sum { burn: self, architecture, weights: &weights, lengths, pieces };
        let at_once = Architecture::pieces_at_once(parameters.len());
        let mut loss = 0.0;
        for start in (0..count).step_by(at_once) {
            let pieces = start..count.min(start + at_once);
            // Before the last pieces nothing is known.
            loss = match finished.as_mut().filter(|_| pieces.end == count) {
                Some(finished) => sum.add_in_stages(pieces, loss, gradient, finished),
                None => loss + sum.add(pieces, gradient),
            };
        }
        loss
    }

    fn outputs(&self, architecture: &Architecture, parameters: &[f32], inputs: &Inputs) -> Vec<f32> {
        #[cfg(feature = "wgpu")]
        if let Some(gpu) = self.gpu {
            return gpu.alone(|| self.outputs_now(architecture, parameters, inputs));
        }
        self.outputs_now(architecture, parameters, inputs)
    }
}

/// A sum over pieces, which are computed on the threads of the pool, and added in an order that does not depend on these.
struct Sum<'a> {
    burn: &'a Burn,
    architecture: &'a Architecture,
    weights: &'a Weights,
    /// By tensor: its elements.
    lengths: Vec<usize>,
    pieces: &'a (dyn Fn(usize) -> Piece + Sync),
}

impl Sum<'_> {
    fn pass(&self, piece: usize, has_stages: bool) -> Pass {
        Pass::forward(self.burn, (self.architecture, self.weights), (self.pieces)(piece), has_stages)
    }

    /// Adds the gradients of these pieces to `gradient`, and returns their loss.
    fn add(&self, pieces: Range<usize>, gradient: &mut [f32]) -> f64 {
        if pieces.len() == 1 {
            let mut pass = self.pass(pieces.start, false);
            self.add_stage(std::slice::from_mut(&mut pass), &(0..self.lengths.len()), gradient);
            return loss_of(&[pass]);
        }
        let middle = pieces.start + pieces.len() / 2;
        let mut second = vec![0.0; gradient.len()];
        let losses = rayon_core::join(
            || self.add(pieces.start..middle, gradient),
            || self.add(middle..pieces.end, &mut second),
        );
        add(gradient, &second);
        losses.0 + losses.1
    }

    /// As [`add`](Self::add), for the last pieces, of which the second half, or all, go through a stage before any goes through the next one.
    /// `before` is the loss of the pieces before; returns that of all.
    fn add_in_stages(
        &self,
        pieces: Range<usize>,
        before: f64,
        gradient: &mut [f32],
        finished: &mut KnownGradient<'_>,
    ) -> f64 {
        // The intermediate values of all these passes are in memory at once, and no longer in a cache.
        let is_halved = pieces.len().div_ceil(2) >= PASSES_PER_THREAD * rayon_core::current_num_threads();
        let middle = if is_halved { pieces.start + pieces.len() / 2 } else { pieces.start };
        let loss_of_first = is_halved.then(|| self.add(pieces.start..middle, gradient));
        let mut passes = self.forward(middle..pieces.end);
        let loss = before + (loss_of_first.unwrap_or_default() + loss_of(&passes));
        let mut known = 0;
        for stage in self.architecture.stages() {
            let end = known + self.lengths[stage.clone()].iter().sum::<usize>();
            let sums = &mut gradient[known..end];
            if is_halved {
                let mut second = vec![0.0; sums.len()];
                self.add_stage(&mut passes, &stage, &mut second);
                add(sums, &second);
            } else {
                self.add_stage(&mut passes, &stage, sums);
            }
            known = end;
            finished(loss, &gradient[..known]);
        }
        loss
    }

    /// The forward passes of these pieces, in order.
    fn forward(&self, pieces: Range<usize>) -> Vec<Pass> {
        if pieces.len() <= 1 {
            return pieces.map(|piece| self.pass(piece, true)).collect();
        }
        let middle = pieces.start + pieces.len() / 2;
        let (mut passes, second) =
            rayon_core::join(|| self.forward(pieces.start..middle), || self.forward(middle..pieces.end));
        passes.extend(second);
        passes
    }

    /// Takes all passes back through a stage, and adds its gradients to `sums`.
    ///
    /// - `stage`: indices of tensors.
    /// - `sums`: (elements of the stage).
    fn add_stage(&self, passes: &mut [Pass], stage: &Range<usize>, sums: &mut [f32]) {
        if let [pass] = passes {
            let mut rest = sums;
            for (found, &length) in pass.backward(stage.clone()).into_iter().zip(&self.lengths[stage.clone()])
            {
                let (sums, after) = rest.split_at_mut(length);
                if let Some(found) = found {
                    add(sums, found.into_data().as_slice::<f32>().expect("gradients are f32"));
                }
                rest = after;
            }
            return;
        }
        let (first, second) = passes.split_at_mut(passes.len() / 2);
        let mut others = vec![0.0; sums.len()];
        rayon_core::join(
            || self.add_stage(first, stage, sums),
            || self.add_stage(second, stage, &mut others),
        );
        add(sums, &others);
    }
}

/// The fewest passes that go through stages together, for each thread: the less they are, the less of the all-reduce is hidden behind them.
const PASSES_PER_THREAD: usize = 4;

/// Adds values to sums.
fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// The loss of these passes, added in the order of their gradients.
fn loss_of(passes: &[Pass]) -> f64 {
    if let [pass] = passes {
        return f64::from(pass.loss().into_scalar::<f32>());
    }
    let (first, second) = passes.split_at(passes.len() / 2);
    loss_of(first) + loss_of(second)
}

/// The outputs, (rows, outputs).
pub(crate) fn forward(
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
            transformer::forward(net, weights, tokens, training)
        }
        _ => panic!("inputs of another kind of network"),
    }
}

/// The loss of these outputs (rows, outputs), summed over the rows.
pub(crate) fn summed_loss(outputs: Tensor<2>, targets: &Targets, device: &Device) -> Tensor<1> {
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
