//! Agreement: when the members of a running view propose its successor, and which change they propose.
//!
//! # How it works
//! 1. A member that finds that the view cannot go on asks all members to stop and to report their progress. The lowest live
//!    rank does so at once, each higher one a little later. A member that has promised another proposer waits for that one first.
//! 2. With the reports of all members that it can reach, and of a quorum at least, it proposes a change: the one that a
//!    member has accepted before, if there is one, else the one that `view_change.rs` makes of the reports.
//! 3. A change that a quorum has accepted is chosen, and the proposer tells all members. (Where all parts of a partitioned run
//!    go on, all members that stay have to accept it.)
//!
//! A proposer stops collecting reports well before the others lose patience with it; otherwise two would refuse each other forever. A
//! linked member has the longest time to answer. A member that is not linked, or that its neighbors do not hear, has a short one. The
//! others wait for a proposer somewhat longer, but not once they have lost it.
//!
//! A member that answers may be left out because it is cut off from another one that answers too. A proposer postpones that
//! once: after a partition, links come back one by one.
//!
//! # Not here
//! Ballots, votes and answers: `view_change/driver.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::clique;
use peergrad_protocol::message::{Accepted, AgreementMessage, Nack, Promise};
use peergrad_protocol::view::{View, ViewChange};
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber, ViewDigest};

use super::{Membership, Timer, TrainingCommand, TrainingSnapshot, failure_detection};
use crate::io::{Event, Output};
use crate::membership::view_change::driver::{Attempt, DecisionRule, Pacing, Refused, ViewChangeDriver};
use crate::membership::view_change::{Churn, Restart};

mod acceptor;

/// What a member remembers of an attempt to have the next view chosen.
pub(super) struct AttemptPlan {
    /// The change that is planned; `None` if a member is lost and the reports decide.
    planned: Option<PlannedChange>,
    /// Members whose programs held up all others when the attempt began. Training stands still since, so it does not show now.
    hanging: Vec<Rank>,
    /// Members that have not answered.
    unanswered: BTreeSet<Rank>,
    /// Members that at least one of those that have answered cannot reach.
    missed: BTreeSet<Rank>,
}

/// Why an attempt does not propose anything yet.
enum Postponed {
    /// No member that can be reached has the present state of these chunks of tables.
    ChunksMissing(ChunkSet),
    /// No member that can be reached has parameters, and it is too early to restart from checkpoints.
    ParametersMissing,
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
    fn between(&self) -> Option<&ViewChange> {
        if let Some(PlannedChange::BetweenSteps(change)) = &self.planned { Some(change) } else { None }
    }

    fn before(&self) -> Option<StepNumber> {
        self.between().map(|change| change.resume.step)
    }
}

impl Membership {
    /// Does what is due: notices losses, begins attempts and drives them.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        snapshot: &TrainingSnapshot<'_>,
        out: &mut Vec<Output>,
    ) -> Vec<TrainingCommand> {
        self.note_step_timing(now, snapshot);
        let lost = self.lost(now);
        self.driver.stop_waiting_for(now, &lost, self.proposer_order(&lost));
        let hanging = self.hanging(now, snapshot);
        let is_loss = snapshot.is_behind_view || self.is_loss(now, &lost, &hanging);
        // A member that has stopped for an attempt waits for its result, but not forever. Once a view is chosen, this member enters it when
        // the others have all they need of this one, and not because it has waited.
        let is_stopped = (snapshot.is_held || snapshot.is_still) && self.next.is_none();
        let is_stuck = (self.is_stalled(now, snapshot) || is_stopped)
            && self.driver.attempt.is_none()
            && now >= self.driver.not_before;
        let is_trouble = is_loss || is_stuck;
        self.note_trouble(now, is_trouble, out);
        if is_loss && !snapshot.has_parameters {
            self.report_orphaned(&lost, out);
        }
        if self.next.is_some() {
            return if is_trouble { vec![TrainingCommand::Advance] } else { vec![] };
        }
        if is_loss && self.driver.attempt.as_ref().is_some_and(|attempt| attempt.plan.between().is_some()) {
            self.driver.attempt = None;
        }
        self.drive(now, &lost, snapshot, out);
        if self.driver.attempt.is_none() && now >= self.driver.not_before {
            if let Some(plan) = self.change_due(now, snapshot).filter(|_| !is_loss) {
                self.attempt(now, Some(plan), vec![], out);
            } else if is_trouble {
                let waited = self.view_state.trouble_since.map_or(Duration::ZERO, |since| now.since(since));
                if waited >= PACING.stagger * self.proposer_order(&lost) {
                    self.attempt(now, None, hanging, out);
                }
            }
        }
        let is_waiting = is_trouble || snapshot.is_held || snapshot.is_still || self.driver.attempt.is_some();
        // A member that waits for another one's attempt has nothing to do until then.
        let is_idle = self.driver.attempt.is_none() && now < self.driver.not_before;
        let again =
            is_waiting.then(|| if is_idle { self.driver.not_before } else { now.after(POLL_INTERVAL) });
        let next = again.into_iter().chain(self.detection.detector.next_suspicion_after(now)).min();
        if let Some(at) = next {
            self.timers.set(Timer::Attempt as usize, at.max(now.after(POLL_INTERVAL_MIN)));
        }
        vec![]
    }

    /// Whether this view cannot go on. A member that the next view leaves out may be gone for a while: it has sent all that the
    /// others need.
    fn is_loss(&mut self, now: Instant, lost: &[Rank], hanging: &[Rank]) -> bool {
        let mut missing = lost.iter().chain(hanging).chain(&self.view_state.broken).peekable();
        if missing.peek().is_none() {
            self.view_state.missed_since = None;
            return false;
        }
        let since = *self.view_state.missed_since.get_or_insert(now);
        let is_leaver = |rank: &Rank| {
            let peer = &self.place.view.member(*rank).peer;
            self.next.as_ref().is_some_and(|next| next.view.rank(peer).is_none())
        };
        !missing.all(is_leaver) || now.since(since) > LEAVE_GRACE
    }

    /// How many members should try before this one. Members without parameters come last.
    fn proposer_order(&self, lost: &[Rank]) -> u32 {
        if self.is_newcomer(self.place.rank) {
            let holders = self.place.view.members.len() - self.place.view.newcomers().len();
            return (holders as u32 + self.place.rank.0).min(PACING.order_max);
        }
        let newcomers = self.place.view.newcomers().iter();
        let new = newcomers.filter(|rank| self.is_newcomer(**rank) && lost.binary_search(rank).is_err());
        let passed = lost.iter().chain(new).filter(|rank| **rank < self.place.rank).count();
        self.place.rank.0 - passed as u32
    }

    /// Whether a member has no parameters yet, as far as this one knows. In a large view each member hears only a few others, so
    /// this must not depend on heartbeats alone.
    pub(super) fn is_newcomer(&self, rank: Rank) -> bool {
        if self.view_state.has_committed {
            return false;
        }
        let has_begun = self
            .view_state
            .reported_progress
            .get(&rank)
            .is_some_and(|seen| seen.complete > self.place.view.first_step());
        self.place.view.newcomers().contains(&rank) && !has_begun
    }

    fn attempt(
        &mut self,
        now: Instant,
        planned: Option<PlannedChange>,
        hanging: Vec<Rank>,
        out: &mut Vec<Output>,
    ) {
        let rule = if self.probe.allows_forks { DecisionRule::Unanimity } else { DecisionRule::Quorum };
        let unanswered = (0..self.place.view.members.len()).map(Rank::from_index).collect();
        let plan = AttemptPlan { planned, hanging, unanswered, missed: BTreeSet::new() };
        let prepare = self.driver.begin(now, rule, plan.before(), plan);
        // The others are asked once its own promise is on disk: a restart must not use this ballot again.
        self.send(self.place.me.peer, &AgreementMessage::Prepare(prepare).into(), out);
    }

    /// Proposes once all members that can have answered, and gives up an attempt that makes no progress.
    fn drive(&mut self, now: Instant, lost: &[Rank], snapshot: &TrainingSnapshot<'_>, out: &mut Vec<Output>) {
        let Some(attempt) = &self.driver.attempt else { return };
        let waited = now.since(attempt.since);
        if attempt.proposer().proposed().is_some() {
            if waited > PACING.attempt_max {
                self.driver.attempt = None;
            }
            return;
        }
        let reached = attempt.proposer().reports().len();
        if !attempt.proposer().can_propose() {
            // The members that were a quorum are none any more.
            self.view_state.regrouped_at =
                self.view_state.regrouped_at.filter(|_| waited < PACING.collect_max);
            // Until its own promise is on disk, no other member was asked.
            let has_asked = attempt.proposer().reports().contains_key(&self.place.rank);
            if waited > PAUSE_REPORTED_AFTER && attempt.plan.between().is_none() && has_asked {
                let missing =
                    attempt.plan.unanswered.iter().map(|rank| self.place.view.member(*rank).peer).collect();
                self.report_paused(missing, out);
            }
            return;
        }
        if self.is_collecting(waited, lost) {
            return;
        }
        let Some(attempt) = &self.driver.attempt else { return };
        if attempt.plan.between().is_some() && reached < self.place.view.members.len() {
            // A member does not answer: that is a loss, and needs another kind of attempt.
            self.driver.give_up(now, PACING.retry);
            return;
        }
        let (kept, is_whole) = self.members_to_keep();
        if !is_whole && !self.view_state.has_doubted {
            self.view_state.has_doubted = true;
            self.driver.give_up(now, RECONNECT_GRACE);
            return;
        }
        self.propose(now, &kept, snapshot, out);
    }

    /// Whether a member that has not answered is still worth waiting for: a short time if it is not linked, or if its neighbors do
    /// not hear it either.
    fn is_collecting(&self, waited: Duration, lost: &[Rank]) -> bool {
        let Some(attempt) = &self.driver.attempt else { return false };
        let is_awaited = |rank: &&Rank| {
            let peer = &self.place.view.member(**rank).peer;
            let is_doubtful = attempt.plan.missed.contains(rank) && !self.detection.detector.is_watched(peer);
            let patience = if is_doubtful || self.links.unlinked.contains(peer) {
                RECONNECT_GRACE
            } else {
                PACING.collect_max
            };
            waited < patience && lost.binary_search(rank).is_err()
        };
        attempt.plan.unanswered.iter().any(|rank| is_awaited(&rank))
    }

    /// Gives the attempt of `rank` its time, which is longer where heartbeats are slow: the attempt ends by itself before that.
    fn wait_for(&mut self, now: Instant, rank: Rank) {
        let patience = PACING.collect_max + 2 * failure_detection::heartbeat_interval(&self.place.view);
        self.driver.wait_for(now, rank, patience);
    }

    /// The members that the next view keeps, and whether these are all that have answered and do not hang.
    fn members_to_keep(&self) -> (Vec<Rank>, bool) {
        let Some(attempt) = &self.driver.attempt else { return (vec![], true) };
        let reports = attempt.proposer().reports();
        let is_fit = |rank: &Rank| {
            reports.get(rank).is_some_and(|report| !report.is_vote_only)
                && !attempt.plan.hanging.contains(rank)
        };
        let cut: BTreeSet<(Rank, Rank)> = reports
            .iter()
            .filter(|(rank, _)| is_fit(rank))
            .flat_map(|(rank, report)| report.lost.iter().map(|lost| (*rank, *lost)))
            .filter(|(_, lost)| is_fit(lost))
            .collect();
        let all = clique::largest(self.place.view.members.len(), &cut);
        let kept: Vec<Rank> = all.into_iter().filter(is_fit).collect();
        let fit = reports.keys().filter(|rank| is_fit(rank)).count();
        let is_whole = kept.len() == fit;
        (kept, is_whole)
    }

    fn propose(
        &mut self,
        now: Instant,
        kept: &[Rank],
        snapshot: &TrainingSnapshot<'_>,
        out: &mut Vec<Output>,
    ) {
        let change = match self.change_to_propose(now, kept, snapshot) {
            Ok(change) => change,
            Err(Postponed::ChunksMissing(chunks)) => {
                return self.wait_for_chunks(now, chunks, kept, snapshot, out);
            }
            Err(Postponed::ParametersMissing) => return self.ask_again_later(now),
        };
        let Some(attempt) = &mut self.driver.attempt else { return };
        let staying = kept.iter().copied().filter(|rank| !change.removed.contains(rank)).collect();
        attempt.propose(now, staying, change);
        self.broadcast_proposal(out);
    }

    /// The change that follows from the reports, unless one is planned already or has to be adopted.
    fn change_to_propose(
        &mut self,
        now: Instant,
        kept: &[Rank],
        snapshot: &TrainingSnapshot<'_>,
    ) -> Result<ViewChange, Postponed> {
        let attempt = self.driver.attempt.as_ref().expect("an attempt is under way");
        if let Some(named) = attempt.plan.between().or(attempt.proposer().adopted()) {
            return Ok(named.clone());
        }
        let reports = attempt.proposer().reports();
        let change = if snapshot.tables.is_some() {
            let nobody = Churn::default();
            let planned = if let Some(PlannedChange::OfTables(churn)) = &attempt.plan.planned {
                churn
            } else {
                &nobody
            };
            let lost = &self.view_state.lost_chunks;
            let change = snapshot.planner.table_view_change(kept, reports, planned, lost);
            change.map_err(Postponed::ChunksMissing)?
        } else if let Some(change) =
            snapshot.planner.after_loss(kept, reports, |step| snapshot.assignment_of(step))
        {
            change
        } else {
            // No member that can be reached has parameters any more. Others may come back.
            let waited = now.since(*self.view_state.regrouped_at.get_or_insert(now));
            let missing = attempt.plan.unanswered.len();
            // Where others may have gone on, the run restarts only with all of them.
            let is_due =
                |it: &Restart| it.is_due(missing, waited) && (missing == 0 || !self.probe.allows_forks);
            let restart = snapshot.planner.after_stop(kept, reports).filter(is_due);
            restart.ok_or(Postponed::ParametersMissing)?.change
        };
        Ok(ViewChange { expelled: self.expulsions_with(&change), ..change })
    }

    /// The user has declared the missing chunks of tables lost: these chunks, and no others, restart from initial values.
    pub(crate) fn declare_lost(&mut self) {
        self.view_state.lost_chunks.clone_from(&self.view_state.missing_chunks);
    }

    /// No reachable member has the present state of these chunks of tables. Members that do may come back.
    fn wait_for_chunks(
        &mut self,
        now: Instant,
        chunks: ChunkSet,
        kept: &[Rank],
        snapshot: &TrainingSnapshot<'_>,
        out: &mut Vec<Output>,
    ) {
        let is_known = chunks.is_subset(&self.view_state.missing_chunks);
        self.view_state.missing_chunks.clone_from(&chunks);
        if !is_known {
            let holders: BTreeSet<Rank> =
                chunks.iter().flat_map(|chunk| snapshot.planner.replica_holders(chunk)).collect();
            let gone = holders.into_iter().filter(|rank| !kept.contains(rank));
            let peers = gone.map(|rank| self.place.view.member(rank).peer).collect();
            out.push(Output::Event(Event::ChunksMissing { chunks: chunks.len(), peers }));
        }
        self.ask_again_later(now);
    }

    /// The members that answer have too little to go on from: this member asks them again after a while.
    fn ask_again_later(&mut self, now: Instant) {
        if self.driver.attempt.as_ref().is_some_and(|attempt| now.since(attempt.since) > ASK_AGAIN) {
            self.driver.give_up(now, PACING.retry);
        }
    }

    fn broadcast_proposal(&self, out: &mut Vec<Output>) {
        if let Some(propose) = self.driver.attempt.as_ref().and_then(Attempt::proposal) {
            self.broadcast(&AgreementMessage::Propose(propose).into(), out);
        }
    }

    /// Sends again what may not have arrived.
    pub(super) fn resend_attempt(&self, now: Instant, out: &mut Vec<Output>) {
        let Some(attempt) = &self.driver.attempt else { return };
        if now.since(attempt.since) < RESEND_INTERVAL {
            return;
        }
        if attempt.proposer().proposed().is_some() {
            return self.broadcast_proposal(out);
        }
        let reports = attempt.proposer().reports();
        if !reports.contains_key(&self.place.rank) {
            // Its disk is slow, and no other member was asked yet.
            return;
        }
        for (index, member) in self.place.view.members.iter().enumerate() {
            if !reports.contains_key(&Rank::from_index(index)) {
                self.send(member.peer, &AgreementMessage::Prepare(attempt.prepare()).into(), out);
            }
        }
    }

    // Answers.

    /// A member has promised, and reports where it is.
    pub(crate) fn on_promise(
        &mut self,
        now: Instant,
        from: PeerId,
        promise: Promise,
        snapshot: &TrainingSnapshot<'_>,
        out: &mut Vec<Output>,
    ) -> Vec<TrainingCommand> {
        let is_own = promise.report.rejoin.as_ref().is_none_or(|again| again.member.peer == from);
        if let Some(rank) = self.place.view.rank(&from).filter(|_| is_own)
            && let Some(attempt) = self.driver.attempt_under(promise.view, promise.ballot)
        {
            attempt.plan.unanswered.remove(&rank);
            attempt.plan.missed.extend(&promise.report.lost);
            if let Some(prepare) = attempt.on_promise(rank, promise) {
                attempt.since = now;
                let others = self.place.view.members.iter().map(|member| member.peer);
                for peer in others.filter(|peer| *peer != self.place.me.peer) {
                    self.send(peer, &AgreementMessage::Prepare(prepare).into(), out);
                }
            }
        }
        self.poll(now, snapshot, out)
    }

    /// A ballot of this member was refused.
    pub(crate) fn on_nack(&mut self, now: Instant, nack: Nack) {
        if self.driver.on_nack(now, &nack) == Some(Refused::TooLate) {
            self.lead.lengthen();
        }
    }

    /// A member has accepted. If that makes the change chosen, all members are told.
    pub(crate) fn on_accepted(
        &mut self,
        now: Instant,
        from: PeerId,
        accepted: Accepted,
        out: &mut Vec<Output>,
    ) {
        let Some(rank) = self.place.view.rank(&from) else { return };
        let Some(attempt) = self.driver.on_accepted(rank, accepted) else { return };
        if attempt.plan.between().is_some() {
            self.lead.note_agreement(now.since(attempt.began));
        }
        if let Some(change) = attempt.proposer().proposed().cloned() {
            self.broadcast(&AgreementMessage::Learn(change).into(), out);
        }
    }
}

/// The part of the member at `rank` in the choice of the view after this one.
pub(super) fn driver(
    now: Instant,
    digest: ViewDigest,
    rank: Rank,
    view: &View,
) -> ViewChangeDriver<AttemptPlan> {
    ViewChangeDriver::new(now, (digest, rank, view.members.len()), Acceptor::default(), &PACING)
}

/// How long the members of a view wait for each other.
const PACING: Pacing = Pacing {
    stagger: Duration::from_millis(300),
    order_max: 10,
    retry: Duration::from_millis(800),
    // A member that is heard but does not answer has so long.
    collect_max: Duration::from_secs(4),
    attempt_max: Duration::from_secs(4),
};
/// How long members that are back after a stop have to report that they could train.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How long a proposer waits before it sends a request again.
const RESEND_INTERVAL: Duration = Duration::from_millis(400);
/// How long a link has to come up before a member is left out for lack of it.
const RECONNECT_GRACE: Duration = Duration::from_secs(1);
/// How long members may take to answer before the user learns of a pause.
const PAUSE_REPORTED_AFTER: Duration = Duration::from_millis(1500);
/// How long a member that the next view leaves out may be gone before this view counts as broken.
const LEAVE_GRACE: Duration = Duration::from_secs(2);
/// The interval between two checks of an attempt.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest such interval.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests;
