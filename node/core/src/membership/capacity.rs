//! Capacity: how much a member offers to own, which may change while it is in the view.
//!
//! A member that others cannot dial computes, and owns nothing: its chunks would be out of reach whenever a connection breaks
//! that only this member can open again. That may change at any time, for example when its user forwards a port. The member then
//! tells the coordinator its new offer, as a peer that joins would. It has that capacity from a view between two steps on;
//! training continues, and its chunks move as in any view change.
//!
//! Two members that own nothing exchange only short messages, which a third one relays. All other pairs must reach each other.
//!
//! Offers that follow from lines come from several members, after the same view. The coordinator gathers them before it proposes a view, so
//! that chunks move once. A view for this alone comes at most once a minute. An offer to begin or to stop owning does not wait. A view that is
//! proposed for other reasons takes them all.
//!
//! # Invariants
//! - A member offers to own something only while it reaches all others itself.
//! - At least one member owns something.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Instant, PeerId, Rank};

use super::members::Members;
use crate::membership::view_change::Churn;

/// The capacities that members offer, where they differ from the view.
pub(super) struct CapacityOffers {
    /// The capacity that this member offers while it reaches all others.
    own: u8,
    /// The offers of other members, by peer. Empty at a member that does not coordinate.
    offers: BTreeMap<PeerId, CapacityOffer>,
    /// Since when there are offers that can wait for others; `None` if there are none.
    gathering_since: Option<Instant>,
    /// When owners last got other capacities; `None` if they never did.
    changed_at: Option<Instant>,
}

/// The capacity that another member offers, and when it last said so.
#[derive(Clone, Copy, Debug)]
struct CapacityOffer {
    /// The capacity: 0 to own nothing.
    capacity: u8,
    /// When the member last announced it.
    announced_at: Instant,
}

impl CapacityOffers {
    /// The offers of a member whose own offer is its present capacity.
    pub(super) fn new(own: u8) -> Self {
        Self { own, offers: BTreeMap::new(), gathering_since: None, changed_at: None }
    }

    /// This view replaces the one before, with other offers.
    pub(super) fn view_changed(&mut self, now: Instant, before: &View, view: &View) {
        self.gathering_since = None;
        let has_changed = |member: &Member| {
            let earlier = before.rank(&member.peer).map(|rank| before.member(rank).capacity);
            earlier
                .is_some_and(|earlier| ![earlier, member.capacity].contains(&0) && earlier != member.capacity)
        };
        if view.members.iter().any(has_changed) {
            self.changed_at = Some(now);
        }
    }

    /// A heartbeat is due. Forgets offers that are no longer repeated: they are in the view, or were taken back.
    pub(super) fn tick(&mut self, now: Instant, members: &Members) {
        self.offers.retain(|_, offered| now.since(offered.announced_at) < CAPACITY_OFFER_MEMORY);
        let is_gathering = self.differing(now, members).next().is_some();
        self.gathering_since = is_gathering.then(|| self.gathering_since.unwrap_or(now));
    }

    /// This member offers another capacity while it reaches all others.
    pub(super) fn set_own(&mut self, capacity: u8) {
        self.own = capacity;
    }

    /// Another member offers this capacity.
    pub(super) fn note(&mut self, now: Instant, member: &Member) {
        self.offers.insert(member.peer, CapacityOffer { capacity: member.capacity, announced_at: now });
    }

    /// This member with the capacity that it offers for the next view; `None` if that is its present one.
    pub(super) fn own_offer(&self, now: Instant, members: &Members) -> Option<Member> {
        let place = &members.place;
        let is_reaching = members.links.are_all_direct(&place.view) && members.lost(now).is_empty();
        let current = place.view.member(place.rank).capacity;
        let capacity = if is_reaching { self.own } else { self.own.min(current) };
        // A member that leaves hands over its chunks anyway.
        (capacity != current && !members.is_retiring()).then(|| Member { capacity, ..place.me.clone() })
    }

    /// Whether the capacity of any member is to change now.
    pub(super) fn wants_change(&self, now: Instant, members: &Members) -> bool {
        let patience = GATHERING.max(members.step_time());
        let is_early = self.changed_at.is_some_and(|at| now.since(at) < CHANGE_PAUSE);
        let is_gathered = !is_early && self.gathering_since.is_some_and(|since| now.since(since) >= patience);
        self.differing(now, members).any(|(current, offered)| is_gathered || current == 0 || offered == 0)
    }

    /// The members' present capacities and the other ones that they offer.
    fn differing(&self, now: Instant, members: &Members) -> impl Iterator<Item = (u8, u8)> {
        let place = &members.place;
        let others = self.offers.keys().filter_map(|peer| place.view.rank(peer));
        let ranks = others.filter(|rank| *rank != place.rank).chain([place.rank]);
        ranks.filter_map(move |rank| {
            Some((place.view.member(rank).capacity, self.offered(now, members, rank)?))
        })
    }

    /// The capacity that a member offers, if it is to have another one in the next view.
    fn offered(&self, now: Instant, members: &Members, rank: Rank) -> Option<u8> {
        if rank == members.place.rank {
            return self.own_offer(now, members).map(|offer| offer.capacity);
        }
        let member = members.place.view.member(rank);
        let offered = self.offers.get(&member.peer)?;
        let is_fresh = now.since(offered.announced_at) < CAPACITY_OFFER_MEMORY;
        let is_staying = !members.departures.retiring.contains(&member.peer);
        (is_fresh && is_staying && offered.capacity != member.capacity).then_some(offered.capacity)
    }

    /// The capacities that change with the next view, in the order of ranks.
    pub(super) fn changes(&self, now: Instant, members: &Members, churn: &Churn) -> Vec<(Rank, u8)> {
        let place = &members.place;
        let offered = |rank: Rank| self.offered(now, members, rank);
        let is_staying = |rank: &Rank| !churn.leavers.contains(rank) && !churn.retirees.contains(rank);
        let staying = || place.ranks().filter(is_staying);
        let is_owner = |rank: Rank| offered(rank).unwrap_or(place.view.member(rank).capacity) > 0;
        if !staying().any(is_owner) && churn.joiners.iter().all(|joiner| joiner.capacity == 0) {
            return vec![];
        }
        staying().filter_map(|rank| Some((rank, offered(rank)?))).collect()
    }
}

/// How long an offer counts after it was last sent. It is repeated with every heartbeat.
const CAPACITY_OFFER_MEMORY: Duration = Duration::from_secs(3);
/// How long capacities stay after they have changed: rates vary, above all where packets are lost.
const CHANGE_PAUSE: Duration = Duration::from_secs(60);
/// How long the coordinator waits for other offers, at least. Members may enter a view up to a step apart, so it waits as long as that takes.
const GATHERING: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::fixtures::{self, peer};
    use crate::membership::Membership;
    use crate::peer_links::Route;
    use crate::state::shared_cache::SharedCache;

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    /// Peer 2 of 1, 2 and 3, each with this capacity, with the others linked.
    fn membership(capacities: [u8; 3]) -> Membership {
        let members = [1, 2, 3]
            .iter()
            .zip(capacities)
            .map(|(byte, capacity)| Member { capacity, ..fixtures::member(*byte) });
        let view = View { members: members.collect(), ..fixtures::view(&[1, 2, 3]) };
        let (me, digest) = (view.members[1].clone(), view.digest());
        let linked: BTreeSet<PeerId> = [1, 3].map(peer).into();
        Membership::new(
            at(0),
            me,
            Arc::new(view),
            digest,
            linked,
            (SharedCache::default(), [].into(), fixtures::rules()),
        )
    }

    fn offered(membership: &Membership, now: Instant) -> Option<u8> {
        membership.capacity_offers.own_offer(now, &membership.members).map(|offer| offer.capacity)
    }

    #[test]
    fn a_member_offers_capacity_only_while_it_reaches_all_others() {
        let mut membership = membership([1, 4, 0]);
        assert_eq!(offered(&membership, at(0)), None, "it is as it is");
        membership.offer_capacity(0);
        assert_eq!(offered(&membership, at(0)), Some(0));
        let mut membership = self::membership([1, 0, 0]);
        membership.offer_capacity(4);
        membership.members.set_route(at(0), peer(3), Route::Relayed);
        assert_eq!(offered(&membership, at(0)), None, "peer 3 would be cut off from its owner");
        membership.members.set_route(at(0), peer(3), Route::Direct);
        assert_eq!(offered(&membership, at(0)), Some(4));
        membership.members.link_down(&peer(1));
        assert_eq!(offered(&membership, at(0)), None);
    }

    #[test]
    fn only_members_that_own_nothing_need_no_direct_link_to_each_other() {
        for (capacities, lost) in [([1, 0, 0], &[][..]), ([1, 1, 0], &[Rank(2)]), ([1, 0, 1], &[Rank(2)])] {
            let mut membership = membership(capacities);
            membership.members.set_route(at(0), peer(3), Route::Relayed);
            (0..10).for_each(|second| membership.members.heard(at(1000 * second), &peer(1)));
            (0..10).for_each(|second| membership.members.heard(at(1000 * second), &peer(3)));
            assert_eq!(membership.members.lost(at(1000)), [], "a better way may still be found");
            assert_eq!(membership.members.lost(at(9000)), lost, "{capacities:?}");
            membership.members.set_route(at(9000), peer(3), Route::Direct);
            assert_eq!(membership.members.lost(at(9000)), []);
        }
    }

    #[test]
    fn a_circuit_does_not_replace_a_lost_link() {
        let mut membership = membership([1, 1, 1]);
        membership.members.link_down(&peer(3));
        assert_eq!(membership.members.lost(at(0)), [Rank(2)]);
        membership.members.set_route(at(0), peer(3), Route::Relayed);
        membership.members.link_up(at(0), peer(3));
        assert_eq!(membership.members.lost(at(0)), [Rank(2)]);
    }

    #[test]
    fn capacity_offers_apply_while_they_are_repeated_and_an_owner_remains() {
        let mut membership = membership([1, 0, 2]);
        let offer = |byte: u8, capacity| Member { capacity, ..fixtures::member(byte) };
        let capacities = |membership: &Membership, now| {
            membership.capacity_offers.changes(now, &membership.members, &Churn::default())
        };
        assert_eq!(capacities(&membership, at(0)), []);
        membership.capacity_offers.note(at(0), &offer(1, 5));
        membership.capacity_offers.note(at(0), &offer(3, 2));
        assert_eq!(capacities(&membership, at(0)), [(Rank(0), 5)], "the other one is as it is");
        membership.capacity_offers.note(at(0), &offer(1, 0));
        assert_eq!(capacities(&membership, at(0)), [(Rank(0), 0)]);
        membership.capacity_offers.note(at(0), &offer(3, 0));
        assert_eq!(capacities(&membership, at(0)), [], "a member must own something");
        membership.offer_capacity(1);
        assert_eq!(capacities(&membership, at(0)), [(Rank(0), 0), (Rank(1), 1), (Rank(2), 0)]);
        membership.members.departures.retiring.insert(peer(1));
        assert_eq!(capacities(&membership, at(0)), [(Rank(1), 1), (Rank(2), 0)], "it hands over anyway");
        membership.capacity_offers.tick(at(3000), &membership.members);
        assert_eq!(capacities(&membership, at(3000)), [(Rank(1), 1)]);
    }

    #[test]
    fn offers_of_other_shares_are_taken_together_and_others_at_once() {
        let mut membership = membership([4, 4, 4]);
        let offer = |byte: u8, capacity| Member { capacity, ..fixtures::member(byte) };
        let wants_change = |membership: &mut Membership, milliseconds| {
            let Membership { capacity_offers, members, .. } = membership;
            capacity_offers.tick(at(milliseconds), members);
            capacity_offers.wants_change(at(milliseconds), members)
        };
        assert!(!wants_change(&mut membership, 0), "there is no offer");
        membership.capacity_offers.note(at(250), &offer(1, 1));
        assert!(!wants_change(&mut membership, 250));
        membership.capacity_offers.note(at(750), &offer(1, 1));
        membership.offer_capacity(8);
        assert!(!wants_change(&mut membership, 1000), "perhaps peer 3 has one, too");
        membership.capacity_offers.note(at(1200), &offer(3, 12));
        assert!(wants_change(&mut membership, 1250));
        let changes = membership.capacity_offers.changes(at(1250), &membership.members, &Churn::default());
        assert_eq!(changes, [(Rank(0), 1), (Rank(1), 8), (Rank(2), 12)]);
        membership.offer_capacity(4);
        membership.capacity_offers.note(at(1300), &offer(1, 4));
        membership.capacity_offers.note(at(1300), &offer(3, 4));
        assert!(!wants_change(&mut membership, 1300), "they were taken back");
        membership.capacity_offers.note(at(1400), &offer(3, 12));
        assert!(!wants_change(&mut membership, 1500), "it begins again");
        membership.capacity_offers.note(at(1600), &offer(1, 0));
        assert!(wants_change(&mut membership, 1600), "others cannot dial it any more");
    }

    #[test]
    fn after_a_change_capacities_stay_for_a_minute() {
        let mut membership = membership([4, 4, 4]);
        let wants_change = |membership: &mut Membership, seconds: u64| {
            let Membership { capacity_offers, members, .. } = membership;
            capacity_offers.note(at(1000 * seconds), &Member { capacity: 8, ..fixtures::member(1) });
            capacity_offers.tick(at(1000 * seconds), members);
            capacity_offers.wants_change(at(1000 * seconds), members)
        };
        let view = membership.members.place.view.as_ref().clone();
        let with = |capacity| {
            let mut other = view.clone();
            other.members[2].capacity = capacity;
            other
        };
        membership.capacity_offers.view_changed(at(0), &with(0), &view);
        assert!(!wants_change(&mut membership, 1));
        assert!(wants_change(&mut membership, 2), "a member that begins to own is not counted");
        membership.capacity_offers.view_changed(at(2000), &with(2), &view);
        for second in [3, 30, 61] {
            assert!(!wants_change(&mut membership, second));
        }
        assert!(wants_change(&mut membership, 62));
    }
}
