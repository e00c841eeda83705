//! Notices: what the shell has to tell the user that the run itself does not know of. Told, never printed here.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use libp2p::Multiaddr;
use peergrad_protocol::PeerId;

pub use super::dial::DialFailure;
use super::dial::FailedAddress;
use super::reachability::{PortForwarding, Reachability};

/// One thing to tell; its text form is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The default port belongs to another program or peer.
    DefaultPortTaken {
        /// The default.
        wanted: u16,
        /// What the system gave instead.
        listening: u16,
    },
    /// Peers on the local network are not looked for.
    NoMdns {
        /// What the system said.
        reason: String,
    },
    /// An address could not be reached. Told once, and again at growing intervals.
    Unreachable {
        /// Who is looked for there; `None` where only the address is known.
        peer: Option<PeerId>,
        /// The address.
        address: Multiaddr,
        /// What happened.
        trouble: DialFailure,
    },
    /// A peer is reached over QUIC, after it was not reached at all or over TCP.
    QuicInUse {
        /// The other end.
        peer: PeerId,
    },
    /// A peer is reached through another one only: what is said passes, tensors do not.
    Relayed {
        /// The other end.
        peer: PeerId,
    },
    /// A peer is reached itself, after it was reached through another one.
    NoLongerRelayed {
        /// The other end.
        peer: PeerId,
    },
    /// How others reach this peer is known better than before.
    Reachability(Box<Reachability>),
    /// What the router says that was asked to forward a port.
    PortForwarding(PortForwarding),
    /// This peer is not reached over QUIC. It still reaches others over it.
    NoQuic {
        /// What the system said.
        reason: String,
    },
    /// A connection is lost; the link waits for a new one.
    Reconnecting {
        /// The other end.
        peer: PeerId,
        /// Why, in words.
        reason: String,
    },
    /// A link goes on after its connection was lost.
    Resumed {
        /// The other end.
        peer: PeerId,
    },
    /// There is no direct lane to a peer: what it is sent passes through libp2p. Told once, until there is one again.
    DirectLaneFailed {
        /// The other end.
        peer: PeerId,
        /// Why, in words.
        reason: String,
    },
    /// There is a direct lane, after it was told that there is none.
    DirectLaneRestored {
        /// The other end.
        peer: PeerId,
    },
    /// This peer offers no direct lanes.
    NoDirectLanes {
        /// What the system said.
        reason: String,
    },
    /// Somebody who connected to the port for direct lanes was sent away. Told ever more rarely.
    HandshakeRefused {
        /// Its machine.
        from: IpAddr,
        /// Why, in words.
        reason: String,
        /// With this one.
        count: u64,
    },
    /// A peer that holds the secret sent what is no frame; the stream was closed.
    BadStream {
        /// The sender.
        peer: PeerId,
        /// What was wrong.
        reason: String,
    },
    /// The event log cannot be written. Told once, until it works again.
    NoEventLog {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The run has another secret, and this machine's record of the run still has the old one.
    OldSecretOnDisk {
        /// What the system said.
        reason: String,
    },
    /// `peer status` cannot ask this peer on its own machine.
    NoStatus {
        /// Why.
        reason: String,
    },
    /// Numbers for Prometheus are there to be had.
    Metrics {
        /// Where.
        address: SocketAddr,
    },
}

impl From<FailedAddress> for Notice {
    fn from(FailedAddress { peer, address, trouble }: FailedAddress) -> Self {
        Self::Unreachable { peer, address, trouble }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultPortTaken { wanted, listening } => {
                write!(f, "port {wanted} is in use; listening on port {listening} instead")
            }
            Self::NoMdns { reason } => {
                write!(f, "peers on the local network are not looked for: {reason}")
            }
            Self::Unreachable { peer: Some(peer), address, trouble } => {
                write!(f, "peer {} at {address}: {trouble}; still trying", peer.short())
            }
            Self::Unreachable { peer: None, address, trouble } => {
                write!(f, "{address}: {trouble}; still trying")
            }
            Self::QuicInUse { peer } => write!(f, "connected to peer {} over QUIC (UDP)", peer.short()),
            Self::Relayed { peer } => write!(
                f,
                "peer {} is reached through another peer only: what is said passes, tensors do not",
                peer.short()
            ),
            Self::NoLongerRelayed { peer } => {
                write!(f, "peer {} is reached without a relay now", peer.short())
            }
            Self::Reachability(reachability) => write!(f, "{reachability}"),
            Self::PortForwarding(answer) => write!(f, "{answer}"),
            Self::NoQuic { reason } => write!(
                f,
                "cannot listen for QUIC ({reason}): peers that TCP does not get through from cannot reach this one"
            ),
            Self::Reconnecting { peer, reason } => {
                write!(f, "connection to peer {} lost ({reason}); reconnecting", peer.short())
            }
            Self::Resumed { peer } => write!(f, "connected to peer {} again; nothing was lost", peer.short()),
            Self::DirectLaneFailed { peer, reason } => write!(
                f,
                "no direct connection to peer {} for tensors ({reason}); they go over libp2p, which is slower; still trying",
                peer.short()
            ),
            Self::DirectLaneRestored { peer } => {
                write!(f, "tensors to peer {} go over a direct connection", peer.short())
            }
            Self::NoDirectLanes { reason } => {
                write!(
                    f,
                    "cannot listen for direct connections ({reason}): tensors to this peer go over libp2p, which is slower"
                )
            }
            Self::HandshakeRefused { from, reason, count } => {
                write!(
                    f,
                    "refused a connection from {from} to the port for tensors: {reason} ({count} so far)"
                )
            }
            Self::NoEventLog { path, reason } => write!(
                f,
                "cannot write the event log {} ({reason}): training goes on without it, and it is tried again",
                path.display()
            ),
            Self::OldSecretOnDisk { reason } => write!(
                f,
                "the run's new secret could not be written down here ({reason}): if this peer stops now, it needs a fresh invite to come back"
            ),
            Self::NoStatus { reason } => {
                write!(f, "`peer status` cannot ask this peer from its own machine: {reason}")
            }
            Self::Metrics { address } => write!(f, "metrics at http://{address}/metrics"),
            Self::BadStream { peer, reason } => {
                write!(f, "peer {} sent something that is no frame, ignored: {reason}", peer.short())
            }
        }
    }
}
