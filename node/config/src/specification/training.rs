//! How a run trains: its optimizer, its schedule, and how its peers work together.

use std::num::NonZeroU64;
use std::time::Duration;

use peergrad_collectives::plan::Topology;
use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_core::program::loader::TrainingConfig;
use peergrad_models::optimizer::{Bounds, Optimizer, Schedule};
use peergrad_models::schedule::Decay;
use peergrad_protocol::limits::{CHECKPOINTS_MAX, SEGMENT_BYTES_MAX};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::placement::Replicas;
use serde::{Deserialize, Serialize};

use super::algorithm::{Aggregation, Algorithm};
use super::compression::{self, Compression};
use super::evaluation::EvaluationSection;
use super::groups::{self, GroupSettings};
use super::run_file::DealingName;
use super::{SpecificationError, dealing, patience, replicas, within};

/// How a run trains. It has 22 fields because the specification is flat text, and the settings are independent of each other.
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
    /// Where parameters stay; `None`: anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
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
            bounds: self.bounds,
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

    pub(crate) fn check(&self) -> Result<(), SpecificationError> {
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
        check_bounds(self.bounds)?;
        groups::check(self)?;
        self.combine.check(self.topology, &self.algorithm)?;
        dealing::check(self)?;
        self.algorithm.check(self.topology)?;
        self.algorithm.check_rule(&self.optimizer, self.bounds)?;
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

fn check_bounds(bounds: Option<Bounds>) -> Result<(), SpecificationError> {
    match bounds {
        Some(bounds) if !bounds.is_valid() => Err(SpecificationError::Setting {
            key: "optimizer.bounds",
            found: format!("[{}, {}]", bounds.low, bounds.high),
            allowed: "two numbers, of which the second is larger, such as [-1.0, 1.0]; or [0.0, inf] for nonnegative parameters"
                .to_owned(),
        }),
        _ => Ok(()),
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
