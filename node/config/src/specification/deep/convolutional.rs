//! Convolutional networks in a run file and in a specification.

use peergrad_models::data::format::FileLayout;
use peergrad_models::data::labels::Target;
use peergrad_models::deep::changes::Change;
use peergrad_models::deep::convolutional::PictureShape;
use peergrad_models::deep::layer::Layer;
use peergrad_models::deep::{Architecture, ConvolutionalNet};
use serde::{Deserialize, Serialize};

use super::{check_size, mismatch, setting};
use crate::specification::run_file::{DataSection, Layers, ModelKind, ModelSection, NormName};
use crate::specification::{DataSettings, SpecificationError, within};

/// What a specification says of a convolutional network. Its outputs follow from the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvolutionalSettings {
    /// Channels, height and width of a picture.
    pub picture: [usize; 3],
    /// Whether the file holds a byte for each value. Then samples stay bytes, and need not be in memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bytes: bool,
    /// Its layers, without the last dense one.
    #[serde(with = "as_texts")]
    pub layers: Vec<Layer>,
    /// How pictures are changed in training.
    #[serde(with = "as_texts", default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

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

impl ConvolutionalSettings {
    /// The network for this data.
    ///
    /// # Errors
    /// Its layers do not fit together, or it does not fit the data.
    pub(in crate::specification) fn architecture(
        &self,
        data: &DataSettings,
    ) -> Result<Architecture, SpecificationError> {
        let outputs = match (&data.layout, &data.target) {
            (FileLayout::Text(_), _) | (_, Target::Token { .. }) => return Err(mismatch()),
            (_, Target::Class { classes }) => classes.len(),
            (_, Target::Number { .. }) => 1,
        };
        let shape = self.shape();
        check_shape(shape, data.layout.columns())?;
        check_changes(&self.changes, shape)?;
        let net = ConvolutionalNet::new(shape, &self.layers, outputs);
        let net = net.map_err(|error| setting("model.layers", error.to_string()))?;
        let architecture = Architecture::Convolutional(net);
        check_size(&architecture, None)?;
        Ok(architecture)
    }

    /// The shape of a picture.
    pub(in crate::specification) fn shape(&self) -> PictureShape {
        shape(self.picture)
    }
}

fn shape([channels, height, width]: [usize; 3]) -> PictureShape {
    PictureShape { channels, height, width }
}

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
pub(in crate::specification) fn picture(
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

/// The pictures of a data file.
#[derive(Clone, Copy, Debug)]
pub(in crate::specification) struct PictureForm {
    /// Channels, height and width.
    pub(in crate::specification) picture: [usize; 3],
    /// Whether their values are bytes.
    pub(in crate::specification) bytes: bool,
}

/// Resolves a convolutional network for these pictures.
pub(in crate::specification) fn resolve_convolutional(
    model: &ModelSection,
    data: &DataSection,
    PictureForm { picture, bytes }: PictureForm,
) -> Result<ConvolutionalSettings, SpecificationError> {
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
    Ok(ConvolutionalSettings { picture, bytes, layers, changes })
}

fn parsed<T: std::str::FromStr<Err: ToString>>(
    key: &'static str,
    texts: &[String],
) -> Result<Vec<T>, SpecificationError> {
    texts.iter().map(|text| text.parse().map_err(|error: T::Err| setting(key, error.to_string()))).collect()
}

/// At least two convolutions, each followed by a pool while the picture is large enough for it, and a dense layer.
pub(in crate::specification) fn default_layers([_, height, width]: [usize; 3]) -> Vec<String> {
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
