//! Departures: members that leave by themselves, and members that are expelled, which means removed from the run for good.
//!
//! A user asks for an expulsion at any member, or a member counts too many invalid frames from another one. The member that begins tells
//! all others, and repeats that until the peer is gone. The others repeat it to the coordinator. A peer that a user expels first hands
//! over its chunks, like one that leaves by itself. A peer that sends invalid frames counts as lost at once. The view without the peer
//! names it, so that no member admits it again, however late that member joins.
//!
//! Of members that expel each other the last one stays: there is nobody left to expel it.
//!
//! # Not here
//! A peer that holds the run's secret can join under another key until the secret is replaced (`rekey.rs`).

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::view::{Expulsion, ExpulsionCause, View, ViewChange};
use peergrad_protocol::{PeerId, Rank};

/// The members that are about to leave, or to be expelled.
#[derive(Default)]
pub(super) struct Departures {
    /// Members that hand over what they own before they leave.
    pub(super) retiring: BTreeSet<PeerId>,
    /// Members that are to be expelled, and why.
    pub(super) expelling: BTreeMap<PeerId, Expulsion>,
}

impl Departures {
    /// Records an expulsion. The first one of a peer counts, so that all members soon agree on its cause.
    pub(super) fn expel(&mut self, expulsion: Expulsion) {
        self.expelling.entry(expulsion.peer).or_insert(expulsion);
        if expulsion.cause == ExpulsionCause::Request {
            self.retiring.insert(expulsion.peer);
        }
    }

    /// The peers whose removal a user has ordered at this member.
    pub(super) fn ordered_by(&self, member: &PeerId) -> impl Iterator<Item = PeerId> {
        let is_ordered =
            |expulsion: &&Expulsion| expulsion.by == *member && expulsion.cause == ExpulsionCause::Request;
        self.expelling.values().filter(is_ordered).map(|expulsion| expulsion.peer)
    }

    /// A view has begun: forgets the peers that left with it.
    pub(super) fn view_changed(&mut self, view: &View) {
        self.retiring.retain(|peer| view.rank(peer).is_some());
        self.expelling.retain(|peer, _| view.expulsion(peer).is_none());
        if let [last] = &view.members[..]
            && self.expelling.remove(&last.peer).is_some()
        {
            // It does not leave either, once others join.
            self.retiring.remove(&last.peer);
        }
    }

    /// Members that are expelled for invalid frames: they count as lost.
    pub(super) fn violators(&self, view: &View) -> impl Iterator<Item = Rank> {
        let is_violator = |expulsion: &&Expulsion| expulsion.cause == ExpulsionCause::Violations;
        self.expelling.values().filter(is_violator).filter_map(|it| view.rank(&it.peer))
    }

    /// The peers that the change of `view` expels. Some may have left before they could be expelled.
    pub(super) fn expulsions_with(&self, view: &View, change: &ViewChange) -> Vec<Expulsion> {
        let is_out = |peer: &PeerId| view.rank(peer).is_none_or(|rank| change.removed.contains(&rank));
        let comes = |peer: &PeerId| change.added.iter().any(|member| member.peer == *peer);
        let out = self.expelling.values().filter(|expulsion| is_out(&expulsion.peer));
        out.filter(|expulsion| !comes(&expulsion.peer)).copied().collect()
    }

    /// Why a peer must not be admitted to `view`; `None` if it may be.
    pub(super) fn expulsion_of<'a>(&'a self, view: &'a View, peer: &PeerId) -> Option<&'a Expulsion> {
        view.expulsion(peer).or(self.expelling.get(peer))
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::cursor::DataCursor;
    use peergrad_protocol::message::{AdminMessage, Join, Message, Refusal};
    use peergrad_protocol::view::{Moves, Resume};
    use peergrad_protocol::{Incarnation, Instant, StepNumber};

    use super::*;
    use crate::fixtures::{self, membership, peer, sent_messages};
    use crate::membership::{JoinAnswer, Membership, RunPhase};

    fn expulsions_with(membership: &Membership, change: &ViewChange) -> Vec<Expulsion> {
        let members = &membership.members;
        members.departures.expulsions_with(&members.place.view, change)
    }

    #[test]
    fn an_expulsion_is_repeated_to_all_members_until_the_peer_is_removed() {
        let mut membership = membership();
        let expulsion = Expulsion { peer: peer(3), by: peer(2), cause: ExpulsionCause::Request };
        let mut out = Vec::new();
        membership.members.expel(peer(3), ExpulsionCause::Request, &mut out);
        let all = [1, 2, 3].map(|byte| (peer(byte), Message::Admin(AdminMessage::Expel(expulsion))));
        assert_eq!(sent_messages(&out), all);
        assert!(membership.members.departures.retiring.contains(&peer(3)), "it hands over first");
        assert_eq!(membership.members.lost(Instant(0)), []);
        let mut again = Vec::new();
        membership.members.resend_expulsions(Instant(0), &mut again);
        assert_eq!(sent_messages(&again), all);
        let without = |removed| ViewChange {
            parent: membership.members.place.digest,
            removed,
            added: vec![],
            capacities: vec![],
            speeds: vec![],
            lines: vec![],
            resume: Resume::at(StepNumber(9)),
            cursor: DataCursor::default(),
            moves: Moves::default(),
            expelled: vec![],
            quarantined: vec![],
            ancestors: vec![],
        };
        assert_eq!(expulsions_with(&membership, &without(vec![Rank(2)])), [expulsion]);
        assert_eq!(expulsions_with(&membership, &without(vec![Rank(0)])), [], "it is still in");
        let back = ViewChange { added: vec![fixtures::member(3)], ..without(vec![Rank(2)]) };
        assert_eq!(expulsions_with(&membership, &back), [], "it comes in again with the very same");
        // A second request for the same peer, and one for a peer that is no member.
        out.clear();
        membership.members.expel(peer(3), ExpulsionCause::Violations, &mut out);
        membership.members.expel(peer(9), ExpulsionCause::Request, &mut out);
        assert_eq!(out.len(), 0);
    }

    #[test]
    fn members_repeat_an_expulsion_of_another_member_to_the_coordinator() {
        let mut membership = membership();
        let expulsion = Expulsion { peer: peer(3), by: peer(9), cause: ExpulsionCause::Request };
        membership.members.departures.expel(expulsion);
        let mut out = Vec::new();
        membership.members.resend_expulsions(Instant(0), &mut out);
        assert_eq!(sent_messages(&out), [(peer(1), Message::Admin(AdminMessage::Expel(expulsion)))]);
    }

    #[test]
    fn all_members_that_are_to_be_expelled_have_a_coordinator_nevertheless() {
        let mut membership = membership();
        let coordinator = |membership: &Membership| membership.members.coordinator(Instant(0));
        assert_eq!(coordinator(&membership), Some(Rank(0)));
        membership.members.expel(peer(1), ExpulsionCause::Request, &mut Vec::new());
        assert_eq!(coordinator(&membership), Some(Rank(1)));
        for byte in [2, 3] {
            membership.members.expel(peer(byte), ExpulsionCause::Request, &mut Vec::new());
        }
        assert_eq!(coordinator(&membership), Some(Rank(0)));
    }

    #[test]
    fn the_last_one_of_members_that_expel_each_other_stays_when_others_join() {
        let mut departures = Departures::default();
        departures.expel(Expulsion { peer: peer(1), by: peer(2), cause: ExpulsionCause::Request });
        departures.view_changed(&fixtures::view(&[1, 2]));
        assert!(departures.retiring.contains(&peer(1)));
        departures.view_changed(&fixtures::view(&[1]));
        assert!(departures.expelling.is_empty() && departures.retiring.is_empty());
    }

    #[test]
    fn a_member_expelled_for_violations_counts_as_lost_at_once() {
        let mut membership = membership();
        let of = |peer| Expulsion { peer, by: self::peer(1), cause: ExpulsionCause::Violations };
        membership.members.on_expel(&peer(9), of(peer(3)));
        assert_eq!(membership.members.lost(Instant(0)), [], "a stranger's word");
        membership.members.on_expel(&peer(1), of(peer(3)));
        membership.members.on_expel(&peer(1), of(peer(2)));
        assert_eq!(membership.members.lost(Instant(0)), [Rank(2)]);
        let mut out = Vec::new();
        membership.members.resend_expulsions(Instant(0), &mut out);
        let to: BTreeSet<PeerId> = sent_messages(&out).iter().map(|(to, _)| *to).collect();
        assert_eq!(to, [peer(1)].into(), "the member that began repeats it to the others");
        let join = Join { run: None, incarnation: Incarnation(9), addresses: vec![], capacity: 1 };
        assert_eq!(
            membership.on_join(peer(3), &join, RunPhase::Training),
            JoinAnswer::Refuse(Refusal::Expelled(of(peer(3))))
        );
    }
}
