//! Notices: what the network has to tell the user, beside the events of the run itself. The command decides how to show them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use libp2p::Multiaddr;
use peergrad_protocol::PeerId;

pub use super::dial::DialFailure;
use super::dial::FailedAddress;
use super::machine::Machine;
use super::open_files::FileShortage;
use super::reachability::{PortForwarding, Reachability};

/// One notice. Its `Display` form is the sentence that the user reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another program or peer uses the default port.
    DefaultPortTaken {
        /// The default port.
        wanted: u16,
        /// The port that the system assigned instead.
        listening: u16,
    },
    /// This peer does not look for others on the local network.
    NoMdns {
        /// The system's error.
        reason: String,
    },
    /// An address could not be reached. Reported once, and again at growing intervals.
    Unreachable {
        /// The peer that is dialed there; `None` where only the address is known.
        peer: Option<PeerId>,
        /// The address.
        address: Multiaddr,
        /// Why it could not be reached.
        trouble: DialFailure,
    },
    /// Something has changed between this peer and another one.
    Peer {
        /// The other peer.
        peer: PeerId,
        /// What has changed.
        change: PeerNotice,
    },
    /// How others reach this peer has changed.
    Reachability(Box<Reachability>),
    /// The answer of the router that was asked to forward a port.
    PortForwarding(PortForwarding),
    /// Others cannot reach this peer over QUIC. It can still dial them over QUIC.
    NoQuic {
        /// The system's error.
        reason: String,
    },
    /// This peer offers no direct lanes.
    NoDirectLanes {
        /// The system's error.
        reason: String,
    },
    /// A connection to the port for direct lanes was refused. Reported ever more rarely: at counts that are powers of two.
    HandshakeRefused {
        /// The machine that it came from.
        from: IpAddr,
        /// Why it was refused, in words.
        reason: String,
        /// How many connections were refused so far, with this one.
        count: u64,
    },
    /// Connections of one machine were refused, since too many that had not proved the secret were open. Reported at growing intervals.
    ConnectionsRefused {
        /// The machine that they came from.
        from: Machine,
        /// How many of its connections were refused since the last report.
        count: u64,
    },
    /// The event log cannot be written. Reported once, until it can be written again.
    NoEventLog {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The system allows this peer too few open files for the members of the run. Reported once.
    FewOpenFiles(FileShortage),
    /// The record that this peer needs to vote and to enter views cannot be written. Reported once, until it can be written again.
    RecordNotWritten {
        /// The system's error.
        reason: String,
    },
    /// The record can be written again.
    RecordWritten,
    /// The record for `peer invite` and `peer resume` cannot be written. Reported once, until it can be written again.
    RunRecordOutdated {
        /// The system's error.
        reason: String,
    },
    /// The run has a new secret, and this machine's record of the run still has the old one.
    OldSecretOnDisk {
        /// The system's error.
        reason: String,
    },
    /// `peer status` on this machine cannot ask this peer.
    NoStatus {
        /// Why, in words.
        reason: String,
    },
    /// The file that the user named is not the data file of the run, which the swarm is asked for instead.
    OtherDataFile {
        /// The file.
        path: PathBuf,
        /// The founder's name for the data file of the run.
        wanted: String,
    },
    /// This peer serves metrics for Prometheus.
    Metrics {
        /// Where it serves them.
        address: SocketAddr,
    },
}

/// A notice about one other peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerNotice {
    /// The connection runs over QUIC; before, there was none, or it ran over TCP.
    QuicInUse,
    /// The connection leads through a relay: control messages pass, tensors do not.
    Relayed,
    /// The connection no longer leads through a relay.
    NoLongerRelayed,
    /// The connection is lost, and the link waits for a new one.
    Reconnecting {
        /// Why the connection was lost, in words.
        reason: String,
    },
    /// The link has resumed after its connection was lost.
    Resumed,
    /// There is no direct lane, so frames go over libp2p. Reported once, until there is a direct lane again.
    DirectLaneFailed {
        /// Why there is none, in words.
        reason: String,
    },
    /// There is a direct lane, after [`DirectLaneFailed`](Self::DirectLaneFailed).
    DirectLaneRestored,
    /// Small messages to the peer arrive, and large packets do not. Reported once, until large ones arrive.
    LosesLargePackets,
    /// The peer, which holds the secret, sent bytes that are not a frame. The stream was closed.
    BadStream {
        /// What was wrong.
        reason: String,
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
            Self::NoMdns { reason } => write!(f, "cannot look for peers on the local network: {reason}"),
            Self::Unreachable { peer, address, trouble } => {
                write_unreachable(peer.as_ref(), address, trouble, f)
            }
            Self::Peer { peer, change } => change.write(peer, f),
            Self::Reachability(reachability) => write!(f, "{reachability}"),
            Self::PortForwarding(answer) => write!(f, "{answer}"),
            Self::NoQuic { reason } => write!(
                f,
                "cannot listen for QUIC ({reason}): peers whose network blocks TCP cannot reach this one"
            ),
            Self::NoDirectLanes { reason } => write!(
                f,
                "cannot listen for direct connections ({reason}): tensors to this peer go over libp2p, which is slower"
            ),
            Self::HandshakeRefused { from, reason, count } => write!(
                f,
                "refused a connection from {from} to the port for tensors: {reason} ({count} refused so far)"
            ),
            Self::ConnectionsRefused { from, count } => write!(
                f,
                "refused {count} connections from {from}: it opens many without proving the secret; other machines can still connect"
            ),
            Self::NoEventLog { path, reason } => write!(
                f,
                "cannot write the event log {} ({reason}): training continues without it, and writing is retried",
                path.display()
            ),
            Self::FewOpenFiles(FileShortage { limit, needed }) => write!(
                f,
                "this peer may have {limit} files open, and may need {needed} for the members of this run: raise the limit (`ulimit -n {needed}`), or connections to some of them will fail"
            ),
            Self::RecordNotWritten { reason } => write!(
                f,
                "cannot write to the data directory: {reason}. Until it is written, this peer takes no part in view changes. Writing is retried"
            ),
            Self::RecordWritten => write!(f, "the data directory can be written again"),
            Self::RunRecordOutdated { reason } => write!(
                f,
                "cannot save the run's present members on this machine: {reason}. Writing is retried"
            ),
            Self::OldSecretOnDisk { reason } => write!(
                f,
                "cannot save the run's new secret on this machine ({reason}): if this peer stops now, it needs a new invite to come back"
            ),
            Self::NoStatus { reason } => {
                write!(f, "`peer status` on this machine cannot ask this peer: {reason}")
            }
            Self::OtherDataFile { path, wanted } => write!(
                f,
                "{} is not the data file of this run; asking the swarm for `{wanted}`",
                path.display()
            ),
            Self::Metrics { address } => write!(f, "metrics at http://{address}/metrics"),
        }
    }
}

/// An address that could not be reached, which may be that of this peer itself.
fn write_unreachable(
    peer: Option<&PeerId>,
    address: &Multiaddr,
    trouble: &DialFailure,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match (peer.map(PeerId::short), trouble) {
        (Some(peer), DialFailure::Ourselves) => write!(
            f,
            "peer {peer} at {address}: {trouble}, so peer {peer} has stopped or moved: the run may have ended. Ask for a fresh invite (`peer invite` on a member's machine); still trying elsewhere"
        ),
        (None, DialFailure::Ourselves) => write!(f, "{address}: {trouble}; give the address of another peer"),
        (Some(peer), _) => write!(f, "peer {peer} at {address}: {trouble}; still trying"),
        (None, _) => write!(f, "{address}: {trouble}; still trying"),
    }
}

impl PeerNotice {
    /// Writes the sentence about `peer` that the user reads.
    fn write(&self, peer: &PeerId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = peer.short();
        match self {
            Self::QuicInUse => write!(f, "connected to peer {peer} over QUIC (UDP)"),
            Self::Relayed => {
                write!(
                    f,
                    "connected to peer {peer} through another peer only: control messages pass, tensors do not"
                )
            }
            Self::NoLongerRelayed => write!(f, "connected to peer {peer} without a relay now"),
            Self::Reconnecting { reason } => {
                write!(f, "lost the connection to peer {peer} ({reason}); reconnecting")
            }
            Self::Resumed => write!(f, "connected to peer {peer} again; no message was lost"),
            Self::DirectLaneFailed { reason } => write!(
                f,
                "no direct connection to peer {peer} for tensors ({reason}); they go over libp2p, which is slower; still trying"
            ),
            Self::DirectLaneRestored => write!(f, "tensors to peer {peer} go over a direct connection again"),
            Self::LosesLargePackets => write!(
                f,
                "small messages reach peer {peer}, and large packets get lost without a word: a router or a VPN on the way takes only smaller ones. Give this machine's network interface an MTU of 1280 (Linux: `ip link set dev INTERFACE mtu 1280`)"
            ),
            Self::BadStream { reason } => {
                write!(f, "peer {peer} sent bytes that are not a frame; this peer ignores them: {reason}")
            }
        }
    }
}
