//! Contacts: the peers that a joiner may ask, as the members that have answered name them.

use std::collections::BTreeSet;

use peergrad_protocol::PeerId;
use peergrad_protocol::message::{Contact, Welcome};

use crate::io::Output;

/// The peers that a joiner may ask.
pub(super) struct Contacts {
    me: PeerId,
    /// The members that the last answer named; empty before the first answer.
    members: Vec<Contact>,
    /// Those of `members` that own nothing.
    non_owners: BTreeSet<PeerId>,
    /// Whether a member has answered since this peer began to ask, even one that is reached through another peer.
    are_current: bool,
    /// The founder of the run, if another joiner has named it.
    founder: Option<Contact>,
}

impl Contacts {
    /// The contacts of `me`, which knows of `members` from before.
    pub(super) fn new(me: PeerId, members: Vec<Contact>) -> Self {
        Self { me, members, non_owners: BTreeSet::new(), are_current: false, founder: None }
    }

    /// A member has named the members of its view.
    pub(super) fn welcomed(&mut self, welcome: Welcome) {
        self.members = welcome.members;
        self.non_owners = welcome.non_owners.into_iter().collect();
        self.are_current = true;
    }

    /// Another joiner names a member or the founder. Returns whether that is news.
    pub(super) fn refer(&mut self, contact: &Contact) -> bool {
        let is_news = self.founder.as_ref() != Some(contact) && contact.peer != self.me;
        if is_news {
            self.founder = Some(contact.clone());
        }
        is_news
    }

    /// A member stops. Returns whether another one is known.
    pub(super) fn forget(&mut self, peer: PeerId) -> bool {
        self.members.retain(|contact| contact.peer != peer);
        self.others().next().is_some()
    }

    /// Whether a member has answered since this peer began to ask.
    pub(super) fn are_current(&self) -> bool {
        self.are_current
    }

    /// The members other than this peer.
    pub(super) fn others(&self) -> impl Iterator<Item = &Contact> {
        self.members.iter().filter(|contact| contact.peer != self.me)
    }

    /// Whether a member owns nothing.
    pub(super) fn is_non_owner(&self, peer: &PeerId) -> bool {
        self.non_owners.contains(peer)
    }

    /// The contact that another joiner is told to ask: that of the sponsor, else the founder's; `None` if neither is known.
    pub(super) fn referral(&self, sponsor: Option<PeerId>) -> Option<&Contact> {
        let sponsor = self.members.iter().find(|contact| Some(contact.peer) == sponsor);
        sponsor.or(self.founder.as_ref())
    }

    /// Dials the members that are not among `linked`.
    pub(super) fn dial_others(&self, linked: &BTreeSet<PeerId>, out: &mut Vec<Output>) {
        let unlinked = self.others().filter(|contact| !linked.contains(&contact.peer));
        out.extend(unlinked.cloned().map(Output::Dial));
    }
}
