//! Reachability: which members a joiner must reach directly before it is admitted.
//!
//! All members must reach an owner, and an owner must reach all members. Two members that own nothing exchange only control messages, which
//! can pass through a third member. So a joiner that offers to own nothing need not reach the members that own nothing either.

use std::collections::BTreeSet;

use peergrad_protocol::PeerId;
use peergrad_protocol::view::Member;

use super::contacts::Contacts;
use crate::io::{Event, Output};
use crate::peer_links::Route;

/// How a joiner reaches the members.
#[derive(Default)]
pub(super) struct Reachability {
    /// The linked peers that are reached through another peer.
    relayed: BTreeSet<PeerId>,
    /// The linked peers that have sent nothing since this one was excluded. Perhaps this peer cannot reach them.
    unproven: BTreeSet<PeerId>,
    /// The members that this peer must reach directly and does not.
    unlinked: BTreeSet<PeerId>,
    /// Those that were `unlinked` at the check before.
    unlinked_before: BTreeSet<PeerId>,
    /// Those that were last reported to the user.
    reported: BTreeSet<PeerId>,
}

impl Reachability {
    /// A peer is now reached by this route.
    pub(super) fn set_route(&mut self, peer: PeerId, route: Route) {
        match route {
            Route::Relayed => _ = self.relayed.insert(peer),
            Route::Direct => _ = self.relayed.remove(&peer),
        }
    }

    /// Whether a peer is reached through another one.
    pub(super) fn is_relayed(&self, peer: &PeerId) -> bool {
        self.relayed.contains(peer)
    }

    /// A peer was linked before this one was excluded, and has sent nothing since.
    pub(super) fn doubt(&mut self, peer: PeerId) {
        self.unproven.insert(peer);
    }

    /// A frame has arrived from this peer, or a new link to it is up.
    pub(super) fn prove(&mut self, peer: &PeerId) {
        self.unproven.remove(peer);
    }

    /// The linked peers that have sent nothing since this one was excluded.
    pub(super) fn unproven(&self) -> impl Iterator<Item = PeerId> + use<> {
        self.unproven.clone().into_iter()
    }

    /// The members that this peer must reach directly and does not, as last noted.
    pub(super) fn unlinked(&self) -> &BTreeSet<PeerId> {
        &self.unlinked
    }

    /// Notes which of `contacts` this peer, which offers what `me` says, must reach directly and does not.
    pub(super) fn note(&mut self, contacts: &Contacts, me: &Member, is_linked: impl Fn(PeerId) -> bool) {
        let others = contacts.others().map(|contact| contact.peer);
        let is_far = |peer: &PeerId| {
            let are_both_non_owners = me.capacity == 0 && contacts.is_non_owner(peer);
            self.relayed.contains(peer) && !are_both_non_owners
        };
        self.unlinked =
            others.filter(|peer| !is_linked(*peer) || self.unproven.contains(peer) || is_far(peer)).collect();
    }

    /// Tells the user which members this peer does not reach: once for each set of them that lasts.
    pub(super) fn report(&mut self, out: &mut Vec<Output>) {
        // The other members are about to remove one that has just died.
        let is_lasting = !self.unlinked.is_empty() && self.unlinked_before == self.unlinked;
        if is_lasting && self.reported != self.unlinked {
            self.reported.clone_from(&self.unlinked);
            let peers = self.unlinked.iter().copied().collect();
            out.push(Output::Event(Event::MembersUnreachable { peers }));
        }
        self.unlinked_before.clone_from(&self.unlinked);
    }
}
