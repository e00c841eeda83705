//! The world: the hosts of a cluster as its invariants see them, between two events.

use peergrad_core::node::{Node, NodeState};
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::{Instant, PeerId};

use crate::host::HostId;
use crate::hosts::Hosts;
use crate::network::Network;

/// The hosts, as the invariants see them.
pub struct World<'a> {
    /// The virtual time.
    pub now: Instant,
    pub(crate) hosts: &'a Hosts,
    /// The network, for the question which hosts can reach each other.
    pub(crate) network: &'a Network,
}

impl World<'_> {
    /// The state of the node on a host; `None` if no process runs there.
    #[must_use]
    pub fn node_state(&self, host: HostId) -> Option<NodeState> {
        self.hosts.node_state(host)
    }

    /// The optimizer state that the node on a host keeps: chunk, moments, and updates behind it.
    pub fn optimizer_states(&self, host: HostId) -> impl Iterator<Item = (usize, &[f32], u32)> {
        self.hosts.node(host).into_iter().flat_map(Node::optimizer_states)
    }

    /// Since when a process runs there on a machine that is awake; `None` if it does not.
    #[must_use]
    pub fn awake_since(&self, host: HostId) -> Option<Instant> {
        let place = self.hosts.get(host);
        (place.process.is_some() && place.asleep.is_none()).then_some(place.awake_since)
    }

    /// The peer on a host.
    #[must_use]
    pub fn peer(&self, host: HostId) -> PeerId {
        self.hosts.peer(host)
    }

    /// Whether the frames that this peer sends have a fault, or had one.
    #[must_use]
    pub fn has_faulty_frames(&self, peer: PeerId) -> bool {
        self.hosts_of(peer).iter().any(|host| self.hosts.has_faulty_frames(*host))
    }

    /// The hosts of a peer.
    #[must_use]
    pub fn hosts_of(&self, peer: PeerId) -> &[HostId] {
        self.hosts.of(peer)
    }

    /// A lower bound of the number of hosts that can exchange frames with this one in both directions.
    #[must_use]
    pub fn linked_count(&self, host: HostId) -> usize {
        self.network.interfaces.connected_count(host)
    }

    /// Whether two hosts can exchange frames in both directions at present.
    #[must_use]
    pub fn are_linked(&self, a: HostId, b: HostId) -> bool {
        self.network.interfaces.is_connected(a, b)
    }

    /// Whether a host's disk could not write the newest record of its process.
    #[must_use]
    pub fn disk_fails(&self, host: HostId) -> bool {
        self.hosts.get(host).process.as_ref().is_some_and(|process| process.disk_fails)
    }

    /// The record that is really on a host's disk; `None` if there is none.
    #[must_use]
    pub fn record(&self, host: HostId) -> Option<&DurableBytes> {
        self.hosts.get(host).setup.disk.record()
    }

    /// The checkpoints that are really on a host's disk, newest first.
    pub fn saved(&self, host: HostId) -> impl Iterator<Item = &SavedCheckpoint> {
        self.hosts.get(host).setup.disk.checkpoints().map(|checkpoint| &checkpoint.saved)
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        self.hosts.ids()
    }
}
