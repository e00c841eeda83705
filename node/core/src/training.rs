//! The session: a member's part in training. Batches, rounds, parameters, commits, from view to view.
//!
//! # How it works
//! ```text
//! step t      begin --- gradient --- reduce-scatter --- update --- all-gather --- complete
//! step t + 1                                                          begin --- gradient --- first finished sum
//!                                                                                            = step t is committed
//! ```
//! A finished sum of step t + 1 holds a contribution of every member, and a member contributes only after it completed
//! step t. So the first one that shows up here commits step t, without a message of its own; the last step is committed
//! by a closing barrier. (Where steps do not wait for all, see [`backup_workers`], none begins before all have completed the last.) What a new view does to all this is in [`view_change`].
//!
//! # Memory
//! Three vectors: the complete parameters, the ones before (kept until the commit, then their buffer takes the next
//! result), and the gradient; up to three more where gradients travel by a lossy codec, for what it leaves out. Nothing
//! vector-sized is allocated after the first steps.
//!
//! # Invariants
//! - At most two rounds are alive: the one in progress, and the one before while others still wait for its segments.
//! - Segments of the next step, from members that are ahead, are held within their link's window.
//! - Old and new (parameters, state, bookmark, batch) are both kept until the commit: a step can be undone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_collectives::groups::Groups;
use peergrad_collectives::mirror::Mirror;
use peergrad_collectives::plan::Plan;
use peergrad_collectives::residual::Residual;
use peergrad_collectives::round::{Action, Round};
use peergrad_protocol::cursor::Span;
use peergrad_protocol::message::{Message, SampleStats, Segment};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Buffer, Frame, PeerId, Pool, Rank, StepNumber, ViewDigest};

use crate::io::{Output, Reject};
use crate::program::context::{Contribution, OwnerRule, Reply, StepStart};
use crate::program::loader::Loaded;
use crate::state::assignment::BatchAssignment;
use crate::state::checkpoint::Checkpoint;
use crate::state::optimizer_shard::OptimizerShard;
use crate::state::shard_map::{ShardMap, ShardingConfig, StepShards};
use crate::state::shared_cache::SharedCache;
use backup_workers::BackupWorkers;
use commit::CommitState;
use flow_control::FlowControl;
use group_averaging::GroupAveraging;
use merge_snapshot::MergeSnapshots;
pub(crate) use merge_snapshot::SnapshotId;
use omissions::Omissions;
use tables::TableEngine;
use transfer::Transfer;

mod account;
mod arrivals;
mod backup_workers;
mod chunk_batch;
mod closing;
mod commit;
mod flow_control;
mod group_averaging;
mod merge_snapshot;
mod omissions;
mod progress;
mod tables;
mod transfer;
mod view_change;

/// Training, as one member sees it.
pub(crate) struct Training {
    me: Member,
    shard_map: Arc<ShardMap>,
    rank: Rank,
    specification: Arc<[u8]>,
    loaded: Loaded,
    cache: SharedCache,
    vectors: Pool,
    segments: Pool,
    flow_control: FlowControl,
    commit: CommitState,
    optimizer: OptimizerShard,
    /// What was left out of this member's contributions, where they travel by a lossy codec.
    residual: Option<Residual>,
    /// The step in progress: as many are complete.
    step: StepNumber,
    /// Whether the step may be taken: what must be done between two steps is done.
    is_open: bool,
    /// How the batch of the step in progress is dealt.
    assignment: Arc<BatchAssignment>,
    /// The same of the step after, while this view has not begun: some have been dealt it in a view before.
    next_assignment: Option<Arc<BatchAssignment>>,
    /// The program's part in the step in progress, once it has begun it.
    current: Option<CurrentStep>,
    rounds: VecDeque<ActiveRound>,
    early: VecDeque<(Rank, Segment, Buffer)>,
    backup_workers: BackupWorkers,
    transfer: Transfer,
    /// Counts what was handed out to the program: an answer to an older one is void.
    turn: u64,
    /// The turn of a step that was finished before its program was through with it.
    finished_turn: Option<u64>,
    replies: PendingReplies,
    /// Nothing is taken in or sent: the next view is being agreed on.
    is_frozen: bool,
    /// This view is to begin at a step that the one before did not reach: there must be another view.
    is_behind_view: bool,
    /// The first step that is not to be taken in this view.
    stop_before: Option<StepNumber>,
    /// Views that were left, the newest last: their frames are dropped.
    past: VecDeque<ViewDigest>,
    /// Chunks that others took over when this member went.
    handed_over: usize,
    closed: BTreeSet<PeerId>,
    is_closed_by_message: bool,
    omissions: Omissions,
    /// Where members drift: what the last step was worth, if it was a round of all.
    consolidated: Option<SampleStats>,
    own_trained: u64,
    /// Where a round's actions come together until they are carried out; empty in between.
    actions: Vec<Action>,
    /// Room for the sums of a mirror, used again.
    mirror_room: Vec<f32>,
    merge_snapshots: MergeSnapshots,
    /// Where the program keeps its state in them.
    tables: Option<TableEngine>,
}

/// What the program waits for.
#[derive(Default)]
struct PendingReplies {
    begin: Option<Reply<StepStart>>,
    ready: Option<Reply<()>>,
    reduced: Option<Reply<()>>,
    updated: Option<Reply<()>>,
    gathered: Option<Reply<()>>,
    closed: Option<Reply<()>>,
}

/// The program's part in the step in progress.
struct CurrentStep {
    turn: u64,
    /// Whether the member goes through the step without its program: that of a newcomer has no parameters to begin with, and
    /// one that is late has missed the step.
    is_silent: bool,
    has_contributed: bool,
    /// Who takes part in the step's round, if not everybody.
    among: Option<Groups>,
    rule: Option<OwnerRule>,
    updated: UpdatedPrefix,
    wants_gather: bool,
}

/// How much of the own shard has its final values: its beginning.
#[derive(Clone, Copy, Default)]
struct UpdatedPrefix {
    chunks: usize,
    elements: usize,
}

/// A round on its way.
struct ActiveRound {
    step: StepNumber,
    shards: Arc<StepShards>,
    plan: Arc<Plan>,
    round: Round,
    mirror: Mirror,
    /// Whether owners tell their sums to those who keep replicas.
    is_mirrored: bool,
    /// Where the program drifts.
    group_averaging: Option<GroupAveraging>,
}

/// What a session is made of.
pub(crate) struct TrainingInputs {
    pub(crate) me: Member,
    pub(crate) specification: Arc<[u8]>,
    pub(crate) loaded: Loaded,
    pub(crate) segments: Pool,
    pub(crate) cache: SharedCache,
    /// What this member begins with, where the view goes on from checkpoints.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
}

impl Training {
    /// Begins training in `view`: the first one of a run, where everyone draws the same initial parameters, or one in
    /// which this member is a newcomer. `credits` as for [`Training::enter`].
    pub(crate) fn begin_in(
        view: &Arc<View>,
        digest: ViewDigest,
        inputs: TrainingInputs,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) -> Self {
        let TrainingInputs { me, specification, loaded, segments, cache, checkpoint } = inputs;
        let config = &loaded.config;
        let sharding = ShardingConfig::of(&loaded);
        let shard_map = cache.shard_map(view, digest, sharding);
        let rank = view.rank(&me.peer).expect("a view is installed at its members");
        let vectors = Pool::new(VECTORS_KEPT_MAX);
        let initial = || {
            let mut initial = vectors.take_zeroed(loaded.manifest.parameter_count());
            loaded.task.initial(config.seed, &mut initial);
            Arc::new(initial)
        };
        let begin = || checkpoint.as_ref().map_or_else(initial, |it| Arc::clone(&it.parameters));
        let shared = loaded.program.table_spec(&loaded);
        let is_new = view.newcomers().contains(&rank);
        let complete = (!is_new || shared.is_some()).then(begin);
        let mut owned = OptimizerShard::new(sharding.chunks, loaded.owner_moments(), loaded.keeps_master());
        let is_lossy = !config.gradients.is_exact() && !loaded.program.has_local_parameters();
        let residual = is_lossy.then(|| Residual::new(sharding.chunks.parameter_count(), vectors.clone()));
        let shards = cache.shards(&shard_map, 0);
        let is_kept = |&chunk: &usize| shared.is_none() && shards.has_replica(chunk, rank);
        let kept = (0..sharding.chunks.count()).filter(is_kept);
        // A newcomer keeps nothing yet: what it is to keep comes to it.
        let state = |chunk| checkpoint.as_ref()?.state(chunk).cloned();
        kept.filter(|_| complete.is_some()).for_each(|chunk| owned.insert(chunk, state(chunk), false));
        let entered_before = is_new.then(|| view.first_step());
        let mut training = Self {
            flow_control: FlowControl::new(view, rank, credits),
            rank,
            specification,
            cache,
            vectors,
            segments,
            commit: CommitState::new(complete, entered_before),
            optimizer: owned,
            residual,
            step: view.first_step(),
            is_open: false,
            assignment: Arc::default(),
            next_assignment: None,
            current: None,
            rounds: VecDeque::new(),
            early: VecDeque::new(),
            backup_workers: BackupWorkers::default(),
            transfer: Transfer::default(),
            turn: 0,
            finished_turn: None,
            replies: PendingReplies::default(),
            is_frozen: false,
            is_behind_view: false,
            stop_before: None,
            past: VecDeque::new(),
            handed_over: 0,
            closed: BTreeSet::new(),
            is_closed_by_message: false,
            omissions: Omissions::default(),
            consolidated: None,
            own_trained: 0,
            actions: Vec::new(),
            mirror_room: Vec::new(),
            merge_snapshots: MergeSnapshots::default(),
            tables: shared.map(|shared| TableEngine::new(&loaded, shared, rank, is_new)),
            me,
            shard_map,
            loaded,
        };
        if let Some(checkpoint) = checkpoint {
            training.omissions.add(checkpoint.left_out);
            training.own_trained = checkpoint.own_samples;
        }
        training.assign_batch();
        training.begin_tables();
        training.make_progress(out);
        training
    }

    /// The view that this member is in.
    pub(crate) fn view(&self) -> &Arc<View> {
        &self.shard_map.view
    }

    /// Its digest.
    pub(crate) fn digest(&self) -> ViewDigest {
        self.shard_map.digest
    }

    /// How to train, and on what.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Whether the program can be started: there are parameters to begin with.
    pub(crate) fn has_parameters(&self) -> bool {
        self.commit.complete.is_some()
    }

    /// Whether every epoch is over, as soon as the steps so far are.
    pub(crate) fn is_over(&self) -> bool {
        self.commit.complete.is_some() && self.assignment.epoch >= self.loaded.config.epochs
    }

    // What the program asks.

    /// Answers when there is a view to train in.
    pub(crate) fn ready(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        self.replies.ready = Some(reply);
        self.make_progress(out);
    }

    /// Hands out the next step, once it is open.
    pub(crate) fn begin(&mut self, reply: Reply<StepStart>, out: &mut Vec<Output>) {
        self.replies.begin = Some(reply);
        self.make_progress(out);
    }

    fn start_step(&mut self, reply: Reply<StepStart>) {
        let config = &self.loaded.config;
        let is_over = self.is_over();
        let samples: Arc<[u32]> = if is_over {
            Arc::new([])
        } else {
            let sample_count = self.loaded.task.sample_count();
            let order = self.cache.order(config, self.assignment.epoch, sample_count);
            let of = |span: &Span| order[span.start as usize..span.end as usize].iter().copied();
            self.part().iter().flat_map(of).collect()
        };
        self.turn += 1;
        self.current = Some(CurrentStep::new(self.turn, false));
        let begun = StepStart {
            turn: self.turn,
            number: self.step,
            is_over,
            epoch: self.assignment.epoch,
            rate: config.rate(self.step.0),
            samples,
            rank: self.rank,
            member_count: self.view().members.len(),
            parameters: Arc::clone(self.commit.complete.as_ref().expect("a step is opened with parameters")),
            room: self.vectors.take(self.shard_map.sharding.chunks.parameter_count()),
        };
        // A program that no longer waits has ended; the room goes home by itself.
        let _ = reply.send(begun);
    }

    /// Whether a command belongs to the step that the program was handed out last, and was not interrupted since.
    pub(crate) fn is_current(&self, turn: u64) -> bool {
        self.current.as_ref().is_some_and(|current| current.turn == turn && !current.is_silent)
    }

    /// Starts the round of the current step.
    ///
    /// # Errors
    /// A member that is ahead sent a segment that the plan does not foresee.
    pub(crate) fn reduce_scatter(
        &mut self,
        contribution: Contribution,
        among: Option<Groups>,
        reply: Reply<()>,
        out: &mut Vec<Output>,
    ) -> Result<(), (PeerId, Reject)> {
        let Some(current) = &mut self.current else { return Ok(()) };
        assert!(
            among.is_none() || self.loaded.program.has_local_parameters(),
            "groups are for programs that drift"
        );
        current.has_contributed = true;
        current.among = among;
        self.replies.reduced = Some(reply);
        self.contribute(contribution);
        self.take_early(out)?;
        self.make_progress(out);
        Ok(())
    }

    /// Takes the optimizer step for the own shard, as its sums come in.
    pub(crate) fn update_owned(&mut self, rule: OwnerRule, reply: Reply<()>, out: &mut Vec<Output>) {
        if let OwnerRule::Custom(_) = rule {
            let words = "a program whose owners update by a rule of its own says so: Program::CUSTOM_RULE";
            assert!(self.loaded.program.has_custom_rule(), "{words}");
        }
        if let Some(current) = &mut self.current {
            current.rule = Some(rule);
            self.replies.updated = Some(reply);
        }
        self.make_progress(out);
    }

    /// Sends the own shard to everyone, as it becomes final.
    pub(crate) fn all_gather(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        if let Some(current) = &mut self.current {
            current.wants_gather = true;
            self.replies.gathered = Some(reply);
        }
        self.make_progress(out);
    }

    pub(crate) fn broadcast(&self, message: &Message, out: &mut Vec<Output>) {
        for member in self.view().members.iter().filter(|member| member.peer != self.me.peer) {
            out.push(Output::Send { to: member.peer, frame: Frame::encode(message, None) });
        }
    }

    /// The part of the step's batch that this member computes.
    fn part(&self) -> &[Span] {
        self.assignment.part(&self.me.peer, self.me.incarnation)
    }
}

impl CurrentStep {
    fn new(turn: u64, is_silent: bool) -> Self {
        Self {
            turn,
            is_silent,
            has_contributed: is_silent,
            among: None,
            rule: None,
            updated: UpdatedPrefix::default(),
            wants_gather: is_silent,
        }
    }

    /// Whether members gather the sums of the step, and each makes new values of all of them.
    fn gathers_sums(&self, shards: &StepShards) -> bool {
        // A program's own rule is promised to be called for what is owned, and nothing else.
        shards.is_fully_replicated && self.rule.as_ref().is_some_and(OwnerRule::keeps_state)
    }
}

/// Idle vectors kept: more than this come home only after late readers.
const VECTORS_KEPT_MAX: usize = 4;
