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
use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::limits::COPIES_MAX;
use peergrad_protocol::message::Report;
use peergrad_protocol::view::{Deal, Resume, Succession};

use super::{Basis, Exchange, Roll};

impl Basis<'_> {
    /// The change to the view of the members in `kept` (sorted ranks), who report what they have, with those who come and go; of
    /// chunks that nobody has, those in `lost` begin anew.
    ///
    /// # Errors
    /// The chunks that none of them has as they are now, if there are others.
    pub(crate) fn of_tables(
        &self,
        kept: &[Rank],
        reports: &BTreeMap<Rank, Report>,
        exchange: &Exchange,
        lost: &ChunkSet,
    ) -> Result<Succession, ChunkSet> {
        let view = self.view();
        let is_gone = |rank: &Rank| !kept.contains(rank) || exchange.leavers.contains(rank);
        let leavers: Vec<Rank> = (0..view.members.len()).map(Rank::from_index).filter(is_gone).collect();
        let all = Exchange { leavers, ..exchange.clone() };
        let roll = Roll::new(view, &all);
        let holders: Vec<Vec<Rank>> = (0..self.geometry.cut.chunks.count())
            .map(|chunk| roll.renamed(self.holders_now(chunk, kept, reports).into_iter()))
            .collect();
        let nowhere = |chunk: &usize| holders[*chunk].is_empty();
        let missing: ChunkSet = (0..holders.len()).filter(nowhere).collect();
        if !missing.is_empty() && exchange.leavers.iter().any(|rank| kept.contains(rank)) {
            // Perhaps they are with somebody who wants to go.
            let staying = Exchange { leavers: vec![], ..exchange.clone() };
            return self.of_tables(kept, reports, &staying, lost);
        }
        if !missing.is_subset(lost) {
            return Err(missing);
        }
        let newcomers = roll.newcomers();
        let moves = self.moves(&roll.members, &newcomers, |chunk| holders[chunk].clone(), 1);
        let (pass, parts) = (view.ledger.pass, vec![vec![]; roll.members.len()]);
        let resume = Resume { newcomers, deal: Some(Deal { pass, parts }), ..Resume::at(view.first_step()) };
        Ok(roll.change(self.geometry, &all, resume, view.ledger.clone(), moves))
    }

    /// Those who are to keep a chunk.
    pub(crate) fn keepers(&self, chunk: usize) -> impl Iterator<Item = Rank> {
        self.geometry.target.keepers(chunk).iter().copied()
    }

    /// Who has a chunk as it is now, by their ranks in this view; those who are to keep it first.
    fn holders_now(&self, chunk: usize, kept: &[Rank], reports: &BTreeMap<Rank, Report>) -> Vec<Rank> {
        let keepers = self.geometry.target.keepers(chunk);
        let there =
            || keepers.iter().copied().filter(|rank| kept.contains(rank) && reports.contains_key(rank));
        let has = |rank: &Rank| reports[rank].states.contains(chunk);
        let mut holders: Vec<Rank> = there().filter(has).collect();
        if there().any(|rank| !has(&rank)) {
            let had = |rank: &&Rank| {
                let older = reports.get(rank).and_then(|report| report.states_before.as_ref());
                older.is_some_and(|older| older.contains(chunk))
            };
            holders.extend(kept.iter().filter(had).copied());
        }
        holders.truncate(COPIES_MAX);
        holders
    }
}
