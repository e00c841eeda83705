//! The gateway: asks the router by UPnP to forward this peer's ports for as long as it runs.
//!
//! # How it works
//! - A router is looked for by multicast, asked for its address, and told to forward the port over TCP and UDP, under the same
//!   number or one of the next that is free; and the port for direct lanes, which has no other number.
//! - What it grants lasts an hour and is asked for again every ten minutes: a router that was restarted has forgotten it.
//! - At the end it is taken back. Of a peer that is killed it ends by itself.
//!
//! # Not here
//! Whether anybody gets through: others try (`reach.rs`). A router may well say yes and stand behind another one.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use igd_next::aio::Gateway as Router;
use igd_next::aio::tokio::{Tokio, search_gateway};
use igd_next::{AddPortError, PortMappingProtocol, SearchError, SearchOptions};
use libp2p::Multiaddr;
use serde::Serialize;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::link::words_of;
use super::listen::to_multiaddr;

/// What a router answered that was asked to forward this peer's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Forwarding {
    /// It forwards it.
    Done {
        /// From there, over TCP.
        address: String,
        /// Whether it also forwards the port for direct lanes.
        is_direct: bool,
    },
    /// It does not, or there is none.
    Refused {
        /// Why, in words.
        reason: String,
    },
}

impl Forwarding {
    /// From where it forwards.
    pub(super) fn address(&self) -> Option<Multiaddr> {
        match self {
            Self::Done { address, .. } => address.parse().ok(),
            Self::Refused { .. } => None,
        }
    }
}

impl fmt::Display for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done { address, is_direct: true } => {
                write!(f, "the router forwards {address} to this peer")
            }
            Self::Done { address, is_direct: false } => {
                write!(f, "the router forwards {address} to this peer, but not its port for direct lanes")
            }
            Self::Refused { reason } => write!(f, "the router forwards nothing to this peer: {reason}"),
        }
    }
}

/// What is asked of routers.
#[derive(Debug)]
pub(super) struct Gateway {
    port: u16,
    direct_port: Option<NonZeroU16>,
    /// What was granted last, and by whom.
    granted: Option<Grant>,
}

#[derive(Debug)]
struct Grant {
    router: Router<Tokio>,
    external_port: u16,
    is_direct: bool,
}

impl Gateway {
    /// For a peer that listens on these ports.
    pub(super) fn new(port: u16, direct_port: Option<NonZeroU16>) -> Self {
        Self { port, direct_port, granted: None }
    }

    /// Asks, or asks again, and says how long that holds.
    pub(super) async fn ask(&mut self) -> (Forwarding, Duration) {
        let asked = timeout(ROUND_MAX, self.round()).await;
        match asked.unwrap_or_else(|_| Err("it takes too long to answer".to_owned())) {
            Ok(done) => (done, RENEWED_AFTER),
            Err(reason) => (Forwarding::Refused { reason }, ASKED_AGAIN_AFTER),
        }
    }

    /// Takes everything back.
    pub(super) async fn close(self) {
        let Some(Grant { router, external_port, is_direct }) = self.granted else { return };
        let direct = self.direct_port.filter(|_| is_direct);
        let all = async {
            // What cannot be taken back ends within the hour.
            let _ = router.remove_port(PortMappingProtocol::TCP, external_port).await;
            let _ = router.remove_port(PortMappingProtocol::UDP, external_port).await;
            if let Some(port) = direct {
                let _ = router.remove_port(PortMappingProtocol::TCP, port.get()).await;
            }
        };
        let _ = timeout(CLOSING_MAX, all).await;
    }

    async fn round(&mut self) -> Result<Forwarding, String> {
        let router = search().await?;
        let external = router.get_external_ip().await.map_err(|error| format!("its address: {error}"))?;
        if is_behind_another(external) {
            return Err(format!("its own address is {external}, so it stands behind another router"));
        }
        let own = own_address(router.addr).await.map_err(|error| words_of(&error))?;
        let first = self.granted.as_ref().map_or(self.port, |grant| grant.external_port);
        let ports = std::iter::once(first).chain((1..=OTHERS_TRIED).filter_map(|n| self.port.checked_add(n)));
        let mut taken = None;
        for external_port in ports {
            match forward_both(&router, external_port, SocketAddr::new(own, self.port)).await {
                Ok(()) => {}
                Err(error @ AddPortError::PortInUse) => {
                    taken = Some(error);
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            }
            let is_direct = match self.direct_port {
                Some(port) => {
                    let port = port.get();
                    let local = SocketAddr::new(own, port);
                    forward(&router, PortMappingProtocol::TCP, port, local).await.is_ok()
                }
                None => false,
            };
            let address = to_multiaddr(external, external_port).to_string();
            self.granted = Some(Grant { router, external_port, is_direct });
            return Ok(Forwarding::Done { address, is_direct });
        }
        Err(taken.map_or_else(|| "no port is left".to_owned(), |error| error.to_string()))
    }
}

/// The router, or in words why there is none.
async fn search() -> Result<Router<Tokio>, String> {
    let mut last = String::new();
    // A question or its answer may get lost.
    for _ in 0..SEARCHES {
        let options = SearchOptions { timeout: Some(SEARCH_MAX), ..SearchOptions::default() };
        match search_gateway(options).await {
            Ok(router) => return Ok(router),
            Err(SearchError::NoResponseWithinTimeout) => last = "no router answers to UPnP".to_owned(),
            Err(SearchError::IoError(error)) => last = words_of(&error),
            Err(other) => last = other.to_string(),
        }
    }
    Err(last)
}

/// Over TCP, and over UDP under the same number.
async fn forward_both(router: &Router<Tokio>, external: u16, to: SocketAddr) -> Result<(), AddPortError> {
    forward(router, PortMappingProtocol::TCP, external, to).await?;
    match forward(router, PortMappingProtocol::UDP, external, to).await {
        Err(error @ AddPortError::PortInUse) => {
            let _ = router.remove_port(PortMappingProtocol::TCP, external).await;
            Err(error)
        }
        // A peer without QUIC is still a peer.
        _ => Ok(()),
    }
}

async fn forward(
    router: &Router<Tokio>,
    protocol: PortMappingProtocol,
    external: u16,
    to: SocketAddr,
) -> Result<(), AddPortError> {
    match router.add_port(protocol, external, to, LEASE_S, DESCRIPTION).await {
        // Such a router forgets it when it is told to, or is restarted.
        Err(AddPortError::OnlyPermanentLeasesSupported) => {
            router.add_port(protocol, external, to, 0, DESCRIPTION).await
        }
        answer => answer,
    }
}

/// The address of this machine that the router knows.
async fn own_address(router: SocketAddr) -> std::io::Result<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(router).await?;
    Ok(socket.local_addr()?.ip())
}

/// Whether an address outside a router is one that the rest of the world does not know.
fn is_behind_another(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || is_shared
        }
        IpAddr::V6(_) => false,
    }
}

/// What the router's list of forwarded ports calls it.
const DESCRIPTION: &str = "peergrad";
/// How long a router forwards a port that nobody asks for again.
const LEASE_S: u32 = 3600;
const RENEWED_AFTER: Duration = Duration::from_secs(600);
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Ports that are tried where others at home have the first.
const OTHERS_TRIED: u16 = 8;
const SEARCHES: u32 = 3;
const SEARCH_MAX: Duration = Duration::from_secs(2);
const ROUND_MAX: Duration = Duration::from_secs(30);
const CLOSING_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_behind_another_one_is_known_by_its_address() {
        for (address, expected) in [
            ("192.168.0.2", true),
            ("10.3.2.1", true),
            ("100.64.0.1", true),
            ("100.127.255.254", true),
            ("100.128.0.1", false),
            ("0.0.0.0", true),
            ("93.184.216.34", false),
        ] {
            assert_eq!(is_behind_another(address.parse().unwrap()), expected, "{address}");
        }
    }
}
