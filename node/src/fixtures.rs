//! Peers and views for tests, named by one byte.

use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Incarnation, PeerId, RunId};

pub(crate) fn peer(byte: u8) -> PeerId {
    PeerId([byte; 32])
}

pub(crate) fn member(byte: u8) -> Member {
    Member { peer: peer(byte), incarnation: Incarnation(1), addresses: vec![], weight: 1 }
}

/// The first view of a run of these peers.
pub(crate) fn view(peers: &[u8]) -> View {
    View::first(RunId([1; 32]), peers.iter().copied().map(member).collect())
}
