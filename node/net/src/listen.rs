//! Listening: the port, and the addresses to announce.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use peergrad_protocol::limits::ADDRESSES_MAX;

use super::address::{Carrier, is_relayed};
use super::link::system_error;

/// The port that a peer listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = peergrad_config::specification::run_file::PORT_DEFAULT;

/// The address and port to listen on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// The address of this machine to listen on; `None` for all its addresses, IPv4 and IPv6.
    pub address: Option<IpAddr>,
    /// The port to listen on.
    pub port: Port,
}

/// A choice of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// This port, or any free one if it is taken.
    Preferred(u16),
    /// This port only.
    Exactly(u16),
    /// Any free port.
    Any,
}

/// The default port, or any free one if it is taken.
impl Default for Port {
    fn default() -> Self {
        Self::Preferred(DEFAULT_PORT)
    }
}

/// The peer cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program listens on the port.
    #[error("port {port} is in use (TCP or UDP): pass --port N or stop the other program")]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// The user may not open this port; ports below 1024 usually require the administrator.
    #[error("you may not open port {port}: pass --port N with N of 1024 or more")]
    PortForbidden {
        /// The port.
        port: u16,
    },
    /// The system refuses the address: usually, it is not an address of this machine.
    #[error("cannot listen on {address}: {cause}; choose an address of this machine")]
    Unusable {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        cause: io::Error,
    },
    /// The sockets are open, but the system named no address for them.
    #[error("this machine has no network address to listen on; check its network")]
    NoAddress,
}

/// A port that this peer holds as long as this value lives.
///
/// libp2p shares its listening ports (`SO_REUSEPORT`): a second peer of the same user could listen on the same port, and the
/// system would distribute connections between both. So the peer first takes the UDP port of the same number, which is never
/// shared, as a token, and tries the TCP port without sharing. Once QUIC listens at the UDP port, QUIC's socket is the token.
#[derive(Debug)]
pub(super) struct Claim {
    /// The port; 0 lets the system choose a free one.
    pub(super) port: u16,
    token: Option<UdpSocket>,
}

impl Claim {
    /// Releases the UDP port, so that QUIC can listen there.
    pub(super) fn hand_over(&mut self) {
        self.token = None;
    }

    /// Takes the UDP port back if possible, since QUIC does not listen there.
    pub(super) fn take_back(&mut self, address: SocketAddr) {
        self.token = UdpSocket::bind(address).ok();
    }
}

impl Listen {
    /// Takes the port.
    pub(super) fn claim(&self) -> Result<Claim, ListenError> {
        let any = Claim { port: 0, token: None };
        match self.port {
            Port::Any | Port::Exactly(0) => Ok(any),
            Port::Exactly(port) => self.claim_port(port),
            Port::Preferred(port) => match self.claim_port(port) {
                Err(ListenError::PortInUse { .. }) => Ok(any),
                claimed => claimed,
            },
        }
    }

    /// The addresses to listen on. The peer must be able to listen on the first; the others are optional.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        match self.address {
            Some(address) => vec![address],
            None => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        }
    }

    fn claim_port(&self, port: u16) -> Result<Claim, ListenError> {
        let address = SocketAddr::new(self.addresses()[0], port);
        let token = match UdpSocket::bind(address) {
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => return Err(refused(address, cause)),
            // If UDP is unavailable, or the address is wrong, the TCP port shows whether the peer can do without.
            token => token.ok(),
        };
        TcpListener::bind(address).map_err(|cause| refused(address, cause))?;
        Ok(Claim { port, token })
    }
}

pub(super) fn refused(address: SocketAddr, cause: io::Error) -> ListenError {
    let port = address.port();
    match system_error(&cause).kind() {
        io::ErrorKind::AddrInUse => ListenError::PortInUse { port },
        io::ErrorKind::PermissionDenied => ListenError::PortForbidden { port },
        _ => ListenError::Unusable { address, cause },
    }
}

/// The listening addresses that another machine can use.
pub(super) fn beyond_this_machine(listening: &[Multiaddr]) -> Vec<Multiaddr> {
    let is_useful = |address: &&Multiaddr| reach(address).is_some_and(|reach| reach < LOOPBACK);
    listening.iter().filter(is_useful).cloned().collect()
}

/// The addresses to announce, best first: those that the user gave, then IPv4, then IPv6; loopback only if there is nothing
/// else. QUIC addresses are left out, since they follow from the TCP ones.
pub(super) fn announced(external: &[Multiaddr], listening: &[Multiaddr]) -> Vec<String> {
    let mut worth: Vec<(u8, &Multiaddr)> =
        listening.iter().filter_map(|address| Some((reach(address)?, address))).collect();
    worth.sort_by_key(|(reach, _)| *reach);
    let is_reachable = !external.is_empty() || worth.iter().any(|(reach, _)| *reach < LOOPBACK);
    worth.retain(|(reach, _)| !is_reachable || *reach < LOOPBACK);
    let mut texts: Vec<String> = Vec::new();
    for address in external.iter().chain(worth.into_iter().map(|(_, address)| address)) {
        let text = address.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.truncate(ADDRESSES_MAX);
    texts
}

/// The rank of an address, smaller being better; `None` if no other machine can use it, or it need not be announced.
fn reach(address: &Multiaddr) -> Option<u8> {
    if Carrier::of(address) == Carrier::Quic || is_relayed(address) {
        return None;
    }
    match address.iter().next()? {
        Protocol::Ip4(ip) if ip.is_unspecified() => None,
        Protocol::Ip4(ip) if ip.is_loopback() => Some(LOOPBACK),
        Protocol::Ip4(ip) if ip.is_link_local() => None,
        Protocol::Ip4(_) => Some(0),
        Protocol::Ip6(ip) if ip.is_unspecified() || ip.is_unicast_link_local() => None,
        Protocol::Ip6(ip) if ip.is_loopback() => Some(LOOPBACK + 1),
        Protocol::Ip6(_) => Some(1),
        _ => None,
    }
}

const LOOPBACK: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(port: Port) -> Listen {
        Listen { address: Some(Ipv4Addr::LOCALHOST.into()), port }
    }

    #[test]
    fn a_port_in_use_is_an_error_that_says_what_to_do() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let error = listen(Port::Exactly(port)).claim().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("port {port} is in use (TCP or UDP): pass --port N or stop the other program")
        );
    }

    #[test]
    fn an_address_of_another_machine_is_not_reported_as_a_port_in_use() {
        let listen = Listen { address: Some("192.0.2.1".parse().unwrap()), port: Port::Exactly(4747) };
        let error = listen.claim().unwrap_err();
        assert!(matches!(error, ListenError::Unusable { .. }), "{error}");
    }

    #[test]
    fn two_peers_cannot_claim_one_port() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let first = listen(Port::Exactly(free)).claim().unwrap();
        assert!(matches!(listen(Port::Exactly(free)).claim(), Err(ListenError::PortInUse { .. })));
        drop(first);
        listen(Port::Exactly(free)).claim().unwrap();
    }

    #[test]
    fn a_port_is_handed_over_and_taken_back() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut claim = listen(Port::Exactly(address.port())).claim().unwrap();
        claim.hand_over();
        drop(UdpSocket::bind(address).unwrap());
        claim.take_back(address);
        UdpSocket::bind(address).unwrap_err();
    }

    #[test]
    fn the_error_of_the_system_is_found_inside_its_wrappers() {
        let wrapped = io::Error::other(io::Error::other(io::Error::from(io::ErrorKind::AddrInUse)));
        let refusal = refused("127.0.0.1:9".parse().unwrap(), wrapped);
        assert!(matches!(refusal, ListenError::PortInUse { port: 9 }), "{refusal}");
    }

    #[test]
    fn only_addresses_that_others_can_use_are_announced() {
        let parse =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Multiaddr>>();
        let loopback = ["/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1"];
        assert_eq!(announced(&[], &parse(&loopback)), loopback);

        let all =
            ["/ip6/2001:db8::1/tcp/1", "/ip6/fe80::1/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.7/tcp/1"];
        assert_eq!(announced(&[], &parse(&all)), ["/ip4/10.0.0.7/tcp/1", "/ip6/2001:db8::1/tcp/1"]);
        let both = ["/ip4/10.0.0.7/udp/1/quic-v1", "/ip4/10.0.0.7/tcp/1", "/ip6/2001:db8::1/udp/1/quic-v1"];
        assert_eq!(announced(&[], &parse(&both)), ["/ip4/10.0.0.7/tcp/1"]);
        let external = parse(&["/dns/example.org/tcp/9"]);
        assert_eq!(announced(&external, &parse(&loopback)), ["/dns/example.org/tcp/9"]);
    }
}
