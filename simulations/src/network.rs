//! The network between hosts: connections that open and close, and frames that take time.
//!
//! It resembles a postal service with one counter for each house: all that a host sends passes its counter one piece at a time, in turn for
//! each receiver. Then it travels, and then it waits for space in the receiver's letter box.
//!
//! # How it works
//! ```text
//! send --> filters --> link (rate of TCP), uplink (turns between links) --> distance, jitter, loss --> downlink --> deliver
//!                                                                             |
//!                                                                             '-- a cut: stays there until the path heals
//! ```
//! - Within one link everything arrives once, and in order, except that urgent frames overtake normal ones. A cut or a lost packet only
//!   delays. There is no order between links.
//! - A frame occupies the sender's uplink for its size, and the receiver's downlink from its first byte on; flows share both frame by
//!   frame.
//! - Where packets are lost, a link takes its next frame only when its connections have sent the one before, at the rate of TCP. Meanwhile
//!   the uplink is free for other links.
//! - Each end of a connection has its own knowledge of it. An end that is dead, paused or cut off sends nothing: the other end notices
//!   after a time of silence, and until then believes that the link is up. It then closes the connection, and the close travels too.
//! - A restarted process does not know the connections of the one before. A peer that sends over one of them gets a reset.
//! - A host that wants a link dials again and again, with growing pauses.
//!
//! # Parts
//! `interfaces.rs` has what the network knows of each host, `connections.rs` how links open and close, `transit.rs` the path of a frame,
//! `tcp_rate.rs` what a link carries when packets are lost, and `random_delays.rs` what varies from frame to frame.
//!
//! # Not here
//! Packets: loss costs a frame one more round trip, and limits the rate of its link by a formula, evenly. What `tcp_rate.rs` leaves out is
//! listed there.

use peergrad_protocol::{Frame, Instant, PeerId};

use crate::host::{Crash, HostId};
use crate::links::Links;
use interfaces::{Edge, Interfaces, LinkEnd};
use random_delays::RandomDelays;
use tcp_rate::TcpRates;

mod connections;
mod interfaces;
mod random_delays;
mod tcp_rate;
#[cfg(test)]
mod tests;
mod transit;

/// All connections and frames in transit between the hosts.
pub(crate) struct Network {
    /// The state of each host's line and links.
    pub(crate) interfaces: Interfaces,
    /// The lines between hosts, and what varies on them.
    delays: RandomDelays,
    /// What each link carries at most.
    rates: TcpRates,
    /// The number of connections so far; the next one has the number after it.
    session_count: u32,
    /// Events to schedule, until the cluster takes them.
    scheduled: Vec<(Instant, NetworkEvent)>,
    /// Inputs for hosts, until the cluster takes them.
    deliveries: Vec<Delivery>,
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
        Self {
            interfaces: Interfaces::default(),
            rates: TcpRates::new(&links),
            delays: RandomDelays::new(links, seed),
            session_count: 0,
            scheduled: Vec::new(),
            deliveries: Vec::new(),
        }
    }

    /// The lines between hosts, unless changed for a single host.
    pub(crate) fn links(&self) -> &Links {
        &self.delays.links
    }

    /// The events to be scheduled since the last call.
    pub(crate) fn take_scheduled(&mut self) -> std::vec::Drain<'_, (Instant, NetworkEvent)> {
        self.scheduled.drain(..)
    }

    /// The deliveries to be passed to hosts since the last call.
    pub(crate) fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    // Events.

    /// Processes one event.
    pub(crate) fn handle(&mut self, now: Instant, event: NetworkEvent) {
        match event {
            NetworkEvent::Uplink(host) => {
                self.interfaces.get_mut(host).uplink.due.take_if(|due| *due <= now);
                self.use_uplink(now, host);
            }
            NetworkEvent::Reach { from, to, session, last_byte, transmission } => {
                let downlink = &mut self.interfaces.get_mut(to).downlink;
                let at = downlink.take_in(now, last_byte, transmission.byte_count());
                let flow = self.interfaces.edge_mut(from, to).flow_of(&transmission);
                flow.taken = flow.taken.max(at);
                let at = flow.taken;
                self.scheduled.push((at, NetworkEvent::Arrival { from, to, session, transmission }));
            }
            NetworkEvent::Arrival { from, to, session, transmission } => {
                self.arrive(now, from, to, session, transmission)
            }
            NetworkEvent::Silence { at, of, session, since } => {
                let is_silent = self.interfaces.silence(of, at).is_some_and(|began| began <= since);
                let is_awake = self.interfaces.get(at).is_awake;
                if is_awake && is_silent && self.interfaces.is_known(at, of, session) {
                    self.close(now, at, of, "nothing was heard from it");
                }
            }
            NetworkEvent::Reset { at, of, session } => {
                if self.interfaces.is_known(at, of, session) {
                    self.close(now, at, of, "its connection was reset and did not come back");
                }
            }
            NetworkEvent::Dial { from, to } => self.try_dial(now, from, to),
        }
    }

    // Hosts.

    /// Adds a host without a process.
    pub(crate) fn add(&mut self, peer: PeerId) {
        self.interfaces.add(peer, &self.delays.links);
    }

    /// A process starts, on a machine that is awake: if the process of a sleeping machine died, the next one starts after it wakes up.
    pub(crate) fn start(&mut self, host: HostId) {
        let interface = self.interfaces.get_mut(host);
        (interface.is_running, interface.is_awake) = (true, true);
    }

    /// The process ends in good order, and closes all its links. It does not wait for a goodbye that cannot be delivered.
    pub(crate) fn shut_down(&mut self, now: Instant, host: HostId) {
        let interface = self.interfaces.get_mut(host);
        (interface.is_running, interface.silent_since) = (false, now);
        for other in self.interfaces.hosts() {
            self.hang_up(now, host, other);
            self.schedule_silence_check(now, other, host);
        }
    }

    /// The process is gone.
    pub(crate) fn crash(&mut self, now: Instant, host: HostId, crash: Crash) {
        let interface = self.interfaces.get_mut(host);
        (interface.is_running, interface.silent_since) = (false, now);
        interface.uplink.turns.clear();
        interface.edges.iter_mut().for_each(Edge::clear_waiting);
        for other in self.interfaces.hosts() {
            self.interfaces.set_session(host, other, None);
            *self.interfaces.end_mut(host, other) = LinkEnd::default();
            let Some(session) = self.interfaces.session(other, host) else { continue };
            match crash {
                Crash::Killed if !self.interfaces.is_cut(host, other) => {
                    let patience = self.links().distance(host, other) + self.links().reset_patience;
                    let reset = NetworkEvent::Reset { at: other, of: host, session };
                    self.scheduled.push((now.after(patience), reset));
                }
                Crash::Killed | Crash::PowerLost => self.schedule_silence_check(now, other, host),
            }
        }
    }

    /// The machine goes to sleep.
    pub(crate) fn sleep(&mut self, now: Instant, host: HostId) {
        let interface = self.interfaces.get_mut(host);
        (interface.is_awake, interface.silent_since) = (false, now);
        for other in self.interfaces.hosts() {
            self.schedule_silence_check(now, other, host);
        }
    }

    /// The machine wakes up; only now can it notice which peers are silent.
    pub(crate) fn wake(&mut self, now: Instant, host: HostId) {
        self.interfaces.get_mut(host).is_awake = true;
        for other in self.interfaces.hosts() {
            if !self.interfaces.is_audible(other, host) {
                self.schedule_silence_check(now, host, other);
            }
        }
    }

    /// Changes the access line of a host.
    pub(crate) fn throttle(&mut self, host: HostId, up: Option<u64>, down: Option<u64>) {
        let interface = self.interfaces.get_mut(host);
        (interface.uplink.rate, interface.downlink.rate) = (up, down);
    }
}
