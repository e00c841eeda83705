//! GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
//!
//! ```text
//! x = wte[token] + wpe[place]
//! each block     x += c_proj(attention(c_attn(ln_1(x))))     heads see the tokens before and their own
//!                x += c_proj(gelu(c_fc(ln_2(x))))            four times as wide inside
//! outputs        ln_f(x) wte^T                               the vocabulary's table is used twice
//! ```
//! The tensors have the names and shapes of a `GPT2LMHeadModel` of the library Transformers: weights of dense layers are (inputs, outputs).

use super::Transformer;
use crate::deep::tensors::{Start, TensorSpec};

/// The scale of the norm after the blocks. Its offset follows.
pub const LAST_NORM: usize = 0;
/// The tensors of what comes after the blocks.
pub(super) const TENSORS_AFTER: usize = 2;
/// The tensors of a block.
pub(super) const TENSORS_PER_BLOCK: usize = 12;
/// The tensors of what comes before the blocks: of tokens and of places.
pub(super) const TENSORS_BEFORE: usize = 2;

/// The ends of the names of the four dense layers of a block.
pub(super) const DENSE: &[&str] =
    &["attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"];

/// The first tensor of a block, among all of the network: the last block's come first.
#[must_use]
pub fn first_of_block(net: &Transformer, block: usize) -> usize {
    TENSORS_AFTER + (net.layers - 1 - block) * TENSORS_PER_BLOCK
}

/// The tensor of the tokens. That of the places follows.
#[must_use]
pub fn token_table(net: &Transformer) -> usize {
    TENSORS_AFTER + net.layers * TENSORS_PER_BLOCK
}

/// Its tensors.
pub(super) fn tensors(net: &Transformer) -> Vec<TensorSpec> {
    let width = net.width;
    let (normal, summed) = (net.normal(), net.summed());
    let (ones, zeros) = (Start::Constant(1.0), Start::Constant(0.0));
    let mut tensors = vec![];
    let mut add = |name: String, shape: &[usize], start| {
        tensors.push(TensorSpec::new(format!("transformer.{name}"), shape, start));
    };
    add("ln_f.weight".to_owned(), &[width], ones);
    add("ln_f.bias".to_owned(), &[width], zeros);
    for block in (0..net.layers).rev() {
        let mut add = |name: &str, shape: &[usize], start| add(format!("h.{block}.{name}"), shape, start);
        add("ln_1.weight", &[width], ones);
        add("ln_1.bias", &[width], zeros);
        add("attn.c_attn.weight", &[width, 3 * width], normal);
        add("attn.c_attn.bias", &[3 * width], zeros);
        add("attn.c_proj.weight", &[width, width], summed);
        add("attn.c_proj.bias", &[width], zeros);
        add("ln_2.weight", &[width], ones);
        add("ln_2.bias", &[width], zeros);
        add("mlp.c_fc.weight", &[width, 4 * width], normal);
        add("mlp.c_fc.bias", &[4 * width], zeros);
        add("mlp.c_proj.weight", &[4 * width, width], summed);
        add("mlp.c_proj.bias", &[width], zeros);
    }
    add("wte.weight".to_owned(), &[net.vocabulary, width], normal);
    add("wpe.weight".to_owned(), &[net.context, width], normal);
    tensors
}

/// The elements of all weights of a block's dense layers.
pub(super) fn block_weights(width: usize) -> usize {
    12 * width * width
}

/// About how many numbers a backward pass keeps of a token in one block, without the attention's.
pub(super) fn kept_per_token(width: usize) -> usize {
    40 * width
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deep::transformer::Family;

    #[test]
    fn tensors_are_those_of_gpt_2() {
        let small = Transformer {
            layers: 2,
            width: 8,
            heads: 2,
            context: 16,
            vocabulary: 256,
            dropout: 0.0,
            family: Family::Gpt2,
        };
        let tensors = small.tensors();
        assert_eq!(tensors.len(), TENSORS_BEFORE + 2 * TENSORS_PER_BLOCK + 2);
        let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap().shape.clone();
        assert_eq!(named("transformer.wte.weight"), [256, 8]);
        assert_eq!(named("transformer.wpe.weight"), [16, 8]);
        assert_eq!(named("transformer.h.1.attn.c_attn.weight"), [8, 24]);
        assert_eq!(named("transformer.h.0.mlp.c_proj.weight"), [32, 8]);
        assert_eq!(named("transformer.ln_f.bias"), [8]);
        assert_eq!(tensors[LAST_NORM].name, "transformer.ln_f.weight");
        assert_eq!(tensors[first_of_block(&small, 1)].name, "transformer.h.1.ln_1.weight");
        assert_eq!(tensors[token_table(&small)].name, "transformer.wte.weight");
    }
}
