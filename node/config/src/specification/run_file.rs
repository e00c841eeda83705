//! The run file run.toml: all keys that a user may write, with their defaults.
//!
//! Only `file` in `[data]` is required. An unknown key is an error, so that a misspelt one is not ignored. Values are checked when the
//! file is resolved with its data.

use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_models::optimizer::Bounds;
use peergrad_models::task::activation::Activation;
use peergrad_models::task::lda::Sampler;
use peergrad_protocol::placement::Replicas;
use serde::Deserialize;

use super::evaluation::EvaluationSection;
use super::{ComputeDevice, GroupSettings, SpecificationError, ThreadCount};
use super::{explain_former_name, replicas};

mod data_section;
mod sync_section;

pub use data_section::{DataSection, WordList};
pub use sync_section::{
    AggregationName, ApplyName, CompressionName, DealingName, LocalSteps, SyncKind, SyncSection,
};

/// The default number of epochs.
const EPOCHS_DEFAULT: u64 = 40;
/// The same for a topic model, whose epochs are sweeps.
const EPOCHS_OF_TOPICS_DEFAULT: u64 = 60;
/// The default number of samples of a step.
const BATCH_DEFAULT: u64 = 64;
/// The default port.
pub const PORT_DEFAULT: u16 = 4747;
/// The default seed.
pub const SEED_DEFAULT: u64 = 7;
/// The default number of peers that a new run waits for.
pub const PEERS_DEFAULT: u32 = 2;

/// A run.toml.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// Passes over the training rows. Default 40, and 60 for `lda`.
    pub epochs: Option<u64>,
    /// Samples per step, over all peers together, whatever their number. With `async` and `downpour`, samples per step of one peer.
    /// Default 64. `lda` has none.
    pub batch: Option<u64>,
    /// Seed of the initial parameters, the order of samples and the held-out rows. Default 7.
    #[serde(default = "seed_default")]
    pub seed: u64,
    /// Whether each epoch visits the samples in a different random order; if false, in the order of the file. Default true.
    #[serde(default = "shuffle_default")]
    pub shuffle: bool,
    /// `[data]`; `None` with a custom task, which brings its own data.
    pub data: Option<DataSection>,
    /// `[model]`
    #[serde(default)]
    pub model: ModelSection,
    /// `[optimizer]`
    #[serde(default)]
    pub optimizer: OptimizerSection,
    /// `[sync]`
    #[serde(default)]
    pub sync: SyncSection,
    /// `[shards]`
    #[serde(default)]
    pub shards: ShardsSection,
    /// `[checkpoints]`
    #[serde(default)]
    pub checkpoints: CheckpointsSection,
    /// `[evaluation]`
    #[serde(default)]
    pub evaluation: EvaluationSection,
    /// `[partition]`
    #[serde(default)]
    pub partition: PartitionSection,
    /// `[settings]`: keys of a custom task's own, which all peers get.
    #[serde(default)]
    pub settings: toml::Table,
    /// `[network]`, which concerns this peer only.
    #[serde(default)]
    pub network: NetworkSection,
    /// `[compute]`, which concerns this peer only.
    #[serde(default)]
    pub compute: ComputeSection,
}

/// `[model]`: the model. It has 22 fields because the section is flat.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// The kind of model. Default `mlp`.
    pub kind: ModelKind,
    /// Widths of the hidden layers; only for `mlp`. Default `[128]`.
    pub hidden: Option<Vec<usize>>,
    /// `relu`, `tanh` or `gelu`; only for `mlp`. Default `relu`.
    pub activation: Option<Activation>,
    /// `cnn`: a list of layers. `gpt` and `llama`: the number of blocks, default 4.
    pub layers: Option<Layers>,
    /// `resnet` only: 8, 14, 20 and so on. Default 8.
    pub depth: Option<usize>,
    /// `resnet` only: the norm after each convolution. Default `group`.
    pub norm: Option<NormName>,
    /// `gpt` and `llama` only: numbers for each token. Default 128.
    pub width: Option<usize>,
    /// `gpt` and `llama` only: heads of the attention. Default 4.
    pub heads: Option<usize>,
    /// `llama` only: heads of keys and values, a divisor of `heads`. Default: as many.
    pub kv_heads: Option<usize>,
    /// `llama` only: numbers inside the second half of a block. Default: 8/3 of the width, rounded up to a multiple of 32.
    pub hidden_width: Option<usize>,
    /// `gpt` and `llama` only: the tokens of text that it sees at once. Default 128.
    pub context: Option<usize>,
    /// `gpt` and `llama` only: the share of values that dropout leaves out. Default 0.
    pub dropout: Option<f32>,
    /// `gpt` and `llama` only, with a prepared text that holds a model: the rank of adapters, which alone are trained. Default: the whole
    /// model is.
    pub lora: Option<usize>,
    /// With `lora` only: what the adapters are multiplied by, times the rank. Default: twice the rank.
    pub lora_alpha: Option<f32>,
    /// `factorization` only: the factors of each user and each item. Default 10.
    pub rank: Option<usize>,
    /// `factorization` only: this times the squares of all numbers behind a rating is added to its loss. Default 0.02.
    pub regularization: Option<f32>,
    /// `factorization` only: whether each user and each item has a bias. Default true.
    pub biases: Option<bool>,
    /// `factorization` only: whether the mean of the training ratings is part of each prediction. Default true.
    pub global_mean: Option<bool>,
    /// `lda` only: the number of topics. Default 20.
    pub topics: Option<u32>,
    /// `lda` only: what is added to the number of a document's words in each topic. Default 0.1.
    pub alpha: Option<f64>,
    /// `lda` only: what is added to the number of a topic's words of each kind. Default 0.01.
    pub beta: Option<f64>,
    /// `lda` only: how topics are drawn: `sparse`, `dense`, `alias` or `light`. Default `sparse`.
    pub sampler: Option<Sampler>,
}

/// `layers` in `[model]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "a number of blocks (gpt, llama), or a list such as [\"conv 32 3\", \"relu\"] (cnn)"
)]
pub enum Layers {
    /// The number of blocks of a transformer.
    Count(usize),
    /// The layers of a convolutional network.
    List(Vec<String>),
}

/// `norm` in `[model]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormName {
    /// Group normalization.
    Group,
    /// Batch normalization, of fixed blocks of samples.
    Batch,
}

/// The built-in models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// A network with hidden layers, for classes or a number.
    #[default]
    Mlp,
    /// Softmax regression, for classes.
    Softmax,
    /// Linear regression, for a number.
    Linear,
    /// Logistic regression on sparse features, for two classes.
    Logistic,
    /// A linear support vector machine, for classes.
    Svm,
    /// Matrix factorization, for ratings.
    Factorization,
    /// A topic model, for documents.
    Lda,
    /// A convolutional network, for pictures.
    Cnn,
    /// A residual network, for pictures.
    Resnet,
    /// A transformer like GPT-2, for text.
    Gpt,
    /// A transformer like LLaMA, for text.
    Llama,
}

/// What a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputForm {
    /// Rows of numbers.
    Table,
    /// Rows that list the numbers which are not zero.
    SparseTable,
    /// Rows of numbers, or, in a LIBSVM file, those that are not zero.
    AnyTable,
    /// Ratings.
    Ratings,
    /// Documents.
    Documents,
    /// Pictures.
    Pictures,
    /// Text.
    Text,
}

impl ModelKind {
    /// What such a model reads.
    pub(super) fn input(self) -> InputForm {
        match self {
            Self::Mlp | Self::Softmax | Self::Linear => InputForm::Table,
            Self::Logistic => InputForm::SparseTable,
            Self::Svm => InputForm::AnyTable,
            Self::Factorization => InputForm::Ratings,
            Self::Lda => InputForm::Documents,
            Self::Cnn | Self::Resnet => InputForm::Pictures,
            Self::Gpt | Self::Llama => InputForm::Text,
        }
    }

    /// Whether such a model reads text.
    #[must_use]
    pub fn is_for_text(self) -> bool {
        self.input() == InputForm::Text
    }

    /// Whether such a model is a deep network.
    #[must_use]
    pub fn is_deep(self) -> bool {
        matches!(self.input(), InputForm::Pictures | InputForm::Text)
    }
}

/// `[optimizer]`: the optimizer and the learning rate. It has 20 fields because the section is flat.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSection {
    /// The optimizer. Default `adam`.
    pub rule: Option<OptimizerKind>,
    /// The learning rate. Default 0.1 for `sgd`, `prox` and `ftrl`, 0.05 for `momentum`, 0.01 for `adagrad`, 0.001 for `adam` and
    /// `adamw`.
    pub rate: Option<f64>,
    /// `momentum` only: the momentum. Default 0.9.
    pub momentum: Option<f32>,
    /// `momentum` only: whether it is Nesterov momentum. Default false.
    pub nesterov: Option<bool>,
    /// `adam` and `adamw` only: decay of the first moment. Default 0.9.
    pub beta1: Option<f32>,
    /// `adam` and `adamw` only: decay of the second moment. Default 0.999.
    pub beta2: Option<f32>,
    /// `adam`, `adamw` (default 1e-8) and `adagrad` (default 1e-10) only: added to the denominator.
    pub epsilon: Option<f32>,
    /// The weight decay; not for `prox` and `ftrl`. Default 0.01 for `adamw`, 0 for the others.
    pub weight_decay: Option<f32>,
    /// `prox` and `ftrl` only: factor of the L1 penalty, the sum of absolute parameters. Default 0.
    pub l1: Option<f32>,
    /// `prox` and `ftrl` only: factor of the L2 penalty, half the sum of squared parameters. Default 0.
    pub l2: Option<f32>,
    /// `ftrl` only: the β of the per-feature learning rate. Default 1.
    pub beta: Option<f32>,
    /// Steps over which the rate rises from 0. Default 0.
    pub warmup_steps: u64,
    /// The shape of the learning rate over time. Default `constant`.
    pub schedule: ScheduleName,
    /// `step` only: the factor by which the rate is multiplied. Default 0.1.
    pub decay_factor: Option<f64>,
    /// `step` only: the epochs between two such multiplications. Default a third of all epochs.
    pub decay_epochs: Option<u64>,
    /// `cosine` only: the final rate. Default 0.
    pub floor: Option<f64>,
    /// The batch size that `rate` was chosen for; the rate is multiplied by `batch / scale_from_batch`. Default: `batch`.
    pub scale_from_batch: Option<u64>,
    /// The greatest norm of the mean gradient of a step, over all parameters but statistics: a longer one is shortened before its update, as
    /// by `torch.nn.utils.clip_grad_norm_`. Under `local`, `diloco` and `ds-sync`, each peer's in each of its local steps. Default: no limit.
    pub clip_norm: Option<f32>,
    /// The least and the greatest value of a parameter: after each update, a parameter outside moves to the nearer end. `[0.0, inf]` keeps all
    /// parameters nonnegative. Statistics have none. Default: no bounds.
    pub bounds: Option<Bounds>,
    /// `[[optimizer.groups]]`: tensors that are trained differently. Default: none.
    pub groups: Vec<GroupSettings>,
}

/// The optimizers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Stochastic gradient descent.
    Sgd,
    /// SGD with momentum.
    Momentum,
    /// Adam.
    #[default]
    Adam,
    /// Adam with decoupled weight decay.
    AdamW,
    /// Adagrad.
    Adagrad,
    /// Proximal gradient descent with L1 and L2 penalties.
    Prox,
    /// FTRL-proximal with L1 and L2 penalties.
    Ftrl,
}

/// The shapes of the learning rate over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleName {
    /// Constant.
    #[default]
    Constant,
    /// Multiplied by a factor at regular intervals.
    Step,
    /// Falls along a cosine over the whole run.
    Cosine,
}

/// `[shards]`: the replication of optimizer state.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShardsSection {
    /// How many peers keep the state of each chunk, its owner included: a number, or all. Default 2.
    #[serde(deserialize_with = "replicas::deserialize")]
    pub replicas: Replicas,
}

/// `[checkpoints]`: from which a swarm continues after all peers have stopped.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointsSection {
    /// Seconds between two checkpoints; 0 for only one when a peer stops. Default 30.
    pub seconds: u64,
    /// How many checkpoints each peer keeps, 1 to 4. Default 3.
    pub keep: usize,
}

/// `[partition]`: what happens in a network partition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartitionSection {
    /// The policy. Default `majority`.
    pub policy: PartitionPolicy,
}

/// `[network]`: settings of this peer only, which are not part of the specification.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSection {
    /// The port to listen on, for TCP and for QUIC (UDP). Default 4747.
    pub port: u16,
    /// How many peers, this one included, a new run waits for. Default 2.
    pub peers: u32,
    /// Whether peers on the local network find each other without addresses. Default true.
    pub mdns: bool,
}

/// `[compute]`: how this peer computes, which is not part of the specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeSection {
    /// How many threads compute a gradient. Their number does not change the result. Default: the cores that this peer may use, divided by
    /// the peers of this user on the machine.
    pub threads: Option<ThreadCount>,
    /// Where deep networks are computed. Default: on the processor.
    pub device: Option<ComputeDevice>,
}

impl RunFile {
    /// Reads the text of a run.toml.
    ///
    /// # Errors
    /// It is not TOML, or has an unknown key or a value of the wrong type; the error states the line. For a former name, it states the
    /// current one.
    pub fn parse(text: &str) -> Result<Self, SpecificationError> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let text = explain_former_name(text, None).unwrap_or_else(|| error.to_string());
            SpecificationError::RunFile(text)
        })
    }

    /// Passes over the training rows.
    #[must_use]
    pub fn epochs(&self) -> u64 {
        let default =
            if self.model.kind == ModelKind::Lda { EPOCHS_OF_TOPICS_DEFAULT } else { EPOCHS_DEFAULT };
        self.epochs.unwrap_or(default)
    }

    /// Samples per step.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.batch.unwrap_or(BATCH_DEFAULT)
    }

    /// How the peers train together: as `[sync]` says, and otherwise in the way of the model.
    #[must_use]
    pub fn sync_kind(&self) -> SyncKind {
        let default = if self.model.kind == ModelKind::Lda { SyncKind::Lda } else { SyncKind::Sync };
        self.sync.kind.unwrap_or(default)
    }

    /// `[data]`, which built-in models need.
    ///
    /// # Errors
    /// It is missing.
    pub fn data(&self) -> Result<&DataSection, SpecificationError> {
        self.data.as_ref().ok_or_else(|| SpecificationError::Setting {
            key: "data.file",
            found: "not given".to_owned(),
            allowed:
                "the path of a CSV, LIBSVM or IDX file; `peer init --data FILE` writes a run.toml for one"
                    .to_owned(),
        })
    }
}

impl OptimizerSection {
    /// The optimizer.
    #[must_use]
    pub fn rule(&self) -> OptimizerKind {
        self.rule.unwrap_or_default()
    }
}

impl Default for ShardsSection {
    fn default() -> Self {
        Self { replicas: Replicas::Number(2) }
    }
}

impl Default for CheckpointsSection {
    fn default() -> Self {
        Self { seconds: 30, keep: 3 }
    }
}

impl Default for NetworkSection {
    fn default() -> Self {
        Self { port: PORT_DEFAULT, peers: PEERS_DEFAULT, mdns: true }
    }
}

fn shuffle_default() -> bool {
    true
}

fn seed_default() -> u64 {
    SEED_DEFAULT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_is_enough() {
        let run = RunFile::parse("[data]\nfile = \"digits\"").unwrap();
        assert_eq!((run.epochs(), run.batch(), run.seed), (40, 64, 7));
        assert_eq!(run.network, NetworkSection { port: 4747, peers: 2, mdns: true });
        assert_eq!(run.shards.replicas, Replicas::Number(2));
    }

    #[track_caller]
    fn assert_error(text: &str, parts: &[&str]) {
        let error = RunFile::parse(text).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }

    #[test]
    fn errors_name_the_key_and_the_allowed_values() {
        assert_error("[data]\nfile = \"digits\"\nlable = 3", &["line 3", "lable", "`label`"]);
        for (setting, parts) in [
            ("delimiter = \":\"", &["unknown delimiter `:`", "`tab`", "`space`", "line 3"]),
            ("decimal = \"point\"", &["decimal", "`.`", "`,`", "line 3"]),
            ("encoding = \"utf8x\"", &["unknown encoding `utf8x`", "`utf-16le`", "`windows-1252`", "line 3"]),
        ] {
            assert_error(&format!("[data]\nfile = \"x\"\n{setting}"), parts);
        }
        assert_error(
            "[data]\nfile = \"x\"\n[optimizer]\nrule = \"rmsprop\"",
            &["rule", "rmsprop", "`adamw`"],
        );
        assert_error(
            "[data]\nfile = \"x\"\n[partition]\npolicy = \"average\"",
            &["policy", "average", "`majority`"],
        );
        assert_error("[data]\nfile = \"x\"\n[sync]\nkind = \"gossip\"", &["kind", "gossip", "`sync`"]);
        let without_data = RunFile::parse("epochs = 3").unwrap();
        assert!(without_data.data().unwrap_err().to_string().contains("peer init --data FILE"));
        for odd in ["-1", "2.5", "\"many\"", "true"] {
            let text = format!("[shards]\nreplicas = {odd}");
            assert_error(&text, &["line 2", "replicas", odd, "expected 1 to 8, or \"all\""]);
        }
        assert_error("epochs = -3\n[data]\nfile = \"x\"", &["epochs", "-3"]);
        assert_error("[data\n", &["line 1"]);
    }
}
