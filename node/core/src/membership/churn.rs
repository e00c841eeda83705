//! Churn: peers join and leave between two steps, while training goes on.
//!
//! # How it works
//! 1. Any member welcomes a peer that asks to join. Once the peer has task and data, that member announces it to the coordinator (the
//!    lowest live rank that has parameters) until it is a member. A member that wants to leave tells the coordinator.
//! 2. The coordinator gathers these requests, names a future step, and has the members agree on a view from there. That view is usually
//!    chosen before they reach the step.
//! 3. A member that leaves hands over first: it is in one more view with capacity 0, until its chunks have moved. If other members hold
//!    replicas of all its chunks, it leaves at once.
//!
//! A peer that was lost waits before it is admitted again: `admission.rs`. How far ahead the step is: `lead.rs`.

use peergrad_protocol::limits::{CONTACTS_MAX, MEMBERS_MAX};
use peergrad_protocol::message::{AdminMessage, Contact, Join, JoinMessage, Refusal};
use peergrad_protocol::view::{Member, View, ViewChange};
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber};

use super::agreement::PlannedChange;
use super::{Membership, TrainingSnapshot};
use crate::io::Output;
use crate::membership::view_change::Churn;

impl Membership {
    // Joining.

    /// A peer asks to join. Returns false if it is a member already and does not know it.
    ///
    /// # Errors
    /// Why it may not join.
    pub(crate) fn on_join(&mut self, from: PeerId, join: &Join, is_closing: bool) -> Result<bool, Refusal> {
        if join.run.is_some_and(|run| run != self.place.view.run) {
            return Err(Refusal::OtherRun { run: self.place.view.run });
        }
        if is_closing {
            return Err(Refusal::RunComplete);
        }
        if let Some(expulsion) = self.expulsion_of(&from) {
            return Err(Refusal::Expelled(*expulsion));
        }
        if self.is_paused() && !self.is_member(&from) {
            // No peer can join here now, and perhaps other members train.
            return Err(Refusal::NotReady);
        }
        if let Some(rank) = self.place.view.rank(&from) {
            let known = self.place.view.member(rank).incarnation;
            if join.incarnation == known && !self.view_state.reported_progress.contains_key(&rank) {
                return Ok(false);
            }
            if known.is_rejoin_of(join.incarnation) {
                // It asked long ago, before it was admitted again.
                return Ok(false);
            }
            // A peer that has sent heartbeats as a member does not ask to join under that incarnation.
            if join.incarnation <= known {
                return Err(Refusal::DuplicateIdentity);
            }
            // The incarnation that is in the view is gone.
            self.mark_restarted(rank);
        }
        // Of two incarnations the later one is the peer; the other is outdated, or uses a copy of its key.
        let waiting = self.admission.asking(&from);
        if let Some(known) = waiting.map(|known| known.incarnation).filter(|known| *known > join.incarnation)
        {
            return if known.is_rejoin_of(join.incarnation) {
                Ok(true)
            } else {
                Err(Refusal::DuplicateIdentity)
            };
        }
        if self.place.view.members.len() + self.admission.candidates.len() >= MEMBERS_MAX {
            return Err(Refusal::Full);
        }
        let Join { incarnation, addresses, capacity, .. } = join.clone();
        self.admission.prepare(Member { peer: from, incarnation, addresses, capacity });
        Ok(true)
    }

    /// Members that a joiner may ask, this one first.
    pub(crate) fn contacts(&self) -> Vec<Contact> {
        let others = self.place.view.members.iter().filter(|member| member.peer != self.place.me.peer);
        let all = std::iter::once(&self.place.me).chain(others).take(CONTACTS_MAX);
        all.map(Member::contact).collect()
    }

    /// A peer that was welcomed here is ready. Returns false if it was not welcomed, is a member already, or should ask other members.
    pub(crate) fn on_ready(&mut self, now: Instant, from: PeerId) -> bool {
        if self.is_paused() {
            return false;
        }
        self.admission.ready(now, from, &self.place.view)
    }

    /// A member announces a peer that is ready to join.
    pub(crate) fn on_candidate(&mut self, now: Instant, member: Member) {
        self.admission.announce(now, member, &self.place.view);
    }

    /// A peer that is no member is gone.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        self.admission.forget(peer);
    }

    /// Peers that this member has welcomed and that are ready to join.
    pub(crate) fn sponsored(&self) -> Vec<PeerId> {
        self.admission.sponsored().copied().collect()
    }

    /// Peers that have asked this member and are not members yet.
    pub(crate) fn waiting(&self) -> Vec<PeerId> {
        self.admission.waiting().copied().collect()
    }

    /// The members of a new view that have asked this one to join: this member sends them the view.
    pub(crate) fn sponsored_in(&self, view: &View) -> Vec<PeerId> {
        self.admission.sponsored_in(view)
    }

    // Leaving.

    /// A member wants to leave; it may be this one.
    pub(crate) fn on_retire(&mut self, from: PeerId) {
        if self.place.view.rank(&from).is_some() {
            self.departures.retiring.insert(from);
        }
    }

    /// Whether this member wants to leave.
    pub(crate) fn is_retiring(&self) -> bool {
        self.departures.retiring.contains(&self.place.me.peer)
    }

    // Both.

    /// Sends again what may not have arrived, and tells the coordinator which peers join and leave.
    pub(super) fn resend(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.resend_attempt(now, out);
        self.admission.forget_stale(now);
        self.capacity_offers.forget_stale(now);
        self.resend_expulsions(out);
        self.resend_rekey(out);
        let Some(coordinator) = self.coordinator(now) else { return };
        let coordinator = self.place.view.member(coordinator).peer;
        if coordinator == self.place.me.peer {
            return;
        }
        for member in self.admission.sponsored_candidates() {
            self.send(coordinator, &JoinMessage::Candidate(member.clone()).into(), out);
        }
        if let Some(offer) = self.own_capacity_offer(now) {
            self.send(coordinator, &JoinMessage::Candidate(offer).into(), out);
        }
        if self.is_retiring() {
            self.send(coordinator, &AdminMessage::Retire.into(), out);
        }
    }

    pub(super) fn coordinator(&self, now: Instant) -> Option<Rank> {
        let lost = self.lost(now);
        let ranks = (0..self.place.view.members.len()).map(Rank::from_index);
        let is_to_go =
            |rank: &Rank| self.departures.expelling.contains_key(&self.place.view.member(*rank).peer);
        ranks.into_iter().find(|rank| !lost.contains(rank) && !is_to_go(rank) && !self.is_newcomer(*rank))
    }

    /// The change that is due between two steps, if this member is to propose it.
    pub(super) fn change_due(&self, now: Instant, snapshot: &TrainingSnapshot<'_>) -> Option<PlannedChange> {
        let is_quiet = snapshot.has_committed && !snapshot.is_closing && !snapshot.is_still;
        let has_gone = |peer: &PeerId| self.place.view.rank(peer).is_none();
        // A member that was to be expelled has left before that.
        let is_late = self.departures.expelling.keys().any(has_gone);
        let is_wanted = is_late
            || self.admission.has_candidates()
            || !self.departures.retiring.is_empty()
            || self.wants_capacity_change(now);
        let merge_offer = snapshot.merge_offer.filter(|_| is_quiet);
        if !is_quiet
            || !(is_wanted || merge_offer.is_some())
            || self.coordinator(now) != Some(self.place.rank)
        {
            return None;
        }
        let step = StepNumber(snapshot.step.0 + self.lead.steps(self.detection.step_timing.usual()));
        if let Some(change) = merge_offer.and_then(|merge_offer| {
            snapshot.planner.merging(step, snapshot.step, snapshot.assignment, merge_offer)
        }) {
            return Some(PlannedChange::BetweenSteps(Box::new(change)));
        }
        if !is_wanted {
            return None;
        }
        let churn = self.churn(now, step, snapshot);
        if churn == Churn::default() && !is_late {
            return None;
        }
        if snapshot.tables.is_some() {
            // No step is named: the change depends on what members hold when they stop.
            return Some(PlannedChange::OfTables(churn));
        }
        let change = snapshot.planner.between_steps(step, snapshot.step, snapshot.assignment, &churn)?;
        let expelled = self.expulsions_with(&change);
        Some(PlannedChange::BetweenSteps(Box::new(ViewChange { expelled, ..change })))
    }

    fn churn(&self, now: Instant, step: StepNumber, snapshot: &TrainingSnapshot<'_>) -> Churn {
        let room = MEMBERS_MAX - self.place.view.members.len();
        let candidates = self
            .admission
            .candidates(now, &self.place.view)
            .filter(|member| self.expulsion_of(&member.peer).is_none());
        let joiners = candidates.take(room).cloned().collect();
        let mut churn = Churn { joiners, ..Churn::default() };
        let mut retiring: Vec<Rank> =
            self.departures.retiring.iter().filter_map(|peer| self.place.view.rank(peer)).collect();
        retiring.sort_unstable();
        if retiring.len() == self.place.view.members.len() {
            // The last member has no other one to hand over its chunks to.
            retiring.pop();
        }
        for rank in retiring {
            let with = [&churn.leavers[..], &[rank]].concat();
            if snapshot.can_leave(&with, step) {
                churn.leavers = with;
            } else if self.place.view.member(rank).capacity > 0 {
                churn.retirees.push(rank);
            }
        }
        churn.capacities = self.capacity_changes(now, &churn);
        churn
    }

    /// Peers that were lost with the previous view must wait before they join again.
    pub(super) fn ban_lost(&mut self, now: Instant, left: &[PeerId]) {
        let is_lost =
            |peer: &&PeerId| self.place.view.rank(peer).is_none() && !self.departures.retiring.contains(peer);
        self.admission.ban(now, left.iter().filter(is_lost));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use peergrad_protocol::{Incarnation, RunId};

    use super::super::NextView;
    use super::super::admission::{BAN, BAN_DECAY, BAN_DOUBLINGS_MAX};
    use super::super::lead::{LEAD_STEPS_MAX, Lead};
    use super::*;
    use crate::fixtures::{self, peer};
    use crate::partition_policy::PartitionPolicy;
    use crate::state::shared_cache::SharedCache;

    fn member(byte: u8, incarnation: u64) -> Member {
        Member { incarnation: Incarnation(incarnation), ..fixtures::member(byte) }
    }

    fn view(peers: &[u8]) -> View {
        View::first(RunId([1; 32]), peers.iter().map(|byte| member(*byte, 5)).collect())
    }

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    fn membership(peers: &[u8]) -> Membership {
        let view = view(peers);
        let (me, digest) = (view.members[0].clone(), view.digest());
        Membership::new(
            at(0),
            me,
            Arc::new(view),
            digest,
            BTreeSet::new(),
            (SharedCache::default(), Arc::new([]), PartitionPolicy::Majority),
        )
    }

    fn join(incarnation: u64, run: Option<RunId>) -> Join {
        Join { run, incarnation: Incarnation(incarnation), addresses: vec![], capacity: 1 }
    }

    #[test]
    fn a_ban_doubles_with_each_loss_up_to_half_a_minute() {
        let mut membership = membership(&[1, 2]);
        let mut waits = Vec::new();
        for lost in 0..10 {
            let now = at(1000 * lost);
            membership.ban_lost(now, &[peer(3)]);
            waits.push(membership.admission.bans[&peer(3)].ends_at().since(now));
        }
        let expected = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000, 32_000];
        assert_eq!(waits, expected.map(Duration::from_millis));
        assert_eq!(membership.admission.bans.len(), 1);
    }

    #[test]
    fn a_ban_halves_with_each_half_minute() {
        let wait = |passed: Duration| {
            let mut membership = membership(&[1, 2]);
            (0..4).for_each(|_| membership.ban_lost(at(0), &[peer(3)]));
            let later = at(0).after(passed);
            membership.ban_lost(later, &[peer(3)]);
            membership.admission.bans[&peer(3)].ends_at().since(later)
        };
        let waits = [0, 1, 2, 3, 4, 1000].map(|halvings| wait(BAN_DECAY * halvings).as_millis());
        assert_eq!(waits, [8000, 4000, 2000, 1000, 500, 500]);
    }

    /// Loses a peer repeatedly for a quarter of an hour, each time `after` it may join again. Returns how long it had to wait each time.
    fn lose_again_and_again(after: Duration) -> Vec<Duration> {
        let mut membership = membership(&[1, 2]);
        let mut waits = Vec::new();
        let mut now = at(0);
        while now < at(900_000) {
            membership.ban_lost(now, &[peer(3)]);
            let ends_at = membership.admission.bans[&peer(3)].ends_at();
            waits.push(ends_at.since(now));
            now = ends_at.after(after);
        }
        waits
    }

    #[test]
    fn one_that_flaps_is_lost_twice_a_minute_at_most() {
        let waits = lose_again_and_again(Duration::from_secs(1));
        assert!(waits.len() <= 30 + BAN_DOUBLINGS_MAX as usize, "{waits:?}");
    }

    #[test]
    fn one_that_is_lost_once_a_minute_hardly_waits_and_if_it_flapped_before_after_some_minutes() {
        assert!(lose_again_and_again(Duration::from_secs(59)).iter().all(|wait| *wait == BAN));
        let mut membership = membership(&[1, 2]);
        (0..20).for_each(|_| membership.ban_lost(at(0), &[peer(3)]));
        for minute in 1..=8 {
            membership.ban_lost(at(60_000 * minute), &[peer(3)]);
        }
        assert_eq!(membership.admission.bans[&peer(3)].ends_at().since(at(480_000)), BAN);
    }

    #[test]
    fn who_wanted_to_go_may_come_back_at_once() {
        let mut membership = membership(&[1, 2, 3]);
        membership.on_retire(peer(3));
        membership.on_retire(peer(9));
        membership.place.view = Arc::new(view(&[1, 2]));
        membership.ban_lost(at(0), &[peer(3)]);
        assert!(membership.admission.bans.is_empty() && !membership.is_retiring());
    }

    #[test]
    fn a_change_is_named_further_ahead_where_steps_are_short_or_it_came_too_late() {
        let mut membership = membership(&[1]);
        let mut lead = |step_milliseconds: u64, doublings: u32| {
            membership.detection.step_timing = super::super::failure_detection::StepTiming::default();
            membership.detection.step_timing.note(at(0), StepNumber(0));
            membership.detection.step_timing.note(at(step_milliseconds), StepNumber(1));
            membership.lead = Lead::default();
            (0..doublings).for_each(|_| membership.lead.lengthen());
            membership.lead.steps(membership.detection.step_timing.usual())
        };
        assert_eq!([lead(10_000, 0), lead(150, 0), lead(100, 0), lead(10, 0)], [1, 1, 2, 15]);
        assert_eq!([lead(150, 1), lead(100, 3), lead(150, 5), lead(150, 50)], [2, 16, 32, 32]);
        assert_eq!([lead(0, 0), lead(1, 1)], [LEAD_STEPS_MAX; 2], "no further than that");
    }

    #[test]
    fn a_joiner_is_told_why_it_is_not_let_in() {
        let mut membership = membership(&[1, 2]);
        let other = RunId([2; 32]);
        let run = Some(membership.place.view.run);
        let refused = |refusal| Err(refusal);
        assert_eq!(
            membership.on_join(peer(3), &join(1, Some(other)), false),
            refused(Refusal::OtherRun { run: RunId([1; 32]) })
        );
        assert_eq!(membership.on_join(peer(3), &join(1, run), true), refused(Refusal::RunComplete));
        // It asked before it was lost and came back, and its request was delayed by a partition.
        assert_eq!(membership.on_join(peer(2), &join(4, run), false), Ok(false));
        // The incarnation that is a member, and does not know it yet.
        assert_eq!(membership.on_join(peer(2), &join(5, run), false), Ok(false));
        assert!(membership.view_state.broken.is_empty());
        assert_eq!(membership.on_join(peer(2), &join(6, run), false), Ok(true));
        assert!(membership.view_state.broken.contains(&Rank(1)), "the one that is in the view is no more");
        assert_eq!(membership.on_join(peer(3), &join(1, None), false), Ok(true));
    }

    #[test]
    fn one_that_is_started_again_while_a_view_is_agreed_on_is_not_taken_for_the_member() {
        let mut membership = membership(&[1, 2, 3]);
        assert_eq!(membership.on_join(peer(2), &join(6, None), false), Ok(true));
        let next = |members: &[u8]| {
            let next = view(members);
            NextView { digest: next.digest(), view: Arc::new(next), is_enterable: true }
        };
        membership.next = Some(next(&[1, 2]));
        membership.advance(at(0));
        assert!(membership.view_state.broken.contains(&Rank(1)));
        assert_eq!(membership.admission.preparing.len(), 1, "it still wants to come in");
        membership.next = Some(next(&[1, 3]));
        membership.advance(at(0));
        assert!(membership.view_state.broken.is_empty());
    }

    #[test]
    fn of_two_starts_the_later_one_is_the_peer() {
        let start = |start, draw| Incarnation::of_start(start, draw);
        let asks = |membership: &mut Membership, peer, Incarnation(incarnation)| {
            membership.on_join(peer, &join(incarnation, None), false)
        };
        let mut membership = membership(&[1, 2]);
        for (known, peer) in [(start(3, 7), peer(2)), (start(3, 7), peer(3))] {
            assert_eq!(asks(&mut membership, peer, known.next()), Ok(true));
            // An older start on another machine, and one with the same incarnation.
            for other in [start(2, 9), start(3, 6)] {
                assert_eq!(asks(&mut membership, peer, other), Err(Refusal::DuplicateIdentity));
            }
            // A late request of the peer itself: it changes nothing.
            assert_eq!(asks(&mut membership, peer, known), Ok(true));
            assert_eq!(membership.admission.preparing[&peer].incarnation, known.next());
        }
    }

    #[test]
    fn a_joiner_is_a_candidate_once_it_is_ready() {
        let mut membership = membership(&[1, 2]);
        assert!(!membership.on_ready(at(0), peer(3)), "it was not welcomed");
        assert_eq!(membership.on_join(peer(3), &join(1, None), false), Ok(true));
        assert!(membership.admission.candidates.is_empty());
        assert!(membership.on_ready(at(0), peer(3)) && membership.on_ready(at(0), peer(3)));
        assert_eq!(membership.admission.candidates.keys().collect::<Vec<_>>(), [&peer(3)]);
        // It asks again, perhaps after a restart: then it has to prepare again.
        assert_eq!(membership.on_join(peer(3), &join(2, None), false), Ok(true));
        assert!(membership.admission.candidates.is_empty() && membership.on_ready(at(0), peer(3)));
        assert_eq!(membership.admission.candidates[&peer(3)].member.incarnation, Incarnation(2));
        assert_eq!(membership.sponsored_in(&view(&[1, 2, 3])), [peer(3)]);
        membership.forget(&peer(3));
        assert!(!membership.on_ready(at(0), peer(3)) && membership.sponsored_in(&view(&[3])).is_empty());
    }

    #[test]
    fn who_is_not_heard_of_any_more_is_no_candidate() {
        let mut membership = membership(&[1, 2]);
        assert_eq!(membership.on_join(peer(3), &join(1, None), false), Ok(true));
        assert!(membership.on_ready(at(0), peer(3)));
        membership.on_candidate(at(0), member(4, 1));
        assert!(membership.on_ready(at(3000), peer(3)));
        membership.admission.forget_stale(at(6000));
        assert_eq!(membership.admission.candidates.keys().collect::<Vec<_>>(), [&peer(3)]);
        membership.admission.forget_stale(at(9000));
        assert!(membership.admission.candidates.is_empty() && membership.admission.sponsored.is_empty());
        assert!(!membership.on_ready(at(9000), peer(3)), "it has to ask again");
    }

    #[test]
    fn a_candidate_that_is_in_already_is_none() {
        let mut membership = membership(&[1, 2]);
        membership.on_candidate(at(0), member(2, 5));
        membership.on_candidate(at(0), member(2, 4));
        assert!(membership.admission.candidates.is_empty());
        membership.on_candidate(at(0), member(2, 6));
        membership.on_candidate(at(0), member(3, 1));
        assert_eq!(membership.admission.candidates.len(), 2);
    }

    #[test]
    fn candidates_are_no_more_than_members_can_be() {
        let mut membership = membership(&[1, 2]);
        for index in 0..2 * MEMBERS_MAX as u16 {
            let mut key = [9; 32];
            key[..2].copy_from_slice(&index.to_be_bytes());
            membership.on_candidate(at(0), Member { peer: PeerId(key), ..member(9, 1) });
        }
        assert_eq!(membership.admission.candidates.len(), MEMBERS_MAX);
        assert_eq!(membership.on_join(peer(3), &join(1, None), false), Err(Refusal::Full));
    }

    #[test]
    fn a_joiner_is_told_of_the_one_it_asked_first() {
        let membership = membership(&[3, 4, 5]);
        let peers: Vec<PeerId> = membership.contacts().iter().map(|contact| contact.peer).collect();
        assert_eq!(peers, [peer(3), peer(4), peer(5)]);
        let many: Vec<u8> = (1..=200).collect();
        assert_eq!(self::membership(&many).contacts().len(), CONTACTS_MAX);
    }
}
