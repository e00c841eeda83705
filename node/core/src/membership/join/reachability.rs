//! Reaching: whom a joiner has to reach itself before it is let in, and what others know of reaching it.
//!
//! Whoever owns something has to be reached by all, and reach all. Two who own nothing have only words for each other, and those
//! pass through a third: a joiner that offers to own nothing need not reach members that own nothing either.

use peergrad_protocol::view::Member;
use peergrad_protocol::{Instant, PeerId};

use super::Joiner;
use crate::io::{Event, Output};

impl Joiner {
    /// The way to a peer leads through another one, or not any more.
    pub(crate) fn set_relayed(&mut self, peer: PeerId, is_relayed: bool) {
        if is_relayed {
            self.relayed.insert(peer);
        } else {
            self.relayed.remove(&peer);
        }
    }

    /// Where this peer is, and what it offers to own, is known better than before: whoever has welcomed it hears of that.
    pub(crate) fn reachability_changed(&mut self, now: Instant, me: &Member, out: &mut Vec<Output>) {
        self.me = me.clone();
        if let Some(sponsor) = self.sponsor.filter(|_| !self.is_recording) {
            self.is_ready_told = false;
            self.ask(now, sponsor, out);
        }
    }

    /// Takes note of the members that this peer would have to reach itself, and does not.
    pub(super) fn note_unlinked(&mut self, is_linked: impl Fn(PeerId) -> bool) {
        let others = self.contacts.iter().map(|contact| contact.peer).filter(|peer| *peer != self.me.peer);
        let is_far = |peer: &PeerId| {
            let are_workers = self.me.capacity == 0 && self.workers.contains(peer);
            self.relayed.contains(peer) && !are_workers
        };
        self.unlinked =
            others.filter(|peer| !is_linked(*peer) || self.unproven.contains(peer) || is_far(peer)).collect();
    }

    /// Tells the user whom it does not reach, once for each set of them that lasts.
    pub(super) fn report_unlinked(&mut self, out: &mut Vec<Output>) {
        // One that has just died is about to be left out by the others.
        let is_lasting = !self.unlinked.is_empty() && self.unlinked_before == self.unlinked;
        if is_lasting && self.told != self.unlinked {
            self.told.clone_from(&self.unlinked);
            let peers = self.unlinked.iter().copied().collect();
            out.push(Output::Event(Event::MembersUnreachable { peers }));
        }
        self.unlinked_before.clone_from(&self.unlinked);
    }
}
