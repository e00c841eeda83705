//! Interfaces: the network's record of each host, its access line, its ends of links, and the directions to the others.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use peergrad_protocol::message::Priority;
use peergrad_protocol::{Instant, PeerId};

use super::Transmission;
use crate::host::HostId;
use crate::links::{Links, sending_time};

/// The interfaces of all hosts.
#[derive(Default)]
pub(crate) struct Interfaces {
    /// Indexed by the host's number.
    interfaces: Vec<Interface>,
    /// Number of edges with a cut.
    cut_count: u32,
    /// Whether two hosts have one identity.
    has_twins: bool,
}

/// The network's record of one host.
pub(super) struct Interface {
    /// The peer on the host.
    pub(super) peer: PeerId,
    /// Whether a process runs there. A host without a process, or one that sleeps, sends nothing.
    pub(super) is_running: bool,
    /// Whether the machine is awake.
    pub(super) is_awake: bool,
    /// Since when it sends nothing, if one of the two is false.
    pub(super) silent_since: Instant,
    /// The line from the host to the network.
    pub(super) uplink: Uplink,
    /// The line from the network to the host.
    pub(super) downlink: Downlink,
    /// How many other hosts have a connection with this one that both ends know.
    connected_count: usize,
    /// By other host: this end of their link.
    ends: Vec<LinkEnd>,
    /// By receiver: the direction to it.
    pub(super) edges: Vec<Edge>,
}

/// A host's line to the network.
pub(super) struct Uplink {
    /// Bits a second; `None` means no limit.
    pub(super) rate: Option<u64>,
    /// When it has sent everything that it took.
    pub(super) free_at: Instant,
    /// For when the next event is scheduled: then it is free, and so is a link with a frame that waits. `None` if no event is.
    pub(super) due: Option<Instant>,
    /// Receivers with frames that wait for the uplink, in their order.
    pub(super) turns: VecDeque<HostId>,
    /// The receivers of tensors since the lines were last asked for.
    pub(super) tensor_receivers: BTreeSet<HostId>,
}

/// A host's line from the network.
pub(super) struct Downlink {
    /// Bits a second; `None` means no limit.
    pub(super) rate: Option<u64>,
    /// When it has taken in everything that has reached it.
    free_at: Instant,
}

/// One end's knowledge of a link.
#[derive(Clone, Copy, Default)]
pub(super) struct LinkEnd {
    /// The number of the connection; `None` if this end believes that there is none.
    pub(super) session: Option<u32>,
    /// Whether this host wants a link, and dials when there is none.
    pub(super) is_wanted: bool,
    /// Whether an attempt to dial is scheduled.
    pub(super) is_dialing: bool,
    /// The number of failed attempts since the last connection.
    pub(super) failures: u32,
}

/// One direction between two hosts.
#[derive(Default)]
pub(super) struct Edge {
    /// How many cuts block it.
    pub(super) cuts: u32,
    /// Since when it has been cut; unspecified while it is not.
    pub(super) cut_since: Instant,
    /// Frames of urgent priority, which overtake the rest.
    pub(super) urgent: Flow,
    /// All other transmissions.
    pub(super) normal: Flow,
    /// When the connections of the link have sent everything that they took. Only where packets are lost does this come after the uplink
    /// has.
    pub(super) free_at: Instant,
    /// Transmissions that have arrived at the cut and wait.
    pub(super) stalled: VecDeque<(u32, Transmission)>,
    /// After a cut: when the waiting transmissions pass. Later ones pass after them.
    pub(super) reopens: Instant,
}

/// Transmissions of one direction that keep their order.
#[derive(Default)]
pub(super) struct Flow {
    /// Those that wait for the sender's uplink, each with its connection.
    pub(super) waiting: VecDeque<(u32, Transmission)>,
    /// When the first byte of the last one arrives; later ones keep that order, and that of the two times below.
    pub(super) first_byte: Instant,
    /// When the last byte of the last one arrives.
    pub(super) last_byte: Instant,
    /// When the receiver's downlink has taken in the last one.
    pub(super) taken: Instant,
}

impl Uplink {
    /// Takes out the first receiver in turn whose link can take a frame, and that frame with its connection.
    pub(super) fn next_turn(
        &mut self,
        now: Instant,
        edges: &mut [Edge],
    ) -> Option<(HostId, (u32, Transmission))> {
        loop {
            let turn = self.turns.iter().position(|to| edges[to.index()].free_at <= now)?;
            let to = self.turns.remove(turn).expect("it was just found");
            let edge = &mut edges[to.index()];
            let Some(next) = edge.next_waiting() else { continue };
            if edge.waiting_count() > 0 {
                self.turns.push_back(to);
            }
            return Some((to, next));
        }
    }

    /// When the next frame can be sent; `None` if none waits.
    pub(super) fn next_at(&self, edges: &[Edge]) -> Option<Instant> {
        let link_is_free = self.turns.iter().map(|to| edges[to.index()].free_at).min()?;
        Some(link_is_free.max(self.free_at))
    }
}

impl Edge {
    /// The flow of a transmission.
    pub(super) fn flow_of(&mut self, transmission: &Transmission) -> &mut Flow {
        match transmission {
            Transmission::Frame(frame) if frame.priority() == Priority::Urgent => &mut self.urgent,
            Transmission::Frame(_) | Transmission::Credit(_) => &mut self.normal,
            Transmission::Close | Transmission::Goodbye => {
                // It arrives behind all frames.
                let Self { urgent, normal, .. } = &mut *self;
                normal.first_byte = normal.first_byte.max(urgent.first_byte);
                normal.last_byte = normal.last_byte.max(urgent.last_byte);
                normal.taken = normal.taken.max(urgent.taken);
                normal
            }
        }
    }

    /// How many transmissions wait for the sender's uplink.
    pub(super) fn waiting_count(&self) -> usize {
        self.urgent.waiting.len() + self.normal.waiting.len()
    }

    /// The next transmission for the uplink.
    pub(super) fn next_waiting(&mut self) -> Option<(u32, Transmission)> {
        self.urgent.waiting.pop_front().or_else(|| self.normal.waiting.pop_front())
    }

    /// All that waits for the uplink is lost, and so are the connections.
    pub(super) fn clear_waiting(&mut self) {
        self.free_at = Instant::default();
        self.urgent.waiting.clear();
        self.normal.waiting.clear();
    }

    /// What is in transit, and what is sent from now on, arrives at this time at the earliest.
    pub(super) fn hold_until(&mut self, at: Instant) {
        for flow in [&mut self.urgent, &mut self.normal] {
            (flow.first_byte, flow.taken) = (flow.first_byte.max(at), flow.taken.max(at));
        }
    }
}

impl Downlink {
    /// Takes in `bytes` whose last one arrives at `last_byte`. Returns when it has them.
    pub(super) fn take_in(&mut self, now: Instant, last_byte: Instant, bytes: usize) -> Instant {
        let taking = sending_time(bytes, self.rate);
        if taking == Duration::ZERO {
            return last_byte;
        }
        self.free_at = self.free_at.max(now).after(taking);
        last_byte.max(self.free_at)
    }
}

impl Interface {
    fn new(peer: PeerId, links: &Links, host_count: usize) -> Self {
        Self {
            peer,
            is_running: false,
            is_awake: true,
            silent_since: Instant::default(),
            uplink: Uplink {
                rate: links.up,
                free_at: Instant::default(),
                due: None,
                turns: VecDeque::new(),
                tensor_receivers: BTreeSet::new(),
            },
            downlink: Downlink { rate: links.down, free_at: Instant::default() },
            connected_count: 0,
            ends: vec![LinkEnd::default(); host_count],
            edges: (0..host_count).map(|_| Edge::default()).collect(),
        }
    }
}

impl Interfaces {
    /// Adds a host without a process.
    pub(super) fn add(&mut self, peer: PeerId, links: &Links) {
        let count = self.interfaces.len() + 1;
        self.has_twins |= self.interfaces.iter().any(|interface| interface.peer == peer);
        for interface in &mut self.interfaces {
            interface.ends.push(LinkEnd::default());
            interface.edges.push(Edge::default());
        }
        self.interfaces.push(Interface::new(peer, links, count));
    }

    /// The numbers of all hosts.
    pub(super) fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.interfaces.len() as u32).map(HostId)
    }

    /// The record of a host.
    pub(super) fn get(&self, host: HostId) -> &Interface {
        &self.interfaces[host.index()]
    }

    /// The record of a host, for changes.
    pub(super) fn get_mut(&mut self, host: HostId) -> &mut Interface {
        &mut self.interfaces[host.index()]
    }

    /// Other hosts with the peer of `of` to which `at` has a link.
    pub(super) fn linked_twins(&self, at: HostId, of: HostId) -> Vec<HostId> {
        if !self.has_twins {
            return Vec::new();
        }
        let peer = self.get(of).peer;
        let is_twin = |&host: &HostId| host != of && self.get(host).peer == peer;
        self.hosts().filter(is_twin).filter(|&twin| self.is_up(at, twin)).collect()
    }

    // Ends of links.

    /// One end's knowledge of a link.
    pub(super) fn end(&self, at: HostId, of: HostId) -> &LinkEnd {
        &self.get(at).ends[of.index()]
    }

    /// As [`Interfaces::end`], for changes; [`Interfaces::set_session`] changes the session.
    pub(super) fn end_mut(&mut self, at: HostId, of: HostId) -> &mut LinkEnd {
        &mut self.get_mut(at).ends[of.index()]
    }

    /// Whether one end believes that there is a link.
    pub(crate) fn is_up(&self, at: HostId, of: HostId) -> bool {
        self.session(at, of).is_some()
    }

    /// The connection that one end believes to be open.
    pub(crate) fn session(&self, at: HostId, of: HostId) -> Option<u32> {
        self.end(at, of).session
    }

    /// Whether one end believes that this connection is open.
    pub(super) fn is_known(&self, at: HostId, of: HostId, session: u32) -> bool {
        self.session(at, of) == Some(session)
    }

    /// Sets one end's connection, or clears it.
    pub(super) fn set_session(&mut self, at: HostId, of: HostId, session: Option<u32>) {
        let other = self.session(of, at);
        let is_connected = |session: Option<u32>| usize::from(session.is_some() && session == other);
        let (before, after) = (is_connected(self.session(at, of)), is_connected(session));
        for host in [at, of] {
            let count = &mut self.get_mut(host).connected_count;
            *count = *count + after - before;
        }
        self.end_mut(at, of).session = session;
    }

    /// Whether frames pass in both directions between two hosts: both know the same connection, and no cut blocks it.
    pub(crate) fn is_connected(&self, a: HostId, b: HostId) -> bool {
        let session = self.session(a, b);
        session.is_some() && session == self.session(b, a) && !self.is_cut(a, b) && !self.is_cut(b, a)
    }

    /// A lower bound of the number of hosts that have a [connected](Self::is_connected) link with this one: 0 while there is any cut.
    pub(crate) fn connected_count(&self, host: HostId) -> usize {
        if self.cut_count > 0 { 0 } else { self.get(host).connected_count }
    }

    // Directions.

    /// The direction from one host to another.
    pub(super) fn edge_mut(&mut self, from: HostId, to: HostId) -> &mut Edge {
        &mut self.get_mut(from).edges[to.index()]
    }

    /// Adds a cut. Returns whether it is the only one in this direction.
    pub(super) fn cut(&mut self, now: Instant, from: HostId, to: HostId) -> bool {
        self.cut_count += 1;
        let edge = self.edge_mut(from, to);
        edge.cuts += 1;
        let is_first = edge.cuts == 1;
        if is_first {
            edge.cut_since = now;
        }
        is_first
    }

    /// Removes a cut, if there is one. Returns whether frames pass now.
    pub(super) fn heal(&mut self, from: HostId, to: HostId) -> bool {
        let edge = self.edge_mut(from, to);
        let removed = edge.cuts.min(1);
        edge.cuts -= removed;
        let is_open = edge.cuts == 0;
        self.cut_count -= removed;
        is_open
    }

    /// Whether a cut blocks frames in this direction.
    pub(super) fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.get(from).edges[to.index()].cuts > 0
    }

    /// Whether `to` can hear `from`.
    pub(super) fn is_audible(&self, from: HostId, to: HostId) -> bool {
        self.silence(from, to).is_none()
    }

    /// Since when `to` can hear nothing from `from`; `None` if it can.
    pub(super) fn silence(&self, from: HostId, to: HostId) -> Option<Instant> {
        let interface = self.get(from);
        let edge = &interface.edges[to.index()];
        let asleep = (!interface.is_running || !interface.is_awake).then_some(interface.silent_since);
        let cut = (edge.cuts > 0).then_some(edge.cut_since);
        asleep.into_iter().chain(cut).min()
    }
}
