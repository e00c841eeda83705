//! A transformer that was trained before, which another run starts from: a model file of peergrad, or a folder in the layout of Hugging Face.

use peergrad_collectives::codec::Codec;
use peergrad_models::deep::{Architecture, Transformer};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::model_file::{ModelFile, ModelFileError};

/// A transformer that was trained before.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseModel {
    /// Its sizes. The dropout is 0.
    pub transformer: Transformer,
    /// (parameters), in the order of its tensors.
    pub parameters: Vec<f32>,
}

/// Why a model cannot be what another one starts from. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BaseModelError {
    /// The file of tensors cannot be read.
    #[error("its tensors cannot be read ({0}); copy the file again")]
    Tensors(String),
    /// The settings cannot be read.
    #[error("config.json cannot be read ({0}); copy the folder again")]
    Config(String),
    /// It is another kind of model.
    #[error(
        "it is a model with {what}, and only those of the kind \"gpt2\" with their usual settings can be used here"
    )]
    Kind {
        /// The setting.
        what: String,
    },
    /// It has another vocabulary than the text.
    #[error(
        "it has a vocabulary of {found}, where the text has {needed} different tokens: give the tokenizer.json of this model with `--tokenizer`"
    )]
    Vocabulary {
        /// Its own.
        found: usize,
        /// That of the text.
        needed: usize,
    },
    /// A tensor is missing or has another shape.
    #[error("its tensor `{name}` {found}; copy the model again")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong.
        found: String,
    },
    /// It is a model file of peergrad that cannot be used.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// It is a model file of peergrad for something else.
    #[error("it is no language model; give one that was trained with `kind = \"gpt\"`")]
    NoTransformer,
    /// It is a model file of peergrad with adapters only.
    #[error("it has only adapters; give the model that they were trained on")]
    Adapters,
}

/// The settings of a model in the layout of Hugging Face, as far as they matter.
#[derive(Deserialize)]
struct Config {
    model_type: String,
    n_layer: usize,
    n_embd: usize,
    n_head: usize,
    n_positions: usize,
    vocab_size: usize,
    #[serde(default)]
    n_inner: Option<usize>,
    #[serde(default)]
    activation_function: Option<String>,
    #[serde(default)]
    layer_norm_epsilon: Option<f64>,
    #[serde(default)]
    tie_word_embeddings: Option<bool>,
    #[serde(default)]
    scale_attn_weights: Option<bool>,
    #[serde(default)]
    scale_attn_by_inverse_layer_idx: Option<bool>,
}

impl BaseModel {
    /// A model that peergrad exported.
    ///
    /// # Errors
    /// It is damaged, or no transformer.
    pub fn of_model_file(bytes: &[u8]) -> Result<Self, BaseModelError> {
        let file = ModelFile::decode(bytes)?;
        let specification = file.specification()?;
        let architecture = specification.architecture().map_err(ModelFileError::from)?;
        let Architecture::Transformer(transformer) = architecture else {
            return Err(BaseModelError::NoTransformer);
        };
        if specification.adapters().is_some() {
            return Err(BaseModelError::Adapters);
        }
        let transformer = Transformer { dropout: 0.0, ..transformer };
        Ok(Self { transformer, parameters: file.parameters })
    }

    /// A model in the layout of Hugging Face.
    ///
    /// - `config`: the text of config.json.
    /// - `tensors`: the bytes of model.safetensors.
    ///
    /// # Errors
    /// It is damaged or of another kind than GPT-2.
    pub fn of_folder(config: &str, tensors: &[u8]) -> Result<Self, BaseModelError> {
        let config: Config =
            serde_json::from_str(config).map_err(|error| BaseModelError::Config(error.to_string()))?;
        let transformer = config.transformer()?;
        let unreadable = |error: safetensors::SafeTensorError| BaseModelError::Tensors(error.to_string());
        let file = SafeTensors::deserialize(tensors).map_err(unreadable)?;
        let mut parameters = vec![];
        for tensor in Architecture::Transformer(transformer).tensors() {
            let wrong = |found: String| BaseModelError::Tensor { name: tensor.name.clone(), found };
            // The models of OpenAI have names without a prefix.
            let short = tensor.name.trim_start_matches("transformer.");
            let view = file.tensor(&tensor.name).or_else(|_| file.tensor(short));
            let view = view.map_err(|_| wrong("is missing".to_owned()))?;
            if view.shape() != tensor.shape {
                return Err(wrong(format!("has the shape {:?}, not {:?}", view.shape(), tensor.shape)));
            }
            parameters.extend(numbers(&view).ok_or_else(|| {
                wrong(format!("has the type {:?}, but only F32, F16 and BF16 can be read", view.dtype()))
            })?);
        }
        Ok(Self { transformer, parameters })
    }
}

impl Config {
    fn transformer(&self) -> Result<Transformer, BaseModelError> {
        let refuse = |what: String| Err(BaseModelError::Kind { what });
        if self.model_type != "gpt2" {
            return refuse(format!("model_type \"{}\"", self.model_type));
        }
        let activation = self.activation_function.as_deref().unwrap_or("gelu_new");
        if !["gelu_new", "gelu_pytorch_tanh"].contains(&activation) {
            return refuse(format!("activation_function \"{activation}\""));
        }
        let epsilon = self.layer_norm_epsilon.unwrap_or(1e-5);
        if (epsilon - 1e-5).abs() > 1e-7 {
            return refuse(format!("layer_norm_epsilon {epsilon}"));
        }
        if self.n_inner.is_some_and(|inner| Some(inner) != self.n_embd.checked_mul(4)) {
            return refuse("an inner width that is not four times the width".to_owned());
        }
        if self.tie_word_embeddings == Some(false) {
            return refuse("tie_word_embeddings false".to_owned());
        }
        if self.scale_attn_weights == Some(false) || self.scale_attn_by_inverse_layer_idx == Some(true) {
            return refuse("another scale of the attention".to_owned());
        }
        let transformer = Transformer {
            layers: self.n_layer,
            width: self.n_embd,
            heads: self.n_head,
            context: self.n_positions,
            vocabulary: self.vocab_size,
            dropout: 0.0,
        };
        match transformer.problem() {
            Some((setting, allowed)) => refuse(format!("{setting} outside of {allowed}")),
            None => Ok(transformer),
        }
    }
}

/// The numbers of a tensor; `None` if it has another type.
fn numbers(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = view.data();
    Some(match view.dtype() {
        Dtype::F32 => floats(bytes),
        Dtype::F16 => halves(Codec::F16, bytes)?,
        Dtype::BF16 => halves(Codec::Bf16, bytes)?,
        _ => return None,
    })
}

/// The numbers of these bytes, the lowest byte first.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    bytes.chunks_exact(size_of::<f32>()).map(number).collect()
}

fn halves(codec: Codec, bytes: &[u8]) -> Option<Vec<f32>> {
    let mut numbers = vec![0.0; bytes.len() / 2];
    codec.decode(bytes, &mut numbers).ok()?;
    Some(numbers)
}
