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

use super::Membership;
use crate::io::{Event, Output};

/// A secret that arrived while the run was in progress.
#[derive(Clone, Debug)]
pub(super) struct Rekeying {
    rekey: Rekey,
    /// The members that are known to have it. At the member that began, all that have confirmed.
    confirmed: BTreeSet<PeerId>,
}

impl Membership {
    /// The user of this member asks for another secret of the run, drawn at `drawn_at` (Unix time in milliseconds).
    pub(crate) fn rekey(&mut self, secret: Secret, drawn_at: u64, out: &mut Vec<Output>) {
        let at = self.rekeying.as_ref().map_or(drawn_at, |known| drawn_at.max(known.rekey.at + 1));
        let rekey = Rekey { at, by: self.place.me.peer, secret };
        if rekey.is_possible() {
            self.adopt(rekey, out);
        }
    }

    /// A member sends another secret of the run.
    pub(crate) fn on_rekey(&mut self, from: &PeerId, rekey: Rekey, out: &mut Vec<Output>) {
        if !self.is_member(from) {
            return;
        }
        match &mut self.rekeying {
            Some(known) if rekey.is_before(&known.rekey) => {
                // The sender does not know the later secret, and has begun to lock itself out.
                let known = Message::Admin(AdminMessage::Rekey(known.rekey));
                return self.send(*from, &known, out);
            }
            Some(known) if known.rekey == rekey => {}
            _ => self.adopt(rekey, out),
        }
        self.send(rekey.by, &AdminMessage::Rekeyed(rekey.at).into(), out);
    }

    /// A member confirms the secret that this one has sent it.
    pub(crate) fn on_rekeyed(&mut self, from: PeerId, at: u64) {
        if let Some(known) = self.rekeying.as_mut().filter(|known| known.rekey.at == at) {
            known.confirmed.insert(from);
        }
    }

    fn adopt(&mut self, rekey: Rekey, out: &mut Vec<Output>) {
        self.rekeying = Some(Rekeying { rekey, confirmed: BTreeSet::from([self.place.me.peer]) });
        for peer in self.lasting_members().filter(|peer| *peer != self.place.me.peer) {
            self.send(peer, &AdminMessage::Rekey(rekey).into(), out);
        }
        let to_come = self.next.iter().flat_map(|next| &next.view.members).map(|member| member.peer);
        let members = self
            .lasting_members()
            .chain(to_come.filter(|peer| !self.departures.expelling.contains_key(peer)));
        out.push(Output::Event(Event::Rekeyed { rekey, members: members.collect() }));
    }

    /// The members that must know the secret.
    fn lasting_members(&self) -> impl Iterator<Item = PeerId> {
        let members = self.place.view.members.iter().map(|member| member.peer);
        members.filter(|peer| !self.departures.expelling.contains_key(peer))
    }

    /// Sends the secret again to members that may not have received it, or that are new.
    pub(super) fn resend_rekey(&self, out: &mut Vec<Output>) {
        let Some(known) = self.rekeying.as_ref().filter(|known| known.rekey.by == self.place.me.peer) else {
            return;
        };
        for peer in self.lasting_members().filter(|peer| !known.confirmed.contains(peer)) {
            self.send(peer, &AdminMessage::Rekey(known.rekey).into(), out);
        }
    }

    /// Sends the secret to the new members of this view: the member that began may be gone.
    pub(crate) fn tell_secret(&self, added: &[PeerId], out: &mut Vec<Output>) {
        if let Some(known) = &self.rekeying {
            added.iter().for_each(|peer| self.send(*peer, &AdminMessage::Rekey(known.rekey).into(), out));
        }
    }

    /// The members that have not confirmed the secret that this member's user has asked for; `None` if the user has not.
    pub(crate) fn without_secret(&self) -> Option<Vec<PeerId>> {
        let known = self.rekeying.as_ref().filter(|known| known.rekey.by == self.place.me.peer)?;
        Some(self.lasting_members().filter(|peer| !known.confirmed.contains(peer)).collect())
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::view::ExpulsionCause;

    use super::*;
    use crate::fixtures::{membership, peer, sent_messages};

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
    fn whoever_begins_tells_all_until_all_have_confirmed() {
        let mut membership = membership();
        let mut out = Vec::new();
        assert_eq!(membership.without_secret(), None);
        membership.rekey(Secret([7; 32]), 7, &mut out);
        let message = Message::Admin(AdminMessage::Rekey(rekey(7, 2)));
        assert_eq!(sent_messages(&out), [(peer(1), message.clone()), (peer(3), message.clone())]);
        assert_eq!(taken(&out), [rekey(7, 2)]);
        membership.on_rekeyed(peer(1), 6);
        assert_eq!(membership.without_secret(), Some(vec![peer(1), peer(3)]), "that was about another one");
        membership.on_rekeyed(peer(1), 7);
        out.clear();
        membership.resend_rekey(&mut out);
        assert_eq!(sent_messages(&out), [(peer(3), message)]);
        membership.on_rekeyed(peer(3), 7);
        assert_eq!(membership.without_secret(), Some(vec![]));
        // The clock of this member is behind those of others.
        out.clear();
        membership.rekey(Secret([8; 32]), 1, &mut out);
        assert_eq!(taken(&out), [rekey(8, 2)], "it is later all the same");
    }

    #[test]
    fn whoever_is_being_put_out_is_told_nothing() {
        let mut membership = membership();
        membership.expel(peer(3), ExpulsionCause::Request, &mut Vec::new());
        let mut out = Vec::new();
        membership.rekey(Secret([7; 32]), 7, &mut out);
        assert_eq!(sent_messages(&out), [(peer(1), Message::Admin(AdminMessage::Rekey(rekey(7, 2))))]);
        let stays = |output: &Output| match output {
            Output::Event(Event::Rekeyed { members, .. }) => members.clone(),
            _ => BTreeSet::new(),
        };
        assert_eq!(out.iter().flat_map(stays).collect::<Vec<_>>(), [peer(1), peer(2)]);
        assert_eq!(membership.without_secret(), Some(vec![peer(1)]));
        out.clear();
        membership.resend_rekey(&mut out);
        assert_eq!(sent_messages(&out), [(peer(1), Message::Admin(AdminMessage::Rekey(rekey(7, 2))))]);
    }

    #[test]
    fn what_a_member_says_is_taken_once_passed_on_and_confirmed() {
        let mut membership = membership();
        let mut out = Vec::new();
        membership.on_rekey(&peer(9), rekey(5, 9), &mut out);
        assert_eq!((sent_messages(&out), taken(&out)), (vec![], vec![]), "a stranger's word");
        membership.on_rekey(&peer(1), rekey(5, 3), &mut out);
        let confirmed = (peer(3), Message::Admin(AdminMessage::Rekeyed(5)));
        let passed_on = [1, 3].map(|to| (peer(to), Message::Admin(AdminMessage::Rekey(rekey(5, 3)))));
        assert_eq!(sent_messages(&out), [&passed_on[..], std::slice::from_ref(&confirmed)].concat());
        assert_eq!(taken(&out), [rekey(5, 3)]);
        out.clear();
        membership.on_rekey(&peer(3), rekey(5, 3), &mut out);
        assert_eq!((sent_messages(&out), taken(&out)), (vec![confirmed], vec![]), "again, but nothing new");
        out.clear();
        membership.on_rekey(&peer(3), rekey(4, 1), &mut out);
        let known = (peer(3), Message::Admin(AdminMessage::Rekey(rekey(5, 3))));
        assert_eq!((sent_messages(&out), taken(&out)), (vec![known], vec![]), "an earlier one");
        out.clear();
        assert_eq!(membership.without_secret(), None, "another one sees to it");
        membership.tell_secret(&[peer(3)], &mut out);
        assert_eq!(sent_messages(&out), [(peer(3), Message::Admin(AdminMessage::Rekey(rekey(5, 3))))]);
    }
}
