//! Capacity: how much a member offers to own, which may change while it is in the view.
//!
//! A member that others cannot dial computes, and owns nothing: its chunks would be out of reach whenever a connection breaks
//! that only this member can open again. That may change at any time, for example when its user forwards a port. The member then
//! tells the coordinator its new offer, as a peer that joins would. It has that capacity from a view between two steps on;
//! training goes on, and its chunks move as in any view change.
//!
//! Two members that own nothing exchange only short messages, which a third one relays. All other pairs must reach each other.
//!
//! # Invariants
//! - A member offers to own something only while it reaches all others itself.
//! - At least one member owns something.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::view::Member;
use peergrad_protocol::{Instant, PeerId, Rank};

use super::Membership;
use crate::membership::view_change::Churn;

/// The capacities that members offer, where they differ from the view.
pub(super) struct CapacityOffers {
    /// The capacity that this member offers while it reaches all others.
    own: u8,
    /// The offers of other members, by peer. Empty at a member that does not coordinate.
    offers: BTreeMap<PeerId, CapacityOffer>,
}

/// The capacity that another member offers, and when it last said so.
#[derive(Clone, Copy, Debug)]
struct CapacityOffer {
    capacity: u8,
    announced_at: Instant,
}

impl CapacityOffers {
    /// The offers of a member whose own offer is its present capacity.
    pub(super) fn new(own: u8) -> Self {
        Self { own, offers: BTreeMap::new() }
    }

    /// Forgets offers that are no longer repeated: they are in the view, or were taken back.
    pub(super) fn forget_stale(&mut self, now: Instant) {
        self.offers.retain(|_, offered| now.since(offered.announced_at) < CAPACITY_OFFER_MEMORY);
    }
}

impl Membership {
    /// A peer is now reached through a relay, or directly again.
    pub(crate) fn set_relayed(&mut self, now: Instant, peer: PeerId, is_relayed: bool) {
        self.links.set_relayed(now, peer, is_relayed);
    }

    /// The member's rank, if it must be reached directly and is not, because one of the two owns something. A new relayed link usually
    /// becomes direct in a moment, so it gets some time; a relayed link that replaces a direct one gets none.
    pub(super) fn out_of_reach(&self, now: Instant, peer: &PeerId, since: Instant) -> Option<Rank> {
        let rank = self.place.view.rank(peer)?;
        let is_needed =
            self.place.replica_holders[rank.index()] || self.place.replica_holders[self.place.rank.index()];
        let is_lasting = self.view_state.broken.contains(&rank) || now.since(since) > DIRECT_LINK_GRACE;
        (is_needed && is_lasting).then_some(rank)
    }

    /// Sets the capacity that this member offers while it reaches all others.
    pub(crate) fn offer_capacity(&mut self, capacity: u8) {
        self.capacity_offers.own = capacity;
    }

    /// This member with the capacity that it offers for the next view; `None` if that is its present one.
    pub(super) fn own_capacity_offer(&self, now: Instant) -> Option<Member> {
        let is_reaching = self.links.are_all_direct(&self.place.view) && self.lost(now).is_empty();
        let current = self.place.view.member(self.place.rank).capacity;
        let capacity =
            if is_reaching { self.capacity_offers.own } else { self.capacity_offers.own.min(current) };
        // A member that leaves hands over its chunks anyway.
        (capacity != current && !self.is_retiring()).then(|| Member { capacity, ..self.place.me.clone() })
    }

    /// Whether this incarnation of the member is in the view.
    pub(crate) fn is_current_incarnation(&self, member: &Member) -> bool {
        let known = self.place.view.rank(&member.peer).map(|rank| self.place.view.member(rank));
        known.is_some_and(|known| known.incarnation == member.incarnation)
    }

    /// A member offers this capacity.
    pub(crate) fn on_capacity_offer(&mut self, now: Instant, member: &Member) {
        self.capacity_offers
            .offers
            .insert(member.peer, CapacityOffer { capacity: member.capacity, announced_at: now });
    }

    /// Whether the capacity of any member is to change.
    pub(super) fn wants_capacity_change(&self, now: Instant) -> bool {
        !self.capacity_offers.offers.is_empty() || self.own_capacity_offer(now).is_some()
    }

    /// The capacities that change with the next view, in the order of ranks.
    pub(super) fn capacity_changes(&self, now: Instant, churn: &Churn) -> Vec<(Rank, u8)> {
        let is_fresh = |offered: &&CapacityOffer| now.since(offered.announced_at) < CAPACITY_OFFER_MEMORY;
        let offered = |rank: Rank| {
            let member = self.place.view.member(rank);
            if rank == self.place.rank {
                return self.own_capacity_offer(now).map(|offer| offer.capacity);
            }
            let offered = self.capacity_offers.offers.get(&member.peer).filter(is_fresh)?;
            (offered.capacity != member.capacity && !self.departures.retiring.contains(&member.peer))
                .then_some(offered.capacity)
        };
        let staying = || {
            let ranks = (0..self.place.view.members.len()).map(Rank::from_index);
            ranks.filter(|rank| !churn.leavers.contains(rank) && !churn.retirees.contains(rank))
        };
        let is_owner = |rank: Rank| offered(rank).unwrap_or(self.place.view.member(rank).capacity) > 0;
        if !staying().any(is_owner) && churn.joiners.iter().all(|joiner| joiner.capacity == 0) {
            return vec![];
        }
        staying().filter_map(|rank| Some((rank, offered(rank)?))).collect()
    }
}

/// How long a link that begins through a relay may take to become direct.
const DIRECT_LINK_GRACE: Duration = Duration::from_secs(4);
/// How long an offer counts after it was last sent. It is repeated with every heartbeat.
const CAPACITY_OFFER_MEMORY: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use peergrad_protocol::view::View;

    use super::*;
    use crate::fixtures::{self, peer};
    use crate::partition_policy::PartitionPolicy;
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
            (SharedCache::default(), [].into(), PartitionPolicy::Majority),
        )
    }

    fn offered(membership: &Membership, now: Instant) -> Option<u8> {
        membership.own_capacity_offer(now).map(|offer| offer.capacity)
    }

    #[test]
    fn whoever_is_out_of_reach_offers_nothing_and_something_again_once_it_reaches_everybody() {
        let mut membership = membership([1, 4, 0]);
        assert_eq!(offered(&membership, at(0)), None, "it is as it is");
        membership.offer_capacity(0);
        assert_eq!(offered(&membership, at(0)), Some(0));
        let mut membership = self::membership([1, 0, 0]);
        membership.offer_capacity(4);
        membership.set_relayed(at(0), peer(3), true);
        assert_eq!(offered(&membership, at(0)), None, "peer 3 would be cut off from its owner");
        membership.set_relayed(at(0), peer(3), false);
        assert_eq!(offered(&membership, at(0)), Some(4));
        membership.link_down(&peer(1));
        assert_eq!(offered(&membership, at(0)), None);
    }

    #[test]
    fn two_who_own_nothing_need_not_reach_each_other_and_all_others_do() {
        for (capacities, lost) in [([1, 0, 0], &[][..]), ([1, 1, 0], &[Rank(2)]), ([1, 0, 1], &[Rank(2)])] {
            let mut membership = membership(capacities);
            membership.set_relayed(at(0), peer(3), true);
            (0..10).for_each(|second| membership.heard(at(1000 * second), &peer(1)));
            (0..10).for_each(|second| membership.heard(at(1000 * second), &peer(3)));
            assert_eq!(membership.lost(at(1000)), [], "a better way may still be found");
            assert_eq!(membership.lost(at(9000)), lost, "{capacities:?}");
            membership.set_relayed(at(9000), peer(3), false);
            assert_eq!(membership.lost(at(9000)), []);
        }
    }

    #[test]
    fn a_circuit_in_the_place_of_a_link_is_none() {
        let mut membership = membership([1, 1, 1]);
        membership.link_down(&peer(3));
        assert_eq!(membership.lost(at(0)), [Rank(2)]);
        membership.set_relayed(at(0), peer(3), true);
        membership.link_up(at(0), peer(3));
        assert_eq!(membership.lost(at(0)), [Rank(2)]);
    }

    #[test]
    fn offers_come_into_the_next_view_as_long_as_they_are_repeated_and_somebody_owns_something() {
        let mut membership = membership([1, 0, 2]);
        let offer = |byte: u8, capacity| Member { capacity, ..fixtures::member(byte) };
        let capacities = |membership: &Membership, now| membership.capacity_changes(now, &Churn::default());
        assert_eq!(capacities(&membership, at(0)), []);
        membership.on_capacity_offer(at(0), &offer(1, 5));
        membership.on_capacity_offer(at(0), &offer(3, 2));
        assert_eq!(capacities(&membership, at(0)), [(Rank(0), 5)], "the other one is as it is");
        membership.on_capacity_offer(at(0), &offer(1, 0));
        assert_eq!(capacities(&membership, at(0)), [(Rank(0), 0)]);
        membership.on_capacity_offer(at(0), &offer(3, 0));
        assert_eq!(capacities(&membership, at(0)), [], "somebody must own something");
        membership.offer_capacity(1);
        assert_eq!(capacities(&membership, at(0)), [(Rank(0), 0), (Rank(1), 1), (Rank(2), 0)]);
        membership.departures.retiring.insert(peer(1));
        assert_eq!(capacities(&membership, at(0)), [(Rank(1), 1), (Rank(2), 0)], "it hands over anyway");
        membership.capacity_offers.forget_stale(at(3000));
        assert_eq!(capacities(&membership, at(3000)), [(Rank(1), 1)]);
    }
}
