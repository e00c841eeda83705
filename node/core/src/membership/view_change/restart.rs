//! The restart: from which checkpoints a run resumes after all its members have stopped.
//!
//! # How it works
//! 1. Checkpoints of an earlier branch from beyond the start of the next branch do not count: those steps were given up before. Nor do
//!    checkpoints of an abandoned branch.
//! 2. The run resumes from the newest remaining step whose parameters and whole optimizer state the returned members have saved. If
//!    there is none, they wait for others, but not forever. Then they take the newest step that any of them has saved, and state that none
//!    has saved restarts from zero, as after any loss. Without any checkpoint the run restarts at step 0.
//! 3. The members with a checkpoint of that step start from it. The others are newcomers: they get parameters from its all-gather.
//! 4. The members that have saved a chunk's state hold it. If the placement puts it elsewhere, it moves.
//!
//! The data cursor comes from the checkpoint: the run resumes in that epoch, and trains again what was trained after the checkpoint.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::message::{MemberReport, RejoinCandidate, SavedCheckpoint};
use peergrad_protocol::view::{Member, Moves, Resume, ViewChange};
use peergrad_protocol::{Rank, StepNumber};

use super::{Churn, Roster, TURNS, ViewChangePlanner};

/// A view change that resumes from checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Restart {
    pub(crate) change: ViewChange,
    /// Whether no state is lost that any member may have saved.
    pub(crate) is_whole: bool,
}

impl Restart {
    /// Whether to restart now, or to wait for more members: `is_all` of them are back, or they were waited for this long.
    pub(crate) fn is_due(&self, is_all: bool, waited: Duration) -> bool {
        self.is_whole || is_all || waited >= PATIENCE_FOR_STATE
    }
}

/// A checkpoint of a returned peer, with the peer's former rank.
struct RankCheckpoint<'a> {
    rank: Rank,
    saved: &'a SavedCheckpoint,
}

impl RankCheckpoint<'_> {
    /// The state that the checkpoint is of: its step and digest. With local parameters, members have different states after the same step,
    /// so the digest is left out.
    fn position(&self, has_local_parameters: bool) -> (StepNumber, Option<[u8; 32]>) {
        (self.saved.steps, (!has_local_parameters).then_some(self.saved.digest.0))
    }
}

impl ViewChangePlanner<'_> {
    /// The change to the next view when no member has anything in memory any more. The returned members resume from the newest step of
    /// which they have saved everything; if there is none, from the newest that any of them has saved; else from the beginning.
    ///
    /// The members in `kept` (sorted ranks) never stopped, and have no parameters yet. `None` if no member that could train has returned.
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
            // Every member can compute the initial parameters, and none has any state.
            let newcomers = kept.iter().filter_map(|rank| roster.new_rank(*rank)).collect();
            let resume = Resume { newcomers, is_restored: true, ..Resume::at(StepNumber(0)) };
            let change =
                roster.change(self.shard_map, &churn, resume, DataCursor::default(), Moves::default());
            let change = ViewChange { ancestors: self.ancestor(0), ..change };
            // An absent member may have saved something.
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

    /// The checkpoints of a returned peer that are of the present branch, or of those that have led to it.
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

/// How long the returned members wait for others that may have saved what they lack.
const PATIENCE_FOR_STATE: Duration = Duration::from_secs(60);
