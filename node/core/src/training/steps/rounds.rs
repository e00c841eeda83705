//! The rounds in progress: what they send, what they take in, and when they are complete.
//!
//! A member sums, updates and sends its shard from the first chunk on: the first chunks do not wait for the last ones.
//!
//! In a fully replicated step (see [`shard_map`](crate::state::shard_map)) members gather sums, and every member updates all chunks when
//! all sums have arrived. Until then no member has a new value of any chunk.

use std::collections::VecDeque;
use std::sync::Arc;

use peergrad_collectives::codec::Codecs;
use peergrad_collectives::mirror::Mirror;
use peergrad_collectives::plan::Plan;
use peergrad_collectives::round::{Action, Round, RoundContribution};
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::{PartialStep, Segment, TrainingMessage};
use peergrad_protocol::{Buffer, Frame, Rank, StepNumber};

use super::super::base::EngineBase;
use super::backup_workers::BackupWorkers;
use super::clipping::ShardNorms;
use super::commit_state::CompletedStep;
use super::group_averaging::{GroupAveraging, GroupSteps};
use super::program::{CurrentStep, ProgramStep, ShardPrefix};
use super::state::StepState;
use super::transfer::Transfer;
use crate::io::Output;
use crate::program::contribution::Contribution;
use crate::state::optimizer_shard::Version;
use crate::state::owner_rule::OwnerRule;
use crate::state::shard_map::StepShards;

/// The rounds in progress.
#[derive(Default)]
pub(super) struct Rounds {
    /// The round of the step in progress, and the one before it if others still wait for its segments; the older one first.
    pub(super) live: VecDeque<ActiveRound>,
    /// Segments that cannot be taken in yet, with the member that sent them: their round has not begun here, or this member's part of their sum
    /// is not known.
    pub(super) early: VecDeque<(Rank, Segment, Buffer)>,
    /// The actions of a round until they are carried out; empty in between.
    pub(super) actions: Vec<Action>,
    /// Memory for the sums of a mirror, for reuse.
    mirror_memory: Vec<f32>,
}

/// A round in progress.
pub(super) struct ActiveRound {
    /// The step that the round belongs to.
    pub(super) step: StepNumber,
    /// Which members own and replicate each chunk in that step.
    shards: Arc<StepShards>,
    /// Which member sends which segment to which, and in which order sums are made.
    pub(super) plan: Arc<Plan>,
    /// The reduce-scatter and the all-gather of this member.
    pub(super) round: Round,
    /// This member's part in sending sums from owners to replicas.
    pub(super) mirror: Mirror,
    /// Whether owners send their sums to the replicas.
    pub(super) is_mirrored: bool,
    /// The additional state of a group's round; `None` unless members have local parameters.
    pub(super) group_averaging: Option<GroupAveraging>,
}

/// The plan of the round of the step in progress, with the contributions of these ranks; `None`: of all.
pub(super) fn plan(state: &StepState, shards: &StepShards, contributors: Option<Arc<[usize]>>) -> Plan {
    let config = &state.base.loaded.config;
    let layout = Arc::clone(&shards.layout);
    let topology = config.topology(&layout, state.base.shard_map.ring, &state.base.shard_map.view.lines);
    // How the elements travel.
    let gather =
        if shards.is_fully_replicated { shards.sum_codec(config.sum_codec()) } else { config.parameters };
    let codecs = Codecs { reduce: config.gradients, gather };
    let (combine, rank) = (config.combine, state.base.rank.index());
    Plan { layout, topology, combine, codecs, rank, group: None, contributors }
}

impl Rounds {
    /// Begins the round of the step in progress, with this member's contribution.
    pub(super) fn start(
        &mut self,
        state: &mut StepState,
        shards: Arc<StepShards>,
        (plan, group_averaging): (Plan, Option<GroupAveraging>),
        contribution: RoundContribution,
    ) {
        let plan = Arc::new(plan);
        let (commit, vectors, len) = (&mut state.commit, &state.base.vectors, plan.layout.len());
        let result = || commit.take_result_buffer(vectors, len);
        let round = Round::new(Arc::clone(&plan), contribution, result);
        if round.first_sum_seen() {
            state.commit.confirm();
        }
        let memory = std::mem::take(&mut self.mirror_memory);
        let sums = shards.sum_codec(state.base.loaded.config.sum_codec());
        let mirror = Mirror::new(Arc::clone(&shards.mirrors), state.base.rank.index(), sums, memory);
        let is_merging = state.merge_in_progress().is_some();
        if let Some(residual) = state.residual.as_mut().filter(|_| !is_merging) {
            residual.begin(state.step);
        }
        let is_mirrored = group_averaging.is_none();
        self.live.push_back(ActiveRound {
            step: state.step,
            shards,
            plan,
            round,
            mirror,
            is_mirrored,
            group_averaging,
        });
        assert!(self.live.len() <= 2, "a round ends before the next but one begins");
    }

    /// More of this member's contribution to the step in progress is known: the elements from `start` on. They are ignored if that is not
    /// where the known ones end.
    pub(super) fn extend(&mut self, state: &mut StepState, start: usize, elements: &[f32]) {
        let Some(live) = self.live.back_mut().filter(|live| live.round.known() == start) else { return };
        let (commit, vectors, len) = (&mut state.commit, &state.base.vectors, live.plan.layout.len());
        live.round.extend(elements, || commit.take_result_buffer(vectors, len));
    }

    /// All of this member's contribution to the step in progress is known, of which it knew a part.
    pub(super) fn make_known(&mut self, state: &mut StepState, contribution: Contribution) {
        let Some(live) = self.live.back_mut() else { return };
        let (commit, vectors, len) = (&mut state.commit, &state.base.vectors, live.plan.layout.len());
        live.round.make_known(contribution.into(), || commit.take_result_buffer(vectors, len));
        if live.round.first_sum_seen() {
            state.commit.confirm();
        }
    }

    /// Whether the round of this step has begun.
    pub(super) fn has_begun(&self, step: StepNumber) -> bool {
        self.live.back().is_some_and(|live| live.step == step)
    }

    /// Whether all of this member's contribution to this step is known, if its round has begun.
    pub(super) fn is_known(&self, step: StepNumber) -> bool {
        self.live.back().is_none_or(|live| live.step != step || live.round.is_known())
    }

    /// Ends all rounds. Returns that of `step`, if it had begun.
    pub(super) fn end_all(&mut self, step: StepNumber) -> Option<ActiveRound> {
        std::mem::take(&mut self.live).into_iter().rfind(|live| live.step == step)
    }

    /// The link to this member was replaced or lost: drops its early segments, of which the member resends those that still matter.
    pub(super) fn drop_early(&mut self, rank: Rank) {
        self.early.retain(|(from, ..)| *from != rank);
    }

    /// Makes the sums that have arrived final, as an owner does, so that they are sent to all members.
    pub(super) fn update(
        &mut self,
        state: &mut StepState,
        program: &mut ProgramStep,
        norms: &mut ShardNorms,
        out: &mut Vec<Output>,
    ) {
        let (Some(current), Some(live)) = (&mut program.current, self.live.back_mut()) else { return };
        if !current.has_contributed || live.step != state.step {
            return;
        }
        // The shard may be final before the program asks for its sums, which it does at the end of its contribution.
        if live.round.is_reduced()
            && let Some(reply) = program.replies.reduced.take()
        {
            let _ = reply.send(());
        }
        if live.round.is_final() {
            return;
        }
        let final_count = if let Some(group_averaging) = &mut live.group_averaging {
            let parameters = state.commit.complete.as_deref();
            group_averaging.combine(&live.plan, &mut live.round, current, parameters);
            current.updated.elements
        } else if current.gathers_sums(&live.shards) {
            // The sums stay unchanged: every member updates all chunks later.
            live.round.summed()
        } else {
            live.update_summed(current, state, norms, out);
            current.updated.elements
        };
        if final_count == live.plan.own().len()
            && let Some(reply) = program.replies.updated.take()
        {
            let _ = reply.send(());
        }
        if current.wants_gather {
            live.round.gather(final_count, &state.base.segments);
        }
    }

    /// Sends what credit allows: segments of both rounds, and chunks.
    pub(super) fn pump(&mut self, state: &mut StepState, transfer: &mut Transfer, out: &mut Vec<Output>) {
        let before = self.live.partition_point(|live| live.step < state.step);
        (0..before).for_each(|index| self.pump_round(state, index, out));
        // Before the segments of this step: at a member that lacks a chunk, segments of the next step take up all credit.
        transfer.send_chunks(state, out);
        if before < self.live.len() {
            // Segments of the round before may wait behind what would be sent now, on a link that is in both rounds.
            let is_in_the_way =
                |ahead: &ActiveRound| self.live[before].may_overtake(ahead) && !ahead.round.is_drained();
            if !self.live.front().filter(|_| before > 0).is_some_and(is_in_the_way) {
                self.pump_round(state, before, out);
            }
        }
        let is_drained =
            |live: &ActiveRound| live.round.is_drained() && (live.mirror.is_sent() || !live.is_mirrored);
        if self.live.front().is_some_and(|live| live.step < state.step && is_drained(live))
            && let Some(live) = self.live.pop_front()
        {
            self.mirror_memory = live.mirror.recycle();
        }
    }

    fn pump_round(&mut self, state: &mut StepState, index: usize, out: &mut Vec<Output>) {
        // The sums of a step that merges are not used: the residual is kept for the next step.
        let is_merging = state.merge_in_progress().is_some();
        let live = &mut self.live[index];
        let step = live.step;
        let StepState { base: EngineBase { flow_control, segments, .. }, residual, .. } = state;
        let residual = residual.as_mut().filter(|_| step == state.step && !is_merging);
        live.round.pump(&mut flow_control.links, segments, residual, &mut self.actions);
        live.mirror.pump(&mut flow_control.links, segments, &mut self.actions);
        self.carry_out(step, &mut state.base, out);
    }

    /// Sends the segments, and returns the credit, that a round of `step` has produced.
    pub(super) fn carry_out(&mut self, step: StepNumber, base: &mut EngineBase, out: &mut Vec<Output>) {
        let (view, digest) = (&base.shard_map.view, base.shard_map.digest);
        for action in self.actions.drain(..) {
            match action {
                Action::Send { to, label, payload } => {
                    let segment = Segment {
                        step,
                        phase: label.phase,
                        owner: label.owner as u32,
                        index: label.index as u32,
                        stats: label.stats,
                    };
                    let frame =
                        Frame::encode(&TrainingMessage::Segment(segment).in_view(digest), Some(payload));
                    out.push(Output::Send { to: view.members[to].peer, frame });
                }
                Action::Grant { to, may_keep } => {
                    if base.flow_control.use_up(to, may_keep) {
                        out.push(Output::Credit { to: view.members[to].peer, segments: 1 });
                    }
                }
            }
        }
    }

    /// The parameters and the record of the step in progress, if all of it has arrived.
    pub(super) fn take_result(
        &mut self,
        state: &mut StepState,
        program: &mut ProgramStep,
        group: &mut GroupSteps,
        (backup_workers, norms): (&BackupWorkers, &ShardNorms),
    ) -> Option<(Arc<Buffer>, CompletedStep)> {
        let is_alone = self.live.len() <= 1;
        let (current, live) = (program.current.as_mut()?, self.live.back_mut()?);
        // The segments of the round before that others wait for have been sent by now, unless a member is ahead of what it can have.
        let is_here =
            live.step == state.step && state.commit.uncommitted.is_none() && live.round.is_complete();
        if !is_here || !is_alone {
            return None;
        }
        let len = state.base.shard_map.sharding.chunks.parameter_count();
        if let Some(group_averaging) = &live.group_averaging {
            let (stats, vector) = (live.round.stats(), live.round.complete(|| state.base.vectors.take(len)));
            return Some((vector, group.record(state, group_averaging, &live.plan, stats)));
        }
        if !live.apply_sums(state, current, norms) {
            return None;
        }
        let stats = live.round.stats();
        let vector = live.round.complete(|| state.base.vectors.take(len));
        Some((vector, state.record(stats, backup_workers.own_samples(state))))
    }

    /// The chunks of the step in progress that are here, for a step that is not being filled; `None` unless its round is one of all members and
    /// has begun. `states` are the chunks whose new state is here.
    pub(super) fn holdings(&self, state: &StepState, states: ChunkSet) -> Option<PartialStep> {
        // The state of a group's step is of no use to other members.
        let live =
            self.live.back().filter(|live| live.step == state.step && live.group_averaging.is_none())?;
        let stats = live.round.seen_stats();
        // In a fully replicated step members gather sums: there are no new values until the step is complete.
        let values =
            if live.shards.is_fully_replicated { ChunkSet::default() } else { live.new_values(state) };
        Some(PartialStep { values, states, stats })
    }
}

impl ActiveRound {
    /// Whether this segment can be taken in now.
    pub(super) fn can_receive(&self, segment: &Segment) -> bool {
        self.round.can_receive(segment.phase, segment.owner as usize, segment.index as usize)
    }

    /// Whether the segments of this round could delay the rest of the one `before`, because the rounds use other edges.
    fn may_overtake(&self, before: &Self) -> bool {
        self.group_averaging.is_some() || self.plan.topology != before.plan.topology
    }

    /// The optimizer step for the owned chunks whose sums have arrived since the last call; for all owned chunks together if gradients are
    /// clipped, once the norm of the whole gradient is known.
    fn update_summed(
        &mut self,
        current: &mut CurrentStep,
        state: &mut StepState,
        norms: &mut ShardNorms,
        out: &mut Vec<Output>,
    ) {
        self.take_sums(current, state);
        let (Some(rule), shards) = (&mut current.rule, Arc::clone(&self.shards)) else { return };
        let owned = &shards.owned[state.base.rank.index()][current.updated.chunks..current.summed.chunks];
        if owned.is_empty() {
            return;
        }
        let (vector, stats) = self.round.own_shard().expect("some of it is summed up");
        if rule.clips() {
            if current.summed.elements < self.plan.own().len() {
                return;
            }
            norms.tell(state, current.squares, out);
            let Some(squares) = norms.total(state, &shards) else { return };
            rule.clip(squares, stats.samples);
        }
        let parameters = state.commit.complete.as_ref().expect("an owner has parameters");
        state.optimizer.update(rule, stats, owned.iter().copied(), parameters, vector);
        current.updated = current.summed;
    }

    /// Takes over the sums of owned chunks that have arrived since the last call, as far as this member can update with them: sends them to
    /// the holders of replicas, and adds up their squares if gradients are clipped.
    fn take_sums(&mut self, current: &mut CurrentStep, state: &mut StepState) {
        let (Some(rule), before) = (&current.rule, current.summed) else { return };
        let owned = &self.shards.owned[state.base.rank.index()][before.chunks..];
        let chunks = state.base.shard_map.sharding.chunks;
        let mut summed = before;
        for &chunk in owned {
            let elements = summed.elements + chunks.range(chunk).len();
            if elements > self.round.summed() {
                break;
            }
            if !state.base.shard_map.sharding.has_state {
                state.optimizer.ensure(chunk);
            }
            if state.optimizer.state(Version::Committed, chunk).is_none() {
                // The chunk has just moved here, and its state is still on its way.
                break;
            }
            summed = ShardPrefix { chunks: summed.chunks + 1, elements };
        }
        if summed.chunks == before.chunks {
            return;
        }
        let owned = &owned[..summed.chunks - before.chunks];
        if rule.keeps_state() {
            // Replicas update with the rounded sums, so the owner does too.
            let sums = self.shards.sum_codec(state.base.loaded.config.sum_codec());
            self.round.quantize(sums, &state.base.segments);
        }
        let (vector, stats) = self.round.own_shard().expect("some of it is summed up");
        match rule {
            OwnerRule::Optimizer { .. } | OwnerRule::Blend(_) => {
                owned.iter().for_each(|&chunk| self.mirror.pack(&chunks.range(chunk), vector, stats));
            }
            // The rule keeps no state, so replicas need no sums.
            OwnerRule::Custom(_) | OwnerRule::Mean => self.is_mirrored = false,
        }
        if rule.clips() {
            current.squares = add_squares(current.squares, rule, owned, chunks, vector);
        }
        current.summed = summed;
    }

    /// Whether this member needs the norms of all shards before the step is complete here.
    pub(super) fn needs_norms(&self, current: &CurrentStep) -> bool {
        let is_clipped = current.rule.as_ref().is_some_and(OwnerRule::clips);
        let has_to_update = current.updated.elements < self.plan.own().len();
        let has_replicas = || !self.shards.replicated[self.plan.rank].is_empty();
        is_clipped && !current.gathers_sums(&self.shards) && (has_to_update || has_replicas())
    }

    /// Updates the chunks that this member does not own, from the sums of the complete round. Returns whether all that the step needs is
    /// here.
    fn apply_sums(&mut self, state: &mut StepState, current: &mut CurrentStep, norms: &ShardNorms) -> bool {
        let rank = state.base.rank.index();
        let (owned, replicated) = (&self.shards.owned[rank], &self.shards.replicated[rank]);
        let keeps_state = current.rule.as_ref().is_some_and(OwnerRule::keeps_state);
        let gathers_sums = current.gathers_sums(&self.shards);
        let is_here = |chunk: &usize| state.optimizer.state(Version::Committed, *chunk).is_some();
        if !owned.iter().chain(replicated).all(is_here) {
            return false;
        }
        if keeps_state && state.base.shard_map.sharding.has_state && !self.mirror.is_received() {
            return false;
        }
        if gathers_sums && !self.round.is_sent() {
            // Other members still wait for the sums that are about to be overwritten.
            return false;
        }
        let stats = self.round.stats();
        if let (Some(rule), Some(parameters)) = (&mut current.rule, &state.commit.complete) {
            let chunks = state.base.shard_map.sharding.chunks;
            if rule.clips() && gathers_sums {
                let sums = self.round.gathered();
                // By rank, as if each owner had told its own.
                let of_owner = |owned: &Vec<usize>| add_squares(0.0, rule, owned, chunks, sums);
                let total = self.shards.owned.iter().fold(0.0, |total, owned| total + of_owner(owned));
                rule.clip(total, stats.samples);
            } else if rule.clips() && !replicated.is_empty() {
                let Some(total) = norms.total(state, &self.shards) else { return false };
                rule.clip(total, stats.samples);
            }
            if gathers_sums {
                let all = 0..chunks.count();
                state.optimizer.update(rule, stats, all, parameters, self.round.gathered());
            } else {
                state.optimizer.update_replicas(rule, stats, replicated, parameters);
            }
        }
        true
    }

    /// The chunks whose new values are here.
    fn new_values(&self, state: &StepState) -> ChunkSet {
        let mut values = ChunkSet::default();
        for (owner, shard) in self.shards.owned.iter().enumerate() {
            let segments = &self.plan.layout.shard(owner).segments()[..self.round.held_segments(owner)];
            let mut elements: usize = segments.iter().map(|segment| segment.len()).sum();
            // The chunks that have new values are the first ones of the shard.
            for &chunk in shard {
                let len = state.base.shard_map.sharding.chunks.range(chunk).len();
                if len > elements {
                    break;
                }
                elements -= len;
                values.insert(chunk);
            }
        }
        values
    }
}

/// `before` and the part of some chunks in the square of the gradient's norm, in order; `sums` is the whole vector.
fn add_squares(before: f64, rule: &OwnerRule, owned: &[usize], chunks: Chunks, sums: &[f32]) -> f64 {
    let of_chunk = |chunk: usize| rule.squares(chunks.range(chunk).start, &sums[chunks.range(chunk)]);
    owned.iter().fold(before, |sum, &chunk| sum + of_chunk(chunk))
}
