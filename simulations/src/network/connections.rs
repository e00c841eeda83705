//! Connections: how they are opened, how each end loses them, and how a cut delays frames in transit.

use std::time::Duration;

use peergrad_protocol::Instant;

use super::{Delivery, LinkEvent, Network, NetworkEvent, Transmission};
use crate::host::HostId;

impl Network {
    /// `from` wants a link to `to` from now on.
    pub(crate) fn dial(&mut self, now: Instant, from: HostId, to: HostId) {
        let end = self.interfaces.end_mut(from, to);
        end.is_wanted = true;
        end.failures = 0;
        self.schedule_dial(now, from, to, Duration::ZERO);
    }

    /// `from` no longer wants a link that it does not have.
    pub(crate) fn stop_dialing(&mut self, from: HostId, to: HostId) {
        self.interfaces.end_mut(from, to).is_wanted = false;
    }

    pub(super) fn schedule_dial(&mut self, now: Instant, from: HostId, to: HostId, pause: Duration) {
        let end = self.interfaces.end_mut(from, to);
        if end.is_wanted && !end.is_dialing && end.session.is_none() {
            end.is_dialing = true;
            let round_trip = 2 * self.links().distance(from, to) + self.delays.jitter();
            self.scheduled.push((now.after(pause + round_trip), NetworkEvent::Dial { from, to }));
        }
    }

    pub(super) fn try_dial(&mut self, now: Instant, from: HostId, to: HostId) {
        let end = self.interfaces.end_mut(from, to);
        end.is_dialing = false;
        if !end.is_wanted || end.session.is_some() || !self.interfaces.get(from).is_running {
            return;
        }
        if self.interfaces.is_audible(from, to) && self.interfaces.is_audible(to, from) {
            self.connect(now, from, to);
        } else {
            let end = self.interfaces.end_mut(from, to);
            end.failures += 1;
            let pause = DIAL_PAUSE * 2_u32.pow(end.failures.min(4));
            self.schedule_dial(now, from, to, pause);
        }
    }

    pub(super) fn connect(&mut self, now: Instant, a: HostId, b: HostId) {
        self.session_count += 1;
        for (at, of) in [(a, b), (b, a)] {
            self.displace(now, at, of);
            self.interfaces.set_session(at, of, Some(self.session_count));
            self.interfaces.end_mut(at, of).failures = 0;
        }
        for (to, from) in [(a, b), (b, a)] {
            self.deliveries.push(Delivery { to, from, event: LinkEvent::Up });
        }
    }

    /// A new connection replaces an older one with the same peer, from this host or from another one.
    pub(super) fn displace(&mut self, now: Instant, at: HostId, of: HostId) {
        if self.interfaces.is_up(at, of) {
            self.interfaces.set_session(at, of, None);
            self.deliveries.push(Delivery {
                to: at,
                from: of,
                event: LinkEvent::Down("it was started again"),
            });
        }
        for twin in self.interfaces.linked_twins(at, of) {
            self.close(now, at, twin, "it was started again, or another machine uses a copy of its identity");
        }
    }

    /// One end closes a connection: its process is told at once, the other end's when the close arrives.
    pub(super) fn close(&mut self, now: Instant, at: HostId, of: HostId, reason: &'static str) {
        self.send(now, at, of, Transmission::Close, Duration::ZERO);
        self.forget(now, at, of);
        self.deliveries.push(Delivery { to: at, from: of, event: LinkEvent::Down(reason) });
    }

    /// One end has no connection any more.
    pub(super) fn forget(&mut self, now: Instant, at: HostId, of: HostId) {
        self.interfaces.set_session(at, of, None);
        self.schedule_dial(now, at, of, DIAL_PAUSE);
    }

    /// The process at `from` closes the link; what it sent before still arrives.
    pub(crate) fn hang_up(&mut self, now: Instant, from: HostId, to: HostId) {
        self.send(now, from, to, Transmission::Goodbye, Duration::ZERO);
        self.interfaces.set_session(from, to, None);
        self.interfaces.end_mut(from, to).is_wanted = false;
    }

    // Cuts.

    /// Blocks frames from `from` to `to`.
    pub(crate) fn cut(&mut self, now: Instant, from: HostId, to: HostId) {
        if self.interfaces.cut(now, from, to) {
            self.schedule_silence_check(now, to, from);
        }
    }

    /// Removes one cut. If it was the last one, the frames that waited arrive.
    pub(crate) fn heal(&mut self, now: Instant, from: HostId, to: HostId) {
        if !self.interfaces.heal(from, to) {
            return;
        }
        let distance = self.links().distance(from, to);
        let edge = self.interfaces.edge_mut(from, to);
        // A sender that retransmits into a cut does so with pauses that grow with its length.
        let pause = self.delays.up_to(now.since(edge.cut_since).min(Duration::from_secs(1)));
        let stalled = std::mem::take(&mut edge.stalled);
        let at = edge.reopens.max(now.after(distance + pause));
        edge.reopens = at;
        // Frames in transit, and those sent from now on, arrive after them.
        edge.hold_until(at);
        for (session, transmission) in stalled {
            self.scheduled.push((at, NetworkEvent::Arrival { from, to, session, transmission }));
        }
    }

    /// Schedules a check of whether `of` has been silent towards `at` since now.
    pub(super) fn schedule_silence_check(&mut self, now: Instant, at: HostId, of: HostId) {
        let Some(session) = self.interfaces.session(at, of) else { return };
        let check = NetworkEvent::Silence { at, of, session, since: now };
        self.scheduled.push((now.after(self.delays.silence_patience()), check));
    }
}

/// Pause before a lost link is dialed again; it doubles four times.
const DIAL_PAUSE: Duration = Duration::from_millis(500);
