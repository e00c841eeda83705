//! The network between hosts: connections that open and close, and frames that take time.
//!
//! It resembles a postal service with one counter for each house: all that a host sends passes its counter one piece at a time, in turn for
//! each receiver. Then it travels, and then it waits for space in the receiver's letter box.
//!
//! # How it works
//! ```text
//! send --> filters --> uplink (turns between flows) --> distance, jitter, loss --> downlink --> deliver
//!                                                          |
//!                                                          '-- a cut: stays there until the path heals
//! ```
//! - Within one link everything arrives in order and once; a cut or a lost packet only delays. There is no order between links.
//! - A frame occupies the sender's uplink for its size, and the receiver's downlink from its first byte on; flows share both frame by
//!   frame.
//! - Each end of a connection has its own knowledge of it. An end that is dead, paused or cut off sends nothing: the other end notices
//!   after a time of silence, and until then believes that the link is up. It then closes the connection, and the close travels too.
//! - A restarted process does not know the connections of the one before: a peer that sends over one of them is told that it is closed.
//! - A host that wants a link dials again and again, with growing pauses.
//!
//! # Not here
//! Packets: loss costs a frame one more round trip; it does not lower the rate.

use std::collections::VecDeque;

use peergrad_protocol::{Frame, Instant, PeerId};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::host::HostId;
use crate::links::Links;

mod connections;
#[cfg(test)]
mod tests;
mod transit;

/// All connections and frames in transit between the hosts.
pub(crate) struct Network {
    pub(crate) links: Links,
    generator: ChaCha8Rng,
    interfaces: Vec<Interface>,
    session_count: u32,
    /// Number of edges with a cut.
    cut_count: u32,
    /// Whether two hosts have one identity.
    has_twins: bool,
    scheduled: Vec<(Instant, NetworkEvent)>,
    deliveries: Vec<Delivery>,
}

/// The network's record of one host.
struct Interface {
    peer: PeerId,
    /// Whether a process runs there. A host without a process, or one that sleeps, sends nothing.
    is_running: bool,
    is_awake: bool,
    /// Since when it sends nothing, if one of the two is false.
    silent_since: Instant,
    up: Option<u64>,
    down: Option<u64>,
    uplink_free: Instant,
    is_uplink_due: bool,
    /// How many other hosts have a connection with this one that both ends know.
    connected_count: usize,
    /// Receivers with frames that wait for the uplink, in their order.
    turns: VecDeque<HostId>,
    downlink_free: Instant,
    /// By other host: this end of their link.
    ends: Vec<LinkEnd>,
    /// By receiver: the direction to it.
    edges: Vec<Edge>,
}

/// One end's knowledge of a link.
#[derive(Clone, Copy, Default)]
struct LinkEnd {
    /// The number of the connection; `None` if this end believes that there is none.
    session: Option<u32>,
    is_wanted: bool,
    is_dialing: bool,
    failures: u32,
}

/// One direction between two hosts.
#[derive(Default)]
struct Edge {
    /// How many cuts block it.
    cuts: u32,
    cut_since: Instant,
    waiting: VecDeque<(u32, Transmission)>,
    /// When the first and last bytes of the last transmission arrive, and when the downlink has taken them; later ones keep that order.
    first_byte: Instant,
    last_byte: Instant,
    taken: Instant,
    /// Transmissions that have arrived at the cut and wait.
    stalled: VecDeque<(u32, Transmission)>,
    /// After a cut: when the waiting transmissions pass. Later ones pass after them.
    reopens: Instant,
}

/// What travels from one host to another.
pub(crate) enum Transmission {
    Frame(Frame),
    Credit(u32),
    /// The sender has closed the connection.
    Close,
    /// The sender no longer wants a link.
    Goodbye,
}

/// An event to come in the network.
pub(crate) enum NetworkEvent {
    Uplink(HostId),
    /// The first byte of a transmission reaches its receiver; the last one does at `last_byte`.
    Reach {
        from: HostId,
        to: HostId,
        session: u32,
        last_byte: Instant,
        transmission: Transmission,
    },
    /// A transmission has arrived.
    Arrival {
        from: HostId,
        to: HostId,
        session: u32,
        transmission: Transmission,
    },
    /// `at` may have heard nothing from `of` for too long.
    Silence {
        at: HostId,
        of: HostId,
        session: u32,
        since: Instant,
    },
    /// `at` closes a connection that was reset.
    Reset {
        at: HostId,
        of: HostId,
        session: u32,
    },
    Dial {
        from: HostId,
        to: HostId,
    },
}

/// An input for a host's process.
pub(crate) struct Delivery {
    pub(crate) to: HostId,
    pub(crate) from: HostId,
    pub(crate) event: LinkEvent,
}

pub(crate) enum LinkEvent {
    Up,
    Down(&'static str),
    Frame(Frame),
    Credit(u32),
}

impl Network {
    pub(crate) fn new(links: Links, seed: u64) -> Self {
        let generator = ChaCha8Rng::seed_from_u64(seed);
        let (scheduled, deliveries) = (Vec::new(), Vec::new());
        Self {
            links,
            generator,
            interfaces: Vec::new(),
            session_count: 0,
            cut_count: 0,
            has_twins: false,
            scheduled,
            deliveries,
        }
    }

    /// Adds a host without a process.
    pub(crate) fn add(&mut self, peer: PeerId) {
        let count = self.interfaces.len() + 1;
        self.has_twins |= self.interfaces.iter().any(|interface| interface.peer == peer);
        for interface in &mut self.interfaces {
            interface.ends.push(LinkEnd::default());
            interface.edges.push(Edge::default());
        }
        self.interfaces.push(Interface {
            peer,
            is_running: false,
            is_awake: true,
            silent_since: Instant::default(),
            up: self.links.up,
            down: self.links.down,
            uplink_free: Instant::default(),
            is_uplink_due: false,
            connected_count: 0,
            turns: VecDeque::new(),
            downlink_free: Instant::default(),
            ends: vec![LinkEnd::default(); count],
            edges: (0..count).map(|_| Edge::default()).collect(),
        });
    }

    /// The events to be scheduled since the last call.
    pub(crate) fn take_scheduled(&mut self) -> std::vec::Drain<'_, (Instant, NetworkEvent)> {
        self.scheduled.drain(..)
    }

    /// The deliveries to be passed to hosts since the last call.
    pub(crate) fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    /// Whether one end believes that there is a link.
    pub(crate) fn is_up(&self, at: HostId, of: HostId) -> bool {
        self.end(at, of).session.is_some()
    }

    /// The connection that one end believes to be open.
    pub(crate) fn session(&self, at: HostId, of: HostId) -> Option<u32> {
        self.end(at, of).session
    }

    /// Whether frames pass in both directions between two hosts: both know the same connection, and no cut blocks it.
    pub(crate) fn is_connected(&self, a: HostId, b: HostId) -> bool {
        let session = self.session(a, b);
        session.is_some() && session == self.session(b, a) && !self.is_cut(a, b) && !self.is_cut(b, a)
    }

    /// A lower bound of the number of hosts that have a [connected](Self::is_connected) link with this one: 0 while there is any cut.
    pub(crate) fn connected_count(&self, host: HostId) -> usize {
        if self.cut_count > 0 { 0 } else { self.interfaces[host.index()].connected_count }
    }

    /// Sets one end's connection, or clears it.
    fn set_session(&mut self, at: HostId, of: HostId, session: Option<u32>) {
        let other = self.session(of, at);
        let is_connected = |session: Option<u32>| usize::from(session.is_some() && session == other);
        let (before, after) = (is_connected(self.session(at, of)), is_connected(session));
        for host in [at, of] {
            let count = &mut self.interfaces[host.index()].connected_count;
            *count = *count + after - before;
        }
        self.end_mut(at, of).session = session;
    }

    // Events.

    /// Processes one event.
    pub(crate) fn handle(&mut self, now: Instant, event: NetworkEvent) {
        match event {
            NetworkEvent::Uplink(host) => {
                self.interfaces[host.index()].is_uplink_due = false;
                self.use_uplink(now, host);
            }
            NetworkEvent::Reach { from, to, session, last_byte, transmission } => {
                let at = self.use_downlink(now, from, to, last_byte, transmission.byte_count());
                self.scheduled.push((at, NetworkEvent::Arrival { from, to, session, transmission }));
            }
            NetworkEvent::Arrival { from, to, session, transmission } => {
                self.arrive(now, from, to, session, transmission)
            }
            NetworkEvent::Silence { at, of, session, since } => {
                let is_silent = self.silence(of, at).is_some_and(|began| began <= since);
                let is_awake = self.interfaces[at.index()].is_awake;
                if is_awake && is_silent && self.is_known(at, of, session) {
                    self.close(now, at, of, "nothing was heard from it");
                }
            }
            NetworkEvent::Reset { at, of, session } => {
                if self.is_known(at, of, session) {
                    self.close(now, at, of, "its connection was reset and did not come back");
                }
            }
            NetworkEvent::Dial { from, to } => self.try_dial(now, from, to),
        }
    }

    // Hosts.

    /// A process starts, on a machine that is awake: if the process of a sleeping machine died, the next one starts after it wakes up.
    pub(crate) fn start(&mut self, host: HostId) {
        let interface = &mut self.interfaces[host.index()];
        (interface.is_running, interface.is_awake) = (true, true);
    }

    /// The process ends in good order, and closes all its links. It does not wait for a goodbye that cannot be delivered.
    pub(crate) fn shut_down(&mut self, now: Instant, host: HostId) {
        let interface = &mut self.interfaces[host.index()];
        (interface.is_running, interface.silent_since) = (false, now);
        for other in self.hosts() {
            self.hang_up(now, host, other);
            self.schedule_silence_check(now, other, host);
        }
    }

    /// The process is gone. With a reset, its connections report it; without, as in a power cut, the other ends hear nothing.
    pub(crate) fn crash(&mut self, now: Instant, host: HostId, has_reset: bool) {
        let interface = &mut self.interfaces[host.index()];
        (interface.is_running, interface.silent_since) = (false, now);
        interface.turns.clear();
        interface.edges.iter_mut().for_each(|edge| edge.waiting.clear());
        for other in self.hosts() {
            self.set_session(host, other, None);
            *self.end_mut(host, other) = LinkEnd::default();
            let Some(session) = self.end(other, host).session else { continue };
            if has_reset && !self.is_cut(host, other) {
                let patience = self.links.distance(host, other) + self.links.reset_patience;
                self.scheduled
                    .push((now.after(patience), NetworkEvent::Reset { at: other, of: host, session }));
            } else {
                self.schedule_silence_check(now, other, host);
            }
        }
    }

    /// The machine goes to sleep.
    pub(crate) fn sleep(&mut self, now: Instant, host: HostId) {
        let interface = &mut self.interfaces[host.index()];
        (interface.is_awake, interface.silent_since) = (false, now);
        for other in self.hosts() {
            self.schedule_silence_check(now, other, host);
        }
    }

    /// The machine wakes up; only now can it notice which peers are silent.
    pub(crate) fn wake(&mut self, now: Instant, host: HostId) {
        self.interfaces[host.index()].is_awake = true;
        for other in self.hosts().filter(|&other| !self.is_audible(other, host)).collect::<Vec<_>>() {
            self.schedule_silence_check(now, host, other);
        }
    }

    /// Changes the access line of a host.
    pub(crate) fn throttle(&mut self, host: HostId, up: Option<u64>, down: Option<u64>) {
        let interface = &mut self.interfaces[host.index()];
        (interface.up, interface.down) = (up, down);
    }

    // State.

    fn is_audible(&self, from: HostId, to: HostId) -> bool {
        self.silence(from, to).is_none()
    }

    /// Since when `to` can hear nothing from `from`; `None` if it can.
    fn silence(&self, from: HostId, to: HostId) -> Option<Instant> {
        let interface = &self.interfaces[from.index()];
        let edge = &interface.edges[to.index()];
        let asleep = (!interface.is_running || !interface.is_awake).then_some(interface.silent_since);
        let cut = (edge.cuts > 0).then_some(edge.cut_since);
        asleep.into_iter().chain(cut).min()
    }

    fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.interfaces[from.index()].edges[to.index()].cuts > 0
    }

    fn is_known(&self, at: HostId, of: HostId, session: u32) -> bool {
        self.end(at, of).session == Some(session)
    }

    fn end(&self, at: HostId, of: HostId) -> &LinkEnd {
        &self.interfaces[at.index()].ends[of.index()]
    }

    fn end_mut(&mut self, at: HostId, of: HostId) -> &mut LinkEnd {
        &mut self.interfaces[at.index()].ends[of.index()]
    }

    fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.interfaces.len() as u32).map(HostId)
    }
}
