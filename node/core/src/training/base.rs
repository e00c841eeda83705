//! The base of both engines: this member, its view, its links, and the run.
//!
//! A [step engine](super::steps) and a [table engine](super::tables) have this in common and nothing else. Each has its own base; a run has
//! one of the two engines.
//!
//! # Invariants
//! - While the next view is agreed on (`is_frozen`), no frame is taken in or sent, and no step is completed.
//! - Frames of an earlier view are recognized by the view's digest, and dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use peergrad_protocol::message::{Contact, Message};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Buffer, Frame, PeerId, Pool, Rank, StepNumber, ViewDigest};

use super::TrainingInputs;
use super::closing_barrier::ClosingBarrier;
use super::flow_control::FlowControl;
use super::omissions::Omissions;
use crate::io::Output;
use crate::program::loader::Loaded;
use crate::state::shard_map::{ShardMap, ShardingConfig, StepShards};
use crate::state::shared_cache::SharedCache;

/// What a member needs to train in a view, in steps or with tables.
pub(super) struct EngineBase {
    pub(super) me: Member,
    /// This member's rank in the view.
    pub(super) rank: Rank,
    /// The view, and the placement of chunks in it.
    pub(super) shard_map: Arc<ShardMap>,
    /// The encoded specification of the run, which checkpoints contain.
    pub(super) specification: Arc<[u8]>,
    pub(super) loaded: Loaded,
    pub(super) cache: SharedCache,
    /// The pool of vectors with as many elements as there are parameters.
    pub(super) vectors: Pool,
    pub(super) segments: Pool,
    pub(super) flow_control: FlowControl,
    /// The digests of earlier views, the newest last.
    past: VecDeque<ViewDigest>,
    /// Whether the next view is being agreed on.
    pub(super) is_frozen: bool,
    /// How many chunks other members took over from this one after it had offered to own none.
    pub(super) handed_over: usize,
    pub(super) barrier: ClosingBarrier,
    pub(super) omissions: Omissions,
    /// Samples of committed work that this member has computed.
    pub(super) own_trained: u64,
}

impl EngineBase {
    /// The base in this member's first view. `credits` as for [`EngineBase::enter`].
    pub(super) fn new(
        view: &Arc<View>,
        digest: ViewDigest,
        inputs: TrainingInputs,
        credits: &mut BTreeMap<PeerId, u32>,
    ) -> Self {
        let TrainingInputs { me, specification, loaded, segments, cache, checkpoint } = inputs;
        let shard_map = cache.shard_map(view, digest, ShardingConfig::of(&loaded));
        let rank = view.rank(&me.peer).expect("a view is installed at its members");
        let mut omissions = Omissions::default();
        omissions.add(checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.left_out));
        Self {
            flow_control: FlowControl::new(view, rank, credits),
            rank,
            shard_map,
            specification,
            cache,
            vectors: Pool::new(VECTORS_KEPT_MAX),
            segments,
            past: VecDeque::new(),
            is_frozen: false,
            handed_over: 0,
            barrier: ClosingBarrier::default(),
            omissions,
            own_trained: checkpoint.map_or(0, |checkpoint| checkpoint.own_samples),
            me,
            loaded,
        }
    }

    /// The initial parameters of a run: the same at every member.
    pub(super) fn initial_parameters(&self) -> Arc<Buffer> {
        let mut initial = self.vectors.take_zeroed(self.loaded.manifest.parameter_count());
        self.loaded.task.initial(self.loaded.config.seed, &mut initial);
        Arc::new(initial)
    }

    pub(super) fn view(&self) -> &Arc<View> {
        &self.shard_map.view
    }

    pub(super) fn digest(&self) -> ViewDigest {
        self.shard_map.digest
    }

    /// Whether this member has left this view.
    pub(super) fn is_past(&self, view: &ViewDigest) -> bool {
        self.past.contains(view)
    }

    /// Whether this member is a newcomer to its view.
    pub(super) fn is_newcomer(&self) -> bool {
        self.view().newcomers().contains(&self.rank)
    }

    /// The address of a member; `None` of a peer that is no member.
    pub(super) fn contact_of(&self, peer: &PeerId) -> Option<Contact> {
        Some(self.view().member(self.view().rank(peer)?).contact())
    }

    /// Which members own and store each chunk in this step.
    pub(super) fn shards(&self, step: StepNumber) -> Arc<StepShards> {
        self.cache.shards(&self.shard_map, self.shard_map.moved(step))
    }

    /// The number of elements that this member owns in this step.
    pub(super) fn shard_len(&self, step: StepNumber) -> usize {
        self.shards(step).layout.shard(self.rank.index()).len()
    }

    /// Sends a message to every other member.
    pub(super) fn broadcast(&self, message: &Message, out: &mut Vec<Output>) {
        for member in self.view().members.iter().filter(|member| member.peer != self.me.peer) {
            out.push(Output::Send { to: member.peer, frame: Frame::encode(message, None) });
        }
    }

    /// Enters `view`. `credits` are those of all links, by peer, in segments: the members' shares are taken out of it, and put back when
    /// the view is left.
    pub(super) fn enter(
        &mut self,
        view: &Arc<View>,
        digest: ViewDigest,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) {
        let before = Arc::clone(self.view());
        let difference = self.cache.difference((&before, self.digest()), (view, digest));
        self.flow_control.follow((&before, view), &difference, credits, out);
        self.past.push_back(self.digest());
        if self.past.len() > PAST_MAX {
            self.past.pop_front();
        }
        self.shard_map = self.cache.shard_map(view, digest, self.shard_map.sharding);
        self.rank = view.rank(&self.me.peer).expect("a view is installed at its members");
        self.flow_control.set_rank(self.rank);
        if view.member(self.rank).capacity == 0 {
            // The chunks that it owned are at others, or listed as moves.
            let listed = view.moves.list.iter().filter(|moved| moved.from[0] == self.rank).count();
            self.handed_over = self.handed_over.max(listed);
        }
        self.barrier.leave_view();
        self.omissions.leave_view();
    }

    /// Returns the credit of all held segments: training is over at this member.
    pub(super) fn leave(&mut self, credits: &mut BTreeMap<PeerId, u32>, out: &mut Vec<Output>) {
        self.flow_control.release(&self.shard_map.view, credits, out);
    }
}

/// The most idle vectors that are kept: more come back only from late readers.
const VECTORS_KEPT_MAX: usize = 4;
/// The number of earlier views whose frames may still be on their way.
const PAST_MAX: usize = 16;
