//! The dial rule: which IP addresses this peer dials because another peer names them.
//!
//! A peer that dials whatever it is told would look into its own machine and its own network for others. So it dials public addresses,
//! and of the rest only those of the place where the other peer is seen.
//!
//! # Reading
//! AutoNAT has the same rule, more strictly: a helper dials only the IP address that the request comes from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use crate::address::{Carrier, to_multiaddr};

/// From where an IP address can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Nowhere: it does not name one machine.
    None,
    /// The same machine.
    Loopback,
    /// The same cable or radio.
    Link,
    /// The same private network.
    Private,
    /// Everywhere.
    Public,
}

/// Whether a peer that is seen at `asker` may have this peer dial `target`. `asker` is `None` if the peer comes through a relay.
pub(super) fn may_dial_for(asker: Option<IpAddr>, target: IpAddr) -> bool {
    let (target, asker) = (target.to_canonical(), asker.map(|ip| ip.to_canonical()));
    match (Scope::of(target), asker) {
        (Scope::None, _) => false,
        (Scope::Public, _) => true,
        (_, None) => false,
        (Scope::Loopback, Some(asker)) => asker.is_loopback(),
        (Scope::Link, Some(asker)) => asker == target,
        (Scope::Private, Some(asker)) => network_of(asker) == network_of(target),
    }
}

/// Whether an address that others name for a peer may lead there. The peer was `seen_at` these addresses, and this one has the addresses
/// `own`.
///
/// An address of loopback leads to a peer on the same machine only, and a link-local one to the peer that is seen there. A peer
/// that has no other addresses itself believes in loopback: then all peers are on its machine. A name is not resolved here.
pub(crate) fn may_lead_there(address: &Multiaddr, seen_at: &[IpAddr], own: &[IpAddr]) -> bool {
    let is_plausible = |ip: IpAddr| match Scope::of(ip) {
        Scope::None => false,
        Scope::Loopback => {
            own.iter().all(IpAddr::is_loopback)
                || seen_at.iter().any(|seen| seen.is_loopback() || own.contains(seen))
        }
        Scope::Link => seen_at.contains(&ip),
        Scope::Private | Scope::Public => true,
    };
    address.iter().all(|part| match part {
        Protocol::Ip4(ip) => is_plausible(ip.into()),
        Protocol::Ip6(ip) => is_plausible(IpAddr::from(ip).to_canonical()),
        _ => true,
    })
}

/// A host and a port, and nothing else: the form of an address that is dialed for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// An IP address or a name.
    host: String,
    port: u16,
    carrier: Carrier,
}

impl Endpoint {
    /// Reads an address; `None` if it has another form.
    pub(super) fn of(address: &Multiaddr) -> Option<Self> {
        let mut parts = address.iter();
        let host = match parts.next()? {
            Protocol::Ip4(ip) => ip.to_string(),
            Protocol::Ip6(ip) => ip.to_string(),
            Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => name.into_owned(),
            _ => return None,
        };
        let (port, carrier) = match (parts.next()?, parts.next(), parts.next()) {
            (Protocol::Tcp(port), None, None) => (port, Carrier::Tcp),
            (Protocol::Udp(port), Some(Protocol::QuicV1), None) => (port, Carrier::Quic),
            _ => return None,
        };
        Some(Self { host, port, carrier })
    }

    pub(super) fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// The addresses behind the name that may be dialed for a peer that is seen at `asker`, a few at most.
    pub(super) async fn permitted(&self, asker: Option<IpAddr>) -> Vec<Multiaddr> {
        let Ok(found) = tokio::net::lookup_host((self.host.as_str(), self.port)).await else {
            return Vec::new();
        };
        let permitted = found.map(|address| address.ip()).filter(|ip| may_dial_for(asker, *ip));
        let to_address = |ip: IpAddr| match self.carrier {
            Carrier::Tcp => to_multiaddr(ip, self.port),
            Carrier::Quic => Multiaddr::from(ip).with(Protocol::Udp(self.port)).with(Protocol::QuicV1),
        };
        permitted.map(to_address).take(ADDRESSES_OF_A_NAME_MAX).collect()
    }
}

impl Scope {
    fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::of_v4(ip),
            IpAddr::V6(ip) => Self::of_v6(ip),
        }
    }

    fn of_v4(ip: Ipv4Addr) -> Self {
        match ip.octets() {
            [0, ..] | [224..=255, ..] => Self::None,
            [127, ..] => Self::Loopback,
            [169, 254, ..] => Self::Link,
            // Shared by the customers of a provider (RFC 6598).
            [100, 64..=127, ..] => Self::Private,
            _ if ip.is_private() => Self::Private,
            _ => Self::Public,
        }
    }

    fn of_v6(ip: Ipv6Addr) -> Self {
        match ip.segments() {
            _ if ip.is_loopback() => Self::Loopback,
            _ if ip.is_unspecified() || ip.is_multicast() => Self::None,
            [0xfe80..=0xfebf, ..] => Self::Link,
            [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Self::Private,
            // A translator turns the rest into an IPv4 address (RFC 6052, RFC 3056).
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
                Self::of_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
            }
            _ => Self::Public,
        }
    }
}

/// The first 24 bits of an IPv4 address, or 64 of an IPv6 address.
fn network_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & (!0 << 8)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (!0 << 64)).into(),
    }
}

/// A name may stand for many machines.
const ADDRESSES_OF_A_NAME_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn may(asker: &str, target: &str) -> bool {
        may_dial_for(Some(ip(asker)), ip(target))
    }

    #[test]
    fn public_addresses_are_dialed_for_everybody() {
        for target in ["203.0.113.1", "8.8.8.8", "2001:db8::1", "64:ff9b::808:808"] {
            assert!(may("198.51.100.7", target) && may_dial_for(None, ip(target)), "{target}");
        }
    }

    #[test]
    fn addresses_of_this_machine_and_its_network_are_dialed_only_for_peers_that_are_there() {
        let own = [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "169.254.169.254",
            "fe80::1",
            "10.79.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "fd00::1",
        ];
        let disguised = ["::ffff:127.0.0.1", "::ffff:10.79.0.1", "64:ff9b::7f00:1", "2002:a00:1::1"];
        for target in own.into_iter().chain(disguised) {
            assert!(!may("203.0.113.1", target) && !may_dial_for(None, ip(target)), "{target}");
        }
        assert!(may("127.0.0.1", "127.0.0.2") && may("::1", "127.0.0.1"), "on one machine");
        assert!(may("10.79.0.3", "10.79.0.3") && may("10.79.0.3", "10.79.0.9"), "in one network");
        assert!(!may("10.79.0.3", "10.79.1.3") && !may("10.79.0.3", "192.168.0.3"), "in another one");
        assert!(may("fd00::1", "fd00::2") && !may("fd00::1", "fd00:0:0:1::2"));
        assert!(may("fe80::1", "fe80::1") && !may("fe80::1", "fe80::2"), "one link may be another link");
        assert!(!may("10.79.0.3", "127.0.0.1") && !may("127.0.0.1", "10.79.0.3"));
    }

    #[test]
    fn addresses_that_name_no_machine_are_never_dialed() {
        for target in ["0.0.0.0", "0.0.0.7", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::", "ff02::1"] {
            assert!(!may(target, target), "{target}");
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port_and_nothing_else() {
        let read = |text: &str| Endpoint::of(&text.parse().unwrap());
        assert!(read("/ip4/10.0.0.7/tcp/9").is_some_and(|endpoint| endpoint.carrier() == Carrier::Tcp));
        assert!(read("/dns4/example.org/udp/9/quic-v1").is_some());
        let peer = crate::Identity::generate().keypair().public().to_peer_id();
        for other in [
            "/ip4/203.0.113.1/tcp/9/ip4/127.0.0.1/tcp/22".to_owned(),
            format!("/ip4/203.0.113.1/tcp/9/p2p/{peer}/p2p-circuit"),
            "/dnsaddr/example.org".to_owned(),
            "/unix/socket".to_owned(),
        ] {
            assert_eq!(read(&other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_the_addresses_behind_it() {
        for address in ["/dns/localhost/tcp/9", "/dns4/localhost/udp/9/quic-v1", "/ip4/127.0.0.1/tcp/9"] {
            let endpoint = Endpoint::of(&address.parse().unwrap()).unwrap();
            assert_eq!(endpoint.permitted(Some(ip("10.79.0.3"))).await, [], "{address}");
            assert!(!endpoint.permitted(Some(ip("127.0.0.1"))).await.is_empty(), "{address}");
        }
    }

    #[test]
    fn loopback_and_link_local_addresses_lead_only_to_peers_that_are_there() {
        let may = |address: &str, seen_at: &[&str], own: &[&str]| {
            let all = |texts: &[&str]| texts.iter().map(|text| ip(text)).collect::<Vec<_>>();
            may_lead_there(&address.parse().unwrap(), &all(seen_at), &all(own))
        };
        let (loopback, link) = ("/ip4/127.0.0.1/tcp/26111", "/ip6/fe80::1/tcp/9");
        let own = ["127.0.0.1", "10.79.0.1"];
        assert!(!may(loopback, &["10.79.0.3"], &own) && !may(loopback, &[], &own));
        assert!(may(loopback, &["127.0.0.1"], &own) && may(loopback, &["10.79.0.1"], &own), "it is here");
        assert!(may(loopback, &[], &["127.0.0.1", "::1"]), "there is no other machine");
        assert!(!may(link, &["10.79.0.3"], &own) && may(link, &["fe80::1"], &own));
        assert!(may("/ip4/10.79.0.9/tcp/9", &[], &own) && may("/dns/example.org/tcp/9", &[], &own));
        assert!(!may("/ip4/0.0.0.0/tcp/9", &[], &own));
        assert!(!may("/ip4/203.0.113.1/tcp/9/ip4/127.0.0.1/tcp/22", &[], &own));
    }
}
