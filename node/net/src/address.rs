//! Addresses: what can be read from a multiaddress, how to build one, and short lists of them.
//!
//! A peer announces one TCP address for each circuit to it. Two more follow from it and are not announced: QUIC is at the UDP
//! port of the same number, and the port for direct lanes is [`DIRECT_PORT_OFFSET`] above it.

use std::net::IpAddr;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use peergrad_protocol::limits::ADDRESSES_MAX;

/// The transport that a libp2p connection runs over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Carrier {
    #[default]
    Tcp,
    Quic,
}

impl Carrier {
    /// The transport of an address.
    pub(super) fn of(address: &Multiaddr) -> Self {
        if address.iter().any(|part| part == Protocol::QuicV1) { Self::Quic } else { Self::Tcp }
    }

    /// The other transport.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Tcp => Self::Quic,
            Self::Quic => Self::Tcp,
        }
    }
}

/// An IP address and TCP port as libp2p writes them.
pub(super) fn to_multiaddr(address: IpAddr, port: u16) -> Multiaddr {
    Multiaddr::from(address).with(Protocol::Tcp(port))
}

/// The TCP port in an address.
pub(super) fn port_of(address: &Multiaddr) -> Option<u16> {
    address.iter().find_map(|part| match part {
        Protocol::Tcp(port) => Some(port),
        _ => None,
    })
}

/// The host in an address, as an IP address or a name; `None` for an address through a relay, which names the relay's host.
pub(super) fn host_of(address: &Multiaddr) -> Option<String> {
    if address.iter().any(|part| part == Protocol::P2pCircuit) {
        return None;
    }
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(ip.to_string()),
        Protocol::Ip6(ip) => Some(ip.to_string()),
        Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => Some(name.into_owned()),
        _ => None,
    })
}

/// The first IP address in an address; of one through a relay, the relay's. `None` for a name.
pub(super) fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    })
}

/// The IP addresses of this machine among those at which this peer listens.
pub(super) fn own_ips<'a>(listening: impl Iterator<Item = &'a Multiaddr>) -> Vec<IpAddr> {
    listening.filter(|address| !is_relayed(address)).filter_map(ip_of).collect()
}

/// The QUIC address of a peer that has this TCP address; `None` for an address of another kind.
pub(super) fn over_quic(address: &Multiaddr) -> Option<Multiaddr> {
    let mut parts = address.iter();
    let (host, Protocol::Tcp(port)) = (parts.next()?, parts.next()?) else { return None };
    let is_host = matches!(
        host,
        Protocol::Ip4(_) | Protocol::Ip6(_) | Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_)
    );
    (is_host && parts.next().is_none())
        .then(|| Multiaddr::from(host).with(Protocol::Udp(port)).with(Protocol::QuicV1))
}

/// The TCP address that belongs to a QUIC address; any other address unchanged.
pub(super) fn over_tcp(address: Multiaddr) -> Multiaddr {
    let mut parts = address.iter();
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(host), Some(Protocol::Udp(port)), Some(Protocol::QuicV1), None) => {
            Multiaddr::from(host).with(Protocol::Tcp(port))
        }
        _ => address,
    }
}

/// Whether an address leads through a relay.
pub(super) fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// The relay that an address leads through.
pub(super) fn relay_of(address: &Multiaddr) -> Option<PeerId> {
    is_relayed(address).then(|| {
        address.iter().find_map(|part| match part {
            Protocol::P2p(peer) => Some(peer),
            _ => None,
        })
    })?
}

/// The address at which a peer can be reached through the relay at `address`.
pub(super) fn through(relay: PeerId, address: Multiaddr) -> Multiaddr {
    address.with(Protocol::P2p(relay)).with(Protocol::P2pCircuit)
}

/// Adds an address to a list of at most [`ADDRESSES_MAX`]; a full list drops its oldest address.
pub(super) fn remember(addresses: &mut Vec<Multiaddr>, address: Multiaddr) {
    if addresses.contains(&address) {
        return;
    }
    if addresses.len() == ADDRESSES_MAX {
        addresses.remove(0);
    }
    addresses.push(address);
}

/// Parses addresses that other peers sent, without the peer id at their end. Texts that are no address are left out.
pub(super) fn parse_all(texts: &[String]) -> Vec<Multiaddr> {
    texts.iter().filter_map(|text| text.parse().ok()).map(without_peer).collect()
}

/// The address without the peer id at its end.
pub(super) fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    address
}

/// The distance from the libp2p port to the port for direct lanes. It is large, so that peers which take the next free port
/// do not collide with it.
pub(super) const DIRECT_PORT_OFFSET: u16 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_quic_address_of_a_peer_follows_from_its_tcp_address() {
        for host in ["ip4/10.0.0.7", "ip6/2001:db8::1", "dns/example.org", "dns4/example.org"] {
            let (tcp, quic) =
                (address(&format!("/{host}/tcp/9")), address(&format!("/{host}/udp/9/quic-v1")));
            assert_eq!(over_quic(&tcp), Some(quic.clone()));
            assert_eq!((Carrier::of(&tcp), Carrier::of(&quic)), (Carrier::Tcp, Carrier::Quic));
            assert_eq!((over_tcp(quic.clone()), over_tcp(tcp.clone())), (tcp.clone(), tcp));
            assert_eq!(over_quic(&quic), None);
        }
        for other in ["/ip4/10.0.0.7/tcp/9/ws", "/ip4/10.0.0.7/udp/9", "/unix/a"] {
            assert_eq!((over_quic(&address(other)), over_tcp(address(other))), (None, address(other)));
        }
    }

    #[test]
    fn the_relay_of_an_address_is_not_the_peer_behind_it() {
        let [relay, peer] = [1, 2].map(|_| Identity::generate().keypair().public().to_peer_id());
        let at: Multiaddr = "/ip4/203.0.113.7/tcp/4747".parse().unwrap();
        let circuit = through(relay, at.clone());
        assert_eq!(circuit.to_string(), format!("/ip4/203.0.113.7/tcp/4747/p2p/{relay}/p2p-circuit"));
        for address in [circuit.clone(), circuit.with(Protocol::P2p(peer))] {
            assert!(is_relayed(&address));
            assert_eq!(relay_of(&address), Some(relay));
        }
        assert_eq!((is_relayed(&at), relay_of(&at.with(Protocol::P2p(peer)))), (false, None));
    }

    #[test]
    fn a_direct_lane_leads_to_an_ip_address_or_name_but_never_to_a_relay() {
        let host = |address: &str| host_of(&address.parse().unwrap());
        assert_eq!(host("/ip4/10.0.0.7/tcp/9").as_deref(), Some("10.0.0.7"));
        assert_eq!(host("/ip6/2001:db8::1/tcp/9").as_deref(), Some("2001:db8::1"));
        assert_eq!(host("/dns4/example.org/tcp/9").as_deref(), Some("example.org"));
        assert_eq!(host("/ip4/10.0.0.7/tcp/9/p2p-circuit"), None);
    }
}
