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
//! result), and the gradient; up to three more where gradients travel by a lossy codec, for what it leaves out. Nothing
//! vector-sized is allocated after the first steps.
//!
//! # Invariants
//! - At most two rounds exist: the one in progress, and the one before while others still wait for its segments.
//! - Segments of the next step, from members that are ahead, are held within their link's window.
//! - Old and new (parameters, state, cursor, batch) are both kept until the commit: a step can be undone.

use std::collections::VecDeque;
use std::sync::Arc;

use peergrad_collectives::mirror::Mirror;
use peergrad_collectives::plan::Plan;
use peergrad_collectives::residual::Residual;
use peergrad_collectives::round::{Action, Round};
use peergrad_protocol::cursor::Span;
use peergrad_protocol::message::Segment;
use peergrad_protocol::{Buffer, Rank, StepNumber};

use super::base::EngineBase;
use crate::io::Output;
use crate::state::assignment::BatchAssignment;
use crate::state::checkpoint::Checkpoint;
use crate::state::optimizer_shard::{OptimizerShard, Version};
use crate::state::shard_map::StepShards;
use backup_workers::BackupWorkers;
use commit::CommitState;
use group_averaging::{GroupAveraging, GroupSteps};
use merge_snapshot::MergeSnapshots;
use program::ProgramStep;
use transfer::Transfer;

mod account;
mod arrivals;
mod backup_workers;
mod chunk_batch;
mod closing;
mod commit;
mod group_averaging;
pub(super) mod merge_snapshot;
mod program;
mod progress;
mod transfer;
mod view_change;

/// The step engine of one member.
///
/// Most of its methods concern two or three of its parts, and are in the file of the part that they change.
pub(crate) struct StepEngine {
    pub(super) base: EngineBase,
    kind: StepKind,
    commit: CommitState,
    optimizer: OptimizerShard,
    /// The residual: what the codec has left out of this member's contributions. `None` if they travel by an exact codec.
    residual: Option<Residual>,
    /// The step in progress, which is also the number of complete steps.
    step: StepNumber,
    /// The assignment of the step in progress.
    assignment: Arc<BatchAssignment>,
    /// The assignment of the step after, if an earlier view has made it and the present one has not begun; `None` otherwise.
    next_assignment: Option<Arc<BatchAssignment>>,
    gate: StepGate,
    program: ProgramStep,
    rounds: Rounds,
    backup_workers: BackupWorkers,
    group: GroupSteps,
    transfer: Transfer,
    pub(super) merge_snapshots: MergeSnapshots,
}

/// How members take a step together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    /// A step waits for the contributions of all members.
    Synchronous,
    /// A step waits for most contributions: see [`backup_workers`].
    BackupWorkers,
    /// Each member has local parameters, and averages them within a group: see [`group_averaging`].
    LocalParameters,
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

/// The rounds in progress.
#[derive(Default)]
struct Rounds {
    /// The round of the step in progress, and the one before it if others still wait for its segments; the older one first.
    live: VecDeque<ActiveRound>,
    /// Segments whose round has not begun here, with the member that sent them.
    early: VecDeque<(Rank, Segment, Buffer)>,
    /// The actions of a round until they are carried out; empty in between.
    actions: Vec<Action>,
    /// Memory for the sums of a mirror, for reuse.
    mirror_room: Vec<f32>,
}

/// A round in progress.
struct ActiveRound {
    step: StepNumber,
    shards: Arc<StepShards>,
    plan: Arc<Plan>,
    round: Round,
    mirror: Mirror,
    /// Whether owners send their sums to the replicas.
    is_mirrored: bool,
    /// The additional state of a group's round; `None` unless members have local parameters.
    group_averaging: Option<GroupAveraging>,
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
        let (loaded, sharding) = (&base.loaded, base.shard_map.sharding);
        let kind = if loaded.program.has_local_parameters() {
            StepKind::LocalParameters
        } else if loaded.config.backups.is_some() {
            StepKind::BackupWorkers
        } else {
            StepKind::Synchronous
        };
        let mut optimizer =
            OptimizerShard::new(sharding.chunks, loaded.owner_moments(), loaded.keeps_master());
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
        let step = base.view().first_step();
        let entered_before = base.is_newcomer().then_some(step);
        let mut engine = Self {
            base,
            kind,
            commit: CommitState::new(complete, entered_before),
            optimizer,
            residual,
            step,
            assignment: Arc::default(),
            next_assignment: None,
            gate: StepGate::default(),
            program: ProgramStep::default(),
            rounds: Rounds::default(),
            backup_workers: BackupWorkers::default(),
            group: GroupSteps::default(),
            transfer: Transfer::default(),
            merge_snapshots: MergeSnapshots::default(),
        };
        engine.assign_batch();
        engine.make_progress(out);
        engine
    }

    /// Whether no frame is taken in or sent, or the view cannot begin.
    fn is_suspended(&self) -> bool {
        self.base.is_frozen || self.gate.is_behind_view
    }

    /// Whether each member has local parameters.
    fn has_local_parameters(&self) -> bool {
        self.kind == StepKind::LocalParameters
    }

    /// The part of the step's batch that this member computes.
    fn part(&self) -> &[Span] {
        self.assignment.part(&self.base.me.peer, self.base.me.incarnation)
    }
}
