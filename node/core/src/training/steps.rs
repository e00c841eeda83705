//! The step engine: all members train the same steps, one after the other.
//!
//! # How it works
//! ```text
//! step t      begin --- gradient --- reduce-scatter --- update --- all-gather --- complete
//! step t + 1                                                          begin --- gradient --- first finished sum
//!                                                                                            = step t is committed
//! ```
//! A finished sum of step t + 1 holds a contribution of every member, and a member contributes only after it completed step
//! t. So the first one that is seen here [commits](commit) step t, without a message of its own; the last step is committed by a
//! [closing barrier](super::closing). (With [backup workers](backup_workers), no step begins before all members have completed the
//! one before.) [`view_change`] describes what a new view does to a step in progress.
//!
//! # Memory
//! Three vectors: the complete parameters, the ones before (kept until the commit, then their buffer takes the next
//! result), and the gradient; one more while a gradient is handed out in parts, and up to three more where gradients travel by a lossy
//! codec, for what it leaves out. Nothing vector-sized is allocated after the first steps, but for such parts.
//!
//! # Invariants
//! - At most two rounds exist: the one in progress, and the one before while others still wait for its segments.
//! - Segments of the next step, from members that are ahead, are held within their link's window.
//! - Old and new (parameters, state, cursor, batch) are both kept until the commit: a step can be undone.

use std::sync::Arc;

use peergrad_protocol::message::TrainingMessage;
use peergrad_protocol::{Buffer, PeerId, StepNumber};

use super::base::EngineBase;
use crate::io::{Output, Reject};
use crate::state::checkpoint::Checkpoint;
use backup_workers::BackupWorkers;
use clipping::ShardNorms;
use group_averaging::GroupSteps;
use merge_snapshot::{BranchSnapshots, BranchSnapshotsMut, MergeSnapshots};
use program::ProgramStep;
use rounds::Rounds;
use state::StepState;
use transfer::Transfer;

mod account;
mod arrivals;
mod awaited;
mod backup_workers;
mod chunk_batch;
mod clipping;
mod closing;
mod commit;
mod commit_state;
mod digest_audit;
pub(crate) mod evaluations;
mod group_averaging;
pub(super) mod merge_snapshot;
mod program;
mod progress;
mod rounds;
mod state;
mod transfer;
mod view_change;

/// The step engine of one member: it connects its parts, each of which is in a file of its own.
///
/// A part reads the [state](StepState), and changes it and itself. A method of the engine is for what takes several parts: an input from
/// outside ([`arrivals`], [`program`]), the completion of a step ([`progress`]), a change of the view ([`view_change`]).
pub(crate) struct StepEngine {
    /// The step in progress, with the parameters and the optimizer state.
    pub(super) state: StepState,
    /// Whether the step in progress may be taken.
    gate: StepGate,
    /// The program's side of that step: what it has requested, and what it waits for.
    program: ProgramStep,
    /// The rounds in progress: what they send, and what they take in.
    rounds: Rounds,
    /// Which members are late. Unused unless steps have backup workers.
    backup_workers: BackupWorkers,
    /// The norms of the shards' gradients. Unused unless gradients are clipped.
    norms: ShardNorms,
    /// The state beside the rounds of members with local parameters. Unused by other programs.
    group: GroupSteps,
    /// The chunks that move in this step, and those that an interrupted step lacks.
    transfer: Transfer,
    /// The snapshots that are kept for other branches, and imported from them.
    merge_snapshots: MergeSnapshots,
}

/// Whether the step in progress may be taken.
#[derive(Default)]
struct StepGate {
    /// Whether everything between two steps has been done.
    is_open: bool,
    /// The first step that is not to be taken in this view; `None` if there is no such step.
    stop_before: Option<StepNumber>,
    /// Whether the view begins at a step that this member has not reached: then there must be another view.
    is_behind_view: bool,
}

impl StepGate {
    /// Whether this step is not to be taken in this view.
    fn is_held(&self, step: StepNumber) -> bool {
        self.stop_before.is_some_and(|stop| stop <= step)
    }
}

impl StepEngine {
    /// The engine in this member's first view, with these parameters; `None` for a newcomer. The optimizer state comes from the checkpoint,
    /// if there is one.
    pub(super) fn new(
        base: EngineBase,
        complete: Option<Arc<Buffer>>,
        checkpoint: Option<&Checkpoint>,
        out: &mut Vec<Output>,
    ) -> Self {
        let mut engine = Self {
            state: StepState::new(base, complete, checkpoint),
            gate: StepGate::default(),
            program: ProgramStep::default(),
            rounds: Rounds::default(),
            backup_workers: BackupWorkers::default(),
            norms: ShardNorms::default(),
            group: GroupSteps::default(),
            transfer: Transfer::default(),
            merge_snapshots: MergeSnapshots::default(),
        };
        engine.make_progress(out);
        engine
    }

    /// The step in progress, and what the steps before have produced.
    pub(crate) fn state(&self) -> &StepState {
        &self.state
    }

    /// As [`state`](Self::state), to request a checkpoint.
    pub(crate) fn state_mut(&mut self) -> &mut StepState {
        &mut self.state
    }

    /// The snapshots for other branches.
    pub(super) fn branch_snapshots(&self) -> BranchSnapshots<'_> {
        BranchSnapshots { state: &self.state, snapshots: &self.merge_snapshots }
    }

    /// As [`merging`](Self::merging), to keep, import and drop snapshots.
    pub(super) fn branch_snapshots_mut(&mut self) -> BranchSnapshotsMut<'_> {
        BranchSnapshotsMut { state: &self.state, snapshots: &mut self.merge_snapshots }
    }

    /// Whether no frame is taken in or sent, or the view cannot begin.
    fn is_suspended(&self) -> bool {
        self.state.base.is_frozen || self.gate.is_behind_view
    }

    /// Takes in a message of another member, with its payload if it has one.
    ///
    /// # Errors
    /// The sender is not a member, or no correct member sends this here and now.
    pub(super) fn receive(
        &mut self,
        from: PeerId,
        message: TrainingMessage,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        match message {
            TrainingMessage::Segment(segment) => {
                // A segment may have to wait, so it makes progress by itself.
                return self.receive_segment(from, segment, payload.ok_or(Reject::Segment)?, out);
            }
            TrainingMessage::ChunkBatch(chunk_batch) => {
                let payload = payload.ok_or(Reject::Chunk)?;
                self.receive_chunk_batch(from, &chunk_batch, &payload, out)?;
            }
            TrainingMessage::WantChunks(want) => self.transfer.receive_request(&self.state, from, &want)?,
            TrainingMessage::StepProgress(offer) => {
                self.backup_workers.receive_offer(&mut self.state, from, offer)?;
            }
            TrainingMessage::StepContributors(chosen) => {
                self.backup_workers.receive_choice(&mut self.state, from, chosen)?;
            }
            TrainingMessage::ShardNorm(norm) => self.norms.receive(&self.state, from, norm)?,
            // The member takes these itself.
            TrainingMessage::Evaluating(_) | TrainingMessage::Evaluated(_) => return Err(Reject::OutOfPlace),
            TrainingMessage::TakeSnapshot(save) => {
                self.branch_snapshots_mut().snapshot_after(save.steps);
                return Ok(());
            }
            TrainingMessage::ParametersDigest(parameters) => {
                return self.state.receive_digest(from, parameters);
            }
            TrainingMessage::Tables
            | TrainingMessage::Complete(_)
            | TrainingMessage::Closed(_)
            | TrainingMessage::SaveCheckpoint(_) => return Err(Reject::OutOfPlace),
        }
        self.make_progress(out);
        Ok(())
    }
}
