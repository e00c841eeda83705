//! The hosts of a cluster, found by number and by peer.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_core::node::{Node, NodeState};
use peergrad_protocol::{Buffer, PeerId};

use crate::host::{Host, HostId, Process, ProcessId};

/// All hosts, including those without a process.
#[derive(Default)]
pub struct Hosts {
    /// Indexed by the host's number.
    hosts: Vec<Host>,
    /// The hosts of a peer: more than one only if its identity was copied.
    by_peer: BTreeMap<PeerId, Vec<HostId>>,
}

impl Hosts {
    /// The numbers of all hosts.
    pub fn ids(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len() as u32).map(HostId)
    }

    /// The hosts on which a process runs.
    pub fn running(&self) -> impl Iterator<Item = HostId> {
        self.ids().filter(|host| self.node(*host).is_some())
    }

    /// The peer on a host.
    #[must_use]
    pub fn peer(&self, host: HostId) -> PeerId {
        self.get(host).peer
    }

    /// The hosts of a peer.
    #[must_use]
    pub fn of(&self, peer: PeerId) -> &[HostId] {
        self.by_peer.get(&peer).map_or(&[], Vec::as_slice)
    }

    /// The state of the node on a host; `None` if no process runs there.
    #[must_use]
    pub fn node_state(&self, host: HostId) -> Option<NodeState> {
        self.node(host).map(Node::state)
    }

    /// The newest committed parameters of the node on a host; `None` if it has none.
    #[must_use]
    pub fn parameters(&self, host: HostId) -> Option<&Arc<Buffer>> {
        self.node(host)?.parameters()
    }

    /// Whether the machine sleeps.
    #[must_use]
    pub fn is_asleep(&self, host: HostId) -> bool {
        self.get(host).asleep.is_some()
    }

    /// Whether the frames that this host sends have a fault, or had one.
    #[must_use]
    pub fn has_faulty_frames(&self, host: HostId) -> bool {
        self.get(host).has_faulty_frames
    }

    /// The node on a host; `None` if no process runs there.
    pub(crate) fn node(&self, host: HostId) -> Option<&Node> {
        self.get(host).process.as_ref().map(|process| &process.node)
    }

    /// Adds a host.
    pub(crate) fn add(&mut self, host: Host) -> HostId {
        let id = self.next_id();
        self.by_peer.entry(host.peer).or_default().push(id);
        self.hosts.push(host);
        id
    }

    /// The number of the next host that is added.
    pub(crate) fn next_id(&self) -> HostId {
        HostId(self.hosts.len() as u32)
    }

    pub(crate) fn get(&self, host: HostId) -> &Host {
        &self.hosts[host.index()]
    }

    pub(crate) fn get_mut(&mut self, host: HostId) -> &mut Host {
        &mut self.hosts[host.index()]
    }

    /// The process that was started last on a host, perhaps ended since.
    pub(crate) fn newest_process(&self, host: HostId) -> ProcessId {
        ProcessId { host, start: self.get(host).starts }
    }

    /// Whether a process still runs.
    pub(crate) fn is_running(&self, ProcessId { host, start }: ProcessId) -> bool {
        let place = self.get(host);
        place.starts == start && place.process.is_some()
    }

    /// A process, if it still runs.
    pub(crate) fn process_mut(&mut self, ProcessId { host, start }: ProcessId) -> Option<&mut Process> {
        let place = self.get_mut(host);
        if place.starts == start { place.process.as_mut() } else { None }
    }
}
