//! Circuits: connections through another member, a relay, between two peers that cannot reach each other.
//!
//! Two people behind doors that only open outwards can still exchange notes through a third person, who lets both in. It is
//! notes, not furniture: a circuit carries control messages and never a tensor. A member that others can dial serves as a relay
//! for its own run, since no other peer gets past its handshake. Inside a circuit the two ends make the usual handshake with
//! the run's secret, so the relay cannot read what it passes on.
//!
//! # Invariants
//! - Where there is a connection without a relay, no circuit is accepted, and existing circuits are closed.
//! - A link that carries tensors never goes on over a circuit: it ends, and another one begins (see [`remote`](crate::remote)).
//! - The constants below limit what a relay spends on others.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished, NewExternalAddrCandidate};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId, relay};
use peergrad_protocol::limits::MEMBERS_MAX;

use crate::address::{is_relayed, over_quic};

/// The relay server of this peer. It serves once others are known to reach this peer.
pub(crate) fn relay_server(own: PeerId) -> relay::Behaviour {
    let config = relay::Config {
        max_reservations: RESERVATIONS_MAX,
        max_reservations_per_peer: 2,
        reservation_duration: RESERVATION,
        reservation_rate_limiters: vec![],
        max_circuits: CIRCUITS_MAX,
        max_circuits_per_peer: CIRCUITS_OF_A_PEER_MAX,
        max_circuit_duration: CIRCUIT,
        max_circuit_bytes: CIRCUIT_BYTES_MAX,
        circuit_src_rate_limiters: vec![],
    };
    let per_minute = |count| NonZeroU32::new(count).expect("not zero");
    let config = config
        .reservation_rate_per_peer(per_minute(6), Duration::from_secs(10))
        .circuit_src_per_peer(per_minute(CIRCUITS_OF_A_PEER_MAX as u32 * 2), Duration::from_secs(1));
    let mut behaviour = relay::Behaviour::new(own, config);
    // By default it would take the reservations at other relays for external addresses of its own.
    behaviour.set_status(Some(relay::Status::Disable));
    behaviour
}

/// Refuses circuits to peers that have a better connection.
#[derive(Debug, Default)]
pub(crate) struct Circuits {
    /// How many connections without a relay there are to each peer.
    direct: BTreeMap<PeerId, u32>,
    /// QUIC addresses that this peer may have, to be tried for hole punching.
    guesses: VecDeque<Multiaddr>,
}

/// A circuit is refused.
#[derive(Debug, thiserror::Error)]
#[error("there is a connection without a relay")]
struct NotNeeded;

impl Circuits {
    /// Decides on a connection to `peer` that is made at `address`, which leads through a relay if the connection does.
    fn admit(
        &self,
        peer: &PeerId,
        address: &Multiaddr,
    ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
        if is_relayed(address) && self.direct.contains_key(peer) {
            return Err(ConnectionDenied::new(NotNeeded));
        }
        Ok(dummy::ConnectionHandler)
    }
}

impl NetworkBehaviour for Circuits {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        here: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.admit(&peer, here)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        there: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.admit(&peer, there)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, endpoint, .. })
                if !endpoint.is_relayed() =>
            {
                *self.direct.entry(peer_id).or_default() += 1;
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, endpoint, .. })
                if !endpoint.is_relayed() =>
            {
                if let Some(count) = self.direct.get_mut(&peer_id) {
                    *count -= 1;
                }
                self.direct.retain(|_, count| *count > 0);
            }
            // A router that maps this peer's TCP port usually maps the UDP port of the same number, too.
            FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr }) => {
                self.guesses.extend(over_quic(addr));
                self.guesses.truncate(GUESSES_MAX);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // The swarm polls again after it has reported a candidate.
        self.guesses
            .pop_front()
            .map_or(Poll::Pending, |guess| Poll::Ready(ToSwarm::NewExternalAddrCandidate(guess)))
    }
}

/// Guesses that the swarm has not taken yet.
const GUESSES_MAX: usize = 8;
/// Peers that may have a reservation at this one.
const RESERVATIONS_MAX: usize = 128;
/// A reservation is renewed well before it ends.
const RESERVATION: Duration = Duration::from_secs(60 * 60);
/// Pairs of peers that are connected through this one.
const CIRCUITS_MAX: usize = 512;
const CIRCUITS_OF_A_PEER_MAX: usize = 64;
/// A circuit that lasts longer is closed and opened again, which loses no frame.
const CIRCUIT: Duration = Duration::from_secs(60 * 60);
/// Heartbeats in both directions for an hour are about 5 MB; the largest record is 2 MiB. It is too little for training.
const CIRCUIT_BYTES_MAX: u64 = 32 << 20;
const _: () = assert!(RESERVATIONS_MAX <= MEMBERS_MAX && CIRCUITS_OF_A_PEER_MAX <= CIRCUITS_MAX);
const _: () = assert!(CIRCUIT_BYTES_MAX > 2 * peergrad_protocol::limits::CONTROL_HEADER_BYTES_MAX as u64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;
    use crate::address::through;

    #[test]
    fn a_circuit_is_accepted_only_without_a_direct_connection() {
        let peer = Identity::generate().keypair().public().to_peer_id();
        let mut circuits = Circuits::default();
        let straight: Multiaddr = "/ip4/10.0.0.7/tcp/9".parse().unwrap();
        let circuit = through(PeerId::random(), straight.clone());
        assert!(circuits.admit(&peer, &circuit).is_ok());
        circuits.direct.insert(peer, 1);
        assert!(circuits.admit(&peer, &circuit).is_err() && circuits.admit(&peer, &straight).is_ok());
    }
}
