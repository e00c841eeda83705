//! Progress: a step advances as far as it can with what has arrived.
//!
//! ```text
//! open ----> contributed ----> own chunks summed, rule known ----> updated ----> gathered, replicas up to date ----> complete
//!   |             |                      |                            |
//!   chunks move   round                  sums to replicas             segments to all members
//! ```
//! A member sums, updates and sends its shard from the first chunk on: the first chunks do not wait for the last ones.
//!
//! In a fully replicated step (see [`shard_map`](crate::state::shard_map)) members gather sums, and every member updates all chunks when
//! all sums have arrived. Until then no member has a new value of any chunk.

use std::sync::Arc;

use peergrad_collectives::codec::Codecs;
use peergrad_collectives::mirror::Mirror;
use peergrad_collectives::plan::Plan;
use peergrad_collectives::round::{Action, Round};
use peergrad_protocol::message::{SampleStats, Segment, TrainingMessage};
use peergrad_protocol::{Buffer, Frame, StepNumber};

use super::super::base::EngineBase;
use super::commit::CompletedStep;
use super::program::{CurrentStep, UpdatedPrefix};
use super::{ActiveRound, Rounds, StepEngine};
use crate::io::Output;
use crate::program::contribution::Contribution;
use crate::state::assignment::BatchAssignment;
use crate::state::optimizer_shard::Version;
use crate::state::owner_rule::OwnerRule;
use crate::state::shard_map::StepShards;

impl StepEngine {
    /// Does all that can be done now: opens the step, sends what credit allows, commits the step before, and replies to the program.
    pub(in crate::training) fn make_progress(&mut self, out: &mut Vec<Output>) {
        if self.is_suspended() {
            return;
        }
        loop {
            self.open(out);
            self.begin_backup_round(out);
            self.commit_if_confirmed(out);
            self.update();
            self.pump(out);
            if !self.complete_if_possible() {
                break;
            }
        }
        self.answer();
    }

    fn answer(&mut self) {
        if !self.gate.is_open || self.commit.complete.is_none() {
            return;
        }
        if let Some(reply) = self.program.replies.ready.take() {
            let _ = reply.send(());
        }
        if self.program.current.is_none()
            && !self.base.barrier.is_waiting()
            && let Some(reply) = self.program.replies.begin.take()
        {
            self.start_step(reply);
        }
    }

    /// Opens the step in progress: does everything that belongs between two steps.
    fn open(&mut self, out: &mut Vec<Output>) {
        let is_held = self.gate.stop_before.is_some_and(|stop| stop <= self.step);
        if self.gate.is_open || is_held || self.transfer.is_filling() {
            return;
        }
        self.gate.is_open = true;
        self.transfer.move_chunks(&self.base, self.step);
        let blend = self.blend();
        if blend.is_some() || (self.commit.complete.is_none() && !self.has_backups()) {
            // A newcomer contributes nothing and gets everything. No member contributes to a step that merges, whose rule owners know.
            self.program.current = Some(CurrentStep::silent(blend.map(OwnerRule::Blend)));
            let vector = self.base.vectors.take_zeroed(self.base.shard_map.sharding.chunks.parameter_count());
            self.start_round(Contribution { vector, stats: SampleStats::default() });
            if let Err((peer, _)) = self.take_early(out) {
                out.push(Output::Disconnect(peer));
            }
        }
    }

    /// Assigns the batch of the step in progress.
    pub(super) fn assign_batch(&mut self) {
        self.assignment = self.assignment_of(self.step);
    }

    /// The assignment of a step that follows the step in progress.
    pub(super) fn assignment_of(&self, step: StepNumber) -> Arc<BatchAssignment> {
        let batch_size = self.base.loaded.config.step_samples();
        let sample_count = u64::from(self.base.loaded.task.sample_count());
        let view = (&**self.base.view(), self.base.digest());
        self.base.cache.assignment(&self.assignment, (batch_size, sample_count), view, step)
    }

    /// Contributes to the step in progress: at once or, with backup workers, when the members whose contributions count are known.
    pub(super) fn contribute(&mut self, contribution: Contribution) {
        if self.has_backups() {
            self.backup_workers.offer(contribution);
        } else {
            self.start_round(contribution);
        }
    }

    /// Begins the round of the step in progress, with the contributions of all members.
    pub(super) fn start_round(&mut self, contribution: Contribution) {
        self.start_round_of(contribution, None);
    }

    /// As [`StepEngine::start_round`], with the contributions of these ranks; `None`: of all.
    pub(super) fn start_round_of(&mut self, contribution: Contribution, contributors: Option<Arc<[usize]>>) {
        let shards = self.base.shards(self.step);
        let Contribution { vector, stats } = contribution;
        let (plan, group_averaging) = if self.has_local_parameters() {
            let (plan, group_averaging) = self.group_plan(stats);
            (plan, Some(group_averaging))
        } else {
            let layout = Arc::clone(&shards.layout);
            let topology = self.base.loaded.config.topology(&layout, self.base.shard_map.has_ring);
            let combine = self.base.loaded.config.combine;
            let (codecs, rank) = (self.codecs(&shards), self.base.rank.index());
            (Plan { layout, topology, combine, codecs, rank, group: None, contributors }, None)
        };
        let plan = Arc::new(plan);
        let (commit, vectors, len) = (&mut self.commit, &self.base.vectors, plan.layout.len());
        let room = || commit.take_result_buffer(vectors, len);
        let round = Round::new(Arc::clone(&plan), vector, stats, room);
        if round.first_sum_seen() {
            self.commit.first_sum_seen();
        }
        let room = std::mem::take(&mut self.rounds.mirror_room);
        let sums = shards.sum_codec(self.base.loaded.config.sum_codec());
        let mirror = Mirror::new(Arc::clone(&shards.mirrors), self.base.rank.index(), sums, room);
        let is_merging = self.merging().is_some();
        if let Some(residual) = self.residual.as_mut().filter(|_| !is_merging) {
            residual.begin(self.step);
        }
        let is_mirrored = group_averaging.is_none();
        self.rounds.live.push_back(ActiveRound {
            step: self.step,
            shards,
            plan,
            round,
            mirror,
            is_mirrored,
            group_averaging,
        });
        assert!(self.rounds.live.len() <= 2, "a round ends before the next but one begins");
    }

    /// How the elements of a step travel.
    fn codecs(&self, shards: &StepShards) -> Codecs {
        let config = &self.base.loaded.config;
        let gather =
            if shards.is_fully_replicated { shards.sum_codec(config.sum_codec()) } else { config.parameters };
        Codecs { reduce: config.gradients, gather }
    }

    /// Makes the sums that have arrived final, as an owner does, so that they are sent to all members.
    fn update(&mut self) {
        let (Some(current), Some(live)) = (&mut self.program.current, self.rounds.live.back_mut()) else {
            return;
        };
        if !current.has_contributed || live.step != self.step || live.round.is_final() {
            return;
        }
        if live.round.is_reduced()
            && let Some(reply) = self.program.replies.reduced.take()
        {
            let _ = reply.send(());
        }
        let final_count = if live.group_averaging.is_some() {
            live.combine(current, self.commit.complete.as_deref());
            current.updated.elements
        } else if current.gathers_sums(&live.shards) {
            // The sums stay unchanged: every member updates all chunks later.
            live.round.summed()
        } else {
            self.update_summed();
            self.program.current.as_ref().expect("just seen").updated.elements
        };
        let (Some(current), Some(live)) = (&self.program.current, self.rounds.live.back_mut()) else {
            return;
        };
        if final_count == live.plan.own().len()
            && let Some(reply) = self.program.replies.updated.take()
        {
            let _ = reply.send(());
        }
        if current.wants_gather {
            live.round.gather(final_count, &self.base.segments);
        }
    }

    /// The optimizer step for the owned chunks whose sums have arrived since the last call.
    fn update_summed(&mut self) {
        let (Some(current), Some(live)) = (&mut self.program.current, self.rounds.live.back_mut()) else {
            return;
        };
        let (Some(rule), before, summed) = (&mut current.rule, current.updated, live.round.summed()) else {
            return;
        };
        let owned = &live.shards.owned[self.base.rank.index()][before.chunks..];
        let chunks = self.base.shard_map.sharding.chunks;
        let mut updated = before;
        for &chunk in owned {
            let elements = updated.elements + chunks.range(chunk).len();
            if elements > summed {
                break;
            }
            if !self.base.shard_map.sharding.has_state {
                self.optimizer.ensure(chunk);
            }
            if self.optimizer.state(Version::Committed, chunk).is_none() {
                // The chunk has just moved here, and its state is still on its way.
                break;
            }
            updated = UpdatedPrefix { chunks: updated.chunks + 1, elements };
        }
        if updated.chunks == before.chunks {
            return;
        }
        let owned = &owned[..updated.chunks - before.chunks];
        if rule.keeps_state() {
            // Replicas update with the rounded sums, so the owner does too.
            let sums = live.shards.sum_codec(self.base.loaded.config.sum_codec());
            live.round.quantize(sums, &self.base.segments);
        }
        let (vector, stats) = live.round.own_shard().expect("some of it is summed up");
        match rule {
            OwnerRule::Optimizer { .. } | OwnerRule::Blend(_) => {
                owned.iter().for_each(|&chunk| live.mirror.pack(&chunks.range(chunk), vector, stats));
            }
            // The rule keeps no state, so replicas need no sums.
            OwnerRule::Custom(_) | OwnerRule::Mean => live.is_mirrored = false,
        }
        let parameters = self.commit.complete.as_ref().expect("an owner has parameters");
        self.optimizer.update(rule, stats, owned.iter().copied(), parameters, vector);
        current.updated = updated;
    }

    fn pump(&mut self, out: &mut Vec<Output>) {
        let before = self.rounds.live.partition_point(|live| live.step < self.step);
        (0..before).for_each(|index| self.pump_round(index, out));
        // Before the segments of this step: at a member that lacks a chunk, segments of the next step take up all credit.
        self.send_chunks(out);
        if before < self.rounds.live.len() {
            // Segments of the round before may wait behind what would be sent now, on a link that is in both rounds.
            let is_in_the_way = |ahead: &ActiveRound| {
                self.rounds.live[before].may_overtake(ahead) && !ahead.round.is_drained()
            };
            if !self.rounds.live.front().filter(|_| before > 0).is_some_and(is_in_the_way) {
                self.pump_round(before, out);
            }
        }
        let is_drained =
            |live: &ActiveRound| live.round.is_drained() && (live.mirror.is_sent() || !live.is_mirrored);
        if self.rounds.live.front().is_some_and(|live| live.step < self.step && is_drained(live))
            && let Some(live) = self.rounds.live.pop_front()
        {
            self.rounds.mirror_room = live.mirror.recycle();
        }
    }

    fn pump_round(&mut self, index: usize, out: &mut Vec<Output>) {
        // The sums of a step that merges are not used: the residual is kept for the next step.
        let is_merging = self.merging().is_some();
        let live = &mut self.rounds.live[index];
        let step = live.step;
        let residual = self.residual.as_mut().filter(|_| step == self.step && !is_merging);
        live.round.pump(
            &mut self.base.flow_control.links,
            &self.base.segments,
            residual,
            &mut self.rounds.actions,
        );
        live.mirror.pump(&mut self.base.flow_control.links, &self.base.segments, &mut self.rounds.actions);
        self.rounds.carry_out(step, &mut self.base, out);
    }

    /// Completes the step in progress, if all of it has arrived. Returns whether it did.
    fn complete_if_possible(&mut self) -> bool {
        let is_alone = self.rounds.live.len() <= 1;
        let (Some(current), Some(live)) = (&mut self.program.current, self.rounds.live.back_mut()) else {
            return false;
        };
        // The segments of the round before that others wait for have been sent by now, unless a member is ahead of what it can have.
        let is_here = live.step == self.step && self.commit.uncommitted.is_none() && live.round.is_complete();
        if !is_here || !is_alone {
            return false;
        }
        if live.group_averaging.is_some() {
            return self.complete_group();
        }
        let (owned, replicated) =
            (&live.shards.owned[self.base.rank.index()], &live.shards.replicated[self.base.rank.index()]);
        let keeps_state = current.rule.as_ref().is_some_and(OwnerRule::keeps_state);
        let gathers_sums = current.gathers_sums(&live.shards);
        let are_here = owned
            .iter()
            .chain(replicated)
            .all(|&chunk| self.optimizer.state(Version::Committed, chunk).is_some());
        if !are_here || (keeps_state && self.base.shard_map.sharding.has_state && !live.mirror.is_received())
        {
            return false;
        }
        if gathers_sums && !live.round.is_sent() {
            // Other members still wait for the sums that are about to be overwritten.
            return false;
        }
        let stats = live.round.stats();
        if let (Some(rule), Some(parameters)) = (&mut current.rule, &self.commit.complete) {
            if gathers_sums {
                let all = 0..self.base.shard_map.sharding.chunks.count();
                self.optimizer.update(rule, stats, all, parameters, live.round.gathered());
            } else {
                self.optimizer.update_replicas(rule, stats, replicated, parameters);
            }
        }
        let len = self.base.shard_map.sharding.chunks.parameter_count();
        let vector = live.round.complete(|| self.base.vectors.take(len));
        let record = self.record(stats);
        self.complete_step(vector, record);
        true
    }

    /// The record of the step in progress, in which all members took part.
    pub(super) fn record(&self, stats: SampleStats) -> CompletedStep {
        let left_out = self.assignment.len().saturating_sub(stats.samples);
        let (assignment, samples) = (Arc::clone(&self.assignment), stats.samples);
        let part = self.assignment.part_len(&self.base.me.peer, self.base.me.incarnation);
        let own_samples = if self.was_in_time() { part } else { 0 };
        CompletedStep { assignment, stats, samples, left_out, own_samples, is_of_all: true }
    }

    /// The step in progress is complete, with these parameters.
    pub(super) fn complete_step(&mut self, vector: Arc<Buffer>, record: CompletedStep) {
        let merge = self.merging().cloned();
        self.commit.complete(vector, record);
        merge.into_iter().for_each(|merge| self.note_merge(merge));
        if self.has_local_parameters() {
            // No member could undo the step.
            self.commit.confirm();
        } else if self.commit.previous.is_none() {
            // A newcomer has no parameters to go back to. If the step is undone, it is a newcomer again.
            self.commit.previous = self.commit.complete.clone();
        }
        self.backup_workers.end_step();
        self.step = self.step.next();
        self.gate.is_open = false;
        self.program.current = None;
        self.assign_batch();
        self.transfer.take_arrivals(self.step, self.commit.newest_version(), &mut self.optimizer);
        if let Some(reply) = self.program.replies.gathered.take() {
            let _ = reply.send(());
        }
    }
}

impl Rounds {
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
                Action::Grant { to } => {
                    if base.flow_control.use_up(to) {
                        out.push(Output::Credit { to: view.members[to].peer, segments: 1 });
                    }
                }
            }
        }
    }
}

impl ActiveRound {
    /// Whether the segments of this round could delay the rest of the one `before`, because the rounds use other edges.
    fn may_overtake(&self, before: &Self) -> bool {
        self.group_averaging.is_some() || self.plan.topology != before.plan.topology
    }
}
