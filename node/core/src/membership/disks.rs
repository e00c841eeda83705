//! Disks: which members cannot write their votes, and what can be chosen without them.
//!
//! A member's disk may be full or broken, and it is seldom written to. So each member writes its record again from time to time, to learn
//! that its disk fails before a change needs its vote. Heartbeats tell the others.

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_protocol::agreement::is_quorum;
use peergrad_protocol::{Instant, PeerId, Rank};

use super::Membership;
use super::journal::Journal;
use super::members::Members;
use super::place::Place;
use crate::io::Output;

/// The members whose disks fail, as far as this one knows.
#[derive(Default)]
pub(super) struct FailingDisks {
    /// Those that cannot be written at present.
    peers: BTreeSet<PeerId>,
    /// Until when more members than the neighbors learn of the state of this member's disk; `None` if it has not failed.
    told_until: Option<Instant>,
}

impl FailingDisks {
    /// This peer is in `place` from now on. What only other members hear of is forgotten: they would hear of its end.
    pub(super) fn enter(&mut self, place: &Place) {
        let hears_all = !place.view.is_large() || place.rank.index() < INFORMED_OF_DISKS;
        let neighbors = place.neighbors();
        let is_heard = |peer: &PeerId| hears_all || neighbors.contains(peer) || *peer == place.me.peer;
        self.peers.retain(|peer| place.view.rank(peer).is_some() && is_heard(peer));
    }

    /// The link to a member is down: what it says next of its disk may be lost.
    pub(super) fn link_down(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
    }

    /// This peer sends a heartbeat, which says whether its disk fails. Returns whether members learn of it that are no neighbors.
    pub(super) fn are_told(&mut self, now: Instant, disk_fails: bool) -> bool {
        if disk_fails {
            self.told_until = Some(now.after(TOLD_FOR));
        }
        self.told_until.is_some_and(|until| now <= until)
    }
}

impl Members {
    /// This peer's disk cannot be written at present, or it can again. Returns whether that is news.
    pub(crate) fn set_disk_fails(&mut self, peer: PeerId, disk_fails: bool) -> bool {
        let peers = &mut self.failing_disks.peers;
        if disk_fails { peers.insert(peer) } else { peers.remove(&peer) }
    }

    /// Whether a member cannot write to its disk at present, as far as this one knows.
    pub(super) fn disk_fails(&self, rank: Rank) -> bool {
        self.failing_disks.peers.contains(&self.place.peer(rank))
    }

    /// Whether a change can be chosen without the vote of a member, because its disk fails. Where all parts of a partitioned run continue, a
    /// view needs the votes of all its members.
    pub(super) fn may_lack_vote(&self, rank: Rank) -> bool {
        self.disk_fails(rank) && !self.allows_forks()
    }

    /// Whether a change between two steps can be chosen although some members cannot write their votes. The members of tables stop for it
    /// and have to say what they hold, and where all parts of a partitioned run continue, all have to vote.
    pub(super) fn can_choose(&self, has_tables: bool) -> bool {
        if self.failing_disks.peers.is_empty() {
            return true;
        }
        let needs_all = has_tables || self.allows_forks() || self.disk_fails(self.place.rank);
        let voters = self.place.ranks().filter(|rank| !self.disk_fails(*rank));
        !needs_all && is_quorum(voters, self.place.view.members.len())
    }
}

impl Membership {
    /// Writes this member's record once more if that is due, so that it knows of a disk that fails before a change needs its vote.
    pub(crate) fn test_disk(&mut self, now: Instant, journal: &mut Journal, out: &mut Vec<Output>) {
        // The newest record is the next view's, as soon as there is one.
        if self.succession.next.is_none() && now.since(self.disk_tested_at) >= DISK_TEST_INTERVAL {
            self.disk_tested_at = now;
            journal.persist(self.records.present(&self.members.place, &self.succession.driver.acceptor), out);
        }
    }
}

/// How many members of the lowest ranks learn at once whose disk fails. In a large view the coordinator may not be a neighbor.
pub(super) const INFORMED_OF_DISKS: usize = 8;
/// How long they hear of a disk that works again.
const TOLD_FOR: Duration = Duration::from_secs(5);
/// How often a member writes its record only to learn whether its disk works.
const DISK_TEST_INTERVAL: Duration = Duration::from_secs(30);
