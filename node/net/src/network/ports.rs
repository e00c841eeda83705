//! Ports: how a swarm begins to listen over TCP, and over QUIC at the UDP port of the same number.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, Swarm, TransportError as ListenTrouble};
use tokio::time::{Instant, sleep, timeout_at};

use crate::address::{over_quic, port_of, to_multiaddr};
use crate::link::{error_text, system_error};
use crate::listen::{self, Claim, Listen, ListenError};
use crate::transport::{SwarmBehaviour, SwarmBehaviourEvent};

/// The ports on which a swarm listens.
pub(super) struct OpenPorts {
    /// The addresses at which it listens over TCP, and over QUIC where it does.
    pub(super) listening: Vec<Multiaddr>,
    /// Other events of the swarm while the ports were opened: peers may have connected already.
    pub(super) meanwhile: Vec<SwarmEvent<SwarmBehaviourEvent>>,
    /// Whether it listens over QUIC, and if not, why.
    pub(super) quic: Result<(), String>,
}

/// Opens the ports, and waits until the system has named their addresses.
pub(super) async fn open_ports(
    swarm: &mut Swarm<SwarmBehaviour>,
    listen: &Listen,
    claim: &mut Claim,
) -> Result<OpenPorts, ListenError> {
    let mut port = claim.port;
    let mut opened = OpenPorts { listening: Vec::new(), meanwhile: Vec::new(), quic: Ok(()) };
    for (index, address) in listen.addresses().into_iter().enumerate() {
        match swarm.listen_on(to_multiaddr(address, port)) {
            Ok(_) => {}
            // A machine without IPv6 listens on IPv4 only.
            Err(_) if index > 0 => continue,
            Err(ListenTrouble::Other(error)) => {
                return Err(listen::refused(SocketAddr::new(address, port), error));
            }
            Err(ListenTrouble::MultiaddrNotSupported(_)) => return Err(ListenError::NoAddress),
        }
        if index == 0 {
            let deadline = Instant::now() + FIRST_ADDRESS;
            while opened.listening.is_empty() {
                let event = timeout_at(deadline, swarm.select_next_some()).await;
                opened.note(event.map_err(|_| ListenError::NoAddress)?);
            }
            // IPv6 gets the port that IPv4 was given.
            port = port_of(&opened.listening[0]).unwrap_or(port);
        }
    }
    opened.quic = open_quic(swarm, listen, claim, port).await;
    let settled = Instant::now() + MORE_ADDRESSES;
    while let Ok(event) = timeout_at(settled, swarm.select_next_some()).await {
        opened.note(event);
    }
    Ok(opened)
}

/// Opens the UDP port of the same number for QUIC. An error says in words why it cannot be used.
async fn open_quic(
    swarm: &mut Swarm<SwarmBehaviour>,
    listen: &Listen,
    claim: &mut Claim,
    port: u16,
) -> Result<(), String> {
    claim.hand_over();
    let mut trouble = listen_over_quic(swarm, listen, port);
    if let Err(ListenTrouble::Other(error)) = &trouble
        && system_error(error).kind() == io::ErrorKind::AddrInUse
    {
        // Another peer that looks for a free port releases this one in a moment, since it cannot have the TCP port.
        sleep(PASSING_BY).await;
        trouble = listen_over_quic(swarm, listen, port);
    }
    trouble.map_err(|trouble| {
        claim.take_back(SocketAddr::new(listen.addresses()[0], port));
        match trouble {
            ListenTrouble::Other(error) => format!("UDP port {port}: {}", error_text(&error)),
            ListenTrouble::MultiaddrNotSupported(address) => format!("{address} is not supported"),
        }
    })
}

fn listen_over_quic(
    swarm: &mut Swarm<SwarmBehaviour>,
    listen: &Listen,
    port: u16,
) -> Result<(), ListenTrouble<io::Error>> {
    let addresses = listen.addresses().into_iter().filter_map(|ip| over_quic(&to_multiaddr(ip, port)));
    for (index, address) in addresses.enumerate() {
        match swarm.listen_on(address) {
            Err(trouble) if index == 0 => return Err(trouble),
            // A machine without IPv6 listens on IPv4 only.
            _ => {}
        }
    }
    Ok(())
}

impl OpenPorts {
    fn note(&mut self, event: SwarmEvent<SwarmBehaviourEvent>) {
        match event {
            SwarmEvent::NewListenAddr { address, .. } => self.listening.push(address),
            other => self.meanwhile.push(other),
        }
    }
}

/// How long the system may take to name the first address.
const FIRST_ADDRESS: Duration = Duration::from_secs(5);
/// How long another peer that looks for a free port may hold this one.
const PASSING_BY: Duration = Duration::from_millis(100);
/// The system names the addresses of all interfaces in one burst; later ones are announced when they come.
const MORE_ADDRESSES: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    use peergrad_protocol::invite::Secret;

    use super::*;
    use crate::Identity;
    use crate::keyring::Keyring;
    use crate::listen::Port;
    use crate::transport::{self, Mdns};

    #[tokio::test]
    async fn quic_listens_unless_the_udp_port_is_taken_and_the_error_says_so() {
        let listen = Listen { address: Some(Ipv4Addr::LOCALHOST.into()), port: Port::Any };
        let mut swarm =
            transport::swarm(&Identity::generate(), &Keyring::new(Secret([1; 32])), Mdns::Off).unwrap().0;
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let port = address.port();
        let mut claim = listen.claim().unwrap();
        let other = UdpSocket::bind(address).unwrap();
        let reason = open_quic(&mut swarm, &listen, &mut claim, port).await.unwrap_err();
        assert_eq!(reason, format!("UDP port {port}: another program uses it"));
        drop(other);
        open_quic(&mut swarm, &listen, &mut claim, port).await.unwrap();
        UdpSocket::bind(address).unwrap_err();
    }
}
