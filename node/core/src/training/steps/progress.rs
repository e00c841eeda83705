//! Progress: a step advances as far as it can with what has arrived.
//!
//! ```text
//! open ----> contributed ----> own chunks summed, rule known ----> updated ----> gathered, replicas up to date ----> complete
//!   |             |                      |                            |
//!   chunks move   round                  sums to replicas             segments to all members
//! ```
//! Every input that can let a step advance ends with a call of [`StepEngine::make_progress`], which asks each part in turn what it can do
//! now.

use std::sync::Arc;

use peergrad_collectives::round::RoundContribution;
use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;

use super::StepEngine;
use super::commit::commit_if_confirmed;
use super::commit_state::CompletedStep;
use super::group_averaging::group_plan;
use super::program::CurrentStep;
use super::rounds::plan;
use super::state::StepKind;
use crate::io::Output;
use crate::program::contribution::{Contribution, ContributionPart};
use crate::state::owner_rule::OwnerRule;

impl StepEngine {
    /// Does all that can be done now: opens the step, sends what credit allows, commits the step before, and replies to the program.
    pub(in crate::training) fn make_progress(&mut self, out: &mut Vec<Output>) {
        if self.is_suspended() {
            return;
        }
        loop {
            self.open(out);
            self.begin_backup_round(out);
            commit_if_confirmed(&mut self.state, &mut self.merge_snapshots, out);
            self.rounds.update(&mut self.state, &mut self.program, &mut self.norms, out);
            self.rounds.pump(&mut self.state, &mut self.transfer, out);
            let Self { state, program, group, backup_workers, norms, .. } = self;
            let result = self.rounds.take_result(state, program, group, (backup_workers, norms));
            let Some((parameters, record)) = result else { break };
            self.complete_step(parameters, record);
        }
        if self.gate.is_open && self.state.commit.complete.is_some() {
            self.program.answer(&self.state);
        }
    }

    /// Opens the step in progress: does everything that belongs between two steps.
    fn open(&mut self, out: &mut Vec<Output>) {
        if self.gate.is_open || self.gate.is_held(self.state.step) || self.transfer.is_filling() {
            return;
        }
        self.gate.is_open = true;
        self.transfer.move_chunks(&self.state);
        let blend = self.merge_snapshots.blend(&self.state);
        let is_newcomer = self.state.commit.complete.is_none();
        if blend.is_some() || (is_newcomer && self.state.kind != StepKind::BackupWorkers) {
            // A newcomer contributes nothing and gets everything. No member contributes to a step that merges, whose rule owners know.
            self.program.current = Some(CurrentStep::silent(blend.map(OwnerRule::Blend)));
            let base = &self.state.base;
            let vector = base.vectors.take_zeroed(base.shard_map.sharding.chunks.parameter_count());
            self.start_round(RoundContribution::whole(vector, SampleStats::default()), None);
            if let Err((peer, _)) = self.take_early(out) {
                out.push(Output::Disconnect(peer));
            }
        }
    }

    /// Contributes to the step in progress: at once or, with backup workers, when the members whose contributions count are known.
    pub(super) fn contribute(&mut self, contribution: Contribution) {
        if self.state.kind == StepKind::BackupWorkers {
            self.backup_workers.keep(contribution);
        } else if self.rounds.has_begun(self.state.step) {
            // With a part of it.
            self.rounds.make_known(&mut self.state, contribution);
        } else {
            self.start_round(contribution.into(), None);
        }
    }

    /// Contributes a part to the step in progress, if that begins with what is known. Others wait for the whole contribution.
    pub(super) fn contribute_part(&mut self, part: ContributionPart) {
        let ContributionPart { start, elements, stats } = part;
        if self.state.kind != StepKind::Synchronous {
            return;
        }
        if self.rounds.has_begun(self.state.step) {
            self.rounds.extend(&mut self.state, start, &elements);
        } else if start == 0
            && let Some(current) = &mut self.program.current
        {
            current.has_contributed = true;
            let base = &self.state.base;
            let mut vector = base.vectors.take(base.shard_map.sharding.chunks.parameter_count());
            vector[..elements.len()].copy_from_slice(&elements);
            self.start_round(RoundContribution { vector, stats, known: elements.len() }, None);
        }
    }

    /// Begins the round of the step in progress, with the contributions of these ranks; `None`: of all members.
    pub(super) fn start_round(
        &mut self,
        contribution: RoundContribution,
        contributors: Option<Arc<[usize]>>,
    ) {
        let shards = self.state.base.shards(self.state.step);
        let planned = if self.state.kind == StepKind::LocalParameters {
            let among = self.program.current.as_ref().and_then(|current| current.among);
            let (plan, group_averaging) = group_plan(&self.state, among, contribution.stats);
            (plan, Some(group_averaging))
        } else {
            (plan(&self.state, &shards, contributors), None)
        };
        self.rounds.start(&mut self.state, shards, planned, contribution);
    }

    /// The step in progress is complete, with these parameters.
    pub(super) fn complete_step(&mut self, parameters: Arc<Buffer>, record: CompletedStep) {
        let state = &mut self.state;
        let merge = state.merge_in_progress().cloned();
        state.commit.complete(parameters, record);
        merge.into_iter().for_each(|merge| self.merge_snapshots.note_merge(state, merge));
        if state.kind == StepKind::LocalParameters {
            // No member could undo the step.
            state.commit.confirm();
        } else if state.commit.previous.is_none() {
            // A newcomer has no parameters to go back to. If the step is undone, it is a newcomer again.
            state.commit.previous = state.commit.complete.clone();
        }
        self.backup_workers.end_step();
        state.step = state.step.next();
        state.assign_batch();
        self.transfer.take_arrivals(state);
        self.gate.is_open = false;
        self.program.end_step();
    }
}
