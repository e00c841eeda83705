//! The network between hosts: connections that come and go, and frames that take their time.
//!
//! Like a postal service with one counter a house: whatever a host sends passes its counter one piece at a time, taking
//! turns between receivers; then it travels; then it waits for the receiver's letter box.
//!
//! # How it works
//! ```text
//! send --> rules --> uplink (turns between flows) --> distance, jitter, loss --> downlink --> deliver
//!                                                        |
//!                                                        '-- a cut: stays there until the path heals
//! ```
//! - Within one link everything arrives in order and once; a cut or a lost packet only delays. Between links nothing is
//!   ordered.
//! - A frame occupies the sender's uplink for its size, and the receiver's downlink from its first byte on; flows share
//!   both frame by frame.
//! - A connection is known to its two ends separately. A dead, paused or cut-off end says nothing: the other one notices
//!   after a time of silence, and until then believes the link to be up. Who notices closes, and the close travels too.
//! - Who wants a link keeps dialing, with growing pauses.
//!
//! # Not here
//! Packets: loss costs a frame one more round trip, not a collapse of the rate.

use std::collections::VecDeque;
use std::time::Duration;

use peergrad_protocol::{Frame, Instant, PeerId};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::host::HostId;
use crate::links::{Links, sending_time};

/// Everything between the hosts.
pub(crate) struct Network {
    pub(crate) links: Links,
    generator: ChaCha8Rng,
    stations: Vec<Station>,
    session_count: u32,
    /// Whether two hosts have one identity.
    has_twins: bool,
    moves: Vec<(Instant, Move)>,
    deliveries: Vec<Delivery>,
}

/// One host, as the network sees it.
struct Station {
    peer: PeerId,
    /// Nothing is heard from a host without a process, or that sleeps.
    is_running: bool,
    is_awake: bool,
    /// Since when neither holds.
    silent_since: Instant,
    up: Option<u64>,
    down: Option<u64>,
    uplink_free: Instant,
    is_uplink_due: bool,
    /// Receivers with frames that wait for the uplink, in turn.
    turns: VecDeque<HostId>,
    downlink_free: Instant,
    /// By other host: what this one knows of their link.
    ends: Vec<End>,
    /// By receiver: the way there.
    edges: Vec<Edge>,
}

/// What one end knows of a link.
#[derive(Clone, Copy, Default)]
struct End {
    /// The connection, if this end believes that there is one.
    session: Option<u32>,
    is_wanted: bool,
    is_dialing: bool,
    failures: u32,
}

/// One direction between two hosts.
#[derive(Default)]
struct Edge {
    /// How many cuts lie on it.
    cuts: u32,
    cut_since: Instant,
    waiting: VecDeque<(u32, Cargo)>,
    /// Order is kept: when the first and last bytes of what was sent last get there, and when they are taken in.
    first_byte: Instant,
    last_byte: Instant,
    taken: Instant,
    /// What has arrived at the cut.
    stalled: VecDeque<(u32, Cargo)>,
}

/// Something on its way.
pub(crate) enum Cargo {
    Frame(Frame),
    Credit(u32),
    /// The sender has given up the connection.
    Close,
    /// The sender wants no link any more.
    Goodbye,
}

/// Something that is about to happen in the network.
pub(crate) enum Move {
    Uplink(HostId),
    /// The first byte of something reaches its receiver; the last one does at `last_byte`.
    Reach {
        from: HostId,
        to: HostId,
        session: u32,
        last_byte: Instant,
        cargo: Cargo,
    },
    /// It is there.
    Arrival {
        from: HostId,
        to: HostId,
        session: u32,
        cargo: Cargo,
    },
    /// `at` may have heard nothing of `of` for too long.
    Silence {
        at: HostId,
        of: HostId,
        session: u32,
        since: Instant,
    },
    /// `at` gives up a connection that was reset.
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

/// Something for a host's process.
pub(crate) struct Delivery {
    pub(crate) to: HostId,
    pub(crate) from: HostId,
    pub(crate) what: Delivered,
}

pub(crate) enum Delivered {
    Up,
    Down(&'static str),
    Frame(Frame),
    Credit(u32),
}

impl Network {
    pub(crate) fn new(links: Links, seed: u64) -> Self {
        let generator = ChaCha8Rng::seed_from_u64(seed);
        let (moves, deliveries) = (Vec::new(), Vec::new());
        Self { links, generator, stations: Vec::new(), session_count: 0, has_twins: false, moves, deliveries }
    }

    /// One more host; nothing runs on it.
    pub(crate) fn add(&mut self, peer: PeerId) {
        let count = self.stations.len() + 1;
        self.has_twins |= self.stations.iter().any(|station| station.peer == peer);
        for station in &mut self.stations {
            station.ends.push(End::default());
            station.edges.push(Edge::default());
        }
        self.stations.push(Station {
            peer,
            is_running: false,
            is_awake: true,
            silent_since: Instant::default(),
            up: self.links.up,
            down: self.links.down,
            uplink_free: Instant::default(),
            is_uplink_due: false,
            turns: VecDeque::new(),
            downlink_free: Instant::default(),
            ends: vec![End::default(); count],
            edges: (0..count).map(|_| Edge::default()).collect(),
        });
    }

    /// What is to happen when, since this was last asked.
    pub(crate) fn take_moves(&mut self) -> std::vec::Drain<'_, (Instant, Move)> {
        self.moves.drain(..)
    }

    /// What hosts are to be told now, since this was last asked.
    pub(crate) fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    /// Whether one end believes that there is a link.
    pub(crate) fn is_up(&self, at: HostId, of: HostId) -> bool {
        self.end(at, of).session.is_some()
    }

    // Sending.

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
        if is_small || station.up.is_none() {
            self.depart(now, from, to, (session, cargo), now, delay);
            return true;
        }
        let edge = &mut station.edges[to.index()];
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
    fn use_uplink(&mut self, now: Instant, from: HostId) {
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
    fn depart(
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

    fn jitter(&mut self) -> Duration {
        let range = self.links.jitter.as_nanos() as u64;
        Duration::from_nanos(self.generator.next_u64() % (range + 1))
    }

    /// What sending lost packets again costs a frame.
    fn loss(&mut self, cargo: &Cargo, distance: Duration) -> Duration {
        if self.links.loss_per_million == 0 {
            return Duration::ZERO;
        }
        let packets = cargo.byte_count().div_ceil(PACKET_BYTES).max(1) as u64;
        let is_lost =
            self.generator.next_u64() % 1_000_000 < packets * u64::from(self.links.loss_per_million);
        if is_lost { 2 * distance + RETRANSMISSION } else { Duration::ZERO }
    }

    // What happens.

    /// Lets one thing happen.
    pub(crate) fn happen(&mut self, now: Instant, event: Move) {
        match event {
            Move::Uplink(host) => {
                self.stations[host.index()].is_uplink_due = false;
                self.use_uplink(now, host);
            }
            Move::Reach { from, to, session, last_byte, cargo } => {
                let at = self.take_in(now, from, to, last_byte, cargo.byte_count());
                self.moves.push((at, Move::Arrival { from, to, session, cargo }));
            }
            Move::Arrival { from, to, session, cargo } => self.arrive(now, from, to, session, cargo),
            Move::Silence { at, of, session, since } => {
                let is_silent = self.silence(of, at).is_some_and(|began| began <= since);
                if self.is_known(at, of, session) && is_silent {
                    self.close(now, at, of, "nothing was heard from it");
                }
            }
            Move::Reset { at, of, session } => {
                if self.is_known(at, of, session) {
                    self.close(now, at, of, "its connection was reset and did not come back");
                }
            }
            Move::Dial { from, to } => self.try_dial(now, from, to),
        }
    }

    /// The downlink takes in what reaches it in turn; when this will be there.
    fn take_in(
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

    fn arrive(&mut self, now: Instant, from: HostId, to: HostId, session: u32, cargo: Cargo) {
        let edge = &mut self.stations[from.index()].edges[to.index()];
        if edge.cuts > 0 || !edge.stalled.is_empty() {
            edge.stalled.push_back((session, cargo));
            return;
        }
        self.deliver(now, from, to, session, cargo);
    }

    fn deliver(&mut self, now: Instant, from: HostId, to: HostId, session: u32, cargo: Cargo) {
        if !self.is_known(to, from, session) {
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

    // Connections.

    /// From now on `from` wants a link to `to`.
    pub(crate) fn dial(&mut self, now: Instant, from: HostId, to: HostId) {
        let end = self.end_mut(from, to);
        end.is_wanted = true;
        end.failures = 0;
        self.schedule_dial(now, from, to, Duration::ZERO);
    }

    fn schedule_dial(&mut self, now: Instant, from: HostId, to: HostId, pause: Duration) {
        let end = self.end_mut(from, to);
        if end.is_wanted && !end.is_dialing && end.session.is_none() {
            end.is_dialing = true;
            let round_trip = 2 * self.links.distance(from, to) + self.jitter();
            self.moves.push((now.after(pause + round_trip), Move::Dial { from, to }));
        }
    }

    fn try_dial(&mut self, now: Instant, from: HostId, to: HostId) {
        let end = self.end_mut(from, to);
        end.is_dialing = false;
        if !end.is_wanted || end.session.is_some() || !self.stations[from.index()].is_running {
            return;
        }
        if self.is_audible(from, to) && self.is_audible(to, from) {
            self.connect(now, from, to);
        } else {
            let end = self.end_mut(from, to);
            end.failures += 1;
            let pause = DIAL_PAUSE * 2_u32.pow(end.failures.min(4));
            self.schedule_dial(now, from, to, pause);
        }
    }

    fn connect(&mut self, now: Instant, a: HostId, b: HostId) {
        self.session_count += 1;
        for (at, of) in [(a, b), (b, a)] {
            self.displace(now, at, of);
            self.end_mut(at, of).session = Some(self.session_count);
            self.end_mut(at, of).failures = 0;
        }
        for (to, from) in [(a, b), (b, a)] {
            self.deliveries.push(Delivery { to, from, what: Delivered::Up });
        }
    }

    /// A new connection takes the place of an older one with the same peer, be it from this host or another one.
    fn displace(&mut self, now: Instant, at: HostId, of: HostId) {
        if self.end(at, of).session.is_some() {
            self.end_mut(at, of).session = None;
            self.deliveries.push(Delivery {
                to: at,
                from: of,
                what: Delivered::Down("it was started again"),
            });
        }
        if !self.has_twins {
            return;
        }
        let peer = self.stations[of.index()].peer;
        let is_twin = |&host: &HostId| host != of && self.stations[host.index()].peer == peer;
        let twins: Vec<HostId> = self.hosts().filter(is_twin).filter(|&twin| self.is_up(at, twin)).collect();
        for twin in twins {
            self.close(now, at, twin, "it was started again, or another machine uses a copy of its identity");
        }
    }

    /// One end gives up a connection: it is told at once, the other end when the close arrives.
    fn close(&mut self, now: Instant, at: HostId, of: HostId, reason: &'static str) {
        self.send(now, at, of, Cargo::Close, Duration::ZERO);
        self.forget(now, at, of);
        self.deliveries.push(Delivery { to: at, from: of, what: Delivered::Down(reason) });
    }

    /// One end has no connection any more.
    fn forget(&mut self, now: Instant, at: HostId, of: HostId) {
        self.end_mut(at, of).session = None;
        self.schedule_dial(now, at, of, DIAL_PAUSE);
    }

    /// The process at `from` wants no link any more; what it sent before still arrives.
    pub(crate) fn hang_up(&mut self, now: Instant, from: HostId, to: HostId) {
        self.send(now, from, to, Cargo::Goodbye, Duration::ZERO);
        let end = self.end_mut(from, to);
        (end.session, end.is_wanted) = (None, false);
    }

    // Hosts.

    /// A process starts.
    pub(crate) fn start(&mut self, host: HostId) {
        self.stations[host.index()].is_running = true;
    }

    /// The process ends in good order: it hangs up everywhere.
    pub(crate) fn part(&mut self, now: Instant, host: HostId) {
        for other in self.hosts() {
            self.hang_up(now, host, other);
        }
        let station = &mut self.stations[host.index()];
        (station.is_running, station.silent_since) = (false, now);
    }

    /// The process is gone. With a reset its connections say so, without (the power went) nobody hears anything.
    pub(crate) fn crash(&mut self, now: Instant, host: HostId, has_reset: bool) {
        let station = &mut self.stations[host.index()];
        (station.is_running, station.silent_since) = (false, now);
        station.turns.clear();
        station.ends.fill(End::default());
        station.edges.iter_mut().for_each(|edge| edge.waiting.clear());
        for other in self.hosts() {
            let Some(session) = self.end(other, host).session else { continue };
            if has_reset && !self.is_cut(host, other) {
                let patience = self.links.distance(host, other) + self.links.reset_patience;
                self.moves.push((now.after(patience), Move::Reset { at: other, of: host, session }));
            } else {
                self.watch(now, other, host);
            }
        }
    }

    /// The machine falls asleep.
    pub(crate) fn sleep(&mut self, now: Instant, host: HostId) {
        let station = &mut self.stations[host.index()];
        (station.is_awake, station.silent_since) = (false, now);
        for other in self.hosts() {
            self.watch(now, other, host);
        }
    }

    /// The machine wakes up.
    pub(crate) fn wake(&mut self, host: HostId) {
        self.stations[host.index()].is_awake = true;
    }

    /// Changes the access line of a host.
    pub(crate) fn throttle(&mut self, host: HostId, up: Option<u64>, down: Option<u64>) {
        let station = &mut self.stations[host.index()];
        (station.up, station.down) = (up, down);
    }

    // Cuts.

    /// Nothing gets from `from` to `to` any more.
    pub(crate) fn cut(&mut self, now: Instant, from: HostId, to: HostId) {
        let edge = &mut self.stations[from.index()].edges[to.index()];
        edge.cuts += 1;
        if edge.cuts == 1 {
            edge.cut_since = now;
            self.watch(now, to, from);
        }
    }

    /// One cut less; after the last one what was sent meanwhile arrives.
    pub(crate) fn heal(&mut self, now: Instant, from: HostId, to: HostId) {
        let distance = self.links.distance(from, to);
        let edge = &mut self.stations[from.index()].edges[to.index()];
        edge.cuts = edge.cuts.saturating_sub(1);
        if edge.cuts > 0 {
            return;
        }
        // Whoever sends again and again into a cut does so at pauses that grow with it.
        let pause_max = now.since(edge.cut_since).min(Duration::from_secs(1)).as_nanos() as u64;
        let stalled = std::mem::take(&mut edge.stalled);
        let pause = Duration::from_nanos(self.generator.next_u64() % (pause_max + 1));
        let at = now.after(distance + pause);
        let edge = &mut self.stations[from.index()].edges[to.index()];
        // Whatever is sent from now on stays behind it.
        (edge.first_byte, edge.taken) = (edge.first_byte.max(at), edge.taken.max(at));
        for (session, cargo) in stalled {
            self.moves.push((at, Move::Arrival { from, to, session, cargo }));
        }
    }

    /// Notices later whether `of` has been silent towards `at` all the time.
    fn watch(&mut self, now: Instant, at: HostId, of: HostId) {
        let Some(session) = self.end(at, of).session else { return };
        let patience = self.links.silence_patience;
        let luck = Duration::from_nanos(self.generator.next_u64() % (patience.as_nanos() as u64 / 4 + 1));
        self.moves.push((now.after(patience + luck), Move::Silence { at, of, session, since: now }));
    }

    // Looking.

    fn is_audible(&self, from: HostId, to: HostId) -> bool {
        self.silence(from, to).is_none()
    }

    /// Since when nothing of `from` can be heard at `to`.
    fn silence(&self, from: HostId, to: HostId) -> Option<Instant> {
        let station = &self.stations[from.index()];
        let edge = &station.edges[to.index()];
        let asleep = (!station.is_running || !station.is_awake).then_some(station.silent_since);
        let cut = (edge.cuts > 0).then_some(edge.cut_since);
        asleep.into_iter().chain(cut).min()
    }

    fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.stations[from.index()].edges[to.index()].cuts > 0
    }

    fn is_known(&self, at: HostId, of: HostId, session: u32) -> bool {
        self.end(at, of).session == Some(session)
    }

    fn end(&self, at: HostId, of: HostId) -> &End {
        &self.stations[at.index()].ends[of.index()]
    }

    fn end_mut(&mut self, at: HostId, of: HostId) -> &mut End {
        &mut self.stations[at.index()].ends[of.index()]
    }

    fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.stations.len() as u32).map(HostId)
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
/// Pause before a lost link is dialed again; it doubles four times.
const DIAL_PAUSE: Duration = Duration::from_millis(500);
