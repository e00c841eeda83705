//! The forward pass of a transformer: what all families have. The rest has a file for each.

use burn_tensor::activation::softmax;
use burn_tensor::{Bool, Int, Tensor};
use peergrad_models::deep::{Family, Transformer};

use crate::dropout::drop_out;
use crate::training::Training;
use crate::weights::Weights;

mod gpt2;
mod llama;

use gpt2::Gpt2Layers;
use llama::LlamaLayers;

/// What stands for the output of a token that may not be seen.
const UNSEEN: f32 = -1e9;

/// The layers of a transformer, of which each family has its own.
trait Layers {
    /// What goes into the first block: (texts, length, width).
    fn embedded(&self, tokens: Tensor<2, Int>) -> Tensor<3>;

    /// What comes before the attention: queries (texts, heads, length, head width), and keys and values (texts, key-value heads, length, head
    /// width).
    ///
    /// - `values`: (texts, length, width).
    fn before_attention(&self, block: usize, values: Tensor<3>) -> [Tensor<4>; 3];

    /// The dense layer behind the attention: (texts, length, width).
    ///
    /// - `seen`: (texts, length, heads x head width).
    fn after_attention(&self, block: usize, seen: Tensor<3>) -> Tensor<3>;

    /// The second half of a block, where each token is alone: (texts, length, width).
    ///
    /// - `values`: (texts, length, width).
    fn feed_forward(&self, block: usize, values: Tensor<3>) -> Tensor<3>;

    /// The outputs, (texts x length, vocabulary), from what comes out of the last block.
    fn outputs(&self, values: Tensor<3>) -> Tensor<2>;
}

/// The outputs, (texts x length, vocabulary), of texts (texts, length).
pub(crate) fn forward(
    net: &Transformer,
    weights: &Weights,
    tokens: Tensor<2, Int>,
    training: Option<&Training<'_>>,
) -> Tensor<2> {
    match &net.family {
        Family::Gpt2 => forward_through(&Gpt2Layers { net, weights }, net, tokens, training),
        Family::Llama(llama) => {
            let layers = LlamaLayers::new(net, llama, weights, &tokens);
            forward_through(&layers, net, tokens, training)
        }
    }
}

fn forward_through(
    layers: &impl Layers,
    net: &Transformer,
    tokens: Tensor<2, Int>,
    training: Option<&Training<'_>>,
) -> Tensor<2> {
    let [texts, length] = tokens.dims();
    // True where a token would see a later one.
    let later = Tensor::<2, Bool>::tril_mask([length, length], 0, &tokens.device());
    let later = later.reshape([1, 1, length, length]).expand([texts, net.heads, length, length]);
    let pass = Pass { net, training, later };
    let mut values = pass.drop_out(layers.embedded(tokens), 0);
    for block in 0..net.layers {
        values = pass.end_stage(values);
        // Each block draws at three places, after the one of the embeddings.
        let place = 1 + 3 * block;
        let seen = pass.attention(layers.before_attention(block, values.clone()), place);
        values = values + pass.drop_out(layers.after_attention(block, seen), place + 1);
        let added = layers.feed_forward(block, values.clone());
        values = values + pass.drop_out(added, place + 2);
    }
    layers.outputs(pass.end_stage(values))
}

/// One pass over some texts.
struct Pass<'a> {
    net: &'a Transformer,
    training: Option<&'a Training<'a>>,
    /// (texts, heads, length, length)
    later: Tensor<4, Bool>,
}

impl Pass<'_> {
    /// Each token gets the mean of what it sees, weighted by how well its query fits their keys: (texts, length, heads x head width).
    ///
    /// Heads that share a key are multiplied with it together, as if their queries were further tokens.
    ///
    /// - `query`: (texts, heads, length, head width).
    /// - `key`, `value`: (texts, key-value heads, length, head width).
    fn attention(&self, [query, key, value]: [Tensor<4>; 3], place: usize) -> Tensor<3> {
        let [texts, heads, length, head_width] = query.dims();
        let kv_heads = self.net.kv_heads();
        let rows = heads / kv_heads * length;
        let together = |values: Tensor<4>, columns| reshaped(values, [texts, kv_heads, rows, columns]);
        let apart = |values: Tensor<4>, columns| reshaped(values, [texts, heads, length, columns]);
        let fit = together(query, head_width).matmul(key.transpose()) / (head_width as f64).sqrt();
        let shares = softmax(apart(fit, length).mask_fill(self.later.clone(), UNSEEN), 3);
        let seen = together(self.drop_out(shares, place), length).matmul(value);
        apart(seen, head_width).swap_dims(1, 2).reshape([texts, length, heads * head_width])
    }

    fn drop_out<const D: usize>(&self, values: Tensor<D>, place: usize) -> Tensor<D> {
        match self.training {
            Some(training) => drop_out(values, self.net.dropout, place, training.seeds),
            None => values,
        }
    }

    fn end_stage(&self, values: Tensor<3>) -> Tensor<3> {
        match self.training {
            Some(training) => training.end_stage(values),
            None => values,
        }
    }
}

/// The same values in another shape; nothing is recorded if they have it already.
fn reshaped(values: Tensor<4>, shape: [usize; 4]) -> Tensor<4> {
    if values.dims() == shape { values } else { values.reshape(shape) }
}
