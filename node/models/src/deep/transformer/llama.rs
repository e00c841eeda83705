//! LLaMA (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023), and the models built like it.
//!
//! ```text
//! x = embed_tokens[token]
//! each block     x += o_proj(attention(rope(q), rope(k), v))       q, k, v = q_proj(n), k_proj(n), v_proj(n), where n = input_layernorm(x)
//!                x += down_proj(silu(gate_proj(n)) up_proj(n))     n = post_attention_layernorm(x)
//! outputs        lm_head(norm(x))                                  or norm(x) embed_tokens^T, if they are tied
//! ```
//! - Norms divide by the root of the mean square, and have no offset (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).
//! - A token's place turns its queries and keys: number `i` of a head and number `i + head_width / 2` are turned as a point of the plane, by the
//!   place times `theta^(-2 i / head_width)` (Su et al., "RoFormer", 2021, section 3.4; Transformers pairs the numbers in this way).
//! - Several heads may share a key and a value (Ainslie et al., "GQA", 2023).
//!
//! The tensors have the names and shapes of a `LlamaForCausalLM` of the library Transformers: weights of dense layers are (outputs, inputs). With
//! biases of queries, keys and values they are those of a `Qwen2ForCausalLM`.

use serde::{Deserialize, Serialize};

use super::{Transformer, WIDTH_MAX};
use crate::deep::tensors::{Start, TensorSpec};

/// What a LLaMA has beside the sizes of every transformer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Llama {
    /// Heads of keys and values: a divisor of the heads of queries.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_width: usize,
    /// Numbers inside the second half of a block.
    pub hidden_width: usize,
    /// How slowly the slowest numbers of a head turn.
    pub rope_theta: f64,
    /// The constant under the root of a norm.
    pub norm_epsilon: f64,
    /// Whether the outputs use the table of tokens again.
    pub tied_embeddings: bool,
    /// Whether queries, keys and values have biases.
    pub qkv_biases: bool,
}

/// Where the tensors of a block are, among all of the network. A bias follows its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTensors {
    /// The weights of queries, keys and values.
    pub qkv: [usize; 3],
    /// The weight of the attention's last dense layer.
    pub output: usize,
    /// The weight of the gate.
    pub gate: usize,
    /// The weight beside the gate.
    pub up: usize,
    /// The weight of the block's last dense layer.
    pub down: usize,
    /// The scale of the norm before the attention.
    pub norm_before_attention: usize,
    /// The scale of the norm before the gate.
    pub norm_before_gate: usize,
}

/// The angles' cosines and sines, each (length, head width / 2) row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotations {
    /// Cosines.
    pub cosines: Vec<f32>,
    /// Sines.
    pub sines: Vec<f32>,
}

/// The ends of the names of the seven dense layers of a block.
pub(super) const DENSE: &[&str] = &[
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
];

/// The scale of the norm after the blocks. The table of the outputs follows, if they have one.
pub const LAST_NORM: usize = 0;
/// The tensors of what comes before the blocks: of tokens.
pub(super) const TENSORS_BEFORE: usize = 1;
/// The largest width inside the second half of a block.
const HIDDEN_WIDTH_MAX: usize = 4 * WIDTH_MAX;

impl Llama {
    /// One of these heads in a network of this width, with the settings that most have.
    #[must_use]
    pub fn new(width: usize, heads: usize) -> Self {
        /// Hidden widths are rounded up to a multiple of this.
        const MULTIPLE: usize = 32;
        Self {
            kv_heads: heads,
            head_width: width / heads.max(1),
            hidden_width: (8 * width).div_ceil(3).next_multiple_of(MULTIPLE),
            rope_theta: 10_000.0,
            norm_epsilon: 1e-5,
            tied_embeddings: false,
            qkv_biases: false,
        }
    }

    /// Where the tensors of a block are, in a network of so many layers: the last block's come first.
    #[must_use]
    pub fn block(&self, layers: usize, block: usize) -> BlockTensors {
        let first = self.tensors_after() + (layers - 1 - block) * self.tensors_per_block();
        let step = if self.qkv_biases { 2 } else { 1 };
        let after = first + 3 * step;
        BlockTensors {
            qkv: [first, first + step, first + 2 * step],
            output: after,
            gate: after + 1,
            up: after + 2,
            down: after + 3,
            norm_before_attention: after + 4,
            norm_before_gate: after + 5,
        }
    }

    /// The tensor of the tokens, after so many layers.
    #[must_use]
    pub fn token_table(&self, layers: usize) -> usize {
        self.tensors_after() + layers * self.tensors_per_block()
    }

    /// The tensors of what comes after the blocks.
    pub(super) fn tensors_after(&self) -> usize {
        if self.tied_embeddings { 1 } else { 2 }
    }

    pub(super) fn tensors_per_block(&self) -> usize {
        if self.qkv_biases { 12 } else { 9 }
    }

    /// How the numbers of a head are turned, at each place of a text of this length. As in Transformers, angles are products of f32.
    #[must_use]
    pub fn rotations(&self, length: usize) -> Rotations {
        let half = self.head_width / 2;
        let speed = |index: usize| {
            let exponent = 2.0 * index as f64 / self.head_width as f64;
            libm::pow(self.rope_theta, -exponent) as f32
        };
        let speeds: Vec<f32> = (0..half).map(speed).collect();
        let angles = (0..length).flat_map(|place| speeds.iter().map(move |speed| place as f32 * speed));
        let (cosines, sines) = angles.map(|angle| (libm::cosf(angle), libm::sinf(angle))).unzip();
        Rotations { cosines, sines }
    }

    /// Why it cannot be built with so many heads: the setting and what it may be; `None` if it can.
    pub(super) fn problem(&self, heads: usize) -> Option<(&'static str, String)> {
        if self.head_width == 0 || !self.head_width.is_multiple_of(2) {
            return Some(("heads", "a number that leaves each head an even width".to_owned()));
        }
        if heads == 0 || heads.saturating_mul(self.head_width) > WIDTH_MAX {
            return Some(("heads", format!("from 1 on, with at most {WIDTH_MAX} numbers together")));
        }
        if self.kv_heads == 0 || !heads.is_multiple_of(self.kv_heads) {
            return Some(("kv_heads", format!("a divisor of the heads, {heads}")));
        }
        if !(1..=HIDDEN_WIDTH_MAX).contains(&self.hidden_width) {
            return Some(("hidden_width", format!("1 to {HIDDEN_WIDTH_MAX}")));
        }
        if !(1.0..=1e12).contains(&self.rope_theta) {
            return Some(("rope_theta", "1 to 1e12".to_owned()));
        }
        if !(0.0..=1.0).contains(&self.norm_epsilon) {
            return Some(("norm_epsilon", "0 to 1".to_owned()));
        }
        None
    }

    /// Its tensors.
    pub(super) fn tensors(&self, net: &Transformer) -> Vec<TensorSpec> {
        let (width, hidden) = (net.width, self.hidden_width);
        let (query, key) = (net.heads * self.head_width, self.kv_heads * self.head_width);
        let (normal, summed) = (net.normal(), net.summed());
        let (ones, zeros) = (Start::Constant(1.0), Start::Constant(0.0));
        let mut tensors = vec![];
        let mut add =
            |name: String, shape: &[usize], start| tensors.push(TensorSpec::new(name, shape, start));
        add("model.norm.weight".to_owned(), &[width], ones);
        if !self.tied_embeddings {
            add("lm_head.weight".to_owned(), &[net.vocabulary, width], normal);
        }
        for block in (0..net.layers).rev() {
            let mut add = |name: &str, shape: &[usize], start| {
                add(format!("model.layers.{block}.{name}"), shape, start)
            };
            for (name, outputs) in [("q_proj", query), ("k_proj", key), ("v_proj", key)] {
                add(&format!("self_attn.{name}.weight"), &[outputs, width], normal);
                if self.qkv_biases {
                    add(&format!("self_attn.{name}.bias"), &[outputs], zeros);
                }
            }
            add("self_attn.o_proj.weight", &[width, query], summed);
            add("mlp.gate_proj.weight", &[hidden, width], normal);
            add("mlp.up_proj.weight", &[hidden, width], normal);
            add("mlp.down_proj.weight", &[width, hidden], summed);
            add("input_layernorm.weight", &[width], ones);
            add("post_attention_layernorm.weight", &[width], ones);
        }
        add("model.embed_tokens.weight".to_owned(), &[net.vocabulary, width], normal);
        tensors
    }

    /// The elements of all weights of a block's dense layers.
    pub(super) fn block_weights(&self, width: usize, heads: usize) -> usize {
        width * (2 * (heads + self.kv_heads) * self.head_width + 3 * self.hidden_width)
    }

    /// About how many numbers a backward pass keeps of a token in one block, without the attention's.
    pub(super) fn kept_per_token(&self, width: usize, heads: usize) -> usize {
        12 * width + 8 * (heads + self.kv_heads) * self.head_width + 8 * self.hidden_width
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deep::transformer::Family;

    const LLAMA: Llama = Llama {
        kv_heads: 2,
        head_width: 6,
        hidden_width: 20,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
        tied_embeddings: false,
        qkv_biases: false,
    };

    fn net(llama: Llama) -> Transformer {
        let family = Family::Llama(llama);
        Transformer { layers: 2, width: 8, heads: 4, context: 16, vocabulary: 256, dropout: 0.0, family }
    }

    #[test]
    fn tensors_are_those_of_llama() {
        let tensors = net(LLAMA).tensors();
        assert_eq!(tensors.len(), 1 + 2 * 9 + 2);
        let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap().shape.clone();
        assert_eq!(named("model.embed_tokens.weight"), [256, 8]);
        assert_eq!(named("model.layers.1.self_attn.q_proj.weight"), [24, 8]);
        assert_eq!(named("model.layers.0.self_attn.k_proj.weight"), [12, 8]);
        assert_eq!(named("model.layers.0.self_attn.o_proj.weight"), [8, 24]);
        assert_eq!(named("model.layers.0.mlp.down_proj.weight"), [8, 20]);
        assert_eq!(named("lm_head.weight"), [256, 8]);
        let tied = net(Llama { tied_embeddings: true, ..LLAMA }).tensors();
        assert_eq!(tied.len() + 1, tensors.len());
        assert!(tied.iter().all(|tensor| tensor.name != "lm_head.weight"));
    }

    #[test]
    fn tensors_of_a_block_are_found() {
        for qkv_biases in [false, true] {
            let llama = Llama { qkv_biases, ..LLAMA };
            let tensors = net(llama).tensors();
            let BlockTensors { qkv, output, gate, up, down, norm_before_attention, norm_before_gate } =
                llama.block(2, 1);
            for (index, name) in [
                (qkv[0], "self_attn.q_proj"),
                (qkv[1], "self_attn.k_proj"),
                (qkv[2], "self_attn.v_proj"),
                (output, "self_attn.o_proj"),
                (gate, "mlp.gate_proj"),
                (up, "mlp.up_proj"),
                (down, "mlp.down_proj"),
                (norm_before_attention, "input_layernorm"),
                (norm_before_gate, "post_attention_layernorm"),
            ] {
                assert_eq!(tensors[index].name, format!("model.layers.1.{name}.weight"));
            }
            assert_eq!(tensors[LAST_NORM].name, "model.norm.weight");
            assert_eq!(tensors[llama.token_table(2)].name, "model.embed_tokens.weight");
            let weights =
                tensors.iter().filter(|tensor| tensor.name.contains("layers.0") && tensor.shape.len() == 2);
            assert_eq!(weights.map(TensorSpec::len).sum::<usize>(), llama.block_weights(8, 4));
        }
    }

    #[test]
    fn numbers_of_a_head_turn_at_different_speeds() {
        let Rotations { cosines, sines } = LLAMA.rotations(3);
        assert_eq!((cosines.len(), sines.len()), (9, 9));
        assert_eq!((cosines[..3].to_vec(), sines[..3].to_vec()), (vec![1.0; 3], vec![0.0; 3]));
        for (index, speed) in [1.0, 0.046_415_89, 0.002_154_435].into_iter().enumerate() {
            assert!((cosines[6 + index] - f32::cos(2.0 * speed)).abs() < 1e-6);
            assert!((sines[6 + index] - f32::sin(2.0 * speed)).abs() < 1e-6);
        }
    }

    #[test]
    fn defaults_are_eight_thirds_as_wide_inside() {
        let llama = Llama::new(128, 4);
        assert_eq!((llama.hidden_width, llama.head_width, llama.kv_heads), (352, 32, 4));
        assert_eq!(Llama::new(12, 3).hidden_width, 32);
        assert_eq!(Llama::new(8, 0).problem(0).unwrap().0, "heads");
    }

    #[test]
    fn impossible_sizes_are_named() {
        let problem = |changed: Llama| net(changed).problem().map(|(setting, _)| setting);
        assert_eq!(problem(LLAMA), None);
        assert_eq!(problem(Llama { kv_heads: 3, ..LLAMA }), Some("kv_heads"));
        assert_eq!(problem(Llama { kv_heads: 0, ..LLAMA }), Some("kv_heads"));
        assert_eq!(problem(Llama { head_width: 3, ..LLAMA }), Some("heads"));
        assert_eq!(problem(Llama { head_width: 1 << 60, ..LLAMA }), Some("heads"));
        assert_eq!(problem(Llama { hidden_width: 0, ..LLAMA }), Some("hidden_width"));
        assert_eq!(problem(Llama { rope_theta: f64::NAN, ..LLAMA }), Some("rope_theta"));
        assert_eq!(problem(Llama { norm_epsilon: -1.0, ..LLAMA }), Some("norm_epsilon"));
    }
}
