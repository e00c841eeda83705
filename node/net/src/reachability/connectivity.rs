//! Connectivity: how this peer is reached, which relays it uses, and what it has reported about that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libp2p::core::transport::ListenerId;
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::{CutOff, Reachability, Survey};
use crate::address::through;
use crate::listen::beyond_this_machine;

/// How this peer is reached, and the measures that improve it.
pub(crate) struct Connectivity {
    /// What other peers have found.
    pub(crate) survey: Survey,
    /// Connected peers that dial back when asked.
    pub(crate) helpers: BTreeSet<PeerId>,
    /// Connected peers that serve as relays, and the address at which this peer has dialed each.
    pub(crate) relays: BTreeMap<PeerId, Multiaddr>,
    /// The reservations at relays, each a listener of the swarm.
    pub(crate) reservations: BTreeMap<PeerId, ListenerId>,
    /// No reservation is requested before this time.
    pub(crate) reservations_due: Instant,
    /// The addresses that libp2p was told are reachable.
    pub(crate) confirmed: Vec<Multiaddr>,
    /// The last report that the user was given; `None` before the first.
    pub(crate) reported: Option<Reachability>,
    /// The last report to the driver: the announced addresses, and whether this peer is reachable.
    pub(crate) last_reported: (Vec<String>, bool),
    /// Peers that were first reached through a relay, and are reached without one now.
    pub(crate) upgraded: BTreeSet<PeerId>,
    /// Peers that this one reaches through a relay only.
    pub(crate) cut_off: CutOff,
    /// Missing peers are not searched for before this time.
    pub(crate) search_due: Instant,
    /// With which of the missing peers the next search begins.
    pub(crate) next_search: usize,
}

impl Connectivity {
    /// The state of a peer with these external addresses, which listens on `listening` and has announced `announced`.
    pub(crate) fn new(external: Vec<Multiaddr>, listening: &[Multiaddr], announced: Vec<String>) -> Self {
        let now = Instant::now();
        let listening = beyond_this_machine(listening);
        Self {
            survey: Survey::new(external, listening),
            helpers: BTreeSet::new(),
            relays: BTreeMap::new(),
            reservations: BTreeMap::new(),
            reservations_due: now,
            confirmed: Vec::new(),
            reported: None,
            last_reported: (announced, true),
            upgraded: BTreeSet::new(),
            cut_off: CutOff::default(),
            search_due: now,
            next_search: 0,
        }
    }

    /// Peers that are missing are searched for at once, and not only when that is due.
    pub(crate) fn search_soon(&mut self, now: Instant) {
        self.search_due = self.search_due.min(now);
    }

    /// A peer is not connected any more: it neither dials back nor relays.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.helpers.remove(&peer);
        self.relays.remove(&peer);
        self.survey.forget(&peer);
        self.upgraded.remove(&peer);
    }

    /// The relay to ask for a reservation now, and the address for it. The next one is due after a pause.
    pub(crate) fn next_reservation(&mut self, now: Instant) -> Option<(PeerId, Multiaddr)> {
        if self.reservations.len() >= RELAYS_RESERVED_MAX || now < self.reservations_due {
            return None;
        }
        let (relay, address) =
            self.relays.iter().find(|(relay, _)| !self.reservations.contains_key(relay))?;
        self.reservations_due = now + RESERVATION_PAUSE;
        Some((*relay, through(*relay, address.clone())))
    }

    /// A listener of the swarm has closed. Returns whether it was a reservation, which is replaced after a pause.
    pub(crate) fn end_reservation(&mut self, listener: ListenerId, now: Instant) -> bool {
        let count = self.reservations.len();
        self.reservations.retain(|_, reservation| *reservation != listener);
        let is_ended = self.reservations.len() != count;
        if is_ended {
            self.reservations_due = now + RESERVATION_PAUSE;
        }
        is_ended
    }
}

/// Relays at which a peer reserves a place: one of them may go.
pub(crate) const RELAYS_RESERVED_MAX: usize = 2;
/// Pause between two requests for a reservation.
const RESERVATION_PAUSE: Duration = Duration::from_secs(2);
