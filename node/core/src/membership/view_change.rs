//! The view change planner: computes the next view from the reports of the members that stay.
//!
//! There are four kinds of view change. *After a loss* a member is gone in the middle of a step: the reports say how far each member is and
//! what it holds, and from that follows whether the step is rolled forward or repeated ([`loss`]). *Between two steps* no member is missing:
//! joiners enter, leavers go, and the record lists which chunks will move. *After a stop* no member has anything in memory any more, and
//! those that have returned report their checkpoints ([`restart`]). *With tables* there are no steps to agree on: the reports say which
//! chunks each member holds ([`tables`]).
//!
//! Each kind is planned in a file of its own: [`loss`], `between_steps` here, [`restart`], [`tables`].
//!
//! # Invariants
//! - The plan is a function of its inputs alone, and every member can carry it out from the record.

use peergrad_protocol::cursor::{DataCursor, Ending};
use peergrad_protocol::message::MergeOffer;
use peergrad_protocol::view::{Ancestor, Member, Merge, Move, Moves, Resume, View, ViewChange, fork_point};
use peergrad_protocol::{Rank, StepNumber};

use crate::membership::measurements::Measurement;
use crate::program::loader::Loaded;
use crate::state::assignment::BatchAssignment;
use crate::state::round_size::RoundSize;
use crate::state::shard_map::ShardMap;

pub(crate) use restart::Restart;
use roster::Roster;

pub(crate) mod driver;
mod loss;
mod restart;
mod roster;
mod tables;

/// Plans a view change: what is known before members report.
pub(crate) struct ViewChangePlanner<'a> {
    /// The present view, and the placement of chunks in it.
    pub(crate) shard_map: &'a ShardMap,
    /// The number of training samples, which is the length of an epoch.
    pub(crate) sample_count: u64,
    /// How many samples one step has, of all members together.
    pub(crate) round_size: RoundSize,
    /// The number of epochs after which the run ends.
    pub(crate) epochs: u64,
    /// Whether members have local parameters. Then no step is undone, and a member that is behind skips the steps that others have
    /// completed.
    pub(crate) has_local_parameters: bool,
    /// Whether lost members may continue as another branch.
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
    /// By rank: what each member has measured of itself. Empty if the next view keeps what this one has.
    pub(crate) measurements: Vec<Measurement>,
    /// Whether the run ends after the next step.
    pub(crate) ends_run: bool,
}

impl<'a> ViewChangePlanner<'a> {
    pub(crate) fn new(shard_map: &'a ShardMap, loaded: &Loaded) -> Self {
        let training = &loaded.config;
        Self {
            shard_map,
            sample_count: u64::from(loaded.task.sample_count()),
            round_size: training.round_size(),
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

    /// Whether the members of the next view would differ from those of the present one: in who they are, in what they offer to own, or in
    /// their measurements.
    pub(crate) fn changes_anything(&self, churn: &Churn) -> bool {
        churn.ends_run
            || !churn.measurements.is_empty()
            || Roster::new(self.view(), churn).members != self.view().members
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
        assert!(from < step, "no member has taken the step");
        let roster = Roster::new(self.view(), churn);
        let mut before = assignment.clone();
        for number in from.0 + 1..step.0 {
            before = self.assignment_after(&before, StepNumber(number));
        }
        if self.assignment_after(&before, step).is_over(self.epochs) {
            return None;
        }
        // Chunks that move in that very step have not moved yet.
        let moved = self.shard_map.moved(StepNumber(step.0.saturating_sub(1)));
        let now = self.shard_map.target.after(&self.view().moves, moved);
        let holders = |chunk: usize| roster.to_new_ranks(now.replica_holders(chunk).iter().copied());
        let offers_nothing = |rank: &Rank| roster.members[rank.index()].capacity == 0;
        let must_move = |holders: Vec<Rank>| !holders.is_empty() && holders.iter().all(offers_nothing);
        // Members that retired in an earlier view may not have handed over everything yet.
        let is_urgent =
            !churn.retirees.is_empty() || (0..now.chunk_count()).any(|chunk| must_move(holders(chunk)));
        let turns = if is_urgent { TURNS_OF_RETIREES } else { TURNS };
        let newcomers = roster.newcomers();
        let moves = self.moves(&roster.members, &newcomers, holders, turns);
        let resume = Resume { newcomers, ..Resume::at(step) };
        let ancestors = self.ancestor(before.after.taken(self.sample_count));
        let ending = if churn.ends_run { Ending::NextBatch } else { before.after.ending };
        let cursor = DataCursor { ending, ..before.after };
        Some(ViewChange { ancestors, ..roster.change(self.shard_map, churn, resume, cursor, moves) })
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

    /// This cursor of the next view, with the end that members have agreed on. It may be one from before they did.
    fn ending_after(&self, cursor: DataCursor) -> DataCursor {
        let agreed = self.view().cursor.ending.min(Ending::NextBatch);
        DataCursor { ending: cursor.ending.max(agreed), ..cursor }
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

    fn assignment_after(&self, assignment: &BatchAssignment, step: StepNumber) -> BatchAssignment {
        BatchAssignment::following(assignment, self.round_size, self.sample_count, self.view(), step)
    }

    /// The moves from `holders`, the holders of each chunk's state, to the placement among `members`; all by new ranks.
    fn moves(
        &self,
        members: &[Member],
        newcomers: &[Rank],
        holders: impl Fn(usize) -> Vec<Rank>,
        turns: usize,
    ) -> Moves {
        let sharding = self.shard_map.sharding;
        let target = sharding.place(&self.view().run, members);
        let has_parameters = |rank: &Rank| !newcomers.contains(rank);
        let mut moves = Moves::default();
        for chunk in 0..sharding.chunks.count() {
            let mut from = holders(chunk);
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

/// The number of turns over which chunks move after a change: each turn costs a small part of a step's traffic.
const TURNS: usize = 64;
/// As [`TURNS`], if a member waits for it in order to leave.
const TURNS_OF_RETIREES: usize = 8;

#[cfg(test)]
mod tests;
