//! Commands: the messages to the actor, from the driver's side and from the lanes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use libp2p::Multiaddr;
use peergrad_protocol::message::Contact;
use tokio::sync::oneshot;

use super::status::NetworkStatus;
use crate::link::{
    Acknowledgement, LaneError, LaneKind, Link, OpenRequest, OpenResponse, SessionId, Verdict,
};
use crate::reachability::{DialBackOutcome, PortForwarding};

/// A message to the actor: a request of the driver or of another task, or a lane's report.
#[derive(Debug)]
pub(super) enum Command {
    /// Keep a link to this peer, and dial it until there is one.
    Dial(Contact),
    /// Send what is queued and a goodbye, and close the link.
    HangUp(peergrad_protocol::PeerId),
    /// Stop dialing this peer; an existing link stays.
    StopDialing(peergrad_protocol::PeerId),
    /// Stop dialing all peers but these.
    KeepWanted(Vec<peergrad_protocol::PeerId>),
    /// Close all connections to this peer, as a pulled cable would.
    Disconnect(peergrad_protocol::PeerId),
    /// Close all connections but those with these peers.
    KeepOnly(BTreeSet<peergrad_protocol::PeerId>),
    /// Report the links.
    Status(oneshot::Sender<NetworkStatus>),
    /// A lane with this peer reports to the actor, or asks it.
    Report(libp2p::PeerId, LaneReport),
    /// The findings of a peer that was asked to dial this one back; `None` if it did not answer.
    Checked(libp2p::PeerId, Option<Vec<(Multiaddr, DialBackOutcome)>>),
    /// A relay says that a circuit to this peer is wanted.
    CircuitWanted,
    /// The answer of the router that was asked to forward a port.
    AskedRouter(PortForwarding),
    /// A connection to the port for direct lanes was refused.
    HandshakeRefused {
        /// The machine that it came from.
        from: IpAddr,
        /// Why this peer refused it; `None` if the other end closed the connection first.
        reason: Option<String>,
    },
}

/// What a lane tells the actor, or asks it. A question whose sender is dropped has no answer, and its lane ends.
#[derive(Debug)]
pub(super) enum LaneReport {
    /// The other end opens a lane to this peer. The actor replies whether it may.
    OpenRequested { lane_kind: LaneKind, opening: OpenRequest, reply: oneshot::Sender<Admission> },
    /// The other end has answered this peer's opening. The actor replies with the link and the number of the lane on it.
    OpenAnswered { number: u64, answer: OpenResponse, reply: oneshot::Sender<(Arc<Link>, u64)> },
    /// The outgoing lane is direct now, or why it is not.
    Direct(Result<(), String>),
    /// An outgoing lane has ended.
    OutgoingEnded { number: u64, result: Result<(), LaneError> },
    /// An incoming lane has ended with an error.
    IncomingFailed { error: LaneError },
    /// The other end has said goodbye on this link.
    Goodbye { link: Arc<Link> },
    /// Everything on a link that is closing has been acknowledged, or its time is over.
    Drained { link: Arc<Link> },
}

/// The actor's reply to an opening.
#[derive(Debug)]
pub(super) enum Admission {
    /// Frames may come in on this lane of the link.
    Welcome { link: Arc<Link>, lane: (u64, Acknowledgement), session: SessionId },
    /// No frames may come, for this reason.
    Refused { verdict: Verdict, session: SessionId },
}
