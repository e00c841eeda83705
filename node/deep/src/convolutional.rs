//! The forward pass of a convolutional network.

use burn_tensor::Tensor;
use burn_tensor::activation::{gelu_approximate, relu, tanh};
use burn_tensor::module::{avg_pool2d, conv2d, max_pool2d};
use burn_tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};
use peergrad_models::deep::ConvolutionalNet;
use peergrad_models::deep::convolutional::{BLOCK_GROUPS, PlacedLayer};
use peergrad_models::deep::layer::{BlockNorm, Layer};
use peergrad_models::task::activation::Activation;

use crate::dropout::drop_out;
use crate::training::Training;
use crate::weights::Weights;

/// The constant under the root of a norm, as in PyTorch.
const EPSILON: f64 = 1e-5;

/// What lies between two layers.
enum Value {
    /// (samples, channels, height, width)
    Picture(Tensor<4>),
    /// (samples, width)
    Row(Tensor<2>),
}

/// The outputs, (samples, outputs), of pictures (samples, channels, height, width).
pub(crate) fn forward(
    net: &ConvolutionalNet,
    weights: &Weights,
    pictures: Tensor<4>,
    training: Option<&Training<'_>>,
) -> Tensor<2> {
    let mut value = Value::Picture(pictures);
    let mut has_stage = false;
    for (place, placed) in net.layers().iter().enumerate() {
        if !placed.tensors.is_empty() {
            value = if has_stage { value.end_stage(training) } else { value };
            has_stage = true;
        }
        value = layer(placed, place, weights, value, training);
    }
    value.flat()
}

impl Value {
    fn flat(self) -> Tensor<2> {
        match self {
            Self::Picture(pictures) => pictures.flatten(1, 3),
            Self::Row(rows) => rows,
        }
    }

    /// A layer with tensors follows another one.
    fn end_stage(self, training: Option<&Training<'_>>) -> Self {
        match (training, self) {
            (None, value) => value,
            (Some(training), Self::Picture(pictures)) => Self::Picture(training.end_stage(pictures)),
            (Some(training), Self::Row(rows)) => Self::Row(training.end_stage(rows)),
        }
    }

    fn picture(self) -> Tensor<4> {
        match self {
            Self::Picture(pictures) => pictures,
            Self::Row(_) => panic!("the network has checked that a picture comes here"),
        }
    }
}

fn layer(
    placed: &PlacedLayer,
    place: usize,
    weights: &Weights,
    value: Value,
    training: Option<&Training<'_>>,
) -> Value {
    let first = placed.tensors.start;
    match placed.layer {
        Layer::Convolution { stride, padding, .. } => {
            let options = ConvOptions::new([stride; 2], [padding; 2], [1; 2], 1);
            Value::Picture(conv2d(value.picture(), weights.get(first), Some(weights.get(first + 1)), options))
        }
        Layer::Block { .. } => Value::Picture(block(placed, weights, value.picture(), training)),
        Layer::Norm { groups } => Value::Picture(group_norm(value.picture(), groups, weights, first)),
        Layer::BatchNorm => Value::Picture(batch_norm(value.picture(), weights, first, training)),
        Layer::Activation(activation) => match value {
            Value::Picture(pictures) => Value::Picture(activate(activation, pictures)),
            Value::Row(rows) => Value::Row(activate(activation, rows)),
        },
        Layer::MaxPool { size } => {
            Value::Picture(max_pool2d(value.picture(), MaxPoolOptions::new([size; 2])))
        }
        Layer::AveragePool { size } => {
            Value::Picture(avg_pool2d(value.picture(), AvgPoolOptions::new([size; 2])))
        }
        Layer::Mean => Value::Picture(value.picture().mean_dims(&[2, 3])),
        Layer::Dropout { share } => match (training, value) {
            (None, value) => value,
            (Some(training), Value::Picture(pictures)) => {
                Value::Picture(drop_out(pictures, share, place, training.seeds))
            }
            (Some(training), Value::Row(rows)) => Value::Row(drop_out(rows, share, place, training.seeds)),
        },
        Layer::Dense { .. } => {
            let products = value.flat().matmul(weights.get::<2>(first).transpose());
            Value::Row(products + weights.get::<1>(first + 1).unsqueeze())
        }
    }
}

/// relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)), as in ResNets. Its tensors are those of both convolutions, each before its norm's, and
/// the shortcut's.
fn block(
    placed: &PlacedLayer,
    weights: &Weights,
    pictures: Tensor<4>,
    training: Option<&Training<'_>>,
) -> Tensor<4> {
    let Layer::Block { channels, stride, norm } = placed.layer else { panic!("it is a block") };
    let norm_tensors = match norm {
        BlockNorm::Group => 2,
        BlockNorm::Batch => 4,
    };
    let normal = |values, first| match norm {
        BlockNorm::Group => group_norm(values, BLOCK_GROUPS.min(channels), weights, first),
        BlockNorm::Batch => batch_norm(values, weights, first, training),
    };
    let options = |stride, padding| ConvOptions::new([stride; 2], [padding; 2], [1; 2], 1);
    let first = placed.tensors.start;
    let second = first + 1 + norm_tensors;
    let shortcut = second + 1 + norm_tensors;
    let inner = conv2d(pictures.clone(), weights.get(first), None, options(stride, 1));
    let inner = relu(normal(inner, first + 1));
    let inner = conv2d(inner, weights.get(second), None, options(1, 1));
    let inner = normal(inner, second + 1);
    let beside = if placed.tensors.contains(&shortcut) {
        conv2d(pictures, weights.get(shortcut), None, options(stride, 0))
    } else {
        pictures
    };
    relu(inner + beside)
}

/// Batch normalization of pictures (samples, channels, height, width); its tensors are scale, offset, running mean and running variance. In
/// training the pictures have the mean and the variance of their own values, and the running ones move a tenth of the way there, as in
/// PyTorch.
fn batch_norm(
    pictures: Tensor<4>,
    weights: &Weights,
    first: usize,
    training: Option<&Training<'_>>,
) -> Tensor<4> {
    const MOMENTUM: f64 = 0.1;
    let [samples, channels, height, width] = pictures.dims();
    let of_channels = |values: Tensor<1>| values.reshape([1, channels, 1, 1]);
    let running = |index| weights.get::<1>(first + index);
    let (mean, variance) = match training {
        None => (of_channels(running(RUNNING_MEAN)), of_channels(running(RUNNING_VARIANCE))),
        Some(training) => {
            let mean = pictures.clone().mean_dims(&[0, 2, 3]);
            let variance = (pictures.clone() - mean.clone()).square().mean_dims(&[0, 2, 3]);
            // The running variance is an estimate of that of all values, from as many as these.
            let count = (samples * height * width) as f64;
            let estimated = variance.clone() * (count / (count - 1.0).max(1.0));
            for (index, found) in [(RUNNING_MEAN, mean.clone()), (RUNNING_VARIANCE, estimated)] {
                let moved = running(index) * (1.0 - MOMENTUM) + found.reshape([channels]) * MOMENTUM;
                training.measured(first + index, moved);
            }
            (mean, variance)
        }
    };
    let normal = (pictures - mean) / (variance + EPSILON).sqrt();
    normal * of_channels(weights.get(first)) + of_channels(weights.get(first + 1))
}

const RUNNING_MEAN: usize = 2;
const RUNNING_VARIANCE: usize = 3;

/// Group normalization of pictures (samples, channels, height, width); scale and offset are two tensors.
fn group_norm(pictures: Tensor<4>, groups: usize, weights: &Weights, first: usize) -> Tensor<4> {
    let [samples, channels, height, width] = pictures.dims();
    let grouped = pictures.reshape([samples, groups, channels / groups * height * width]);
    let (variance, mean) = grouped.clone().var_mean_bias(2);
    let normal = (grouped - mean) / (variance + EPSILON).sqrt();
    let of_channels = |index| weights.get::<1>(index).reshape([1, channels, 1, 1]);
    normal.reshape([samples, channels, height, width]) * of_channels(first) + of_channels(first + 1)
}

fn activate<const D: usize>(activation: Activation, values: Tensor<D>) -> Tensor<D> {
    match activation {
        Activation::Relu => relu(values),
        Activation::Tanh => tanh(values),
        Activation::Gelu => gelu_approximate(values),
    }
}
