//! Reading the state of the cluster: for tests, invariants and reports.

use peergrad_core::io::Event;
use peergrad_core::node::NodeState;
use peergrad_core::node_report::NodeReport;
use peergrad_protocol::{Instant, RunId};

use super::Cluster;
use crate::history::History;
use crate::host::HostId;
use crate::hosts::Hosts;
use crate::invariants::Invariants;
use crate::links::Links;
use crate::trace::Trace;

impl Cluster {
    /// Sets what the invariants check from now on.
    pub fn set_invariants(&mut self, invariants: Invariants) {
        self.record.invariants = invariants;
    }

    /// The invariants that are checked, and their violations.
    #[must_use]
    pub fn invariants(&self) -> &Invariants {
        &self.record.invariants
    }

    /// The hosts, and the nodes on them.
    #[must_use]
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The status of the node on a host and its view of the others; `None` if no process runs there.
    #[must_use]
    pub fn node_report(&self, host: HostId) -> Option<NodeReport> {
        self.hosts.node(host).map(|node| node.node_report(self.now()))
    }

    /// Whether the run goes on: a peer founds it, is a member, or recovers it and no member has finished it.
    #[must_use]
    pub fn has_run(&self) -> bool {
        let is_in = |host| match self.hosts.node_state(host) {
            Some(NodeState::Bootstrap | NodeState::Member(_)) => true,
            Some(NodeState::Recovery) => !self.record.has_finished_member,
            Some(NodeState::Join | NodeState::Ended) | None => false,
        };
        self.hosts.ids().any(is_in)
    }

    /// The lines between hosts, unless changed for a single host.
    #[must_use]
    pub fn links(&self) -> &Links {
        self.network.links()
    }

    /// The run that was founded; `None` before that.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        self.run
    }

    /// The events that the nodes have reported to their users, in order.
    #[must_use]
    pub fn events(&self) -> &[(Instant, HostId, Event)] {
        &self.record.events
    }

    /// What has happened so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.record.history
    }

    /// Adds a note to the history of the peer on a host.
    pub fn note(&mut self, host: HostId, words: &str) {
        let now = self.now();
        self.record.history.note(host, now, words.to_owned());
    }

    /// The history, to add to it.
    pub fn history_mut(&mut self) -> &mut History {
        &mut self.record.history
    }

    /// Digest of the frames and events so far, and perhaps the last of them as text.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.record.trace
    }

    /// As [`Cluster::trace`], to make it keep lines.
    pub fn trace_mut(&mut self) -> &mut Trace {
        &mut self.record.trace
    }
}
