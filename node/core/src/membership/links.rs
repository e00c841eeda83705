//! Links: the peers that this one can send frames to, and how.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::message::Message;
use peergrad_protocol::view::View;
use peergrad_protocol::{Frame, Instant, PeerId};

use crate::io::Output;
use crate::peer_links::Route;

/// The links of one member.
pub(super) struct Links {
    me: PeerId,
    /// Peers that frames can be sent to.
    linked: BTreeSet<PeerId>,
    /// Other members of the view, to which no frame can be sent.
    pub(super) unlinked: BTreeSet<PeerId>,
    /// Linked peers that are reached through a relay, and since when.
    pub(super) relayed: BTreeMap<PeerId, Instant>,
}

impl Links {
    /// The links of `me`, a member of `view`.
    pub(super) fn new(me: PeerId, linked: BTreeSet<PeerId>, view: &View) -> Self {
        let others = view.members.iter().map(|member| member.peer).filter(|peer| *peer != me);
        let unlinked = others.filter(|peer| !linked.contains(peer)).collect();
        Self { me, linked, unlinked, relayed: BTreeMap::new() }
    }

    /// Whether frames can be sent to this peer.
    pub(super) fn is_linked(&self, peer: &PeerId) -> bool {
        self.linked.contains(peer)
    }

    /// Whether all members are linked without a relay.
    pub(super) fn are_all_direct(&self, view: &View) -> bool {
        self.unlinked.is_empty() && !self.relayed.keys().any(|peer| view.rank(peer).is_some())
    }

    /// A link has come up.
    pub(super) fn up(&mut self, peer: PeerId) {
        self.linked.insert(peer);
        self.unlinked.remove(&peer);
    }

    /// A link is down; if the peer is a member of `view`, it is unlinked from now on.
    pub(super) fn down(&mut self, peer: PeerId, view: &View) {
        self.linked.remove(&peer);
        self.relayed.remove(&peer);
        if view.rank(&peer).is_some() {
            self.unlinked.insert(peer);
        }
    }

    /// A peer is reached by this route since `now`.
    pub(super) fn set_route(&mut self, now: Instant, peer: PeerId, route: Route) {
        match route {
            Route::Relayed => _ = self.relayed.entry(peer).or_insert(now),
            Route::Direct => _ = self.relayed.remove(&peer),
        }
    }

    /// Another view begins, with other members.
    pub(super) fn members_changed(&mut self, joined: &[PeerId], left: &[PeerId]) {
        left.iter().for_each(|peer| _ = self.unlinked.remove(peer));
        self.unlinked.extend(joined.iter().filter(|peer| !self.linked.contains(peer)));
    }

    /// Sends a message to a linked peer, or to this one itself; does nothing for any other peer.
    pub(super) fn send(&self, to: PeerId, message: &Message, out: &mut Vec<Output>) {
        if to == self.me || self.linked.contains(&to) {
            send(to, message, out);
        }
    }

    /// Sends a message to all members that are linked, this one included.
    pub(super) fn broadcast(&self, view: &View, message: &Message, out: &mut Vec<Output>) {
        let frame = Frame::encode(message, None);
        let is_reached = |peer: &PeerId| *peer == self.me || !self.unlinked.contains(peer);
        for to in view.members.iter().map(|member| member.peer).filter(is_reached) {
            let frame = Frame { head: frame.head.clone(), payload: None };
            out.push(Output::Send { to, frame });
        }
    }
}

/// Sends a message to a peer.
pub(super) fn send(to: PeerId, message: &Message, out: &mut Vec<Output>) {
    out.push(Output::Send { to, frame: Frame::encode(message, None) });
}
