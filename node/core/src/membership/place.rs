//! The place of this member: the view that it is in, and its rank there.

use std::sync::Arc;

use peergrad_protocol::limits::CONTACTS_MAX;
use peergrad_protocol::message::Contact;
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{PeerId, Rank, ViewDigest};

/// The view that a member is in, and its place there.
pub(super) struct Place {
    /// This member, in the incarnation that is in the view.
    pub(super) me: Member,
    pub(super) view: Arc<View>,
    /// The digest of `view`.
    pub(super) digest: ViewDigest,
    /// This member's rank in `view`.
    pub(super) rank: Rank,
    /// Whether each member owns or replicates anything, or may; by rank.
    pub(super) replica_holders: Vec<bool>,
}

impl Place {
    pub(super) fn new(me: Member, view: Arc<View>, digest: ViewDigest) -> Self {
        let rank = view.rank(&me.peer).expect("a view is installed at its members");
        Self { rank, replica_holders: view.replica_holders(), me, view, digest }
    }

    /// The ranks of all members.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.view.members.len()).map(Rank::from_index)
    }

    /// The peer at a rank.
    pub(super) fn peer(&self, rank: Rank) -> PeerId {
        self.view.member(rank).peer
    }

    /// The members other than this one.
    pub(super) fn others(&self) -> impl Iterator<Item = PeerId> {
        self.view.members.iter().map(|member| member.peer).filter(|peer| *peer != self.me.peer)
    }

    /// Members that a joiner may ask, this one first.
    pub(super) fn contacts(&self) -> Vec<Contact> {
        let others = self.view.members.iter().filter(|member| member.peer != self.me.peer);
        let all = std::iter::once(&self.me).chain(others).take(CONTACTS_MAX);
        all.map(Member::contact).collect()
    }

    /// The members that this one watches, which also watch it.
    pub(super) fn neighbors(&self) -> Vec<PeerId> {
        let count = self.view.members.len();
        let rank = self.rank.index();
        let ranks: Vec<usize> = if !self.view.is_large() {
            (0..count).filter(|other| *other != rank).collect()
        } else {
            let distances = [1, 7, count - 7, count - 1];
            let mut ranks: Vec<usize> = distances.iter().map(|distance| (rank + distance) % count).collect();
            ranks.sort_unstable();
            ranks
        };
        ranks.into_iter().map(|index| self.view.members[index].peer).collect()
    }
}
