//! The loader: turns a specification's bytes into a task that can be trained.
//!
//! Membership carries a specification and its data as bytes, and checks them by hash; only a loader parses them. The loader of the `peer`
//! binary reads run.toml and builds a built-in model. A binary with its own task has its own loader.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::combine::Combine;
use peergrad_collectives::cost::CostModel;
use peergrad_collectives::plan::{ShardLayout, Topology};
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::optimizer::{Bounds, GroupedOptimizer, Optimizer, ParameterGroups, Schedule};
use peergrad_models::task::Task;
use peergrad_protocol::cursor::{DataCursor, permutation};
use peergrad_protocol::limits::{HOP_BYTES, LINK_SEGMENTS, ROUND_BYTES_MAX};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::placement::Replicas;
use peergrad_protocol::view::{MemberLine, View};

use crate::io::{DataReference, RunSize};
use crate::partition_policy::PartitionPolicy;
use crate::program::ProgramFactory;
use crate::state::round_size::RoundSize;

/// Parses a specification and builds its task.
pub trait Loader: Send + Sync + 'static {
    /// The data file that the specification needs, if it needs one.
    ///
    /// # Errors
    /// A text for the user: why this binary cannot read the specification, and what to do.
    fn data(&self, specification: &[u8]) -> Result<Option<DataReference>, String>;

    /// Builds the task and its configuration. Called on a compute thread.
    ///
    /// # Errors
    /// A text for the user: what is wrong with the specification or the data.
    fn load(&self, specification: &[u8], data: Option<DataBytes>) -> Result<Loaded, String>;
}

/// A task, how to train it, and the program that does so.
#[derive(Clone)]
pub struct Loaded {
    /// The model and its data.
    pub task: Arc<dyn Task>,
    /// The shape of the task's parameters.
    pub manifest: Manifest,
    /// The configuration with which the task is trained.
    pub config: TrainingConfig,
    /// Creates the program that trains the task.
    pub program: ProgramFactory,
    /// The settings of the run that are the task's and the program's own, as TOML; empty if there are none.
    pub settings: Arc<str>,
}

impl Loaded {
    /// `task`, trained by [`SyncDataParallel`](crate::program::programs::sync::SyncDataParallel).
    #[must_use]
    pub fn new(task: Arc<dyn Task>, config: TrainingConfig) -> Self {
        let dealing = Dealing { block: task.block().max(1).into(), ..config.dealing };
        let config = TrainingConfig { dealing, ..config };
        let program = ProgramFactory::sync();
        Self { manifest: task.manifest(), task, config, program, settings: Arc::from("") }
    }

    /// The numbers for each element that an owner's rule keeps beside the parameters.
    #[must_use]
    pub fn owner_moments(&self) -> usize {
        self.program.owner_moments(self)
    }

    /// The numbers for each element that are kept of a chunk in all: the moments of the rule, and the master copy.
    #[must_use]
    pub fn state_count(&self) -> usize {
        self.owner_moments() + usize::from(self.keeps_master())
    }

    /// Whether owners keep a master copy of the exact parameters, because members compute with rounded ones.
    #[must_use]
    pub fn keeps_master(&self) -> bool {
        !self.config.parameters.is_exact()
            && !self.program.has_local_parameters()
            && !self.program.has_custom_rule()
    }

    /// Whether the states of two branches can be averaged. They cannot if members have local parameters or steps do not wait for all
    /// members; then only one of the branches is kept.
    #[must_use]
    pub fn merges_branches(&self) -> bool {
        let Self { config, program, .. } = self;
        let has_common_state = !program.has_local_parameters() && config.backups.is_none();
        config.policy == PartitionPolicy::Merge && has_common_state
    }

    /// The number of steps of the whole run. Where rounds have a duration, the number before any speed is known.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        let steps_per_epoch = u64::from(self.task.sample_count()).div_ceil(self.config.step_samples());
        self.config.epochs * steps_per_epoch
    }

    /// The number of steps from this data cursor to the end of the run, if all have as many samples as those of this view.
    #[must_use]
    pub fn steps_left(&self, cursor: &DataCursor, view: &View) -> u64 {
        let sample_count = u64::from(self.task.sample_count());
        let step_samples = self.config.round_size().samples(view, |_| true);
        cursor.steps_left(self.config.epochs, step_samples, sample_count)
    }

    /// Fills `parameters`, which are all zero before, with the values that training starts from: those of the task, within the bounds.
    pub fn initial(&self, parameters: &mut [f32]) {
        self.task.initial(self.config.seed, parameters);
        self.config.optimizer().project(parameters);
    }

    /// The size of the run.
    #[must_use]
    pub fn run_size(&self) -> RunSize {
        let parameters = self.manifest.parameter_count();
        let tables = self.program.table_spec(self);
        RunSize {
            parameters,
            owned: tables.map_or(parameters, |spec| spec.layout.value_count()),
            samples: u64::from(self.task.sample_count()),
            steps: self.step_count(),
            epochs: self.config.epochs,
            flops_per_sample: self.task.flops_per_sample(),
            tokens_per_sample: self.task.tokens_per_sample(),
        }
    }
}

/// How a run trains: the part of a specification that the node itself reads. It has a field for each of these settings, hence many.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingConfig {
    /// The seed of the initial parameters and of the order of samples.
    pub seed: u64,
    /// Samples of one step, over all members together. Where a step consists of several local steps, samples of one local step.
    pub batch_size: u64,
    /// Steps that each member takes by itself between two exchanges; 1, unless the program takes local steps. Where rounds have a duration:
    /// only while no speed is known.
    pub local_steps: u64,
    /// How long the local steps of a round take together, by the speeds in the view. `None`: their number is `local_steps`.
    pub round_duration: Option<Duration>,
    /// The number of passes over the training samples.
    pub epochs: u64,
    /// The rule that turns a mean gradient into new parameters.
    pub rule: Optimizer,
    /// The parameters that are updated differently.
    pub groups: ParameterGroups,
    /// The greatest norm of a mean gradient, before its update; `None` for no limit.
    pub clip_norm: Option<f32>,
    /// Where parameters stay, from the initial values on; `None`: anywhere.
    pub bounds: Option<Bounds>,
    /// The learning rate over the run.
    pub schedule: Schedule,
    /// How tensors travel. `None`: the topology is chosen for each shard layout, by the lines that members have measured.
    pub fixed_topology: Option<Topology>,
    /// The codec of contributions. A lossy codec needs the direct topology.
    pub gradients: Codec,
    /// The codec of new parameters. With a lossy codec all members compute with the rounded parameters, and owners and replicas also keep
    /// the exact ones.
    pub parameters: Codec,
    /// How owners combine the contributions.
    pub combine: Combine,
    /// How batches are divided among the members.
    pub dealing: Dealing,
    /// The number of contributions that a step does not wait for; `None`: a step waits for all. With backup workers, owners update by
    /// `rule`, at the rate of the step, even if their program has not reached the update.
    pub backups: Option<NonZeroUsize>,
    /// The number of elements of a segment.
    pub segment_elements: usize,
    /// How many members store the optimizer state of each chunk.
    pub replicas: Replicas,
    /// The number of steps between two digests of the parameters, which are reported and compared; `None`: only the final digest is
    /// reported, and members compare their parameters at the start of each view and at the end.
    pub digest_every: Option<NonZeroU64>,
    /// The least time that a member may compute at one step before the others go on without it. They wait longer where steps take long.
    pub patience: Duration,
    /// Evaluations during the run; `None`: only the final parameters are evaluated.
    pub evaluation: Option<EvaluationConfig>,
    /// The interval between checkpoints. `None`: only a member that stops writes one.
    pub checkpoint_every: Option<Duration>,
    /// How many checkpoints a peer keeps.
    pub checkpoints_kept: usize,
    /// What the parts do when the swarm is partitioned.
    pub policy: PartitionPolicy,
    /// Whether each epoch has its own random order; otherwise samples are visited in the order of their indices.
    pub is_shuffled: bool,
}

/// When members evaluate their parameters on held-out samples, during the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationConfig {
    /// The number of steps between two evaluations. All members save a checkpoint then.
    pub every: NonZeroU64,
    /// After so many evaluations in a row that were not the best, the run ends; `None`: it does not.
    pub stop_after: Option<NonZeroU32>,
}

/// How a batch is divided among the members that compute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealing {
    /// How large their parts are.
    pub shares: Shares,
    /// How many samples of a batch stay together, because the task computes them together: 1 for most tasks.
    pub block: u64,
}

impl Dealing {
    /// Equal parts, of single samples.
    pub const EVEN: Self = Self { shares: Shares::Even, block: 1 };
}

/// How large the parts of a batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// In proportion to the speeds in the view, which members measure. With a single gradient a step, weighted by samples, results are
    /// those of even parts, except for rounding.
    Speed,
    /// Evenly.
    Even,
}

/// Whether each member reaches the next one directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingLinks {
    /// Each does, so a ring is possible.
    Complete,
    /// Some do not.
    Incomplete,
}

impl TrainingConfig {
    /// The order in which an epoch visits the samples: `order[position]` is a sample's index.
    #[must_use]
    pub fn order(&self, epoch: u64, sample_count: u32) -> Vec<u32> {
        if self.is_shuffled {
            permutation(self.seed, epoch, sample_count)
        } else {
            (0..sample_count).collect()
        }
    }

    /// The rule with the groups of the parameters, the greatest norm of their gradient and their bounds.
    #[must_use]
    pub fn optimizer(&self) -> GroupedOptimizer {
        let Self { rule, ref groups, clip_norm, bounds, .. } = *self;
        GroupedOptimizer { rule, groups: groups.clone(), clip_norm, bounds }
    }

    /// Whether a ring is impossible: in one no member sees single contributions, and a lossy codec would be applied at each hop.
    fn is_direct(&self) -> bool {
        !self.gradients.is_exact() || self.combine.is_robust() || self.backups.is_some()
    }

    /// Whether the topology depends on what members measure.
    #[must_use]
    pub fn chooses_topology(&self) -> bool {
        self.fixed_topology.is_none() && !self.is_direct()
    }

    /// The topology of a round over `layout` among members with these lines: the same at all members, because all compute it from the same
    /// values.
    #[must_use]
    pub fn topology(&self, layout: &ShardLayout, ring: RingLinks, lines: &[MemberLine]) -> Topology {
        let segment_bytes = self.segment_elements * size_of::<f32>();
        let terms = CostModel {
            hop_bytes: HOP_BYTES + segment_bytes,
            window_bytes: LINK_SEGMENTS as usize * segment_bytes,
            room_bytes: ROUND_BYTES_MAX,
        };
        match self.fixed_topology {
            _ if self.is_direct() || ring == RingLinks::Incomplete => Topology::Direct,
            Some(topology) => topology,
            None => terms.choose(layout, lines),
        }
    }

    /// The codec by which owners send sums to replicas, or to all members. Owners use the rounded sums themselves.
    ///
    /// No later step makes up for what this codec leaves out, so a lossy codec for contributions may be too coarse for sums.
    #[must_use]
    pub fn sum_codec(&self) -> Codec {
        if self.gradients.is_exact() { Codec::F32 } else { Codec::Bf16 }
    }

    /// The number of samples that are assigned for one step. Where rounds have a duration, the number before any speed is known.
    #[must_use]
    pub fn step_samples(&self) -> u64 {
        self.batch_size.saturating_mul(self.local_steps)
    }

    /// How many samples are assigned for one step, as a function of the view.
    pub(crate) fn round_size(&self) -> RoundSize {
        let Self {
            batch_size, local_steps, round_duration: duration, dealing: Dealing { block, .. }, ..
        } = *self;
        RoundSize { batch_size, block, local_steps, duration }
    }
}
