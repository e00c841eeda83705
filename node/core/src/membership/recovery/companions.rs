//! The companions of a recovering member: the other members of its view that are back, too.

use std::collections::BTreeSet;

use peergrad_protocol::{Instant, PeerId, Rank};

/// The other members that are back.
#[derive(Default)]
pub(super) struct Companions {
    /// Linked peers that are back in the same view.
    pub(super) linked: BTreeSet<Rank>,
    /// Members that have been companions at any time, so that one that comes and goes is waited for once.
    known: BTreeSet<Rank>,
    /// When the latest of them came back for the first time; `None` if none has.
    pub(super) last_at: Option<Instant>,
    /// Peers that this one has sent its view.
    pub(super) informed: BTreeSet<PeerId>,
}

impl Companions {
    /// A member is back in the same view.
    pub(super) fn add(&mut self, now: Instant, rank: Rank) {
        if self.linked.insert(rank) && self.known.insert(rank) {
            self.last_at = Some(now);
        }
    }

    /// A peer, which had this rank in the view if it was in it, is not linked any more.
    pub(super) fn remove(&mut self, peer: &PeerId, rank: Option<Rank>) {
        self.informed.remove(peer);
        if let Some(rank) = rank {
            self.linked.remove(&rank);
        }
    }

    /// This member is in another view than it knew: so far none of the others is known to be back in that one.
    pub(super) fn forget(&mut self) {
        self.linked.clear();
        self.known.clear();
        self.informed.clear();
    }
}
