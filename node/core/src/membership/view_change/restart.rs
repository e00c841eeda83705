//! The restart: from which checkpoints a run goes on whose members have all stopped.
//!
//! # How it works
//! 1. What was saved in an earlier branch, beyond the beginning of one after it, counts for nothing: it was given up before. Nor
//!    does what was saved in a lineage that is no more.
//! 2. Of the steps that are left, the newest is taken of which those who are back have the parameters and all optimizer state.
//!    If there is none, others are waited for, but not for ever. Then it is the newest that any of them has: state that nobody
//!    has saved starts from nothing, as after any loss. Without any checkpoint it is the beginning.
//! 3. Who has saved that step begins with it. The others are newcomers: they get parameters from its all-gather.
//! 4. Who has saved a chunk's state is its keeper; where the placement puts it elsewhere, it moves.
//!
//! The bookmark comes from the checkpoint, so the run goes on in the same epoch, and what was trained after it is trained again.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::message::{MemberReport, RejoinCandidate, SavedCheckpoint};
use peergrad_protocol::view::{Member, Moves, Resume, ViewChange};
use peergrad_protocol::{Rank, StepNumber};

use super::{Churn, Roster, TURNS, ViewChangePlanner};

/// A change that goes on from what was saved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Restart {
    pub(crate) change: ViewChange,
    /// Whether nothing that anybody may have saved is lost.
    pub(crate) is_whole: bool,
}

impl Restart {
    /// Whether to go on from it, or to wait for more members: `is_all` of them are back, or this long was waited for them.
    pub(crate) fn is_due(&self, is_all: bool, waited: Duration) -> bool {
        self.is_whole || is_all || waited >= PATIENCE_FOR_STATE
    }
}

/// A checkpoint of a peer that is back, by the rank that it had.
struct RankCheckpoint<'a> {
    rank: Rank,
    saved: &'a SavedCheckpoint,
}

impl RankCheckpoint<'_> {
    /// Which state of the run it is of. Where members drift, each has one of its own after the same step.
    fn position(&self, has_local_parameters: bool) -> (StepNumber, Option<[u8; 32]>) {
        (self.saved.steps, (!has_local_parameters).then_some(self.saved.digest.0))
    }
}

impl ViewChangePlanner<'_> {
    /// The change to the view whose members have nothing in memory any more: those who are back go on from the newest step of
    /// which they have saved everything; if there is none, from the newest that any of them has saved; or from the beginning.
    ///
    /// `kept` (sorted ranks) never stopped, and have no parameters yet. `None` if nobody is back who could train.
    pub(crate) fn after_stop(
        &self,
        kept: &[Rank],
        reports: &BTreeMap<Rank, MemberReport>,
    ) -> Option<Restart> {
        let back = |(rank, report): (&Rank, &MemberReport)| Some((*rank, report.rejoin.as_deref()?.clone()));
        let back: Vec<(Rank, RejoinCandidate)> = reports.iter().filter_map(back).collect();
        if back.is_empty() {
            return None;
        }
        let mut joiners: Vec<Member> = back.iter().map(|(_, again)| again.member.clone()).collect();
        joiners.sort_by_key(|member| member.peer);
        let gone = (0..self.view().members.len()).map(Rank::from_index).filter(|rank| !kept.contains(rank));
        let churn = Churn { leavers: gone.collect(), joiners, ..Churn::default() };
        let roster = Roster::new(self.view(), &churn);
        let checkpoints: Vec<RankCheckpoint<'_>> =
            back.iter().flat_map(|(rank, again)| self.checkpoints(*rank, again)).collect();
        let mut positions: Vec<_> =
            checkpoints.iter().map(|checkpoint| checkpoint.position(self.has_local_parameters)).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        positions.dedup();
        let holders = |position| {
            checkpoints
                .iter()
                .filter(move |checkpoint| checkpoint.position(self.has_local_parameters) == position)
        };
        let is_whole = |position: &_| {
            let is_saved =
                |chunk| holders(*position).any(|checkpoint| checkpoint.saved.states.contains(chunk));
            !self.shard_map.sharding.has_state || (0..self.shard_map.sharding.chunks.count()).all(is_saved)
        };
        let chosen = positions.iter().find(|position| is_whole(position)).or(positions.first()).copied();
        let all: Vec<Rank> = (0..roster.members.len()).map(Rank::from_index).collect();
        let Some(position) = chosen else {
            // Everyone who comes can draw the initial parameters, and nobody has any state.
            let newcomers = kept.iter().filter_map(|rank| roster.new_rank(*rank)).collect();
            let resume = Resume { newcomers, is_restored: true, ..Resume::at(StepNumber(0)) };
            let change =
                roster.change(self.shard_map, &churn, resume, DataCursor::default(), Moves::default());
            let change = ViewChange { ancestors: self.ancestor(0), ..change };
            // Whoever is not back may have saved something.
            return Some(Restart { change, is_whole: false });
        };
        let new_rank = |old: Rank| roster.rank_of(&self.view().member(old).peer);
        let has_saved: Vec<Rank> =
            holders(position).filter_map(|checkpoint| new_rank(checkpoint.rank)).collect();
        let newcomers = all.iter().copied().filter(|rank| !has_saved.contains(rank)).collect::<Vec<_>>();
        let before = |chunk: usize, rank: &Rank| {
            let keepers = self.shard_map.target.replica_holders(chunk);
            keepers.iter().position(|keeper| keeper == rank).unwrap_or(keepers.len())
        };
        let keepers = |chunk: usize| {
            if !self.shard_map.sharding.has_state {
                return vec![];
            }
            let mut keepers: Vec<Rank> = holders(position)
                .filter(|checkpoint| checkpoint.saved.states.contains(chunk))
                .map(|checkpoint| checkpoint.rank)
                .collect();
            keepers.sort_by_key(|rank| (before(chunk, rank), *rank));
            keepers.truncate(self.shard_map.sharding.replicas.holders_max());
            keepers.into_iter().filter_map(new_rank).collect()
        };
        let moves = self.moves(&roster.members, &newcomers, keepers, TURNS);
        let saved = holders(position).next().expect("somebody has saved what was chosen").saved;
        let resume = Resume { newcomers, is_restored: true, ..Resume::at(saved.steps) };
        let is_whole = moves.restarted.is_empty();
        let ancestors = self.ancestor(saved.cursor.taken(self.sample_count));
        let change = roster.change(self.shard_map, &churn, resume, saved.cursor.clone(), moves);
        Some(Restart { change: ViewChange { ancestors, ..change }, is_whole })
    }

    /// What a peer that is back has saved of the present branch, or of those that have led to it.
    fn checkpoints<'a>(
        &'a self,
        rank: Rank,
        again: &'a RejoinCandidate,
    ) -> impl Iterator<Item = RankCheckpoint<'a>> {
        let view = self.view();
        let is_behind =
            move |saved: &&SavedCheckpoint| view.history.descends_from_state(saved.branch, saved.steps);
        again.saved.iter().filter(is_behind).map(move |saved| RankCheckpoint { rank, saved })
    }
}

/// How long those who are back wait for others who may have saved what nobody else has.
const PATIENCE_FOR_STATE: Duration = Duration::from_secs(60);
