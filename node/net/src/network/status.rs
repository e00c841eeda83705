//! Looking on: which links there are, over what they run, how far away the others are, and who cannot be reached.

use std::time::Duration;

use peergrad_protocol::PeerId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::super::dial::Unreached;
use super::super::quic::Carrier;
use super::super::remote::{Outgoing, RemotePeer};
use super::actor::{Command, NetworkActor};

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

/// Asks a network for its links.
#[derive(Clone, Debug)]
pub struct NetworkHandle {
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl NetworkHandle {
    /// How it is now; nothing is seen once the network is gone.
    pub async fn status(&self) -> NetworkStatus {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Status(reply)).is_err() {
            return NetworkStatus::default();
        }
        answer.await.unwrap_or_default()
    }
}

impl NetworkActor {
    pub(super) fn status(&self) -> NetworkStatus {
        let mut links: Vec<LinkSnapshot> = self.remotes.values().map(describe).collect();
        links.sort_unstable_by_key(|link| link.peer);
        NetworkStatus { links, unreached: self.dialer.unreached(Instant::now()) }
    }
}

fn describe(remote: &RemotePeer) -> LinkSnapshot {
    let is_running = matches!(remote.outgoing, Outgoing::Running { .. });
    let link = remote.link.as_ref().filter(|_| is_running && remote.outage.is_none());
    let lane = link.map(|link| match (link.is_direct(), remote.carrier_without(&[])) {
        (true, _) => Lane::Direct,
        (false, Some(Carrier::Tcp) | None) => Lane::Tcp,
        (false, Some(Carrier::Quic)) => Lane::Quic,
    });
    let trouble = remote.outage.as_ref().filter(|outage| outage.was_up).map(|outage| outage.reason.clone());
    let round_trip = remote.round_trip.filter(|_| !remote.connections.is_empty());
    LinkSnapshot { peer: remote.peer, lane, round_trip, trouble }
}
