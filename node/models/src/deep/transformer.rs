//! Transformers that continue a text: each token is predicted from those before it.
//!
//! Families of them differ in their norms, in how a token knows its place, and in what is inside a block. Each family has a file: [`gpt2`] and
//! [`llama`].

use std::iter;
use std::ops::Range;

use super::tensors::{Start, TensorSpec};

pub mod gpt2;
pub mod llama;

pub use llama::Llama;

/// A transformer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transformer {
    /// Blocks.
    pub layers: usize,
    /// Numbers for each token between two blocks.
    pub width: usize,
    /// Heads of the attention. Those of GPT-2 share the width.
    pub heads: usize,
    /// Tokens of a text that it sees at once.
    pub context: usize,
    /// Different tokens.
    pub vocabulary: usize,
    /// The share of values that dropout leaves out: after the embeddings, in the attention and before each sum.
    pub dropout: f32,
    /// What is inside.
    pub family: Family,
}

/// Transformers of the same construction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// GPT-2.
    Gpt2,
    /// LLaMA, and others that are built like it.
    Llama(Llama),
}

/// How the weight of a dense layer lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightOrder {
    /// (inputs, outputs)
    InputsFirst,
    /// (outputs, inputs)
    OutputsFirst,
}

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
        let of_family = match &self.family {
            Family::Gpt2 if self.heads == 0 || !self.width.is_multiple_of(self.heads) => {
                Some(("heads", format!("a divisor of the width, {}", self.width)))
            }
            Family::Gpt2 => None,
            Family::Llama(llama) => llama.problem(self.heads),
        };
        if of_family.is_some() {
            return of_family;
        }
        if bounds(self.context, CONTEXT_MAX) {
            return Some(("context", format!("1 to {CONTEXT_MAX} tokens")));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Some(("dropout", "0 up to, not including, 1".to_owned()));
        }
        None
    }

    /// Numbers of a head.
    #[must_use]
    pub fn head_width(&self) -> usize {
        match &self.family {
            Family::Gpt2 => self.width / self.heads,
            Family::Llama(llama) => llama.head_width,
        }
    }

    /// Heads of keys and values.
    #[must_use]
    pub fn kv_heads(&self) -> usize {
        match &self.family {
            Family::Gpt2 => self.heads,
            Family::Llama(llama) => llama.kv_heads,
        }
    }

    /// The first values are those of GPT-2: normal with a deviation of 0.02, less for what is added up over the blocks.
    pub(super) fn tensors(&self) -> Vec<TensorSpec> {
        match &self.family {
            Family::Gpt2 => gpt2::tensors(self),
            Family::Llama(llama) => llama.tensors(self),
        }
    }

    /// The tensors of each stage, from the last one to the first: what follows the blocks, each block, and what precedes them.
    pub(super) fn stages(&self) -> Vec<Range<usize>> {
        let (after, of_block, before) = match &self.family {
            Family::Gpt2 => (gpt2::TENSORS_AFTER, gpt2::TENSORS_PER_BLOCK, gpt2::TENSORS_BEFORE),
            Family::Llama(llama) => (llama.tensors_after(), llama.tensors_per_block(), llama::TENSORS_BEFORE),
        };
        let lengths = iter::once(after).chain(iter::repeat_n(of_block, self.layers)).chain([before]);
        let stages = lengths.scan(0, |end, length| {
            *end += length;
            Some(*end - length..*end)
        });
        stages.collect()
    }

    /// How most weights start.
    fn normal(&self) -> Start {
        Start::Normal { deviation: 0.02 }
    }

    /// How weights start whose outputs are added up over the blocks.
    fn summed(&self) -> Start {
        Start::Normal { deviation: 0.02 / (2.0 * self.layers as f32).sqrt() }
    }

    /// Whether a tensor is the weight of a dense layer in a block.
    pub(super) fn is_dense_weight(&self, name: &str) -> bool {
        let dense = match self.family {
            Family::Gpt2 => gpt2::DENSE,
            Family::Llama(_) => llama::DENSE,
        };
        dense.iter().any(|ending| name.ends_with(ending))
    }

    /// How the weights of its dense layers lie in memory.
    pub(super) fn weight_order(&self) -> WeightOrder {
        match self.family {
            Family::Gpt2 => WeightOrder::InputsFirst,
            Family::Llama(_) => WeightOrder::OutputsFirst,
        }
    }

    /// Products in one forward pass of a text: of weights and values, and of the attention.
    pub(super) fn products(&self) -> u64 {
        let of_block = match &self.family {
            Family::Gpt2 => gpt2::block_weights(self.width),
            Family::Llama(llama) => llama.block_weights(self.width, self.heads),
        };
        let attention = self.heads * self.head_width();
        let [layers, width, context, vocabulary, attention, of_block] =
            [self.layers, self.width, self.context, self.vocabulary, attention, of_block]
                .map(|number| number as u64);
        context * (layers * (of_block + 2 * context * attention) + vocabulary * width)
    }

    /// About how many numbers a backward pass keeps of one text.
    pub(super) fn kept_per_sample(&self) -> usize {
        let of_family = match &self.family {
            Family::Gpt2 => gpt2::kept_per_token(self.width),
            Family::Llama(llama) => llama.kept_per_token(self.width, self.heads),
        };
        let of_block = of_family + 6 * self.heads * self.context;
        self.context.saturating_mul(self.layers * of_block + 4 * self.vocabulary + 6 * self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Transformer = Transformer {
        layers: 2,
        width: 8,
        heads: 2,
        context: 16,
        vocabulary: 256,
        dropout: 0.0,
        family: Family::Gpt2,
    };

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

    #[test]
    fn stages_go_from_the_outputs_to_the_embeddings() {
        let llama = Llama { qkv_biases: true, ..Llama::new(8, 2) };
        let tied = Llama { tied_embeddings: true, ..llama };
        for family in [Family::Gpt2, Family::Llama(llama), Family::Llama(tied)] {
            let net = Transformer { family, ..SMALL };
            let (tensors, stages) = (net.tensors(), net.stages());
            let names =
                |stage: usize| tensors[stages[stage].clone()].iter().map(|tensor| tensor.name.as_str());
            assert_eq!(stages.len(), 4);
            assert!(
                names(0).all(|name| name.contains("norm") || name.contains("ln_f") || name.contains("head"))
            );
            assert!(names(1).all(|name| name.contains(".1.")) && names(2).all(|name| name.contains(".0.")));
            assert!(
                names(3).all(|name| name.contains("embed") || name.contains("wte") || name.contains("wpe"))
            );
            assert_eq!(
                stages.into_iter().flatten().collect::<Vec<_>>(),
                (0..tensors.len()).collect::<Vec<_>>()
            );
        }
    }
}
