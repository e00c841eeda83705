//! The loader: turns a specification's bytes into something that can be trained.
//!
//! Membership carries a specification and its data as bytes, and checks them by hash; only a loader looks inside. The
//! `peer` binary's loader reads run.toml and builds a built-in model; a binary with a task of its own brings its own.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::combine::Combine;
use peergrad_collectives::cost::CostModel;
use peergrad_collectives::plan::{ShardLayout, Topology};
use peergrad_models::optimizer::{Optimizer, Schedule};
use peergrad_models::task::Task;
use peergrad_protocol::cursor::{DataCursor, permutation};
use peergrad_protocol::limits::{HOP_BYTES, LINK_SEGMENTS, ROUND_BYTES_MAX};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::placement::Replicas;

use crate::io::{DataReference, RunSize};
use crate::partition_policy::PartitionPolicy;
use crate::program::ProgramFactory;

/// Looks inside a specification.
pub trait Loader: Send + Sync + 'static {
    /// The data file that the specification needs, if it needs one.
    ///
    /// # Errors
    /// In words for the user: the specification cannot be read by this binary, and what to do.
    fn data(&self, specification: &[u8]) -> Result<Option<DataReference>, String>;

    /// Builds the task and says how to train it. Called on a thread beside the network.
    ///
    /// # Errors
    /// In words for the user: what is wrong with the specification or the data.
    fn load(&self, specification: &[u8], data: Option<Arc<[u8]>>) -> Result<Loaded, String>;
}

/// A task, how to train it, and the program that does so.
#[derive(Clone)]
pub struct Loaded {
    /// The model and its data.
    pub task: Arc<dyn Task>,
    /// Shape of its parameters.
    pub manifest: Manifest,
    /// How to train it.
    pub config: TrainingConfig,
    /// Makes the program.
    pub program: ProgramFactory,
}

impl Loaded {
    /// `task`, trained by [`SyncDataParallel`](crate::program::programs::sync::SyncDataParallel).
    #[must_use]
    pub fn new(task: Arc<dyn Task>, config: TrainingConfig) -> Self {
        Self { manifest: task.manifest(), task, config, program: ProgramFactory::sync() }
    }

    /// Numbers an element that the rule of a shard's owner keeps beside its parameters.
    #[must_use]
    pub fn owner_moments(&self) -> usize {
        self.program.owner_moments(self)
    }

    /// Numbers an element that are kept of a chunk in all: the moments of the rule, and the master copy.
    #[must_use]
    pub fn state_count(&self) -> usize {
        self.owner_moments() + usize::from(self.keeps_master())
    }

    /// Whether owners keep the parameters as they are, because everyone computes with less.
    #[must_use]
    pub fn keeps_master(&self) -> bool {
        !self.config.parameters.is_exact()
            && !self.program.has_local_parameters()
            && !self.program.has_custom_rule()
    }

    /// Steps of the whole run.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        let steps_per_epoch = u64::from(self.task.sample_count()).div_ceil(self.config.step_samples());
        self.config.epochs * steps_per_epoch
    }

    /// Steps from this bookmark to the end of the run.
    #[must_use]
    pub fn steps_left(&self, cursor: &DataCursor) -> u64 {
        let sample_count = u64::from(self.task.sample_count());
        cursor.steps_left(self.config.epochs, self.config.step_samples(), sample_count)
    }

    /// How large the run is.
    #[must_use]
    pub fn run_size(&self) -> RunSize {
        RunSize {
            parameters: self.manifest.parameter_count(),
            samples: u64::from(self.task.sample_count()),
            steps: self.step_count(),
            epochs: self.config.epochs,
        }
    }
}

/// How a run trains: the part of a specification that the node itself reads.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingConfig {
    /// Decides the initial parameters and the order of samples.
    pub seed: u64,
    /// Samples of one step, over all members together; of a local step, where a step consists of several.
    pub batch_size: u64,
    /// Steps that each member takes by itself before it hears of the others; 1, unless the program is made for more.
    pub local_steps: u64,
    /// Passes over the training samples.
    pub epochs: u64,
    /// The rule that turns a mean gradient into new parameters.
    pub rule: Optimizer,
    /// The learning rate over the run.
    pub schedule: Schedule,
    /// How tensors travel; `None`: directly, unless a ring is better by far, which may change as shards do.
    pub fixed_topology: Option<Topology>,
    /// How contributions travel; a lossy codec needs the direct topology.
    pub gradients: Codec,
    /// How new parameters travel. With a lossy codec, everyone computes with what it leaves of them, and owners keep them as
    /// they are beside that.
    pub parameters: Codec,
    /// What owners make of contributions.
    pub combine: Combine,
    /// Contributions that a step does not wait for; `None`: a step waits for all. Where there are some, owners update by `rule`, at the
    /// rate of the step, whether their program has got there or not.
    pub backups: Option<NonZeroUsize>,
    /// Elements of a segment.
    pub segment_elements: usize,
    /// Who keeps the optimizer state of each chunk.
    pub replicas: Replicas,
    /// Steps between two reported digests of the parameters; `None`: a digest is reported only at the end.
    pub digest_every: Option<NonZeroU64>,
    /// How often a checkpoint is written; zero: only by a member that stops.
    pub checkpoint_every: Duration,
    /// Checkpoints that a peer keeps.
    pub checkpoints_kept: usize,
    /// What happens when the swarm is cut in two.
    pub policy: PartitionPolicy,
    /// Whether each epoch has an order of its own; otherwise it is the order in which the task numbers its samples.
    pub is_shuffled: bool,
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

    /// Whether what two lineages have come to can be averaged: where members have parameters of their own, or steps do not wait
    /// for everybody, one of the two is kept.
    #[must_use]
    pub fn merges(&self, has_local_parameters: bool) -> bool {
        self.policy == PartitionPolicy::Merge && !has_local_parameters && self.backups.is_none()
    }

    /// Along which edges a round over `layout` goes: the same at all members, who know as much. `has_ring`: whether each of them
    /// reaches the next one itself.
    #[must_use]
    pub fn topology(&self, layout: &ShardLayout, has_ring: bool) -> Topology {
        // In a ring nobody sees single contributions, and what is encoded would be so at each hop.
        let is_direct = !self.gradients.is_exact() || self.combine.is_robust() || self.backups.is_some();
        let segment_bytes = self.segment_elements * size_of::<f32>();
        let terms = CostModel {
            hop_bytes: HOP_BYTES + segment_bytes,
            window_bytes: LINK_SEGMENTS as usize * segment_bytes,
            room_bytes: ROUND_BYTES_MAX,
        };
        match self.fixed_topology {
            _ if is_direct || !has_ring => Topology::Direct,
            Some(topology) => topology,
            None => terms.choose(layout),
        }
    }

    /// The learning rate with which a step begins.
    #[must_use]
    pub fn rate(&self, step: u64) -> f64 {
        self.schedule.rate(step.saturating_mul(self.local_steps))
    }

    /// How sums travel, where owners tell them to those who keep replicas, or to everybody: these are the sums that they use
    /// themselves.
    ///
    /// What is left out of them comes with no later step, so a lossy codec for contributions may be too coarse for them.
    #[must_use]
    pub fn sum_codec(&self) -> Codec {
        if self.gradients.is_exact() { Codec::F32 } else { Codec::Bf16 }
    }

    /// Samples that are dealt for one step.
    #[must_use]
    pub fn step_samples(&self) -> u64 {
        self.batch_size.saturating_mul(self.local_steps)
    }
}
