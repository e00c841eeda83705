//! Network status: the links, what they run over, their round-trip times, and the peers that cannot be reached.

use std::time::Duration;

use peergrad_protocol::PeerId;
use tokio::time::Instant;

use crate::address::Carrier;
use crate::dial::{Dialer, Unreached};
use crate::remote::{Outgoing, RemotePeer};

/// A peer that there is a link or a connection to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSnapshot {
    /// The other end.
    pub peer: PeerId,
    /// What frames to it go over; `None` while there is no way.
    pub lane: Option<Lane>,
    /// How long its answer to the last ping took.
    pub round_trip: Option<Duration>,
    /// Why there is no lane, where there was one.
    pub trouble: Option<String>,
}

/// What frames go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// A connection of their own, TLS over TCP.
    Direct,
    /// A substream of a libp2p connection over TCP.
    Tcp,
    /// A substream of a libp2p connection over QUIC.
    Quic,
}

/// What is seen of a network at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkStatus {
    /// The links, by peer.
    pub links: Vec<LinkSnapshot>,
    /// Those who are wanted and cannot be reached.
    pub unreached: Vec<Unreached>,
}

impl NetworkStatus {
    /// Of these peers, and of those that the dialer does not reach.
    pub(super) fn of<'a>(remotes: impl Iterator<Item = &'a RemotePeer>, dialer: &Dialer) -> Self {
        let mut links: Vec<LinkSnapshot> = remotes.map(LinkSnapshot::of).collect();
        links.sort_unstable_by_key(|link| link.peer);
        Self { links, unreached: dialer.unreached(Instant::now()) }
    }
}

impl LinkSnapshot {
    fn of(remote: &RemotePeer) -> Self {
        let is_running = matches!(remote.link.outgoing, Outgoing::Running { .. });
        let link = remote.link.current.as_ref().filter(|_| is_running && remote.link.outage.is_none());
        let lane = link.map(|link| match (link.is_direct(), remote.paths.carrier_without(&[])) {
            (true, _) => Lane::Direct,
            (false, Some(Carrier::Tcp) | None) => Lane::Tcp,
            (false, Some(Carrier::Quic)) => Lane::Quic,
        });
        let trouble =
            remote.link.outage.as_ref().filter(|outage| outage.was_up).map(|outage| outage.reason.clone());
        let round_trip = remote.paths.round_trip.filter(|_| !remote.paths.connections.is_empty());
        Self { peer: remote.peer, lane, round_trip, trouble }
    }
}
