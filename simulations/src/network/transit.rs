//! Transit: the path of a frame from its sender's uplink to its receiver's downlink.

use std::time::Duration;

use peergrad_protocol::Instant;
use rand::Rng;

use super::{Delivery, LinkEvent, Network, NetworkEvent, Transmission};
use crate::host::HostId;
use crate::links::sending_time;

impl Network {
    /// Sends a transmission over the link, if there is one. Returns whether it was taken.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        transmission: Transmission,
        delay: Duration,
    ) -> bool {
        let Some(session) = self.end(from, to).session else { return false };
        let is_small = matches!(transmission, Transmission::Credit(_));
        let interface = &mut self.interfaces[from.index()];
        let edge = &mut interface.edges[to.index()];
        // A line whose limit was just removed may still have a queue.
        if is_small || (interface.up.is_none() && edge.waiting.is_empty()) {
            self.depart(now, from, to, (session, transmission), now, delay);
            return true;
        }
        // A filter's delay counts from now on, also for a frame that waits for its turn; such filters are for single frames.
        edge.last_byte = edge.last_byte.max(now.after(delay));
        edge.waiting.push_back((session, transmission));
        if edge.waiting.len() == 1 {
            interface.turns.push_back(to);
        }
        self.use_uplink(now, from);
        true
    }

    /// Puts the next frame on the uplink if that is free.
    pub(super) fn use_uplink(&mut self, now: Instant, from: HostId) {
        let interface = &mut self.interfaces[from.index()];
        while interface.uplink_free <= now && !interface.is_uplink_due {
            let Some(to) = interface.turns.pop_front() else { return };
            let edge = &mut interface.edges[to.index()];
            let Some((session, transmission)) = edge.waiting.pop_front() else { continue };
            if !edge.waiting.is_empty() {
                interface.turns.push_back(to);
            }
            interface.uplink_free = now.after(sending_time(transmission.byte_count(), interface.up));
            let sent = interface.uplink_free;
            self.depart(now, from, to, (session, transmission), sent, Duration::ZERO);
            return self.use_uplink(now, from);
        }
        if !interface.turns.is_empty() && !interface.is_uplink_due {
            interface.is_uplink_due = true;
            self.scheduled.push((interface.uplink_free, NetworkEvent::Uplink(from)));
        }
    }

    /// Starts a transmission: its first byte leaves now, its last one at `sent`.
    pub(super) fn depart(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        (session, transmission): (u32, Transmission),
        sent: Instant,
        delay: Duration,
    ) {
        let distance = self.links.distance(from, to);
        let delay = distance + self.jitter() + self.loss(&transmission, distance) + delay;
        let edge = &mut self.interfaces[from.index()].edges[to.index()];
        if let Transmission::Credit(_) = transmission {
            // Credit is counted: it needs no order, and has no size.
            self.scheduled
                .push((sent.after(delay), NetworkEvent::Arrival { from, to, session, transmission }));
            return;
        }
        edge.first_byte = edge.first_byte.max(now.after(delay));
        edge.last_byte = edge.last_byte.max(sent.after(delay));
        let (first_byte, last_byte) = (edge.first_byte, edge.last_byte);
        self.scheduled.push((first_byte, NetworkEvent::Reach { from, to, session, last_byte, transmission }));
    }

    pub(super) fn jitter(&mut self) -> Duration {
        let range = self.links.jitter.as_nanos() as u64;
        Duration::from_nanos(self.generator.next_u64() % (range + 1))
    }

    /// The time that sending lost packets again costs a frame.
    pub(super) fn loss(&mut self, transmission: &Transmission, distance: Duration) -> Duration {
        if self.links.loss_per_million == 0 {
            return Duration::ZERO;
        }
        let packets = transmission.byte_count().div_ceil(PACKET_BYTES).max(1) as u64;
        let is_lost =
            self.generator.next_u64() % 1_000_000 < packets * u64::from(self.links.loss_per_million);
        if is_lost { 2 * distance + RETRANSMISSION } else { Duration::ZERO }
    }

    /// The downlink takes in what arrives, in turn. Returns when it has taken this.
    pub(super) fn use_downlink(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        last_byte: Instant,
        bytes: usize,
    ) -> Instant {
        let interface = &mut self.interfaces[to.index()];
        let taking = sending_time(bytes, interface.down);
        let mut at = last_byte;
        if taking > Duration::ZERO {
            interface.downlink_free = interface.downlink_free.max(now).after(taking);
            at = at.max(interface.downlink_free);
        }
        let edge = &mut self.interfaces[from.index()].edges[to.index()];
        edge.taken = edge.taken.max(at);
        edge.taken
    }

    pub(super) fn arrive(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        session: u32,
        transmission: Transmission,
    ) {
        let edge = &mut self.interfaces[from.index()].edges[to.index()];
        if edge.cuts > 0 {
            edge.stalled.push_back((session, transmission));
        } else if now < edge.reopens {
            self.scheduled.push((edge.reopens, NetworkEvent::Arrival { from, to, session, transmission }));
        } else {
            self.deliver(now, from, to, session, transmission);
        }
    }

    pub(super) fn deliver(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        session: u32,
        transmission: Transmission,
    ) {
        if !self.is_known(to, from, session) {
            if matches!(transmission, Transmission::Frame(_)) && self.is_audible(to, from) {
                // It is for a former process: the machine answers that it knows no such connection.
                let distance = self.links.distance(to, from);
                self.scheduled.push((now.after(distance), NetworkEvent::Reset { at: from, of: to, session }));
            }
            return;
        }
        let event = match transmission {
            Transmission::Frame(frame) => LinkEvent::Frame(frame),
            Transmission::Credit(segments) => LinkEvent::Credit(segments),
            Transmission::Close => {
                self.forget(now, to, from);
                LinkEvent::Down("it closed the connection")
            }
            Transmission::Goodbye => {
                self.end_mut(to, from).is_wanted = false;
                self.forget(now, to, from);
                LinkEvent::Down("it left")
            }
        };
        self.deliveries.push(Delivery { to, from, event });
    }
}

impl Transmission {
    /// Bytes on the line: those of frames; other transmissions count as 0.
    pub(crate) fn byte_count(&self) -> usize {
        match self {
            Self::Frame(frame) => frame.byte_count() + FRAME_OVERHEAD,
            Self::Credit(_) | Self::Close | Self::Goodbye => 0,
        }
    }
}

/// Payload bytes of a packet.
const PACKET_BYTES: usize = 1400;
/// Headers and encryption of a frame's packets, roughly.
const FRAME_OVERHEAD: usize = 40;
/// Time to notice a lost packet, in addition to a round trip.
const RETRANSMISSION: Duration = Duration::from_millis(10);
