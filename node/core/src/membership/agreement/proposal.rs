//! Proposal: the change that a proposer names once enough members have reported.

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_protocol::Rank;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::view::ViewChange;

use super::selection::{Repetition, Selection};
use super::{PACING, Proposing};
use crate::io::{Event, Output};
use crate::membership::succession::{StoppedMembers, Succession};
use crate::membership::view_change::{Churn, Restart};

/// Why an attempt does not propose anything yet.
enum Postponed {
    /// No member that can be reached has the present state of these chunks of tables.
    ChunksMissing(ChunkSet),
    /// No member that can be reached has parameters, and it is too early to restart from checkpoints.
    ParametersMissing,
}

impl Proposing<'_> {
    /// Proposes what follows from the reports of the members that are selected, unless that has to wait.
    pub(super) fn propose(&mut self, selection: &Selection) {
        let kept = &selection.kept[..];
        let change = match self.change_to_propose(selection) {
            Ok(change) => change,
            // Those that stay cannot continue without those that have to go.
            Err(_) if !selection.quarantined.is_empty() => {
                return self.propose(&selection.without_complaints());
            }
            Err(Postponed::ChunksMissing(chunks)) => return self.wait_for_chunks(chunks, kept),
            Err(Postponed::ParametersMissing) => return self.ask_again_later(),
        };
        let Some(attempt) = &mut self.succession.driver.attempt else { return };
        let staying = kept.iter().copied().filter(|rank| !change.removed.contains(rank)).collect();
        attempt.propose(self.now, staying, change);
        self.succession.stopped = StoppedMembers::MayAccept;
        self.succession.broadcast_proposal(self.members, self.out);
    }

    /// Whether members wait for the first time since a step was committed.
    pub(super) fn repetition(&self) -> Repetition {
        if self.members.observed.has_committed { Repetition::First } else { Repetition::Again }
    }

    /// The change that follows from the reports, unless one is planned already or has to be adopted.
    fn change_to_propose(&mut self, selection: &Selection) -> Result<ViewChange, Postponed> {
        let kept = &selection.kept[..];
        let Succession { driver, trouble, table_losses, .. } = &mut *self.succession;
        let attempt = driver.attempt.as_ref().expect("an attempt is under way");
        if let Some(named) = attempt.plan.between().or(attempt.proposer().adopted()) {
            return Ok(named.clone());
        }
        let (status, planner) = (self.status, &self.status.planner);
        let reports = attempt.proposer().reports();
        let change = if status.tables.is_some() {
            let none = Churn::default();
            let churn = attempt.plan.of_tables().unwrap_or(&none);
            let change = planner.table_view_change(kept, reports, churn, &table_losses.declared);
            change.map_err(Postponed::ChunksMissing)?
        } else if let Some(change) = planner.after_loss(kept, reports, |step| status.assignment_of(step)) {
            change
        } else {
            // No member that can be reached has parameters any more. Others may come back.
            let waited = self.now.since(*trouble.regrouped_at.get_or_insert(self.now));
            let missing = attempt.plan.unanswered.len();
            // Where others may have continued, the run restarts only with all of them.
            let may_others_train = missing > 0 && self.members.allows_forks();
            let is_due = |it: &Restart| it.is_due(missing, waited) && !may_others_train;
            let restart = planner.after_stop(kept, reports).filter(is_due);
            restart.ok_or(Postponed::ParametersMissing)?.change
        };
        let view = &self.members.place.view;
        let mut expelled = self.members.departures.expulsions_with(view, &change);
        expelled.extend(selection.expulsions(view));
        Ok(ViewChange { expelled, quarantined: selection.quarantined.clone(), ..change })
    }

    /// No reachable member has the present state of these chunks of tables. Members that do may come back.
    fn wait_for_chunks(&mut self, chunks: ChunkSet, kept: &[Rank]) {
        let missing = &mut self.succession.table_losses.missing;
        let is_known = chunks.is_subset(missing);
        missing.clone_from(&chunks);
        if !is_known {
            let holders: BTreeSet<Rank> =
                chunks.iter().flat_map(|chunk| self.status.planner.replica_holders(chunk)).collect();
            let gone = holders.into_iter().filter(|rank| !kept.contains(rank));
            let peers = gone.map(|rank| self.members.place.peer(rank)).collect();
            self.out.push(Output::Event(Event::ChunksMissing { chunks: chunks.len(), peers }));
        }
        self.ask_again_later();
    }

    /// The members that answer have too little to continue from: this member asks them again after a while.
    fn ask_again_later(&mut self) {
        let driver = &mut self.succession.driver;
        if driver.attempt.as_ref().is_some_and(|attempt| self.now.since(attempt.since) > ASK_AGAIN) {
            driver.give_up(self.now, PACING.retry);
        }
    }
}

/// How long members that are back after a stop have to report that they could train.
const ASK_AGAIN: Duration = Duration::from_secs(10);
