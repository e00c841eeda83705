//! The account of a run of steps: the state that other parts of the node ask for, and the final state.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::{Buffer, StepNumber};

use super::StepEngine;
use crate::membership::{Assignments, GateSnapshot, MergeSnapshot, TrainingSnapshot};
use crate::node_report::Wait;
use crate::state::assignment::BatchAssignment;
use crate::state::checkpoint::Checkpoint;

impl StepEngine {
    /// Adds the state of the step engine to the snapshot for membership.
    pub(in crate::training) fn snapshot<'a>(&'a self, common: TrainingSnapshot<'a>) -> TrainingSnapshot<'a> {
        let is_stopped = self.gate.stop_before.is_some_and(|stop| stop <= self.step);
        TrainingSnapshot {
            assignments: Assignments {
                previous: self.commit.uncommitted.as_ref().map(|record| &*record.assignment),
                next: self.next_assignment.as_deref(),
                ..common.assignments
            },
            gate: GateSnapshot {
                is_open: self.gate.is_open,
                is_held: is_stopped && !self.gate.is_open && self.commit.complete.is_some(),
                is_behind_view: self.gate.is_behind_view,
                ..common.gate
            },
            has_committed: self.committed_steps() > self.base.view().first_step().0,
            merge: MergeSnapshot { ready: self.merge_snapshots.imported(), ..common.merge },
            ..common
        }
    }

    /// The step in progress.
    pub(in crate::training) fn step(&self) -> StepNumber {
        self.step
    }

    /// The assignment of the step in progress.
    pub(in crate::training) fn assignment(&self) -> &Arc<BatchAssignment> {
        &self.assignment
    }

    /// The assignment of the first step that is not committed.
    pub(in crate::training) fn uncommitted_assignment(&self) -> &Arc<BatchAssignment> {
        self.commit.uncommitted.as_ref().map_or(&self.assignment, |record| &record.assignment)
    }

    /// The parameters after the newest complete step. `None` for a newcomer that has none yet.
    pub(in crate::training) fn newest_parameters(&self) -> Option<&Arc<Buffer>> {
        self.commit.complete.as_ref()
    }

    /// Whether the step in progress comes after the last epoch.
    pub(in crate::training) fn is_over(&self) -> bool {
        self.commit.complete.is_some() && self.assignment.epoch >= self.base.loaded.config.epochs
    }

    /// Samples that the committed steps have trained, as far as this member knows.
    pub(in crate::training) fn samples(&self) -> u64 {
        let sample_count = u64::from(self.base.loaded.task.sample_count());
        let (assignment, left_out) = (self.uncommitted_assignment(), self.base.omissions.total());
        assignment.after.taken(sample_count).saturating_sub(assignment.len().saturating_add(left_out))
    }

    /// Bytes of optimizer state that this member stores.
    pub(in crate::training) fn optimizer_bytes(&self) -> u64 {
        self.optimizer.byte_count()
    }

    /// What the program of this member waits for.
    pub(in crate::training) fn wait(&self) -> Wait {
        let replies = &self.program.replies;
        match &self.program.current {
            _ if self.base.barrier.is_waiting() => Wait::Closing,
            _ if self.is_suspended() => Wait::View,
            _ if !self.gate.is_open => Wait::Start,
            Some(current) if current.is_silent() => Wait::Shards,
            Some(_) if replies.reduced.is_some() => Wait::Sums,
            Some(_) if replies.updated.is_some() || replies.gathered.is_some() => Wait::Shards,
            Some(_) | None => Wait::Program,
        }
    }

    /// The optimizer state of each chunk after the newest committed step, with its count of updates.
    pub(in crate::training) fn optimizer_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        self.optimizer.committed().map(|(chunk, state)| (chunk, &state.moments[..], state.updates))
    }

    /// The newest committed state; `None` if this member has committed nothing since it began.
    pub(in crate::training) fn checkpoint(&self) -> Option<Checkpoint> {
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
            run: self.base.view().run,
            specification: Arc::clone(&self.base.specification),
            manifest: self.base.loaded.manifest.clone(),
            saved,
            parameters: Arc::clone(parameters),
            states: states().map(|(_, state)| state.clone()).collect(),
            left_out: self.base.omissions.counted(),
            own_samples: self.base.own_trained,
        })
    }
}
