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

use peergrad_collectives::codec::Codec;
use peergrad_protocol::limits::LONG_LINES_BYTES_MAX;
use peergrad_protocol::message::{Contact, Message, SavedCheckpoint};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Buffer, Frame, PeerId, Pool, Rank, StepNumber, ViewDigest};

use super::TrainingInputs;
use super::closing_barrier::ClosingBarrier;
use super::flow_control::FlowControl;
use super::loss_watch::LossWatch;
use super::omissions::Omissions;
use crate::io::Output;
use crate::peer_links::LinkFlow;
use crate::program::loader::Loaded;
use crate::state::checkpoint::{Checkpoint, EvaluationHistory};
use crate::state::shard_map::{ShardMap, ShardingConfig, StepShards};
use crate::state::shared_cache::SharedCache;

/// What a member needs to train in a view, in steps or with tables. It has many fields because the two engines share all of these.
pub(crate) struct EngineBase {
    /// This member, in the incarnation that is in the view.
    pub(super) me: Member,
    /// This member's rank in the view.
    pub(super) rank: Rank,
    /// The view, and the placement of chunks in it.
    pub(super) shard_map: Arc<ShardMap>,
    /// The encoded specification of the run, which checkpoints contain.
    pub(super) specification: Arc<[u8]>,
    /// The task, its configuration, and the program.
    pub(super) loaded: Loaded,
    /// The cache of this process.
    pub(super) cache: SharedCache,
    /// The pool of vectors with as many elements as there are parameters.
    pub(super) vectors: Pool,
    /// The pool of buffers for segments.
    pub(super) segments: Pool,
    /// The credit of each link, and the segments that are held.
    pub(super) flow_control: FlowControl,
    /// The digests of earlier views, the newest last.
    past: VecDeque<ViewDigest>,
    /// Whether the next view is being agreed on.
    pub(super) is_frozen: bool,
    /// How many chunks other members took over from this one after it had offered to own none.
    handed_over: usize,
    /// Which members have finished the run.
    pub(super) barrier: ClosingBarrier,
    /// The samples that were left out of steps, as far as this member knows.
    pub(super) omissions: Omissions,
    /// Whether the loss of the newest steps is finite.
    pub(super) loss_watch: LossWatch,
    /// Samples of committed work that this member has computed.
    pub(super) own_trained: u64,
}

impl EngineBase {
    /// The base in this member's first view. `flows` as for [`EngineBase::enter`].
    pub(super) fn new(
        view: &Arc<View>,
        digest: ViewDigest,
        inputs: TrainingInputs,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
    ) -> Self {
        let TrainingInputs { me, specification, loaded, vectors, segments, cache, checkpoint, .. } = inputs;
        let shard_map = cache.shard_map(view, digest, ShardingConfig::of(&loaded));
        let rank = view.rank(&me.peer).expect("a view is installed at its members");
        let mut omissions = Omissions::default();
        omissions.add(checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.left_out));
        Self {
            flow_control: FlowControl::new(view, rank, flows),
            rank,
            shard_map,
            specification,
            cache,
            vectors,
            segments,
            past: VecDeque::new(),
            is_frozen: false,
            handed_over: 0,
            barrier: ClosingBarrier::default(),
            omissions,
            loss_watch: LossWatch::default(),
            own_trained: checkpoint.map_or(0, |checkpoint| checkpoint.own_samples),
            me,
            loaded,
        }
    }

    /// The initial parameters of a run: the same at every member.
    pub(super) fn initial_parameters(&self) -> Arc<Buffer> {
        let mut initial = self.vectors.take_zeroed(self.loaded.manifest.parameter_count());
        self.loaded.initial(&mut initial);
        Arc::new(initial)
    }

    /// A checkpoint of these parameters, without the state that only one of the engines has.
    pub(super) fn checkpoint(&self, saved: SavedCheckpoint, parameters: Arc<Buffer>) -> Checkpoint {
        Checkpoint {
            run: self.view().run,
            specification: Arc::clone(&self.specification),
            manifest: self.loaded.manifest.clone(),
            saved,
            parameters,
            states: Vec::new(),
            tables: None,
            left_out: self.omissions.counted(),
            own_samples: self.own_trained,
            evaluations: EvaluationHistory::default(),
        }
    }

    /// The view that this member is in.
    pub(crate) fn view(&self) -> &Arc<View> {
        &self.shard_map.view
    }

    /// The digest of that view.
    pub(crate) fn digest(&self) -> ViewDigest {
        self.shard_map.digest
    }

    /// This member's rank in its view.
    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// The task, and the configuration of its training.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Stops training: from now on no frame is taken in or sent, and no step is completed.
    pub(crate) fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Whether this member has left this view.
    pub(crate) fn is_past(&self, view: &ViewDigest) -> bool {
        self.past.contains(view)
    }

    /// Whether this member is a newcomer to its view.
    pub(super) fn is_newcomer(&self) -> bool {
        self.view().newcomers().contains(&self.rank)
    }

    /// The address of a member; `None` of a peer that is no member.
    pub(crate) fn contact_of(&self, peer: &PeerId) -> Option<Contact> {
        Some(self.view().member(self.view().rank(peer)?).contact())
    }

    /// Sends a message to every other member.
    pub(crate) fn broadcast(&self, message: &Message, out: &mut Vec<Output>) {
        for member in self.view().members.iter().filter(|member| member.peer != self.me.peer) {
            out.push(Output::Send { to: member.peer, frame: Frame::encode(message, None) });
        }
    }

    // The placement of chunks in a step.

    /// Which members own and store each chunk in this step.
    pub(super) fn shards(&self, step: StepNumber) -> Arc<StepShards> {
        self.cache.shards(&self.shard_map, self.shard_map.moved(step))
    }

    /// The number of elements that this member owns in this step.
    pub(super) fn shard_len(&self, step: StepNumber) -> usize {
        self.shards(step).layout.shard(self.rank.index()).len()
    }

    /// The number of chunks of the parameter vector.
    pub(crate) fn chunk_count(&self) -> usize {
        self.shard_map.sharding.chunks.count()
    }

    /// For each rank: the number of elements that it owns in this step, and of those that it replicates.
    pub(crate) fn shares(&self, step: StepNumber) -> Vec<(usize, usize)> {
        let shards = self.shards(step);
        let chunks = self.shard_map.sharding.chunks;
        let len_of = |list: &Vec<usize>| list.iter().map(|&chunk| chunks.range(chunk).len()).sum();
        let kept = shards.owned.iter().zip(&shards.replicated);
        kept.map(|(owned, replicated)| (len_of(owned), len_of(replicated))).collect()
    }

    /// Those of `contacts` that own nothing in this step, and will own nothing.
    pub(crate) fn non_owners(&self, step: StepNumber, contacts: &[Contact]) -> Vec<PeerId> {
        let view = self.view();
        if view.members.iter().all(|member| member.capacity > 0) {
            return vec![];
        }
        let shards = self.shards(step);
        let is_non_owner = |peer: &PeerId| {
            view.rank(peer).is_some_and(|rank| {
                let stores_any =
                    [&shards.owned, &shards.replicated].iter().any(|kept| !kept[rank.index()].is_empty());
                view.member(rank).capacity == 0 && !stores_any
            })
        };
        contacts.iter().map(|contact| contact.peer).filter(is_non_owner).collect()
    }

    /// The number of the view's moves that are not made yet in this step.
    pub(crate) fn moves_left(&self, step: StepNumber) -> usize {
        self.view().moves.list.len() - self.shard_map.moved(step)
    }

    /// How many chunks moved from this member to others after it had offered to own none.
    pub(crate) fn handed_over(&self) -> usize {
        self.handed_over
    }

    /// A member says how many bytes of segments it wants to have here or on their way, and gets credit for them.
    pub(crate) fn widen(&mut self, from: PeerId, window_bytes: u64, out: &mut Vec<Output>) {
        let config = &self.loaded.config;
        let encoded = |codec: Codec| codec.encoded_len(config.segment_elements).max(1) as u64;
        let segment_bytes = encoded(config.gradients).min(encoded(config.parameters));
        let wanted = u32::try_from(window_bytes.div_ceil(segment_bytes)).unwrap_or(u32::MAX);
        let extra = LONG_LINES_BYTES_MAX / (config.segment_elements * size_of::<f32>()).max(1);
        let Some(rank) = self.view().rank(&from).filter(|rank| *rank != self.rank) else { return };
        let segments = self.flow_control.widen(rank, wanted, u32::try_from(extra).unwrap_or(u32::MAX));
        if segments > 0 {
            out.push(Output::Credit { to: from, segments });
        }
    }

    // Changes of the view.

    /// Enters `view`. `flows` are those of all links, by peer: the members' shares are taken out of it, and put back when
    /// the view is left.
    pub(super) fn enter(
        &mut self,
        view: &Arc<View>,
        digest: ViewDigest,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) {
        let before = Arc::clone(self.view());
        let difference = self.cache.difference((&before, self.digest()), (view, digest));
        self.flow_control.follow((&before, view), &difference, flows, out);
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
    pub(super) fn leave(&mut self, flows: &mut BTreeMap<PeerId, LinkFlow>, out: &mut Vec<Output>) {
        self.flow_control.release(&self.shard_map.view, flows, out);
    }
}

/// The most idle vectors that are kept: more come back only from late readers.
pub(crate) const VECTORS_KEPT_MAX: usize = 4;
/// The number of earlier views whose frames may still be on their way.
const PAST_MAX: usize = 16;
