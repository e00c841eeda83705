//! Transformers that continue a text: each token is predicted from those before it (Radford et al., "Language Models are Unsupervised
//! Multitask Learners", 2019).
//!
//! ```text
//! x = wte[token] + wpe[place]
//! each block     x += c_proj(attention(c_attn(ln_1(x))))     heads see the tokens before and their own
//!                x += c_proj(gelu(c_fc(ln_2(x))))            four times as wide inside
//! outputs        ln_f(x) wte^T                               the vocabulary's table is used twice
//! ```
//! The tensors have the names and shapes of a `GPT2LMHeadModel` of the library Transformers: weights of dense layers are (inputs, outputs).

use super::tensors::{Start, TensorSpec};

/// A transformer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transformer {
    /// Blocks.
    pub layers: usize,
    /// Numbers for each token between two blocks.
    pub width: usize,
    /// Heads of the attention, which share the width.
    pub heads: usize,
    /// Tokens of a text that it sees at once.
    pub context: usize,
    /// Different tokens.
    pub vocabulary: usize,
    /// The share of values that dropout leaves out: after the embeddings, in the attention and before each sum.
    pub dropout: f32,
}

/// The tensors of a block.
pub const TENSORS_PER_BLOCK: usize = 12;
/// Tensors before the blocks: of tokens and of places.
pub const TENSORS_BEFORE: usize = 2;

/// The bounds of a transformer.
pub const LAYERS_MAX: usize = 256;
/// The largest width.
pub const WIDTH_MAX: usize = 1 << 16;
/// The most tokens seen at once.
pub const CONTEXT_MAX: usize = 1 << 16;

impl Transformer {
    /// Why it cannot be built: the setting and what it may be; `None` if it can.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let bounds = |value: usize, max: usize| !(1..=max).contains(&value);
        if bounds(self.layers, LAYERS_MAX) {
            return Some(("layers", format!("1 to {LAYERS_MAX}")));
        }
        if bounds(self.width, WIDTH_MAX) {
            return Some(("width", format!("1 to {WIDTH_MAX}")));
        }
        if self.heads == 0 || !self.width.is_multiple_of(self.heads) {
            return Some(("heads", format!("a divisor of the width, {}", self.width)));
        }
        if bounds(self.context, CONTEXT_MAX) {
            return Some(("context", format!("1 to {CONTEXT_MAX} tokens")));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Some(("dropout", "0 up to, not including, 1".to_owned()));
        }
        None
    }

    /// The first values are those of GPT-2: normal with a deviation of 0.02, less for what is added up over the blocks.
    pub(super) fn tensors(&self) -> Vec<TensorSpec> {
        let width = self.width;
        let normal = Start::Normal { deviation: 0.02 };
        let summed = Start::Normal { deviation: 0.02 / (2.0 * self.layers as f32).sqrt() };
        let (ones, zeros) = (Start::Constant(1.0), Start::Constant(0.0));
        let mut tensors = vec![];
        let mut add = |name: String, shape: &[usize], start| {
            tensors.push(TensorSpec::new(format!("transformer.{name}"), shape, start));
        };
        add("wte.weight".to_owned(), &[self.vocabulary, width], normal);
        add("wpe.weight".to_owned(), &[self.context, width], normal);
        for block in 0..self.layers {
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
        add("ln_f.weight".to_owned(), &[width], ones);
        add("ln_f.bias".to_owned(), &[width], zeros);
        tensors
    }

    /// Products in one forward pass of a text: of weights and values, and of the attention.
    pub(super) fn products(&self) -> u64 {
        let [layers, width, context, vocabulary] =
            [self.layers, self.width, self.context, self.vocabulary].map(|number| number as u64);
        context * (layers * (12 * width * width + 2 * context * width) + vocabulary * width)
    }

    /// About how many numbers a backward pass keeps of one text.
    pub(super) fn kept_per_sample(&self) -> usize {
        let of_block = 40 * self.width + 6 * self.heads * self.context;
        self.context.saturating_mul(self.layers * of_block + 4 * self.vocabulary + 6 * self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Transformer =
        Transformer { layers: 2, width: 8, heads: 2, context: 16, vocabulary: 256, dropout: 0.0 };

    #[test]
    fn tensors_are_those_of_gpt_2() {
        let tensors = SMALL.tensors();
        assert_eq!(tensors.len(), TENSORS_BEFORE + 2 * TENSORS_PER_BLOCK + 2);
        let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap().shape.clone();
        assert_eq!(named("transformer.wte.weight"), [256, 8]);
        assert_eq!(named("transformer.wpe.weight"), [16, 8]);
        assert_eq!(named("transformer.h.1.attn.c_attn.weight"), [8, 24]);
        assert_eq!(named("transformer.h.0.mlp.c_proj.weight"), [32, 8]);
        assert_eq!(named("transformer.ln_f.bias"), [8]);
    }

    #[test]
    fn impossible_sizes_are_named() {
        assert_eq!(SMALL.problem(), None);
        let problem = |changed: Transformer| changed.problem().unwrap();
        assert_eq!(
            problem(Transformer { heads: 3, ..SMALL }),
            ("heads", "a divisor of the width, 8".to_owned())
        );
        assert_eq!(problem(Transformer { heads: 0, ..SMALL }).0, "heads");
        assert_eq!(problem(Transformer { layers: 0, ..SMALL }).0, "layers");
        assert_eq!(problem(Transformer { width: 1 << 17, ..SMALL }).0, "width");
        assert_eq!(problem(Transformer { context: 0, ..SMALL }).0, "context");
        assert_eq!(problem(Transformer { dropout: 1.0, ..SMALL }).0, "dropout");
        assert_eq!(problem(Transformer { dropout: f32::NAN, ..SMALL }).0, "dropout");
    }
}
