//! QUIC: the carrier for networks in which TCP does not get through.
//!
//! Some networks drop TCP between machines and let UDP pass. So a peer can also be reached over QUIC, at the UDP port of the
//! same number as its TCP port. A peer's QUIC address follows from its TCP address, so QUIC addresses are neither announced nor
//! remembered.
//!
//! QUIC brings what Noise and yamux bring to TCP, except for the run's secret; a [`proof`](super::proof) shows that.
//!
//! # Invariants
//! - The swarm never hears of a connection whose other end has not proved the secret.
//! - Connections that have not proved it share a small number of places of their own, so that most places stay free for TCP:
//!   the first packets of QUIC may carry a forged address. What the library does for such a packet before it asks this peer
//!   cannot be limited here.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::identity::Keypair;
use libp2p::swarm::behaviour::{ConnectionEstablished, ListenFailure};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId, Transport, quic};

use super::address::{Carrier, ip_of};
use super::keyring::Keyring;
use super::link::error_text;
use super::proof::{ProofError, Prover};

/// Why there is no connection over QUIC.
///
/// libp2p wraps errors in others that only forward to their source, so each variant has a source.
#[derive(Debug, thiserror::Error)]
pub(super) enum QuicError {
    /// The system's error.
    #[error("{}", error_text(.0))]
    System(#[source] io::Error),
    /// The QUIC library's error.
    #[error(transparent)]
    Connection(quic::Error),
    /// The proof of the secret failed.
    #[error("{0}")]
    Proof(#[source] ProofError),
}

impl From<quic::Error> for QuicError {
    fn from(error: quic::Error) -> Self {
        match error {
            quic::Error::Io(error) => Self::System(error),
            error => Self::Connection(error),
        }
    }
}

/// A transport whose connections run over QUIC, each between two holders of the secret.
pub(super) fn transport(
    keypair: &Keypair,
    keyring: &Keyring,
) -> impl Transport<Output = (PeerId, quic::Connection), Error = QuicError, ListenerUpgrade: Send, Dial: Send>
+ Send
+ Unpin
+ use<> {
    let (own, keyring) = (keypair.public().to_peer_id(), keyring.clone());
    quic::tokio::Transport::new(config(keypair))
        .and_then(move |connection, point| Prover::new(own, &keyring.secret()).prove(connection, point))
        .map_err(|error| error.either(QuicError::from, QuicError::Proof))
}

/// The options of the QUIC library that differ from its defaults.
fn config(keypair: &Keypair) -> quic::Config {
    let mut config = quic::Config::new(keypair);
    config.handshake_timeout = HANDSHAKE_MAX;
    config.max_idle_timeout = SILENCE_MAX.as_millis() as u32;
    config.keep_alive_interval = KEEP_ALIVE;
    config.max_concurrent_stream_limit = STREAMS_MAX;
    config.max_stream_data = STREAM_WINDOW_BYTES;
    config.max_connection_data = 2 * STREAM_WINDOW_BYTES;
    config
}

/// Limits the incoming QUIC connections whose other end has not yet proved the secret.
///
/// They also count towards the swarm's limit for all carriers, so this one leaves places that only TCP can take.
#[derive(Debug, Default)]
pub(super) struct HandshakeLimits {
    from: BTreeMap<ConnectionId, IpAddr>,
}

/// A connection is refused because too many others are being set up.
#[derive(Debug, thiserror::Error)]
#[error("too many connections at once")]
struct TooMany;

impl HandshakeLimits {
    fn admit(&mut self, connection: ConnectionId, from: IpAddr) -> Result<(), TooMany> {
        let own_count = self.from.values().filter(|ip| **ip == from).count();
        if self.from.len() >= HANDSHAKES_MAX || own_count >= HANDSHAKES_PER_IP_MAX {
            return Err(TooMany);
        }
        self.from.insert(connection, from);
        Ok(())
    }
}

impl NetworkBehaviour for HandshakeLimits {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: &Multiaddr,
        from: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        match (Carrier::of(from), ip_of(from)) {
            (Carrier::Quic, Some(from)) => self.admit(connection, from).map_err(ConnectionDenied::new),
            _ => Ok(()),
        }
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        let (FromSwarm::ConnectionEstablished(ConnectionEstablished { connection_id, .. })
        | FromSwarm::ListenFailure(ListenFailure { connection_id, .. })) = event
        else {
            return;
        };
        self.from.remove(&connection_id);
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

/// Shorter than the swarm's limit for setting up a connection.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// After this silence a connection is closed, as after unanswered pings.
const SILENCE_MAX: Duration = Duration::from_secs(12);
/// The pause between keep-alive packets. Several may be lost before the silence is too long.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// A lane in each direction, earlier lanes that are being closed, and libp2p's own streams.
const STREAMS_MAX: u32 = 64;
/// What a lane has in flight, and as much again for the time until the other end reports that it has read it.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// A small part of all connections that may be set up at once.
const HANDSHAKES_MAX: usize = 16;
/// So that no single machine takes all of these places.
const HANDSHAKES_PER_IP_MAX: usize = 4;
const _: () = assert!(
    HANDSHAKES_MAX * 2 * STREAM_WINDOW_BYTES as usize <= 64 << 20,
    "what strangers may send before they have proved the secret"
);

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn pending_handshakes_are_limited_in_total_and_per_ip_address() {
        let mut strangers = HandshakeLimits::default();
        let mut ids = (0..).map(ConnectionId::new_unchecked);
        let mut knock = |strangers: &mut HandshakeLimits, last_byte: usize, carrier: &str| {
            let (id, here) = (ids.next().unwrap(), address("/ip4/10.0.0.1/udp/9/quic-v1"));
            let from = address(&format!("/ip4/10.0.0.{last_byte}/{carrier}"));
            strangers.handle_pending_inbound_connection(id, &here, &from).is_ok().then_some(id)
        };
        const QUIC: &str = "udp/40000/quic-v1";
        let first: Vec<_> = (0..HANDSHAKES_PER_IP_MAX).map(|_| knock(&mut strangers, 7, QUIC)).collect();
        assert!(first.iter().all(Option::is_some));
        assert_eq!(knock(&mut strangers, 7, QUIC), None, "one machine does not take all places");
        for other in HANDSHAKES_PER_IP_MAX..HANDSHAKES_MAX {
            assert!(knock(&mut strangers, 100 + other, QUIC).is_some());
        }
        assert_eq!(knock(&mut strangers, 8, QUIC), None);
        assert!(knock(&mut strangers, 7, "tcp/40000").is_some(), "over TCP there is room");
        strangers.from.remove(&first[0].unwrap());
        assert!(knock(&mut strangers, 8, QUIC).is_some());
    }
}
