//! The model of a run: what a specification says of it, and whether it fits the data.

use peergrad_models::data::documents::Vocabulary;
use peergrad_models::data::format::Format;
use peergrad_models::data::labels::Target;
use peergrad_models::data::standardize::Standardization;
use peergrad_models::deep::Architecture;
use peergrad_models::task::activation::Activation;
use peergrad_models::task::loss::Loss;
use peergrad_models::task::margin_loss::MarginLoss;
use peergrad_models::task::network::Network;
use peergrad_models::task::sparse_linear;
use peergrad_protocol::manifest::Manifest;
use serde::{Deserialize, Serialize};

use super::algorithm::Algorithm;
use super::deep::convolutional::ConvolutionalSettings;
use super::deep::transformer::{LoraSettings, TransformerSettings};
use super::factorization::FactorizationSettings;
use super::resolve::check_kind;
use super::topics::TopicSettings;
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
    /// [Logistic regression](MarginLoss::CrossEntropy) on features that are mostly zero.
    Logistic {},
    /// A linear support vector machine, on a table or on features that are mostly zero.
    Svm {},
    /// A matrix factorization, on ratings.
    Factorization(FactorizationSettings),
    /// A topic model, on documents.
    Lda(TopicSettings),
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
            Self::Dense { .. } | Self::Logistic {} | Self::Svm {} => false,
            Self::Factorization(_) | Self::Lda(_) => false,
            Self::Convolutional(_) | Self::Transformer(_) => true,
        }
    }

    /// The convolutional network, if it is one.
    pub(super) fn convolutional(&self) -> Option<&ConvolutionalSettings> {
        if let Self::Convolutional(settings) = self { Some(settings) } else { None }
    }

    /// The words of a topic model, if it is one.
    pub(super) fn vocabulary(&self) -> Option<&Vocabulary> {
        if let Self::Lda(settings) = self { Some(&settings.vocabulary) } else { None }
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
            Self::Dense { .. } | Self::Logistic {} | Self::Svm {} => None,
            Self::Factorization(_) | Self::Lda(_) => None,
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
        let is_topic_model = matches!(self, Self::Lda(_));
        check_kind(is_topic_model, matches!(training.algorithm, Algorithm::Lda { .. }))?;
        if let Some(architecture) = self.architecture(data)? {
            return deep::check_statistics(&architecture, &training.groups);
        }
        if data.layout.format() == Format::Text
            || is_topic_model != (data.layout.format() == Format::Documents)
        {
            return Err(deep::mismatch());
        }
        match self {
            Self::Dense { hidden, .. } => check_dense(hidden, outputs(&data.target).0, data),
            Self::Svm {} => check_svm(data, training),
            Self::Factorization(settings) => settings.check(data, training),
            Self::Lda(settings) => settings.check(data),
            _ => check_logistic(data, training),
        }
    }

    /// What a model of a table computes with this data; `None` for another model.
    pub(super) fn table_model(&self, data: &DataSettings) -> Option<TableModel> {
        let dense = |hidden: &[usize], activation, (outputs, loss)| {
            let widths = [&[data.layout.columns()], hidden, &[outputs]].concat();
            TableModel::Dense(Network::new(&widths, activation, loss))
        };
        Some(match self {
            Self::Dense { hidden, activation } => dense(hidden, *activation, outputs(&data.target)),
            Self::Logistic {} => TableModel::Sparse(MarginLoss::CrossEntropy),
            Self::Svm {} if is_sparse_svm(data) => TableModel::Sparse(MarginLoss::SquaredHinge),
            Self::Svm {} => dense(&[], Activation::default(), (margins(data), Loss::SquaredHinge)),
            _ => return None,
        })
    }
}

/// What computes a model of a table.
pub(super) enum TableModel {
    /// A network of dense layers.
    Dense(Network),
    /// A linear classifier of two classes, on features that are mostly zero.
    Sparse(MarginLoss),
}

/// Whether a support vector machine takes samples as lists of what is not zero: those of a LIBSVM file with two classes.
fn is_sparse_svm(data: &DataSettings) -> bool {
    data.layout.format() == Format::Libsvm && margins(data) == 1
}

/// The margins of a support vector machine: one for two classes, and otherwise one for each class, against all others.
fn margins(data: &DataSettings) -> usize {
    match outputs(&data.target).0 {
        2 => 1,
        classes => classes,
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

fn check_dense(hidden: &[usize], outputs: usize, data: &DataSettings) -> Result<(), SpecificationError> {
    within("model.hidden", hidden.len(), 0..=HIDDEN_LAYERS_MAX, "at most 64 layers")?;
    let mut inputs = data.layout.columns() as u64;
    let mut parameters = 0;
    for &width in hidden.iter().chain([&outputs]) {
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
    check_sparse(training, "a logistic model")
}

fn check_svm(data: &DataSettings, training: &TrainingSettings) -> Result<(), SpecificationError> {
    let foreign = |what: &str| Err(SpecificationError::Foreign(what.to_owned()));
    if !matches!(data.target, Target::Class { .. }) {
        return foreign("a support vector machine predicts a number");
    }
    if !is_sparse_svm(data) {
        return check_dense(&[], margins(data), data);
    }
    if data.standardization != Standardization::identity() {
        return foreign("a sparse model has standardized features");
    }
    check_sparse(training, "a sparse model")
}

/// Checks that the algorithm can train a model whose steps each touch few parameters.
pub(super) fn check_sparse(training: &TrainingSettings, model: &str) -> Result<(), SpecificationError> {
    if let Algorithm::Downpour { n_fetch, .. } = training.algorithm {
        let allowed = format!("1 with {model}: in each step a peer reads what its samples need");
        within("sync.n_fetch", n_fetch, 1..=1, &allowed)?;
    }
    Ok(())
}

impl Specification {
    /// The manifest of the model: its tensors and their shapes.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        match &self.model {
            ModelSettings::Factorization(settings) => return settings.model().manifest(),
            ModelSettings::Lda(settings) => return settings.manifest(),
            _ => {}
        }
        match self.model.table_model(&self.data) {
            Some(TableModel::Dense(network)) => network.manifest(),
            Some(TableModel::Sparse(_)) => sparse_linear::manifest(self.data.layout.columns()),
            None => {
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

    /// The adapters that are trained, if only these are.
    #[must_use]
    pub fn adapters(&self) -> Option<LoraSettings> {
        self.model.transformer().and_then(|transformer| transformer.lora)
    }

    /// Whether the samples list only the features that are not zero. A CSV or IDX file is read as a dense table in any case.
    pub(super) fn is_sparse(&self) -> bool {
        match self.model {
            ModelSettings::Logistic {} => self.data.layout.format() == Format::Libsvm,
            ModelSettings::Svm {} => is_sparse_svm(&self.data),
            _ => false,
        }
    }

    /// Whether the samples are pictures that stay bytes.
    pub(super) fn has_byte_pictures(&self) -> bool {
        self.model.convolutional().is_some_and(|net| net.bytes)
    }
}

#[cfg(test)]
mod tests;
