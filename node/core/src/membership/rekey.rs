//! Rekeying: a new secret for a running run, which makes old invites useless.
//!
//! The member whose user asks for it sends the new secret to all members. Each one takes it, sends it to all others once (the first member
//! may be gone before it has done so), and confirms to the first member. The first member repeats it to those that have not confirmed. A
//! peer that joins meanwhile gets it too, because it may still use the old secret. Of two secrets at once the later one holds. A peer that
//! is being expelled gets none.
//!
//! # Not here
//! The use of the secret: the shell needs it in every later handshake. Connections with members stay; all others, which were made with the
//! old secret, are closed.

use std::collections::BTreeSet;

use peergrad_protocol::PeerId;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::{AdminMessage, Message, Rekey};
use peergrad_protocol::view::View;

use super::members::Members;
use crate::io::{Event, Output};

/// The last secret that arrived since this member joined, if any.
#[derive(Default)]
pub(super) struct Rekeying {
    /// That secret; `None` if there was none.
    latest: Option<LatestSecret>,
}

/// A secret that arrived while the run was in progress.
#[derive(Clone, Debug)]
struct LatestSecret {
    /// The message that distributes the secret.
    rekey: Rekey,
    /// The members that are known to have it. At the member that began, all that have confirmed.
    confirmed: BTreeSet<PeerId>,
}

/// The peers that must know a new secret: the members of this view, and those of the next one if it is chosen.
#[derive(Clone, Copy)]
pub(super) struct Recipients<'m> {
    /// The members of this view.
    pub(super) members: &'m Members,
    /// The next view; `None` until it is chosen.
    pub(super) next: Option<&'m View>,
}

impl Recipients<'_> {
    /// The members of this view that must know the secret.
    fn lasting(&self) -> impl Iterator<Item = PeerId> {
        let members = self.members.place.view.members.iter().map(|member| member.peer);
        members.filter(|peer| !self.members.departures.expelling.contains_key(peer))
    }

    /// All of them, also those that are only in the next view.
    fn all(&self) -> BTreeSet<PeerId> {
        let to_come = self.next.iter().flat_map(|next| &next.members).map(|member| member.peer);
        let stays = |peer: &PeerId| !self.members.departures.expelling.contains_key(peer);
        self.lasting().chain(to_come.filter(stays)).collect()
    }
}

impl Rekeying {
    /// The user of this member asks for another secret of the run, drawn at `drawn_at` (Unix time in milliseconds).
    pub(super) fn begin(&mut self, to: Recipients<'_>, secret: Secret, drawn_at: u64, out: &mut Vec<Output>) {
        let at = self.latest.as_ref().map_or(drawn_at, |known| drawn_at.max(known.rekey.at + 1));
        let rekey = Rekey { at, by: to.members.me().peer, secret };
        if rekey.is_possible() {
            self.adopt(to, rekey, out);
        }
    }

    /// A member sends another secret of the run.
    pub(super) fn on_rekey(
        &mut self,
        to: Recipients<'_>,
        from: &PeerId,
        rekey: Rekey,
        out: &mut Vec<Output>,
    ) {
        let members = to.members;
        if !members.is_member(from) {
            return;
        }
        match &self.latest {
            Some(known) if rekey.is_before(&known.rekey) => {
                // The sender does not know the later secret, and has begun to lock itself out.
                let known = Message::Admin(AdminMessage::Rekey(known.rekey));
                return members.send(*from, &known, out);
            }
            Some(known) if known.rekey == rekey => {}
            _ => self.adopt(to, rekey, out),
        }
        members.send(rekey.by, &AdminMessage::Rekeyed(rekey.at).into(), out);
    }

    /// A member confirms the secret that this one has sent it.
    pub(super) fn on_rekeyed(&mut self, from: PeerId, at: u64) {
        if let Some(known) = self.latest.as_mut().filter(|known| known.rekey.at == at) {
            known.confirmed.insert(from);
        }
    }

    fn adopt(&mut self, to: Recipients<'_>, rekey: Rekey, out: &mut Vec<Output>) {
        let me = to.members.me().peer;
        self.latest = Some(LatestSecret { rekey, confirmed: BTreeSet::from([me]) });
        for peer in to.lasting().filter(|peer| *peer != me) {
            to.members.send(peer, &AdminMessage::Rekey(rekey).into(), out);
        }
        out.push(Output::Event(Event::Rekeyed { rekey, members: to.all() }));
    }

    /// Sends the secret again to members that may not have received it, or that are new.
    pub(super) fn resend(&self, members: &Members, out: &mut Vec<Output>) {
        let Some(rekey) = self.own(members).map(|known| known.rekey) else { return };
        for peer in self.unconfirmed(members).into_iter().flatten() {
            members.send(peer, &AdminMessage::Rekey(rekey).into(), out);
        }
    }

    /// Sends the secret to the new members of this view: the member that began may be gone.
    pub(super) fn send_to(&self, added: &[PeerId], members: &Members, out: &mut Vec<Output>) {
        if let Some(known) = &self.latest {
            added.iter().for_each(|peer| members.send(*peer, &AdminMessage::Rekey(known.rekey).into(), out));
        }
    }

    /// The members that have not confirmed the secret that this member's user has asked for; `None` if the user has not.
    pub(super) fn unconfirmed(&self, members: &Members) -> Option<Vec<PeerId>> {
        let known = self.own(members)?;
        let recipients = Recipients { members, next: None };
        Some(recipients.lasting().filter(|peer| !known.confirmed.contains(peer)).collect())
    }

    /// The secret, if this member's user has asked for it.
    fn own(&self, members: &Members) -> Option<&LatestSecret> {
        self.latest.as_ref().filter(|known| known.rekey.by == members.me().peer)
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::view::ExpulsionCause;

    use super::*;
    use crate::fixtures::{membership, peer, sent_messages};
    use crate::membership::Membership;

    fn unconfirmed(membership: &Membership) -> Option<Vec<PeerId>> {
        membership.rekeying.unconfirmed(&membership.members)
    }

    fn rekey(at: u64, by: u8) -> Rekey {
        Rekey { at, by: peer(by), secret: Secret([at as u8; 32]) }
    }

    /// The secrets that were reported to the shell.
    fn taken(out: &[Output]) -> Vec<Rekey> {
        let taken = |output: &Output| match output {
            Output::Event(Event::Rekeyed { rekey, .. }) => Some(*rekey),
            _ => None,
        };
        out.iter().filter_map(taken).collect()
    }

    #[test]
    fn a_new_secret_is_repeated_until_all_members_have_confirmed_it() {
        let mut membership = membership();
        let mut out = Vec::new();
        assert_eq!(unconfirmed(&membership), None);
        membership.rekey(Secret([7; 32]), 7, &mut out);
        let message = Message::Admin(AdminMessage::Rekey(rekey(7, 2)));
        assert_eq!(sent_messages(&out), [(peer(1), message.clone()), (peer(3), message.clone())]);
        assert_eq!(taken(&out), [rekey(7, 2)]);
        membership.on_admin(peer(1), AdminMessage::Rekeyed(6), &mut Vec::new());
        assert_eq!(unconfirmed(&membership), Some(vec![peer(1), peer(3)]), "that was about another one");
        membership.on_admin(peer(1), AdminMessage::Rekeyed(7), &mut Vec::new());
        out.clear();
        membership.rekeying.resend(&membership.members, &mut out);
        assert_eq!(sent_messages(&out), [(peer(3), message)]);
        membership.on_admin(peer(3), AdminMessage::Rekeyed(7), &mut Vec::new());
        assert_eq!(unconfirmed(&membership), Some(vec![]));
        // The clock of this member is behind those of others.
        out.clear();
        membership.rekey(Secret([8; 32]), 1, &mut out);
        assert_eq!(taken(&out), [rekey(8, 2)], "it is later nevertheless");
    }

    #[test]
    fn a_peer_that_is_being_expelled_gets_no_secret() {
        let mut membership = membership();
        membership.members.expel(peer(3), ExpulsionCause::Request, &mut Vec::new());
        let mut out = Vec::new();
        membership.rekey(Secret([7; 32]), 7, &mut out);
        assert_eq!(sent_messages(&out), [(peer(1), Message::Admin(AdminMessage::Rekey(rekey(7, 2))))]);
        let stays = |output: &Output| match output {
            Output::Event(Event::Rekeyed { members, .. }) => members.clone(),
            _ => BTreeSet::new(),
        };
        assert_eq!(out.iter().flat_map(stays).collect::<Vec<_>>(), [peer(1), peer(2)]);
        assert_eq!(unconfirmed(&membership), Some(vec![peer(1)]));
        out.clear();
        membership.rekeying.resend(&membership.members, &mut out);
        assert_eq!(sent_messages(&out), [(peer(1), Message::Admin(AdminMessage::Rekey(rekey(7, 2))))]);
    }

    #[test]
    fn a_secret_from_a_member_is_adopted_once_forwarded_and_confirmed() {
        let mut membership = membership();
        let mut out = Vec::new();
        membership.on_admin(peer(9), AdminMessage::Rekey(rekey(5, 9)), &mut out);
        assert_eq!((sent_messages(&out), taken(&out)), (vec![], vec![]), "a stranger's word");
        membership.on_admin(peer(1), AdminMessage::Rekey(rekey(5, 3)), &mut out);
        let confirmed = (peer(3), Message::Admin(AdminMessage::Rekeyed(5)));
        let passed_on = [1, 3].map(|to| (peer(to), Message::Admin(AdminMessage::Rekey(rekey(5, 3)))));
        assert_eq!(sent_messages(&out), [&passed_on[..], std::slice::from_ref(&confirmed)].concat());
        assert_eq!(taken(&out), [rekey(5, 3)]);
        out.clear();
        membership.on_admin(peer(3), AdminMessage::Rekey(rekey(5, 3)), &mut out);
        assert_eq!((sent_messages(&out), taken(&out)), (vec![confirmed], vec![]), "again, but nothing new");
        out.clear();
        membership.on_admin(peer(3), AdminMessage::Rekey(rekey(4, 1)), &mut out);
        let known = (peer(3), Message::Admin(AdminMessage::Rekey(rekey(5, 3))));
        assert_eq!((sent_messages(&out), taken(&out)), (vec![known], vec![]), "an earlier one");
        out.clear();
        assert_eq!(unconfirmed(&membership), None, "another one sees to it");
        membership.send_secret(&[peer(3)], &mut out);
        assert_eq!(sent_messages(&out), [(peer(3), Message::Admin(AdminMessage::Rekey(rekey(5, 3))))]);
    }
}
