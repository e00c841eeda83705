//! Voting, the acceptor's part of Paxos: how a member answers proposers, and how it learns which view is chosen.

use std::sync::Arc;

use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::message::{
    Accepted, AgreementMessage, MemberReport, Message, Nack, Prepare, Promise, Propose,
};
use peergrad_protocol::time::Timers;
use peergrad_protocol::view::{View, ViewChange};
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber, ViewDigest};

use super::super::members::Members;
use super::super::records::Records;
use super::super::succession::{NextView, Succession};
use super::super::training_status::TrainingStatus;
use super::super::{Timer, TrainingCommand};
use super::PACING;
use crate::io::{Output, Reject};
use crate::membership::journal::{Effect, Journal};

/// A member that votes on the next view and learns which one is chosen: what it answers from, and where its answers go.
pub(in crate::membership) struct Voting<'m> {
    /// The members, to which the answers go.
    pub(in crate::membership) members: &'m mut Members,
    /// How the next view is chosen: this member's vote, its attempt, and the result.
    pub(in crate::membership) succession: &'m mut Succession,
    /// Makes the record of this member's vote.
    pub(in crate::membership) records: &'m Records,
    /// When this member next looks at its own attempt.
    pub(in crate::membership) timers: &'m mut Timers<2>,
    /// The records that must be on disk before an answer that relies on them is sent.
    pub(in crate::membership) journal: &'m mut Journal,
    /// The outputs: records to write, answers that need none, and reports to the user.
    pub(in crate::membership) out: &'m mut Vec<Output>,
}

impl Voting<'_> {
    // Answering.

    /// A member asks to agree on the next view.
    pub(in crate::membership) fn on_prepare(
        &mut self,
        now: Instant,
        from: PeerId,
        prepare: Prepare,
        status: &TrainingStatus<'_>,
    ) -> Result<Vec<TrainingCommand>, Reject> {
        let Prepare { view, ballot, before } = prepare;
        if self.succession.is_next(view) {
            // The next view already needs a successor, so there is nothing left to wait for in this one.
            self.succession.trouble.is_next_outdated = true;
            return Ok(vec![]);
        }
        if self.send_known_successor(from, view) {
            return Ok(vec![]);
        }
        if self.members.place.view.rank(&from) != Some(ballot.rank) {
            return Err(Reject::OutOfPlace);
        }
        let driver = &mut self.succession.driver;
        driver.note(ballot);
        let promised = if before.is_some_and(|before| is_too_late(before, status)) {
            Err(None)
        } else {
            driver.acceptor.promise(ballot).map_err(Some)
        };
        if let Err(promised) = promised {
            self.refuse(from, Nack { view, ballot, promised, step: status.step });
            return Ok(vec![]);
        }
        if ballot.rank != self.members.place.rank {
            driver.attempt = None;
            self.wait_for(now, ballot.rank);
        }
        let report = match before {
            Some(_) => MemberReport::default(),
            None => self.report(now, status),
        };
        if before.is_none() {
            // From now on nothing arrives because this member has stopped.
            self.members.observed.stopped_still.get_or_insert(report.is_still);
        }
        let accepted = self.succession.driver.acceptor.accepted().cloned();
        let promise = Promise { view, ballot, accepted, report };
        self.answer(from, AgreementMessage::Promise(Box::new(promise)));
        // This member has stopped for a change that was named too late. It does not go on before the others know of the later step: else they
        // would reach that as well.
        let stays_held = ballot.rank == self.members.place.rank && status.gate.is_held;
        Ok(match before {
            Some(_) if stays_held => vec![],
            Some(step) => vec![TrainingCommand::StopBefore(step)],
            None => vec![TrainingCommand::Freeze],
        })
    }

    /// This member's report: the state of training, and what it has noticed of the others.
    fn report(&self, now: Instant, status: &TrainingStatus<'_>) -> MemberReport {
        let members = &*self.members;
        let report = (status.report)();
        MemberReport {
            lost: members.lost(now),
            complaints: members.observed.complaints.of(members.place.rank),
            is_still: members.observed.stopped_still.unwrap_or_else(|| members.is_still(now, status)),
            awaited: report.awaited.and_then(|awaited| members.owed(now, awaited)),
            ..report
        }
    }

    /// Whether this member has no vote on the successor of `view`, because it knows that successor or is in another view. It then sends the
    /// successor, if it has it.
    fn send_known_successor(&mut self, from: PeerId, view: ViewDigest) -> bool {
        let place = &self.members.place;
        let known = if view != place.digest {
            place.view.parents.contains(&view).then_some(&place.view)
        } else {
            let Some(next) = &self.succession.next else { return false };
            Some(&next.view)
        };
        if let Some(known) = known {
            self.members.send(from, &AgreementMessage::Install(View::clone(known)).into(), self.out);
        }
        true
    }

    /// A member proposes the next view.
    pub(in crate::membership) fn on_propose(
        &mut self,
        now: Instant,
        from: PeerId,
        propose: Propose,
        status: &TrainingStatus<'_>,
    ) -> Result<(), Reject> {
        let Propose { ballot, change } = propose;
        let view = change.parent;
        if self.send_known_successor(from, view) {
            return Ok(());
        }
        let place = &self.members.place;
        let next = self.records.cache.apply(&place.view, place.digest, &change);
        if place.view.rank(&from) != Some(ballot.rank)
            || !next.is_ok_and(|(next, _)| status.planner.fits(&next))
        {
            return Err(Reject::OutOfPlace);
        }
        let driver = &mut self.succession.driver;
        driver.note(ballot);
        let merged = change.resume.merge.as_ref().map(|merge| (merge.view, merge.steps));
        let refused = |promised: Ballot| Nack { view, ballot, promised: Some(promised), step: status.step };
        if merged.is_some() && status.merge.ready != merged {
            // The proposer believes that this member holds its part of the snapshot.
            self.refuse(from, refused(ballot));
            return Ok(());
        }
        match driver.acceptor.accept(ballot, change) {
            Ok(()) => {
                self.wait_for(now, ballot.rank);
                self.answer(from, AgreementMessage::Accepted(Accepted { view, ballot }));
            }
            Err(promised) => self.refuse(from, refused(promised)),
        }
        Ok(())
    }

    /// Gives the attempt of `rank` its time, which is longer where heartbeats are slow: the attempt ends by itself before that.
    fn wait_for(&mut self, now: Instant, rank: Rank) {
        let patience = PACING.collect_max + 2 * self.members.heartbeat_interval();
        self.succession.driver.wait_for(now, rank, patience);
    }

    /// Answers a proposer once this member's vote is on disk.
    fn answer(&mut self, to: PeerId, message: AgreementMessage) {
        let record = self.records.present(&self.members.place, &self.succession.driver.acceptor);
        let message = Box::new(Message::Agreement(message));
        self.journal.persist_then(record, Effect::Answer { to, message }, self.out);
    }

    fn refuse(&mut self, to: PeerId, nack: Nack) {
        self.members.send(to, &AgreementMessage::Nack(nack).into(), self.out);
    }

    // Learning.

    /// The next view is chosen.
    ///
    /// # Errors
    /// It does not follow this one.
    pub(in crate::membership) fn on_learn(
        &mut self,
        change: &ViewChange,
        status: &TrainingStatus<'_>,
    ) -> Result<(), Reject> {
        let place = &self.members.place;
        if change.parent != place.digest {
            // It follows a view that this member has left or not reached. Other messages settle that.
            return Ok(());
        }
        let next = self.records.cache.apply(&place.view, place.digest, change);
        match next.ok().filter(|(view, _)| status.planner.fits(view)) {
            Some((view, _)) if self.members.is_minority_branch(&view) => {}
            Some((view, digest)) => self.learn(view, digest),
            None => return Err(Reject::OutOfPlace),
        }
        Ok(())
    }

    /// A member of a later view sends that view. Returns false if it is not the next one.
    pub(in crate::membership) fn on_install(&mut self, view: View) -> bool {
        let place = &self.members.place;
        if view.number <= place.view.number {
            return true;
        }
        if !view.parents.contains(&place.digest) {
            return false;
        }
        let digest = view.digest();
        self.learn(Arc::new(view), digest);
        true
    }

    fn learn(&mut self, view: Arc<View>, digest: ViewDigest) {
        if self.succession.next.is_some() {
            return;
        }
        let me = self.members.me();
        let is_in = view.rank(&me.peer).is_some_and(|rank| view.member(rank).incarnation == me.incarnation);
        // A peer that is not in it sends nothing in it, so it needs no record of it.
        if is_in {
            let record = self.records.next(&self.members.place, &view, digest);
            self.journal.persist_then(record, Effect::EnterView(Arc::clone(&view), digest), self.out);
        }
        self.succession.driver.attempt = None;
        // Perhaps the only trouble was a member that the next view leaves out: check that again.
        self.succession.trouble.since = None;
        self.succession.trouble.missed_since = None;
        self.timers.set(Timer::Attempt as usize, self.members.observed.entered_at);
        self.succession.next = Some(NextView { view, digest, is_enterable: !is_in });
    }
}

/// Whether no change can happen before this step any more.
fn is_too_late(before: StepNumber, status: &TrainingStatus<'_>) -> bool {
    let is_begun = status.step > before || (status.step == before && status.gate.is_open);
    is_begun || status.is_closing
}
