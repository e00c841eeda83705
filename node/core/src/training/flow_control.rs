//! Flow control: credit, windows and held segments of the links to the members of a view.
//!
//! The *window* of a link is how many segments the other end may have in flight to this member, and waiting here: it got credit for so
//! many. A long line needs a larger one. The other end measures the line, and its heartbeats say how large. All windows together have a
//! limit. A window becomes smaller as credit is kept, where a ring allows it ([`peergrad_collectives::credit`]). So the window of a member
//! from which only relayed or mirrored segments come stays as it is.
//!
//! Credit belongs to a link, not to a view. Segments that are on their way when the view changes are dropped where they arrive, and their
//! credit is returned. So a new view starts with the credit that is left.
//!
//! What was on its way when a link broke is lost, and nothing sent after it would be of use. So nothing is sent over the new link until the
//! next view, which must come.

use std::collections::BTreeMap;

use peergrad_collectives::credit::LinkCredits;
use peergrad_protocol::limits::{LINK_SEGMENTS, LINK_SEGMENTS_MAX};
use peergrad_protocol::view::View;
use peergrad_protocol::{PeerId, Rank};

use crate::io::{Output, Reject};
use crate::peer_links::LinkFlow;
use crate::state::shared_cache::ViewDifference;

/// The links to the members of one view, by rank.
pub(super) struct FlowControl {
    /// How many segments may still be sent to each member.
    pub(super) links: LinkCredits,
    /// This member's rank in the view.
    rank: Rank,
    /// How many segments each member may have in flight to this one.
    windows: Vec<Window>,
    /// Segments received whose credit was not returned.
    held: Vec<u32>,
    /// The sum of `held`.
    held_total: u32,
    /// The members whose link broke in this view, with the credit of the new link, which is used from the next view on.
    broken: BTreeMap<Rank, u32>,
}

/// How many segments one member may have in flight to this one.
#[derive(Clone, Copy)]
struct Window {
    /// How many it has credit for.
    segments: u32,
    /// How many it should have: if that is less, some credit is not returned.
    target: u32,
    /// How many it would like to have.
    wanted: u32,
}

impl Window {
    fn new(segments: u32) -> Self {
        Self { segments, target: segments, wanted: segments.max(LINK_SEGMENTS) }
    }

    /// It becomes as small as at first, unless the member says again that it wants more.
    fn shrink(&mut self) {
        (self.target, self.wanted) = (LINK_SEGMENTS, LINK_SEGMENTS);
    }
}

impl FlowControl {
    /// Takes the flow control of linked members out of `flows`; a member that is not there is not linked.
    pub(super) fn new(view: &View, rank: Rank, flows: &mut BTreeMap<PeerId, LinkFlow>) -> Self {
        let mut control = Self {
            links: LinkCredits::new(0, LINK_SEGMENTS_MAX),
            rank,
            windows: vec![],
            held: vec![],
            held_total: 0,
            broken: BTreeMap::new(),
        };
        for (index, member) in view.members.iter().enumerate() {
            control.insert(index, flows.get(&member.peer));
        }
        control
    }

    fn insert(&mut self, index: usize, flow: Option<&LinkFlow>) {
        let flow = flow.copied().unwrap_or(LinkFlow { credit: 0, ..LinkFlow::NEW });
        self.links.insert(index, flow.credit);
        self.windows.insert(index, Window::new(flow.window));
        self.held.insert(index, 0);
    }

    /// The flow control of the link to the member at this rank, as it is after a change of the view.
    fn flow(&self, index: usize) -> LinkFlow {
        LinkFlow { credit: self.links.credit(index), window: self.windows[index].segments }
    }

    /// Changes to the view `after`: returns the credit of all held segments, puts the flow control of members that are gone back into
    /// `flows`, and takes that of new members out of it.
    pub(super) fn follow(
        &mut self,
        (before, after): (&View, &View),
        difference: &ViewDifference,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
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
            if let Some(flow) = flows.get_mut(peer) {
                *flow = self.flow(index);
            }
            self.links.remove(index);
            self.windows.remove(index);
            self.held.remove(index);
        }
        let joined = difference.joined.iter().filter_map(|peer| Some((peer, after.rank(peer)?.index())));
        for (peer, index) in joined {
            self.insert(index, flows.get(peer));
        }
        if after.is_large() {
            // Only neighbors go on saying what they want.
            self.windows.iter_mut().for_each(Window::shrink);
        }
    }

    /// This member has another rank in the next view.
    pub(super) fn set_rank(&mut self, rank: Rank) {
        self.rank = rank;
    }

    /// Returns the credit of all held segments, and puts the flow control of all members back into `flows`.
    pub(super) fn release(
        &mut self,
        view: &View,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) {
        self.mend();
        for (index, member) in view.members.iter().enumerate() {
            let segments = std::mem::take(&mut self.held[index]);
            if let Some(flow) = flows.get_mut(&member.peer) {
                *flow = self.flow(index);
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
        if *held == self.windows[from.index()].segments {
            return Err(Reject::OverCredit);
        }
        *held += 1;
        self.held_total += 1;
        Ok(())
    }

    /// A held segment was processed. Returns whether its credit is returned: not if the link was replaced since, nor if this member may
    /// keep it and the window becomes smaller.
    pub(super) fn use_up(&mut self, from: usize, may_keep: bool) -> bool {
        let is_held = self.held[from] > 0;
        self.held[from] -= u32::from(is_held);
        self.held_total -= u32::from(is_held);
        let window = &mut self.windows[from];
        let is_kept = is_held && may_keep && window.segments > window.target;
        window.segments -= u32::from(is_kept);
        is_held && !is_kept
    }

    /// A member would like to have so many segments in flight to this one. Returns the credit that it gets for that now. All windows
    /// together have at most `extra` segments more than [`LINK_SEGMENTS`] each; if that is too little, those that want most get as much as
    /// each other, once these have used up what they had.
    pub(super) fn widen(&mut self, from: Rank, wanted: u32, extra: u32) -> u32 {
        self.windows[from.index()].wanted = wanted.clamp(LINK_SEGMENTS, LINK_SEGMENTS_MAX);
        let more = |window: &Window| window.wanted - LINK_SEGMENTS;
        let share = largest_share(self.windows.iter().map(more).filter(|more| *more > 0).collect(), extra);
        let granted: u32 =
            self.windows.iter().map(|window| window.segments.saturating_sub(LINK_SEGMENTS)).sum();
        let window = &mut self.windows[from.index()];
        window.target = LINK_SEGMENTS + more(window).min(share);
        let credit = window.target.saturating_sub(window.segments).min(extra.saturating_sub(granted));
        window.segments += credit;
        credit
    }

    /// A member returned credit. Returns whether something can be sent that could not be sent before.
    pub(super) fn give_back(&mut self, from: &PeerId, segments: u32, view: &View) -> bool {
        let Some(rank) = self.rank_of(from, view) else { return false };
        if let Some(credit) = self.broken.get_mut(&rank) {
            *credit = credit.saturating_add(segments).min(LINK_SEGMENTS_MAX);
            return false;
        }
        // A member that returns more credit than it owes only harms itself.
        let room = LINK_SEGMENTS_MAX - self.links.credit(rank.index());
        self.links.return_credit(rank.index(), segments.min(room))
    }

    /// There is a new link to a member, with nothing on its way yet.
    pub(super) fn link_up(&mut self, rank: Rank) {
        self.forget_held(rank);
        self.windows[rank.index()] = Window::new(LINK_SEGMENTS);
        match self.broken.get_mut(&rank) {
            Some(credit) => *credit = LINK_SEGMENTS,
            None => self.links.set_credit(rank.index(), LINK_SEGMENTS),
        }
    }

    /// A link to a member is down.
    pub(super) fn link_down(&mut self, rank: Rank) {
        self.forget_held(rank);
        self.links.set_credit(rank.index(), 0);
        self.windows[rank.index()] = Window::new(LINK_SEGMENTS);
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

/// How much each may get at most, so that all together get no more than `sum`, and nothing is left over that one still wants.
fn largest_share(mut wanted: Vec<u32>, sum: u32) -> u32 {
    wanted.sort_unstable();
    let (mut left, mut count) = (sum, wanted.len() as u32);
    for wanted in wanted {
        if wanted > left / count {
            return left / count;
        }
        left -= wanted;
        count -= 1;
    }
    u32::MAX
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
        let mut flows: BTreeMap<PeerId, LinkFlow> =
            [2, 3, 5, 9].map(|byte| (peer(byte), LinkFlow::NEW)).into_iter().collect();
        let mut flow_control = FlowControl::new(&before, Rank(0), &mut flows);
        assert_eq!(credit(&flow_control), [0, 4, 4, 0]);
        assert!(flow_control.links.take_for_relay(2) && flow_control.links.take_for_relay(2));
        assert_eq!(flow_control.hold(Rank(1)), Ok(()));
        assert_eq!((flow_control.hold(Rank(2)), flow_control.hold(Rank(2))), (Ok(()), Ok(())));
        let mut out = Vec::new();
        flow_control.release(&before, &mut flows, &mut out);
        let returned: Vec<_> = out
            .iter()
            .map(|output| match output {
                Output::Credit { to, segments } => (to.0[0], *segments),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((returned, flow_control.held_total()), (vec![(2, 1), (3, 2)], 0));
        let left = flows.values().map(|flow| flow.credit).collect::<Vec<_>>();
        assert_eq!(left, [4, 2, 4, 4], "what is on its way to peer 3 is not there twice");

        let mut flow_control = FlowControl::new(&after, Rank(0), &mut flows);
        assert_eq!(credit(&flow_control), [0, 2, 0, 4]);
        // A view change and the change back leave the credit as it was.
        let difference = |joined, left| ViewDifference {
            joined: vec![peer(joined)],
            left: vec![peer(left)],
            ..ViewDifference::default()
        };
        let mut follow = |views, difference: &ViewDifference| {
            flow_control.follow(views, difference, &mut flows, &mut out);
            credit(&flow_control)
        };
        assert_eq!(follow((&after, &before), &difference(2, 5)), [0, 4, 2, 0]);
        assert_eq!(follow((&before, &after), &difference(5, 2)), [0, 2, 0, 4]);
        assert!(flow_control.give_back(&peer(3), 1, &after), "of a segment that was sent in the view before");
        assert!(!flow_control.give_back(&peer(2), 1, &after));
        assert!(flow_control.give_back(&peer(3), u32::MAX, &after));
        assert_eq!(credit(&flow_control), [0, LINK_SEGMENTS_MAX, 0, 4], "it only harms itself");
    }

    #[test]
    fn after_a_lost_link_no_segment_is_sent_before_the_next_view() {
        let (before, after) = (view(&[1, 2, 3]), view(&[1, 3]));
        let mut flows: BTreeMap<PeerId, LinkFlow> = [2, 3].map(|byte| (peer(byte), LinkFlow::NEW)).into();
        let mut flow_control = FlowControl::new(&before, Rank(0), &mut flows);
        flow_control.link_down(Rank(2));
        flow_control.link_up(Rank(2));
        assert!(!flow_control.give_back(&peer(3), 1, &before), "the other end widens its new window");
        assert_eq!(credit(&flow_control), [0, 4, 0]);
        let difference = ViewDifference { joined: vec![], left: vec![peer(2)], ..ViewDifference::default() };
        let mut out = Vec::new();
        flow_control.follow((&before, &after), &difference, &mut flows, &mut out);
        assert_eq!(credit(&flow_control), [0, 5]);
        // A member that is still gone has none; one that is new has all of it.
        flow_control.link_down(Rank(1));
        flow_control.follow((&after, &after), &ViewDifference::default(), &mut flows, &mut out);
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
        assert!(flow_control.use_up(0, true));
        assert_eq!((flow_control.hold(Rank(0)), flow_control.held_total()), (Ok(()), LINK_SEGMENTS));
        // Segments of a link that is gone have no credit to return.
        flow_control.link_down(Rank(0));
        assert!(!flow_control.use_up(0, true));
        assert_eq!(flow_control.held_total(), 0);
    }

    #[test]
    fn a_window_follows_what_its_line_needs() {
        let view = view(&[1, 2, 3]);
        let mut flow_control = FlowControl::new(&view, Rank(1), &mut BTreeMap::new());
        assert_eq!(flow_control.widen(Rank(0), 10, 100), 6);
        assert_eq!(flow_control.widen(Rank(0), 10, 100), 0, "it has the credit");
        assert_eq!(flow_control.widen(Rank(0), 1_000_000, 100), LINK_SEGMENTS_MAX - 10);
        (0..LINK_SEGMENTS_MAX).for_each(|_| assert_eq!(flow_control.hold(Rank(0)), Ok(())));
        assert_eq!(flow_control.hold(Rank(0)), Err(Reject::OverCredit));
        // It wants less: some credit is not returned.
        assert_eq!(flow_control.widen(Rank(0), 60, 100), 0);
        let mut returned =
            |segments: u32, may_keep| (0..segments).filter(|_| flow_control.use_up(0, may_keep)).count();
        assert_eq!(returned(9, false), 9, "what was passed on");
        assert_eq!(returned(LINK_SEGMENTS_MAX - 9, true), 60 - 9);
        // Another one wants as much, and there is not enough for both: it gets the rest once the first one has used up some.
        assert_eq!(flow_control.widen(Rank(2), 60, 100), 100 - 56);
        assert_eq!(flow_control.widen(Rank(0), 60, 100), 0);
        assert_eq!(flow_control.windows[0].target, LINK_SEGMENTS + 50);
        (0..6).for_each(|_| assert_eq!(flow_control.hold(Rank(0)), Ok(())));
        assert_eq!((0..6).filter(|_| flow_control.use_up(0, true)).count(), 0);
        assert_eq!(flow_control.widen(Rank(2), 60, 100), 6);
        flow_control.link_up(Rank(0));
        assert_eq!(flow_control.windows[0].segments, LINK_SEGMENTS);
    }

    #[test]
    fn those_that_want_most_share_what_the_others_leave() {
        assert_eq!(largest_share(vec![], 10), u32::MAX);
        assert_eq!(largest_share(vec![4, 6], 10), u32::MAX);
        assert_eq!(largest_share(vec![60, 60, 10], 100), 45);
        assert_eq!(largest_share(vec![60, 60, 60], 100), 33);
        assert_eq!(largest_share(vec![1; 20], 10), 0);
    }

    #[test]
    fn a_window_outlives_the_view() {
        let (before, after) = (view(&[1, 2, 3]), view(&[1, 2]));
        let mut flows = BTreeMap::from([(peer(3), LinkFlow::NEW)]);
        let mut flow_control = FlowControl::new(&before, Rank(0), &mut flows);
        flow_control.widen(Rank(2), 20, 100);
        let difference = ViewDifference { joined: vec![], left: vec![peer(3)], ..ViewDifference::default() };
        flow_control.follow((&before, &after), &difference, &mut flows, &mut Vec::new());
        assert_eq!(flows[&peer(3)].window, 20);
        let difference = ViewDifference { joined: vec![peer(3)], left: vec![], ..ViewDifference::default() };
        flow_control.follow((&after, &before), &difference, &mut flows, &mut Vec::new());
        assert_eq!(flow_control.windows[2].segments, 20);
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
