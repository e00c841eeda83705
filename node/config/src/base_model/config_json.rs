//! The file config.json of a model in the layout of Hugging Face: which transformer it is.
//!
//! What changes the arithmetic, and is not computed here, is refused by its name. Settings that change nothing are not read.

use peergrad_models::deep::transformer::CONTEXT_MAX;
use peergrad_models::deep::{Family, Llama, Transformer};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::BaseModelError;

/// The transformer that a config.json describes. Its dropout is 0.
///
/// # Errors
/// It is damaged or of a kind that cannot be used.
pub(super) fn transformer(config: &str) -> Result<Transformer, BaseModelError> {
    let Kind { model_type } = read(config)?;
    let transformer = match model_type.as_str() {
        "gpt2" => read::<Gpt2Config>(config)?.transformer()?,
        "llama" => read::<LlamaConfig>(config)?.transformer(false)?,
        "mistral" => {
            let found: LlamaConfig = read(config)?;
            found.check_windows(found.sliding_window.is_some())?;
            found.transformer(false)?
        }
        "qwen2" => {
            let found: LlamaConfig = read(config)?;
            found.check_windows(found.use_sliding_window == Some(true))?;
            found.transformer(true)?
        }
        _ => return Err(refuse(format!("model_type \"{model_type}\""))),
    };
    match transformer.problem() {
        Some((setting, allowed)) => Err(refuse(format!("{setting} outside of {allowed}"))),
        None => Ok(transformer),
    }
}

fn read<T: DeserializeOwned>(config: &str) -> Result<T, BaseModelError> {
    serde_json::from_str(config).map_err(|error| BaseModelError::Config(error.to_string()))
}

fn refuse(what: impl Into<String>) -> BaseModelError {
    BaseModelError::Kind { what: what.into() }
}

/// An error if a setting that is not supported has a value other than the usual one.
fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), BaseModelError> {
    if holds { Ok(()) } else { Err(refuse(what())) }
}

#[derive(Deserialize)]
struct Kind {
    model_type: String,
}

/// The settings of a GPT-2, as far as they matter.
#[derive(Deserialize)]
struct Gpt2Config {
    n_layer: usize,
    n_embd: usize,
    n_head: usize,
    n_positions: usize,
    vocab_size: usize,
    n_inner: Option<usize>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    tie_word_embeddings: Option<bool>,
    scale_attn_weights: Option<bool>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
}

impl Gpt2Config {
    fn transformer(&self) -> Result<Transformer, BaseModelError> {
        let activation = self.activation_function.as_deref().unwrap_or("gelu_new");
        check(["gelu_new", "gelu_pytorch_tanh"].contains(&activation), || {
            format!("activation_function \"{activation}\"")
        })?;
        let epsilon = self.layer_norm_epsilon.unwrap_or(1e-5);
        check((epsilon - 1e-5).abs() <= 1e-7, || format!("layer_norm_epsilon {epsilon}"))?;
        check(self.n_inner.is_none_or(|inner| Some(inner) == self.n_embd.checked_mul(4)), || {
            "an inner width that is not four times the width".to_owned()
        })?;
        check(self.tie_word_embeddings != Some(false), || "tie_word_embeddings false".to_owned())?;
        let is_scaled_otherwise =
            self.scale_attn_weights == Some(false) || self.scale_attn_by_inverse_layer_idx == Some(true);
        check(!is_scaled_otherwise, || "another scale of the attention".to_owned())?;
        Ok(Transformer {
            layers: self.n_layer,
            width: self.n_embd,
            heads: self.n_head,
            context: self.n_positions,
            vocabulary: self.vocab_size,
            dropout: 0.0,
            family: Family::Gpt2,
        })
    }
}

/// The settings of a LLaMA and its relatives, as far as they matter. Where one is missing, it has the value that Transformers gives a LLaMA.
#[derive(Deserialize)]
struct LlamaConfig {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    vocab_size: usize,
    hidden_act: Option<String>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    /// Of versions before 5.
    rope_scaling: Option<RopeConfig>,
    /// From version 5 on.
    rope_parameters: Option<RopeConfig>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    quantization_config: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RopeConfig {
    rope_type: Option<String>,
    /// The same in old files; some have both.
    #[serde(rename = "type")]
    former_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

impl LlamaConfig {
    fn transformer(&self, qkv_biases: bool) -> Result<Transformer, BaseModelError> {
        let activation = self.hidden_act.as_deref().unwrap_or("silu");
        check(activation == "silu", || format!("hidden_act \"{activation}\""))?;
        check(self.attention_bias != Some(true), || "attention_bias true".to_owned())?;
        check(self.mlp_bias != Some(true), || "mlp_bias true".to_owned())?;
        check(self.quantization_config.is_none(), || "a quantization_config".to_owned())?;
        for rope in [&self.rope_scaling, &self.rope_parameters].into_iter().flatten() {
            let kind = rope.rope_type.as_deref().or(rope.former_type.as_deref()).unwrap_or("default");
            check(kind == "default", || format!("rope_scaling of the type \"{kind}\""))?;
            let share = rope.partial_rotary_factor.unwrap_or(1.0);
            check(share == 1.0, || format!("partial_rotary_factor {share}"))?;
        }
        let (width, heads) = (self.hidden_size, self.num_attention_heads);
        let head_width = match self.head_dim {
            Some(width) => width,
            None => width.checked_div(heads).filter(|_| width.is_multiple_of(heads)).ok_or_else(|| {
                refuse(format!("hidden_size {width}, which is no multiple of num_attention_heads {heads}"))
            })?,
        };
        let of_parameters = self.rope_parameters.as_ref().and_then(|rope| rope.rope_theta);
        let llama = Llama {
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            head_width,
            hidden_width: self.intermediate_size,
            rope_theta: of_parameters.or(self.rope_theta).unwrap_or(10_000.0),
            norm_epsilon: self.rms_norm_eps.unwrap_or(1e-6),
            tied_embeddings: self.tie_word_embeddings.unwrap_or(false),
            qkv_biases,
        };
        Ok(Transformer {
            layers: self.num_hidden_layers,
            width,
            heads,
            // It is only a bound: places are computed.
            context: self.max_position_embeddings.min(CONTEXT_MAX),
            vocabulary: self.vocab_size,
            dropout: 0.0,
            family: Family::Llama(llama),
        })
    }

    /// Windows matter if they are narrower than the text.
    fn check_windows(&self, are_used: bool) -> Result<(), BaseModelError> {
        let narrow = self.sliding_window.filter(|&window| are_used && window < self.max_position_embeddings);
        match narrow {
            Some(window) => Err(refuse(format!("sliding_window {window}"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": 300, "hidden_act": "silu", "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0, "rope_scaling": null, "attention_bias": false, "tie_word_embeddings": false, "torch_dtype": "bfloat16"
    }"#;

    fn llama_of(config: &str) -> (Transformer, Llama) {
        let found = transformer(config).unwrap();
        let Family::Llama(llama) = found.family else { panic!("it is one") };
        (found, llama)
    }

    #[test]
    fn a_llama_is_read() {
        let (found, llama) = llama_of(LLAMA);
        assert_eq!(
            (found.layers, found.width, found.heads, found.context, found.vocabulary),
            (2, 16, 4, 64, 300)
        );
        let expected = Llama {
            kv_heads: 2,
            head_width: 4,
            hidden_width: 40,
            rope_theta: 500_000.0,
            norm_epsilon: 1e-5,
            tied_embeddings: false,
            qkv_biases: false,
        };
        assert_eq!(llama, expected);
        let with = |from: &str, to: &str| llama_of(&LLAMA.replace(from, to)).1;
        assert_eq!(with("\"num_key_value_heads\": 2,", ""), Llama { kv_heads: 4, ..expected });
        assert_eq!(
            with("\"vocab_size\"", "\"head_dim\": 6, \"vocab_size\""),
            Llama { head_width: 6, ..expected }
        );
        assert_eq!(
            with("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"),
            Llama { tied_embeddings: true, ..expected }
        );
        let rope = "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 20000.0},";
        assert_eq!(with("\"rope_theta\": 500000.0,", rope), Llama { rope_theta: 20_000.0, ..expected });
        assert_eq!(with("\"rope_theta\": 500000.0, ", ""), Llama { rope_theta: 10_000.0, ..expected });
        let both = "\"rope_scaling\": {\"type\": \"default\", \"rope_type\": \"default\"},";
        assert_eq!(with("\"rope_scaling\": null,", both), expected);
        let far = LLAMA.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 131072");
        assert_eq!(llama_of(&far).0.context, CONTEXT_MAX, "places are no parameters");
        assert_eq!(with("\"llama\"", "\"mistral\""), expected);
        assert_eq!(
            with("\"llama\"", "\"qwen2\", \"sliding_window\": 8"),
            Llama { qkv_biases: true, ..expected }
        );
        assert_eq!(with("\"llama\"", "\"mistral\", \"sliding_window\": 64"), expected, "as wide as the text");
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (from, to, words) in [
            (
                "\"llama\"",
                "\"bert\"",
                "model_type \"bert\", which cannot be used here: a base is of the kind gpt2, llama",
            ),
            ("\"silu\"", "\"gelu\"", "hidden_act \"gelu\""),
            ("\"attention_bias\": false", "\"attention_bias\": true", "attention_bias true"),
            ("\"attention_bias\": false", "\"mlp_bias\": true", "mlp_bias true"),
            (
                "\"rope_scaling\": null",
                "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}",
                "rope_scaling of the type \"linear\"",
            ),
            (
                "\"rope_scaling\": null",
                "\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8.0}",
                "rope_scaling of the type \"llama3\"",
            ),
            ("\"llama\"", "\"mistral\", \"sliding_window\": 32", "sliding_window 32"),
            (
                "\"llama\"",
                "\"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 32",
                "sliding_window 32",
            ),
            (
                "\"vocab_size\"",
                "\"quantization_config\": {\"bits\": 4}, \"vocab_size\"",
                "a quantization_config",
            ),
            (
                "\"num_attention_heads\": 4",
                "\"num_attention_heads\": 3",
                "no multiple of num_attention_heads 3",
            ),
            (
                "\"num_attention_heads\": 4",
                "\"num_attention_heads\": 0",
                "no multiple of num_attention_heads 0",
            ),
            (
                "\"num_key_value_heads\": 2",
                "\"num_key_value_heads\": 3",
                "kv_heads outside of a divisor of the heads, 4",
            ),
            (
                "\"num_attention_heads\": 4",
                "\"num_attention_heads\": 16",
                "heads outside of a number that leaves each head an even width",
            ),
            (
                "\"intermediate_size\": 40,",
                "",
                "config.json cannot be read (missing field `intermediate_size`",
            ),
        ] {
            let error = transformer(&LLAMA.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(words), "{to}: {error}");
        }
    }
}
