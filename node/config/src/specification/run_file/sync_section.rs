//! The section `[sync]` of a run file: how the peers train together.

use peergrad_core::program::loader::{Dealing, Shares};
use serde::{Deserialize, Serialize};

use crate::specification::{TopologyName, patience};

/// `[sync]`: the algorithm by which the peers train together. It has 30 fields because the section is flat; most belong to one kind,
/// and any other kind rejects them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncSection {
    /// `sync`, `backup-workers`, `ds-sync`, `local`, `diloco`, `ssp`, `async`, `downpour`, `l-bfgs` or `lda`. Default `sync`, and
    /// `lda` for the model of that name.
    pub kind: Option<SyncKind>,
    /// `auto`, `ring` or `direct`: the topology of the all-reduce. Default `auto`: direct, unless a ring is faster.
    pub topology: TopologyName,
    /// `f32`, `bf16`, `f16`, `int8` or `top-k`: the encoding of gradients. All except `f32` use the direct topology, and add the encoding
    /// error to the next gradient. Default `f32`.
    pub gradients: CompressionName,
    /// `f32`, `bf16`, `f16` or `int8`: the encoding of new parameters. Default `f32`.
    pub parameters: CompressionName,
    /// `top-k` only: one of this many elements of a gradient is sent, the largest ones. Default 100.
    pub one_in: Option<u32>,
    /// Segment size on the wire, in KiB, 1 to 1024. Default 128.
    pub segment_kib: usize,
    /// Steps between two digests of the parameters, which all members compare; 0: only at the start and at the end. Default 100.
    pub digest_every: u64,
    /// How many seconds a peer may compute at one step before the others go on without it, 1 to 86400. They wait longer where steps take
    /// long: ten times the longest recent one. Default 10.
    pub patience_seconds: u64,
    /// `mean`, `trimmed-mean` or `median`: how owners combine contributions. The last two need the direct topology. Default `mean`.
    pub combine: AggregationName,
    /// `speed` or `even`: how batches are divided among the peers. Default `speed` where contributions are weighted by their samples (`sync`,
    /// `backup-workers`, `local` and `diloco`, with `combine = "mean"`); `even` for `ds-sync` and other means.
    pub dealing: Option<DealingName>,
    /// `trimmed-mean` only: how many of the largest, and how many of the smallest, contributions to an element are left out. Default 1.
    pub trim: Option<usize>,
    /// `backup-workers` only: how many contributions a step does not wait for. Default 1.
    pub backups: Option<usize>,
    /// `ds-sync` only: peers per group. Default: about the square root of all.
    pub group: Option<usize>,
    /// `ds-sync` only: whether groups change from step to step. Default true.
    pub shuffle: Option<bool>,
    /// `local` and `diloco` only: local steps of a round, or `"epoch"`. Default 32.
    pub local_steps: Option<LocalSteps>,
    /// `local` and `diloco` only: how many seconds the local steps of a round take, above 0 and up to 86400. Then `local_steps` only counts
    /// until speeds are measured, and its default is 4. Default: none, and the number of local steps is fixed.
    pub round_seconds: Option<f64>,
    /// `diloco` only: the outer learning rate. Default 0.7.
    pub outer_rate: Option<f64>,
    /// `diloco` only: the outer momentum. Default 0.9.
    pub outer_momentum: Option<f32>,
    /// `ssp` only: how many steps the fastest peer may be ahead of the slowest. Default 3.
    pub staleness: Option<u64>,
    /// `ssp` only: other bounds from certain steps on, e.g. `[[500, 0]]`: from step 500 on, no peer is ahead. Default: none.
    pub staleness_from: Option<Vec<(u64, u64)>>,
    /// `ssp` only: whether owners apply each gradient when it arrives (`at-once`), or all gradients of a step together (`by-step`).
    /// Default `at-once` for plain `sgd` and `by-step` for other optimizers.
    pub apply: Option<ApplyName>,
    /// `downpour` only: steps between two sends of a peer's additions, 1 to 32. Default 1.
    pub n_push: Option<u64>,
    /// `downpour` only: steps between two reads of the parameters, 1 to 1000. Default 1.
    pub n_fetch: Option<u64>,
    /// `downpour` only: the learning rate of a peer's local updates between two reads, if the optimizer is not plain `sgd`. Default:
    /// the learning rate.
    pub local_rate: Option<f64>,
    /// `async` and `downpour` only: samples that the first peer trains alone before others start. Default 0.
    pub warm_up: Option<u64>,
    /// `async` and `downpour` only: samples after which each further peer starts, after the warm-up; 0 starts all at once. Default 0.
    pub wave: Option<u64>,
    /// `ssp` and `async` only: whether all of a step's gradient counts or nothing of it, if its peer is lost, so that each sample counts
    /// exactly once. Gradients travel twice or more then. Default false.
    pub atomic: Option<bool>,
    /// `l-bfgs` only: how many of the last steps the approximation of the Hessian uses, 1 to 100. Default 10.
    pub history: Option<usize>,
    /// `l-bfgs` only: the run ends when the norm of the gradient is at most this times that of the parameters, or times 1 if that is larger.
    /// Default 1e-5.
    pub tolerance: Option<f64>,
    /// `l-bfgs` only: how many portions each pass over the samples has for each peer, 1 to 64. Default 8.
    pub portions: Option<u64>,
    /// `lda` only: how many parts the training documents are cut into, 1 to 256; a peer works on one at a time. Default 64, or as many as there
    /// are documents.
    pub parts: Option<u64>,
}

impl Default for SyncSection {
    fn default() -> Self {
        Self {
            kind: None,
            topology: TopologyName::default(),
            gradients: CompressionName::F32,
            parameters: CompressionName::F32,
            one_in: None,
            segment_kib: 128,
            digest_every: 100,
            patience_seconds: patience::DEFAULT,
            combine: AggregationName::Mean,
            dealing: None,
            trim: None,
            backups: None,
            group: None,
            shuffle: None,
            local_steps: None,
            round_seconds: None,
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
            atomic: None,
            history: None,
            tolerance: None,
            portions: None,
            parts: None,
        }
    }
}

/// When owners apply gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyName {
    /// When each arrives.
    AtOnce,
    /// All gradients of a step together, after every member has completed it.
    ByStep,
}

/// The encodings of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompressionName {
    /// 32-bit floats, unchanged.
    #[default]
    F32,
    /// bfloat16: the upper half of each 32-bit float.
    Bf16,
    /// Half precision.
    F16,
    /// One byte per element, in blocks with a common scale.
    Int8,
    /// Only the largest elements.
    TopK,
}

/// How owners combine contributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AggregationName {
    /// The mean.
    #[default]
    Mean,
    /// For each element, the mean without the extremes.
    TrimmedMean,
    /// For each element, the median.
    Median,
}

/// How batches are divided among the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DealingName {
    /// In proportion to their measured speeds.
    Speed,
    /// Evenly.
    Even,
}

impl From<DealingName> for Dealing {
    fn from(name: DealingName) -> Self {
        match name {
            DealingName::Speed => Self { shares: Shares::Speed, ..Self::EVEN },
            DealingName::Even => Self::EVEN,
        }
    }
}

/// The number of local steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a number of steps, or \"epoch\"")]
pub enum LocalSteps {
    /// This many.
    Number(u64),
    /// As many as an epoch has.
    #[serde(with = "epoch")]
    Epoch,
}

/// Reads the word `"epoch"`.
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

/// The kinds of training.
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
    /// Local steps, then averaged parameters.
    Local,
    /// Local steps, then a step of an outer optimizer.
    Diloco,
    /// Parameters in a table; the lead over the slowest member is bounded.
    Ssp,
    /// Parameters in a table; no member waits for another.
    Async,
    /// The same, with less frequent reads and sends.
    Downpour,
    /// A quasi-Newton method over all samples, with parameters in a table.
    LBfgs,
    /// Topics are drawn for one part of the documents at a time, with their counts in a table.
    Lda,
}
