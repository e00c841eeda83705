//! Transformers in a run file and in a specification, and the texts that they read.

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::format::FileLayout;
use peergrad_models::data::labels::Target;
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_models::data::standardize::Standardization;
use peergrad_models::deep::text::{TextLayout, TokenKind, VOCABULARY};
use peergrad_models::deep::transformer::CONTEXT_MAX;
use peergrad_models::deep::{Architecture, Family, Llama, Transformer};
use serde::{Deserialize, Serialize};

use super::{check_size, mismatch, setting};
use crate::prepared_text::PreparedText;
use crate::specification::run_file::{DataSection, Layers, ModelKind, ModelSection};
use crate::specification::{DataSettings, SpecificationError, within};

/// What a specification says of a transformer. Its context and its vocabulary are those of the text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerSettings {
    /// Blocks.
    pub layers: usize,
    /// Numbers for each token.
    pub width: usize,
    /// Heads of the attention.
    pub heads: usize,
    /// The share that dropout leaves out.
    pub dropout: f32,
    /// The digest, in hexadecimal, of the transformer that it starts from, if there is one. The data file is a prepared text with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// More sizes, if it is a LLaMA; without them it is a GPT-2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama: Option<Llama>,
    /// Its adapters, if only these are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSettings>,
}

/// [Adapters](peergrad_models::deep::adapters) of a transformer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraSettings {
    /// How many numbers are between the two matrices of an adapter.
    pub rank: usize,
    /// `alpha / rank` is the factor of their product.
    pub alpha: f32,
}

/// The highest rank of an adapter.
const RANK_MAX: usize = 4096;

impl TransformerSettings {
    /// The network for this data.
    ///
    /// # Errors
    /// Its sizes do not fit together, or it does not fit the data.
    pub(in crate::specification) fn architecture(
        &self,
        data: &DataSettings,
    ) -> Result<Architecture, SpecificationError> {
        let (FileLayout::Text(TextLayout { context, tokens }), &Target::Token { vocabulary }) =
            (&data.layout, &data.target)
        else {
            return Err(mismatch());
        };
        let &Self { layers, width, heads, dropout, ref base, llama, lora } = self;
        if (base.is_some() && *tokens != TokenKind::Prepared) || (lora.is_some() && base.is_none()) {
            return Err(mismatch());
        }
        if let Some(LoraSettings { rank, alpha }) = lora {
            within("model.lora", rank, 1..=RANK_MAX, "a rank of 1 to 4096")?;
            within("model.lora_alpha", alpha, f32::MIN_POSITIVE..=1e6, "above 0, up to 1000000")?;
        }
        let family = llama.map_or(Family::Gpt2, Family::Llama);
        let net = Transformer { layers, width, heads, context: *context, vocabulary, dropout, family };
        if let Some((key, allowed)) = net.problem() {
            return Err(setting(key_of(key), format!("it must be {allowed}")));
        }
        let architecture = Architecture::Transformer(net);
        check_size(&architecture, lora)?;
        Ok(architecture)
    }
}

/// The key of a transformer's setting, as a run file has it.
fn key_of(setting: &str) -> &'static str {
    match setting {
        "width" => "model.width",
        "heads" => "model.heads",
        "kv_heads" => "model.kv_heads",
        "hidden_width" => "model.hidden_width",
        "context" => "model.context",
        "dropout" => "model.dropout",
        _ => "model.layers",
    }
}

/// Resolves a transformer; `base` is the one in the data file, if there is one, and `digest` that of its parameters.
pub(in crate::specification) fn resolve_transformer(
    model: &ModelSection,
    (base, digest): (Option<Transformer>, Option<String>),
) -> Result<TransformerSettings, SpecificationError> {
    let of_base = |number: fn(&Transformer) -> usize, default| base.as_ref().map_or(default, number);
    let layers = match &model.layers {
        None => of_base(|base| base.layers, 4),
        Some(Layers::Count(count)) => *count,
        Some(Layers::List(_)) => {
            return Err(setting(
                "model.layers",
                "give the number of blocks; only a \"cnn\" has a list of layers".to_owned(),
            ));
        }
    };
    let width = model.width.unwrap_or(of_base(|base| base.width, 128));
    let heads = model.heads.unwrap_or(of_base(|base| base.heads, 4));
    if let Some(base) = base {
        check_sizes(&[
            ("model.layers", layers, base.layers),
            ("model.width", width, base.width),
            ("model.heads", heads, base.heads),
        ])?;
    }
    let llama = resolve_llama(model, (width, heads), base.map(|base| base.family))?;
    let lora =
        model.lora.map(|rank| LoraSettings { rank, alpha: model.lora_alpha.unwrap_or(2.0 * rank as f32) });
    if lora.is_some() && base.is_none() {
        let reason = "adapters need a model that was trained before: prepare the text with `peer init --data TEXT --base MODEL`";
        return Err(setting("model.lora", reason.to_owned()));
    }
    if model.lora_alpha.is_some() && lora.is_none() {
        return Err(setting("model.lora_alpha", "give a rank with `lora`, or leave this out".to_owned()));
    }
    let dropout = model.dropout.unwrap_or(0.0);
    Ok(TransformerSettings { layers, width, heads, dropout, base: digest, llama, lora })
}

/// Resolves what a LLaMA has beside other transformers; `None` for a GPT-2. `base` is the family of the model in the data file, if there is
/// one.
fn resolve_llama(
    model: &ModelSection,
    (width, heads): (usize, usize),
    base: Option<Family>,
) -> Result<Option<Llama>, SpecificationError> {
    let is_llama = model.kind == ModelKind::Llama;
    match base {
        None if !is_llama => Ok(None),
        None if heads == 0 || !width.is_multiple_of(heads) => {
            Err(setting("model.heads", format!("it must be a divisor of the width, {width}")))
        }
        None => {
            let llama = Llama::new(width, heads);
            let kv_heads = model.kv_heads.unwrap_or(llama.kv_heads);
            let hidden_width = model.hidden_width.unwrap_or(llama.hidden_width);
            Ok(Some(Llama { kv_heads, hidden_width, ..llama }))
        }
        Some(Family::Gpt2) if !is_llama => Ok(None),
        Some(Family::Gpt2) => Err(other_kind("gpt", "llama")),
        Some(Family::Llama(_)) if !is_llama => Err(other_kind("llama", "gpt")),
        Some(Family::Llama(llama)) => {
            let Llama { kv_heads, hidden_width, .. } = llama;
            check_sizes(&[
                ("model.kv_heads", model.kv_heads.unwrap_or(kv_heads), kv_heads),
                ("model.hidden_width", model.hidden_width.unwrap_or(hidden_width), hidden_width),
            ])?;
            Ok(Some(llama))
        }
    }
}

fn other_kind(expected: &str, found: &str) -> SpecificationError {
    setting("model.kind", format!("the model in the data file is a \"{expected}\", not a \"{found}\""))
}

/// Checks sizes, each with its key and that of the model in the data file.
fn check_sizes(sizes: &[(&'static str, usize, usize)]) -> Result<(), SpecificationError> {
    match sizes.iter().find(|(_, found, expected)| found != expected) {
        Some((key, found, expected)) => Err(setting(
            key,
            format!("the model in the data file has {expected}, not {found}: leave the key out"),
        )),
        None => Ok(()),
    }
}

/// Resolves how a text is cut into samples.
pub(in crate::specification) fn resolve_text(
    section: &DataSection,
    model: &ModelSection,
    name: &str,
    packed: &DataBytes,
    prepared: Option<&PreparedText>,
) -> Result<DataSettings, SpecificationError> {
    let (tokens, count, vocabulary) = match prepared {
        Some(text) => (TokenKind::Prepared, text.token_count(), text.vocabulary),
        None => (TokenKind::Bytes, packed.unpacked(name, UNPACKED_BYTES_MAX)?.byte_count(), VOCABULARY),
    };
    let base = prepared.and_then(|text| text.base);
    within("data.held_out", section.held_out, 0.0..=0.9, "a share of 0 to 0.9")?;
    let default = base.map_or(CONTEXT_DEFAULT, |base| base.context.min(CONTEXT_BASE_MAX));
    let layout = TextLayout { tokens, context: model.context.unwrap_or(default) };
    within("model.context", layout.context, 1..=CONTEXT_MAX, "1 to 65536 tokens")?;
    if let Some(base) = base.filter(|base| layout.context > base.context) {
        let reason = format!("the model in the data file sees at most {} tokens at once", base.context);
        return Err(setting("model.context", reason));
    }
    let rows = layout.samples(count);
    let allowed =
        format!("at most {} tokens, so that the text has at least two samples", count.saturating_sub(1) / 2);
    if rows < 2 {
        return Err(SpecificationError::Setting {
            key: "model.context",
            found: layout.context.to_string(),
            allowed,
        });
    }
    within("model.context", rows, 2..=u64::from(u32::MAX), "fewer than 2^32 samples: give a larger context")?;
    let rows = rows as u32;
    Ok(DataSettings {
        name: name.to_owned(),
        digest: packed.digest().to_string(),
        byte_count: packed.byte_count(),
        rows,
        held_out_rows: ((f64::from(rows) * section.held_out).round() as u32).min(rows - 1),
        layout: FileLayout::Text(layout),
        target: Target::Token { vocabulary },
        standardization: Standardization::identity(),
    })
}

/// Whether a file looks like prose: by its name, and because most of its beginning are letters and spaces.
pub(in crate::specification) fn is_prose(name: &str, packed: &DataBytes) -> bool {
    const INSPECTED_BYTES: usize = 1 << 20;
    let lower = name.to_lowercase();
    let plain = lower.strip_suffix(".gz").unwrap_or(&lower);
    let is_named_so = ["txt", "text", "md"].iter().any(|ending| plain.ends_with(&format!(".{ending}")));
    let is_mostly_words = |bytes: &[u8]| {
        let words = bytes
            .iter()
            .filter(|byte| byte.is_ascii_alphabetic() || !byte.is_ascii() || **byte == b' ')
            .count();
        let spaces = bytes.iter().filter(|byte| **byte == b' ').count();
        // The last character may be cut.
        let is_text = std::str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true);
        is_text && words * 4 > bytes.len() * 3 && spaces * 20 > bytes.len()
    };
    let unpacked = || packed.unpacked(name, UNPACKED_BYTES_MAX).ok()?.head(INSPECTED_BYTES).ok();
    is_named_so && unpacked().is_some_and(|bytes| is_mostly_words(&bytes))
}

/// Tokens of a sample of a text.
const CONTEXT_DEFAULT: usize = 128;
/// The same for a model that was trained before, if it sees more at once.
const CONTEXT_BASE_MAX: usize = 256;
