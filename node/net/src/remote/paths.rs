//! Paths: the connections to a peer, and the addresses and carriers by which it can be reached.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::core::ConnectedPoint;
use libp2p::swarm::ConnectionId;
use tokio::time::Instant;

use crate::address::{Carrier, host_of, ip_of, is_relayed, over_tcp, remember, without_peer};
use crate::dial::CarrierHistory;
use crate::direct::DirectPath;
use crate::link::Route;

/// The ways between this peer and another one.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The open connections of libp2p.
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    /// Whether libp2p's identify protocol has run on a connection. Before that, the other end does not know the protocols of this peer.
    pub(crate) is_identified: bool,
    /// When to look for a connection without a relay, while there is none.
    relay_upgrade: RelayUpgrade,
    /// Where the peer can be dialed, the newest last.
    pub(crate) addresses: Vec<Multiaddr>,
    /// Which carriers have connected the two peers.
    pub(crate) carriers: CarrierHistory,
    /// The duration of the last ping; `None` before the first.
    pub(crate) round_trip: Option<Duration>,
    /// The IP addresses that the peer was connected from or to, the newest first.
    pub(crate) ips: Vec<IpAddr>,
    /// Why this peer closes the connections; `None` unless it has begun to close them.
    pub(crate) close_reason: Option<String>,
    /// The way for direct lanes.
    pub(crate) direct: Arc<DirectPath>,
}

/// A connection of libp2p.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// When it was opened.
    pub(crate) since: Instant,
    /// What it runs over; for a circuit, the carrier to the relay.
    pub(crate) carrier: Carrier,
    /// Whether it leads through a relay.
    pub(crate) is_relayed: bool,
    /// The address at which this peer has dialed the other one; `None` if the other one has dialed.
    pub(crate) dialed: Option<Multiaddr>,
}

/// The attempts to replace a relayed connection.
#[derive(Clone, Copy, Debug)]
struct RelayUpgrade {
    /// No attempt is made before this time.
    due: Instant,
    /// The pause after the next attempt.
    pause: Duration,
}

impl Paths {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            connections: BTreeMap::new(),
            is_identified: false,
            relay_upgrade: RelayUpgrade { due: now, pause: RELAY_UPGRADE_PAUSE },
            addresses: Vec::new(),
            carriers: CarrierHistory::default(),
            round_trip: None,
            ips: Vec::new(),
            close_reason: None,
            direct: Arc::new(DirectPath::new(now)),
        }
    }

    /// Takes in a new connection: where it leads, and where the peer can be dialed from now on.
    pub(crate) fn note_connection(&mut self, id: ConnectionId, endpoint: &ConnectedPoint, now: Instant) {
        let (is_relayed, carrier) = (endpoint.is_relayed(), Carrier::of(endpoint.get_remote_address()));
        if is_relayed && self.connections.is_empty() {
            self.begin_relay_upgrade(now);
        }
        let dialed = match endpoint {
            ConnectedPoint::Dialer { address, .. } => Some(without_peer(address.clone())),
            ConnectedPoint::Listener { .. } => None,
        };
        match (&dialed, is_relayed) {
            (Some(address), true) => self.remember(address.clone()),
            (Some(address), false) => self.remember(over_tcp(address.clone())),
            (None, _) => {}
        }
        if !is_relayed {
            self.note_ip(endpoint.get_remote_address());
        }
        self.connections.insert(id, Connection { since: now, carrier, is_relayed, dialed });
        self.close_reason = None;
    }

    /// Whether there is a connection without a relay.
    pub(crate) fn has_unrelayed_connection(&self) -> bool {
        self.connections.values().any(|connection| !connection.is_relayed)
    }

    /// How a link to the peer would lead: through a relay if every connection does.
    pub(crate) fn route(&self) -> Route {
        let is_relayed = !self.connections.is_empty() && !self.has_unrelayed_connection();
        if is_relayed { Route::Relayed } else { Route::Straight }
    }

    /// The carrier of the connections, without those in `without` and without circuits: TCP if any runs over TCP, and `None` if no
    /// connection is left.
    pub(crate) fn carrier_without(&self, without: &[ConnectionId]) -> Option<Carrier> {
        let is_own = |(id, known): &(&ConnectionId, &Connection)| !known.is_relayed && !without.contains(id);
        let carriers = self.connections.iter().filter(is_own).map(|(_, known)| known.carrier);
        carriers.min_by_key(|carrier| *carrier == Carrier::Quic)
    }

    /// The connections that a new one replaces.
    pub(crate) fn superseded_by(&self, new: &ConnectedPoint, now: Instant) -> Vec<ConnectionId> {
        let is_superseded = |known: &Connection| match new {
            _ if new.is_relayed() => false,
            // A peer does not dial a peer to which it has a connection: the other end has given up the earlier ones.
            ConnectedPoint::Listener { .. } => {
                known.is_relayed || now.duration_since(known.since) > DIALED_AT_ONCE
            }
            ConnectedPoint::Dialer { .. } => known.is_relayed,
        };
        self.connections.iter().filter(|(_, known)| is_superseded(known)).map(|(id, _)| *id).collect()
    }

    /// The connections through a relay.
    pub(crate) fn circuits(&self) -> Vec<ConnectionId> {
        let circuits = self.connections.iter().filter(|(_, connection)| connection.is_relayed);
        circuits.map(|(id, _)| *id).collect()
    }

    /// The addresses at which to try a connection without a relay now; `None` if one exists, if the next attempt is not due, or if no
    /// address is known.
    pub(crate) fn take_relay_upgrade(&mut self, now: Instant) -> Option<Vec<Multiaddr>> {
        if self.connections.is_empty() || self.has_unrelayed_connection() || now < self.relay_upgrade.due {
            return None;
        }
        let addresses: Vec<_> =
            self.addresses.iter().filter(|address| !is_relayed(address)).cloned().collect();
        if addresses.is_empty() {
            // The peer is about to send its addresses.
            return None;
        }
        self.relay_upgrade.due = now + self.relay_upgrade.pause;
        self.relay_upgrade.pause = (2 * self.relay_upgrade.pause).min(RELAY_UPGRADE_PAUSE_MAX);
        Some(addresses)
    }

    /// Begins to look for a connection without a relay, as a new circuit or a new address calls for it.
    pub(crate) fn begin_relay_upgrade(&mut self, now: Instant) {
        self.relay_upgrade = RelayUpgrade { due: now, pause: RELAY_UPGRADE_PAUSE };
    }

    /// Remembers the IP address at which the peer is, and that a direct lane may lead there.
    pub(crate) fn note_ip(&mut self, address: &Multiaddr) {
        self.note_host(address);
        let Some(ip) = ip_of(address).filter(|ip| !self.ips.contains(ip)) else { return };
        self.ips.truncate(IPS_MAX - 1);
        self.ips.insert(0, ip);
    }

    /// Remembers that a direct lane may lead to the host of this address.
    pub(crate) fn note_host(&self, address: &Multiaddr) {
        if let Some(host) = host_of(address) {
            self.direct.note_host(host);
        }
    }

    /// Remembers an address at which the peer can be dialed.
    pub(crate) fn remember(&mut self, address: Multiaddr) {
        remember(&mut self.addresses, address);
    }
}

/// Pause before the second attempt to replace a relayed connection. It doubles with each attempt.
pub(super) const RELAY_UPGRADE_PAUSE: Duration = Duration::from_secs(2);
pub(super) const RELAY_UPGRADE_PAUSE_MAX: Duration = Duration::from_secs(60);
/// IP addresses that are remembered for one peer.
const IPS_MAX: usize = 4;
/// Two connections within this time come from two peers that dialed each other at once; both stay.
const DIALED_AT_ONCE: Duration = Duration::from_secs(3);
