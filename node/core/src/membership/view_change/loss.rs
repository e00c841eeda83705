//! The change after a loss: where training resumes among the members that stay, from what they report.
//!
//! # How it works
//! 1. The base is the newest step that every remaining member has completed. (With local parameters: the newest that any of them has
//!    completed; the others skip what they lack.)
//! 2. The step after it is rolled forward if the members together hold every new chunk and also the new state of every chunk whose old
//!    state any of them holds. Otherwise training resumes at the base.
//! 3. The members with a chunk's state at that point hold the chunk. If the placement puts it elsewhere, it is listed as a move; chunks
//!    with the fewest holders move first. The state of a chunk without holders restarts, at members that have its values.
//! 4. The samples that were assigned to members that left are returned to the epoch.

use std::collections::BTreeMap;

use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::message::MemberReport;
use peergrad_protocol::placement::Placement;
use peergrad_protocol::view::{BatchParts, Donor, Merge, Moves, Resume, RollForward, View, ViewChange};
use peergrad_protocol::{Rank, StepNumber};

use super::roster::Roster;
use super::{Churn, TURNS, ViewChangePlanner};
use crate::state::assignment::BatchAssignment;

impl ViewChangePlanner<'_> {
    /// The change to the view of the members in `kept` (sorted ranks), where `reports` say how far each of them is. `assignment_of` returns
    /// the assignment of a step, if the proposer knows it. `None` if none of them has parameters.
    pub(crate) fn after_loss<'d>(
        &self,
        kept: &[Rank],
        reports: &BTreeMap<Rank, MemberReport>,
        assignment_of: impl Fn(StepNumber) -> Option<&'d BatchAssignment>,
    ) -> Option<ViewChange> {
        let loss = Loss::new(self, kept, reports);
        let base = loss.base(&assignment_of)?;
        let forward = loss.roll_forward(base);
        let step = if forward.is_some() { base.next() } else { base };
        let assignment = self.assignment_at(step, &assignment_of)?;
        Some(loss.change(base, forward, step, &assignment))
    }

    /// The assignment of a step, computed from the newest step up to it whose assignment is known.
    fn assignment_at<'d>(
        &self,
        step: StepNumber,
        assignment_of: &impl Fn(StepNumber) -> Option<&'d BatchAssignment>,
    ) -> Option<BatchAssignment> {
        let near = (0..=step.0.min(LAG_MAX)).map(|lag| StepNumber(step.0 - lag));
        let (mut known, mut assignment) =
            near.filter_map(|step| Some((step, assignment_of(step)?.clone()))).next()?;
        while known < step {
            known = known.next();
            assignment = self.assignment_after(&assignment, known);
        }
        Some(assignment)
    }
}

/// The members that stay after a loss, and what they have reported.
struct Loss<'p> {
    /// The view before, and the run's configuration.
    planner: &'p ViewChangePlanner<'p>,
    /// The ranks of the members that stay, sorted.
    kept: &'p [Rank],
    /// By rank: the reports of all members that have answered.
    reports: &'p BTreeMap<Rank, MemberReport>,
    /// The members in `kept` that have parameters, with their reports.
    holders: Vec<(Rank, &'p MemberReport)>,
    /// The change of members: all that are not kept leave.
    churn: Churn,
    /// The members of the next view.
    roster: Roster,
}

impl<'p> Loss<'p> {
    fn new(
        planner: &'p ViewChangePlanner<'p>,
        kept: &'p [Rank],
        reports: &'p BTreeMap<Rank, MemberReport>,
    ) -> Self {
        let is_holder = |rank: &&Rank| reports.get(rank).is_some_and(|report| report.complete.is_some());
        let holders = kept.iter().filter(is_holder).map(|rank| (*rank, &reports[rank])).collect();
        let view = planner.view();
        let gone = (0..view.members.len()).map(Rank::from_index).filter(|rank| !kept.contains(rank));
        let churn = Churn { leavers: gone.collect(), ..Churn::default() };
        let roster = Roster::new(view, &churn);
        Self { planner, kept, reports, holders, churn, roster }
    }

    fn view(&self) -> &View {
        self.planner.view()
    }

    // Where training resumes.

    /// The newest step that every remaining member has completed; with local parameters, that any of them has. `None` if none of them has
    /// parameters.
    fn base<'d>(
        &self,
        assignment_of: &impl Fn(StepNumber) -> Option<&'d BatchAssignment>,
    ) -> Option<StepNumber> {
        if self.planner.has_local_parameters {
            self.newest(assignment_of)
        } else {
            self.holders.iter().filter_map(|(_, report)| report.complete).min()
        }
    }

    /// With local parameters: the newest step that any member has completed. If that was the last step of the run, and not all members have
    /// completed it, the step before it: those that have completed it hold the mean of all, which the others have yet to get.
    fn newest<'d>(
        &self,
        assignment_of: &impl Fn(StepNumber) -> Option<&'d BatchAssignment>,
    ) -> Option<StepNumber> {
        let newest = self.holders.iter().filter_map(|(_, report)| report.complete).max()?;
        let is_at_all = self.holders.iter().all(|(_, report)| report.complete == Some(newest));
        let is_over = self.planner.assignment_at(newest, assignment_of)?.is_over(self.planner.epochs);
        Some(if is_over && !is_at_all { StepNumber(newest.0 - 1) } else { newest })
    }

    /// How the step after `base` is rolled forward; `None` if it is not.
    fn roll_forward(&self, base: StepNumber) -> Option<RollForward> {
        // A step that merges a branch is never rolled forward: if not all members have merged it, the merge can be given up with the step.
        let is_merging = self.view().merge().is_some() && base == self.view().first_step();
        // With local parameters only the run's last step is completed, from the members that have completed it.
        let is_beyond = |(_, report): &(Rank, &MemberReport)| report.complete > Some(base);
        if is_merging || (self.planner.has_local_parameters && !self.holders.iter().any(is_beyond)) {
            return None;
        }
        let mut donors = Vec::new();
        for chunk in 0..self.planner.shard_map.sharding.chunks.count() {
            let have = self.members_with_values(chunk, base);
            if have.is_empty() || !self.has_new_state(chunk, base) {
                return None;
            }
            if have.len() < self.holders.len() {
                self.add_donor(chunk, have, &mut donors);
            }
        }
        let stats = self.holders.iter().find_map(|(_, report)| report.stats_of(base));
        Some(RollForward { stats: stats?, donors })
    }

    /// The members that have a chunk's values after the step that follows `base`.
    fn members_with_values(&self, chunk: usize, base: StepNumber) -> Vec<Rank> {
        let has_values = |report: &MemberReport| {
            let next = report.next.as_ref().filter(|_| report.complete == Some(base));
            report.complete > Some(base) || next.is_some_and(|next| next.values.contains(chunk))
        };
        self.holders.iter().filter(|(_, report)| has_values(report)).map(|(rank, _)| *rank).collect()
    }

    /// Adds one of the members that `have` a chunk to the donors of a step that is rolled forward.
    fn add_donor(&self, chunk: usize, have: Vec<Rank>, donors: &mut Vec<Donor>) {
        // Two members that own nothing may not reach each other.
        let owning: Vec<Rank> =
            have.iter().copied().filter(|rank| self.view().member(*rank).capacity > 0).collect();
        let have = if owning.is_empty() { have } else { owning };
        // Runs of chunks are divided among all members that have them.
        let rank = self.roster.new_rank(have[chunk / DONOR_RUN % have.len()]).expect("a holder stays");
        let first = chunk as u32;
        match donors.last_mut() {
            Some(last) if last.end == first && last.rank == rank => last.end += 1,
            _ => donors.push(Donor { first, end: first + 1, rank }),
        }
    }

    /// Whether a chunk's state after the step that follows `base` is held, or its state is lost in any case.
    fn has_new_state(&self, chunk: usize, base: StepNumber) -> bool {
        let is_held = |steps| self.holders.iter().any(|(_, report)| report.holds_state(chunk, steps));
        !self.planner.shard_map.sharding.has_state || is_held(base.next()) || !is_held(base)
    }

    // The record of the next view.

    /// The change to the view that begins with `step`: that is `base`, or the next one if `forward` says how members reach it.
    /// `assignment` is that of `step`.
    fn change(
        &self,
        base: StepNumber,
        forward: Option<RollForward>,
        step: StepNumber,
        assignment: &BatchAssignment,
    ) -> ViewChange {
        let Self { planner, roster, .. } = self;
        let first = self.view().first_step();
        let merge = self.view().merge().filter(|_| step == first);
        let newcomers = self.newcomers(step);
        let (batch, cursor) = match merge {
            Some(_) => self.merging_batch(),
            None => self.batch(assignment, &newcomers),
        };
        let trained = match merge {
            Some(_) => cursor.taken(planner.sample_count),
            None => assignment.after.taken(planner.sample_count).saturating_sub(assignment.len()),
        };
        let cursor = self.planner.ending_after(self.cursor_of_part(cursor));
        let now = planner.shard_map.target.after(&self.view().moves, planner.shard_map.moved(base));
        let state_holders = |chunk: usize| self.state_holders(chunk, step, &now);
        let moves = planner.moves(&roster.members, &newcomers, state_holders, TURNS);
        // If a member was still in the step before, that step must be completed first.
        let merge = merge.filter(|_| base == first && self.can_still_merge(&now, &moves));
        let merge: Option<Box<Merge>> = merge.cloned().map(Box::new);
        let resume = Resume { newcomers, batch, forward, merge, ..Resume::at(step) };
        let ancestors = planner.ancestor(trained);
        ViewChange { ancestors, ..roster.change(planner.shard_map, &self.churn, resume, cursor, moves) }
    }

    /// The members that begin `step` without parameters, by their new ranks.
    fn newcomers(&self, step: StepNumber) -> Vec<Rank> {
        let is_new = |rank: &&Rank| match self.reports.get(rank).and_then(|report| report.complete) {
            None => true,
            // The member has its first parameters from the step that is undone.
            Some(complete) => complete > step && self.reports[rank].is_entering,
        };
        self.roster.to_new_ranks(self.kept.iter().filter(is_new).copied())
    }

    /// The batch of a step that merges another branch, and the cursor before it.
    fn merging_batch(&self) -> (Option<BatchParts>, DataCursor) {
        // The merging step has no batch, and its cursor does not include the other branch's samples yet.
        let (epoch, parts) = (self.view().cursor.epoch, vec![vec![]; self.roster.members.len()]);
        (Some(BatchParts { epoch, parts }), self.view().cursor.clone())
    }

    /// The batch of the first step, shared by the members that stay, and the cursor after it. No batch if the run is over.
    fn batch(&self, assignment: &BatchAssignment, newcomers: &[Rank]) -> (Option<BatchParts>, DataCursor) {
        let (epochs, position) = (self.planner.epochs, self.planner.sample_count);
        if assignment.epoch >= epochs {
            // The assignment is of an epoch after the last, and has no samples: the cursor stays at the end of the last epoch.
            return (None, DataCursor { epoch: epochs - 1, position, ..DataCursor::default() });
        }
        if assignment.is_over(epochs) {
            return (None, assignment.after.clone());
        }
        let (parts, cursor) = assignment.among(&self.roster.members, newcomers);
        (Some(parts), cursor)
    }

    /// The cursor of the members that stay. The lost members may train the rest of the epoch as well, so each part of the swarm continues
    /// at a different position.
    fn cursor_of_part(&self, cursor: DataCursor) -> DataCursor {
        if !self.planner.allows_forks {
            return cursor;
        }
        let first_kept = self.kept.first().map_or(0, |rank| u64::from(rank.0));
        cursor.for_partition(first_kept, self.view().members.len() as u64, self.planner.sample_count)
    }

    /// Whether another branch can still be merged: the earlier holders of each chunk, which are those of `now`, have both branches' state
    /// of it.
    fn can_still_merge(&self, now: &Placement, moves: &Moves) -> bool {
        let has_merge_snapshot =
            |rank: &Rank| self.reports.get(rank).is_some_and(|report| report.has_merge_snapshot);
        let is_kept = |chunk: usize| now.replica_holders(chunk).iter().any(|rank| self.kept.contains(rank));
        moves.restarted.is_empty()
            && self.kept.iter().all(has_merge_snapshot)
            && (0..now.chunk_count()).all(is_kept)
    }

    /// The holders of a chunk's state after `steps`, by their new ranks: its earlier holders first, in that order.
    fn state_holders(&self, chunk: usize, steps: StepNumber, now: &Placement) -> Vec<Rank> {
        let before = now.replica_holders(chunk);
        let sharding = self.planner.shard_map.sharding;
        if !sharding.has_state {
            return self.roster.to_new_ranks(before.iter().copied());
        }
        let holds = |rank: &Rank| {
            self.holders.iter().any(|(holder, report)| holder == rank && report.holds_state(chunk, steps))
        };
        let others = self.holders.iter().map(|(rank, _)| *rank).filter(|rank| !before.contains(rank));
        let mut holders = self.roster.to_new_ranks(before.iter().copied().chain(others).filter(holds));
        holders.truncate(sharding.replicas.holders_max());
        holders
    }
}

/// The most steps that a proposer may be behind the member that is furthest, and still compute its assignment.
const LAG_MAX: u64 = 1 << 16;
/// The number of neighboring chunks that one donor sends.
const DONOR_RUN: usize = 64;
