//! The layers of GPT-2.

use burn_tensor::activation::gelu_approximate;
use burn_tensor::module::embedding;
use burn_tensor::{Int, Tensor};
use peergrad_models::deep::Transformer;
use peergrad_models::deep::transformer::gpt2::{LAST_NORM, first_of_block, token_table};

use super::Layers;
use crate::weights::Weights;

/// The constant under the root of a norm, as in GPT-2.
const EPSILON: f64 = 1e-5;

/// The layers of GPT-2, with their weights.
pub(super) struct Gpt2Layers<'a> {
    pub(super) net: &'a Transformer,
    pub(super) weights: &'a Weights,
}

impl Layers for Gpt2Layers<'_> {
    fn embedded(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let table = token_table(self.net);
        let places = self.weights.get::<2>(table + 1).narrow(0, 0, length).unsqueeze::<3>();
        embedding(self.weights.get::<2>(table), tokens) + places
    }

    fn before_attention(&self, block: usize, values: Tensor<3>) -> [Tensor<4>; 3] {
        let first = first_of_block(self.net, block);
        let (width, heads) = (self.net.width, self.net.heads);
        let [texts, length, _] = values.dims();
        let all = self.dense(self.norm(values, first), first + 2);
        [0, 1, 2].map(|part| {
            let part = all.clone().narrow(2, part * width, width);
            part.reshape([texts, length, heads, self.net.head_width()]).swap_dims(1, 2)
        })
    }

    fn after_attention(&self, block: usize, seen: Tensor<3>) -> Tensor<3> {
        self.dense(seen, first_of_block(self.net, block) + 4)
    }

    fn feed_forward(&self, block: usize, values: Tensor<3>) -> Tensor<3> {
        let first = first_of_block(self.net, block);
        let inner = gelu_approximate(self.dense(self.norm(values, first + 6), first + 8));
        self.dense(inner, first + 10)
    }

    fn outputs(&self, values: Tensor<3>) -> Tensor<2> {
        let values = self.norm(values, LAST_NORM).flatten::<2>(0, 1);
        values.matmul(self.weights.get::<2>(token_table(self.net)).transpose())
    }
}

impl Gpt2Layers<'_> {
    /// A dense layer, whose weights are (inputs, outputs).
    ///
    /// - `values`: (texts, length, inputs).
    fn dense(&self, values: Tensor<3>, first: usize) -> Tensor<3> {
        let weight = self.weights.get::<2>(first);
        let [texts, length, inputs] = values.dims();
        let [_, outputs] = weight.dims();
        let products = values.reshape([texts * length, inputs]).matmul(weight);
        (products + self.weights.get::<1>(first + 1).unsqueeze()).reshape([texts, length, outputs])
    }

    /// Layer normalization; scale and offset are two tensors.
    fn norm(&self, values: Tensor<3>, first: usize) -> Tensor<3> {
        let (variance, mean) = values.clone().var_mean_bias(2);
        let normal = (values - mean) / (variance + EPSILON).sqrt();
        normal * self.weights.get::<1>(first).unsqueeze() + self.weights.get::<1>(first + 1).unsqueeze()
    }
}
