//! Succession: the choice of the view after this one, as far as this member takes part in it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::agreement::{Acceptor, Ballot};
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::message::{Accepted, AgreementMessage, Nack};
use peergrad_protocol::view::{View, ViewChange};
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber, ViewDigest};

use super::TrainingCommand;
use super::lead::Lead;
use super::members::Members;
use super::place::Place;
use crate::io::Output;
use crate::membership::view_change::Churn;
use crate::membership::view_change::driver::{Attempt, Pacing, Refused, ViewChangeDriver};
use crate::state::snapshot_id::SnapshotId;

/// What a member knows of the choice of the next view.
pub(super) struct Succession {
    /// This member's vote, and its own attempt to have a view chosen.
    pub(super) driver: ViewChangeDriver<AttemptPlan>,
    /// The view that is chosen; `None` until then.
    pub(super) next: Option<NextView>,
    /// Which members may have stopped for a change that this one has planned.
    pub(super) stopped: StoppedMembers,
    /// Whether this view can continue, and since when it cannot.
    pub(super) trouble: Trouble,
    /// The chunks of tables that are missing, and those of them that the user has declared lost. Empty without tables.
    pub(super) table_losses: TableLosses,
    /// How many steps ahead a change between two steps is named.
    pub(super) lead: Lead,
    /// How long this member waits for others, and between its own attempts.
    pacing: &'static Pacing,
}

/// The next view, once it is chosen.
pub(super) struct NextView {
    pub(super) view: Arc<View>,
    /// The digest of `view`.
    pub(super) digest: ViewDigest,
    /// Whether training may enter it: it is on disk, or this peer is not in it.
    pub(super) is_enterable: bool,
}

/// The members that may have stopped before a step that this one has named, for a change between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StoppedMembers {
    /// None have.
    #[default]
    None,
    /// Those that this one has asked under this ballot or a lower one. Nothing was proposed to them.
    Asked(Ballot),
    /// Something was proposed in this view, and may still be chosen.
    MayAccept,
}

/// Whether a view can continue.
#[derive(Default)]
pub(super) struct Trouble {
    /// Since when this view cannot continue; `None` while it can.
    pub(super) since: Option<Instant>,
    /// Since when any member is lost, even one that the next view leaves out; `None` if none is.
    pub(super) missed_since: Option<Instant>,
    /// Since when a quorum answers of which no member has parameters; `None` otherwise.
    pub(super) regrouped_at: Option<Instant>,
    /// Whether another member already asks for the successor of the next view.
    pub(super) is_next_outdated: bool,
    /// Whether this member has once postponed a proposal that would have left out a member that answers.
    pub(super) has_postponed: bool,
}

/// The chunks of tables that are missing.
#[derive(Default)]
pub(super) struct TableLosses {
    /// Chunks that no reachable member has, as last reported to the user.
    pub(super) missing: ChunkSet,
    /// The missing chunks that the user has declared lost: they restart from initial values.
    pub(super) declared: ChunkSet,
}

/// What a member remembers of an attempt to have the next view chosen.
pub(super) struct AttemptPlan {
    /// The change that is planned; `None` if a member is lost and the reports decide.
    pub(super) planned: Option<PlannedChange>,
    /// Members whose programs held up all others when the attempt began. Training stands still since, so it does not show now.
    pub(super) hanging: Vec<Rank>,
    /// Members that have not answered.
    pub(super) unanswered: BTreeSet<Rank>,
    /// Members that at least one of those that have answered cannot reach.
    pub(super) missed: BTreeSet<Rank>,
}

/// A change that does not follow from the loss of a member.
pub(super) enum PlannedChange {
    /// Between two steps.
    BetweenSteps(Box<ViewChange>),
    /// Where there are tables: the members that join and leave. The rest follows from the reports.
    OfTables(Churn),
}

impl AttemptPlan {
    /// The change that is proposed between two steps, if it is one.
    pub(super) fn between(&self) -> Option<&ViewChange> {
        if let Some(PlannedChange::BetweenSteps(change)) = &self.planned { Some(change) } else { None }
    }

    /// The members that join and leave where there are tables, if the attempt is for such a change.
    pub(super) fn of_tables(&self) -> Option<&Churn> {
        if let Some(PlannedChange::OfTables(churn)) = &self.planned { Some(churn) } else { None }
    }

    /// The step before which the change is to be chosen; `None` if members are to stop at once.
    pub(super) fn before(&self) -> Option<StepNumber> {
        self.between().map(|change| change.resume.step)
    }
}

impl Succession {
    /// The choice of the view after that of `place`.
    pub(super) fn new(now: Instant, place: &Place, pacing: &'static Pacing) -> Self {
        Self {
            driver: driver(now, place, pacing),
            next: None,
            stopped: StoppedMembers::None,
            trouble: Trouble::default(),
            table_losses: TableLosses::default(),
            lead: Lead::default(),
            pacing,
        }
    }

    /// Another view begins, that of `place`.
    pub(super) fn enter(&mut self, now: Instant, place: &Place) {
        self.driver = driver(now, place, self.pacing);
        self.next = None;
        self.stopped = StoppedMembers::None;
        self.trouble = Trouble::default();
        self.table_losses = TableLosses::default();
        self.lead.shorten();
    }

    /// The view that is chosen and that training can enter.
    pub(super) fn enterable(&self) -> Option<(&Arc<View>, ViewDigest)> {
        let next = self.next.as_ref().filter(|next| next.is_enterable)?;
        Some((&next.view, next.digest))
    }

    /// Whether `view` is the next one.
    pub(super) fn is_next(&self, view: ViewDigest) -> bool {
        self.next.as_ref().is_some_and(|next| next.digest == view)
    }

    /// Whether this view cannot continue, so that another one is needed.
    pub(super) fn is_troubled(&self) -> bool {
        self.trouble.is_next_outdated || self.trouble.since.is_some()
    }

    /// The record of `view` is on disk. If that is the next view, it can be entered.
    pub(super) fn recorded(&mut self, view: ViewDigest) {
        if let Some(next) = self.next.as_mut().filter(|next| next.digest == view) {
            next.is_enterable = true;
        }
    }

    /// The snapshot of another branch that the next view merges, or may merge.
    pub(super) fn pending_merge(&self) -> Option<SnapshotId> {
        let accepted =
            || self.driver.acceptor.accepted().and_then(|(_, change)| change.resume.merge.as_deref());
        let merge = match &self.next {
            Some(next) => next.view.merge(),
            None => accepted(),
        };
        merge.map(|merge| (merge.view, merge.steps))
    }

    /// A ballot of this member was refused.
    pub(super) fn on_nack(&mut self, now: Instant, nack: &Nack) {
        let began = self.driver.attempt_under(nack.view, nack.ballot).map(|attempt| attempt.began);
        if self.driver.on_nack(now, nack) == Some(Refused::TooLate) {
            self.lead.lengthen();
            // Agreement takes at least as long as that.
            self.lead.note_agreement(began.map_or(Duration::ZERO, |began| now.since(began)));
        }
    }

    /// A proposer gives up: it proposes nothing under this ballot, nor under a lower one of its own. A member that has promised another
    /// proposer since, or has accepted anything, still waits.
    pub(super) fn on_withdraw(
        &self,
        place: &Place,
        from: PeerId,
        (view, ballot): (ViewDigest, Ballot),
    ) -> Vec<TrainingCommand> {
        let acceptor = &self.driver.acceptor;
        let is_of_it = |promised: Ballot| promised.rank == ballot.rank && promised <= ballot;
        let is_meant = view == place.digest && place.view.rank(&from) == Some(ballot.rank);
        let waits_for_it =
            self.next.is_none() && acceptor.accepted().is_none() && acceptor.promised().is_some_and(is_of_it);
        if is_meant && waits_for_it { vec![TrainingCommand::Continue] } else { vec![] }
    }

    /// A member has accepted. If that makes the change chosen, all members learn of it.
    pub(super) fn on_accepted(
        &mut self,
        now: Instant,
        members: &Members,
        from: PeerId,
        accepted: Accepted,
        out: &mut Vec<Output>,
    ) {
        let Some(rank) = members.place.view.rank(&from) else { return };
        let Some(attempt) = self.driver.on_accepted(rank, accepted) else { return };
        if attempt.plan.between().is_some() {
            self.lead.note_agreement(now.since(attempt.began));
        }
        if let Some(change) = attempt.proposer().proposed().cloned() {
            members.broadcast(&AgreementMessage::Learn(change).into(), out);
        }
    }

    /// Asks all members to accept what this one has proposed, if it has proposed anything.
    pub(super) fn broadcast_proposal(&self, members: &Members, out: &mut Vec<Output>) {
        if let Some(propose) = self.driver.attempt.as_ref().and_then(Attempt::proposal) {
            members.broadcast(&AgreementMessage::Propose(propose).into(), out);
        }
    }
}

/// The part of this member in the choice of the view after that of `place`.
fn driver(now: Instant, place: &Place, pacing: &'static Pacing) -> ViewChangeDriver<AttemptPlan> {
    let view = (place.digest, place.rank, place.view.members.len());
    ViewChangeDriver::new(now, view, Acceptor::default(), pacing)
}
