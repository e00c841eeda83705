//! The layers of LLaMA.

use burn_tensor::activation::silu;
use burn_tensor::module::embedding;
use burn_tensor::{Int, Tensor, TensorData};
use peergrad_models::deep::transformer::llama::{BlockTensors, LAST_NORM, Rotations};
use peergrad_models::deep::{Llama, Transformer};

use super::Layers;
use crate::weights::Weights;

/// The layers of LLaMA, with their weights.
pub(super) struct LlamaLayers<'a> {
    net: &'a Transformer,
    llama: &'a Llama,
    weights: &'a Weights,
    /// (1, length, 1, head width / 2): how the numbers of a head are turned at each place.
    cosines: Tensor<4>,
    sines: Tensor<4>,
}

impl<'a> LlamaLayers<'a> {
    /// Those for such tokens: (texts, length).
    pub(super) fn new(
        net: &'a Transformer,
        llama: &'a Llama,
        weights: &'a Weights,
        tokens: &Tensor<2, Int>,
    ) -> Self {
        let [_, length] = tokens.dims();
        let Rotations { cosines, sines } = llama.rotations(length);
        let [cosines, sines] = [cosines, sines].map(|values| {
            let data = TensorData::new(values, [1, length, 1, llama.head_width / 2]);
            Tensor::from_data(data, &tokens.device())
        });
        Self { net, llama, weights, cosines, sines }
    }
}

impl Layers for LlamaLayers<'_> {
    fn embedded(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        embedding(self.weights.get::<2>(self.llama.token_table(self.net.layers)), tokens)
    }

    fn before_attention(&self, block: usize, values: Tensor<3>) -> [Tensor<4>; 3] {
        let [texts, length, _] = values.dims();
        let tensors = self.tensors(block);
        let values = self.norm(values, tensors.norm_before_attention);
        let [query, key, value] = tensors.qkv.map(|weight| {
            let found = self.dense(values.clone(), weight);
            let found = match self.llama.qkv_biases {
                true => found + self.weights.get::<1>(weight + 1).unsqueeze(),
                false => found,
            };
            let [_, _, width] = found.dims();
            found.reshape([texts, length, width / self.llama.head_width, self.llama.head_width])
        });
        [self.turned(query), self.turned(key), value].map(|values| values.swap_dims(1, 2))
    }

    fn after_attention(&self, block: usize, seen: Tensor<3>) -> Tensor<3> {
        self.dense(seen, self.tensors(block).output)
    }

    fn feed_forward(&self, block: usize, values: Tensor<3>) -> Tensor<3> {
        let tensors = self.tensors(block);
        let values = self.norm(values, tensors.norm_before_gate);
        let gate = silu(self.dense(values.clone(), tensors.gate));
        self.dense(gate * self.dense(values, tensors.up), tensors.down)
    }

    fn outputs(&self, values: Tensor<3>) -> Tensor<2> {
        let table = match self.llama.tied_embeddings {
            true => self.llama.token_table(self.net.layers),
            false => LAST_NORM + 1,
        };
        let values = self.norm(values, LAST_NORM).flatten::<2>(0, 1);
        values.matmul(self.weights.get::<2>(table).transpose())
    }
}

impl LlamaLayers<'_> {
    fn tensors(&self, block: usize) -> BlockTensors {
        self.llama.block(self.net.layers, block)
    }

    /// A dense layer without a bias, whose weights are (outputs, inputs).
    ///
    /// - `values`: (texts, length, inputs).
    fn dense(&self, values: Tensor<3>, weight: usize) -> Tensor<3> {
        let weight = self.weights.get::<2>(weight);
        let [texts, length, inputs] = values.dims();
        let [outputs, _] = weight.dims();
        let products = values.reshape([texts * length, inputs]).matmul(weight.transpose());
        products.reshape([texts, length, outputs])
    }

    /// Divides by the root of the mean square, and scales.
    fn norm(&self, values: Tensor<3>, scale: usize) -> Tensor<3> {
        let square = values.clone().square().mean_dim(2);
        let normal = values / (square + self.llama.norm_epsilon).sqrt();
        normal * self.weights.get::<1>(scale).unsqueeze()
    }

    /// Turns each head by the place of its token: its first half are the first coordinates of points, the second half the second ones.
    ///
    /// - `values`: (texts, length, heads, head width).
    fn turned(&self, values: Tensor<4>) -> Tensor<4> {
        let half = self.llama.head_width / 2;
        let [first, second] = [0, half].map(|start| values.clone().narrow(3, start, half));
        let (cosines, sines) = (&self.cosines, &self.sines);
        let turned = [
            first.clone() * cosines.clone() - second.clone() * sines.clone(),
            second * cosines.clone() + first * sines.clone(),
        ];
        Tensor::cat(turned.into(), 3)
    }
}
