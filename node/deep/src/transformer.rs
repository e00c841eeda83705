//! The forward pass of a transformer.

use burn_tensor::activation::{gelu_approximate, softmax};
use burn_tensor::module::embedding;
use burn_tensor::{Bool, Int, Tensor};
use peergrad_models::deep::Transformer;
use peergrad_models::deep::transformer::{TENSORS_BEFORE, TENSORS_PER_BLOCK};

use crate::dropout::drop_out;
use crate::weights::Weights;

/// The constant under the root of a norm, as in GPT-2.
const EPSILON: f64 = 1e-5;
/// What stands for the output of a token that may not be seen.
const UNSEEN: f32 = -1e9;

/// The outputs, (texts x length, vocabulary), of texts (texts, length). `seeds` are those of the texts, if they are trained.
pub(crate) fn forward(
    net: &Transformer,
    weights: &Weights,
    tokens: Tensor<2, Int>,
    seeds: Option<&[u64]>,
) -> Tensor<2> {
    let [texts, length] = tokens.dims();
    let device = tokens.device();
    let pass = Pass { net, weights, seeds, texts, length };
    let places = weights.get::<2>(1).narrow(0, 0, length).unsqueeze::<3>();
    let table = weights.get::<2>(0);
    let mut values = pass.drop_out(embedding(table.clone(), tokens) + places, 0);
    // True where a token would see a later one.
    let later = Tensor::<2, Bool>::tril_mask([length, length], 0, &device).reshape([1, 1, length, length]);
    let later = later.expand([texts, net.heads, length, length]);
    for block in 0..net.layers {
        values = pass.block(block, values, &later);
    }
    let last = TENSORS_BEFORE + net.layers * TENSORS_PER_BLOCK;
    let values = pass.norm(values, last).reshape([texts * length, net.width]);
    values.matmul(table.transpose())
}

/// One pass over some texts.
struct Pass<'a> {
    net: &'a Transformer,
    weights: &'a Weights,
    seeds: Option<&'a [u64]>,
    texts: usize,
    length: usize,
}

impl Pass<'_> {
    /// One block.
    ///
    /// - `values`: (texts, length, width).
    /// - `later`: (texts, heads, length, length).
    fn block(&self, block: usize, values: Tensor<3>, later: &Tensor<4, Bool>) -> Tensor<3> {
        let first = TENSORS_BEFORE + block * TENSORS_PER_BLOCK;
        // Each block draws at three places, after the one of the embeddings.
        let place = 1 + 3 * block;
        let seen = self.attention(self.norm(values.clone(), first), first + 2, later, place);
        let values = values + self.drop_out(seen, place + 1);
        let inner = gelu_approximate(self.dense(self.norm(values.clone(), first + 6), first + 8));
        values + self.drop_out(self.dense(inner, first + 10), place + 2)
    }

    /// Each token gets the mean of what it sees, weighted by how well its question fits their keys.
    ///
    /// - `values`: (texts, length, width).
    fn attention(&self, values: Tensor<3>, first: usize, later: &Tensor<4, Bool>, place: usize) -> Tensor<3> {
        let (texts, length, heads) = (self.texts, self.length, self.net.heads);
        let of_head = self.net.width / heads;
        let all = self.dense(values, first);
        let [question, key, value] = [0, 1, 2].map(|part| {
            let part = all.clone().narrow(2, part * self.net.width, self.net.width);
            part.reshape([texts, length, heads, of_head]).swap_dims(1, 2)
        });
        let fit = question.matmul(key.transpose()) / (of_head as f64).sqrt();
        let shares = softmax(fit.mask_fill(later.clone(), UNSEEN), 3);
        let seen = self.drop_out(shares, place).matmul(value);
        self.dense(seen.swap_dims(1, 2).reshape([texts, length, self.net.width]), first + 2)
    }

    /// A dense layer, whose weights are (inputs, outputs).
    ///
    /// - `values`: (texts, length, inputs).
    fn dense(&self, values: Tensor<3>, first: usize) -> Tensor<3> {
        let weight = self.weights.get::<2>(first);
        let [inputs, outputs] = weight.dims();
        let products = values.reshape([self.texts * self.length, inputs]).matmul(weight);
        (products + self.weights.get::<1>(first + 1).unsqueeze()).reshape([self.texts, self.length, outputs])
    }

    /// Layer normalization; scale and offset are two tensors.
    fn norm(&self, values: Tensor<3>, first: usize) -> Tensor<3> {
        let (variance, mean) = values.clone().var_mean_bias(2);
        let normal = (values - mean) / (variance + EPSILON).sqrt();
        normal * self.weights.get::<1>(first).unsqueeze() + self.weights.get::<1>(first + 1).unsqueeze()
    }

    fn drop_out<const D: usize>(&self, values: Tensor<D>, place: usize) -> Tensor<D> {
        match self.seeds {
            Some(seeds) => drop_out(values, self.net.dropout, place, seeds),
            None => values,
        }
    }
}
