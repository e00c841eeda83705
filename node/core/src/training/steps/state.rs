//! The state of a member between its inputs: the step in progress, its batch, and what the steps before it have produced.
//!
//! The other parts of the [step engine](super) read this state, and change it as rounds end, steps are undone, or chunks move.

use std::ops::Range;
use std::sync::Arc;

use peergrad_collectives::residual::Residual;
use peergrad_protocol::cursor::Span;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{SampleStats, SavedCheckpoint};
use peergrad_protocol::view::{Merge, Moves};
use peergrad_protocol::{Buffer, Rank, StepNumber};

use super::super::base::EngineBase;
use super::commit_state::{CommitState, CompletedStep};
use super::digest_audit::DigestAudit;
use super::evaluations::Evaluations;
use crate::state::assignment::BatchAssignment;
use crate::state::checkpoint::Checkpoint;
use crate::state::optimizer_shard::{OptimizerShard, Precision, Version};
use crate::state::optimizer_state::OptimizerState;

/// The step in progress of one member, and its parameters and optimizer state.
pub(crate) struct StepState {
    /// This member, its view, its links, and the run.
    pub(in crate::training) base: EngineBase,
    /// How members take a step together: all of them, all but the late ones, or in groups.
    pub(super) kind: StepKind,
    /// The step in progress, which is also the number of complete steps.
    pub(super) step: StepNumber,
    /// The assignment of the step in progress.
    pub(super) assignment: Arc<BatchAssignment>,
    /// The assignment of the step after, if an earlier view has made it and the present one has not begun; `None` otherwise.
    pub(super) next_assignment: Option<Arc<BatchAssignment>>,
    /// The parameters after the newest complete step, and what undoes that step until it is committed.
    pub(super) commit: CommitState,
    /// The optimizer state of the chunks that this member owns or replicates, committed and pending.
    pub(super) optimizer: OptimizerShard,
    /// The residual: what the codec has left out of this member's contributions. `None` if they travel by an exact codec.
    pub(super) residual: Option<Residual>,
    /// The digests of all members' parameters.
    pub(super) audit: DigestAudit,
    /// The evaluations during the run.
    pub(crate) evaluations: Evaluations,
}

/// How members take a step together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    /// A step waits for the contributions of all members.
    Synchronous,
    /// A step waits for most contributions: see [`backup_workers`](super::backup_workers).
    BackupWorkers,
    /// Each member has local parameters, and averages them within a group: see [`group_averaging`](super::group_averaging).
    LocalParameters,
}

impl StepState {
    /// The state in this member's first view, with these parameters; `None` for a newcomer. The optimizer state comes from the checkpoint,
    /// if there is one.
    pub(super) fn new(
        base: EngineBase,
        complete: Option<Arc<Buffer>>,
        checkpoint: Option<&Checkpoint>,
    ) -> Self {
        let (loaded, sharding) = (&base.loaded, base.shard_map.sharding);
        let kind = if loaded.program.has_local_parameters() {
            StepKind::LocalParameters
        } else if loaded.config.backups.is_some() {
            StepKind::BackupWorkers
        } else {
            StepKind::Synchronous
        };
        let precision = if loaded.keeps_master() { Precision::MasterCopy } else { Precision::Exact };
        let mut optimizer = OptimizerShard::new(sharding.chunks, loaded.owner_moments(), precision);
        let is_lossy = !loaded.config.gradients.is_exact() && kind != StepKind::LocalParameters;
        let len = sharding.chunks.parameter_count();
        let residual = is_lossy.then(|| Residual::new(len, base.vectors.clone()));
        let shards = base.cache.shards(&base.shard_map, 0);
        // A newcomer stores nothing yet: its chunks move to it.
        let is_kept = |chunk: &usize| complete.is_some() && shards.has_replica(*chunk, base.rank);
        for chunk in (0..sharding.chunks.count()).filter(is_kept) {
            let state = checkpoint.and_then(|checkpoint| checkpoint.state(chunk).cloned());
            optimizer.insert(Version::Committed, chunk, state);
        }
        let history = checkpoint.map(|checkpoint| checkpoint.evaluations);
        let evaluations = Evaluations::new(loaded.config.evaluation, history, base.is_newcomer());
        let step = base.view().first_step();
        let entered_before = base.is_newcomer().then_some(step);
        let mut state = Self {
            base,
            kind,
            step,
            assignment: Arc::default(),
            next_assignment: None,
            commit: CommitState::new(complete, entered_before),
            optimizer,
            residual,
            audit: DigestAudit::default(),
            evaluations,
        };
        state.assign_batch();
        state
    }

    // The step in progress and its batch.

    /// The step in progress.
    pub(in crate::training) fn step(&self) -> StepNumber {
        self.step
    }

    /// Assigns the batch of the step in progress.
    pub(super) fn assign_batch(&mut self) {
        self.assignment = self.assignment_of(self.step);
    }

    /// The assignment of a step that follows the step in progress.
    pub(super) fn assignment_of(&self, step: StepNumber) -> Arc<BatchAssignment> {
        let round_size = self.base.loaded.config.round_size();
        let sample_count = u64::from(self.base.loaded.task.sample_count());
        let view = (&**self.base.view(), self.base.digest());
        self.base.cache.assignment(&self.assignment, (round_size, sample_count), view, step)
    }

    /// The numbers, in the whole run, of the local steps of a step with this assignment.
    pub(super) fn local_steps(&self, step: StepNumber, assignment: &BatchAssignment) -> Range<u64> {
        let loaded = &self.base.loaded;
        assignment.local_steps(loaded.config.round_size(), u64::from(loaded.task.sample_count()), step)
    }

    /// The learning rate at the start of a step with this assignment.
    pub(super) fn rate(&self, step: StepNumber, assignment: &BatchAssignment) -> f64 {
        self.base.loaded.config.schedule.rate(self.local_steps(step, assignment).start)
    }

    /// The part of the step's batch that this member computes.
    pub(super) fn part(&self) -> &[Span] {
        self.assignment.part(&self.base.me.peer, self.base.me.incarnation)
    }

    /// The number of samples in that part.
    pub(super) fn part_len(&self) -> u64 {
        self.assignment.part_len(&self.base.me.peer, self.base.me.incarnation)
    }

    /// The fewest elements of a part of this member's contribution: with fewer, most owners' segments would not be known any further. `None`
    /// if the contribution is needed as a whole, or if nobody waits for it.
    pub(super) fn part_elements_min(&self) -> Option<usize> {
        let members = self.base.view().members.len();
        let is_of_use = self.kind == StepKind::Synchronous && members > 1;
        is_of_use.then(|| members.saturating_mul(self.base.loaded.config.segment_elements))
    }

    /// The members that are newcomers in the step in progress.
    pub(super) fn newcomers(&self) -> &[Rank] {
        let view = self.base.view();
        if self.step == view.first_step() { view.newcomers() } else { &[] }
    }

    /// Whether the step in progress comes after the end of the run.
    pub(in crate::training) fn is_over(&self) -> bool {
        self.commit.complete.is_some() && self.assignment.is_over(self.base.loaded.config.epochs)
    }

    /// The merge in the step in progress; `None` if the step merges nothing.
    pub(super) fn merge_in_progress(&self) -> Option<&Merge> {
        let is_first = self.step == self.base.view().first_step() && self.commit.complete.is_some();
        self.base.view().merge().filter(|_| is_first)
    }

    /// The merge that the present view has yet to make, if any.
    pub(super) fn pending_merge(&self) -> Option<&Merge> {
        self.base.view().merge().filter(|_| self.committed_steps() <= self.base.view().first_step().0)
    }

    // What the steps before have produced.

    /// The number of steps that every member is known to have completed.
    pub(in crate::training) fn committed_steps(&self) -> u64 {
        self.commit.committed_steps(self.step)
    }

    /// The newest committed parameters.
    pub(in crate::training) fn parameters(&self) -> Option<&Arc<Buffer>> {
        self.commit.parameters(self.step)
    }

    /// The parameters after the newest complete step. `None` for a newcomer that has none yet.
    pub(in crate::training) fn newest_parameters(&self) -> Option<&Arc<Buffer>> {
        self.commit.complete.as_ref()
    }

    /// The assignment of the step in progress.
    pub(in crate::training) fn assignment(&self) -> &Arc<BatchAssignment> {
        &self.assignment
    }

    /// The assignment of the first step that is not committed.
    pub(in crate::training) fn uncommitted_assignment(&self) -> &Arc<BatchAssignment> {
        self.commit.uncommitted.as_ref().map_or(&self.assignment, |record| &record.assignment)
    }

    /// The optimizer state of a chunk after `steps` steps; `None` if it is not here.
    pub(super) fn state_after(&self, chunk: usize, steps: StepNumber) -> Option<&OptimizerState> {
        let is_before = self.commit.uncommitted.is_some() && steps.next() == self.step;
        if steps == self.step {
            self.optimizer.state(self.commit.newest_version(), chunk)
        } else if is_before {
            self.optimizer.state(Version::Committed, chunk)
        } else {
            None
        }
    }

    /// The optimizer state of each chunk after the newest committed step, with its count of updates.
    pub(crate) fn optimizer_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        self.optimizer.committed().map(|(chunk, state)| (chunk, &state.moments[..], state.updates))
    }

    /// Bytes of optimizer state that this member stores.
    pub(in crate::training) fn optimizer_bytes(&self) -> u64 {
        self.optimizer.byte_count()
    }

    /// State that no member has restarts without updates, at its present holders, in this version.
    pub(super) fn restart_states(&mut self, moves: &Moves, version: Version) {
        if self.commit.complete.is_none() || moves.restarted.is_empty() {
            return;
        }
        let shards = self.base.cache.shards(&self.base.shard_map, 0);
        for chunk in moves.restarted.iter().map(|chunk| *chunk as usize) {
            let is_kept = chunk < self.base.shard_map.sharding.chunks.count()
                && shards.has_replica(chunk, self.base.rank);
            if is_kept {
                self.optimizer.insert(version, chunk, None);
            }
        }
    }

    /// Drops the residuals of contributions to `step` and later ones: no sum contains these contributions.
    pub(super) fn forget_residuals(&mut self, step: StepNumber) {
        if let Some(residual) = &mut self.residual {
            residual.undo(step);
        }
    }

    // The count of samples.

    /// The record of the step in progress, in which all members took part; `own_samples` is this member's share.
    pub(super) fn record(&self, stats: SampleStats, own_samples: u64) -> CompletedStep {
        let left_out = self.assignment.len().saturating_sub(stats.samples);
        let (assignment, samples) = (Arc::clone(&self.assignment), stats.samples);
        CompletedStep { assignment, stats, samples, left_out, own_samples, is_of_all: true }
    }

    /// The samples that the steps before the one in progress have left out, as far as this member knows.
    pub(super) fn left_out_before(&self) -> u64 {
        self.base.omissions.counted() + self.commit.uncommitted.as_ref().map_or(0, |record| record.left_out)
    }

    /// Adds the omissions of steps that a newcomer has not seen.
    pub(super) fn learn_left_out(&mut self, before: u64) {
        self.base.omissions.add_unseen(before.saturating_sub(self.left_out_before()));
    }

    /// Samples that the committed steps have trained, as far as this member knows.
    pub(in crate::training) fn samples(&self) -> u64 {
        let sample_count = u64::from(self.base.loaded.task.sample_count());
        let (assignment, left_out) = (self.uncommitted_assignment(), self.base.omissions.total());
        assignment.after.taken(sample_count).saturating_sub(assignment.len().saturating_add(left_out))
    }

    /// The newest committed state; `None` if this member has committed nothing since it began.
    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        let assignment = self.commit.assignment.as_ref()?;
        let parameters = self.parameters()?;
        let states = || self.optimizer.committed().filter(|_| self.base.shard_map.sharding.has_state);
        let saved = SavedCheckpoint {
            steps: StepNumber(self.committed_steps()),
            branch: self.base.view().history.branch,
            cursor: assignment.after.clone(),
            digest: ContentDigest::of(parameters.bytes()),
            states: states().map(|(chunk, _)| chunk).collect(),
        };
        Some(Checkpoint {
            states: states().map(|(_, state)| state.clone()).collect(),
            evaluations: self.evaluations.history(),
            ..self.base.checkpoint(saved, Arc::clone(parameters))
        })
    }
}
