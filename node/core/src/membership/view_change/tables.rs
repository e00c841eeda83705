//! The succession where there are tables: the program takes no steps, so all that is to be said is who has which chunk as it is now.
//!
//! # How it works
//! Members report the chunks that they are to keep and have, and those of this view that they have and are not to keep: those are from
//! before others took them over.
//! 1. Whoever is to keep a chunk and has it, has all of it that was acknowledged, since nothing is before all of them have it.
//! 2. If one of those who are to keep it says that it has not got it yet, nothing of it was acknowledged in this view: then whoever
//!    had it before has it as it is now, too.
//! 3. If all of those who are to keep it are gone, nobody knows what they had acknowledged. There is no next view without one of
//!    them: those who are there wait, until a user says that it is lost. Then it begins anew, at those who are to keep it next.

use std::collections::BTreeMap;

use peergrad_protocol::Rank;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::REPLICAS_MAX;
use peergrad_protocol::message::MemberReport;
use peergrad_protocol::view::{BatchParts, Resume, ViewChange};

use super::{Churn, Roster, ViewChangePlanner};

impl ViewChangePlanner<'_> {
    /// The change to the view of the members in `kept` (sorted ranks), who report what they have, with those who come and go; of
    /// chunks that nobody has, those in `lost` begin anew.
    ///
    /// # Errors
    /// The chunks that none of them has as they are now, if there are others.
    pub(crate) fn table_view_change(
        &self,
        kept: &[Rank],
        reports: &BTreeMap<Rank, MemberReport>,
        churn: &Churn,
        lost: &ChunkSet,
    ) -> Result<ViewChange, ChunkSet> {
        let view = self.view();
        let is_gone = |rank: &Rank| !kept.contains(rank) || churn.leavers.contains(rank);
        let leavers: Vec<Rank> = (0..view.members.len()).map(Rank::from_index).filter(is_gone).collect();
        let all = Churn { leavers, ..churn.clone() };
        let roster = Roster::new(view, &all);
        let holders: Vec<Vec<Rank>> = (0..self.shard_map.sharding.chunks.count())
            .map(|chunk| roster.to_new_ranks(self.current_holders(chunk, kept, reports).into_iter()))
            .collect();
        let nowhere = |chunk: &usize| holders[*chunk].is_empty();
        let missing: ChunkSet = (0..holders.len()).filter(nowhere).collect();
        if !missing.is_empty() && churn.leavers.iter().any(|rank| kept.contains(rank)) {
            // Perhaps they are with somebody who wants to go.
            let staying = Churn { leavers: vec![], ..churn.clone() };
            return self.table_view_change(kept, reports, &staying, lost);
        }
        if !missing.is_subset(lost) {
            return Err(missing);
        }
        let newcomers = roster.newcomers();
        let moves = self.moves(&roster.members, &newcomers, |chunk| holders[chunk].clone(), 1);
        let (epoch, parts) = (view.cursor.epoch, vec![vec![]; roster.members.len()]);
        let resume =
            Resume { newcomers, batch: Some(BatchParts { epoch, parts }), ..Resume::at(view.first_step()) };
        Ok(roster.change(self.shard_map, &all, resume, view.cursor.clone(), moves))
    }

    /// Those who are to keep a chunk.
    pub(crate) fn replica_holders(&self, chunk: usize) -> impl Iterator<Item = Rank> {
        self.shard_map.target.replica_holders(chunk).iter().copied()
    }

    /// Who has a chunk as it is now, by their ranks in this view; those who are to keep it first.
    fn current_holders(
        &self,
        chunk: usize,
        kept: &[Rank],
        reports: &BTreeMap<Rank, MemberReport>,
    ) -> Vec<Rank> {
        let replica_holders = self.shard_map.target.replica_holders(chunk);
        let there = || {
            replica_holders.iter().copied().filter(|rank| kept.contains(rank) && reports.contains_key(rank))
        };
        let has = |rank: &Rank| reports[rank].states.contains(chunk);
        let mut holders: Vec<Rank> = there().filter(has).collect();
        if there().any(|rank| !has(&rank)) {
            let had = |rank: &&Rank| {
                let older = reports.get(rank).and_then(|report| report.states_before.as_ref());
                older.is_some_and(|older| older.contains(chunk))
            };
            holders.extend(kept.iter().filter(had).copied());
        }
        holders.truncate(REPLICAS_MAX);
        holders
    }
}
