//! The view-change driver: one member's vote on the successor of its view, and its own attempt to have one chosen.
//!
//! Like the rules of order of a meeting, which are the same whatever the motion. When to make a motion, what it says and who is
//! asked is for the policy of the caller. There are two: the members of a view that continues ([`agreement`]) and members that
//! are back after all had stopped ([`recovery`]).
//!
//! # How it works
//! 1. [`begin`](ViewChangeDriver::begin) picks a ballot. The caller sends the [`Prepare`] to itself.
//! 2. Once its own promise is on disk and comes back, [`on_promise`](Attempt::on_promise) says to ask the others, so
//!    that no restart uses the ballot again.
//! 3. With enough promises the policy names a change by [`Attempt::propose`].
//! 4. [`on_accepted`](ViewChangeDriver::on_accepted) returns the change once it is chosen.
//!
//! An attempt that is refused, or that the policy gives up, leaves a pause after which the next one may begin. A member that has
//! promised another proposer gives that one its time first.
//!
//! # Not here
//! Messages, disks and links: the caller sends, and has the [vote](ViewChangeDriver::acceptor) written before an answer leaves.
//!
//! [`agreement`]: crate::membership::agreement
//! [`recovery`]: crate::membership::recovery

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_protocol::agreement::{self, Acceptor, Ballot, Proposer, UnanimousProposer};
use peergrad_protocol::message::{Accepted, MemberReport, Nack, Prepare, Promise, Propose};
use peergrad_protocol::view::ViewChange;
use peergrad_protocol::{Instant, Rank, StepNumber, ViewDigest};

/// How long the members of one policy wait for each other.
#[derive(Debug)]
pub(crate) struct Pacing {
    /// Between the first tries of two members whose order differs by one.
    pub(crate) stagger: Duration,
    /// From this order on, no member waits longer than the one before it.
    pub(crate) order_max: u32,
    /// The pause after an attempt that was refused.
    pub(crate) retry: Duration,
    /// How long a proposer waits for promises.
    pub(crate) collect_max: Duration,
    /// How long a proposer waits for acceptances.
    pub(crate) attempt_max: Duration,
}

impl Pacing {
    /// How long the member of this order waits before it tries, so that two seldom try at once.
    pub(crate) fn stagger(&self, order: u32) -> Duration {
        self.stagger * order.min(self.order_max)
    }
}

/// What it takes to have a change chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecisionRule {
    /// A quorum of the view accepts it.
    Quorum,
    /// All members that stay accept it.
    Unanimity,
}

/// One member's part in the choice of one view's successor. `P` is what the policy remembers of an attempt.
pub(crate) struct ViewChangeDriver<P> {
    /// The digest of the view whose successor is chosen.
    view: ViewDigest,
    /// This member's rank in that view.
    rank: Rank,
    /// The number of members of that view, from which the quorum follows.
    member_count: usize,
    /// How long members wait for each other.
    pacing: &'static Pacing,
    /// This member's vote, which is written to disk before it is sent.
    pub(crate) acceptor: Acceptor<ViewChange>,
    /// This member's own attempt, while it makes one.
    pub(crate) attempt: Option<Attempt<P>>,
    /// The highest attempt of any member that this one knows of.
    attempts: u32,
    /// When this member may try next.
    pub(crate) not_before: Instant,
    /// The member whose attempt has until then; `None` if this member waits for another reason.
    awaited: Option<Rank>,
}

/// An attempt of this member to have the next view chosen.
pub(crate) struct Attempt<P> {
    /// Counts the promises and acceptances of this attempt.
    proposer: Box<dyn agreement::Attempt<ViewChange, MemberReport> + Send>,
    /// The message that asks for promises, with the attempt's ballot.
    prepare: Prepare,
    /// What the policy remembers of it.
    pub(crate) plan: P,
    /// When it began.
    pub(crate) began: Instant,
    /// When its present phase began: asking, or since it has proposed.
    pub(crate) since: Instant,
}

/// How an attempt of this member was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A member has promised a higher ballot.
    Outbid,
    /// The step before which the change was to happen has begun at a member.
    TooLate,
}

impl<P> ViewChangeDriver<P> {
    /// The part of the member at `rank` in the choice of the view after `view`, which has `member_count` members.
    pub(crate) fn new(
        now: Instant,
        (view, rank, member_count): (ViewDigest, Rank, usize),
        acceptor: Acceptor<ViewChange>,
        pacing: &'static Pacing,
    ) -> Self {
        Self {
            view,
            rank,
            member_count,
            pacing,
            acceptor,
            attempt: None,
            attempts: 0,
            not_before: now,
            awaited: None,
        }
    }

    // Proposing.

    /// Begins an attempt. The caller sends the answer to this member itself, and to no other one yet.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        rule: DecisionRule,
        before: Option<StepNumber>,
        plan: P,
    ) -> Prepare {
        let promised = self.acceptor.promised().map_or(0, |ballot| ballot.attempt);
        self.attempts = self.attempts.max(promised) + 1;
        let ballot = Ballot { attempt: self.attempts, rank: self.rank };
        let proposer: Box<dyn agreement::Attempt<_, _> + Send> = match rule {
            DecisionRule::Quorum => Box::new(Proposer::new(ballot, self.member_count)),
            DecisionRule::Unanimity => Box::new(UnanimousProposer::new(ballot, self.member_count)),
        };
        let prepare = Prepare { view: self.view, ballot, before };
        self.attempt = Some(Attempt { proposer, prepare, plan, began: now, since: now });
        self.awaited = None;
        prepare
    }

    /// Drops this member's attempt, if there is one, and waits for `pause` before the next.
    pub(crate) fn give_up(&mut self, now: Instant, pause: Duration) {
        self.attempt = None;
        self.not_before = now.after(pause);
    }

    /// The attempt of this member that an answer belongs to; `None` if the answer is to another one.
    pub(crate) fn attempt_under(&mut self, view: ViewDigest, ballot: Ballot) -> Option<&mut Attempt<P>> {
        self.attempt.as_mut().filter(|attempt| view == self.view && ballot == attempt.proposer.ballot())
    }

    /// A member has refused a ballot. `None` if that was not the one of this member's attempt; else the attempt is given up.
    pub(crate) fn on_nack(&mut self, now: Instant, nack: &Nack) -> Option<Refused> {
        self.attempt_under(nack.view, nack.ballot)?;
        if let Some(promised) = nack.promised {
            self.attempts = self.attempts.max(promised.attempt);
            self.give_up(now, self.pacing.retry + self.pacing.stagger(self.rank.0));
            Some(Refused::Outbid)
        } else {
            // The others stop before the step that was named until they are given another one.
            self.give_up(now, Duration::ZERO);
            Some(Refused::TooLate)
        }
    }

    /// The member at rank `from` has accepted this member's proposal: the attempt, if that makes its change chosen.
    pub(crate) fn on_accepted(&mut self, from: Rank, accepted: Accepted) -> Option<&Attempt<P>> {
        let attempt = self.attempt_under(accepted.view, accepted.ballot)?;
        attempt.proposer.accepted(from).then_some(&*attempt)
    }

    // Voting.

    /// Records another member's ballot: the next one of this member is above it.
    pub(crate) fn note(&mut self, ballot: Ballot) {
        self.attempts = self.attempts.max(ballot.attempt);
    }

    /// Gives the attempt of another member `patience`, and this member's place in the order, before this one tries again.
    pub(crate) fn wait_for(&mut self, now: Instant, rank: Rank, patience: Duration) {
        if rank != self.rank {
            self.not_before = now.after(patience + self.pacing.stagger(self.rank.0));
            self.awaited = Some(rank);
        }
    }

    /// The attempt of a member that is lost is not waited for any longer than this member's `order` takes.
    pub(crate) fn stop_waiting_for(&mut self, now: Instant, lost: &[Rank], order: u32) {
        if self.awaited.take_if(|rank| lost.binary_search(rank).is_ok()).is_some() {
            self.not_before = self.not_before.min(now.after(self.pacing.stagger * order));
        }
    }
}

impl<P> Attempt<P> {
    /// The member at rank `from` has promised. Returns the request for the other members, if that was the proposer's own promise.
    pub(crate) fn on_promise(&mut self, from: Rank, promise: Promise) -> Option<Prepare> {
        let is_own = from == self.prepare.ballot.rank;
        let is_news = self.proposer.promised(from, promise.accepted, promise.report);
        (is_news && is_own).then_some(self.prepare)
    }

    /// The state of the proposer: its ballot and the answers so far.
    pub(crate) fn proposer(&self) -> &dyn agreement::Attempt<ViewChange, MemberReport> {
        &*self.proposer
    }

    /// The request for a promise.
    pub(crate) fn prepare(&self) -> Prepare {
        self.prepare
    }

    /// The request to accept the change; `None` before it is proposed.
    pub(crate) fn proposal(&self) -> Option<Propose> {
        let change = self.proposer.proposed()?.clone();
        Some(Propose { ballot: self.proposer.ballot(), change })
    }

    /// Proposes `change`, or what has to be adopted, to the members at the ranks `staying`.
    pub(crate) fn propose(&mut self, now: Instant, staying: BTreeSet<Rank>, change: ViewChange) {
        self.proposer.propose_to(staying, change);
        self.since = now;
    }
}
