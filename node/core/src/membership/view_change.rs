//! The view change planner: computes the next view from the reports of the members that stay.
//!
//! There are three kinds of view change. *After a loss* a member is gone in the middle of a step: the reports say how far each member is
//! and what it holds, and from that follows whether the step is rolled forward or repeated. *Between two steps* no member is missing:
//! joiners enter, leavers go, and the record lists which chunks will move. *After a stop* no member has anything in memory any more, and
//! those that have returned report their checkpoints ([`restart`]).
//!
//! # How it works
//! 1. The base is the newest step that every remaining member has completed. (With local parameters: the newest that any of them has
//!    completed; the others skip what they lack.)
//! 2. The step after it is rolled forward if the members together hold every new chunk and also the new state of every chunk whose old
//!    state any of them holds. Otherwise training resumes at the base.
//! 3. The members with a chunk's state at that point hold the chunk. If the placement puts it elsewhere, it is listed as a move; chunks
//!    with the fewest holders move first. The state of a chunk without holders restarts, at members that have its values.
//! 4. The samples that were assigned to members that left are returned to the epoch.
//!
//! # Invariants
//! - The plan is a function of its inputs alone, and every member can carry it out from the record.

use std::collections::BTreeMap;

use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::message::{MemberReport, MergeOffer};
use peergrad_protocol::placement::Placement;
use peergrad_protocol::view::{
    Ancestor, BatchParts, Donor, Member, Merge, Move, Moves, Resume, RollForward, View, ViewChange,
    fork_point,
};
use peergrad_protocol::{PeerId, Rank, StepNumber};

use crate::program::loader::Loaded;
use crate::state::assignment::BatchAssignment;
use crate::state::shard_map::ShardMap;

pub(crate) use restart::Restart;

pub(crate) mod driver;
mod restart;
mod tables;

/// Plans a view change: what is known before members report.
pub(crate) struct ViewChangePlanner<'a> {
    pub(crate) shard_map: &'a ShardMap,
    pub(crate) sample_count: u64,
    pub(crate) batch_size: u64,
    pub(crate) epochs: u64,
    /// Whether members have local parameters. Then no step is undone, and a member that is behind skips the steps that others have
    /// completed.
    pub(crate) has_local_parameters: bool,
    /// Whether lost members may go on as another branch.
    pub(crate) allows_forks: bool,
}

/// The members that join, leave or change between two steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Churn {
    /// Sorted by peer.
    pub(crate) joiners: Vec<Member>,
    /// By rank. Others store all that they store.
    pub(crate) leavers: Vec<Rank>,
    /// By rank. They first hand over what they own, and leave later.
    pub(crate) retirees: Vec<Rank>,
    /// By rank: the members whose capacity changes, with the new one.
    pub(crate) capacities: Vec<(Rank, u8)>,
}

impl<'a> ViewChangePlanner<'a> {
    pub(crate) fn new(shard_map: &'a ShardMap, loaded: &Loaded) -> Self {
        let training = &loaded.config;
        Self {
            shard_map,
            sample_count: u64::from(loaded.task.sample_count()),
            batch_size: training.step_samples(),
            epochs: training.epochs,
            has_local_parameters: loaded.program.has_local_parameters(),
            allows_forks: training.policy.allows_forks(),
        }
    }
}

impl ViewChangePlanner<'_> {
    fn view(&self) -> &View {
        &self.shard_map.view
    }

    /// Whether a view can be one of this run, judging by its samples and chunks.
    pub(crate) fn fits(&self, view: &View) -> bool {
        view.run == self.view().run && view.fits(self.sample_count, self.shard_map.sharding.chunks.count())
    }

    /// The change to the view that begins with `step`, which every member reaches in the present view. `assignment` is the batch assignment
    /// of the earlier step `from`. `None` if the run is over by then.
    pub(crate) fn between_steps(
        &self,
        step: StepNumber,
        from: StepNumber,
        assignment: &BatchAssignment,
        churn: &Churn,
    ) -> Option<ViewChange> {
        assert!(from < step, "nobody has taken the step");
        let roster = Roster::new(self.view(), churn);
        let mut before = assignment.clone();
        for number in from.0 + 1..step.0 {
            before = self.assignment_after(&before, StepNumber(number));
        }
        if self.assignment_after(&before, step).epoch >= self.epochs {
            return None;
        }
        // Chunks that move in that very step have not moved yet.
        let moved = self.shard_map.moved(StepNumber(step.0.saturating_sub(1)));
        let now = self.shard_map.target.after(&self.view().moves, moved);
        let keepers = |chunk: usize| roster.to_new_ranks(now.replica_holders(chunk).iter().copied());
        let turns = if churn.retirees.is_empty() { TURNS } else { TURNS_OF_RETIREES };
        let newcomers = roster.newcomers();
        let moves = self.moves(&roster.members, &newcomers, keepers, turns);
        let resume = Resume { newcomers, ..Resume::at(step) };
        let ancestors = self.ancestor(before.after.taken(self.sample_count));
        Some(ViewChange { ancestors, ..roster.change(self.shard_map, churn, resume, before.after, moves) })
    }

    /// As [`ViewChangePlanner::between_steps`], for a view that merges the snapshot of another branch.
    pub(crate) fn merging(
        &self,
        step: StepNumber,
        from: StepNumber,
        assignment: &BatchAssignment,
        merge_offer: &MergeOffer,
    ) -> Option<ViewChange> {
        let mut change = self.between_steps(step, from, assignment, &Churn::default())?;
        let trained = change.cursor.taken(self.sample_count);
        let history = merge_offer.history();
        let common = fork_point(&self.view().ancestors_after(&change), &history).unwrap_or(0);
        let (ours, theirs) = (trained.saturating_sub(common), merge_offer.trained.saturating_sub(common));
        let MergeOffer { view, steps, ref cursor, .. } = *merge_offer;
        let merge = Merge { view, steps, ours, theirs, cursor: cursor.clone(), history };
        change.resume.merge = Some(Box::new(merge));
        self.can_merge(merge_offer).then_some(change)
    }

    /// Whether another branch's offer can be of this run, and is not empty.
    pub(crate) fn can_merge(&self, merge_offer: &MergeOffer) -> bool {
        let DataCursor { epoch, position, .. } = merge_offer.cursor;
        let is_counted =
            merge_offer.trained > 0 && merge_offer.trained == merge_offer.cursor.taken(self.sample_count);
        epoch < self.epochs && position <= self.sample_count && is_counted
    }

    /// The present view as an ancestor of the next one; empty where branches cannot fork.
    fn ancestor(&self, trained: u64) -> Vec<Ancestor> {
        let root = Ancestor { view: self.shard_map.digest, trained };
        if self.allows_forks { vec![root] } else { vec![] }
    }

    /// Whether no state is lost if `leavers` go before `step`, because others hold all of their chunks.
    pub(crate) fn can_leave(&self, leavers: &[Rank], step: StepNumber) -> bool {
        if !self.shard_map.sharding.has_state {
            return true;
        }
        let moved = self.shard_map.moved(StepNumber(step.0.saturating_sub(1)));
        let now = self.shard_map.target.after(&self.view().moves, moved);
        (0..now.chunk_count())
            .all(|chunk| now.replica_holders(chunk).iter().any(|rank| !leavers.contains(rank)))
    }

    /// The change to the view of the members in `kept` (sorted ranks), where `reports` say how far each of them is. `assignment_of` returns
    /// the assignment of a step, if the proposer knows it. `None` if none of them has parameters.
    pub(crate) fn after_loss<'d>(
        &self,
        kept: &[Rank],
        reports: &BTreeMap<Rank, MemberReport>,
        assignment_of: impl Fn(StepNumber) -> Option<&'d BatchAssignment>,
    ) -> Option<ViewChange> {
        let is_holder = |rank: &&Rank| reports.get(rank).is_some_and(|report| report.complete.is_some());
        let holders: Vec<(Rank, &MemberReport)> =
            kept.iter().filter(is_holder).map(|rank| (*rank, &reports[rank])).collect();
        let completed = holders.iter().filter_map(|(_, report)| report.complete);
        let base = if self.has_local_parameters {
            self.newest(&holders, &assignment_of)?
        } else {
            completed.min()?
        };
        let gone = (0..self.view().members.len()).map(Rank::from_index).filter(|rank| !kept.contains(rank));
        let churn = Churn { leavers: gone.collect(), ..Churn::default() };
        let roster = Roster::new(self.view(), &churn);
        let first = self.view().first_step();
        // A step that merges a branch is never rolled forward: if not all members have merged it, the merge can be given up with the step.
        let forward = if self.view().merge().is_some() && base == first {
            None
        } else if self.has_local_parameters {
            self.final_forward(base, &holders, &roster)
        } else {
            self.forward(base, &holders, &roster)
        };
        let step = if forward.is_some() { base.next() } else { base };
        let merge = self.view().merge().filter(|_| step == first);
        let assignment = self.assignment_at(step, &assignment_of)?;
        let is_new = |rank: &&Rank| match reports.get(rank).and_then(|report| report.complete) {
            None => true,
            // The member has its first parameters from the step that is undone.
            Some(complete) => complete > step && reports[rank].is_entering,
        };
        let newcomers = roster.to_new_ranks(kept.iter().filter(is_new).copied());
        let (deal, cursor) = if merge.is_some() {
            // The merging step has no batch, and its cursor does not include the other branch's samples yet.
            let (epoch, parts) = (self.view().cursor.epoch, vec![vec![]; roster.members.len()]);
            (Some(BatchParts { epoch, parts }), self.view().cursor.clone())
        } else if assignment.epoch >= self.epochs {
            // The assignment is of an epoch after the last, and has no samples: the cursor stays at the end of the last epoch.
            let end =
                DataCursor { epoch: self.epochs - 1, position: self.sample_count, ..DataCursor::default() };
            (None, end)
        } else {
            let (deal, cursor) = assignment.among(&roster.members, &newcomers);
            (Some(deal), cursor)
        };
        let trained = match merge {
            Some(_) => cursor.taken(self.sample_count),
            None => assignment.after.taken(self.sample_count).saturating_sub(assignment.len()),
        };
        // The lost members may train the rest of the epoch as well, so each part of the swarm continues at a different position.
        let first_kept = kept.first().map_or(0, |rank| u64::from(rank.0));
        let parts = self.view().members.len() as u64;
        let cursor = if self.allows_forks {
            cursor.for_partition(first_kept, parts, self.sample_count)
        } else {
            cursor
        };
        let now = self.shard_map.target.after(&self.view().moves, self.shard_map.moved(base));
        let keepers = |chunk: usize| self.replica_holders_after(chunk, step, &holders, &now, &roster);
        let moves = self.moves(&roster.members, &newcomers, keepers, TURNS);
        // The merge is still possible if the earlier holders of each chunk have both branches' state of it.
        let has_merge_snapshot =
            |rank: &Rank| reports.get(rank).is_some_and(|report| report.has_merge_snapshot);
        let is_kept = |chunk: usize| now.replica_holders(chunk).iter().any(|rank| kept.contains(rank));
        let is_whole = moves.restarted.is_empty()
            && kept.iter().all(has_merge_snapshot)
            && (0..now.chunk_count()).all(is_kept);
        // If a member was still in the step before, that step must be completed first.
        let merge = merge.filter(|_| is_whole && base == first).cloned().map(Box::new);
        let resume = Resume { newcomers, batch: deal, forward, merge, ..Resume::at(step) };
        let ancestors = self.ancestor(trained);
        Some(ViewChange { ancestors, ..roster.change(self.shard_map, &churn, resume, cursor, moves) })
    }

    fn assignment_after(&self, assignment: &BatchAssignment, step: StepNumber) -> BatchAssignment {
        BatchAssignment::following(assignment, self.batch_size, self.sample_count, self.view(), step)
    }

    /// How the step after `base` is rolled forward; `None` if it cannot be.
    fn forward(
        &self,
        base: StepNumber,
        holders: &[(Rank, &MemberReport)],
        roster: &Roster,
    ) -> Option<RollForward> {
        let mut donors: Vec<Donor> = Vec::new();
        for chunk in 0..self.shard_map.sharding.chunks.count() {
            let has_values = |report: &MemberReport| {
                let next = report.next.as_ref().filter(|_| report.complete == Some(base));
                report.complete > Some(base) || next.is_some_and(|next| next.values.contains(chunk))
            };
            let have: Vec<Rank> =
                holders.iter().filter(|(_, report)| has_values(report)).map(|(rank, _)| *rank).collect();
            if have.is_empty() || !self.has_new_state(chunk, base, holders) {
                return None;
            }
            if have.len() < holders.len() {
                // Two members that own nothing may not reach each other.
                let owning: Vec<Rank> =
                    have.iter().copied().filter(|rank| self.view().member(*rank).capacity > 0).collect();
                let have = if owning.is_empty() { have } else { owning };
                // Runs of chunks are divided among all members that have them.
                let rank = roster.new_rank(have[chunk / DONOR_RUN % have.len()]).expect("a holder stays");
                let first = chunk as u32;
                match donors.last_mut() {
                    Some(last) if last.end == first && last.rank == rank => last.end += 1,
                    _ => donors.push(Donor { first, end: first + 1, rank }),
                }
            }
        }
        let stats = holders.iter().find_map(|(_, report)| report.stats_of(base));
        Some(RollForward { stats: stats?, donors })
    }

    /// With local parameters: the newest step that any member has completed. If that was the last step of the run, and not all members have
    /// completed it, the step before it: those that have completed it hold the mean of all, which the others have yet to get.
    fn newest<'d>(
        &self,
        holders: &[(Rank, &MemberReport)],
        assignment_of: &impl Fn(StepNumber) -> Option<&'d BatchAssignment>,
    ) -> Option<StepNumber> {
        let newest = holders.iter().filter_map(|(_, report)| report.complete).max()?;
        let is_at_all = holders.iter().all(|(_, report)| report.complete == Some(newest));
        let is_over = self.assignment_at(newest, assignment_of)?.epoch >= self.epochs;
        Some(if is_over && !is_at_all { StepNumber(newest.0 - 1) } else { newest })
    }

    /// How the run's last step is completed from the members that have completed it; `None` if there are none.
    fn final_forward(
        &self,
        base: StepNumber,
        holders: &[(Rank, &MemberReport)],
        roster: &Roster,
    ) -> Option<RollForward> {
        let is_beyond = |(_, report): &&(Rank, &MemberReport)| report.complete > Some(base);
        if holders.iter().any(|holder| is_beyond(&holder)) {
            self.forward(base, holders, roster)
        } else {
            None
        }
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

    /// Whether a chunk's state after the step that follows `base` is held, or its state is lost in any case.
    fn has_new_state(&self, chunk: usize, base: StepNumber, holders: &[(Rank, &MemberReport)]) -> bool {
        let is_held = |steps| holders.iter().any(|(_, report)| report.holds_state(chunk, steps));
        !self.shard_map.sharding.has_state || is_held(base.next()) || !is_held(base)
    }

    /// The holders of a chunk's state after `steps`, by their new ranks: its earlier holders first, in that order.
    fn replica_holders_after(
        &self,
        chunk: usize,
        steps: StepNumber,
        holders: &[(Rank, &MemberReport)],
        now: &Placement,
        roster: &Roster,
    ) -> Vec<Rank> {
        let before = now.replica_holders(chunk);
        if !self.shard_map.sharding.has_state {
            return roster.to_new_ranks(before.iter().copied());
        }
        let holds = |rank: &Rank| {
            holders.iter().any(|(holder, report)| holder == rank && report.holds_state(chunk, steps))
        };
        let others = holders.iter().map(|(rank, _)| *rank).filter(|rank| !before.contains(rank));
        let mut keepers = roster.to_new_ranks(before.iter().copied().chain(others).filter(holds));
        keepers.truncate(self.shard_map.sharding.replicas.holders_max());
        keepers
    }

    /// The moves from `keepers`, the holders of each chunk's state, to the placement among `members`; all by new ranks.
    fn moves(
        &self,
        members: &[Member],
        newcomers: &[Rank],
        keepers: impl Fn(usize) -> Vec<Rank>,
        turns: usize,
    ) -> Moves {
        let sharding = self.shard_map.sharding;
        let target = sharding.place(&self.view().run, members);
        let has_parameters = |rank: &Rank| !newcomers.contains(rank);
        let mut moves = Moves::default();
        for chunk in 0..sharding.chunks.count() {
            let mut from = keepers(chunk);
            // Without optimizer state, holders only have the values, and a newcomer has none at first.
            from.retain(has_parameters);
            if from.is_empty() {
                if sharding.has_state {
                    moves.restarted.push(chunk as u32);
                }
                from.extend(target.replica_holders(chunk).iter().copied().filter(has_parameters));
            }
            if from.is_empty() {
                let others = (0..members.len()).map(Rank::from_index).filter(has_parameters);
                from.extend(others.min_by_key(|rank| members[rank.index()].capacity == 0));
            }
            // A member that offers to own nothing owns only chunks that no other member holds.
            from.sort_by_key(|rank| members[rank.index()].capacity == 0);
            if from != target.replica_holders(chunk) {
                moves.list.push(Move { chunk: chunk as u32, from });
            }
        }
        // Chunks with the fewest holders move first.
        moves.list.sort_by_key(|moved| (moved.from.len(), moved.chunk));
        let turns = if sharding.has_state { turns } else { 1 };
        moves.rate = moves.list.len().div_ceil(turns) as u32;
        moves
    }
}

/// The members of the next view, and the mapping between old and new ranks.
struct Roster {
    members: Vec<Member>,
    /// The old rank of each new one; `None` for a peer that was not in the view before.
    old_ranks: Vec<Option<Rank>>,
    /// The new rank of each old one; `None` for a member that is gone.
    new_ranks: Vec<Option<Rank>>,
}

impl Roster {
    fn new(view: &View, churn: &Churn) -> Self {
        let old = (0..view.members.len()).map(Rank::from_index).filter(|rank| !churn.leavers.contains(rank));
        let staying = old.map(|rank| {
            let mut member = view.member(rank).clone();
            if let Some((_, capacity)) = churn.capacities.iter().find(|(of, _)| *of == rank) {
                member.capacity = *capacity;
            }
            if churn.retirees.contains(&rank) {
                member.capacity = 0;
            }
            (member, Some(rank))
        });
        let mut all: Vec<(Member, Option<Rank>)> =
            staying.chain(churn.joiners.iter().map(|member| (member.clone(), None))).collect();
        all.sort_by_key(|(member, _)| member.peer);
        if all.iter().all(|(member, _)| member.capacity == 0) {
            // No member that stays has offered to own anything, and at least one must. After a stop all members join as new ones.
            let owner = all.iter().position(|(_, old)| old.is_some()).unwrap_or_default();
            all.iter_mut().skip(owner).take(1).for_each(|(member, _)| member.capacity = 1);
        }
        let mut new_ranks = vec![None; view.members.len()];
        for (index, (_, old)) in all.iter().enumerate() {
            if let Some(old) = old {
                new_ranks[old.index()] = Some(Rank::from_index(index));
            }
        }
        let (members, old_ranks) = all.into_iter().unzip();
        Self { members, old_ranks, new_ranks }
    }

    /// The new rank of a peer, whether it stays or rejoins.
    fn rank_of(&self, peer: &PeerId) -> Option<Rank> {
        self.members.binary_search_by(|member| member.peer.cmp(peer)).ok().map(Rank::from_index)
    }

    fn new_rank(&self, old: Rank) -> Option<Rank> {
        self.new_ranks[old.index()]
    }

    /// The new ranks of these old ones, without members that are gone.
    fn to_new_ranks(&self, old: impl Iterator<Item = Rank>) -> Vec<Rank> {
        old.filter_map(|rank| self.new_rank(rank)).collect()
    }

    /// The new members, as they are in the next view.
    fn added(&self) -> Vec<Member> {
        let new = self.members.iter().zip(&self.old_ranks).filter(|(_, old)| old.is_none());
        new.map(|(member, _)| member.clone()).collect()
    }

    /// The ranks of the new members.
    fn newcomers(&self) -> Vec<Rank> {
        let is_new = |(_, old): &(usize, &Option<Rank>)| old.is_none();
        self.old_ranks.iter().enumerate().filter(is_new).map(|(index, _)| Rank::from_index(index)).collect()
    }

    fn change(
        &self,
        shard_map: &ShardMap,
        churn: &Churn,
        resume: Resume,
        cursor: DataCursor,
        moves: Moves,
    ) -> ViewChange {
        let capacity_of = |(member, old): (&Member, &Option<Rank>)| {
            let rank = (*old)?;
            (shard_map.view.member(rank).capacity != member.capacity).then_some((rank, member.capacity))
        };
        let capacities = self.members.iter().zip(&self.old_ranks).filter_map(capacity_of).collect();
        ViewChange {
            parent: shard_map.digest,
            removed: churn.leavers.clone(),
            added: self.added(),
            capacities,
            resume,
            cursor,
            moves,
            expelled: vec![],
            ancestors: vec![],
        }
    }
}

/// The most steps that a proposer may be behind the member that is furthest, and still compute its assignment.
const LAG_MAX: u64 = 1 << 16;
/// The number of neighboring chunks that one donor sends.
const DONOR_RUN: usize = 64;
/// The number of turns over which chunks move after a change: each turn costs a small part of a step's traffic.
const TURNS: usize = 64;
/// As [`TURNS`], if a member waits for it in order to leave.
const TURNS_OF_RETIREES: usize = 8;

#[cfg(test)]
mod tests;
