//! The remotes: the records of all peers with which there is a connection or a link.

use std::collections::BTreeMap;

use libp2p::PeerId;
use peergrad_protocol::Incarnation;
use tokio::time::Instant;

use super::RemotePeer;
use super::violators::Violators;
use crate::identity::from_libp2p;

/// The records of the peers, by id.
#[derive(Debug)]
pub(crate) struct Remotes {
    records: BTreeMap<PeerId, RemotePeer>,
    /// The peers that break the protocol of lanes.
    pub(crate) violators: Violators,
    /// The start number of this process.
    start: Incarnation,
}

impl Remotes {
    /// No peers, for a process with this start number.
    pub(crate) fn new(start: Incarnation) -> Self {
        Self { records: BTreeMap::new(), violators: Violators::default(), start }
    }

    /// The record of this peer; `None` if there is neither a connection nor a link.
    pub(crate) fn get(&self, id: &PeerId) -> Option<&RemotePeer> {
        self.records.get(id)
    }

    /// As [`get`](Self::get), to be changed.
    pub(crate) fn get_mut(&mut self, id: &PeerId) -> Option<&mut RemotePeer> {
        self.records.get_mut(id)
    }

    /// The record of this peer, created if needed; `None` if its id is of a kind that no peer has.
    pub(crate) fn record(&mut self, id: PeerId) -> Option<&mut RemotePeer> {
        let (peer, start) = (from_libp2p(&id)?, self.start);
        Some(self.records.entry(id).or_insert_with(|| RemotePeer::new(peer, start, Instant::now())))
    }

    /// Drops the record of this peer if it is idle.
    pub(crate) fn forget_if_idle(&mut self, id: PeerId) {
        if self.get(&id).is_some_and(RemotePeer::is_idle) {
            self.records.remove(&id);
        }
    }

    /// All records.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PeerId, &RemotePeer)> {
        self.records.iter()
    }

    /// All records, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&PeerId, &mut RemotePeer)> {
        self.records.iter_mut()
    }
}
