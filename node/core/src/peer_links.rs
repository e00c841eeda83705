//! Peer links: which peers are linked, over which route, and how many segments may still be sent to each.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::PeerId;
use peergrad_protocol::limits::LINK_SEGMENTS;

/// The way in which frames reach a linked peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Over a connection between the two peers.
    Direct,
    /// Through another peer, which carries control messages only.
    Relayed,
}

/// The links of this peer.
#[derive(Default)]
pub(crate) struct PeerLinks {
    /// The linked peers, and how many more segments may be sent to each. Once this peer is in a view, the training counts those of members.
    pub(crate) credits: BTreeMap<PeerId, u32>,
    /// The peers that are reached through another peer.
    relayed: BTreeSet<PeerId>,
}

impl PeerLinks {
    /// There is a new link to this peer, with nothing on its way yet.
    pub(crate) fn up(&mut self, peer: PeerId) {
        self.credits.insert(peer, LINK_SEGMENTS);
    }

    /// The link to this peer is down.
    pub(crate) fn down(&mut self, peer: &PeerId) {
        self.credits.remove(peer);
        self.relayed.remove(peer);
    }

    /// This peer is reached over this route from now on. The driver may say so before the link is up.
    pub(crate) fn set_route(&mut self, peer: PeerId, route: Route) {
        match route {
            Route::Direct => self.relayed.remove(&peer),
            Route::Relayed => self.relayed.insert(peer),
        };
    }

    /// This peer has processed segments that were sent to it.
    pub(crate) fn give_back(&mut self, peer: &PeerId, segments: u32) {
        if let Some(credit) = self.credits.get_mut(peer) {
            *credit = credit.saturating_add(segments).min(LINK_SEGMENTS);
        }
    }

    /// Whether frames can be sent to this peer.
    pub(crate) fn is_linked(&self, peer: &PeerId) -> bool {
        self.credits.contains_key(peer)
    }

    /// Whether tensors can be sent to this peer.
    pub(crate) fn is_direct(&self, peer: &PeerId) -> bool {
        self.is_linked(peer) && !self.relayed.contains(peer)
    }

    /// The linked peers.
    pub(crate) fn linked(&self) -> impl Iterator<Item = PeerId> {
        self.credits.keys().copied()
    }

    /// The peers that are reached through another peer.
    pub(crate) fn relayed(&self) -> impl Iterator<Item = PeerId> {
        self.relayed.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::peer;

    #[test]
    fn a_route_may_be_known_before_the_link_and_ends_with_it() {
        let mut links = PeerLinks::default();
        links.set_route(peer(1), Route::Relayed);
        assert!(!links.is_linked(&peer(1)));
        links.up(peer(1));
        assert!(links.is_linked(&peer(1)) && !links.is_direct(&peer(1)));
        links.set_route(peer(1), Route::Direct);
        assert!(links.is_direct(&peer(1)));
        links.set_route(peer(1), Route::Relayed);
        links.down(&peer(1));
        links.up(peer(1));
        assert!(links.is_direct(&peer(1)));
    }

    #[test]
    fn credit_never_exceeds_a_window() {
        let mut links = PeerLinks::default();
        links.up(peer(1));
        links.give_back(&peer(1), 1);
        links.give_back(&peer(2), 1);
        assert_eq!(links.credits, BTreeMap::from([(peer(1), LINK_SEGMENTS)]));
    }
}
