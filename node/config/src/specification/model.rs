//! The model of a run: what a specification says of it, and whether it fits the data.

use peergrad_models::data::format::Format;
use peergrad_models::data::labels::Target;
use peergrad_models::data::standardize::Standardization;
use peergrad_models::deep::Architecture;
use peergrad_models::task::activation::Activation;
use peergrad_models::task::logistic;
use peergrad_models::task::loss::Loss;
use peergrad_models::task::network::Network;
use peergrad_protocol::manifest::Manifest;
use serde::{Deserialize, Serialize};

use super::algorithm::Algorithm;
use super::deep::convolutional::ConvolutionalSettings;
use super::deep::transformer::{LoraSettings, TransformerSettings};
use super::{
    DataSettings, PARAMETERS_MAX, Specification, SpecificationError, TrainingSettings, deep, within,
};

/// The most hidden layers of a network of dense layers.
pub const HIDDEN_LAYERS_MAX: usize = 64;

/// The model between features and target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum ModelSettings {
    /// A network of dense layers, on a table.
    Dense {
        /// The width of each hidden layer; empty for a regression.
        hidden: Vec<usize>,
        /// The activation after each hidden layer.
        activation: Activation,
    },
    /// [Logistic regression](logistic) on features that are mostly zero.
    Logistic {},
    /// A convolutional network, on pictures.
    Convolutional(ConvolutionalSettings),
    /// A transformer, on text.
    Transformer(TransformerSettings),
}

impl ModelSettings {
    /// Whether it is a deep network, which takes a backend.
    #[must_use]
    pub fn is_deep(&self) -> bool {
        match self {
            Self::Dense { .. } | Self::Logistic {} => false,
            Self::Convolutional(_) | Self::Transformer(_) => true,
        }
    }

    /// The convolutional network, if it is one.
    pub(super) fn convolutional(&self) -> Option<&ConvolutionalSettings> {
        if let Self::Convolutional(settings) = self { Some(settings) } else { None }
    }

    /// The transformer, if it is one.
    pub(super) fn transformer(&self) -> Option<&TransformerSettings> {
        if let Self::Transformer(settings) = self { Some(settings) } else { None }
    }

    /// The deep network for this data; `None` if the model is none.
    ///
    /// # Errors
    /// Its layers do not fit together, or it does not fit the data.
    pub(super) fn architecture(
        &self,
        data: &DataSettings,
    ) -> Result<Option<Architecture>, SpecificationError> {
        Ok(match self {
            Self::Dense { .. } | Self::Logistic {} => None,
            Self::Convolutional(settings) => Some(settings.architecture(data)?),
            Self::Transformer(settings) => Some(settings.architecture(data)?),
        })
    }

    /// Checks that the model is within its bounds, and fits the data and how it is trained.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn check(
        &self,
        data: &DataSettings,
        training: &TrainingSettings,
    ) -> Result<(), SpecificationError> {
        if let Some(architecture) = self.architecture(data)? {
            return deep::check_statistics(&architecture, &training.groups);
        }
        if data.layout.format() == Format::Text {
            return Err(deep::mismatch());
        }
        match self {
            Self::Dense { hidden, .. } => check_dense(hidden, data),
            _ => check_logistic(data, training),
        }
    }
}

/// The number of outputs and the loss, which follow from the target.
fn outputs(target: &Target) -> (usize, Loss) {
    match target {
        Target::Class { classes } => (classes.len(), Loss::SoftmaxCrossEntropy),
        Target::Number { .. } => (1, Loss::HalfSquaredError),
        Target::Token { vocabulary } => (*vocabulary, Loss::SoftmaxCrossEntropy),
    }
}

fn check_dense(hidden: &[usize], data: &DataSettings) -> Result<(), SpecificationError> {
    within("model.hidden", hidden.len(), 0..=HIDDEN_LAYERS_MAX, "at most 64 layers")?;
    let mut inputs = data.layout.columns() as u64;
    let mut parameters = 0;
    for &width in hidden.iter().chain([&outputs(&data.target).0]) {
        within("model.hidden", width, 1..=1 << 20, "layers of 1 to 1048576")?;
        parameters += (inputs + 1) * width as u64;
        inputs = width as u64;
    }
    within("model.hidden", parameters, ..=PARAMETERS_MAX, "a model of at most 1073741824 parameters")
}

fn check_logistic(data: &DataSettings, training: &TrainingSettings) -> Result<(), SpecificationError> {
    let Target::Class { classes } = &data.target else {
        return Err(SpecificationError::Foreign("a logistic model predicts a number".to_owned()));
    };
    within("data.classes", classes.len(), 2..=2, "two classes with a logistic model")?;
    if data.standardization != Standardization::identity() {
        return Err(SpecificationError::Foreign("a logistic model has standardized features".to_owned()));
    }
    if let Algorithm::Downpour { n_fetch, .. } = training.algorithm {
        let allowed = "1 with a logistic model: in each step a peer reads what its samples need";
        within("sync.n_fetch", n_fetch, 1..=1, allowed)?;
    }
    Ok(())
}

impl Specification {
    /// The manifest of the model: its tensors and their shapes.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        match &self.model {
            ModelSettings::Dense { hidden, activation } => self.network(hidden, *activation).manifest(),
            ModelSettings::Logistic {} => logistic::manifest(self.data.layout.columns()),
            ModelSettings::Convolutional(_) | ModelSettings::Transformer(_) => {
                let tensors = self.architecture().map(|net| deep::tensors(&net, self.adapters()));
                peergrad_models::deep::tensors::manifest(&tensors.unwrap_or_default())
            }
        }
    }

    /// The deep network.
    ///
    /// # Errors
    /// It is none, or its layers do not fit.
    pub fn architecture(&self) -> Result<Architecture, SpecificationError> {
        let none = || SpecificationError::Foreign("the run trains no deep network".to_owned());
        self.model.architecture(&self.data)?.ok_or_else(none)
    }

    /// The network of dense layers, with these hidden ones.
    pub(super) fn network(&self, hidden: &[usize], activation: Activation) -> Network {
        let (outputs, loss) = outputs(&self.data.target);
        let widths = [&[self.data.layout.columns()], hidden, &[outputs]].concat();
        Network::new(&widths, activation, loss)
    }

    /// The adapters that are trained, if only these are.
    #[must_use]
    pub fn adapters(&self) -> Option<LoraSettings> {
        self.model.transformer().and_then(|transformer| transformer.lora)
    }

    /// Whether the samples list only the features that are not zero. A CSV or IDX file is read as a dense table in any case.
    pub(super) fn is_sparse(&self) -> bool {
        matches!(self.model, ModelSettings::Logistic {}) && self.data.layout.format() == Format::Libsvm
    }

    /// Whether the samples are pictures that stay bytes.
    pub(super) fn has_byte_pictures(&self) -> bool {
        self.model.convolutional().is_some_and(|net| net.bytes)
    }
}
