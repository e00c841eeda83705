//! Deep networks in a run file and in a specification: convolutional networks on pictures, transformers on text.

use std::sync::Arc;

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::format::FileLayout;
use peergrad_models::data::labels::Target;
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_models::data::standardize::Standardization;
use peergrad_models::deep::adapters;
use peergrad_models::deep::changes::Change;
use peergrad_models::deep::convolutional::PictureShape;
use peergrad_models::deep::layer::Layer;
use peergrad_models::deep::text::{TextLayout, TokenKind, VOCABULARY};
use peergrad_models::deep::{Architecture, Backend, ConvolutionalNet, Transformer};
use peergrad_protocol::limits::TENSORS_MAX;
use serde::{Deserialize, Serialize};

use super::groups::GroupSettings;
use super::memory::ByteSize;
use super::run_file::{DataSection, Layers, ModelKind, ModelSection, NormName};
use super::{DataSettings, PARAMETERS_MAX, SpecificationError, within};
use crate::prepared_text::PreparedText;

/// What computes deep networks, if this program has it.
pub type DeepBackend = Option<Arc<dyn Backend>>;

/// What a specification says of a deep network. Its outputs follow from the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum DeepSettings {
    /// A convolutional network.
    Convolutional {
        /// Channels, height and width of a picture.
        picture: [usize; 3],
        /// Whether the file holds a byte for each value. Then samples stay bytes, and need not be in memory.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        bytes: bool,
        /// Its layers, without the last dense one.
        #[serde(with = "as_texts")]
        layers: Vec<Layer>,
        /// How pictures are changed in training.
        #[serde(with = "as_texts", default, skip_serializing_if = "Vec::is_empty")]
        changes: Vec<Change>,
    },
    /// A transformer. Its context is that of the text's samples.
    Transformer {
        /// Blocks.
        layers: usize,
        /// Numbers for each token.
        width: usize,
        /// Heads of the attention.
        heads: usize,
        /// The share that dropout leaves out.
        dropout: f32,
        /// The digest, in hexadecimal, of the transformer that it starts from, if there is one. The data file is a prepared text with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<String>,
        /// Its adapters, if only these are trained.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lora: Option<LoraSettings>,
    },
}

/// Adapters, of which [`adapters`] has more.
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

/// Layers and changes as users write them.
mod as_texts {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
    }
}

impl DeepSettings {
    /// The network for this data.
    ///
    /// # Errors
    /// Its layers do not fit together, or it does not fit the data.
    pub(super) fn architecture(&self, data: &DataSettings) -> Result<Architecture, SpecificationError> {
        let architecture = match (self, &data.layout, &data.target) {
            (
                Self::Convolutional { picture, layers, changes, .. },
                FileLayout::Csv(_) | FileLayout::Numbered(_),
                target,
            ) => {
                let outputs = match target {
                    Target::Class { classes } => classes.len(),
                    Target::Number { .. } => 1,
                    Target::Token { .. } => return Err(mismatch()),
                };
                let shape = shape(*picture);
                check_shape(shape, data.layout.columns())?;
                check_changes(changes, shape)?;
                let net = ConvolutionalNet::new(shape, layers, outputs);
                Architecture::Convolutional(net.map_err(|error| setting("model.layers", error.to_string()))?)
            }
            (
                Self::Transformer { layers, width, heads, dropout, base, lora },
                FileLayout::Text(TextLayout { context, tokens }),
                &Target::Token { vocabulary },
            ) => {
                let (layers, width, heads, dropout) = (*layers, *width, *heads, *dropout);
                if (base.is_some() && *tokens != TokenKind::Prepared) || (lora.is_some() && base.is_none()) {
                    return Err(mismatch());
                }
                if let &Some(LoraSettings { rank, alpha }) = lora {
                    within("model.lora", rank, 1..=RANK_MAX, "a rank of 1 to 4096")?;
                    within("model.lora_alpha", alpha, f32::MIN_POSITIVE..=1e6, "above 0, up to 1000000")?;
                }
                let net = Transformer { layers, width, heads, context: *context, vocabulary, dropout };
                if let Some((key, allowed)) = net.problem() {
                    return Err(setting(key_of(key), format!("it must be {allowed}")));
                }
                Architecture::Transformer(net)
            }
            _ => return Err(mismatch()),
        };
        let tensors = match (&architecture, self.lora()) {
            (Architecture::Transformer(net), Some(lora)) => adapters::tensors(net, lora.rank),
            _ => architecture.tensors(),
        };
        within("model.layers", tensors.len(), 1..=TENSORS_MAX, "layers with at most 4096 tensors")?;
        let parameters = tensors.iter().fold(0u64, |sum, tensor| {
            let elements =
                tensor.shape.iter().fold(1u64, |product, &extent| product.saturating_mul(extent as u64));
            sum.saturating_add(elements)
        });
        within("model.layers", parameters, 1..=PARAMETERS_MAX, "a model of at most 1073741824 parameters")?;
        let (found, limit) = (architecture.sample_bytes(), ByteSize(SAMPLE_BYTES_MAX));
        if found > SAMPLE_BYTES_MAX {
            let found = ByteSize(found);
            let reason = format!(
                "a single sample would have {found} of intermediate values, and at most {limit} are supported; give less of them, or smaller samples"
            );
            return Err(setting("model.layers", reason));
        }
        Ok(architecture)
    }

    /// Puts the statistics of batch norms into a group of their own, if there are any.
    ///
    /// # Errors
    /// The network cannot be built.
    pub(super) fn add_statistics(
        &self,
        data: &DataSettings,
        groups: &mut Vec<GroupSettings>,
    ) -> Result<(), SpecificationError> {
        if self.architecture(data)?.block().is_some() && groups.first() != Some(&statistics()) {
            groups.retain(|group| *group != statistics());
            groups.insert(0, statistics());
        }
        Ok(())
    }

    /// Checks that the statistics of batch norms are in a group of their own.
    ///
    /// # Errors
    /// They are not: an optimizer would take them for gradients.
    pub(super) fn check_statistics(
        architecture: &Architecture,
        groups: &[GroupSettings],
    ) -> Result<(), SpecificationError> {
        if architecture.block().is_some() && groups.first() != Some(&statistics()) {
            return Err(SpecificationError::Foreign(
                "the statistics of its norms are in no group".to_owned(),
            ));
        }
        Ok(())
    }

    /// How pictures are changed in training.
    pub(super) fn changes(&self) -> &[Change] {
        match self {
            Self::Convolutional { changes, .. } => changes,
            Self::Transformer { .. } => &[],
        }
    }

    /// The adapters that are trained, if only these are.
    pub(super) fn lora(&self) -> Option<LoraSettings> {
        match self {
            Self::Transformer { lora, .. } => *lora,
            Self::Convolutional { .. } => None,
        }
    }

    /// The digest of the transformer that it starts from, if there is one.
    pub(super) fn base_digest(&self) -> Option<&str> {
        match self {
            Self::Transformer { base, .. } => base.as_deref(),
            Self::Convolutional { .. } => None,
        }
    }

    /// Whether samples are pictures that stay bytes.
    pub(super) fn has_byte_pictures(&self) -> bool {
        matches!(self, Self::Convolutional { bytes: true, .. })
    }

    /// The shape of a picture, if there are pictures.
    pub(super) fn picture(&self) -> Option<PictureShape> {
        match self {
            Self::Convolutional { picture, .. } => Some(shape(*picture)),
            Self::Transformer { .. } => None,
        }
    }
}

/// The running means and variances of batch norms.
fn statistics() -> GroupSettings {
    GroupSettings::of(["*.running_mean", "*.running_var"]).statistic()
}

/// The key of a transformer's setting, as a run file has it.
fn key_of(setting: &str) -> &'static str {
    match setting {
        "width" => "model.width",
        "heads" => "model.heads",
        "context" => "model.context",
        "dropout" => "model.dropout",
        _ => "model.layers",
    }
}

fn shape([channels, height, width]: [usize; 3]) -> PictureShape {
    PictureShape { channels, height, width }
}

fn setting(key: &'static str, reason: String) -> SpecificationError {
    SpecificationError::Network { key, reason }
}

fn mismatch() -> SpecificationError {
    SpecificationError::Foreign("the network is for other data".to_owned())
}

/// The most bytes of intermediate values that a sample may have.
const SAMPLE_BYTES_MAX: u64 = 16 << 30;
/// The most changes of a picture.
const CHANGES_MAX: usize = 8;

fn check_changes(changes: &[Change], shape: PictureShape) -> Result<(), SpecificationError> {
    within("data.changes", changes.len(), 0..=CHANGES_MAX, "at most 8 changes")?;
    let side = shape.height.min(shape.width);
    let is_too_far = |change: &&Change| matches!(change, Change::Shift { pixels } if *pixels >= side);
    match changes.iter().find(is_too_far) {
        Some(change) => Err(setting(
            "data.changes",
            format!("`{change}` moves a picture of {shape} out of sight: give fewer pixels"),
        )),
        None => Ok(()),
    }
}

fn check_shape(shape: PictureShape, columns: usize) -> Result<(), SpecificationError> {
    if shape.values() == columns {
        return Ok(());
    }
    Err(SpecificationError::Setting {
        key: "data.picture",
        found: format!(
            "[{}, {}, {}], which has {} values",
            shape.channels,
            shape.height,
            shape.width,
            shape.values()
        ),
        allowed: format!(
            "channels, height and width whose product is {columns}, the number of features of a row"
        ),
    })
}

/// Channels, height and width of the pictures that rows of so many columns hold. `sample_shape` are the dimensions of a sample of an IDX
/// file; of another file there are none.
pub(super) fn picture(
    section: &DataSection,
    columns: usize,
    sample_shape: &[usize],
) -> Result<[usize; 3], SpecificationError> {
    let of_file = match *sample_shape {
        [height, width] => Some([1, height, width]),
        [channels, height, width] if channels <= CHANNELS_MAX => Some([channels, height, width]),
        _ => None,
    };
    let side = columns.isqrt();
    let square = (side * side == columns).then_some([1, side, side]);
    let picture = section.picture.or(of_file.filter(|found| shape(*found).values() == columns)).or(square);
    let picture = picture.ok_or_else(|| SpecificationError::Setting {
        key: "data.picture",
        found: "not given".to_owned(),
        allowed: format!(
            "[channels, height, width], whose product is {columns}, the number of features of a row"
        ),
    })?;
    check_shape(shape(picture), columns)?;
    Ok(picture)
}

/// The most channels that are taken for colours in the first dimension of a file.
const CHANNELS_MAX: usize = 4;

/// Resolves a convolutional network for pictures of this shape, and whether their values are bytes.
pub(super) fn resolve_convolutional(
    model: &ModelSection,
    data: &DataSection,
    (picture, bytes): ([usize; 3], bool),
) -> Result<DeepSettings, SpecificationError> {
    let layers = match (&model.layers, model.kind) {
        (Some(Layers::List(texts)), ModelKind::Cnn) => parsed("model.layers", texts)?,
        (None, ModelKind::Cnn) => parsed("model.layers", &default_layers(picture))?,
        (None, _) => {
            let norm = model.norm.unwrap_or(NormName::Group);
            parsed("model.layers", &residual_layers(model.depth.unwrap_or(8), norm)?)?
        }
        (Some(Layers::List(_)), _) => {
            return Err(setting(
                "model.layers",
                "a \"resnet\" has a `depth` in place of a list of layers, which a \"cnn\" has".to_owned(),
            ));
        }
        (Some(Layers::Count(_)), _) => {
            return Err(setting(
                "model.layers",
                "give a list such as [\"conv 32 3\", \"relu\", \"pool 2\"]".to_owned(),
            ));
        }
    };
    let changes = parsed("data.changes", data.changes.as_deref().unwrap_or_default())?;
    Ok(DeepSettings::Convolutional { picture, bytes, layers, changes })
}

fn parsed<T: std::str::FromStr<Err: ToString>>(
    key: &'static str,
    texts: &[String],
) -> Result<Vec<T>, SpecificationError> {
    texts.iter().map(|text| text.parse().map_err(|error: T::Err| setting(key, error.to_string()))).collect()
}

/// At least two convolutions, each followed by a pool while the picture is large enough for it, and a dense layer.
pub(super) fn default_layers([_, height, width]: [usize; 3]) -> Vec<String> {
    let mut layers = vec![];
    let mut side = height.min(width);
    for (index, channels) in [32, 64, 128, 128, 256, 256].into_iter().enumerate() {
        if index >= 2 && side < 8 {
            break;
        }
        layers.extend([format!("conv {channels} 3"), "relu".to_owned()]);
        if side >= 8 {
            layers.push("pool 2".to_owned());
            side /= 2;
        }
    }
    layers.extend(["dense 128".to_owned(), "relu".to_owned()]);
    layers
}

/// The layers of a residual network for small pictures (He et al., "Deep Residual Learning", 2015, section 4.2): of 6 n + 2 layers, n blocks
/// each with 16, 32 and 64 channels.
fn residual_layers(depth: usize, norm: NormName) -> Result<Vec<String>, SpecificationError> {
    let blocks = depth.saturating_sub(2) / 6;
    if blocks == 0 || depth != 6 * blocks + 2 || depth > DEPTH_MAX {
        return Err(setting(
            "model.depth",
            format!("{depth} is not 6 n + 2: give 8, 14, 20, 26 and so on up to {DEPTH_MAX}"),
        ));
    }
    let (first, of_block) = match norm {
        NormName::Group => ("norm 8", ""),
        NormName::Batch => ("batch-norm", " batch-norm"),
    };
    let mut layers: Vec<String> = ["conv 16 3", first, "relu"].map(str::to_owned).into();
    for (stage, channels) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { " stride 2" } else { "" };
            layers.push(format!("block {channels}{stride}{of_block}"));
        }
    }
    layers.push("mean".to_owned());
    Ok(layers)
}

/// The deepest residual network.
const DEPTH_MAX: usize = 110;

/// Resolves a transformer; `base` is the one in the data file, if there is one, and `digest` that of its parameters.
pub(super) fn resolve_transformer(
    model: &ModelSection,
    (base, digest): (Option<Transformer>, Option<String>),
) -> Result<DeepSettings, SpecificationError> {
    let of_base = |number: fn(&Transformer) -> usize, default| base.as_ref().map_or(default, number);
    let layers = match &model.layers {
        None => of_base(|base| base.layers, 4),
        Some(Layers::Count(count)) => *count,
        Some(Layers::List(_)) => {
            return Err(setting(
                "model.layers",
                "give the number of blocks of a \"gpt\"; only a \"cnn\" has a list of layers".to_owned(),
            ));
        }
    };
    let width = model.width.unwrap_or(of_base(|base| base.width, 128));
    let heads = model.heads.unwrap_or(of_base(|base| base.heads, 4));
    if let Some(base) = base {
        for (key, found, expected) in [
            ("model.layers", layers, base.layers),
            ("model.width", width, base.width),
            ("model.heads", heads, base.heads),
        ] {
            let reason = format!("the model in the data file has {expected}, not {found}: leave the key out");
            if found != expected {
                return Err(setting(key, reason));
            }
        }
    }
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
    Ok(DeepSettings::Transformer { layers, width, heads, dropout, base: digest, lora })
}

/// Resolves how a text is cut into samples.
pub(super) fn resolve_text(
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
pub(super) fn is_prose(name: &str, packed: &DataBytes) -> bool {
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
const CONTEXT_MAX: usize = peergrad_models::deep::transformer::CONTEXT_MAX;

/// Returns what computes deep networks in this program.
///
/// # Errors
/// There is nothing that does.
pub fn check_backend(deep: &DeepBackend) -> Result<&Arc<dyn Backend>, SpecificationError> {
    deep.as_ref().ok_or(SpecificationError::NoBackend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::{BuiltinLoader, RunFile, Specification, resolve};
    use peergrad_core::program::loader::Loader as _;
    use peergrad_models::data::embedded::{DIGITS, embedded};

    const PROSE: &[u8] =
        b"It is a truth universally acknowledged, that a single man in possession of a good fortune";

    fn of_digits(settings: &str) -> Result<Specification, SpecificationError> {
        resolve(&RunFile::parse(settings)?, DIGITS, embedded(DIGITS).unwrap())
    }

    fn of_prose(settings: &str) -> Result<Specification, SpecificationError> {
        let text = format!("[data]\nfile = \"book.txt\"\n{settings}");
        resolve(&RunFile::parse(&text)?, "book.txt", PROSE)
    }

    const CNN: &str = "[data]\nfile = \"digits\"\n[model]\nkind = \"cnn\"\n";
    const GPT: &str = "[model]\nkind = \"gpt\"\ncontext = 8\n";

    #[test]
    fn a_specification_with_a_deep_network_reads_back() {
        let changed = "[data]\nfile = \"digits\"\nchanges = [\"flip\", \"shift 1\"]\n[model]\nkind = \"cnn\"\nlayers = [\"conv 4 3\"]";
        let texts = [CNN, changed, "[data]\nfile = \"digits\"\n[model]\nkind = \"resnet\"\ndepth = 14"];
        let resolved = texts.map(|text| of_digits(text).unwrap());
        for specification in resolved.iter().chain([&of_prose(GPT).unwrap()]) {
            let bytes = specification.to_bytes().unwrap();
            assert_eq!(Specification::parse(&bytes).unwrap(), *specification);
        }
        let settings = resolved[0].model.deep.as_ref().unwrap();
        assert_eq!(settings.picture(), Some(shape([1, 8, 8])), "64 values are a square");
        assert_eq!(resolved[0].data.standardization.mean.len(), 1, "one mean for all pixels of a channel");
        assert_eq!(
            resolved[1].model.deep.as_ref().unwrap().changes(),
            [Change::Flip, Change::Shift { pixels: 1 }]
        );
    }

    #[test]
    fn prose_is_cut_into_windows_of_which_the_last_are_held_out() {
        let specification = of_prose(GPT).unwrap();
        assert_eq!((specification.data.rows, specification.data.held_out_rows), (11, 2));
        assert!(
            specification.manifest().tensors().any(|(tensor, _)| tensor.name == "transformer.wte.weight")
        );
        assert!(is_prose("book.txt", &PROSE.into()) && is_prose("a.md", &PROSE.into()));
        assert!(
            !is_prose("book.csv", &PROSE.into()) && !is_prose("book.txt", &DataBytes::from(&[0xff, 0xfe, 0]))
        );
    }

    #[test]
    fn what_cannot_be_built_is_refused_in_words() {
        let digits = |section: &str, setting: &str| {
            let data = if section == "data" { setting } else { "" };
            let model = if section == "model" { setting } else { "kind = \"cnn\"" };
            of_digits(&format!("[data]\nfile = \"digits\"\n{data}\n[model]\n{model}"))
                .unwrap_err()
                .to_string()
        };
        for (section, setting, words) in [
            (
                "data",
                "picture = [1, 8, 9]",
                "`data.picture` is [1, 8, 9], which has 72 values; allowed: channels, height and width whose product is 64",
            ),
            ("data", "changes = [\"crop\"]", "`data.changes`: `crop` is no change of a picture: give `flip`"),
            (
                "model",
                "kind = \"cnn\"\nlayers = [\"conv\"]",
                "`model.layers`: `conv` is no layer: the number of channels is missing",
            ),
            (
                "model",
                "kind = \"cnn\"\nlayers = [\"pool 2\", \"pool 8\"]",
                "`model.layers`: layer 2, `pool 8`: a window of 8 x 8 does not fit",
            ),
            ("model", "kind = \"cnn\"\nlayers = 3", "give a list such as"),
            (
                "model",
                "kind = \"cnn\"\ndepth = 8",
                "`model.depth` is given; allowed: only if `kind` is \"resnet\"",
            ),
            ("model", "kind = \"cnn\"\nheads = 8", "only if `kind` is \"gpt\""),
            ("model", "kind = \"cnn\"\nhidden = [8]", "only if `kind` is \"mlp\""),
            ("model", "kind = \"resnet\"\ndepth = 9", "9 is not 6 n + 2: give 8, 14, 20"),
            ("model", "kind = \"resnet\"\nlayers = [\"relu\"]", "a \"resnet\" has a `depth`"),
            (
                "model",
                "kind = \"cnn\"\nnorm = \"batch\"",
                "`model.norm` is given; allowed: only if `kind` is \"resnet\"",
            ),
            ("model", "kind = \"mlp\"\nlayers = [\"relu\"]", "only if `kind` is \"cnn\" or \"gpt\""),
            (
                "model",
                "kind = \"cnn\"\nlayers = [\"dense 1048576\", \"dense 1048576\"]",
                "at most 1073741824 parameters",
            ),
        ] {
            let error = digits(section, setting);
            assert!(error.contains(words), "{setting}: {error}");
        }
        for (setting, words) in [
            (
                "context = 99",
                "`model.context` is 99; allowed: at most 44 tokens, so that the text has at least two samples",
            ),
            ("context = 0", "`model.context` is 0"),
            ("context = 8\nheads = 3", "`model.heads`: it must be a divisor of the width, 128"),
            ("context = 8\ndropout = 1.5", "`model.dropout`: it must be 0 up to"),
            ("context = 8\nlayers = [\"relu\"]", "give the number of blocks of a \"gpt\""),
        ] {
            let error = of_prose(&format!("[model]\nkind = \"gpt\"\n{setting}")).unwrap_err().to_string();
            assert!(error.contains(words), "{setting}: {error}");
        }
        let error = of_prose(&format!("label = 1\n{GPT}")).unwrap_err().to_string();
        assert!(
            error.contains("`data.label` is given; allowed: nothing if `kind` in [model] is \"gpt\""),
            "{error}"
        );
    }

    #[test]
    fn a_program_without_a_backend_says_how_to_get_one() {
        let specification = of_digits(CNN).unwrap();
        let error = specification.load(embedded(DIGITS).unwrap()).err().unwrap().to_string();
        assert!(error.contains("cargo build --release --features deep"), "{error}");
        let error = BuiltinLoader::default().data(&specification.to_bytes().unwrap()).unwrap_err();
        assert!(error.contains("--features deep"), "{error}");
    }

    #[test]
    fn specifications_of_other_peers_are_checked() {
        let altered = |of: &Specification, from: &str, to: &str| {
            let text = String::from_utf8(of.to_bytes().unwrap()).unwrap();
            assert!(text.contains(from), "{text}");
            Specification::parse(text.replace(from, to).as_bytes()).map(drop)
        };
        let cnn = of_digits(CNN).unwrap();
        assert!(altered(&cnn, "\"conv 32 3\"", "\"conv 32 9\"").is_ok());
        assert!(altered(&cnn, "\"conv 32 3\"", "\"conv 32\"").is_err());
        assert!(altered(&cnn, "picture = [1, 8, 8]", "picture = [1, 8, 4]").is_err());
        assert!(altered(&cnn, "form = \"deep\"", "form = \"network\"").is_err());
        let normed =
            of_digits("[data]\nfile = \"digits\"\n[model]\nkind = \"resnet\"\nnorm = \"batch\"").unwrap();
        assert_eq!(normed.training.groups, [statistics()]);
        assert!(altered(&normed, "statistic = true", "weight_decay = 0.0").is_err());
        let gpt = of_prose(GPT).unwrap();
        assert!(altered(&gpt, "heads = 4", "heads = 3").is_err());
        assert!(altered(&gpt, "heads = 4", "heads = 0").is_err());
        assert!(altered(&gpt, "vocabulary = 256", "vocabulary = 9").is_err());
        assert!(altered(&gpt, "context = 8", "context = 0").is_err());
        assert!(altered(&gpt, "width = 128", "width = 9999999999").is_err());
    }
}
