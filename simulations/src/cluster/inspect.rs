//! Reading the state of the cluster: for tests, invariants and reports.

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
    /// Sets what the invariants check from now on.
    pub fn set_invariants(&mut self, invariants: Invariants) {
        self.invariants = invariants;
    }

    /// Violations of invariants, in order.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.invariants.violations()
    }

    /// All hosts, including those without a process.
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

    /// The state of the node on a host; `None` if no process runs there.
    #[must_use]
    pub fn node_state(&self, host: HostId) -> Option<NodeState> {
        self.hosts[host.index()].process.as_ref().map(|process| process.node.state())
    }

    /// The status of the node on a host and its view of the others; `None` if no process runs there.
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

    /// Whether the run goes on: a peer founds it, is a member, or recovers it and no member has finished it.
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

    /// The names of the invariants that are checked.
    #[must_use]
    pub fn invariant_names(&self) -> Vec<&'static str> {
        self.invariants.names().collect()
    }

    /// The lines between hosts, unless changed for a single host.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.network.links
    }

    /// The run that was founded.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        self.run
    }

    /// The events that the nodes have reported to their users, in order.
    #[must_use]
    pub fn events(&self) -> &[(Instant, HostId, Event)] {
        &self.events
    }

    /// What has happened so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Adds a note to the history of the peer on a host.
    pub fn note(&mut self, host: HostId, words: &str) {
        self.history.note(host, self.now, words.to_owned());
    }

    /// The history, to add to it.
    pub fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// Digest of the frames and events so far, and perhaps the last of them as text.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// As [`Cluster::trace`], to make it keep lines.
    pub fn trace_mut(&mut self) -> &mut Trace {
        &mut self.trace
    }
}
