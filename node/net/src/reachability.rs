//! Reachability: whether others can dial this peer, at which addresses, why not at others, and the one thing to do about it.
//!
//! A door cannot be tested from inside: somebody has to try it from outside. So this peer asks peers that it is connected with to dial
//! it back (`dial_back`), and puts their findings together (`survey`). A peer that cannot be dialed can have its router forward a port
//! (`gateway`); until then others speak to it through a relay (`circuits`).
//!
//! # Not here
//! When peers are asked, and which relays are used: `network/upkeep.rs`.

use std::net::IpAddr;

use serde::{Serialize, Serializer};

pub(super) use connectivity::{Connectivity, RELAYS_RESERVED_MAX};
pub(super) use cut_off::{CIRCUIT_WANTED_PROTOCOL, CutOff};
pub(super) use dial_back::{DIAL_BACK_PROTOCOL, DialBackOutcome, DialBackServer};
pub use gateway::PortForwarding;
pub(super) use gateway::{Gateway, Ports};
pub(super) use survey::Survey;

pub(super) mod circuits;
mod connectivity;
mod cut_off;
pub(super) mod dial_back;
pub(super) mod dial_rule;
mod gateway;
mod survey;
mod text;

/// How others reach this peer, as people and programs read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reachability {
    /// Whether others can dial this peer.
    pub state: ReachabilityState,
    /// The addresses that others are told, best first.
    pub announced: Vec<String>,
    /// The results of dialing each address; addresses at which this peer was reached come first.
    pub tried: Vec<Tried>,
    /// How many peers have tried.
    pub helpers: usize,
    /// Addresses at which others see this peer and that its machine does not have: a router's.
    pub seen_at: Vec<IpAddr>,
    /// The relays through which others can connect to this peer.
    #[serde(serialize_with = "as_texts")]
    pub relays: Vec<peergrad_protocol::PeerId>,
    /// How many peers were first connected through a relay, and are connected without one now.
    pub upgraded: usize,
    /// How many peers are connected through a relay only.
    pub relayed: usize,
    /// Peers that this one reaches through a relay only, for so long that neither can dial the other.
    #[serde(serialize_with = "as_texts")]
    pub cut_off: Vec<peergrad_protocol::PeerId>,
    /// The router's answer; `None` if no router was asked to forward a port.
    pub router: Option<PortForwarding>,
    /// The one thing that the user should do.
    pub advice: Advice,
}

fn as_texts<S: Serializer>(peers: &[peergrad_protocol::PeerId], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(peers.iter().map(ToString::to_string))
}

/// Whether others can dial a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReachabilityState {
    /// No peer has tried.
    Unknown,
    /// Each peer that tried can dial it.
    Reachable,
    /// Some peers that tried cannot dial it.
    Unreachable,
}

/// The results of dialing one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// The address.
    pub address: String,
    /// How many peers reached this one there.
    pub reached_by: usize,
    /// How many peers did not.
    pub failed_by: usize,
    /// Why the last of those did not, in words; `None` if all reached it.
    pub reason: Option<String>,
}

/// The one thing that the user should do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Nothing: others can dial this peer.
    Fine,
    /// Nothing yet: no peer has tried.
    Wait,
    /// Have the router forward a port, over TCP and UDP.
    Forward {
        /// The port.
        port: u16,
    },
    /// Open a port in the firewall, over TCP and UDP.
    Open {
        /// The port.
        port: u16,
    },
    /// Let this peer and those that it is cut off from reach each other.
    Connect,
    /// Correct the external address that the user gave.
    FixExternal {
        /// The address.
        address: String,
    },
}
