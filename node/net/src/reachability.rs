//! Reachability: whether others can dial this peer, at which addresses, why not at others, and the one thing to do about it.
//!
//! Nobody can see from inside whether a door opens from outside. So this peer asks peers that it is connected with to dial it back
//! ([`dial_back`]), and puts their findings together ([`survey`]). A peer that cannot be dialed can have its router forward a port
//! ([`gateway`]); until then others speak to it through a relay ([`circuits`]).
//!
//! # Not here
//! When peers are asked, and which relays are used: `network/connectivity.rs`.

use std::net::IpAddr;

use serde::{Serialize, Serializer};

pub(super) use connectivity::{Connectivity, RELAYS_RESERVED_MAX};
pub(super) use dial_back::{DIAL_BACK_PROTOCOL, DialBackOutcome, DialBackServer};
pub use gateway::PortForwarding;
pub(super) use gateway::{Gateway, Ports};
pub(super) use survey::Survey;

pub(super) mod circuits;
mod connectivity;
pub(super) mod dial_back;
mod gateway;
mod survey;
mod text;

/// What is known of how others reach this peer, for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reachability {
    /// Whether they do.
    pub state: ReachabilityState,
    /// The addresses that others are told, best first.
    pub announced: Vec<String>,
    /// What came of dialing each address, those where this peer was reached first.
    pub tried: Vec<Tried>,
    /// Peers that have tried.
    pub helpers: usize,
    /// Addresses at which others see this peer and that its machine does not have: those of a router.
    pub seen_at: Vec<IpAddr>,
    /// Peers through which it can be spoken to.
    #[serde(serialize_with = "as_texts")]
    pub relays: Vec<peergrad_protocol::PeerId>,
    /// Peers that were met through a relay, and are reached without one since.
    pub upgraded: usize,
    /// Peers that are reached through a relay only.
    pub relayed: usize,
    /// What the router says, if it was asked to forward a port.
    pub router: Option<PortForwarding>,
    /// The one thing to do.
    pub advice: Advice,
}

fn as_texts<S: Serializer>(peers: &[peergrad_protocol::PeerId], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(peers.iter().map(ToString::to_string))
}

/// Whether others can dial a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReachabilityState {
    /// Nobody has tried.
    Unknown,
    /// They can.
    Reachable,
    /// They cannot, or some cannot.
    Unreachable,
}

/// What came of dialing one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// The address.
    pub address: String,
    /// Peers that reached this one there.
    pub reached_by: usize,
    /// Peers that did not.
    pub failed_by: usize,
    /// Why not, in the words of the last one.
    pub reason: Option<String>,
}

/// The one thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Nothing.
    Fine,
    /// Wait for somebody who can try.
    Wait,
    /// Let a router pass on a port, over TCP and UDP.
    Forward {
        /// The port.
        port: u16,
    },
    /// Let a firewall pass a port, over TCP and UDP.
    Open {
        /// The port.
        port: u16,
    },
    /// The address that the user gave is not right.
    FixExternal {
        /// The address.
        address: String,
    },
}
