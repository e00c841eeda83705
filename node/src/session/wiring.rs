//! The wiring: credit and held segments of the links to the members of a view.
//!
//! Credit belongs to a link, not to a view: what is on its way when the view changes is dropped where it arrives, and its
//! credit comes back as always. So a new view starts with the credit that is left.

use std::collections::BTreeMap;

use peergrad_collectives::links::Links;
use peergrad_collectives::plan::Topology;
use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::view::View;
use peergrad_protocol::{PeerId, Rank};

use crate::io::{Output, Reject};

/// The links to the members of one view, by rank.
pub(super) struct Wiring {
    pub(super) links: Links,
    rank: Rank,
    /// Segments received whose credit was not returned.
    held: Vec<u32>,
    held_total: u32,
}

impl Wiring {
    /// Takes the credit of linked members out of `credits`; who is not there is not linked.
    pub(super) fn new(
        view: &View,
        rank: Rank,
        topology: Topology,
        credits: &mut BTreeMap<PeerId, u32>,
    ) -> Self {
        let count = view.members.len();
        let mut links = Links::new(count, LINK_SEGMENTS, topology == Topology::Ring && count > 2);
        for (index, member) in view.members.iter().enumerate() {
            links.set_credit(index, credits.get(&member.peer).copied().unwrap_or(0));
        }
        Self { links, rank, held: vec![0; count], held_total: 0 }
    }

    /// Returns the credit of everything held, and puts what is left for sending back into `credits`.
    pub(super) fn release(
        &mut self,
        view: &View,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) {
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

    /// The rank of a peer that sent something: mostly a neighbour in the ring.
    pub(super) fn rank_of(&self, peer: &PeerId, view: &View) -> Option<Rank> {
        let (rank, count) = (self.rank.index(), view.members.len());
        let neighbours = [(rank + count - 1) % count, (rank + 1) % count];
        let is_it = |index: &usize| view.members[*index].peer == *peer;
        neighbours.into_iter().find(is_it).map(Rank::from_index).or_else(|| view.rank(peer))
    }

    /// Holds a segment that has come.
    pub(super) fn hold(&mut self, from: Rank) -> Result<(), Reject> {
        let held = &mut self.held[from.index()];
        if *held == LINK_SEGMENTS {
            return Err(Reject::OverCredit);
        }
        *held += 1;
        self.held_total += 1;
        Ok(())
    }

    /// A held segment is used up; whether its credit goes back: not if the link is another one since.
    pub(super) fn use_up(&mut self, from: usize) -> bool {
        let is_held = self.held[from] > 0;
        self.held[from] -= u32::from(is_held);
        self.held_total -= u32::from(is_held);
        is_held
    }

    /// Credit came back. False if the peer is no member.
    pub(super) fn give_back(&mut self, from: &PeerId, segments: u32, view: &View) -> bool {
        let Some(rank) = self.rank_of(from, view) else { return false };
        // More than was owed would only hurt the one who gives it.
        let owed = LINK_SEGMENTS - self.links.credit(rank.index());
        self.links.give_back(rank.index(), segments.min(owed))
    }

    /// The link to a member is another one, or gone.
    pub(super) fn reset(&mut self, rank: Rank, credit: u32) {
        self.links.set_credit(rank.index(), credit);
        self.held_total -= std::mem::take(&mut self.held[rank.index()]);
    }

    /// Segments held of all members together.
    pub(super) fn held_total(&self) -> u32 {
        self.held_total
    }
}
