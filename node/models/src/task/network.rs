//! The network: dense layers with an activation between them, over one flat vector of parameters.
//!
//! Linear regression and softmax regression are networks without a hidden layer, so one forward and one backward pass
//! serve all built-in models.
//!
//! ```text
//! layer i      z = a W^T + b     (rows, outputs) = (rows, inputs) (inputs, outputs) + (outputs)
//!              a' = f(z)         f after hidden layers only; the slope f'(z) is kept for the way back
//! back         dz = da' * f'(z)  the loss gives dz of the last layer
//!              dW = dz^T a       (outputs, inputs) = (outputs, rows) (rows, inputs)
//!              db = sum of dz over rows
//!              da = dz W         (rows, inputs) = (rows, outputs) (outputs, inputs)
//! ```
//! Weights and biases are views into the flat vector, and their gradients views into the flat gradient: nothing is copied.
//!
//! # Invariants
//! - Manifest and initial values are the same bits on every machine. Outputs and gradients may differ in their last bits:
//!   the matrix kernel is chosen for the processor, and `exp` and `tanh` are those of the platform.

use std::ops::Range;

use ndarray::{Array2, ArrayView2, ArrayViewMut2};
use peergrad_protocol::manifest::Manifest;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::activation::Activation;
use super::loss::{Loss, Score};
use super::pieces::{COLUMNS, Piece, ROWS, join, share};
use super::product::{WriteMode, multiply};
use crate::data::dataset::Samples;

/// The most rows that one pass computes. Larger batches are computed in blocks of this size, so that scratch memory stays small.
pub const BLOCK_ROWS: usize = 256;

/// Dense layers and a loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    layers: Vec<Layer>,
    activation: Activation,
    loss: Loss,
}

/// One dense layer. Its parameters in the flat vector: weights (outputs, inputs) row-major, then biases (outputs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layer {
    inputs: usize,
    outputs: usize,
    /// Index of the first weight in the flat vector.
    start: usize,
}

/// Buffers for the forward and the backward pass of one block, allocated once for a network.
#[derive(Clone, Debug)]
pub struct Scratch {
    /// (block rows, features): the gathered rows of a batch.
    input: Array2<f32>,
    /// For each layer, (block rows, outputs): its outputs; in the backward pass, the gradient with respect to `z`.
    outputs: Vec<Array2<f32>>,
    /// For each hidden layer, (block rows, outputs): the slopes of its activation.
    slopes: Vec<Array2<f32>>,
}

impl Network {
    /// A network of `widths` values: features, one number for each hidden layer, outputs.
    ///
    /// # Panics
    /// If there are fewer than two widths, or one is 0.
    #[must_use]
    pub fn new(widths: &[usize], activation: Activation, loss: Loss) -> Self {
        assert!(widths.len() >= 2 && !widths.contains(&0), "layers of {widths:?}");
        let mut layers = Vec::with_capacity(widths.len() - 1);
        let mut start = 0;
        for pair in widths.windows(2) {
            let layer = Layer { inputs: pair[0], outputs: pair[1], start };
            start = layer.end();
            layers.push(layer);
        }
        Self { layers, activation, loss }
    }

    /// Linear regression: predicts one number from `features` numbers; half squared error.
    #[must_use]
    pub fn linear(features: usize) -> Self {
        Self::new(&[features, 1], Activation::default(), Loss::HalfSquaredError)
    }

    /// Softmax regression: predicts one of `classes` from `features` numbers; cross-entropy.
    #[must_use]
    pub fn softmax(features: usize, classes: usize) -> Self {
        Self::new(&[features, classes], Activation::default(), Loss::SoftmaxCrossEntropy)
    }

    /// The loss that training minimizes.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Features of a sample.
    #[must_use]
    pub fn features(&self) -> usize {
        self.layers[0].inputs
    }

    /// `layer.0.weight` (outputs, inputs), `layer.0.bias` (outputs), `layer.1.weight` and so on.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        let mut tensors = Vec::with_capacity(2 * self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let (inputs, outputs) = (layer.inputs as u32, layer.outputs as u32);
            tensors.push((format!("layer.{index}.weight"), vec![outputs, inputs]));
            tensors.push((format!("layer.{index}.bias"), vec![outputs]));
        }
        Manifest::new(tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())))
    }

    /// Fills `parameters` with initial values: biases 0, weights uniform in `-limit..limit`.
    ///
    /// The limit is sqrt(6 / inputs) before a relu or gelu (He et al., "Delving Deep into Rectifiers", 2015, equation 10) and
    /// sqrt(6 / (inputs + outputs)) elsewhere (Glorot and Bengio, "Understanding the difficulty of training deep feedforward
    /// neural networks", 2010, equation 16), which keep the size of values about the same from layer to layer.
    pub fn initial(&self, seed: u64, parameters: &mut [f32]) {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[16..23].copy_from_slice(b"initial");
        let mut generator = ChaCha8Rng::from_seed(key);
        for (index, layer) in self.layers.iter().enumerate() {
            let is_rectified = index + 1 < self.layers.len() && self.activation != Activation::Tanh;
            let spread = if is_rectified { layer.inputs } else { layer.inputs + layer.outputs };
            let limit = (6.0 / spread as f32).sqrt();
            let (weights, biases) = parameters[layer.start..layer.end()].split_at_mut(layer.bias());
            for weight in weights {
                *weight = limit * signed_unit(generator.next_u32());
            }
            biases.fill(0.0);
        }
    }

    /// Scratch for this network.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        let block = |layer: &Layer| Array2::zeros((BLOCK_ROWS, layer.outputs));
        Scratch {
            input: Array2::zeros((BLOCK_ROWS, self.features())),
            outputs: self.layers.iter().map(block).collect(),
            slopes: self.layers[..self.layers.len() - 1].iter().map(block).collect(),
        }
    }

    /// Overwrites `gradient` (parameters) with the gradient of the loss, summed over the `rows` of `samples`, and returns their score.
    pub fn gradient(
        &self,
        parameters: &[f32],
        samples: &Samples,
        rows: &[u32],
        scratch: &mut Scratch,
        gradient: &mut [f32],
    ) -> Score {
        if rows.is_empty() {
            gradient.fill(0.0);
        }
        let mut total = Score::default();
        for (index, rows) in rows.chunks(BLOCK_ROWS).enumerate() {
            let mode = if index == 0 { WriteMode::Replace } else { WriteMode::Add };
            total += self.block_gradient(parameters, samples, rows, scratch, mode, gradient);
        }
        total
    }

    /// Writes the gradient over a block of samples to `gradient`, or adds it to the values there, as `mode` says.
    fn block_gradient(
        &self,
        parameters: &[f32],
        samples: &Samples,
        rows: &[u32],
        scratch: &mut Scratch,
        mode: WriteMode,
        gradient: &mut [f32],
    ) -> Score {
        let count = rows.len();
        assert!(count <= BLOCK_ROWS, "{count} rows in one block");
        let Scratch { input, outputs, slopes } = scratch;
        for (place, &row) in rows_mut(&mut first_rows_mut(input, count)).zip(rows) {
            place.copy_from_slice(samples.row(row as usize));
        }
        let input = first_rows(input, count);
        self.forward(parameters, input, outputs, slopes);
        let label_of = |row: usize| rows[row] as usize;
        let last = self.layers.len() - 1;
        let score = self.loss.score(first_rows_mut(&mut outputs[last], count), &samples.labels, label_of);
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let (before, after) = outputs.split_at_mut(index);
            let change = first_rows(&after[0], count);
            let entering = before.last().map_or(input, |outputs| first_rows(outputs, count));
            layer.gradient(change, entering, mode, gradient);
            if let Some(entering) = before.last_mut() {
                let slopes = first_rows(&slopes[index - 1], count);
                layer.backward(parameters, change, slopes, first_rows_mut(entering, count));
            }
        }
        score
    }

    /// The score of a block of samples, the `rows` of `samples`.
    ///
    /// # Panics
    /// If there are more than [`BLOCK_ROWS`] rows.
    pub fn score(
        &self,
        parameters: &[f32],
        samples: &Samples,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) -> Score {
        assert!(rows.len() <= BLOCK_ROWS, "{} rows in one block", rows.len());
        let input = &samples.features[rows.start * samples.columns..rows.end * samples.columns];
        self.forward(parameters, matrix(input, rows.len()), &mut scratch.outputs, &mut scratch.slopes);
        let last = self.layers.len() - 1;
        let outputs = first_rows_mut(&mut scratch.outputs[last], rows.len());
        self.loss.score(outputs, &samples.labels, |row| rows.start + row)
    }

    /// The outputs for all of `samples`: (rows, outputs) row-major.
    #[must_use]
    pub fn outputs(&self, parameters: &[f32], samples: &Samples) -> Vec<f32> {
        let mut scratch = self.scratch();
        let last = self.layers.len() - 1;
        let mut outputs = Vec::with_capacity(samples.rows() * self.layers[last].outputs);
        for block in samples.features.chunks(BLOCK_ROWS * samples.columns) {
            let rows = block.len() / samples.columns;
            self.forward(parameters, matrix(block, rows), &mut scratch.outputs, &mut scratch.slopes);
            outputs.extend(first_rows(&scratch.outputs[last], rows));
        }
        outputs
    }

    /// Fills as many rows of every layer's outputs and slopes as `input` has.
    fn forward(
        &self,
        parameters: &[f32],
        input: ArrayView2<'_, f32>,
        outputs: &mut [Array2<f32>],
        slopes: &mut [Array2<f32>],
    ) {
        let rows = input.nrows();
        for (index, layer) in self.layers.iter().enumerate() {
            let (before, after) = outputs.split_at_mut(index);
            let entering = before.last().map_or(input, |outputs| first_rows(outputs, rows));
            let leaving = first_rows_mut(&mut after[0], rows);
            match slopes.get_mut(index) {
                Some(slopes) => {
                    let slopes = first_rows_mut(slopes, rows);
                    layer.forward_activated(parameters, entering, self.activation, (leaving, slopes));
                }
                None => layer.forward(parameters, entering, leaving),
            }
        }
    }
}

impl Layer {
    /// Where the biases start, counted from the layer's first parameter.
    fn bias(&self) -> usize {
        self.inputs * self.outputs
    }

    /// Where the next layer's parameters start in the flat vector.
    fn end(&self) -> usize {
        self.start + self.bias() + self.outputs
    }

    /// (outputs, inputs)
    fn weights<'a>(&self, parameters: &'a [f32]) -> ArrayView2<'a, f32> {
        matrix(&parameters[self.start..][..self.bias()], self.outputs)
    }

    /// z = a W^T + b
    fn forward(&self, parameters: &[f32], entering: ArrayView2<'_, f32>, outputs: ArrayViewMut2<'_, f32>) {
        share(outputs, self.inputs, &|piece, outputs| {
            self.forward_piece(parameters, entering, piece, outputs);
        });
    }

    /// a' = f(z) and the slopes f'(z), with the activation f.
    fn forward_activated(
        &self,
        parameters: &[f32],
        entering: ArrayView2<'_, f32>,
        activation: Activation,
        outputs_and_slopes: (ArrayViewMut2<'_, f32>, ArrayViewMut2<'_, f32>),
    ) {
        let work_each = self.inputs + activation.work();
        share(outputs_and_slopes, work_each, &|piece, (mut outputs, mut slopes)| {
            self.forward_piece(parameters, entering, piece, outputs.view_mut());
            for (outputs, slopes) in rows_mut(&mut outputs).zip(rows_mut(&mut slopes)) {
                activation.apply(outputs, slopes);
            }
        });
    }

    /// A piece of z.
    fn forward_piece(
        &self,
        parameters: &[f32],
        entering: ArrayView2<'_, f32>,
        Piece { rows, columns }: &Piece,
        mut outputs: ArrayViewMut2<'_, f32>,
    ) {
        let biases = &parameters[self.start + self.bias()..self.end()][columns.clone()];
        rows_mut(&mut outputs).for_each(|row| row.copy_from_slice(biases));
        let entering = entering.slice_axis(ROWS, rows.clone().into());
        let weights = self.weights(parameters).slice_axis_move(ROWS, columns.clone().into());
        multiply(entering, weights.reversed_axes(), WriteMode::Add, outputs);
    }

    /// dW = dz^T a, db = sum of dz over rows: written to `gradient`, or added to the values there.
    fn gradient(
        &self,
        change: ArrayView2<'_, f32>,
        entering: ArrayView2<'_, f32>,
        mode: WriteMode,
        gradient: &mut [f32],
    ) {
        let (weights, biases) = gradient[self.start..self.end()].split_at_mut(self.bias());
        let rows = entering.nrows();
        let of_weights = || {
            share(matrix_mut(weights, self.outputs), rows, &|piece, weights| {
                let change = change.slice_axis(COLUMNS, piece.rows.clone().into());
                let entering = entering.slice_axis(COLUMNS, piece.columns.clone().into());
                multiply(change.reversed_axes(), entering, mode, weights);
            });
        };
        let of_biases = || {
            if let WriteMode::Replace = mode {
                biases.fill(0.0);
            }
            for row in change.rows() {
                let row = row.to_slice().expect("the matrix lies row by row");
                biases.iter_mut().zip(row).for_each(|(bias, change)| *bias += change);
            }
        };
        join(rows * self.bias(), of_weights, of_biases);
    }

    /// dz of the layer before: da = dz W, times the slopes of that layer's activation. Written over a.
    fn backward(
        &self,
        parameters: &[f32],
        change: ArrayView2<'_, f32>,
        slopes: ArrayView2<'_, f32>,
        entering: ArrayViewMut2<'_, f32>,
    ) {
        let weights = self.weights(parameters);
        share(entering, self.outputs, &|Piece { rows, columns }, mut entering| {
            let change = change.slice_axis(ROWS, rows.clone().into());
            let weights = weights.slice_axis(COLUMNS, columns.clone().into());
            multiply(change, weights, WriteMode::Replace, entering.view_mut());
            let slopes = slopes.slice_axis(ROWS, rows.clone().into());
            entering *= &slopes.slice_axis(COLUMNS, columns.clone().into());
        });
    }
}

/// A slice as (rows, length / rows).
fn matrix(values: &[f32], rows: usize) -> ArrayView2<'_, f32> {
    let columns = values.len().checked_div(rows).unwrap_or(0);
    ArrayView2::from_shape((rows, columns), values).expect("rows of the same length")
}

/// As [`matrix`], to write to.
fn matrix_mut(values: &mut [f32], rows: usize) -> ArrayViewMut2<'_, f32> {
    let columns = values.len().checked_div(rows).unwrap_or(0);
    ArrayViewMut2::from_shape((rows, columns), values).expect("rows of the same length")
}

/// So many rows of a matrix.
fn first_rows(matrix: &Array2<f32>, count: usize) -> ArrayView2<'_, f32> {
    matrix.slice_axis(ROWS, (..count).into())
}

/// As [`first_rows`], to write to.
fn first_rows_mut(matrix: &mut Array2<f32>, count: usize) -> ArrayViewMut2<'_, f32> {
    matrix.slice_axis_mut(ROWS, (..count).into())
}

/// The rows of a matrix that lies row by row.
fn rows_mut<'a>(matrix: &'a mut ArrayViewMut2<'_, f32>) -> impl Iterator<Item = &'a mut [f32]> {
    matrix.rows_mut().into_iter().map(|row| row.into_slice().expect("the matrix lies row by row"))
}

/// Uniform in -1..1, from the upper 24 bits: every value is exact.
pub(super) fn signed_unit(bits: u32) -> f32 {
    const HALF: f32 = (1 << 23) as f32;
    ((bits >> 8) as f32 - HALF) / HALF
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::labels::Labels;

    /// Six samples of three features, from a fixed formula.
    fn samples(labels: Labels) -> Samples {
        Samples { features: (0..18).map(|i| ((i * 7 % 11) as f32 - 5.0) / 4.0).collect(), columns: 3, labels }
    }

    /// Compares the gradient with central differences, parameter by parameter.
    #[track_caller]
    fn check_gradient(network: &Network, labels: &Labels) {
        let samples = samples(labels.clone());
        let loss_at =
            |parameters: &[f32]| network.score(parameters, &samples, 0..6, &mut network.scratch()).loss;
        let count = network.manifest().parameter_count();
        let mut parameters = vec![0.0; count];
        network.initial(5, &mut parameters);
        // Biases that are not all alike, and keep relu away from its kink.
        parameters.iter_mut().enumerate().for_each(|(i, value)| *value += 0.03 + (i % 5) as f32 * 0.02);
        let mut gradient = vec![0.0; count];
        let rows = [5, 4, 3, 2, 1, 0];
        let score = network.gradient(&parameters, &samples, &rows, &mut network.scratch(), &mut gradient);
        assert!((score.loss - loss_at(&parameters)).abs() < 1e-6);
        let reach = 1e-2;
        for index in 0..count {
            let mut moved = parameters.clone();
            moved[index] = parameters[index] + reach;
            let above = loss_at(&moved);
            moved[index] = parameters[index] - reach;
            let slope = (above - loss_at(&moved)) / f64::from(2.0 * reach);
            let found = f64::from(gradient[index]);
            assert!((found - slope).abs() < 2e-3 * slope.abs().max(1.0), "{index}: {found} but {slope}");
        }
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let classes = Labels::Classes(vec![0, 3, 1, 2, 3, 1]);
        let numbers = Labels::Numbers(vec![0.5, -1.0, 2.0, 0.0, 1.0, 0.25]);
        check_gradient(&Network::linear(3), &numbers);
        check_gradient(&Network::softmax(3, 4), &classes);
        for activation in [Activation::Relu, Activation::Tanh, Activation::Gelu] {
            check_gradient(&Network::new(&[3, 5, 4], activation, Loss::SoftmaxCrossEntropy), &classes);
            check_gradient(&Network::new(&[3, 4, 6, 3, 1], activation, Loss::HalfSquaredError), &numbers);
            check_gradient(&Network::new(&[3, 4], activation, Loss::SquaredHinge), &classes);
        }
    }

    #[test]
    fn tensors_are_named_layer_by_layer() {
        let network = Network::new(&[64, 128, 10], Activation::Relu, Loss::SoftmaxCrossEntropy);
        let manifest = network.manifest();
        let found: Vec<_> =
            manifest.tensors().map(|(t, range)| (t.name.clone(), t.shape.clone(), range)).collect();
        assert_eq!(found[0], ("layer.0.weight".to_owned(), vec![128, 64], 0..8192));
        assert_eq!(found[1], ("layer.0.bias".to_owned(), vec![128], 8192..8320));
        assert_eq!(found[3].2.end, manifest.parameter_count());
    }

    #[test]
    fn initial_values_are_pinned_and_within_their_limits() {
        let network = Network::new(&[6, 50, 2], Activation::Relu, Loss::SoftmaxCrossEntropy);
        let mut parameters = vec![f32::NAN; network.manifest().parameter_count()];
        network.initial(1, &mut parameters);
        let (first, rest) = parameters.split_at(350);
        assert!(first[..300].iter().all(|weight| weight.abs() <= 1.0), "sqrt(6 / 6)");
        assert!(first[..300].iter().any(|weight| weight.abs() > 0.9));
        assert!(rest[..100].iter().all(|weight| weight.abs() <= (6.0_f32 / 52.0).sqrt()));
        assert!(first[300..].iter().chain(&rest[100..]).all(|&bias| bias == 0.0));
        assert_eq!(
            parameters[..2].iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
            [0xbf79_8a72, 0x3f22_3528]
        );
    }
}
