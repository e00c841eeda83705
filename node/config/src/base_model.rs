//! A transformer that was trained before, which another run starts from: a model file of peergrad, or a folder in the layout of Hugging Face.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_collectives::codec::Codec;
use peergrad_models::deep::{Architecture, Transformer};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

mod config_json;

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
    /// The index of several files of tensors cannot be read.
    #[error("model.safetensors.index.json cannot be read ({0}); copy the folder again")]
    Index(String),
    /// The settings cannot be read.
    #[error("config.json cannot be read ({0}); copy the folder again")]
    Config(String),
    /// It is another kind of model.
    #[error(
        "it is a model with {what}, which cannot be used here: a base is of the kind gpt2, llama, qwen2, or mistral without sliding windows, with the usual settings"
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
    #[error("it is no language model; give one that was trained with `kind = \"gpt\"` or `\"llama\"`")]
    NoTransformer,
    /// It is a model file of peergrad with adapters only.
    #[error("it has only adapters; give the model that they were trained on")]
    Adapters,
}

/// The file model.safetensors.index.json.
#[derive(Deserialize)]
struct Index {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

/// The names of the files that an index of tensors, model.safetensors.index.json, lists.
///
/// # Errors
/// It is damaged, or lists a file of another folder.
pub fn indexed_files(index: &str) -> Result<BTreeSet<String>, BaseModelError> {
    let index: Index =
        serde_json::from_str(index).map_err(|error| BaseModelError::Index(error.to_string()))?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    match files.iter().find(|name| name.contains(['/', '\\'])) {
        Some(name) => Err(BaseModelError::Index(format!("`{name}` is in another folder"))),
        None => Ok(files),
    }
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
    /// - `files`: the bytes of model.safetensors, or of each of the files that it is spread over.
    ///
    /// # Errors
    /// It is damaged or of a kind that cannot be used.
    pub fn of_folder(config: &str, files: &[impl AsRef<[u8]>]) -> Result<Self, BaseModelError> {
        let transformer = config_json::transformer(config)?;
        let unreadable = |error: safetensors::SafeTensorError| BaseModelError::Tensors(error.to_string());
        let files = files.iter().map(|bytes| SafeTensors::deserialize(bytes.as_ref()).map_err(unreadable));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let mut parameters = vec![];
        for tensor in Architecture::Transformer(transformer).tensors() {
            let wrong = |found: String| BaseModelError::Tensor { name: tensor.name.clone(), found };
            // A model without its last layer has names without a prefix.
            let name = tensor.name.as_str();
            let short = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
            let view =
                [name, short].iter().find_map(|name| files.iter().find_map(|file| file.tensor(name).ok()));
            let view = view.ok_or_else(|| wrong("is missing".to_owned()))?;
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

/// How the names of most tensors begin.
const PREFIXES: [&str; 2] = ["transformer.", "model."];

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
