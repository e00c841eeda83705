//! Transit: the path of a frame from its sender's uplink to its receiver's downlink.

use std::time::Duration;

use peergrad_core::io::Line;
use peergrad_protocol::Instant;

use super::interfaces::Interface;
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
        let Some(session) = self.interfaces.session(from, to) else { return false };
        let is_small = matches!(transmission, Transmission::Credit(_));
        let interface = self.interfaces.get_mut(from);
        let edge = &mut interface.edges[to.index()];
        let is_limited = interface.uplink.rate.is_some() || self.rates.rate(from, to).is_some();
        // A line whose limit was just removed may still have a queue.
        if is_small || (!is_limited && edge.waiting_count() == 0) {
            self.depart(now, from, to, (session, transmission), now, delay);
            return true;
        }
        if matches!(&transmission, Transmission::Frame(frame) if frame.payload.is_some()) {
            interface.uplink.tensor_receivers.insert(to);
        }
        // A filter's delay counts from now on, also for a frame that waits for its turn; such filters are for single frames.
        let flow = edge.flow_of(&transmission);
        flow.last_byte = flow.last_byte.max(now.after(delay));
        flow.waiting.push_back((session, transmission));
        if edge.waiting_count() == 1 {
            interface.uplink.turns.push_back(to);
        }
        self.use_uplink(now, from);
        true
    }

    /// Whether frames wait for this host's uplink.
    pub(crate) fn has_waiting(&self, from: HostId) -> bool {
        !self.interfaces.get(from).uplink.turns.is_empty()
    }

    /// What a host finds that its lines carry to those to which it has sent tensors since this was last asked. They share its uplink, and
    /// losses limit each of them.
    pub(crate) fn take_lines(&mut self, from: HostId) -> Vec<(HostId, Line)> {
        let uplink = &mut self.interfaces.get_mut(from).uplink;
        let receivers = std::mem::take(&mut uplink.tensor_receivers);
        let part = uplink.rate.map(|rate| rate / receivers.len().max(1) as u64);
        let line = |to: &HostId| {
            let rates = [part, self.rates.rate(from, *to), self.interfaces.get(*to).downlink.rate];
            let rate = rates.into_iter().flatten().min()?;
            let round_trip = 2 * self.delays.links.distance(from, *to);
            Some((*to, Line::without_losses(round_trip, rate / 8)))
        };
        receivers.iter().filter_map(line).collect()
    }

    /// Puts frames on the uplink while it is free, and a link with a frame that waits is too.
    pub(super) fn use_uplink(&mut self, now: Instant, from: HostId) {
        loop {
            let Interface { uplink, edges, .. } = self.interfaces.get_mut(from);
            // An event that is due now has its turn first.
            if uplink.free_at > now || uplink.due.is_some_and(|due| due <= now) {
                break;
            }
            let Some((to, (session, transmission))) = uplink.next_turn(now, edges) else { break };
            let bytes = transmission.byte_count();
            uplink.free_at = now.after(sending_time(bytes, uplink.rate));
            let edge = &mut edges[to.index()];
            edge.free_at = now.after(sending_time(bytes, self.rates.rate(from, to)));
            let sent = uplink.free_at.max(edge.free_at);
            self.depart(now, from, to, (session, transmission), sent, Duration::ZERO);
        }
        let Interface { uplink, edges, .. } = self.interfaces.get_mut(from);
        if let Some(at) = uplink.next_at(edges).map(|at| at.max(now))
            && uplink.due.is_none_or(|due| at < due)
        {
            uplink.due = Some(at);
            self.scheduled.push((at, NetworkEvent::Uplink(from)));
        }
    }

    /// Starts a transmission: its first byte leaves now, its last one at `sent`.
    fn depart(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        (session, transmission): (u32, Transmission),
        sent: Instant,
        delay: Duration,
    ) {
        let delay = self.delays.transit_time(&transmission, from, to) + delay;
        let edge = self.interfaces.edge_mut(from, to);
        if let Transmission::Credit(_) = transmission {
            // Credit is counted: it needs no order, and has no size.
            self.scheduled
                .push((sent.after(delay), NetworkEvent::Arrival { from, to, session, transmission }));
            return;
        }
        let flow = edge.flow_of(&transmission);
        flow.first_byte = flow.first_byte.max(now.after(delay));
        flow.last_byte = flow.last_byte.max(sent.after(delay));
        let (first_byte, last_byte) = (flow.first_byte, flow.last_byte);
        self.scheduled.push((first_byte, NetworkEvent::Reach { from, to, session, last_byte, transmission }));
    }

    /// A transmission arrives, or waits at a cut.
    pub(super) fn arrive(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        session: u32,
        transmission: Transmission,
    ) {
        let edge = self.interfaces.edge_mut(from, to);
        if edge.cuts > 0 {
            edge.stalled.push_back((session, transmission));
        } else if now < edge.reopens {
            self.scheduled.push((edge.reopens, NetworkEvent::Arrival { from, to, session, transmission }));
        } else {
            self.deliver(now, from, to, session, transmission);
        }
    }

    /// A transmission is passed to its receiver, if that still knows the connection.
    fn deliver(&mut self, now: Instant, from: HostId, to: HostId, session: u32, transmission: Transmission) {
        if !self.interfaces.is_known(to, from, session) {
            if matches!(transmission, Transmission::Frame(_)) && self.interfaces.is_audible(to, from) {
                // It is for a former process: the machine answers that it knows no such connection.
                let distance = self.links().distance(to, from);
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
                self.interfaces.end_mut(to, from).is_wanted = false;
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

/// Headers and encryption of a frame's packets, roughly.
const FRAME_OVERHEAD: usize = 40;
