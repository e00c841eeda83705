//! Network status: the links, what they run over, their round-trip times, and the peers that cannot be reached.

use std::time::Duration;

use peergrad_protocol::PeerId;
use tokio::time::Instant;

use crate::address::Carrier;
use crate::dial::{Dialer, Unreached};
use crate::remote::{Outgoing, RemotePeer};

/// The link to one peer, or the attempt to have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSnapshot {
    /// The other end.
    pub peer: PeerId,
    /// The kind of lane for frames to the peer; `None` while the link has no lane.
    pub lane: Option<Lane>,
    /// How many TCP connections carry the frames to the peer; `None` unless they go over a direct lane.
    pub stripe_count: Option<usize>,
    /// The duration of the last ping; `None` before the first ping on a connection.
    pub round_trip: Option<Duration>,
    /// The most bytes that the peer has recently acknowledged in a second; `None` before the first measurement.
    pub line_bytes_per_second: Option<u64>,
    /// Why the lane was lost, in words; `None` while the link has a lane, and before its first one.
    pub trouble: Option<String>,
}

/// The kinds of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// A direct lane: its own connection, TLS over TCP.
    Direct,
    /// A substream of a libp2p connection over TCP.
    Tcp,
    /// A substream of a libp2p connection over QUIC.
    Quic,
}

/// The state of a network at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkStatus {
    /// The links, ordered by peer.
    pub links: Vec<LinkSnapshot>,
    /// Wanted peers that cannot be reached.
    pub unreached: Vec<Unreached>,
}

impl NetworkStatus {
    /// The status of these peers, and of those that the dialer does not reach.
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
        let stripe_count = link.and_then(|link| link.stripe_count());
        let trouble =
            remote.link.outage.as_ref().filter(|outage| outage.was_up).map(|outage| outage.reason.clone());
        let round_trip = remote.paths.round_trip.filter(|_| !remote.paths.connections.is_empty());
        let line_bytes_per_second = link.and_then(|link| link.line()).map(|line| line.bytes_per_second);
        Self { peer: remote.peer, lane, stripe_count, round_trip, line_bytes_per_second, trouble }
    }
}
