//! The gateway: asks the router over UPnP to forward this peer's ports as long as the peer runs.
//!
//! # How it works
//! - It searches for the router by multicast, asks for the router's address, and has it forward the port over TCP and UDP,
//!   under the same number or the next free one. The port for direct lanes is forwarded under its own number only.
//! - A mapping lasts an hour and is renewed every ten minutes, as a router that was restarted has forgotten it.
//! - At the end the mappings are removed. If the peer is killed they expire, except on a router that does not support expiry.
//!
//! # Not here
//! Whether others get through: they test it themselves ([`survey`](super::survey)). A router may agree and be behind another
//! router.

use std::collections::BTreeSet;
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
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::address::{port_of, to_multiaddr};
use crate::link::error_text;

/// The answer of the router that was asked to forward this peer's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PortForwarding {
    /// The router forwards the port.
    Done {
        /// The router's address and TCP port.
        address: String,
        /// Whether it also forwards the port for direct lanes.
        is_direct: bool,
    },
    /// The router does not forward the port, or there is no router.
    Refused {
        /// Why, in words.
        reason: String,
    },
}

impl PortForwarding {
    /// The router's address and port; `None` if it forwards nothing.
    pub(crate) fn address(&self) -> Option<Multiaddr> {
        match self {
            Self::Done { address, .. } => address.parse().ok(),
            Self::Refused { .. } => None,
        }
    }
}

impl fmt::Display for PortForwarding {
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

/// The ports of this peer that the router should forward.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// The TCP port.
    pub(crate) tcp: u16,
    /// Whether QUIC listens on the UDP port of the same number.
    pub(crate) has_quic: bool,
    /// The TCP port for direct lanes; `None` if this peer offers none.
    pub(crate) direct: Option<NonZeroU16>,
}

/// The mappings of this peer, and the router that has them.
#[derive(Debug)]
pub(crate) struct Gateway {
    ports: Ports,
    /// The router that was asked last; `None` before the first was found.
    router: Option<Router<Tokio>>,
    /// The mappings that it has made.
    mappings: BTreeSet<PortMapping>,
    /// The last successful answer, and when it expires.
    granted: Option<(PortForwarding, Instant)>,
}

/// A port of a router that it forwards to this peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortMapping {
    is_tcp: bool,
    port: u16,
}

impl PortMapping {
    fn tcp(port: u16) -> Self {
        Self { is_tcp: true, port }
    }

    fn udp(port: u16) -> Self {
        Self { is_tcp: false, port }
    }

    fn protocol(self) -> PortMappingProtocol {
        if self.is_tcp { PortMappingProtocol::TCP } else { PortMappingProtocol::UDP }
    }
}

impl Gateway {
    /// A gateway for a peer that listens on these ports.
    pub(crate) fn new(ports: Ports) -> Self {
        Self { ports, router: None, mappings: BTreeSet::new(), granted: None }
    }

    /// Renews the mappings as long as `open` is held, reports each answer to `tell`, and then removes the mappings.
    pub(crate) async fn keep(mut self, mut open: watch::Receiver<()>, tell: impl Fn(PortForwarding)) {
        loop {
            let round = async {
                let (answer, pause) = self.ask().await;
                tell(answer);
                sleep(pause).await;
            };
            tokio::select! {
                () = round => {}
                _ = open.changed() => break,
            }
        }
        self.close().await;
    }

    /// Requests or renews the mappings. Returns the answer, and the pause until the next request.
    async fn ask(&mut self) -> (PortForwarding, Duration) {
        let asked = timeout(ROUND_MAX, self.round()).await;
        let reason = match asked.unwrap_or_else(|_| Err("it takes too long to answer".to_owned())) {
            Ok(done) => {
                self.granted = Some((done.clone(), Instant::now() + LEASE));
                return (done, RENEWED_AFTER);
            }
            Err(reason) => reason,
        };
        // A mapping holds until it expires.
        let held = self.granted.as_ref().filter(|(_, until)| Instant::now() < *until);
        let answer = held.map_or(PortForwarding::Refused { reason }, |(done, _)| done.clone());
        (answer, ASKED_AGAIN_AFTER)
    }

    async fn close(self) {
        let Some(router) = self.router else { return };
        let all = async {
            for mapping in self.mappings {
                // A mapping that cannot be removed expires within the hour.
                let _ = router.remove_port(mapping.protocol(), mapping.port).await;
            }
        };
        let _ = timeout(CLOSING_MAX, all).await;
    }

    async fn round(&mut self) -> Result<PortForwarding, String> {
        let router = search().await?;
        let external = router.get_external_ip().await.map_err(|error| format!("its address: {error}"))?;
        if is_behind_another(external) {
            return Err(format!("its own address is {external}, so it is behind another router"));
        }
        let own = own_address(router.addr).await.map_err(|error| error_text(&error))?;
        if self.router.as_ref() != Some(&router) {
            // The mappings of an earlier router cannot be removed any more.
            self.mappings.clear();
        }
        self.router = Some(router.clone());
        let last = self.granted.as_ref().and_then(|(answer, _)| port_of(&answer.address()?));
        let others = (1..=OTHERS_TRIED).filter_map(|n| self.ports.tcp.checked_add(n));
        let outside: Vec<u16> = std::iter::once(last.unwrap_or(self.ports.tcp)).chain(others).collect();
        let mut trouble = String::new();
        for outside in outside {
            match self.open_both(&router, outside, own).await {
                Ok(()) => {
                    let address = to_multiaddr(external, outside).to_string();
                    let is_direct = match self.ports.direct.map(NonZeroU16::get) {
                        Some(port) => self
                            .open(&router, PortMapping::tcp(port), SocketAddr::new(own, port))
                            .await
                            .is_ok(),
                        None => false,
                    };
                    return Ok(PortForwarding::Done { address, is_direct });
                }
                Err(error @ AddPortError::PortInUse) => trouble = error.to_string(),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(trouble)
    }

    /// Requests a mapping over TCP, and over UDP under the same number.
    async fn open_both(
        &mut self,
        router: &Router<Tokio>,
        outside: u16,
        own: IpAddr,
    ) -> Result<(), AddPortError> {
        let (to, tcp) = (SocketAddr::new(own, self.ports.tcp), PortMapping::tcp(outside));
        self.open(router, tcp, to).await?;
        if !self.ports.has_quic {
            return Ok(());
        }
        match self.open(router, PortMapping::udp(outside), to).await {
            Err(error @ AddPortError::PortInUse) => {
                // If it cannot be removed now, it expires.
                let _ = router.remove_port(tcp.protocol(), tcp.port).await;
                self.mappings.remove(&tcp);
                Err(error)
            }
            // TCP is enough.
            _ => Ok(()),
        }
    }

    async fn open(
        &mut self,
        router: &Router<Tokio>,
        mapping: PortMapping,
        to: SocketAddr,
    ) -> Result<(), AddPortError> {
        let ask =
            async |lease_s| router.add_port(mapping.protocol(), mapping.port, to, lease_s, DESCRIPTION).await;
        match ask(LEASE.as_secs() as u32).await {
            Err(AddPortError::OnlyPermanentLeasesSupported) => ask(0).await?,
            answer => answer?,
        }
        self.mappings.insert(mapping);
        Ok(())
    }
}

/// Finds the router; an error says in words why there is none.
async fn search() -> Result<Router<Tokio>, String> {
    let mut last = String::new();
    // A request or its answer may get lost.
    for _ in 0..SEARCHES {
        let options = SearchOptions { timeout: Some(SEARCH_MAX), ..SearchOptions::default() };
        match search_gateway(options).await {
            Ok(router) => return Ok(router),
            Err(SearchError::NoResponseWithinTimeout) => last = "no router answers to UPnP".to_owned(),
            Err(SearchError::IoError(error)) => last = error_text(&error),
            Err(other) => last = other.to_string(),
        }
    }
    Err(last)
}

/// The address of this machine in the router's network.
async fn own_address(router: SocketAddr) -> std::io::Result<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(router).await?;
    Ok(socket.local_addr()?.ip())
}

/// Whether an address of a router is one that the rest of the Internet cannot reach.
fn is_behind_another(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || is_shared
        }
        IpAddr::V6(_) => false,
    }
}

/// The name of the mappings in the router's list.
const DESCRIPTION: &str = "peergrad";
/// The lifetime of a mapping that is not renewed.
const LEASE: Duration = Duration::from_secs(3600);
const RENEWED_AFTER: Duration = Duration::from_secs(600);
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How many ports are tried if other peers at home have the first ones.
const OTHERS_TRIED: u16 = 8;
const SEARCHES: u32 = 3;
const SEARCH_MAX: Duration = Duration::from_secs(2);
const ROUND_MAX: Duration = Duration::from_secs(30);
const CLOSING_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_behind_another_router_is_recognized_by_its_address() {
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
