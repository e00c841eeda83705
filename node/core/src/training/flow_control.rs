//! Flow control: credit and held segments of the links to the members of a view.
//!
//! Credit belongs to a link, not to a view. Segments that are on their way when the view changes are dropped where they arrive, and their
//! credit is returned. So a new view starts with the credit that is left.
//!
//! What was on its way when a link broke is lost, and nothing sent after it would be of use. So nothing is sent over the new link until the
//! next view, which must come.

use std::collections::BTreeMap;

use peergrad_collectives::credit::LinkCredits;
use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::view::View;
use peergrad_protocol::{PeerId, Rank};

use crate::io::{Output, Reject};
use crate::state::shared_cache::ViewDifference;

/// The links to the members of one view, by rank.
pub(super) struct FlowControl {
    /// How many segments may still be sent to each member.
    pub(super) links: LinkCredits,
    /// This member's rank in the view.
    rank: Rank,
    /// Segments received whose credit was not returned.
    held: Vec<u32>,
    /// The sum of `held`.
    held_total: u32,
    /// The members whose link broke in this view, with the credit of the new link, which is used from the next view on.
    broken: BTreeMap<Rank, u32>,
}

impl FlowControl {
    /// Takes the credit of linked members out of `credits`; a member that is not there is not linked.
    pub(super) fn new(view: &View, rank: Rank, credits: &mut BTreeMap<PeerId, u32>) -> Self {
        let count = view.members.len();
        let mut links = LinkCredits::new(count, LINK_SEGMENTS);
        for (index, member) in view.members.iter().enumerate() {
            links.set_credit(index, credits.get(&member.peer).copied().unwrap_or(0));
        }
        Self { links, rank, held: vec![0; count], held_total: 0, broken: BTreeMap::new() }
    }

    /// Changes to the view `after`: returns the credit of all held segments, puts the remaining credit of members that are gone back into
    /// `credits`, and takes that of new members out of it.
    pub(super) fn follow(
        &mut self,
        (before, after): (&View, &View),
        difference: &ViewDifference,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) {
        if self.held_total > 0 {
            for (held, member) in self.held.iter_mut().zip(&before.members).filter(|(held, _)| **held > 0) {
                out.push(Output::Credit { to: member.peer, segments: std::mem::take(held) });
            }
            self.held_total = 0;
        }
        self.mend();
        let left = difference.left.iter().filter_map(|peer| Some((peer, before.rank(peer)?.index())));
        // From the last rank down, so that the ranks of the others do not shift.
        for (peer, index) in left.rev() {
            if let Some(credit) = credits.get_mut(peer) {
                *credit = self.links.credit(index);
            }
            self.links.remove(index);
            self.held.remove(index);
        }
        let joined = difference.joined.iter().filter_map(|peer| Some((peer, after.rank(peer)?.index())));
        for (peer, index) in joined {
            self.links.insert(index, credits.get(peer).copied().unwrap_or(0));
            self.held.insert(index, 0);
        }
    }

    /// This member has another rank in the next view.
    pub(super) fn set_rank(&mut self, rank: Rank) {
        self.rank = rank;
    }

    /// Returns the credit of all held segments, and puts the remaining credit back into `credits`.
    pub(super) fn release(
        &mut self,
        view: &View,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) {
        self.mend();
        for (index, member) in view.members.iter().enumerate() {
            let segments = std::mem::take(&mut self.held[index]);
            if let Some(credit) = credits.get_mut(&member.peer) {
                *credit = self.links.credit(index);
                if segments > 0 {
                    out.push(Output::Credit { to: member.peer, segments });
                }
            }
        }
        self.held_total = 0;
    }

    /// The rank of a peer that has sent something, which is usually a neighbor in the ring.
    pub(super) fn rank_of(&self, peer: &PeerId, view: &View) -> Option<Rank> {
        let (rank, count) = (self.rank.index(), view.members.len());
        let neighbours = [(rank + count - 1) % count, (rank + 1) % count];
        let is_it = |index: &usize| view.members[*index].peer == *peer;
        neighbours.into_iter().find(is_it).map(Rank::from_index).or_else(|| view.rank(peer))
    }

    /// Holds a segment that has arrived.
    pub(super) fn hold(&mut self, from: Rank) -> Result<(), Reject> {
        let held = &mut self.held[from.index()];
        if *held == LINK_SEGMENTS {
            return Err(Reject::OverCredit);
        }
        *held += 1;
        self.held_total += 1;
        Ok(())
    }

    /// A held segment was processed. Returns whether its credit is returned: not if the link was replaced since.
    pub(super) fn use_up(&mut self, from: usize) -> bool {
        let is_held = self.held[from] > 0;
        self.held[from] -= u32::from(is_held);
        self.held_total -= u32::from(is_held);
        is_held
    }

    /// A member returned credit. Returns whether something can be sent that could not be sent before.
    pub(super) fn give_back(&mut self, from: &PeerId, segments: u32, view: &View) -> bool {
        let Some(rank) = self.rank_of(from, view) else { return false };
        if let Some(credit) = self.broken.get_mut(&rank) {
            *credit = credit.saturating_add(segments).min(LINK_SEGMENTS);
            return false;
        }
        // A member that returns more credit than it owes only harms itself.
        let owed = LINK_SEGMENTS - self.links.credit(rank.index());
        self.links.return_credit(rank.index(), segments.min(owed))
    }

    /// There is a new link to a member, with nothing on its way yet.
    pub(super) fn link_up(&mut self, rank: Rank) {
        self.forget_held(rank);
        match self.broken.get_mut(&rank) {
            Some(credit) => *credit = LINK_SEGMENTS,
            None => self.links.set_credit(rank.index(), LINK_SEGMENTS),
        }
    }

    /// A link to a member is down.
    pub(super) fn link_down(&mut self, rank: Rank) {
        self.forget_held(rank);
        self.links.set_credit(rank.index(), 0);
        self.broken.insert(rank, 0);
    }

    fn forget_held(&mut self, rank: Rank) {
        self.held_total -= std::mem::take(&mut self.held[rank.index()]);
    }

    /// A link that broke in this view can be used in the next.
    fn mend(&mut self) {
        for (rank, credit) in std::mem::take(&mut self.broken) {
            self.links.set_credit(rank.index(), credit);
        }
    }

    /// The number of segments that are held, over all members.
    pub(super) fn held_total(&self) -> u32 {
        self.held_total
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::fixtures::{peer, view};

    /// The credit of each rank.
    fn credit(flow_control: &FlowControl) -> Vec<u32> {
        (0..flow_control.held.len()).map(|rank| flow_control.links.credit(rank)).collect()
    }

    #[test]
    fn credit_outlives_the_view() {
        let (before, after) = (view(&[1, 2, 3, 4]), view(&[1, 3, 4, 5]));
        // Peer 4 is not linked; peer 9 is, and is not a member.
        let mut credits: BTreeMap<PeerId, u32> =
            [2, 3, 5, 9].map(|byte| (peer(byte), LINK_SEGMENTS)).into_iter().collect();
        let mut flow_control = FlowControl::new(&before, Rank(0), &mut credits);
        assert_eq!(credit(&flow_control), [0, 4, 4, 0]);
        assert!(flow_control.links.take_for_relay(2) && flow_control.links.take_for_relay(2));
        assert_eq!(flow_control.hold(Rank(1)), Ok(()));
        assert_eq!((flow_control.hold(Rank(2)), flow_control.hold(Rank(2))), (Ok(()), Ok(())));
        let mut out = Vec::new();
        flow_control.release(&before, &mut credits, &mut out);
        let returned: Vec<_> = out
            .iter()
            .map(|output| match output {
                Output::Credit { to, segments } => (to.0[0], *segments),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((returned, flow_control.held_total()), (vec![(2, 1), (3, 2)], 0));
        let left = credits.values().copied().collect::<Vec<_>>();
        assert_eq!(left, [4, 2, 4, 4], "what is on its way to peer 3 is not there twice");

        let mut flow_control = FlowControl::new(&after, Rank(0), &mut credits);
        assert_eq!(credit(&flow_control), [0, 2, 0, 4]);
        // A view change and the change back leave the credit as it was.
        let difference = |joined, left| ViewDifference {
            joined: vec![peer(joined)],
            left: vec![peer(left)],
            retiring: vec![],
        };
        let mut follow = |views, difference: &ViewDifference| {
            flow_control.follow(views, difference, &mut credits, &mut out);
            credit(&flow_control)
        };
        assert_eq!(follow((&after, &before), &difference(2, 5)), [0, 4, 2, 0]);
        assert_eq!(follow((&before, &after), &difference(5, 2)), [0, 2, 0, 4]);
        assert!(flow_control.give_back(&peer(3), 1, &after), "of a segment that was sent in the view before");
        assert!(flow_control.give_back(&peer(3), 7, &after), "more than was owed is not taken");
        assert!(!flow_control.give_back(&peer(2), 1, &after));
        assert_eq!(credit(&flow_control), [0, 4, 0, 4]);
    }

    #[test]
    fn after_a_lost_link_no_segment_is_sent_before_the_next_view() {
        let (before, after) = (view(&[1, 2, 3]), view(&[1, 3]));
        let mut credits: BTreeMap<PeerId, u32> = [2, 3].map(|byte| (peer(byte), LINK_SEGMENTS)).into();
        let mut flow_control = FlowControl::new(&before, Rank(0), &mut credits);
        flow_control.link_down(Rank(2));
        flow_control.link_up(Rank(2));
        assert!(!flow_control.give_back(&peer(3), 1, &before));
        assert_eq!(credit(&flow_control), [0, 4, 0]);
        let difference = ViewDifference { joined: vec![], left: vec![peer(2)], retiring: vec![] };
        let mut out = Vec::new();
        flow_control.follow((&before, &after), &difference, &mut credits, &mut out);
        assert_eq!(credit(&flow_control), [0, 4]);
        // A member that is still gone has none; one that is new has all of it.
        flow_control.link_down(Rank(1));
        flow_control.follow((&after, &after), &ViewDifference::default(), &mut credits, &mut out);
        assert_eq!(credit(&flow_control), [0, 0]);
        flow_control.link_up(Rank(1));
        assert_eq!(credit(&flow_control), [0, 4]);
    }

    #[test]
    fn at_most_one_window_of_segments_is_held_for_each_link() {
        let view = view(&[1, 2, 3]);
        let mut flow_control = FlowControl::new(&view, Rank(1), &mut BTreeMap::new());
        for _ in 0..LINK_SEGMENTS {
            assert_eq!(flow_control.hold(Rank(0)), Ok(()));
        }
        assert_eq!(flow_control.hold(Rank(0)), Err(Reject::OverCredit));
        assert!(flow_control.use_up(0));
        assert_eq!((flow_control.hold(Rank(0)), flow_control.held_total()), (Ok(()), LINK_SEGMENTS));
        // Segments of a link that is gone have no credit to return.
        flow_control.link_down(Rank(0));
        assert!(!flow_control.use_up(0));
        assert_eq!(flow_control.held_total(), 0);
    }

    #[test]
    fn the_rank_of_each_member_is_found() {
        for peers in [&[1][..], &[1, 2], &[1, 2, 3, 4, 5]] {
            let view = view(peers);
            for own in 0..peers.len() {
                let flow_control = FlowControl::new(&view, Rank::from_index(own), &mut BTreeMap::new());
                for (index, byte) in peers.iter().enumerate() {
                    assert_eq!(flow_control.rank_of(&peer(*byte), &view), Some(Rank::from_index(index)));
                }
                assert_eq!(flow_control.rank_of(&peer(9), &view), None);
            }
        }
    }
}
