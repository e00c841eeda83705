//! Reachability: which members a joiner must reach directly before it is admitted, and what the sponsor learns about reaching it.
//!
//! All members must reach an owner, and an owner must reach all members. Two members that own nothing exchange only control messages, which
//! can pass through a third member. So a joiner that offers to own nothing need not reach the members that own nothing either.

use peergrad_protocol::view::Member;
use peergrad_protocol::{Instant, PeerId};

use super::Joiner;
use crate::io::{Event, Output};

impl Joiner {
    /// A peer is now reached through another peer, or directly again.
    pub(crate) fn set_relayed(&mut self, peer: PeerId, is_relayed: bool) {
        if is_relayed {
            self.relayed.insert(peer);
        } else {
            self.relayed.remove(&peer);
        }
    }

    /// This peer's addresses or its offered capacity have changed: its sponsor is told.
    pub(crate) fn reachability_changed(&mut self, now: Instant, me: &Member, out: &mut Vec<Output>) {
        self.me = me.clone();
        if let Some(sponsor) = self.sponsor.filter(|_| !self.is_recording) {
            self.is_ready_told = false;
            self.ask(now, sponsor, out);
        }
    }

    /// Records the members that this peer must reach directly and does not.
    pub(super) fn note_unlinked(&mut self, is_linked: impl Fn(PeerId) -> bool) {
        let others = self.contacts.iter().map(|contact| contact.peer).filter(|peer| *peer != self.me.peer);
        let is_far = |peer: &PeerId| {
            let are_workers = self.me.capacity == 0 && self.workers.contains(peer);
            self.relayed.contains(peer) && !are_workers
        };
        self.unlinked =
            others.filter(|peer| !is_linked(*peer) || self.unproven.contains(peer) || is_far(peer)).collect();
    }

    /// Tells the user which members this peer does not reach: once for each set of them that lasts.
    pub(super) fn report_unlinked(&mut self, out: &mut Vec<Output>) {
        // The other members are about to remove one that has just died.
        let is_lasting = !self.unlinked.is_empty() && self.unlinked_before == self.unlinked;
        if is_lasting && self.told != self.unlinked {
            self.told.clone_from(&self.unlinked);
            let peers = self.unlinked.iter().copied().collect();
            out.push(Output::Event(Event::MembersUnreachable { peers }));
        }
        self.unlinked_before.clone_from(&self.unlinked);
    }
}
