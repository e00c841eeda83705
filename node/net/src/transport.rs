//! The transport: how libp2p is put together. It is TCP with Noise and yamux, with the run's secret in Noise's prologue, or
//! QUIC with a proof of the secret.
//!
//! A stranger fails in the handshake, before any protocol begins, so only holders of the secret see the rest. Nothing in the
//! handshake names the run: neither the protocol nor the agent version nor the discovery.

use std::io;
use std::num::NonZeroU8;
use std::time::Duration;

use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{NetworkBehaviour, StreamProtocol};
use libp2p::{PeerId, Swarm, SwarmBuilder, Transport, dcutr, identify, mdns, noise, ping, relay, tcp, yamux};
use peergrad_protocol::limits::MEMBERS_MAX;

use super::discovery::PeerDiscovery;
use super::handshake_limits::{HandshakeLimits, Handshakes};
use super::identity::Identity;
use super::keyring::Keyring;
use super::open_files::FileLimit;
use super::quic;
use super::reachability::circuits::{self, Circuits};
use super::silence_limit::SilenceLimited;
use super::substreams;

/// The protocol of link lanes.
pub(super) const LANE_PROTOCOL: StreamProtocol = StreamProtocol::new("/peergrad/1");

/// The protocol of status requests.
pub(super) const STATUS_PROTOCOL: StreamProtocol = StreamProtocol::new("/peergrad/status/1");

/// The behaviours that run on every connection.
#[derive(NetworkBehaviour)]
pub(super) struct SwarmBehaviour {
    /// It is asked first, so that the limits never count a connection that it refuses.
    pub(super) handshake_limits: HandshakeLimits,
    pub(super) limits: connection_limits::Behaviour,
    /// It is asked before the behaviours that would count a refused connection.
    pub(super) circuits: Circuits,
    pub(super) identify: identify::Behaviour,
    pub(super) ping: ping::Behaviour,
    pub(super) mdns: Toggle<mdns::tokio::Behaviour>,
    pub(super) discovery: PeerDiscovery,
    /// The relay server: this peer relays for others that cannot be reached.
    pub(super) relay: relay::Behaviour,
    /// The relay client: others relay for this peer.
    pub(super) relayed: relay::client::Behaviour,
    pub(super) punch: dcutr::Behaviour,
    pub(super) substreams: substreams::SubstreamBehaviour,
}

/// Whether a peer announces itself on the local network, and looks for others there (mDNS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mdns {
    /// It does.
    On,
    /// It does neither.
    Off,
}

/// The swarm cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The system's name resolver cannot be read.
    #[error("cannot read the system's name server configuration: {0}; check /etc/resolv.conf")]
    Resolver(#[source] io::Error),
    /// The identity's key does not work with Noise.
    #[error("the identity's key cannot be used: {0}; delete the identity file to continue as a new peer")]
    Key(#[from] noise::Error),
}

/// Creates the swarm. The second result says why mDNS does not run, if it was wanted and failed.
pub(super) fn swarm(
    identity: &Identity,
    keyring: &Keyring,
    mdns: Mdns,
) -> Result<(Swarm<SwarmBehaviour>, Option<io::Error>), TransportError> {
    let peer = identity.keypair().public().to_peer_id();
    let files = FileLimit::raise();
    let handshakes = Handshakes::new(files.pending_max());
    let tcp = tcp_transport(identity.keypair(), keyring, handshakes.clone())?;
    let (mdns, trouble) = match mdns {
        Mdns::On => match mdns::tokio::Behaviour::new(mdns::Config::default(), peer) {
            Ok(behaviour) => (Some(behaviour), None),
            Err(error) => (None, Some(error)),
        },
        Mdns::Off => (None, None),
    };
    let swarm = SwarmBuilder::with_existing_identity(identity.keypair().clone())
        .with_tokio()
        .with_other_transport(|_| tcp)
        .expect("making the transport cannot fail")
        .with_other_transport(|keypair| quic::transport(keypair, keyring))
        .expect("making the transport cannot fail")
        .with_dns()
        .map_err(TransportError::Resolver)?
        .with_relay_client(|keypair: &_| keyring.noise(keypair), yamux::Config::default)?
        .with_behaviour(|keypair, relayed| SwarmBehaviour {
            handshake_limits: HandshakeLimits::new(handshakes),
            limits: connection_limits::Behaviour::new(limits(files)),
            circuits: Circuits::default(),
            identify: identify::Behaviour::new(
                identify::Config::new(LANE_PROTOCOL.to_string(), keypair.public())
                    .with_agent_version("peergrad".to_owned())
                    // Peers that know where this peer is are told when that changes.
                    .with_push_listen_addr_updates(true)
                    // The addresses that it would add to attempts by itself include some that only the other end can use.
                    .with_cache_size(0),
            ),
            ping: ping::Behaviour::new(
                ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT),
            ),
            mdns: mdns.into(),
            discovery: PeerDiscovery::new(peer),
            relay: circuits::relay_server(peer),
            relayed,
            punch: dcutr::Behaviour::new(peer),
            substreams: substreams::SubstreamBehaviour::default(),
        })
        .expect("making the behaviour cannot fail")
        .with_swarm_config(|config| {
            config.with_idle_connection_timeout(IDLE_TIMEOUT).with_dial_concurrency_factor(DIAL_CONCURRENCY)
        })
        .with_connection_timeout(CONNECT_TIMEOUT)
        .build();
    Ok((swarm, trouble))
}

/// TCP with Noise and yamux, on which silence is limited.
fn tcp_transport(
    keypair: &Keypair,
    keyring: &Keyring,
    handshakes: Handshakes,
) -> Result<Boxed<(PeerId, StreamMuxerBox)>, noise::Error> {
    let tcp = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true));
    let limited = tcp.map(move |stream, endpoint| SilenceLimited::new(stream, &endpoint, &handshakes));
    let authenticated = limited.upgrade(Version::V1Lazy).authenticate(keyring.noise(keypair)?);
    Ok(authenticated.multiplex(yamux::Config::default()).boxed())
}

fn limits(files: FileLimit) -> ConnectionLimits {
    ConnectionLimits::default()
        .with_max_pending_incoming(Some(files.pending_max()))
        .with_max_pending_outgoing(Some(PENDING_MAX))
        .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX))
        .with_max_established(Some(2 * MEMBERS_MAX as u32))
}

const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A machine may be busy for seconds without being gone. libp2p reports only the second failure in a row, so a silent
/// connection is closed after about 12 s.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit for TCP, Noise and yamux together, or for QUIC and the proof. The kernel retries a machine that does not answer
/// after 1, 3, and 7 s; a fresh attempt retries at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit for a connection without lanes: one to a peer that has left, or a second connection after both ends dialed at the
/// same time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);
/// Outgoing handshakes at once.
const PENDING_MAX: u32 = 256;
/// One connection in use, one from both ends dialing at the same time, and two that only the other end has closed so far.
const CONNECTIONS_PER_PEER_MAX: u32 = 4;
const DIAL_CONCURRENCY: NonZeroU8 = NonZeroU8::new(4).expect("four is not zero");

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::StreamExt;
    use libp2p::core::Endpoint;
    use libp2p::core::transport::{DialOpts, PortUse};
    use libp2p::swarm::SwarmEvent;
    use libp2p::{Multiaddr, Transport, quic};
    use peergrad_protocol::invite::Secret;

    use super::*;

    /// A swarm that listens over QUIC, and where.
    async fn listener() -> (Swarm<SwarmBehaviour>, Multiaddr) {
        let mut swarm = swarm(&Identity::generate(), &Keyring::new(Secret([1; 32])), Mdns::Off).unwrap().0;
        swarm.listen_on("/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()).unwrap();
        let event = swarm.select_next_some().await;
        let SwarmEvent::NewListenAddr { address, .. } = event else { panic!("{event:?}") };
        (swarm, address)
    }

    /// A stranger that makes libp2p's handshake and then sends no proof.
    #[tokio::test]
    async fn a_stranger_that_sends_no_proof_over_quic_is_disconnected() {
        let (mut swarm, address) = listener().await;
        let stranger = async {
            let mut transport =
                quic::tokio::Transport::new(quic::Config::new(Identity::generate().keypair()));
            let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
            let connection = transport.dial(address, options).unwrap().await.unwrap();
            futures::future::pending::<()>().await;
            drop(connection);
        };
        let sent_away = async {
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::IncomingConnectionError { .. } => return,
                    SwarmEvent::IncomingConnection { .. } => {}
                    event => panic!("{event:?}"),
                }
            }
        };
        tokio::select! {
            () = stranger => unreachable!("it stays"),
            // The limit is no promise about speed.
            ended = tokio::time::timeout(Duration::from_secs(60), sent_away) => ended.expect("it is sent away"),
        }
    }
}
