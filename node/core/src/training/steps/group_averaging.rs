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
use peergrad_collectives::groups::Groups;
use peergrad_collectives::plan::{Plan, Segment, ShardLayout, are_finite};
use peergrad_collectives::round::{Round, RoundContribution};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::view::MemberLine;
use peergrad_protocol::{Buffer, StepNumber};

use super::StepEngine;
use super::commit::commit_if_confirmed;
use super::commit_state::CompletedStep;
use super::program::CurrentStep;
use super::state::StepState;
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

impl GroupSteps {
    /// Whether a command belongs to a step that was completed without the program.
    pub(super) fn is_finished(&self, turn: u64) -> bool {
        self.finished_turn == Some(turn)
    }

    /// The record of the step in progress, whose round is complete with these statistics.
    pub(super) fn record(
        &mut self,
        state: &mut StepState,
        group_averaging: &GroupAveraging,
        plan: &Plan,
        stats: SampleStats,
    ) -> CompletedStep {
        let own_samples = group_averaging.own_samples;
        let group = plan.group.as_ref().expect("a member with local parameters is in a group");
        let is_of_all = group.len() == state.base.view().members.len();
        self.consolidated = is_of_all.then_some(stats);
        let left_out = state.account(own_samples);
        let assignment = Arc::clone(&state.assignment);
        let samples = assignment.len().saturating_sub(left_out);
        CompletedStep { assignment, stats, samples, left_out, own_samples, is_of_all }
    }
}

/// This member's group in the step in progress, and its contribution there. `among` is how the program groups members; `None`: all are one
/// group.
pub(super) fn group_plan(
    state: &StepState,
    among: Option<Groups>,
    own: SampleStats,
) -> (Plan, GroupAveraging) {
    let base = &state.base;
    let (view, newcomers) = (base.view(), state.newcomers());
    let count = view.members.len();
    let is_last = state.assignment_of(state.step.next()).is_over(base.loaded.config.epochs);
    // Two members that own nothing need not reach each other, and there may be no third one in their group.
    let holders = view.replica_holders();
    let has_groups = holders.iter().filter(|is_holder| !**is_holder).count() < 2;
    let group: Arc<[usize]> = match among.filter(|_| newcomers.is_empty() && !is_last && has_groups) {
        Some(groups) => groups.of(base.rank.index(), count, state.step.0).into(),
        None => (0..count).collect(),
    };
    let has_parameters = |rank: usize| newcomers.iter().all(|newcomer| newcomer.index() != rank);
    let mut owners: Vec<usize> = (0..group.len()).filter(|place| has_parameters(group[*place])).collect();
    let contributor_count = owners.len();
    if owners.iter().any(|place| holders[group[*place]]) {
        owners.retain(|place| holders[group[*place]]);
    }
    let sharding = base.shard_map.sharding;
    let parameter_count = sharding.chunks.parameter_count();
    let layout = ShardLayout::even(parameter_count, group.len(), &owners, sharding.segment_elements);
    let rank = group.binary_search(&base.rank.index()).expect("everyone is in its own group");
    let line = |rank: &usize| view.lines.get(*rank).copied().unwrap_or_default();
    let lines: Vec<MemberLine> = group.iter().map(line).collect();
    let topology = base.loaded.config.topology(&layout, base.shard_map.ring, &lines);
    let plan = Plan {
        layout: Arc::new(layout),
        topology,
        combine: Combine::Sum,
        codecs: Codecs::default(),
        rank,
        group: Some(group),
        contributors: None,
    };
    (plan, GroupAveraging { contributor_count, own_samples: own.samples, combined: 0 })
}

impl StepState {
    /// Counts the samples that this member has `trained` in the step in progress. Returns how many of its part it has not.
    fn account(&mut self, trained: u64) -> u64 {
        self.base.own_trained += trained;
        let left_out = self.part_len().saturating_sub(trained);
        self.base.omissions.add(left_out);
        left_out
    }

    /// Completes the last step with the mean that others hold, to which this member has contributed.
    pub(super) fn account_for_all(&mut self) {
        self.account(self.part_len());
    }

    /// Goes on to the next step, without this member's part of the step in progress.
    fn skip(&mut self) {
        self.account(0);
        self.step = self.step.next();
        self.assign_batch();
    }
}

impl StepEngine {
    /// Resumes at `step`, because another member has reached it already: keeps this member's contribution to the step in progress, and
    /// skips the steps between.
    pub(super) fn skip_ahead(&mut self, step: StepNumber, out: &mut Vec<Output>) {
        let own = self
            .rounds
            .end_all(self.state.step)
            .and_then(|live| Some((live.group_averaging?.own_samples, live.round.interrupt().contribution?)));
        match own {
            Some((samples, RoundContribution { vector, stats, .. })) => {
                let left_out = self.state.account(samples);
                self.group.finished_turn = self.program.finish_silently();
                let assignment = Arc::clone(&self.state.assignment);
                let samples = assignment.len().saturating_sub(left_out);
                let own_samples = stats.samples;
                let record =
                    CompletedStep { assignment, stats, samples, left_out, own_samples, is_of_all: false };
                self.complete_step(Arc::new(vector), record);
                commit_if_confirmed(&mut self.state, &mut self.merge_snapshots, out);
            }
            None => {
                self.interrupt();
                self.state.skip();
            }
        }
        while self.state.step < step {
            self.state.skip();
        }
    }
}

impl GroupAveraging {
    /// Turns sums of this member's shard that have arrived since the last call into the group's values, if the rule is known.
    pub(super) fn combine(
        &mut self,
        plan: &Plan,
        round: &mut Round,
        current: &mut CurrentStep,
        parameters: Option<&Buffer>,
    ) {
        let (own, summed) = (plan.own(), round.summed());
        let (Some(rule), Some((vector, stats))) = (&mut current.rule, round.own_shard()) else { return };
        let parameters = parameters.expect("an owner has parameters");
        for segment in &own.segments()[self.combined..] {
            if current.updated.elements == summed {
                break;
            }
            self.combine_segment(rule, stats, segment, parameters, vector);
            self.combined += 1;
            current.updated.elements += segment.len();
        }
    }

    /// Turns the sums of a segment into the group's values.
    fn combine_segment(
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
