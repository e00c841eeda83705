//! The forward pass of a convolutional network.

use burn_tensor::Tensor;
use burn_tensor::activation::{gelu_approximate, relu, tanh};
use burn_tensor::module::{avg_pool2d, conv2d, max_pool2d};
use burn_tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};
use peergrad_models::deep::ConvolutionalNet;
use peergrad_models::deep::convolutional::{BLOCK_GROUPS, PlacedLayer};
use peergrad_models::deep::layer::Layer;
use peergrad_models::task::activation::Activation;

use crate::dropout::drop_out;
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

/// The outputs, (samples, outputs), of pictures (samples, channels, height, width). `seeds` are those of the samples, if they are trained.
pub(crate) fn forward(
    net: &ConvolutionalNet,
    weights: &Weights,
    pictures: Tensor<4>,
    seeds: Option<&[u64]>,
) -> Tensor<2> {
    let mut value = Value::Picture(pictures);
    for (place, placed) in net.layers().iter().enumerate() {
        value = layer(placed, place, weights, value, seeds);
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
    seeds: Option<&[u64]>,
) -> Value {
    let first = placed.tensors.start;
    match placed.layer {
        Layer::Convolution { stride, padding, .. } => {
            let options = ConvOptions::new([stride; 2], [padding; 2], [1; 2], 1);
            Value::Picture(conv2d(value.picture(), weights.get(first), Some(weights.get(first + 1)), options))
        }
        Layer::Block { stride, channels } => {
            Value::Picture(block(placed, weights, value.picture(), stride, BLOCK_GROUPS.min(channels)))
        }
        Layer::Norm { groups } => Value::Picture(norm(value.picture(), groups, weights, first)),
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
        Layer::Dropout { share } => match (seeds, value) {
            (None, value) => value,
            (Some(seeds), Value::Picture(pictures)) => {
                Value::Picture(drop_out(pictures, share, place, seeds))
            }
            (Some(seeds), Value::Row(rows)) => Value::Row(drop_out(rows, share, place, seeds)),
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
    stride: usize,
    groups: usize,
) -> Tensor<4> {
    let first = placed.tensors.start;
    let options = |stride, padding| ConvOptions::new([stride; 2], [padding; 2], [1; 2], 1);
    let inner = conv2d(pictures.clone(), weights.get(first), None, options(stride, 1));
    let inner = relu(norm(inner, groups, weights, first + 1));
    let inner = conv2d(inner, weights.get(first + 3), None, options(1, 1));
    let inner = norm(inner, groups, weights, first + 4);
    let has_shortcut = placed.tensors.len() > 6;
    let shortcut = if has_shortcut {
        conv2d(pictures, weights.get(first + 6), None, options(stride, 0))
    } else {
        pictures
    };
    relu(inner + shortcut)
}

/// Group normalization of pictures (samples, channels, height, width); scale and offset are two tensors.
fn norm(pictures: Tensor<4>, groups: usize, weights: &Weights, first: usize) -> Tensor<4> {
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
