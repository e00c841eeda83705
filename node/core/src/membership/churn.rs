//! Churn: peers join and leave between two steps, while training continues.
//!
//! # How it works
//! 1. Any member welcomes a peer that asks to join. Once the peer has task and data, that member announces it to the coordinator (the
//!    lowest live rank that has parameters) until it is a member. A member that wants to leave tells the coordinator.
//! 2. The coordinator gathers these requests, names a future step, and has the members agree on a view from there. That view is usually
//!    chosen before they reach the step.
//! 3. A member that leaves hands over first: it is in one more view with capacity 0, until its chunks have moved. If other members hold
//!    replicas of all its chunks, it leaves at once. If all members want to leave, one of them stays an owner until the others are gone.
//!
//! A peer that was lost waits before it is admitted again: `admission.rs`. How far ahead the step is: `lead.rs`.

use std::cmp::Reverse;

use peergrad_protocol::limits::MEMBERS_MAX;
use peergrad_protocol::message::{AdminMessage, JoinMessage};
use peergrad_protocol::view::ViewChange;
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber};

use super::admission::Admission;
use super::capacity::CapacityOffers;
use super::lead::Lead;
use super::measurements::{Measurement, Measurements};
use super::members::Members;
use super::succession::PlannedChange;
use super::training_status::TrainingStatus;
use crate::io::Output;
use crate::membership::view_change::Churn;

/// The requests that change the members between two steps.
#[derive(Clone, Copy)]
pub(super) struct Requests<'m> {
    /// The present members, with those that want to leave.
    pub(super) members: &'m Members,
    /// The peers that ask to join.
    pub(super) admission: &'m Admission,
    /// The changes of capacity that members ask for.
    pub(super) capacity_offers: &'m CapacityOffers,
    /// What members have measured.
    pub(super) measurements: &'m Measurements,
}

impl Requests<'_> {
    /// Tells the coordinator again which peers join and leave, and which capacity this member offers.
    pub(super) fn resend(&self, now: Instant, out: &mut Vec<Output>) {
        let Some(coordinator) = self.members.coordinator(now) else { return };
        let coordinator = self.members.place.peer(coordinator);
        if coordinator == self.members.me().peer {
            return;
        }
        for member in self.admission.sponsored_candidates() {
            self.members.send(coordinator, &JoinMessage::Candidate(member.clone()).into(), out);
        }
        if let Some(offer) = self.capacity_offers.own_offer(now, self.members) {
            self.members.send(coordinator, &JoinMessage::Candidate(offer).into(), out);
        }
        if self.members.is_retiring() {
            self.members.send(coordinator, &AdminMessage::Retire.into(), out);
        }
        if self.members.wants_end() {
            self.members.send(coordinator, &AdminMessage::EndRun.into(), out);
        }
    }

    /// The change that is due between two steps, if this member is to propose it.
    pub(super) fn change_due(
        &self,
        now: Instant,
        lead: &Lead,
        status: &TrainingStatus<'_>,
    ) -> Option<PlannedChange> {
        let is_quiet = status.has_committed && !status.is_closing && !status.gate.is_frozen;
        let merge_offer = status.merge.offer.filter(|_| is_quiet);
        let is_wanted = self.is_change_wanted(now);
        if !is_quiet
            || !(is_wanted || merge_offer.is_some())
            || self.members.coordinator(now) != Some(self.members.place.rank)
            || !self.members.can_choose(status.tables.is_some())
        {
            return None;
        }
        let step = StepNumber(status.step.0 + lead.steps(self.members.step_time()));
        let assignment = status.assignments.current;
        if let Some(change) =
            merge_offer.and_then(|offer| status.planner.merging(step, status.step, assignment, offer))
        {
            return Some(PlannedChange::BetweenSteps(Box::new(change)));
        }
        if !is_wanted {
            return None;
        }
        let churn = self.churn(now, step, status);
        if !status.planner.changes_anything(&churn) && !self.is_expulsion_late() {
            return None;
        }
        if status.tables.is_some() {
            // No step is named: the change depends on what members hold when they stop.
            return Some(PlannedChange::OfTables(churn));
        }
        let change = status.planner.between_steps(step, status.step, assignment, &churn)?;
        let expelled = self.members.departures.expulsions_with(&self.members.place.view, &change);
        Some(PlannedChange::BetweenSteps(Box::new(ViewChange { expelled, ..change })))
    }

    fn is_change_wanted(&self, now: Instant) -> bool {
        self.is_expulsion_late()
            || self.admission.has_candidates()
            || !self.members.departures.retiring.is_empty()
            || self.capacity_offers.wants_change(now, self.members)
            || self.measurements.proposal().is_some()
            || self.members.wants_end()
    }

    /// Whether a member that was to be expelled has left before that.
    fn is_expulsion_late(&self) -> bool {
        let has_gone = |peer: &PeerId| !self.members.is_member(peer);
        self.members.departures.expelling.keys().any(has_gone)
    }

    /// The members that join, leave or change before `step`.
    fn churn(&self, now: Instant, step: StepNumber, status: &TrainingStatus<'_>) -> Churn {
        let (view, departures) = (&self.members.place.view, &self.members.departures);
        let room = MEMBERS_MAX - view.members.len();
        let candidates = self
            .admission
            .candidates(now, view)
            .filter(|member| departures.expulsion_of(view, &member.peer).is_none());
        let joiners = candidates.take(room).cloned().collect();
        let ends_run = self.members.wants_end() && status.tables.is_none();
        let mut churn = Churn { joiners, ends_run, ..Churn::default() };
        let mut retiring: Vec<Rank> = departures.retiring.iter().filter_map(|peer| view.rank(peer)).collect();
        retiring.sort_unstable();
        let mut last = None;
        if retiring.len() == view.members.len() {
            // All want to leave. One stays until the others have handed over their chunks to it: always the same one, and if possible
            // one that is not to be expelled.
            let stays = |rank: Rank| !departures.expelling.contains_key(&self.members.place.peer(rank));
            let priority = |rank: &Rank| (stays(*rank), view.member(*rank).capacity, Reverse(*rank));
            last = retiring.iter().copied().max_by_key(priority);
            retiring.retain(|rank| Some(*rank) != last);
        }
        for rank in retiring {
            let with = [&churn.leavers[..], &[rank]].concat();
            if status.can_leave(&with, step) {
                churn.leavers = with;
            } else if view.member(rank).capacity > 0 {
                churn.retirees.push(rank);
            }
        }
        churn.measurements = self.measurements.proposal().map_or_else(Vec::new, <[Measurement]>::to_vec);
        churn.capacities = self.capacity_offers.changes(now, self.members, &churn);
        if let Some(last) = last.filter(|rank| view.member(*rank).capacity == 0) {
            churn.capacities.push((last, 1));
            churn.capacities.sort_unstable();
        }
        churn
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use peergrad_protocol::limits::CONTACTS_MAX;
    use peergrad_protocol::message::{Join, Refusal};
    use peergrad_protocol::view::{Member, View};
    use peergrad_protocol::{Incarnation, RunId};

    use super::super::admission::{BAN, BAN_DECAY, BAN_DOUBLINGS_MAX};
    use super::super::failure_detection::StepTiming;
    use super::super::lead::{LEAD_STEPS_MAX, Lead};
    use super::super::succession::NextView;
    use super::*;
    use crate::fixtures::{self, peer};
    use crate::membership::{JoinAnswer, Membership, RunPhase};
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
            (SharedCache::default(), Arc::new([]), fixtures::rules()),
        )
    }

    /// These peers have left the view.
    fn ban_lost(membership: &mut Membership, now: Instant, left: &[PeerId]) {
        let Members { place, departures, .. } = &membership.members;
        membership.admission.ban_lost(now, left, &place.view, departures);
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
            ban_lost(&mut membership, now, &[peer(3)]);
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
            (0..4).for_each(|_| ban_lost(&mut membership, at(0), &[peer(3)]));
            let later = at(0).after(passed);
            ban_lost(&mut membership, later, &[peer(3)]);
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
            ban_lost(&mut membership, now, &[peer(3)]);
            let ends_at = membership.admission.bans[&peer(3)].ends_at();
            waits.push(ends_at.since(now));
            now = ends_at.after(after);
        }
        waits
    }

    #[test]
    fn a_flapping_peer_is_lost_at_most_twice_a_minute() {
        let waits = lose_again_and_again(Duration::from_secs(1));
        assert!(waits.len() <= 30 + BAN_DOUBLINGS_MAX as usize, "{waits:?}");
    }

    #[test]
    fn a_peer_lost_once_a_minute_waits_for_the_shortest_ban() {
        assert!(lose_again_and_again(Duration::from_secs(59)).iter().all(|wait| *wait == BAN));
        let mut membership = membership(&[1, 2]);
        (0..20).for_each(|_| ban_lost(&mut membership, at(0), &[peer(3)]));
        for minute in 1..=8 {
            ban_lost(&mut membership, at(60_000 * minute), &[peer(3)]);
        }
        assert_eq!(membership.admission.bans[&peer(3)].ends_at().since(at(480_000)), BAN);
    }

    #[test]
    fn a_member_that_left_on_request_may_rejoin_at_once() {
        let mut membership = membership(&[1, 2, 3]);
        membership.members.on_retire(peer(3));
        membership.members.on_retire(peer(9));
        membership.members.place.view = Arc::new(view(&[1, 2]));
        ban_lost(&mut membership, at(0), &[peer(3)]);
        assert!(membership.admission.bans.is_empty() && !membership.members.is_retiring());
    }

    #[test]
    fn a_view_change_has_a_longer_lead_if_steps_are_short_or_it_came_too_late() {
        let mut membership = membership(&[1]);
        let mut lead = |step_milliseconds: u64, doublings: u32| {
            membership.members.detection.step_timing = StepTiming::new(fixtures::rules().patience);
            membership.members.detection.step_timing.note(at(0), StepNumber(0));
            membership.members.detection.step_timing.note(at(step_milliseconds), StepNumber(1));
            membership.succession.lead = Lead::default();
            (0..doublings).for_each(|_| membership.succession.lead.lengthen());
            membership.succession.lead.steps(membership.members.detection.step_timing.usual())
        };
        assert_eq!([lead(10_000, 0), lead(150, 0), lead(100, 0), lead(10, 0)], [1, 1, 2, 15]);
        assert_eq!([lead(150, 1), lead(100, 3), lead(150, 5), lead(150, 50)], [2, 16, 32, 32]);
        assert_eq!([lead(0, 0), lead(1, 1)], [LEAD_STEPS_MAX; 2], "no further than that");
    }

    #[test]
    fn a_joiner_learns_why_it_is_refused() {
        let mut membership = membership(&[1, 2]);
        let other = RunId([2; 32]);
        let run = Some(membership.members.place.view.run);
        let refused = JoinAnswer::Refuse;
        assert_eq!(
            membership.on_join(peer(3), &join(1, Some(other)), RunPhase::Training),
            refused(Refusal::OtherRun { run: RunId([1; 32]) })
        );
        assert_eq!(
            membership.on_join(peer(3), &join(1, run), RunPhase::Closing),
            refused(Refusal::RunComplete)
        );
        // It asked before it was lost and came back, and its request was delayed by a partition.
        assert_eq!(membership.on_join(peer(2), &join(4, run), RunPhase::Training), JoinAnswer::IsMember);
        // The incarnation that is a member, and does not know it yet.
        assert_eq!(membership.on_join(peer(2), &join(5, run), RunPhase::Training), JoinAnswer::IsMember);
        assert!(membership.members.observed.broken.is_empty());
        assert_eq!(membership.on_join(peer(2), &join(6, run), RunPhase::Training), JoinAnswer::WelcomeBack);
        assert!(
            membership.members.observed.broken.contains(&Rank(1)),
            "the one that is in the view is no more"
        );
        assert_eq!(membership.on_join(peer(3), &join(1, None), RunPhase::Training), JoinAnswer::Welcome);
    }

    #[test]
    fn a_peer_that_restarts_during_an_agreement_is_not_taken_for_the_member() {
        let mut membership = membership(&[1, 2, 3]);
        assert_eq!(membership.on_join(peer(2), &join(6, None), RunPhase::Training), JoinAnswer::WelcomeBack);
        let next = |members: &[u8]| {
            let next = view(members);
            NextView { digest: next.digest(), view: Arc::new(next), is_enterable: true }
        };
        membership.succession.next = Some(next(&[1, 2]));
        membership.advance(at(0));
        assert!(membership.members.observed.broken.contains(&Rank(1)));
        assert_eq!(membership.admission.preparing.len(), 1, "it still wants to come in");
        membership.succession.next = Some(next(&[1, 3]));
        membership.advance(at(0));
        assert!(membership.members.observed.broken.is_empty());
    }

    #[test]
    fn of_two_incarnations_the_later_one_is_the_peer() {
        let start = |start, draw| Incarnation::of_start(start, draw);
        let asks = |membership: &mut Membership, peer, Incarnation(incarnation)| {
            membership.on_join(peer, &join(incarnation, None), RunPhase::Training)
        };
        let mut membership = membership(&[1, 2]);
        for (known, peer, welcome) in
            [(start(3, 7), peer(2), JoinAnswer::WelcomeBack), (start(3, 7), peer(3), JoinAnswer::Welcome)]
        {
            assert_eq!(asks(&mut membership, peer, known.next()), welcome);
            // An older start on another machine, and one with the same incarnation.
            for other in [start(2, 9), start(3, 6)] {
                assert_eq!(
                    asks(&mut membership, peer, other),
                    JoinAnswer::Refuse(Refusal::DuplicateIdentity)
                );
            }
            // A late request of the peer itself: it changes nothing.
            assert_eq!(asks(&mut membership, peer, known), welcome);
            assert_eq!(membership.admission.preparing[&peer].incarnation, known.next());
        }
    }

    #[test]
    fn a_joiner_is_a_candidate_once_it_is_ready() {
        let mut membership = membership(&[1, 2]);
        assert!(!membership.on_ready(at(0), peer(3)), "it was not welcomed");
        assert_eq!(membership.on_join(peer(3), &join(1, None), RunPhase::Training), JoinAnswer::Welcome);
        assert!(membership.admission.candidates.is_empty());
        assert!(membership.on_ready(at(0), peer(3)) && membership.on_ready(at(0), peer(3)));
        assert_eq!(membership.admission.candidates.keys().collect::<Vec<_>>(), [&peer(3)]);
        // It asks again, perhaps after a restart: then it has to prepare again.
        assert_eq!(membership.on_join(peer(3), &join(2, None), RunPhase::Training), JoinAnswer::Welcome);
        assert!(membership.admission.candidates.is_empty() && membership.on_ready(at(0), peer(3)));
        assert_eq!(membership.admission.candidates[&peer(3)].member.incarnation, Incarnation(2));
        assert_eq!(membership.admission.sponsored_in(&view(&[1, 2, 3])), [peer(3)]);
        // It waits, and asks the next member: it stays a candidate, and this member answers for it as well.
        membership.on_candidate(at(0), peer(1), member(4, 1));
        assert_eq!(membership.on_join(peer(4), &join(1, None), RunPhase::Training), JoinAnswer::Welcome);
        assert!(membership.admission.candidates.contains_key(&peer(4)));
        assert_eq!(membership.admission.joiners(), [(peer(3), true), (peer(4), true)]);
        membership.admission.forget(&peer(3));
        assert!(
            !membership.on_ready(at(0), peer(3)) && membership.admission.sponsored_in(&view(&[3])).is_empty()
        );
    }

    #[test]
    fn a_joiner_that_falls_silent_is_no_candidate_any_more() {
        let mut membership = membership(&[1, 2]);
        assert_eq!(membership.on_join(peer(3), &join(1, None), RunPhase::Training), JoinAnswer::Welcome);
        assert!(membership.on_ready(at(0), peer(3)));
        membership.on_candidate(at(0), peer(1), member(4, 1));
        assert!(membership.on_ready(at(3000), peer(3)));
        membership.admission.forget_stale(at(6000));
        assert_eq!(membership.admission.candidates.keys().collect::<Vec<_>>(), [&peer(3)]);
        membership.admission.forget_stale(at(9000));
        assert!(membership.admission.candidates.is_empty() && membership.admission.sponsored.is_empty());
        assert!(!membership.on_ready(at(9000), peer(3)), "it has to ask again");
    }

    #[test]
    fn a_peer_that_is_already_a_member_is_no_candidate() {
        let mut membership = membership(&[1, 2]);
        membership.on_candidate(at(0), peer(1), member(2, 5));
        membership.on_candidate(at(0), peer(1), member(2, 4));
        assert!(membership.admission.candidates.is_empty());
        membership.on_candidate(at(0), peer(1), member(2, 6));
        membership.on_candidate(at(0), peer(1), member(3, 1));
        assert_eq!(membership.admission.candidates.len(), 2);
    }

    #[test]
    fn there_are_at_most_as_many_candidates_as_members_of_a_view() {
        let mut membership = membership(&[1, 2]);
        for index in 0..2 * MEMBERS_MAX as u16 {
            let mut key = [9; 32];
            key[..2].copy_from_slice(&index.to_be_bytes());
            membership.on_candidate(at(0), peer(1), Member { peer: PeerId(key), ..member(9, 1) });
        }
        assert_eq!(membership.admission.candidates.len(), MEMBERS_MAX);
        assert_eq!(
            membership.on_join(peer(3), &join(1, None), RunPhase::Training),
            JoinAnswer::Refuse(Refusal::Full)
        );
    }

    #[test]
    fn a_joiner_gets_the_member_that_it_asked_as_its_first_contact() {
        let membership = membership(&[3, 4, 5]);
        let peers: Vec<PeerId> = membership.members.contacts().iter().map(|contact| contact.peer).collect();
        assert_eq!(peers, [peer(3), peer(4), peer(5)]);
        let many: Vec<u8> = (1..=200).collect();
        assert_eq!(self::membership(&many).members.contacts().len(), CONTACTS_MAX);
    }
}
