//! The cluster from the side of whoever looks on: tests, laws, reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad::io::Event;
use peergrad::node::Standing;
use peergrad::overview::Overview;
use peergrad_protocol::durable::Record;
use peergrad_protocol::message::Saved;
use peergrad_protocol::{Buffer, Instant, PeerId, RunId};

use super::Cluster;
use crate::history::History;
use crate::host::{Host, HostId};
use crate::laws::{Laws, Violation};
use crate::links::Links;
use crate::network::Network;
use crate::trace::Trace;

impl Cluster {
    /// What the laws check from now on.
    pub fn watch(&mut self, laws: Laws) {
        self.laws = laws;
    }

    /// What was against a law, in order.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.laws.violations()
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
        self.homes.get(&peer).map(|homes| homes[0])
    }

    /// Where the node on a host is; `None` if no process runs there.
    #[must_use]
    pub fn standing(&self, host: HostId) -> Option<Standing> {
        self.hosts[host.index()].process.as_ref().map(|process| process.node.standing())
    }

    /// How the node on a host stands and how it sees the others; `None` if no process runs there.
    #[must_use]
    pub fn overview(&self, host: HostId) -> Option<Overview> {
        self.hosts[host.index()].process.as_ref().map(|process| process.node.overview(self.now))
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
        let is_in = |host| match self.standing(host) {
            Some(Standing::Founding | Standing::Member(_)) => true,
            Some(Standing::Returning) => !self.has_finisher,
            Some(Standing::Joining | Standing::Ended) | None => false,
        };
        self.hosts().any(is_in)
    }

    /// Processes that have not ended.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.running_count
    }

    /// The names of the laws that are watched over.
    #[must_use]
    pub fn law_names(&self) -> Vec<&'static str> {
        self.laws.names().collect()
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

/// The hosts, as the laws see them.
pub struct World<'a> {
    /// The virtual time.
    pub now: Instant,
    pub(super) hosts: &'a [Host],
    pub(super) homes: &'a BTreeMap<PeerId, Vec<HostId>>,
    pub(super) network: &'a Network,
}

impl World<'_> {
    /// Where the node on a host is; `None` if no process runs there.
    #[must_use]
    pub fn standing(&self, host: HostId) -> Option<Standing> {
        self.hosts[host.index()].process.as_ref().map(|process| process.node.standing())
    }

    /// The optimizer state that the node on a host keeps: chunk, moments, and updates behind it.
    pub fn kept_states(&self, host: HostId) -> impl Iterator<Item = (usize, &[f32], u32)> {
        self.hosts[host.index()].process.iter().flat_map(|process| process.node.kept_states())
    }

    /// Since when a process runs there on a machine that is awake.
    #[must_use]
    pub fn attentive_since(&self, host: HostId) -> Option<Instant> {
        let place = &self.hosts[host.index()];
        (place.process.is_some() && place.asleep.is_none()).then_some(place.attentive_since)
    }

    /// The peer on a host.
    #[must_use]
    pub fn peer(&self, host: HostId) -> PeerId {
        self.hosts[host.index()].peer
    }

    /// The hosts of a peer.
    #[must_use]
    pub fn homes(&self, peer: PeerId) -> &[HostId] {
        self.homes.get(&peer).map_or(&[], Vec::as_slice)
    }

    /// How many hosts there are at least whose frames get here, and to whom ours get.
    #[must_use]
    pub fn linked_count(&self, host: HostId) -> usize {
        self.network.whole_count(host)
    }

    /// Whether frames get from each of two hosts to the other at present.
    #[must_use]
    pub fn are_linked(&self, a: HostId, b: HostId) -> bool {
        self.network.is_whole(a, b)
    }

    /// What really lies on a host's disk.
    #[must_use]
    pub fn record(&self, host: HostId) -> Option<&Record> {
        self.hosts[host.index()].setup.disk.record()
    }

    /// The checkpoints that really lie on a host's disk, newest first.
    pub fn saved(&self, host: HostId) -> impl Iterator<Item = &Saved> {
        self.hosts[host.index()].setup.disk.checkpoints().map(|checkpoint| &checkpoint.saved)
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len() as u32).map(HostId)
    }
}
