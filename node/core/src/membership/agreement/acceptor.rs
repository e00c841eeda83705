//! The acceptor: how a member answers proposers, and how it learns which view is chosen.

use std::sync::Arc;

use peergrad_protocol::message::{
    Accepted, AgreementMessage, MemberReport, Message, Nack, Prepare, Promise, Propose,
};
use peergrad_protocol::view::{View, ViewChange};
use peergrad_protocol::{Instant, PeerId, ViewDigest};

use super::super::{Membership, NextView, Timer, TrainingCommand, TrainingSnapshot};
use crate::io::{Output, Reject};
use crate::membership::journal::{Effect, Journal};

impl Membership {
    // Answering.

    /// A member asks to agree on the next view.
    pub(crate) fn on_prepare(
        &mut self,
        now: Instant,
        from: PeerId,
        prepare: Prepare,
        snapshot: &TrainingSnapshot<'_>,
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) -> Result<Vec<TrainingCommand>, Reject> {
        let Prepare { view, ballot, before } = prepare;
        if self.next.as_ref().is_some_and(|next| next.digest == view) {
            // The next view already needs a successor, so there is nothing left to wait for in this one.
            self.view_state.is_next_outdated = true;
            return Ok(vec![TrainingCommand::Advance]);
        }
        if self.send_known_successor(from, view, out) {
            return Ok(vec![]);
        }
        if self.place.view.rank(&from) != Some(ballot.rank) {
            return Err(Reject::OutOfPlace);
        }
        self.driver.note(ballot);
        let is_too_late = before
            .is_some_and(|before| snapshot.step > before || (snapshot.step == before && snapshot.is_open));
        let promised = if is_too_late || (before.is_some() && snapshot.is_closing) {
            Err(None)
        } else {
            self.driver.acceptor.promise(ballot).map_err(Some)
        };
        if let Err(promised) = promised {
            let nack = Nack { view, ballot, promised, step: snapshot.step };
            self.send(from, &AgreementMessage::Nack(nack).into(), out);
            return Ok(vec![]);
        }
        if ballot.rank != self.place.rank {
            self.driver.attempt = None;
            self.wait_for(now, ballot.rank);
        }
        let report = match before {
            Some(_) => MemberReport::default(),
            None => MemberReport { lost: self.lost(now), ..(snapshot.report)() },
        };
        let accepted = self.driver.acceptor.accepted().cloned();
        let promise = Promise { view, ballot, accepted, report };
        let message = Message::Agreement(AgreementMessage::Promise(Box::new(promise)));
        journal.persist_then(self.record(), Effect::Answer { to: from, message: Box::new(message) }, out);
        Ok(vec![match before {
            Some(step) => TrainingCommand::StopBefore(step),
            None => TrainingCommand::Freeze,
        }])
    }

    /// Whether this member has no vote on the successor of `view`, because it knows that successor or is in another view. It then sends the
    /// successor, if it has it.
    fn send_known_successor(&self, from: PeerId, view: ViewDigest, out: &mut Vec<Output>) -> bool {
        let known = if view != self.place.digest {
            self.place.view.parents.contains(&view).then_some(&self.place.view)
        } else {
            let Some(next) = &self.next else { return false };
            Some(&next.view)
        };
        if let Some(known) = known {
            self.send(from, &AgreementMessage::Install(View::clone(known)).into(), out);
        }
        true
    }

    /// A member proposes the next view.
    pub(crate) fn on_propose(
        &mut self,
        now: Instant,
        from: PeerId,
        propose: Propose,
        snapshot: &TrainingSnapshot<'_>,
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let Propose { ballot, change } = propose;
        let view = change.parent;
        if self.send_known_successor(from, view, out) {
            return Ok(());
        }
        let next = self.cache.apply(&self.place.view, self.place.digest, &change);
        if self.place.view.rank(&from) != Some(ballot.rank)
            || !next.is_ok_and(|(next, _)| snapshot.planner.fits(&next))
        {
            return Err(Reject::OutOfPlace);
        }
        self.driver.note(ballot);
        let merged = change.resume.merge.as_ref().map(|merge| (merge.view, merge.steps));
        if merged.is_some() && snapshot.merge_ready != merged {
            // The proposer believes that this member holds its part of the snapshot.
            let promised = Some(ballot);
            let nack = Nack { view, ballot, promised, step: snapshot.step };
            self.send(from, &AgreementMessage::Nack(nack).into(), out);
            return Ok(());
        }
        match self.driver.acceptor.accept(ballot, change) {
            Ok(()) => {
                self.wait_for(now, ballot.rank);
                let message = Message::Agreement(AgreementMessage::Accepted(Accepted { view, ballot }));
                journal.persist_then(
                    self.record(),
                    Effect::Answer { to: from, message: Box::new(message) },
                    out,
                );
            }
            Err(promised) => {
                let nack = Nack { view, ballot, promised: Some(promised), step: snapshot.step };
                self.send(from, &AgreementMessage::Nack(nack).into(), out);
            }
        }
        Ok(())
    }

    // Learning.

    /// The next view is chosen.
    ///
    /// # Errors
    /// It does not follow this one.
    pub(crate) fn on_learn(
        &mut self,
        change: &ViewChange,
        snapshot: &TrainingSnapshot<'_>,
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        if change.parent != self.place.digest {
            // It follows a view that this member has left or not reached. Other messages settle that.
            return Ok(());
        }
        let next = self.cache.apply(&self.place.view, self.place.digest, change);
        match next.ok().filter(|(view, _)| snapshot.planner.fits(view)) {
            Some((view, _)) if self.is_minority_branch(&view) => {}
            Some(next) => self.learn(next, journal, out),
            None => return Err(Reject::OutOfPlace),
        }
        Ok(())
    }

    /// A member of a later view sends that view. Returns false if it is not the next one.
    pub(crate) fn on_install(&mut self, view: View, journal: &mut Journal, out: &mut Vec<Output>) -> bool {
        if view.number <= self.place.view.number {
            return true;
        }
        if !view.parents.contains(&self.place.digest) {
            return false;
        }
        let digest = view.digest();
        self.learn((Arc::new(view), digest), journal, out);
        true
    }

    fn learn(
        &mut self,
        (view, digest): (Arc<View>, ViewDigest),
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) {
        if self.next.is_some() {
            return;
        }
        let is_in = view
            .rank(&self.place.me.peer)
            .is_some_and(|rank| view.member(rank).incarnation == self.place.me.incarnation);
        // A peer that is not in it sends nothing in it, so it needs no record of it.
        if is_in {
            let record = self.record_of_next(&view, digest);
            journal.persist_then(record, Effect::EnterView(Arc::clone(&view), digest), out);
        }
        self.driver.attempt = None;
        // Perhaps the only trouble was a member that the next view leaves out: check that again.
        self.view_state.trouble_since = None;
        self.view_state.missed_since = None;
        self.timers.set(Timer::Attempt as usize, self.view_state.entered_at);
        self.next = Some(NextView { view, digest, is_enterable: !is_in });
    }
}
