//! The run file: what a user writes, every key with its default.
//!
//! Nothing but `[data] file` has to be there. A key that is not known is an error, so that a misspelt one is not quietly
//! ignored; the rest is checked when the file is resolved against its data.

use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_models::data::columns::Column;
use peergrad_models::data::labels::{Classes, Predict};
use peergrad_models::task::activation::Activation;
use peergrad_protocol::placement::Replicas;
use serde::{Deserialize, Serialize};

use super::{Route, SpecificationError, explain_former_name, replicas};

/// The port that a peer listens on when it was not told another.
pub const PORT_DEFAULT: u16 = 4747;
/// The seed of a run whose user has not chosen one.
pub const SEED_DEFAULT: u64 = 7;
/// Peers that a new run waits for when it was not told another number.
pub const PEERS_DEFAULT: u32 = 2;

/// run.toml.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// Passes over the training rows. Default 40.
    #[serde(default = "epochs_default")]
    pub epochs: u64,
    /// Samples of a step, over all peers together; it does not grow with their number. With `async` and `downpour`, those of one
    /// peer. Default 64.
    #[serde(default = "batch_default")]
    pub batch: u64,
    /// Decides initial parameters, order of samples and held-out rows. Default 7.
    #[serde(default = "seed_default")]
    pub seed: u64,
    /// Whether each epoch visits the samples in an order of its own; otherwise it is that of the file. Default true.
    #[serde(default = "shuffle_default")]
    pub shuffle: bool,
    /// `[data]`: there for the built-in models; a task of one's own brings its data itself.
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
    /// `[partition]`
    #[serde(default)]
    pub partition: PartitionSection,
    /// `[network]`: this peer's own affair.
    #[serde(default)]
    pub network: NetworkSection,
}

/// `[data]`: the file and what is in it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// A CSV, LIBSVM or IDX file, gzipped or not, by its path from the run file's folder; or `digits`, which is built in. Which
    /// of them it is is told from its bytes.
    pub file: String,
    /// CSV only: the label's column, by name or by number from 1. Default: the one named label, class or target; else the last.
    pub label: Option<Column>,
    /// CSV only: whether the first line names the columns. Default: inferred.
    pub header: Option<bool>,
    /// LIBSVM only: how many features there are, where files that come later have larger indices than this one. Default: the
    /// largest index.
    pub features: Option<usize>,
    /// The feature columns, by name (CSV) or by number from 1: of a LIBSVM file its indices, of an IDX file the values of a
    /// sample. Default: all but the label.
    pub columns: Option<Vec<Column>>,
    /// `class` or `number`. Default: inferred from the labels.
    pub predict: Option<Predict>,
    /// A count (labels are 0 to count - 1) or a list of labels. Default: those that occur, sorted.
    pub classes: Option<Classes>,
    /// Share of the rows that is never trained, 0 to 0.9. Default 0.2.
    #[serde(default = "held_out_default")]
    pub held_out: f64,
    /// Whether features are shifted to mean 0 and scaled to deviation 1. Default true, and false for LIBSVM, whose zeros would
    /// become other numbers.
    pub standardize: Option<bool>,
}

/// `[model]`: what is between features and label.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// Default `mlp`.
    pub kind: ModelKind,
    /// Widths of the hidden layers; only for `mlp`. Default `[128]`.
    pub hidden: Option<Vec<usize>>,
    /// `relu`, `tanh` or `gelu`; only for `mlp`. Default `relu`.
    pub activation: Option<Activation>,
}

/// The built-in models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Hidden layers; classes or a number.
    #[default]
    Mlp,
    /// Softmax regression: classes.
    Softmax,
    /// Linear regression: a number.
    Linear,
    /// Logistic regression on features that are mostly zero: two classes.
    Logistic,
}

/// `[optimizer]`: how gradients become new parameters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSection {
    /// Default `adam`.
    pub rule: OptimizerKind,
    /// The learning rate. Default 0.1 for `sgd`, `prox` and `ftrl`, 0.05 for `momentum`, 0.01 for `adagrad`, 0.001 for `adam` and
    /// `adamw`.
    pub rate: Option<f64>,
    /// `momentum` only. Default 0.9.
    pub momentum: Option<f32>,
    /// `momentum` only. Default false.
    pub nesterov: Option<bool>,
    /// `adam` and `adamw` only. Default 0.9.
    pub beta1: Option<f32>,
    /// `adam` and `adamw` only. Default 0.999.
    pub beta2: Option<f32>,
    /// `adam`, `adamw` (default 1e-8) and `adagrad` (default 1e-10) only.
    pub epsilon: Option<f32>,
    /// Not for `prox` and `ftrl`. Default 0.01 for `adamw`, 0 for the others.
    pub weight_decay: Option<f32>,
    /// `prox` and `ftrl` only: multiple of the sum of absolute parameters that is added to the loss. Default 0.
    pub l1: Option<f32>,
    /// `prox` and `ftrl` only: multiple of half the sum of squared parameters that is added to the loss. Default 0.
    pub l2: Option<f32>,
    /// `ftrl` only. Default 1.
    pub beta: Option<f32>,
    /// Steps over which the rate climbs from nothing. Default 0.
    pub warmup_steps: u64,
    /// Default `constant`.
    pub schedule: ScheduleName,
    /// `step` only: what the rate is multiplied by. Default 0.1.
    pub decay_factor: Option<f64>,
    /// `step` only: after every so many epochs. Default a third of all.
    pub decay_epochs: Option<u64>,
    /// `cosine` only: the rate at the end. Default 0.
    pub floor: Option<f64>,
    /// If given, `rate` is meant for batches of this size and is multiplied by `batch / scale_from_batch`.
    pub scale_from_batch: Option<u64>,
}

/// The optimizers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Against the gradient.
    Sgd,
    /// Against a running sum of gradients.
    Momentum,
    /// Adam.
    #[default]
    Adam,
    /// Adam with decoupled weight decay.
    AdamW,
    /// Over the root of the sum of squares.
    Adagrad,
    /// Towards zero, with L1 and L2.
    Prox,
    /// To where all gradients point, with L1 and L2.
    Ftrl,
}

/// The shapes of a learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleName {
    /// The same throughout.
    #[default]
    Constant,
    /// Multiplied by a factor now and then.
    Step,
    /// Down a cosine over the whole run.
    Cosine,
}

/// `[sync]`: the algorithm by which the peers train together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncSection {
    /// `sync`, `backup-workers`, `ds-sync`, `local`, `diloco`, `ssp`, `async` or `downpour`. Default `sync`.
    pub kind: SyncKind,
    /// `auto`, `ring` or `direct`: how tensors travel. Default `auto`: directly, unless a ring is better by far.
    pub topology: Route,
    /// `f32`, `bf16`, `f16`, `int8` or `top-k`: how gradients travel. All but `f32` go straight to the owners, and what they leave
    /// out is added to the next gradient. Default `f32`.
    pub gradients: CompressionName,
    /// `f32`, `bf16`, `f16` or `int8`: how new parameters travel. Default `f32`.
    pub parameters: CompressionName,
    /// `top-k` only: of so many elements of a gradient the largest travels. Default 100.
    pub one_in: Option<u32>,
    /// KiB of one piece on the wire, 1 to 1024. Default 128.
    pub segment_kib: usize,
    /// Steps between two digests of the parameters, by which peers can be compared; 0: only at the end. Default 0.
    pub digest_every: u64,
    /// `mean`, `trimmed-mean` or `median`: what owners make of contributions; the latter two not in a ring.
    /// Default `mean`.
    pub combine: AggregationName,
    /// `trimmed-mean` only: how many of the largest and of the smallest contributions to an element are left out. Default 1.
    pub trim: Option<usize>,
    /// `backup-workers` only: contributions that a step does not wait for. Default 1.
    pub backups: Option<usize>,
    /// `ds-sync` only: peers of a group. Default: about the square root of all.
    pub group: Option<usize>,
    /// `ds-sync` only: whether groups change from step to step. Default true.
    pub shuffle: Option<bool>,
    /// `local` and `diloco` only: steps that a peer takes by itself between two rounds, or `"epoch"`. Default 32.
    pub local_steps: Option<LocalSteps>,
    /// `diloco` only: the outer learning rate. Default 0.7.
    pub outer_rate: Option<f64>,
    /// `diloco` only: the outer momentum. Default 0.9.
    pub outer_momentum: Option<f32>,
    /// `ssp` only: how many steps the fastest peer may be ahead of the slowest. Default 3.
    pub staleness: Option<u64>,
    /// `ssp` only: other bounds from some steps on, e.g. `[[500, 0]]`: from step 500 on nobody is ahead. Default: none.
    pub staleness_from: Option<Vec<(u64, u64)>>,
    /// `ssp` only: `at-once`, as each gradient comes, or `by-step`, all gradients of a step together. Default `at-once` for plain
    /// `sgd` and `by-step` for other rules.
    pub apply: Option<ApplyName>,
    /// `downpour` only: steps after which a peer sends what it has added, 1 to 32. Default 1.
    pub n_push: Option<u64>,
    /// `downpour` only: steps after which a peer reads the parameters again, 1 to 1000. Default 1.
    pub n_fetch: Option<u64>,
    /// `downpour` only: the rate at which a peer goes on by itself between two reads, where owners update by a rule of their own.
    /// Default: the learning rate.
    pub local_rate: Option<f64>,
    /// `async` and `downpour` only: samples that one peer trains alone before others come in. Default 0.
    pub warm_up: Option<u64>,
    /// `async` and `downpour` only: samples after which one more peer comes in, once the warm-up is over; 0: all at once. Default 0.
    pub wave: Option<u64>,
}

/// When owners apply what they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyName {
    /// As it comes.
    AtOnce,
    /// All of one step together, once everybody has completed it.
    ByStep,
}

/// How elements travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompressionName {
    /// As they are.
    #[default]
    F32,
    /// The upper half of each.
    Bf16,
    /// In half precision.
    F16,
    /// A byte each, in blocks with a scale.
    Int8,
    /// Only the largest.
    TopK,
}

/// What owners make of contributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AggregationName {
    /// The mean.
    #[default]
    Mean,
    /// By element, the mean of those in the middle.
    TrimmedMean,
    /// By element, the middle one.
    Median,
}

/// Steps that a peer takes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a number of steps, or \"epoch\"")]
pub enum LocalSteps {
    /// So many.
    Number(u64),
    /// A whole epoch.
    #[serde(with = "epoch")]
    Epoch,
}

/// The word for a whole epoch.
mod epoch {
    use serde::{Deserialize, Deserializer};

    #[derive(Deserialize)]
    enum Word {
        #[serde(rename = "epoch")]
        Epoch,
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        let Word::Epoch = Word::deserialize(deserializer)?;
        Ok(())
    }
}

/// The algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncKind {
    /// Synchronous steps: reduce-scatter, update at the owner, all-gather.
    #[default]
    Sync,
    /// The same, without waiting for the last contributions.
    BackupWorkers,
    /// Divide and shuffle: parameters are averaged in small groups that change.
    DsSync,
    /// Local steps, and now and then the mean of all.
    Local,
    /// Local steps, and now and then an outer step.
    Diloco,
    /// Parameters in a table; nobody is more than so many steps ahead of the slowest.
    Ssp,
    /// Parameters in a table; nobody waits for anybody.
    Async,
    /// The same, read and added to only now and then.
    Downpour,
}

/// `[shards]`: who keeps optimizer state.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShardsSection {
    /// Who keeps the state of each chunk: so many peers, the owner included, or all. Default 2.
    #[serde(deserialize_with = "replicas::deserialize")]
    pub replicas: Replicas,
}

/// `[checkpoints]`: what a swarm goes on from whose peers have all stopped.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointsSection {
    /// Seconds between two of them; 0: only when a peer stops. Default 30.
    pub seconds: u64,
    /// How many each peer keeps, 1 to 4. Default 3.
    pub keep: usize,
}

/// `[partition]`: what happens when the peers are cut in two.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartitionSection {
    /// Default `majority`.
    pub policy: PartitionPolicy,
}

/// `[network]`: how this peer is reached; not part of what the peers agree on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSection {
    /// The port to listen on, over TCP and over QUIC (UDP). Default 4747.
    pub port: u16,
    /// How many peers, this one included, a new run waits for. Default 2.
    pub peers: u32,
    /// Whether peers of the local network find each other without an address. Default true.
    pub mdns: bool,
}

impl RunFile {
    /// Reads the text of a run.toml.
    ///
    /// # Errors
    /// Where it is not TOML, or has an unknown key or a value of the wrong type, with the line; for a former name,
    /// with the one of today.
    pub fn parse(text: &str) -> Result<Self, SpecificationError> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let text = explain_former_name(text, None).unwrap_or_else(|| error.to_string());
            SpecificationError::RunFile(text)
        })
    }

    /// `[data]`, which the built-in models need.
    ///
    /// # Errors
    /// It is not there.
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

impl DataSection {
    /// This file, and everything else inferred or by default.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            label: None,
            header: None,
            features: None,
            columns: None,
            predict: None,
            classes: None,
            held_out: held_out_default(),
            standardize: None,
        }
    }
}

impl Default for ModelSection {
    fn default() -> Self {
        Self { kind: ModelKind::Mlp, hidden: None, activation: None }
    }
}

impl Default for SyncSection {
    fn default() -> Self {
        Self {
            kind: SyncKind::Sync,
            topology: Route::default(),
            gradients: CompressionName::F32,
            parameters: CompressionName::F32,
            one_in: None,
            segment_kib: 128,
            digest_every: 0,
            combine: AggregationName::Mean,
            trim: None,
            backups: None,
            group: None,
            shuffle: None,
            local_steps: None,
            outer_rate: None,
            outer_momentum: None,
            staleness: None,
            staleness_from: None,
            apply: None,
            n_push: None,
            n_fetch: None,
            local_rate: None,
            warm_up: None,
            wave: None,
        }
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

fn epochs_default() -> u64 {
    40
}

fn batch_default() -> u64 {
    64
}

fn shuffle_default() -> bool {
    true
}

fn seed_default() -> u64 {
    SEED_DEFAULT
}

fn held_out_default() -> f64 {
    0.2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_is_enough() {
        let run = RunFile::parse("[data]\nfile = \"digits\"").unwrap();
        assert_eq!((run.epochs, run.batch, run.seed), (40, 64, 7));
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
    fn errors_name_the_key_and_what_is_allowed() {
        assert_error("[data]\nfile = \"digits\"\nlable = 3", &["line 3", "lable", "`label`"]);
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
