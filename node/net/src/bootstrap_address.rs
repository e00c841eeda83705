//! Bootstrap addresses: what a user types to name the peers through which to join.

use std::str::FromStr;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use peergrad_protocol::message::Contact;

use super::address::to_multiaddr;
use super::listen::DEFAULT_PORT;

/// A peer to try when joining.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootstrapAddress {
    /// From an invite: the peer's id and its addresses.
    Contact(Contact),
    /// An address alone. Any peer that answers there with the run's secret will do.
    Address(Multiaddr),
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address: expected HOST, HOST:PORT or /ip4/10.0.0.7/tcp/4747")]
pub struct NotAnAddress(String);

/// `HOST`, `HOST:PORT`, or a multiaddress with or without the peer's id.
impl FromStr for BootstrapAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let refused = || NotAnAddress(text.to_owned());
        if text.starts_with('/') {
            return text.parse().map(Self::Address).map_err(|_| refused());
        }
        if let Ok(socket) = text.parse::<std::net::SocketAddr>() {
            return Ok(Self::Address(to_multiaddr(socket.ip(), socket.port())));
        }
        if let Ok(ip) = text.parse::<std::net::IpAddr>() {
            return Ok(Self::Address(to_multiaddr(ip, DEFAULT_PORT)));
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| refused())?),
            None => (text, DEFAULT_PORT),
        };
        let is_host = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
        let is_label = |label: &str| label.len() <= LABEL_BYTES_MAX && label.chars().all(is_host);
        if host.is_empty() || host.len() > NAME_BYTES_MAX || !host.split('.').all(is_label) {
            return Err(refused());
        }
        Ok(Self::Address(Multiaddr::empty().with(Protocol::Dns(host.into())).with(Protocol::Tcp(port))))
    }
}

/// The longest part of a host name between two dots.
const LABEL_BYTES_MAX: usize = 63;
/// The longest host name.
const NAME_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_may_type_addresses_in_several_ways() {
        let address = |text: &str| match text.parse() {
            Ok(BootstrapAddress::Address(address)) => address.to_string(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(address("10.0.0.7"), "/ip4/10.0.0.7/tcp/4747");
        assert_eq!(address("10.0.0.7:9"), "/ip4/10.0.0.7/tcp/9");
        assert_eq!(address("[::1]:9"), "/ip6/::1/tcp/9");
        assert_eq!(address("lab-3.example.org"), "/dns/lab-3.example.org/tcp/4747");
        assert_eq!(address("/ip4/10.0.0.7/tcp/9"), "/ip4/10.0.0.7/tcp/9");
        for text in ["", "a b", "host:port", "/ip4/10.0.0.7/tpc/9", "host:99999", "x".repeat(64).as_str()] {
            assert!(text.parse::<BootstrapAddress>().is_err(), "{text}");
        }
    }
}
