//! View changes with tables: the program takes no steps, so the change only says which members have the present state of each chunk.
//!
//! Members report the chunks that they have as holders, and the chunks that they still have and no longer hold: those are from before other
//! members took them over.
//! 1. A holder that has its chunk has all that was acknowledged, since an acknowledgement waits until all holders have the change.
//! 2. If a holder reports that it does not have its chunk yet, none of the chunk's changes in this view was acknowledged. Then its earlier
//!    holders have its present state too.
//! 3. If all holders are gone, no member knows what they had acknowledged. The next view needs one of them: the others wait, until a user
//!    declares the chunk lost. Then it restarts from initial values at its next holders.

use std::collections::BTreeMap;

use peergrad_protocol::Rank;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::REPLICAS_MAX;
use peergrad_protocol::message::MemberReport;
use peergrad_protocol::view::{BatchParts, Resume, ViewChange};

use super::roster::Roster;
use super::{Churn, ViewChangePlanner};

impl ViewChangePlanner<'_> {
    /// The change to the view of the members in `kept` (sorted ranks), which report the chunks that they have, with those that join and
    /// leave. Of the chunks that no member has, those in `lost` restart from initial values.
    ///
    /// # Errors
    /// The chunks whose present state no member has, unless all of them are in `lost`.
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
            // A member that is about to leave may have them.
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

    /// The holders of a chunk in this view.
    pub(crate) fn replica_holders(&self, chunk: usize) -> impl Iterator<Item = Rank> {
        self.shard_map.target.replica_holders(chunk).iter().copied()
    }

    /// The members that have a chunk's present state, by their ranks in this view; its holders first.
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
