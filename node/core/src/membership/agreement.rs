//! Agreement: when the members of a running view propose its successor, and which change they propose.
//!
//! # How it works
//! 1. A member that finds that the view cannot continue asks all members to stop and to report their progress. The lowest live
//!    rank does so at once, each higher one a little later. A member that has promised another proposer waits for that one first.
//! 2. With the reports of all members that it can reach, and of a quorum at least, it proposes a change: the one that a
//!    member has accepted before, if there is one, else the one that `view_change.rs` makes of the reports.
//! 3. A change that a quorum has accepted is chosen, and the proposer tells all members. (Where all parts of a partitioned run
//!    continue, all members that stay have to accept it.)
//!
//! A proposer stops collecting reports well before the others lose patience with it; otherwise two would refuse each other forever. A
//! linked member has the longest time to answer. A member that is not linked, or that its neighbors do not hear, has a short one. The
//! others wait for a proposer somewhat longer, but not once they have lost it.
//!
//! A change between two steps can wait. If too many members cannot vote on it, because their disks fail, its proposer withdraws it, and
//! those that have stopped for it go on.
//!
//! A member that answers may be left out because it is cut off from another one that answers too. A proposer postpones that
//! once: after a partition, links come back one by one. A member may also be
//! quarantined, because others have noticed a fault of it.
//!
//! # Not here
//! Which members stay: `agreement/selection.rs`. What is proposed: `agreement/proposal.rs`. Ballots, votes and answers:
//! `view_change/driver.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_protocol::message::{AgreementMessage, AwaitedAt, Promise};
use peergrad_protocol::time::Timers;
use peergrad_protocol::view::MemberFault;
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber};

use super::admission::Admission;
use super::capacity::CapacityOffers;
use super::churn::Requests;
use super::measurements::Measurements;
use super::members::Members;
use super::succession::{AttemptPlan, PlannedChange, StoppedMembers, Succession};
use super::training_status::TrainingStatus;
use super::{Timer, TrainingCommand};
use crate::io::{Event, Output};
use crate::membership::view_change::driver::{Attempt, DecisionRule, Pacing};
use selection::{fit_reports, select};

mod proposal;
mod selection;
pub(super) mod voting;

/// A member that may propose the next view: what it decides from, and where it sends.
pub(super) struct Proposing<'m> {
    /// The time at which this member decides.
    pub(super) now: Instant,
    /// Which members are lost or hold up the others.
    pub(super) members: &'m mut Members,
    /// How the next view is chosen: this member's vote, its attempt, and the result.
    pub(super) succession: &'m mut Succession,
    /// The peers that ask to join.
    pub(super) admission: &'m Admission,
    /// The changes of capacity that members ask for.
    pub(super) capacity_offers: &'m CapacityOffers,
    /// What members have measured.
    pub(super) measurements: &'m Measurements,
    /// When this member next looks at its attempt.
    pub(super) timers: &'m mut Timers<2>,
    /// The state of training, from which reports and plans are made.
    pub(super) status: &'m TrainingStatus<'m>,
    /// The outputs: messages to members, and reports to the user.
    pub(super) out: &'m mut Vec<Output>,
}

/// What keeps this view from continuing.
struct Obstacles {
    /// The members that this one considers lost.
    lost: Vec<Rank>,
    /// The members whose program delays all others.
    hanging: Vec<Rank>,
    /// Whether a member is missing that the next view needs.
    is_loss: bool,
    /// Whether this member has waited too long, although none is missing.
    is_stuck: bool,
}

impl Obstacles {
    /// Whether another view is needed.
    fn are_any(&self) -> bool {
        self.is_loss || self.is_stuck
    }
}

impl Proposing<'_> {
    /// Does what is due: notices losses, begins attempts and drives them.
    pub(super) fn poll(&mut self) -> Vec<TrainingCommand> {
        let obstacles = self.obstacles();
        self.note_trouble(&obstacles);
        if obstacles.is_loss && !self.status.has_parameters {
            self.report_orphaned(&obstacles.lost);
        }
        if self.succession.next.is_some() {
            return vec![];
        }
        let attempt = self.succession.driver.attempt.as_ref();
        if obstacles.is_loss && attempt.is_some_and(|attempt| attempt.plan.between().is_some()) {
            self.succession.driver.attempt = None;
        }
        self.drive(&obstacles.lost);
        self.attempt_if_due(&obstacles);
        self.set_timer(&obstacles);
        vec![]
    }

    // Whether another view is needed.

    fn obstacles(&mut self) -> Obstacles {
        let (now, status) = (self.now, self.status);
        self.members.note_step_timing(now, status);
        let lost = self.members.lost(now);
        let order = self.proposer_order(&lost);
        self.succession.driver.stop_waiting_for(now, &lost, order);
        let hanging = self.members.hanging(now, status);
        let is_loss = status.gate.is_behind_view
            || self.is_loss(&lost, &hanging)
            || self.members.observed.complaints.are_any();
        // A member that has stopped for an attempt waits for its result, but not forever. Once a view is chosen, this member enters it when
        // the others have all they need of this one, and not because it has waited.
        let is_stopped = status.gate.is_stopped() && self.succession.next.is_none();
        let driver = &self.succession.driver;
        let is_stuck = (self.members.is_stalled(now, status) || is_stopped)
            && driver.attempt.is_none()
            && now >= driver.not_before;
        Obstacles { lost, hanging, is_loss, is_stuck }
    }

    /// Whether this view cannot continue. A member that the next view leaves out may be gone for a while: it has sent all that the
    /// others need.
    fn is_loss(&mut self, lost: &[Rank], hanging: &[Rank]) -> bool {
        let Succession { next, trouble, .. } = &mut *self.succession;
        let mut missing = lost.iter().chain(hanging).chain(&self.members.observed.broken).peekable();
        if missing.peek().is_none() {
            trouble.missed_since = None;
            return false;
        }
        let since = *trouble.missed_since.get_or_insert(self.now);
        let is_leaver = |rank: &Rank| {
            let peer = self.members.place.peer(*rank);
            next.as_ref().is_some_and(|next| next.view.rank(&peer).is_none())
        };
        !missing.all(is_leaver) || self.now.since(since) > LEAVE_GRACE
    }

    /// Records since when this view cannot continue, and tells the user why when that begins.
    fn note_trouble(&mut self, obstacles: &Obstacles) {
        if !obstacles.are_any() {
            self.succession.trouble.since = None;
        } else if self.succession.trouble.since.is_none() {
            self.succession.trouble.since = Some(self.now);
            let peers = obstacles.lost.iter().map(|rank| self.members.place.peer(*rank));
            self.out.extend(peers.map(|peer| Output::Event(Event::MemberSuspected(peer))));
            self.report_stall();
        }
    }

    /// Tells the user, once in a view, what this member waits for if no step has ended for long.
    fn report_stall(&mut self) {
        let members = &mut *self.members;
        if !members.is_still(self.now, self.status) || members.observed.has_reported_stall {
            return;
        }
        let awaited = (self.status.report)().awaited.and_then(|awaited| members.owed(self.now, awaited));
        if let Some(awaited) = awaited.filter(|awaited| !awaited.from.is_empty()) {
            members.observed.has_reported_stall = true;
            let peers = awaited.from.iter().map(|rank| members.place.peer(*rank)).collect();
            let AwaitedAt { step, stage, .. } = awaited.at;
            self.out.push(Output::Event(Event::Stalled { step, stage, peers }));
        }
    }

    /// Tells the user which members have to come back if all that have parameters are lost.
    fn report_orphaned(&mut self, lost: &[Rank]) {
        let members = &mut *self.members;
        let holders: Vec<Rank> = members.place.ranks().filter(|rank| !members.is_newcomer(*rank)).collect();
        if holders.iter().all(|rank| lost.contains(rank)) {
            let peers = holders.iter().map(|rank| members.place.peer(*rank)).collect();
            members.observed.pause.report_orphaned(peers, self.out);
        }
    }

    /// Sets when this member looks again.
    fn set_timer(&mut self, obstacles: &Obstacles) {
        let driver = &self.succession.driver;
        let is_waiting = obstacles.are_any() || self.status.gate.is_stopped() || driver.attempt.is_some();
        // A member that waits for another one's attempt has nothing to do until then.
        let is_idle = driver.attempt.is_none() && self.now < driver.not_before;
        let again =
            is_waiting.then(|| if is_idle { driver.not_before } else { self.now.after(POLL_INTERVAL) });
        let suspicion = self.members.detection.detector.next_suspicion_after(self.now);
        if let Some(at) = again.into_iter().chain(suspicion).min() {
            self.timers.set(Timer::Attempt as usize, at.max(self.now.after(POLL_INTERVAL_MIN)));
        }
    }

    // An attempt.

    /// How many members should try before this one. Members without parameters come last, and so does one that may be at fault itself. If
    /// all may be, this one only waits for what they have to say.
    fn proposer_order(&self, lost: &[Rank]) -> u32 {
        let members = &*self.members;
        let may_be_at_fault = |rank: &Rank| members.observed.complaints.may_be_at_fault(*rank, lost);
        let mut live = members.place.ranks().filter(|rank| lost.binary_search(rank).is_err());
        let delay = match may_be_at_fault(&members.place.rank) {
            false => 0,
            true if live.all(|rank| may_be_at_fault(&rank)) => 1,
            true => PACING.order_max,
        };
        self.order_by_rank(lost) + delay
    }

    fn order_by_rank(&self, lost: &[Rank]) -> u32 {
        let members = &*self.members;
        let (view, me) = (&members.place.view, members.place.rank);
        if members.is_newcomer(me) {
            let holders = view.members.len() - view.newcomers().len();
            return (holders as u32 + me.0).min(PACING.order_max);
        }
        let newcomers = view.newcomers().iter();
        let new = newcomers.filter(|rank| members.is_newcomer(**rank) && lost.binary_search(rank).is_err());
        let passed = lost.iter().chain(new).filter(|rank| **rank < me).count();
        me.0 - passed as u32
    }

    /// Begins an attempt if a change is due, or if this view cannot continue and it is this member's turn.
    fn attempt_if_due(&mut self, obstacles: &Obstacles) {
        let driver = &self.succession.driver;
        if driver.attempt.is_some() || self.now < driver.not_before {
            return;
        }
        let Self { members, admission, capacity_offers, measurements, .. } = &*self;
        let requests = Requests { members, admission, capacity_offers, measurements };
        let change = requests.change_due(self.now, &self.succession.lead, self.status);
        if let Some(plan) = change.filter(|_| !obstacles.is_loss) {
            return self.attempt(Some(plan), vec![]);
        }
        if !obstacles.is_loss && self.withdraw() || !obstacles.are_any() {
            return;
        }
        let since = self.succession.trouble.since;
        let waited = since.map_or(Duration::ZERO, |since| self.now.since(since));
        if waited >= PACING.stagger * self.proposer_order(&obstacles.lost) {
            self.attempt(None, obstacles.hanging.clone());
        }
    }

    fn attempt(&mut self, planned: Option<PlannedChange>, hanging: Vec<Rank>) {
        let rule = if self.members.allows_forks() { DecisionRule::Unanimity } else { DecisionRule::Quorum };
        let unanswered = self.members.place.ranks().collect();
        let plan = AttemptPlan { planned, hanging, unanswered, missed: BTreeSet::new() };
        let prepare = self.succession.driver.begin(self.now, rule, plan.before(), plan);
        if self.succession.stopped != StoppedMembers::MayAccept {
            let asked = prepare.before.map(|_| StoppedMembers::Asked(prepare.ballot));
            self.succession.stopped = asked.unwrap_or_default();
        }
        // The others are asked once its own promise is on disk: a restart must not use this ballot again.
        self.members.send(self.members.me().peer, &AgreementMessage::Prepare(prepare).into(), self.out);
    }

    /// Proposes once all members that can have answered, and gives up an attempt that makes no progress.
    fn drive(&mut self, lost: &[Rank]) {
        let Some(attempt) = &self.succession.driver.attempt else { return };
        let waited = self.now.since(attempt.since);
        if attempt.proposer().proposed().is_some() {
            if waited > PACING.attempt_max {
                self.succession.driver.attempt = None;
            }
            return;
        }
        if !attempt.proposer().can_propose() {
            if !self.withdraw() {
                self.wait_for_quorum(waited);
            }
            return;
        }
        if is_collecting(attempt, waited, lost, self.members) {
            return;
        }
        let may_lack_vote = |rank: &Rank| self.members.may_lack_vote(*rank);
        if attempt.plan.between().is_some() && !attempt.plan.unanswered.iter().all(may_lack_vote) {
            // A member does not answer: that is a loss, and needs another kind of attempt.
            self.succession.driver.give_up(self.now, PACING.retry);
            return;
        }
        let selection = select(&self.members.place, &fit_reports(attempt), self.repetition());
        if !selection.are_all && !self.succession.trouble.has_postponed {
            self.succession.trouble.has_postponed = true;
            self.succession.driver.give_up(self.now, RECONNECT_GRACE);
            return;
        }
        self.propose(&selection);
    }

    /// Gives up a planned change that too many members cannot vote on, because their disks fail: those that have stopped for it had better
    /// go on. Returns whether it does.
    fn withdraw(&mut self) -> bool {
        let driver = &self.succession.driver;
        let StoppedMembers::Asked(ballot) = self.succession.stopped else { return false };
        let may_propose = driver
            .attempt
            .as_ref()
            .is_some_and(|it| it.plan.between().is_none() || it.proposer().adopted().is_some());
        let is_other = driver.acceptor.promised().is_some_and(|promised| promised.rank != ballot.rank);
        let may_be_chosen = driver.acceptor.accepted().is_some();
        if may_propose || is_other || may_be_chosen || self.members.can_choose(false) {
            return false;
        }
        self.succession.stopped = StoppedMembers::None;
        self.succession.driver.give_up(self.now, PACING.retry);
        let view = self.members.place.digest;
        self.members.broadcast(&AgreementMessage::Withdraw { view, ballot }.into(), self.out);
        true
    }

    /// Whether other members have been asked: they are once this member's own promise is on disk.
    fn is_asking(&self, attempt: &Attempt<AttemptPlan>) -> bool {
        attempt.proposer().reports().contains_key(&self.members.place.rank)
    }

    /// The members that have answered are no quorum, or not any more.
    fn wait_for_quorum(&mut self, waited: Duration) {
        let Some(attempt) = &self.succession.driver.attempt else { return };
        let regrouped_at = &mut self.succession.trouble.regrouped_at;
        *regrouped_at = regrouped_at.filter(|_| waited < PACING.collect_max);
        let place = &self.members.place;
        if waited > PAUSE_REPORTED_AFTER && attempt.plan.between().is_none() && self.is_asking(attempt) {
            let missing = attempt.plan.unanswered.iter().map(|rank| place.peer(*rank)).collect();
            self.members.observed.pause.report(place.view.members.len(), missing, self.out);
        }
    }

    // Answers.

    /// Counts the promise of the member at `rank`. After this member's own one, all others are asked: returns the step that was named to
    /// them.
    fn take_promise(&mut self, rank: Rank, promise: Promise) -> Option<StepNumber> {
        let attempt = self.succession.driver.attempt_under(promise.view, promise.ballot);
        let attempt = attempt.expect("looked at before");
        attempt.plan.unanswered.remove(&rank);
        attempt.plan.missed.extend(&promise.report.lost);
        let prepare = attempt.on_promise(rank, promise)?;
        attempt.since = self.now;
        for peer in self.members.place.others() {
            self.members.send(peer, &AgreementMessage::Prepare(prepare).into(), self.out);
        }
        prepare.before
    }

    /// Whether the change that the sender of a promise has accepted before, if any, makes a view that follows this one.
    fn is_possible(&self, promise: &Promise) -> bool {
        let place = &self.members.place;
        promise.accepted.as_ref().is_none_or(|(_, change)| {
            place.view.apply(place.digest, change).is_ok_and(|next| self.status.planner.fits(&next))
        })
    }

    /// A member has promised, and reports where it is.
    pub(super) fn on_promise(&mut self, from: PeerId, promise: Promise) -> Vec<TrainingCommand> {
        let is_own = promise.report.rejoin.as_ref().is_none_or(|again| again.member.peer == from);
        let rank = self.members.place.view.rank(&from).filter(|_| is_own);
        let is_awaited = self.succession.driver.attempt_under(promise.view, promise.ballot).is_some();
        let named = match rank.filter(|_| is_awaited) {
            Some(rank) if self.is_possible(&promise) => self.take_promise(rank, promise),
            Some(_) => {
                // All others would reject what this member would have to propose.
                self.members.complain(self.now, &from, MemberFault::Refused, self.out);
                None
            }
            None => None,
        };
        let mut commands = self.poll();
        commands.extend(named.map(TrainingCommand::StopBefore));
        commands
    }
}

/// Whether a member that has not answered is still worth waiting for: a short time if it is not linked, or if its neighbors do
/// not hear it either.
fn is_collecting(attempt: &Attempt<AttemptPlan>, waited: Duration, lost: &[Rank], members: &Members) -> bool {
    let is_awaited = |rank: &Rank| {
        let peer = &members.place.peer(*rank);
        let is_doubtful = attempt.plan.missed.contains(rank) && !members.detection.detector.is_watched(peer);
        let patience = match members.may_lack_vote(*rank) {
            // It stops where it was told to, without a vote.
            true if attempt.plan.between().is_some() => Duration::ZERO,
            true => DISK_GRACE,
            false if is_doubtful || members.links.unlinked.contains(peer) => RECONNECT_GRACE,
            false => PACING.collect_max,
        };
        waited < patience && lost.binary_search(rank).is_err()
    };
    attempt.plan.unanswered.iter().any(is_awaited)
}

/// Sends again what may not have arrived of this member's attempt.
pub(super) fn resend(succession: &Succession, members: &Members, now: Instant, out: &mut Vec<Output>) {
    let Some(attempt) = &succession.driver.attempt else { return };
    if now.since(attempt.since) < RESEND_INTERVAL {
        return;
    }
    if attempt.proposer().proposed().is_some() {
        return succession.broadcast_proposal(members, out);
    }
    let reports = attempt.proposer().reports();
    if !reports.contains_key(&members.place.rank) {
        // Its disk is slow, and no other member was asked yet.
        return;
    }
    for rank in members.place.ranks().filter(|rank| !reports.contains_key(rank)) {
        let prepare = AgreementMessage::Prepare(attempt.prepare());
        members.send(members.place.peer(rank), &prepare.into(), out);
    }
}

/// How long the members of a view wait for each other.
pub(super) const PACING: Pacing = Pacing {
    stagger: Duration::from_millis(300),
    order_max: 10,
    retry: Duration::from_millis(800),
    // A member that is heard but does not answer has so long.
    collect_max: Duration::from_secs(4),
    attempt_max: Duration::from_secs(4),
};
/// How long a proposer waits before it sends a request again.
const RESEND_INTERVAL: Duration = Duration::from_millis(400);
/// How long a link has to come up before a member is left out for lack of it.
const RECONNECT_GRACE: Duration = Duration::from_secs(1);
/// How long a member whose disk has just failed gets to write its vote after all, before it is left out.
const DISK_GRACE: Duration = Duration::from_millis(1500);
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
