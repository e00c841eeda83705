//! A prepared text: its tokens, and what a model starts from, in one file. A run has one data file, and with it each peer has all that it
//! needs.
//!
//! ```text
//! safetensors file    tokens                      u8 or u32, (tokens)
//!                     transformer.wte.weight ...  f32: a transformer that was trained before, if there is one
//!                     tokenizer                   u8: the text of a tokenizer.json, if tokens are not bytes
//!                     metadata                    the sizes of the transformer, as TOML
//! ```
//! # Invariants
//! - Finding what is where reads only the header. No input makes it panic.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::deep::tensors::TensorSpec;
use peergrad_models::deep::text::{TokenWidth, Tokens, VOCABULARY};
use peergrad_models::deep::{Architecture, Family, Llama, Transformer};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorView};
use serde::{Deserialize, Serialize};

use crate::base_model::{BaseModel, BaseModelError, floats};
use crate::model_file::HEADER_BYTES_MAX;
use crate::specification::{SpecificationError, VOCABULARY_MAX};

/// The tensor of tokens.
const TOKENS: &str = "tokens";
/// The tensor of the tokenizer's text.
const TOKENIZER: &str = "tokenizer";
/// The metadata entry with the sizes.
const SIZES: &str = "peergrad.text";
/// The bytes before the header: its length.
const LENGTH_BYTES: u64 = 8;

/// Where the parts of a prepared text are.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedText {
    /// How many different tokens there may be.
    pub vocabulary: usize,
    /// The sizes of the transformer that a model starts from, if there is one. Its dropout is 0.
    pub base: Option<Transformer>,
    tokens: Place,
    width: TokenWidth,
    tokenizer: Option<Place>,
    /// Where each tensor of the transformer is.
    tensors: BTreeMap<String, Place>,
}

/// Where a tensor is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    start: u64,
    bytes: u64,
}

/// What is stored under [`SIZES`], as TOML.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    vocabulary: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<BaseSizes>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BaseSizes {
    layers: usize,
    width: usize,
    heads: usize,
    context: usize,
    /// More sizes, if it is a LLaMA; without them it is a GPT-2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    llama: Option<Llama>,
}

/// A text to prepare.
#[derive(Clone, Copy, Debug)]
pub enum TextTokens<'a> {
    /// Its bytes are its tokens.
    Bytes(&'a [u8]),
    /// A tokenizer has made numbers of it.
    Numbers {
        /// The tokens.
        tokens: &'a [u32],
        /// How many different ones there may be.
        vocabulary: usize,
        /// The text of the tokenizer's file, tokenizer.json.
        tokenizer: &'a [u8],
    },
}

/// The bytes of a prepared text; `base` is the transformer that a model starts from, if there is one.
///
/// # Errors
/// The base has another vocabulary than the text.
///
/// # Panics
/// The base has other parameters than its sizes say.
pub fn prepare(text: TextTokens<'_>, base: Option<&BaseModel>) -> Result<Vec<u8>, BaseModelError> {
    let needed = match text {
        TextTokens::Bytes(_) => VOCABULARY,
        TextTokens::Numbers { vocabulary, .. } => vocabulary,
    };
    // A table may have more rows than the tokenizer has tokens, but only for numbers: those of bytes are all in use.
    let is_too_small = |base: &&BaseModel| base.transformer.vocabulary < needed;
    let is_other = matches!(text, TextTokens::Bytes(_))
        && base.is_some_and(|base| base.transformer.vocabulary != needed);
    if let Some(base) = base.filter(|base| is_other || is_too_small(base)) {
        let found = base.transformer.vocabulary;
        return Err(BaseModelError::Vocabulary { found, needed });
    }
    let vocabulary = base.map_or(needed, |base| base.transformer.vocabulary);
    let sizes = base.map(|base| {
        let Transformer { layers, width, heads, context, family, .. } = base.transformer;
        let llama = match family {
            Family::Gpt2 => None,
            Family::Llama(llama) => Some(llama),
        };
        BaseSizes { layers, width, heads, context, llama }
    });
    let sizes = toml::to_string(&Sizes { vocabulary, base: sizes }).expect("numbers can be written");
    let view = |dtype, shape, bytes| TensorView::new(dtype, shape, bytes).expect("as many bytes");
    let mut views = match text {
        TextTokens::Bytes(text) => vec![(TOKENS.to_owned(), view(Dtype::U8, vec![text.len()], text))],
        TextTokens::Numbers { tokens, tokenizer, .. } => vec![
            (TOKENS.to_owned(), view(Dtype::U32, vec![tokens.len()], bytemuck::cast_slice(tokens))),
            (TOKENIZER.to_owned(), view(Dtype::U8, vec![tokenizer.len()], tokenizer)),
        ],
    };
    let mut rest = base.map_or(&[][..], |base| &base.parameters);
    for tensor in base.map(|base| Architecture::Transformer(base.transformer).tensors()).unwrap_or_default() {
        let (values, after) = rest.split_at(tensor.len());
        views.push((tensor.name, view(Dtype::F32, tensor.shape, bytemuck::cast_slice(values))));
        rest = after;
    }
    assert!(rest.is_empty(), "as many parameters as the sizes say");
    let metadata = [(SIZES.to_owned(), sizes)].into_iter().collect();
    Ok(safetensors::serialize(views, Some(metadata)).expect("the header is within the format's bounds"))
}

impl PreparedText {
    /// Finds the parts of a prepared text; `None` if a file is none. `name` is the name for errors.
    ///
    /// # Errors
    /// It is damaged, or the disk does not give its header.
    pub fn find(name: &str, bytes: &DataBytes) -> Result<Option<Self>, SpecificationError> {
        let wrong =
            |reason: &str| SpecificationError::Prepared { name: name.to_owned(), reason: reason.to_owned() };
        let unreadable = |error: std::io::Error| wrong(&error.to_string());
        let start = bytes.head(LENGTH_BYTES as usize + 1).map_err(unreadable)?;
        let Some((&length, b"{")) = start.split_first_chunk() else { return Ok(None) };
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX as u64 {
            return Ok(None);
        }
        let head = bytes.head((LENGTH_BYTES + length) as usize).map_err(unreadable)?;
        let Ok(header) = serde_json::from_slice::<Metadata>(&head[LENGTH_BYTES as usize..]) else {
            return Ok(None);
        };
        let Some(sizes) = header.metadata().as_ref().and_then(|entries| entries.get(SIZES)) else {
            return Err(wrong("it is a safetensors file without a text"));
        };
        let sizes: Sizes = toml::from_str(sizes).map_err(|_| wrong("its sizes are damaged"))?;
        let data = LENGTH_BYTES + length;
        let mut tensors = BTreeMap::new();
        let (mut tokens, mut tokenizer) = (None, None);
        for (name, info) in header.tensors() {
            let (start, end) = info.data_offsets;
            let (start, length) = (data.saturating_add(start as u64), (end - start) as u64);
            if start.saturating_add(length) > bytes.byte_count() {
                return Err(wrong("it ends too early"));
            }
            let place = Place { start, bytes: length };
            if name == TOKENS {
                tokens = Some((info.dtype, place));
            } else if name == TOKENIZER {
                tokenizer = Some(place);
            } else if info.dtype == Dtype::F32 {
                tensors.insert(name, place);
            }
        }
        let (tokens, width) = match tokens {
            Some((Dtype::U8, place)) => (place, TokenWidth::Byte),
            Some((Dtype::U32, place)) => (place, TokenWidth::Four),
            _ => return Err(wrong("it has no tokens")),
        };
        let vocabulary = sizes.vocabulary;
        if !(1..=VOCABULARY_MAX).contains(&vocabulary) {
            return Err(wrong("its sizes are impossible"));
        }
        let base = sizes.base.map(|BaseSizes { layers, width, heads, context, llama }| Transformer {
            layers,
            width,
            heads,
            context,
            vocabulary,
            dropout: 0.0,
            family: llama.map_or(Family::Gpt2, Family::Llama),
        });
        if base.is_some_and(|base| base.problem().is_some()) {
            return Err(wrong("its sizes are impossible"));
        }
        Ok(Some(Self { vocabulary, base, tokens, width, tokenizer, tensors }))
    }

    /// The number of tokens.
    #[must_use]
    pub fn token_count(&self) -> u64 {
        match self.width {
            TokenWidth::Byte => self.tokens.bytes,
            TokenWidth::Four => self.tokens.bytes / 4,
        }
    }

    /// The text of the tokenizer that made the tokens; `None` if they are bytes. `bytes` are those of the file.
    ///
    /// # Errors
    /// The disk does not give it.
    pub fn tokenizer(&self, bytes: &DataBytes) -> std::io::Result<Option<Vec<u8>>> {
        let Some(place) = self.tokenizer else { return Ok(None) };
        let mut text = vec![0; place.bytes as usize];
        bytes.read_at(place.start, &mut text)?;
        Ok(Some(text))
    }

    /// The tokens; `bytes` are those of the file.
    ///
    /// # Errors
    /// A token is not below the vocabulary, or the disk does not give them.
    pub fn tokens(&self, name: &str, bytes: &DataBytes) -> Result<Tokens, SpecificationError> {
        const CHECKED_TOGETHER_BYTES: usize = 1 << 20;
        let wrong = |reason: String| SpecificationError::Prepared { name: name.to_owned(), reason };
        let mut part = vec![0; CHECKED_TOGETHER_BYTES];
        let mut passed = 0;
        let is_any_possible = self.width == TokenWidth::Byte && self.vocabulary >= VOCABULARY;
        while passed < self.tokens.bytes && !is_any_possible {
            let count = part.len().min((self.tokens.bytes - passed) as usize);
            let part = &mut part[..count];
            bytes.read_at(self.tokens.start + passed, part).map_err(|error| wrong(error.to_string()))?;
            let greatest = match self.width {
                TokenWidth::Byte => part.iter().copied().max().map(u32::from),
                TokenWidth::Four => {
                    let token = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                    part.chunks_exact(4).map(token).max()
                }
            };
            if let Some(token) = greatest.filter(|&token| token as usize >= self.vocabulary) {
                return Err(wrong(format!(
                    "it has the token {token} of a vocabulary of {}",
                    self.vocabulary
                )));
            }
            passed += count as u64;
        }
        let (start, count) = (self.tokens.start, self.token_count());
        Ok(Tokens { bytes: bytes.clone(), start, count, width: self.width })
    }

    /// The digest, in hexadecimal, of the parameters of the base; `None` if the file has no base. `bytes` are those of the file.
    ///
    /// # Errors
    /// A tensor is missing, or the disk does not give it.
    pub fn base_digest(&self, name: &str, bytes: &DataBytes) -> Result<Option<String>, SpecificationError> {
        let Some(base) = self.base else { return Ok(None) };
        let mut hasher = blake3::Hasher::new();
        for tensor in Architecture::Transformer(base).tensors() {
            hasher.update(&self.tensor(name, bytes, &tensor)?);
        }
        Ok(Some(hasher.finalize().to_hex().to_string()))
    }

    /// The bytes of a tensor of the base; of the table of places, if it has one, as many rows as are wanted.
    fn tensor(
        &self,
        name: &str,
        bytes: &DataBytes,
        tensor: &TensorSpec,
    ) -> Result<Vec<u8>, SpecificationError> {
        let wrong = |reason: String| SpecificationError::Prepared { name: name.to_owned(), reason };
        let needed = tensor.len() * size_of::<f32>();
        let has_rows_to_spare = tensor.name.ends_with("wpe.weight");
        let fits = |place: &&Place| match has_rows_to_spare {
            true => place.bytes >= needed as u64,
            false => place.bytes == needed as u64,
        };
        let place = self.tensors.get(&tensor.name).filter(fits);
        let place = place.ok_or_else(|| wrong(format!("the tensor `{}` is missing", tensor.name)))?;
        let mut values = vec![0; needed];
        bytes.read_at(place.start, &mut values).map_err(|error| wrong(error.to_string()))?;
        Ok(values)
    }

    /// The parameters of the base, for a transformer that may see less at once: then the table of places, if it has one, has fewer rows.
    ///
    /// # Errors
    /// The transformer has other sizes, a tensor is missing, or the disk does not give them.
    pub fn base(
        &self,
        name: &str,
        bytes: &DataBytes,
        transformer: &Transformer,
    ) -> Result<Arc<[f32]>, SpecificationError> {
        let wrong = |reason: String| SpecificationError::Prepared { name: name.to_owned(), reason };
        let fits = |base: &Transformer| {
            let Transformer { context, dropout, .. } = *transformer;
            context <= base.context && *transformer == Transformer { context, dropout, ..*base }
        };
        self.base.filter(fits).ok_or_else(|| wrong("its model has other sizes".to_owned()))?;
        let mut parameters = vec![];
        for tensor in Architecture::Transformer(*transformer).tensors() {
            parameters.extend(floats(&self.tensor(name, bytes, &tensor)?));
        }
        match parameters.iter().all(|value| value.is_finite()) {
            true => Ok(parameters.into()),
            false => Err(wrong("its model has numbers that are not finite".to_owned())),
        }
    }
}
