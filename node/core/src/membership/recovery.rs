//! Recovery: a member whose process was restarted, and how a run resumes after all its members have stopped.
//!
//! A restarted member still has a vote in its view, as long as its record of promises and acceptances is intact. If other members have
//! continued, or can, it lends them its vote and joins as any other peer does. If all have stopped (a power cut, a swarm that is switched off
//! for the night), the members that are back agree on the next view by the same rules as a running view, and on the checkpoint from which it
//! starts.
//!
//! # How it works
//! ```text
//! back in view 7                                   back in view 7
//!   | -- Join ----------------------------------------> |
//!   | <-------------- Refuse(not yet), Install(view 7) - |    so both know that they are companions
//!   |                                                    |
//!   | -- Prepare --> promises: what each has saved --> Propose --> accepted by a quorum of view 7
//!   | -- Install(view 8) ------------------------------> |    begins with the newest step of which everything is there
//! ```
//! 1. A peer asks for promises only if no member answers it, if it could train itself, and if its companions are a quorum.
//! 2. If all members are back it does so at once; else some time after the last one came back, and later still if otherwise optimizer state
//!    would be lost.
//! 3. A run with tables needs a checkpoint of which the members that are back have everything. Without one it restarts from the beginning only
//!    if all members are back and none has saved anything, or if a user declares the rest lost.
//! 4. A change that a member has accepted before is proposed again, as in any agreement. The companions then are members of *that* view, and
//!    recover from there.
//!
//! # Invariants
//! - A peer votes under the incarnation that is in the view, and only if it remembers all votes of that incarnation.
//! - The new view holds only peers that have asked for it in their present incarnation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::agreement::{Acceptor, Ballot, is_quorum};
use peergrad_protocol::durable::{DurableBytes, DurableRecord, RunDefinition};
use peergrad_protocol::limits::CHECKPOINTS_MAX;
use peergrad_protocol::message::{
    Accepted, AgreementMessage, MemberReport, Message, Nack, Prepare, Promise, Propose, RejoinCandidate,
    SavedCheckpoint,
};
use peergrad_protocol::view::{Member, View, ViewChange};
use peergrad_protocol::wire::encode_record;
use peergrad_protocol::{Incarnation, Instant, PeerId, Rank, RunId, StepNumber, ViewDigest};

use crate::io::{Event, Output, RecoveryProgress};
use crate::membership::journal::{Effect, Journal};
use crate::membership::links::send;
use crate::membership::view_change::ViewChangePlanner;
use crate::membership::view_change::driver::{DecisionRule, Pacing, ViewChangeDriver};
use companions::Companions;

mod companions;

/// A member that is back without what it held in memory.
pub(crate) struct RecoveringMember {
    /// This peer in its present incarnation, as it would join again.
    me: Member,
    /// The checkpoints on its disk.
    saved: Vec<SavedCheckpoint>,
    /// The specification and the random bytes of its run.
    definition: RunDefinition,
    /// The encoded `definition`, as the records on disk contain it.
    definition_bytes: Arc<[u8]>,
    /// The view that it was in.
    view: Arc<View>,
    /// The digest of `view`.
    digest: ViewDigest,
    /// The encoded `view`.
    view_bytes: Arc<[u8]>,
    /// The incarnation under which it is in that view.
    incarnation: Incarnation,
    /// Its vote and its attempts in the choice of the view after that one.
    driver: ViewChangeDriver<()>,
    /// The other members of that view that are back.
    companions: Companions,
    /// How many members were present at the last report to the user; `None` before the first.
    reported_present: Option<usize>,
    /// The members that were present when the user declared lost what all others may have kept of tables; `None` before that.
    lost_except: Option<BTreeSet<Rank>>,
    /// Whether the user was told that the members which are back lack some chunks of tables.
    has_reported_lack: bool,
}

/// Whether a returned peer could train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// It has yet to get its task or data.
    Preparing,
    Prepared,
}

impl RecoveringMember {
    /// The member whose record is `durable`, now back as `me`, with the checkpoints on its disk.
    pub(crate) fn new(durable: DurableRecord, me: Member, mut saved: Vec<SavedCheckpoint>) -> Self {
        saved.truncate(CHECKPOINTS_MAX);
        let DurableRecord { view, incarnation, acceptor, definition } = durable;
        let digest = view.digest();
        let driver = driver(Instant::default(), &view, digest, me.peer, acceptor);
        Self {
            me,
            saved,
            definition_bytes: encode_record(&definition).into(),
            definition,
            digest,
            view_bytes: encode_record(&view).into(),
            view: Arc::new(view),
            incarnation,
            driver,
            companions: Companions::default(),
            reported_present: None,
            lost_except: None,
            has_reported_lack: false,
        }
    }

    /// The user declares lost what absent members may have kept of the run's tables.
    pub(crate) fn declare_lost(&mut self) {
        self.lost_except = Some(self.present());
    }

    /// Whether the user has declared lost what members other than these may have saved of the run's tables.
    fn is_rest_lost(&self, there: &BTreeSet<Rank>) -> bool {
        self.lost_except.as_ref().is_some_and(|all| all.is_subset(there))
    }

    /// Whether a run with tables may begin again from initial values, with these reports: nobody has saved anything, or the user has declared
    /// the rest lost. Members that are all back may lack what others have saved that left before the last view.
    fn may_reset_tables(&self, reports: &BTreeMap<Rank, MemberReport>) -> bool {
        let there: BTreeSet<Rank> = reports.keys().copied().collect();
        let has_saved =
            |report: &MemberReport| report.rejoin.as_ref().is_some_and(|again| !again.saved.is_empty());
        let is_all = there.len() == self.view.members.len();
        self.is_rest_lost(&there) || (is_all && !reports.values().any(has_saved))
    }

    /// The view that it was in.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The view that it was in and its digest.
    pub(crate) fn shared_view(&self) -> (Arc<View>, ViewDigest) {
        (Arc::clone(&self.view), self.digest)
    }

    /// The specification and nonce of the run.
    pub(crate) fn definition(&self) -> &RunDefinition {
        &self.definition
    }

    /// The checkpoint from which it starts in `view`; `None` if it has none of that step, or if the view starts at step 0.
    pub(crate) fn checkpoint_of(&self, view: &View) -> Option<&SavedCheckpoint> {
        let step = view.first_step();
        self.saved.iter().filter(|_| step.0 > 0).find(|saved| saved.steps == step)
    }

    /// Dials the other members of its view: they may admit it, or have returned too.
    pub(crate) fn dial(&self, out: &mut Vec<Output>) {
        for member in self.view.members.iter().filter(|member| member.peer != self.me.peer) {
            out.push(Output::Dial(member.contact()));
        }
    }

    // Companions.

    /// Sends its view, once, to a peer that asks to join and was in the same view.
    pub(crate) fn inform(&mut self, peer: PeerId, run: Option<RunId>, out: &mut Vec<Output>) {
        let is_companion = self.view.rank(&peer).is_some() && run.is_none_or(|run| run == self.view.run);
        if is_companion && self.companions.informed.insert(peer) {
            send(peer, &AgreementMessage::Install(View::clone(&self.view)).into(), out);
        }
    }

    /// Another peer sends the view that it was in. It may be the same one. It may be a later one that holds an earlier
    /// incarnation of this peer: that incarnation has a vote there which is unused, since it would have written the view first.
    pub(crate) fn on_install(&mut self, now: Instant, from: PeerId, view: View, journal: &mut Journal) {
        if view.run != self.view.run {
            return;
        }
        let earlier = self.incarnation..self.me.incarnation;
        let rank = view.rank(&self.me.peer).filter(|rank| earlier.contains(&view.member(*rank).incarnation));
        if let Some(rank) = rank
            && view.number > self.view.number
        {
            self.incarnation = view.member(rank).incarnation;
            self.digest = view.digest();
            self.view_bytes = encode_record(&view).into();
            self.view = Arc::new(view);
            let pause_ends = self.driver.not_before;
            self.driver = driver(pause_ends, &self.view, self.digest, self.me.peer, Acceptor::default());
            journal.drop_answers();
            self.companions.forget();
            self.lost_except = None;
        } else if view.digest() != self.digest {
            return;
        }
        if let Some(rank) = self.view.rank(&from).filter(|_| from != self.me.peer) {
            self.companions.add(now, rank);
        }
    }

    /// A link is down.
    pub(crate) fn link_down(&mut self, peer: &PeerId) {
        self.companions.remove(peer, self.view.rank(peer));
    }

    /// Members of the view that are back, this one included.
    fn present(&self) -> BTreeSet<Rank> {
        self.companions.linked.iter().copied().chain(self.view.rank(&self.me.peer)).collect()
    }

    // Agreeing.

    /// Begins or drives an attempt, if one is due. `planner` is `None` while this peer could not train, or while a member may
    /// admit it.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        planner: Option<&ViewChangePlanner<'_>>,
        out: &mut Vec<Output>,
    ) {
        let Some(planner) = planner else {
            self.driver.attempt = None;
            return;
        };
        let present = self.present();
        let missing = self.view.members.len() - present.len();
        self.report_present(&present, out);
        if !is_quorum(present.iter().copied(), self.view.members.len()) {
            self.driver.attempt = None;
            return;
        }
        let may_lose =
            missing == 0 || self.is_rest_lost(&present) || self.driver.acceptor.accepted().is_some();
        if planner.shard_map.sharding.has_tables && !may_lose && self.saved.is_empty() {
            // An attempt would only delay a peer that may restart the tables, or has saved some of them.
            self.driver.attempt = None;
            return;
        }
        let waited = now.since(*self.companions.last_at.get_or_insert(now));
        if self.driver.attempt.is_some() {
            return self.drive(now, &present, planner, waited, out);
        }
        let order = present.iter().position(|rank| *rank == self.rank()).unwrap_or_default() as u32;
        let patience = if missing == 0 { Duration::ZERO } else { PATIENCE };
        if waited < patience + PACING.stagger * order || now < self.driver.not_before {
            return;
        }
        let prepare = self.driver.begin(now, DecisionRule::Quorum, None, ());
        // The others are asked once its own promise is on disk: after another restart this ballot is not used again.
        send(self.me.peer, &AgreementMessage::Prepare(prepare).into(), out);
    }

    /// Proposes once all who are present have answered, and gives up an attempt that makes no progress.
    fn drive(
        &mut self,
        now: Instant,
        present: &BTreeSet<Rank>,
        planner: &ViewChangePlanner<'_>,
        waited: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(attempt) = &self.driver.attempt else { return };
        let (proposer, collected) = (attempt.proposer(), now.since(attempt.since));
        if proposer.proposed().is_some() || !proposer.can_propose() {
            // Its answers are lost, or another member's attempt is ahead.
            if collected > PACING.attempt_max {
                self.driver.give_up(now, PACING.retry);
            }
            return;
        }
        let has_all = present.iter().all(|rank| proposer.reports().contains_key(rank));
        if has_all || collected > PACING.collect_max {
            self.propose(now, planner, waited, out);
        }
    }

    /// Proposes the change that a quorum may have accepted already, else a restart from checkpoints. It first waits a while for members
    /// that still read their data, and longer if otherwise state would be lost.
    fn propose(
        &mut self,
        now: Instant,
        planner: &ViewChangePlanner<'_>,
        waited: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(attempt) = &self.driver.attempt else { return };
        let reports = attempt.proposer().reports();
        let could_train = reports.values().filter(|report| report.rejoin.is_some()).count();
        let missing = self.view.members.len() - could_train;
        let there: BTreeSet<Rank> = reports.keys().copied().collect();
        let change = match attempt.proposer().adopted() {
            Some(adopted) => adopted.clone(),
            None if waited < PATIENCE && reports.values().any(|report| report.rejoin.is_none()) => {
                return self.driver.give_up(now, PACING.retry);
            }
            None => match planner.after_stop(&[], reports) {
                Some(restart)
                    if planner.shard_map.sharding.has_tables
                        && !restart.is_whole
                        && !self.may_reset_tables(reports) =>
                {
                    if !std::mem::replace(&mut self.has_reported_lack, true) {
                        out.push(Output::Event(Event::TablesIncomplete));
                    }
                    return self.driver.give_up(now, RETRY_FOR_STATE);
                }
                Some(restart) if restart.is_due(missing, waited) => restart.change,
                Some(_) | None => return self.driver.give_up(now, RETRY_FOR_STATE),
            },
        };
        let Some(attempt) = &mut self.driver.attempt else { return };
        attempt.propose(now, there, change);
        if let Some(propose) = attempt.proposal() {
            self.send_to_present(&AgreementMessage::Propose(propose).into(), out);
        }
    }

    /// A companion has promised, and reports what it has saved.
    pub(crate) fn on_promise(&mut self, now: Instant, from: PeerId, promise: Promise, out: &mut Vec<Output>) {
        let Some(rank) = self.view.rank(&from) else { return };
        let Some(attempt) = self.driver.attempt_under(promise.view, promise.ballot) else { return };
        if promise.report.rejoin.as_ref().is_some_and(|again| again.member.peer != from) {
            // No member speaks for another one.
            return;
        }
        if promise.report.complete.is_some() {
            // This member has never stopped, so the next view is for it to propose.
            return self.driver.give_up(now, RETRY_FOR_STATE);
        }
        if let Some(prepare) = attempt.on_promise(rank, promise) {
            let prepare = Message::Agreement(AgreementMessage::Prepare(prepare));
            self.companions.linked.iter().for_each(|rank| send(self.view.member(*rank).peer, &prepare, out));
        }
    }

    /// A ballot of this peer was refused.
    pub(crate) fn on_nack(&mut self, now: Instant, nack: &Nack) {
        self.driver.on_nack(now, nack);
    }

    /// A companion has accepted. If that makes the change chosen, all companions learn of it.
    pub(crate) fn on_accepted(&mut self, from: PeerId, accepted: Accepted, out: &mut Vec<Output>) {
        let Some(rank) = self.view.rank(&from) else { return };
        let Some(attempt) = self.driver.on_accepted(rank, accepted) else { return };
        let change = attempt.proposer().proposed().expect("what is accepted was proposed");
        if let Ok(next) = self.view.apply(self.digest, change) {
            self.send_to_present(&AgreementMessage::Install(next).into(), out);
        }
    }

    // Voting.

    /// A member of the view asks to agree on the next one. `readiness` says whether this peer could train in it.
    pub(crate) fn on_prepare(
        &mut self,
        now: Instant,
        from: PeerId,
        prepare: Prepare,
        readiness: Readiness,
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) {
        let Prepare { view, ballot, .. } = prepare;
        if !self.is_asked(view, from, ballot.rank) {
            return;
        }
        if let Err(promised) = self.driver.acceptor.promise(ballot) {
            let nack = Nack { view, ballot, promised: Some(promised), step: StepNumber(0) };
            return send(from, &AgreementMessage::Nack(nack).into(), out);
        }
        self.defer_to(now, ballot);
        let again = (readiness == Readiness::Prepared)
            .then(|| Box::new(RejoinCandidate { member: self.me.clone(), saved: self.saved.clone() }));
        let report = MemberReport { is_vote_only: true, rejoin: again, ..MemberReport::default() };
        let accepted = self.driver.acceptor.accepted().cloned();
        let promise = Promise { view, ballot, accepted, report };
        self.answer(from, Message::Agreement(AgreementMessage::Promise(Box::new(promise))), journal, out);
    }

    /// A member of the view proposes the next one.
    pub(crate) fn on_propose(
        &mut self,
        now: Instant,
        from: PeerId,
        propose: Propose,
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) {
        let Propose { ballot, change } = propose;
        let view = change.parent;
        // A change that cannot be applied must not be chosen: it would be proposed forever.
        if !self.is_asked(view, from, ballot.rank) || self.view.apply(self.digest, &change).is_err() {
            return;
        }
        match self.driver.acceptor.accept(ballot, change) {
            Ok(()) => {
                self.defer_to(now, ballot);
                self.answer(
                    from,
                    Message::Agreement(AgreementMessage::Accepted(Accepted { view, ballot })),
                    journal,
                    out,
                );
            }
            Err(promised) => {
                let nack = Nack { view, ballot, promised: Some(promised), step: StepNumber(0) };
                send(from, &AgreementMessage::Nack(nack).into(), out);
            }
        }
    }

    /// Gives the attempt of another member its time.
    fn defer_to(&mut self, now: Instant, ballot: Ballot) {
        if ballot.rank != self.rank() {
            self.driver.attempt = None;
            self.driver.wait_for(now, ballot.rank, PACING.attempt_max);
        }
    }

    fn is_asked(&self, view: ViewDigest, from: PeerId, rank: Rank) -> bool {
        self.digest == view && self.view.rank(&from) == Some(rank)
    }

    fn answer(&self, to: PeerId, message: Message, journal: &mut Journal, out: &mut Vec<Output>) {
        let (view, definition) = (Arc::clone(&self.view_bytes), Arc::clone(&self.definition_bytes));
        let record = DurableBytes::new(view, self.incarnation, &self.driver.acceptor, definition);
        journal.persist_then(record, Effect::Answer { to, message: Box::new(message) }, out);
    }

    // Reports.

    fn rank(&self) -> Rank {
        self.view.rank(&self.me.peer).expect("the record is that of a member")
    }

    fn send_to_present(&self, message: &Message, out: &mut Vec<Output>) {
        for rank in self.present() {
            send(self.view.member(rank).peer, message, out);
        }
    }

    /// Tells the user which members are back, whenever their number changes.
    fn report_present(&mut self, present: &BTreeSet<Rank>, out: &mut Vec<Output>) {
        if self.reported_present.replace(present.len()) != Some(present.len()) {
            out.push(Output::Event(Event::RecoveryProgress(self.progress_with(present))));
        }
    }

    /// The members that are back, as far as this peer knows.
    pub(crate) fn progress(&self) -> RecoveryProgress {
        self.progress_with(&self.present())
    }

    fn progress_with(&self, present: &BTreeSet<Rank>) -> RecoveryProgress {
        let members = self.view.members.len();
        let ranks = (0..members).map(Rank::from_index).filter(|rank| !present.contains(rank));
        let missing = ranks.map(|rank| self.view.member(rank).peer).collect();
        let is_half_enough = members.is_multiple_of(2) && present.contains(&Rank(0));
        let needed = members / 2 + usize::from(!is_half_enough);
        RecoveryProgress { view_number: self.view.number, present: present.len(), needed, missing }
    }
}

/// The part of `me` in the choice of the view after `view`, with the vote that is on its disk.
fn driver(
    not_before: Instant,
    view: &View,
    digest: ViewDigest,
    me: PeerId,
    acceptor: Acceptor<ViewChange>,
) -> ViewChangeDriver<()> {
    let rank = view.rank(&me).expect("the record is that of a member");
    ViewChangeDriver::new(not_before, (digest, rank, view.members.len()), acceptor, &PACING)
}

/// How long after the latest return the returned members wait for the missing ones.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause before the returned members are asked again, where they could not continue without losing state.
const RETRY_FOR_STATE: Duration = Duration::from_secs(5);
/// How long the returned members wait for each other.
const PACING: Pacing = Pacing {
    stagger: Duration::from_secs(2),
    order_max: 8,
    retry: Duration::from_millis(500),
    collect_max: Duration::from_secs(3),
    attempt_max: Duration::from_secs(8),
};

#[cfg(test)]
mod tests;
