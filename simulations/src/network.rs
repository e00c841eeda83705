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
//! - A process that is started again knows no connection of the one before: whoever sends over such a one is told.
//! - Who wants a link keeps dialing, with growing pauses.
//!
//! # Not here
//! Packets: loss costs a frame one more round trip, not a collapse of the rate.

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

/// Everything between the hosts.
pub(crate) struct Network {
    pub(crate) links: Links,
    generator: ChaCha8Rng,
    stations: Vec<Station>,
    session_count: u32,
    /// Cuts of all edges.
    cut_count: u32,
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
    /// Other hosts with which this one has a connection that both know of.
    whole_count: usize,
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
    /// After a cut: when what stalled there gets through. What arrives before that is behind it.
    reopens: Instant,
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
        Self {
            links,
            generator,
            stations: Vec::new(),
            session_count: 0,
            cut_count: 0,
            has_twins: false,
            moves,
            deliveries,
        }
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
            whole_count: 0,
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

    /// The connection of which one end believes that it is there.
    pub(crate) fn session(&self, at: HostId, of: HostId) -> Option<u32> {
        self.end(at, of).session
    }

    /// Whether frames get from each of two hosts to the other: both know of the same connection, and no cut lies on it.
    pub(crate) fn is_whole(&self, a: HostId, b: HostId) -> bool {
        let session = self.session(a, b);
        session.is_some() && session == self.session(b, a) && !self.is_cut(a, b) && !self.is_cut(b, a)
    }

    /// How many hosts at least have a [whole](Self::is_whole) link with this one: none is said where there is any cut.
    pub(crate) fn whole_count(&self, host: HostId) -> usize {
        if self.cut_count > 0 { 0 } else { self.stations[host.index()].whole_count }
    }

    /// One end knows of a connection, or of none any more.
    fn set_session(&mut self, at: HostId, of: HostId, session: Option<u32>) {
        let other = self.session(of, at);
        let is_whole = |session: Option<u32>| usize::from(session.is_some() && session == other);
        let (before, after) = (is_whole(self.session(at, of)), is_whole(session));
        for host in [at, of] {
            let count = &mut self.stations[host.index()].whole_count;
            *count = *count + after - before;
        }
        self.end_mut(at, of).session = session;
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
                let is_awake = self.stations[at.index()].is_awake;
                if is_awake && is_silent && self.is_known(at, of, session) {
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

    // Hosts.

    /// A process starts, on a machine that is awake: whoever died on a sleeping one starts after it woke up.
    pub(crate) fn start(&mut self, host: HostId) {
        let station = &mut self.stations[host.index()];
        (station.is_running, station.is_awake) = (true, true);
    }

    /// The process ends in good order: it hangs up everywhere. A goodbye that does not get through is not waited for.
    pub(crate) fn part(&mut self, now: Instant, host: HostId) {
        let station = &mut self.stations[host.index()];
        (station.is_running, station.silent_since) = (false, now);
        for other in self.hosts() {
            self.hang_up(now, host, other);
            self.watch(now, other, host);
        }
    }

    /// The process is gone. With a reset its connections say so, without (the power went) nobody hears anything.
    pub(crate) fn crash(&mut self, now: Instant, host: HostId, has_reset: bool) {
        let station = &mut self.stations[host.index()];
        (station.is_running, station.silent_since) = (false, now);
        station.turns.clear();
        station.edges.iter_mut().for_each(|edge| edge.waiting.clear());
        for other in self.hosts() {
            self.set_session(host, other, None);
            *self.end_mut(host, other) = End::default();
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

    /// The machine wakes up; only now can it notice who is silent.
    pub(crate) fn wake(&mut self, now: Instant, host: HostId) {
        self.stations[host.index()].is_awake = true;
        for other in self.hosts().filter(|&other| !self.is_audible(other, host)).collect::<Vec<_>>() {
            self.watch(now, host, other);
        }
    }

    /// Changes the access line of a host.
    pub(crate) fn throttle(&mut self, host: HostId, up: Option<u64>, down: Option<u64>) {
        let station = &mut self.stations[host.index()];
        (station.up, station.down) = (up, down);
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
