//! The cluster from the side of whoever looks on: tests, invariants, reports.

use std::sync::Arc;

use peergrad_core::io::Event;
use peergrad_core::node::NodeState;
use peergrad_core::node_report::NodeReport;
use peergrad_protocol::{Buffer, Instant, PeerId, RunId};

use super::Cluster;
use crate::history::History;
use crate::host::HostId;
use crate::invariants::{Invariants, Violation};
use crate::links::Links;
use crate::trace::Trace;

impl Cluster {
    /// What the invariants check from now on.
    pub fn set_invariants(&mut self, invariants: Invariants) {
        self.invariants = invariants;
    }

    /// What was against an invariant, in order.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.invariants.violations()
    }

    /// Hosts, those without a process included.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len() as u32).map(HostId)
    }

    /// The peer on a host.
    #[must_use]
    pub fn peer(&self, host: HostId) -> PeerId {
        self.hosts[host.index()].peer
    }

    /// The first host of a peer.
    #[must_use]
    pub fn host_of(&self, peer: PeerId) -> Option<HostId> {
        self.hosts_by_peer.get(&peer).map(|homes| homes[0])
    }

    /// Where the node on a host is; `None` if no process runs there.
    #[must_use]
    pub fn node_state(&self, host: HostId) -> Option<NodeState> {
        self.hosts[host.index()].process.as_ref().map(|process| process.node.state())
    }

    /// How the node on a host stands and how it sees the others; `None` if no process runs there.
    #[must_use]
    pub fn node_report(&self, host: HostId) -> Option<NodeReport> {
        self.hosts[host.index()].process.as_ref().map(|process| process.node.node_report(self.now))
    }

    /// The newest committed parameters of the node on a host.
    #[must_use]
    pub fn parameters(&self, host: HostId) -> Option<&Arc<Buffer>> {
        self.hosts[host.index()].process.as_ref()?.node.parameters()
    }

    /// Whether the machine sleeps.
    #[must_use]
    pub fn is_asleep(&self, host: HostId) -> bool {
        self.hosts[host.index()].asleep.is_some()
    }

    /// Whether anybody founds the run or is in it; or was, and none of its members has finished it meanwhile.
    #[must_use]
    pub fn has_run(&self) -> bool {
        let is_in = |host| match self.node_state(host) {
            Some(NodeState::Bootstrap | NodeState::Member(_)) => true,
            Some(NodeState::Recovery) => !self.has_finished_member,
            Some(NodeState::Join | NodeState::Ended) | None => false,
        };
        self.hosts().any(is_in)
    }

    /// Processes that have not ended.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.running_count
    }

    /// The names of the invariants that are watched over.
    #[must_use]
    pub fn invariant_names(&self) -> Vec<&'static str> {
        self.invariants.names().collect()
    }

    /// The lines between hosts, where nothing else was said.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.network.links
    }

    /// The run that was founded.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        self.run
    }

    /// What the nodes told their users, in order.
    #[must_use]
    pub fn events(&self) -> &[(Instant, HostId, Event)] {
        &self.events
    }

    /// What happened, for looking at.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Something worth a word happened to the peer on a host.
    pub fn note(&mut self, host: HostId, words: &str) {
        self.history.note(host, self.now, words.to_owned());
    }

    /// What happened, for adding to.
    pub fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// What arrived and was told, as one digest and perhaps as lines.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// As [`Cluster::trace`], for asking it to keep lines.
    pub fn trace_mut(&mut self) -> &mut Trace {
        &mut self.trace
    }
}
