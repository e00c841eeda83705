//! Transit: what a frame goes through between its sender's counter and its receiver's letter box.

use std::time::Duration;

use peergrad_protocol::Instant;
use rand::Rng;

use super::{Cargo, Delivered, Delivery, Move, Network};
use crate::host::HostId;
use crate::links::sending_time;

impl Network {
    /// Sends something over the link, if there is one. True if it was taken.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        cargo: Cargo,
        delay: Duration,
    ) -> bool {
        let Some(session) = self.end(from, to).session else { return false };
        let is_small = matches!(cargo, Cargo::Credit(_));
        let station = &mut self.stations[from.index()];
        let edge = &mut station.edges[to.index()];
        // A line that has just become free of limits still has a queue.
        if is_small || (station.up.is_none() && edge.waiting.is_empty()) {
            self.depart(now, from, to, (session, cargo), now, delay);
            return true;
        }
        // A delay counts from now on, also for a frame that waits for its turn; such rules are for single frames.
        edge.last_byte = edge.last_byte.max(now.after(delay));
        edge.waiting.push_back((session, cargo));
        if edge.waiting.len() == 1 {
            station.turns.push_back(to);
        }
        self.use_uplink(now, from);
        true
    }

    /// Puts the next frame on the uplink if that is free.
    pub(super) fn use_uplink(&mut self, now: Instant, from: HostId) {
        let station = &mut self.stations[from.index()];
        while station.uplink_free <= now && !station.is_uplink_due {
            let Some(to) = station.turns.pop_front() else { return };
            let edge = &mut station.edges[to.index()];
            let Some((session, cargo)) = edge.waiting.pop_front() else { continue };
            if !edge.waiting.is_empty() {
                station.turns.push_back(to);
            }
            station.uplink_free = now.after(sending_time(cargo.byte_count(), station.up));
            let sent = station.uplink_free;
            self.depart(now, from, to, (session, cargo), sent, Duration::ZERO);
            return self.use_uplink(now, from);
        }
        if !station.turns.is_empty() && !station.is_uplink_due {
            station.is_uplink_due = true;
            self.moves.push((station.uplink_free, Move::Uplink(from)));
        }
    }

    /// Travels: its first byte leaves now, its last one at `sent`.
    pub(super) fn depart(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        (session, cargo): (u32, Cargo),
        sent: Instant,
        delay: Duration,
    ) {
        let distance = self.links.distance(from, to);
        let delay = distance + self.jitter() + self.loss(&cargo, distance) + delay;
        let edge = &mut self.stations[from.index()].edges[to.index()];
        if let Cargo::Credit(_) = cargo {
            // Counted, not ordered, and of no size.
            self.moves.push((sent.after(delay), Move::Arrival { from, to, session, cargo }));
            return;
        }
        edge.first_byte = edge.first_byte.max(now.after(delay));
        edge.last_byte = edge.last_byte.max(sent.after(delay));
        let (first_byte, last_byte) = (edge.first_byte, edge.last_byte);
        self.moves.push((first_byte, Move::Reach { from, to, session, last_byte, cargo }));
    }

    pub(super) fn jitter(&mut self) -> Duration {
        let range = self.links.jitter.as_nanos() as u64;
        Duration::from_nanos(self.generator.next_u64() % (range + 1))
    }

    /// What sending lost packets again costs a frame.
    pub(super) fn loss(&mut self, cargo: &Cargo, distance: Duration) -> Duration {
        if self.links.loss_per_million == 0 {
            return Duration::ZERO;
        }
        let packets = cargo.byte_count().div_ceil(PACKET_BYTES).max(1) as u64;
        let is_lost =
            self.generator.next_u64() % 1_000_000 < packets * u64::from(self.links.loss_per_million);
        if is_lost { 2 * distance + RETRANSMISSION } else { Duration::ZERO }
    }

    /// The downlink takes in what reaches it in turn; when this will be there.
    pub(super) fn take_in(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        last_byte: Instant,
        bytes: usize,
    ) -> Instant {
        let station = &mut self.stations[to.index()];
        let taking = sending_time(bytes, station.down);
        let mut at = last_byte;
        if taking > Duration::ZERO {
            station.downlink_free = station.downlink_free.max(now).after(taking);
            at = at.max(station.downlink_free);
        }
        let edge = &mut self.stations[from.index()].edges[to.index()];
        edge.taken = edge.taken.max(at);
        edge.taken
    }

    pub(super) fn arrive(&mut self, now: Instant, from: HostId, to: HostId, session: u32, cargo: Cargo) {
        let edge = &mut self.stations[from.index()].edges[to.index()];
        if edge.cuts > 0 {
            edge.stalled.push_back((session, cargo));
        } else if now < edge.reopens {
            self.moves.push((edge.reopens, Move::Arrival { from, to, session, cargo }));
        } else {
            self.deliver(now, from, to, session, cargo);
        }
    }

    pub(super) fn deliver(&mut self, now: Instant, from: HostId, to: HostId, session: u32, cargo: Cargo) {
        if !self.is_known(to, from, session) {
            if matches!(cargo, Cargo::Frame(_)) && self.is_audible(to, from) {
                // Of a process that was there before: the machine says that it knows no such connection.
                let distance = self.links.distance(to, from);
                self.moves.push((now.after(distance), Move::Reset { at: from, of: to, session }));
            }
            return;
        }
        let what = match cargo {
            Cargo::Frame(frame) => Delivered::Frame(frame),
            Cargo::Credit(segments) => Delivered::Credit(segments),
            Cargo::Close => {
                self.forget(now, to, from);
                Delivered::Down("it closed the connection")
            }
            Cargo::Goodbye => {
                self.end_mut(to, from).is_wanted = false;
                self.forget(now, to, from);
                Delivered::Down("it left")
            }
        };
        self.deliveries.push(Delivery { to, from, what });
    }
}

impl Cargo {
    /// Bytes on the line: of frames only, the rest rides along.
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
/// What it takes to notice a lost packet, beside a round trip.
const RETRANSMISSION: Duration = Duration::from_millis(10);
