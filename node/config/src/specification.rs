//! The specification: everything that the peers of a run must agree on, as bytes.
//!
//! Each layer is made from the one before:
//!
//! ```text
//! run.toml ──RunFile──> resolve(data) ──Specification──> canonical bytes ──> BuiltinLoader ──> Loaded
//! what a user wrote     by the founder,                  hashed into the     on every peer     what trains
//!                       once                             run's id
//! ```
//! A run file leaves many settings open. The founder resolves them from the data: the columns, the classes, the held-out rows, and the
//! mean and deviation of each feature. Joiners infer nothing.
//!
//! # Invariants
//! - The bytes are TOML text, with the fields in the order of these types. Numbers read back exactly.
//! - A specification that parses is within all bounds: its model has at most [`PARAMETERS_MAX`] parameters.
//!
//! # Not here
//! `[network]` and `[compute]`: ports, the number of peers to wait for, the number of threads and the device are settings of each peer, and are
//! not hashed.

use std::num::NonZeroU64;
use std::ops::RangeBounds;
use std::time::Duration;

use peergrad_collectives::plan::Topology;
use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_core::program::loader::TrainingConfig;
use peergrad_models::data::format::{FileLayout, Format};
use peergrad_models::data::labels::Target;
use peergrad_models::data::limits::TABLE_VALUES_MAX;
use peergrad_models::data::standardize::Standardization;
use peergrad_models::deep::Architecture;
use peergrad_models::deep::text::VOCABULARY;
use peergrad_models::optimizer::{Optimizer, Schedule};
use peergrad_models::schedule::Decay;
use peergrad_models::task::activation::Activation;
use peergrad_models::task::logistic;
use peergrad_models::task::loss::Loss;
use peergrad_models::task::network::Network;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{CHECKPOINTS_MAX, SEGMENT_BYTES_MAX, SPECIFICATION_BYTES_MAX};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::placement::Replicas;
use serde::{Deserialize, Serialize};

pub mod algorithm;
pub mod answers;
pub mod builtin;
pub mod checkpointing;
mod code_settings;
pub mod compression;
mod compute_device;
pub mod custom;
mod dealing;
pub mod deep;
mod deep_data;
mod error;
mod evaluation;
mod former_names;
pub mod groups;
pub mod init;
pub mod memory;
mod patience;
mod replicas;
pub mod resolve;
pub mod run_file;
mod run_file_changes;
mod thread_count;

pub use algorithm::{Aggregation, Algorithm};
pub use builtin::BuiltinLoader;
pub use checkpointing::Checkpointing;
pub use compression::Compression;
pub use compute_device::{ComputeDevice, NotADevice};
pub use deep::DeepBackend;
use deep::DeepSettings;
pub use error::SpecificationError;
pub use evaluation::EvaluationSection;
pub use former_names::explain_former_name;
pub use groups::GroupSettings;
pub use init::{WrittenRunFile, demo_pictures_run_file, demo_run_file, write_run_file};

pub use resolve::{resolve, resolve_with_notices};
use run_file::DealingName;
pub use run_file::RunFile;
pub use run_file_changes::{ChangedKey, changed_keys};
pub use thread_count::{NotAThreadCount, ThreadCount};

/// The version of the format.
pub const VERSION: u32 = 1;
/// The most parameters of a built-in model.
pub const PARAMETERS_MAX: u64 = 1 << 30;
/// The most hidden layers of a built-in model.
pub const HIDDEN_LAYERS_MAX: usize = 64;
/// The most different tokens of a text.
pub(crate) const VOCABULARY_MAX: usize = 1 << 20;
/// The maximum length of a data file's name, in bytes.
const NAME_BYTES_MAX: usize = 4096;

/// What the peers of a run agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Specification {
    /// [`VERSION`].
    pub version: u32,
    /// How the run trains.
    pub training: TrainingSettings,
    /// The model between features and target.
    pub model: ModelSettings,
    /// The data file, and how it is read.
    pub data: DataSettings,
}

/// How a run trains. It has 21 fields because the specification is flat text, and the settings are independent of each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingSettings {
    /// Seed of the initial parameters, the order of samples and the held-out rows.
    pub seed: u64,
    /// Samples per step, over all members; with asynchronous kinds, per member.
    pub batch: u64,
    /// Passes over the training rows.
    pub epochs: u64,
    /// The topology of the all-reduce.
    pub topology: TopologyName,
    /// Elements per segment.
    pub segment_elements: usize,
    /// How many members keep the optimizer state of each chunk, its owner included.
    #[serde(with = "replicas")]
    pub replicas: Replicas,
    /// Steps between two digests of the parameters; 0 for only one at the end.
    pub digest_every: u64,
    /// Seconds that a member may compute at one step before the others go on without it, at least.
    #[serde(default = "patience::default", skip_serializing_if = "patience::is_default")]
    pub patience_seconds: u64,
    /// Evaluations during the run.
    #[serde(default, skip_serializing_if = "EvaluationSection::is_default")]
    pub evaluation: EvaluationSection,
    /// Seconds between two checkpoints; 0 for only one when a peer stops.
    pub checkpoint_seconds: u64,
    /// How many checkpoints each peer keeps.
    pub checkpoints_kept: usize,
    /// What happens in a network partition.
    pub policy: PartitionPolicy,
    /// Whether each epoch visits the samples in a different random order.
    pub shuffle: bool,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The tensors that are trained differently; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSettings>,
    /// The greatest norm of the mean gradient; `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f32>,
    /// The schedule of the learning rate.
    pub schedule: Schedule,
    /// The encoding of contributions.
    pub gradients: Compression,
    /// The encoding of new parameters.
    pub parameters: Compression,
    /// How owners combine contributions.
    pub combine: Aggregation,
    /// How batches are divided among the peers.
    pub dealing: DealingName,
    /// The algorithm by which the peers train together.
    pub algorithm: Algorithm,
}

/// The setting `topology` in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyName {
    /// Tensors travel from neighbour to neighbour.
    Ring,
    /// Tensors travel straight to their owner and back.
    Direct,
    /// Direct, unless a ring is faster.
    #[default]
    Auto,
}

impl From<TopologyName> for Option<Topology> {
    fn from(topology: TopologyName) -> Self {
        match topology {
            TopologyName::Auto => None,
            TopologyName::Ring => Some(Topology::Ring),
            TopologyName::Direct => Some(Topology::Direct),
        }
    }
}

/// The model between features and target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSettings {
    /// The form of the model.
    #[serde(default)]
    pub form: ModelForm,
    /// The width of each hidden layer; empty for regression models.
    pub hidden: Vec<usize>,
    /// The activation after each hidden layer.
    pub activation: Activation,
    /// The network, if it is a deep one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deep: Option<DeepSettings>,
}

/// The form of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelForm {
    /// A network of dense layers.
    #[default]
    Network,
    /// [Logistic regression](logistic) on features that are mostly zero.
    Logistic,
    /// A deep network.
    Deep,
}

/// The data file, and how it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// The name that the founder gave: a path, or the name of a built-in set.
    pub name: String,
    /// The digest of its bytes on disk, in hexadecimal.
    pub digest: String,
    /// The number of those bytes.
    pub byte_count: u64,
    /// The number of rows.
    pub rows: u32,
    /// The number of held-out rows.
    pub held_out_rows: u32,
    /// Where the features and the labels are.
    pub layout: FileLayout,
    /// What the model predicts.
    pub target: Target,
    /// The standardization of the features.
    pub standardization: Standardization,
}

impl DataSettings {
    /// Replaces the names of the columns by their digest, which is short.
    fn shorten_names(&mut self) {
        if let FileLayout::Csv(layout) = &mut self.layout {
            layout.shorten_names();
        }
    }
}

impl Specification {
    /// The bytes that are hashed and sent.
    ///
    /// # Errors
    /// There are more than [`SPECIFICATION_BYTES_MAX`] of them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SpecificationError> {
        let text = toml::to_string(self).map_err(|error| SpecificationError::Foreign(error.to_string()))?;
        if text.len() > SPECIFICATION_BYTES_MAX {
            return Err(SpecificationError::TooLarge { found: text.len() });
        }
        Ok(text.into_bytes())
    }

    /// Reads and checks bytes that [`to_bytes`](Self::to_bytes) made, here or at another peer.
    ///
    /// # Errors
    /// The bytes are not a specification of this version, or a value is out of bounds.
    pub fn parse(bytes: &[u8]) -> Result<Self, SpecificationError> {
        if bytes.len() > SPECIFICATION_BYTES_MAX {
            return Err(SpecificationError::TooLarge { found: bytes.len() });
        }
        let foreign = |error: &dyn std::fmt::Display| SpecificationError::Foreign(error.to_string());
        let text = std::str::from_utf8(bytes).map_err(|error| foreign(&error))?;
        let specification: Self = toml::from_str(text).map_err(|error| foreign(&error.message()))?;
        specification.check()?;
        Ok(specification)
    }

    /// The manifest of the model: its tensors and their shapes.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        match self.model.form {
            ModelForm::Network => self.network().manifest(),
            ModelForm::Logistic => logistic::manifest(self.data.layout.columns()),
            ModelForm::Deep => self.deep_manifest(),
        }
    }

    /// The deep network.
    ///
    /// # Errors
    /// It is none, or its layers do not fit.
    pub fn architecture(&self) -> Result<Architecture, SpecificationError> {
        let none = || SpecificationError::Foreign("the run trains no deep network".to_owned());
        self.model.deep.as_ref().ok_or_else(none)?.architecture(&self.data)
    }

    /// The model as a network of dense layers.
    fn network(&self) -> Network {
        let (outputs, loss) = self.outputs();
        let widths = [&[self.data.layout.columns()], self.model.hidden.as_slice(), &[outputs]].concat();
        Network::new(&widths, self.model.activation, loss)
    }

    /// Whether the samples list only the features that are not zero. A CSV or IDX file is read as a dense table in any case.
    fn is_sparse(&self) -> bool {
        self.model.form == ModelForm::Logistic && self.data.layout.format() == Format::Libsvm
    }

    /// The digest of the data file.
    ///
    /// # Errors
    /// The text is not a digest.
    pub fn digest(&self) -> Result<ContentDigest, SpecificationError> {
        let hash = blake3::Hash::from_hex(&self.data.digest);
        let foreign = |error: blake3::HexError| SpecificationError::Foreign(error.to_string());
        Ok(ContentDigest(*hash.map_err(foreign)?.as_bytes()))
    }

    /// The number of outputs and the loss, which follow from the target.
    fn outputs(&self) -> (usize, Loss) {
        match &self.data.target {
            Target::Class { classes } => (classes.len(), Loss::SoftmaxCrossEntropy),
            Target::Number { .. } => (1, Loss::HalfSquaredError),
            Target::Token { vocabulary } => (*vocabulary, Loss::SoftmaxCrossEntropy),
        }
    }

    /// Checks that everything is within its bounds.
    ///
    /// # Errors
    /// The first value that is not.
    fn check(&self) -> Result<(), SpecificationError> {
        within("version", self.version, VERSION..=VERSION, "1")?;
        self.digest()?;
        self.training.check()?;
        self.check_data()?;
        self.check_model()?;
        self.training.training(&self.manifest()).map(drop)
    }

    fn check_data(&self) -> Result<(), SpecificationError> {
        let data = &self.data;
        let foreign = |what: &str| Err(SpecificationError::Foreign(what.to_owned()));
        if let Some(problem) = data.layout.problem() {
            return foreign(&problem);
        }
        within("data.file", data.name.len(), 1..=NAME_BYTES_MAX, "a name of 1 to 4096 bytes")?;
        within("data.file", data.byte_count, 1.., "a file of at least one byte")?;
        within("data.held_out", data.held_out_rows, 0..data.rows, "fewer rows than the file has")?;
        let is_prose = matches!(data.target, Target::Token { .. });
        if is_prose != (data.layout.format() == Format::Text) {
            return foreign("only prose has tokens");
        }
        let has_bytes = self.has_byte_pictures();
        if has_bytes && data.layout.format() != Format::Idx {
            return foreign("only an IDX file has pictures of bytes");
        }
        let is_table = !self.is_sparse() && !has_bytes && data.layout.format() != Format::Text;
        if is_table && u64::from(data.rows) * data.layout.columns() as u64 > TABLE_VALUES_MAX as u64 {
            return foreign("the table has more than 268435456 numbers");
        }
        if !data.standardization.fits(data.layout.columns()) {
            return foreign("the standardization does not fit the columns");
        }
        match &data.target {
            Target::Class { classes } => {
                let allowed = "at least two different classes";
                let distinct: std::collections::BTreeSet<&String> = classes.iter().collect();
                within("data.classes", distinct.len(), 2.max(classes.len()).., allowed)
            }
            Target::Number { mean, scale } if mean.is_finite() && scale.is_finite() && *scale > 0.0 => Ok(()),
            Target::Number { .. } => foreign("the target's mean or scale is not a number"),
            Target::Token { vocabulary } => {
                let most = if self.has_prepared_text() { VOCABULARY_MAX } else { VOCABULARY };
                let least = if self.has_prepared_text() { 1 } else { VOCABULARY };
                within(
                    "data.file",
                    *vocabulary,
                    least..=most,
                    "256 different bytes, or up to 1048576 different tokens",
                )
            }
        }
    }

    fn check_model(&self) -> Result<(), SpecificationError> {
        let hidden = &self.model.hidden;
        if self.model.form == ModelForm::Deep {
            within("model.hidden", hidden.len(), 0..=0, "no hidden layers with a deep network")?;
            return DeepSettings::check_statistics(&self.architecture()?, &self.training.groups);
        }
        if self.model.deep.is_some() || self.data.layout.format() == Format::Text {
            return Err(SpecificationError::Foreign("the model is for other data".to_owned()));
        }
        if self.model.form == ModelForm::Logistic {
            within("model.hidden", hidden.len(), 0..=0, "no layers with a logistic model")?;
            let Target::Class { classes } = &self.data.target else {
                return Err(SpecificationError::Foreign("a logistic model predicts a number".to_owned()));
            };
            within("data.classes", classes.len(), 2..=2, "two classes with a logistic model")?;
            if self.data.standardization != Standardization::identity() {
                return Err(SpecificationError::Foreign(
                    "a logistic model has standardized features".to_owned(),
                ));
            }
            if let Algorithm::Downpour { n_fetch, .. } = self.training.algorithm {
                let allowed = "1 with a logistic model: in each step a peer reads what its samples need";
                within("sync.n_fetch", n_fetch, 1..=1, allowed)?;
            }
            return Ok(());
        }
        within("model.hidden", hidden.len(), 0..=HIDDEN_LAYERS_MAX, "at most 64 layers")?;
        let mut inputs = self.data.layout.columns() as u64;
        let mut parameters = 0;
        for &width in hidden.iter().chain([&self.outputs().0]) {
            within("model.hidden", width, 1..=1 << 20, "layers of 1 to 1048576")?;
            parameters += (inputs + 1) * width as u64;
            inputs = width as u64;
        }
        within("model.hidden", parameters, ..=PARAMETERS_MAX, "a model of at most 1073741824 parameters")
    }
}

impl TrainingSettings {
    /// The settings in the form that the node uses, for a model of these tensors.
    ///
    /// # Errors
    /// There is a group of tensors that the model does not have.
    pub fn training(&self, manifest: &Manifest) -> Result<TrainingConfig, SpecificationError> {
        Ok(TrainingConfig {
            seed: self.seed,
            batch_size: self.batch,
            local_steps: self.algorithm.local_steps(),
            round_duration: self.algorithm.round_duration(),
            epochs: self.epochs,
            rule: self.optimizer,
            groups: groups::resolve(&self.groups, manifest)?,
            clip_norm: self.clip_norm,
            schedule: self.schedule,
            fixed_topology: self.topology.into(),
            gradients: self.gradients.into(),
            parameters: self.parameters.into(),
            combine: self.combine.into(),
            dealing: self.dealing.into(),
            backups: self.algorithm.backups(),
            segment_elements: self.segment_elements,
            replicas: self.replicas,
            digest_every: NonZeroU64::new(self.digest_every),
            patience: Duration::from_secs(self.patience_seconds),
            evaluation: self.evaluation.config(),
            checkpoint_every: (self.checkpoint_seconds > 0)
                .then(|| Duration::from_secs(self.checkpoint_seconds)),
            checkpoints_kept: self.checkpoints_kept,
            policy: self.policy,
            is_shuffled: self.shuffle,
        })
    }

    fn check(&self) -> Result<(), SpecificationError> {
        within("batch", self.batch, 1..=u64::from(u32::MAX), "1 to 4294967295 samples")?;
        within("epochs", self.epochs, 1..=1_000_000_000, "1 to 1000000000")?;
        within("checkpoints.seconds", self.checkpoint_seconds, ..=86_400, "0 to 86400")?;
        within("checkpoints.keep", self.checkpoints_kept, 1..=CHECKPOINTS_MAX, "1 to 4")?;
        let elements_max = SEGMENT_BYTES_MAX / size_of::<f32>();
        within("sync.segment_kib", self.segment_elements, 1..=elements_max, "1 to 1024")?;
        replicas::check(self.replicas)?;
        patience::check(self.patience_seconds)?;
        self.evaluation.check(&self.algorithm)?;
        check_rule(&self.optimizer)?;
        groups::check(self)?;
        self.combine.check(self.topology, &self.algorithm)?;
        dealing::check(self)?;
        self.algorithm.check(self.topology)?;
        self.algorithm.check_rule(&self.optimizer)?;
        if self.policy.allows_forks() && self.algorithm.has_tables() {
            return Err(SpecificationError::Setting {
                key: "partition.policy",
                found: "given".to_owned(),
                allowed: "\"majority\" with this [sync] kind: only one part can have all additions"
                    .to_owned(),
            });
        }
        if self.policy == PartitionPolicy::Merge && !self.algorithm.can_merge() {
            let allowed =
                "\"majority\" or \"winner\" with this [sync] kind: its peers do not hold the same parameters"
                    .to_owned();
            return Err(SpecificationError::Setting {
                key: "partition.policy",
                found: "merge".to_owned(),
                allowed,
            });
        }
        compression::check(self)?;
        check_schedule(&self.schedule)
    }
}

fn check_rule(rule: &Optimizer) -> Result<(), SpecificationError> {
    let decay = |decay: f32| within("optimizer.weight_decay", decay, 0.0..=f32::MAX, "0 or more");
    let penalties = |l1: f32, l2: f32| {
        within("optimizer.l1", l1, 0.0..=f32::MAX, "0 or more")?;
        within("optimizer.l2", l2, 0.0..=f32::MAX, "0 or more")
    };
    match *rule {
        Optimizer::Sgd { weight_decay } => decay(weight_decay),
        Optimizer::Momentum { momentum, nesterov: _, weight_decay } => {
            within("optimizer.momentum", momentum, 0.0..1.0, "0 up to, not including, 1")?;
            decay(weight_decay)
        }
        Optimizer::Adam { beta1, beta2, epsilon, weight_decay }
        | Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
            within("optimizer.beta1", beta1, 0.0..1.0, "0 up to, not including, 1")?;
            within("optimizer.beta2", beta2, 0.0..1.0, "0 up to, not including, 1")?;
            within("optimizer.epsilon", epsilon, f32::MIN_POSITIVE..=f32::MAX, "above 0")?;
            decay(weight_decay)
        }
        Optimizer::Adagrad { epsilon, weight_decay } => {
            within("optimizer.epsilon", epsilon, f32::MIN_POSITIVE..=f32::MAX, "above 0")?;
            decay(weight_decay)
        }
        Optimizer::Prox { l1, l2 } => penalties(l1, l2),
        Optimizer::Ftrl { beta, l1, l2 } => {
            within("optimizer.beta", beta, f32::MIN_POSITIVE..=f32::MAX, "above 0")?;
            penalties(l1, l2)
        }
    }
}

fn check_schedule(schedule: &Schedule) -> Result<(), SpecificationError> {
    within("optimizer.rate", schedule.base, f64::MIN_POSITIVE..=1e6, "above 0, up to 1000000")?;
    match schedule.decay {
        Decay::Constant => Ok(()),
        Decay::Step { factor, every } => {
            within("optimizer.decay_factor", factor, f64::MIN_POSITIVE..=1.0, "above 0, up to 1")?;
            within("optimizer.decay_epochs", every, 1.., "at least 1")
        }
        Decay::Cosine { floor, total_steps: _ } => {
            within("optimizer.floor", floor, 0.0..=schedule.base, "0 up to the rate")
        }
    }
}

/// Checks that `range` contains `value`; no range contains NaN.
///
/// # Errors
/// It does not; `key` and `allowed` become part of the message.
fn within<T: PartialOrd + std::fmt::Display>(
    key: &'static str,
    value: T,
    range: impl RangeBounds<T>,
    allowed: &str,
) -> Result<(), SpecificationError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(SpecificationError::Setting { key, found: value.to_string(), allowed: allowed.to_owned() })
}
