//! Group averaging: steps in which each member has local parameters, and averages them within a group.
//!
//! A member waits for the members of its group only, so members are at different steps, a few apart. A step is committed at each member
//! that has completed it: no member could undo it, since the others' parameters differ anyway. When a member is lost, all others resume at
//! the step of the member that is furthest. A member that is behind keeps its own progress, and skips the steps between.
//!
//! # Invariants
//! - The groups of a step are a function of view and step, so all members of a group know each other.
//! - In the first step of a view with a newcomer all members are one group: the newcomer gets the mean of all. So they are in
//!   the last step of the run: a member that completes it holds the mean, and gives it to the others if a member is lost.
//! - A mean counts each contribution once and alike: the total over all members stays what it was.
//! - Samples that no member has computed are counted by the member that was assigned them. (Steps that it skips are assigned
//!   over the members of the new view, so this count is approximate.)

use std::sync::Arc;

use peergrad_collectives::codec::Codecs;
use peergrad_collectives::combine::Combine;
use peergrad_collectives::plan::{Plan, Segment, ShardLayout, are_finite};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::{Buffer, StepNumber};

use super::commit::CompletedStep;
use super::program::CurrentStep;
use super::{ActiveRound, StepEngine};
use crate::io::Output;
use crate::state::owner_rule::OwnerRule;

/// The additional state of a group's round.
pub(super) struct GroupAveraging {
    /// The number of contributions in the sums: a newcomer has none.
    contributor_count: usize,
    /// The statistics of this member's contribution.
    own_samples: u64,
    /// The segments of this member's shard that have the group's values: the first ones.
    combined: usize,
}

/// The state of members with local parameters beside their rounds.
#[derive(Default)]
pub(super) struct GroupSteps {
    /// The statistics of the last step; `None` unless all members were in its round.
    pub(super) consolidated: Option<SampleStats>,
    /// The turn of a step that was completed before its program had ended it.
    finished_turn: Option<u64>,
}

impl StepEngine {
    /// This member's group in the step in progress, and its contribution there.
    pub(super) fn group_plan(&self, own: SampleStats) -> (Plan, GroupAveraging) {
        let view = self.base.view();
        let newcomers = if self.step == view.first_step() { view.newcomers() } else { &[] };
        let count = view.members.len();
        let among = self.program.current.as_ref().and_then(|current| current.among);
        let is_last = self.assignment_of(self.step.next()).epoch >= self.base.loaded.config.epochs;
        // Two members that own nothing need not reach each other, and there may be no third one in their group.
        let holders = view.replica_holders();
        let has_groups = holders.iter().filter(|is_holder| !**is_holder).count() < 2;
        let group: Arc<[usize]> = match among.filter(|_| newcomers.is_empty() && !is_last && has_groups) {
            Some(groups) => groups.of(self.base.rank.index(), count, self.step.0).into(),
            None => (0..count).collect(),
        };
        let has_parameters = |rank: usize| newcomers.iter().all(|newcomer| newcomer.index() != rank);
        let mut owners: Vec<usize> = (0..group.len()).filter(|place| has_parameters(group[*place])).collect();
        let contributor_count = owners.len();
        if owners.iter().any(|place| holders[group[*place]]) {
            owners.retain(|place| holders[group[*place]]);
        }
        let sharding = self.base.shard_map.sharding;
        let layout = ShardLayout::even(
            sharding.chunks.parameter_count(),
            group.len(),
            &owners,
            sharding.segment_elements,
        );
        let rank = group.binary_search(&self.base.rank.index()).expect("everyone is in its own group");
        let topology = self.base.loaded.config.topology(&layout, self.base.shard_map.has_ring);
        let combine = Combine::Sum;
        let plan = Plan {
            layout: Arc::new(layout),
            topology,
            combine,
            codecs: Codecs::default(),
            rank,
            group: Some(group),
            contributors: None,
        };
        (plan, GroupAveraging { contributor_count, own_samples: own.samples, combined: 0 })
    }

    /// The group's round is complete, and with it the step.
    pub(super) fn complete_group(&mut self) -> bool {
        let len = self.base.shard_map.sharding.chunks.parameter_count();
        let live = self.rounds.live.back_mut().expect("a complete round is there");
        let (stats, vector) = (live.round.stats(), live.round.complete(|| self.base.vectors.take(len)));
        let record = self.group_record(stats);
        self.complete_step(vector, record);
        true
    }

    fn group_record(&mut self, stats: SampleStats) -> CompletedStep {
        let live = self.rounds.live.back().expect("a complete round is there");
        let own_samples =
            live.group_averaging.as_ref().map_or(0, |group_averaging| group_averaging.own_samples);
        let group = live.plan.group.as_ref().expect("a member with local parameters is in a group");
        let view = &self.base.shard_map.view;
        let is_of_all = group.len() == view.members.len();
        self.group.consolidated = is_of_all.then_some(stats);
        let left_out = self.account(own_samples);
        let samples = self.assignment.len().saturating_sub(left_out);
        CompletedStep {
            assignment: Arc::clone(&self.assignment),
            stats,
            samples,
            left_out,
            own_samples,
            is_of_all,
        }
    }

    /// Counts the samples that this member has `trained` in the step in progress. Returns how many of its part it has not.
    fn account(&mut self, trained: u64) -> u64 {
        self.base.own_trained += trained;
        let part = self.assignment.part_len(&self.base.me.peer, self.base.me.incarnation);
        let left_out = part.saturating_sub(trained);
        self.base.omissions.add(left_out);
        left_out
    }

    /// Completes the last step with the mean that others hold, to which this member has contributed.
    pub(super) fn account_for_all(&mut self) {
        let part = self.assignment.part_len(&self.base.me.peer, self.base.me.incarnation);
        self.account(part);
    }

    /// Resumes at `step`, because another member has reached it already: keeps this member's contribution to the step in progress, and
    /// skips the steps between.
    pub(super) fn skip_ahead(&mut self, step: StepNumber, out: &mut Vec<Output>) {
        let live = std::mem::take(&mut self.rounds.live).into_iter().find(|live| live.step == self.step);
        let own = live
            .and_then(|live| Some((live.group_averaging?.own_samples, live.round.interrupt().contribution?)));
        match own {
            Some((samples, (vector, stats))) => {
                let left_out = self.account(samples);
                // To its program it looks as if the step had been completed normally.
                self.group.finished_turn = self.program.current.as_ref().and_then(|current| current.turn);
                let replies = [&mut self.program.replies.reduced, &mut self.program.replies.updated];
                for reply in replies.into_iter().filter_map(Option::take) {
                    let _ = reply.send(());
                }
                let assignment = Arc::clone(&self.assignment);
                let samples = assignment.len().saturating_sub(left_out);
                let own_samples = stats.samples;
                let record =
                    CompletedStep { assignment, stats, samples, left_out, own_samples, is_of_all: false };
                self.complete_step(Arc::new(vector), record);
                self.commit_if_confirmed(out);
            }
            None => {
                self.interrupt();
                self.skip();
            }
        }
        while self.step < step {
            self.skip();
        }
    }

    /// Whether a command belongs to a step that was completed without the program.
    pub(in crate::training) fn is_finished(&self, turn: u64) -> bool {
        self.group.finished_turn == Some(turn)
    }

    fn skip(&mut self) {
        self.account(0);
        self.step = self.step.next();
        self.assign_batch();
    }
}

impl ActiveRound {
    /// Turns sums of this member's shard that have arrived since the last call into the group's values, if the rule is known.
    pub(super) fn combine(&mut self, current: &mut CurrentStep, parameters: Option<&Buffer>) {
        let group_averaging = self.group_averaging.as_mut().expect("members have local parameters");
        let (own, summed) = (self.plan.own(), self.round.summed());
        let (Some(rule), Some((vector, stats))) = (&mut current.rule, self.round.own_shard()) else { return };
        let parameters = parameters.expect("an owner has parameters");
        for segment in &own.segments()[group_averaging.combined..] {
            if current.updated.elements == summed {
                break;
            }
            group_averaging.combine(rule, stats, segment, parameters, vector);
            group_averaging.combined += 1;
            current.updated.elements += segment.len();
        }
    }
}

impl GroupAveraging {
    fn combine(
        &self,
        rule: &mut OwnerRule,
        stats: SampleStats,
        segment: &Segment,
        parameters: &[f32],
        sums: &mut [f32],
    ) {
        let ranges = || segment.ranges().iter().cloned();
        if !ranges().all(|range| are_finite(&sums[range])) {
            // One overflow must not ruin the parameters of all members.
            return ranges().for_each(|range| sums[range.clone()].copy_from_slice(&parameters[range]));
        }
        for range in ranges() {
            let (parameters, sums) = (&parameters[range.clone()], &mut sums[range]);
            match rule {
                OwnerRule::Mean => sums.iter_mut().for_each(|sum| *sum /= self.contributor_count as f32),
                OwnerRule::Custom(rule) => rule(stats, parameters, sums),
                OwnerRule::Optimizer { .. } | OwnerRule::Blend(_) => {
                    panic!("a program with local parameters keeps no optimizer state at owners")
                }
            }
        }
    }
}
