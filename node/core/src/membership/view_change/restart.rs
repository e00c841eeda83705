//! The restart: from which checkpoints a run resumes after all its members have stopped.
//!
//! # How it works
//! 1. Checkpoints of an earlier branch from beyond the start of the next branch do not count: those steps were given up before. Nor do
//!    checkpoints of an abandoned branch.
//! 2. The run resumes from the newest remaining step whose parameters and whole optimizer state the returned members have saved. If
//!    there is none, they wait for others, but not forever. Then they take the newest step that any of them has saved, and state that none
//!    has saved restarts from zero, as after any loss. Without any checkpoint the run restarts at step 0. A checkpoint of tables counts only
//!    if the members have all of it.
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

use super::roster::Roster;
use super::{Churn, TURNS, ViewChangePlanner};

/// A view change that resumes from checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Restart {
    /// The change to the view that resumes.
    pub(crate) change: ViewChange,
    /// Whether no state is lost that any member may have saved.
    pub(crate) is_whole: bool,
}

impl Restart {
    /// Whether to restart now, although so many members are `missing`, which were waited for this long.
    pub(crate) fn is_due(&self, missing: usize, waited: Duration) -> bool {
        self.is_whole || missing == 0 || waited >= PATIENCE_FOR_STATE
    }
}

/// A checkpoint of a returned peer, with the peer's former rank.
struct RankCheckpoint<'a> {
    /// The peer's rank in the view that had stopped.
    rank: Rank,
    /// The description of the checkpoint, as the peer has reported it.
    saved: &'a SavedCheckpoint,
}

/// The state that a checkpoint is of: its step and digest. With local parameters, members have different states after the same step, so the
/// digest is left out.
type Position = (StepNumber, Option<[u8; 32]>);

/// The returned members and their checkpoints.
struct Returned<'p> {
    /// The view before, and the run's configuration.
    planner: &'p ViewChangePlanner<'p>,
    /// The returned members' checkpoints of the present branch, or of those that have led to it.
    checkpoints: Vec<RankCheckpoint<'p>>,
    /// The change of members: all that have stopped leave, and those that have returned join.
    churn: Churn,
    /// The members of the next view.
    roster: Roster,
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
        let returned = Returned::new(self, kept, &back);
        Some(match returned.position() {
            Some(position) => returned.restart_at(position),
            None => returned.restart_at_zero(kept),
        })
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

impl<'p> Returned<'p> {
    /// The members in `back`, by their former ranks, have returned; those in `kept` have never stopped.
    fn new(planner: &'p ViewChangePlanner<'p>, kept: &[Rank], back: &'p [(Rank, RejoinCandidate)]) -> Self {
        let view = planner.view();
        let mut joiners: Vec<Member> = back.iter().map(|(_, again)| again.member.clone()).collect();
        joiners.sort_by_key(|member| member.peer);
        let gone = (0..view.members.len()).map(Rank::from_index).filter(|rank| !kept.contains(rank));
        let churn = Churn { leavers: gone.collect(), joiners, ..Churn::default() };
        let roster = Roster::new(view, &churn);
        let checkpoints = back.iter().flat_map(|(rank, again)| planner.checkpoints(*rank, again)).collect();
        Self { planner, checkpoints, churn, roster }
    }

    fn position_of(&self, saved: &SavedCheckpoint) -> Position {
        (saved.steps, (!self.planner.has_local_parameters).then_some(saved.digest.0))
    }

    /// The checkpoints of one position.
    fn at(&self, position: Position) -> impl Iterator<Item = &RankCheckpoint<'p>> {
        self.checkpoints.iter().filter(move |checkpoint| self.position_of(checkpoint.saved) == position)
    }

    /// Whether the state of all chunks is saved at this position.
    fn is_whole(&self, position: Position) -> bool {
        let sharding = self.planner.shard_map.sharding;
        let is_saved = |chunk| self.at(position).any(|checkpoint| checkpoint.saved.states.contains(chunk));
        !sharding.has_state || (0..sharding.chunks.count()).all(is_saved)
    }

    /// The position from which the run resumes; `None` if no member has a checkpoint, or if they have only a part of the tables.
    fn position(&self) -> Option<Position> {
        let mut positions: Vec<Position> =
            self.checkpoints.iter().map(|checkpoint| self.position_of(checkpoint.saved)).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        positions.dedup();
        // Rows of tables that nobody has saved cannot start again from zero while others have what was added to them together.
        let newest = positions.first().filter(|_| !self.planner.shard_map.sharding.has_tables);
        positions.iter().find(|position| self.is_whole(**position)).or(newest).copied()
    }

    /// The restart from the beginning. Every member can compute the initial parameters, and none has any state.
    fn restart_at_zero(&self, kept: &[Rank]) -> Restart {
        let newcomers = kept.iter().filter_map(|rank| self.roster.new_rank(*rank)).collect();
        let resume = Resume { newcomers, is_restored: true, ..Resume::at(StepNumber(0)) };
        let change = self.roster.change(
            self.planner.shard_map,
            &self.churn,
            resume,
            DataCursor::default(),
            Moves::default(),
        );
        let change = ViewChange { ancestors: self.planner.ancestor(0), ..change };
        // An absent member may have saved something.
        Restart { change, is_whole: false }
    }

    /// The restart from the checkpoints of this position.
    fn restart_at(&self, position: Position) -> Restart {
        let Self { planner, roster, .. } = self;
        let has_saved: Vec<Rank> =
            self.at(position).filter_map(|checkpoint| self.new_rank(checkpoint.rank)).collect();
        let all = (0..roster.members.len()).map(Rank::from_index);
        let newcomers = all.filter(|rank| !has_saved.contains(rank)).collect::<Vec<_>>();
        let state_holders = |chunk: usize| self.state_holders(position, chunk);
        let turns = if planner.shard_map.sharding.has_tables { 1 } else { TURNS };
        let moves = planner.moves(&roster.members, &newcomers, state_holders, turns);
        let saved = self.at(position).next().expect("a member has saved what was chosen").saved;
        let resume = Resume { newcomers, is_restored: true, ..Resume::at(saved.steps) };
        let is_whole = moves.restarted.is_empty();
        let ancestors = planner.ancestor(saved.cursor.taken(planner.sample_count));
        let cursor = planner.ending_after(saved.cursor.clone());
        let change = roster.change(planner.shard_map, &self.churn, resume, cursor, moves);
        Restart { change: ViewChange { ancestors, ..change }, is_whole }
    }

    /// The new rank of the peer that was at rank `old`.
    fn new_rank(&self, old: Rank) -> Option<Rank> {
        self.roster.rank_of(&self.planner.view().member(old).peer)
    }

    /// The members that have saved a chunk's state at this position, by their new ranks: its former holders first, in that order.
    fn state_holders(&self, position: Position, chunk: usize) -> Vec<Rank> {
        let shard_map = self.planner.shard_map;
        if !shard_map.sharding.has_state {
            return vec![];
        }
        let former = shard_map.target.replica_holders(chunk);
        let place = |rank: &Rank| former.iter().position(|holder| holder == rank).unwrap_or(former.len());
        let mut holders: Vec<Rank> = self
            .at(position)
            .filter(|checkpoint| checkpoint.saved.states.contains(chunk))
            .map(|checkpoint| checkpoint.rank)
            .collect();
        holders.sort_by_key(|rank| (place(rank), *rank));
        holders.truncate(shard_map.sharding.replicas.holders_max());
        holders.into_iter().filter_map(|rank| self.new_rank(rank)).collect()
    }
}

/// How long the returned members wait for others that may have saved what they lack.
const PATIENCE_FOR_STATE: Duration = Duration::from_secs(60);
