//! Connections: the swarm's events, and what they mean for a link.
//!
//! The driver does not hear of a lost connection: the link waits, and the other end is dialed again. The peer with the smaller id
//! dials at once and the other one half a second later, so that they do not dial at the same time.

use std::time::Duration;

use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionError, ConnectionId, DialError, SwarmEvent};
use libp2p::{identify, mdns, ping, relay};
use tokio::time::Instant;

use super::actor::NetworkActor;
use crate::address::Carrier;
use crate::dial::{CarrierEvidence, NewConnection, refused_everywhere};
use crate::link::{LinkEvent, error_text};
use crate::notice::PeerNotice;
use crate::remote::{Condition, LinkIntent};
use crate::transport::SwarmBehaviourEvent;

impl NetworkActor {
    pub(super) fn on_swarm_event(&mut self, event: SwarmEvent<SwarmBehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, cause, .. } => {
                self.on_connection_closed(peer_id, connection_id, cause);
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                self.on_dial_failed(connection_id, &error);
            }
            SwarmEvent::NewListenAddr { .. } | SwarmEvent::ExpiredListenAddr { .. } => {
                self.upkeep().on_listening()
            }
            SwarmEvent::ListenerClosed { listener_id, .. } => self.upkeep().on_listener_closed(listener_id),
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            _ => {}
        }
    }

    fn on_behaviour_event(&mut self, event: SwarmBehaviourEvent) {
        match event {
            SwarmBehaviourEvent::Ping(ping::Event { peer, connection, result: Ok(round_trip) }) => {
                if let Some(remote) = self.remotes.get_mut(&peer) {
                    remote.paths.round_trip = Some(round_trip);
                    let is_straight =
                        remote.paths.connections.get(&connection).is_some_and(|found| !found.is_relayed);
                    if let Some(link) = remote.link.current.as_ref().filter(|_| is_straight) {
                        link.note_ping(round_trip);
                    }
                }
            }
            // libp2p only reports the failure; this peer decides to close the connection.
            SwarmBehaviourEvent::Ping(ping::Event { peer, connection, result: Err(error) })
                if !matches!(error, ping::Failure::Unsupported) =>
            {
                let remote = self.remotes.get(&peer);
                if remote.and_then(|remote| remote.link.current.as_ref()).is_some_and(|link| link.is_moving())
                {
                    // On a slow line a ping waits behind tensors, and some are lost. The lane shows that the peer is there, and has its
                    // own time limit.
                    return;
                }
                if let Some(remote) = self.remotes.get_mut(&peer) {
                    remote.paths.close_reason.get_or_insert_with(|| "no answer to pings".to_owned());
                }
                self.swarm.close_connection(connection);
            }
            SwarmBehaviourEvent::Identify(identify::Event::Received { peer_id, connection_id, info }) => {
                self.upkeep().on_identified(peer_id, connection_id, &info);
                self.links().open_lane(peer_id);
            }
            SwarmBehaviourEvent::Relay(relay::Event::CircuitReqDenied {
                dst_peer_id,
                status: relay::StatusCode::NoReservation,
                ..
            }) => self.upkeep().on_circuit_refused(dst_peer_id),
            SwarmBehaviourEvent::Mdns(mdns::Event::Discovered(found)) => {
                let is_other = |(peer, address): &(libp2p::PeerId, _)| {
                    peer != self.swarm.local_peer_id() && Carrier::of(address) == Carrier::Tcp
                };
                for (peer, address) in found.into_iter().filter(is_other) {
                    self.dialer.try_mdns_peer(peer, address, Instant::now());
                }
            }
            _ => {}
        }
    }

    fn on_connected(&mut self, id: libp2p::PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let now = Instant::now();
        let is_relayed = endpoint.is_relayed();
        if self.remotes.record(id).is_none() {
            self.swarm.close_connection(connection);
            return;
        }
        if self.remotes.violators.is_refused(&id, now) {
            self.swarm.close_connection(connection);
            self.dialer.try_later(connection, now + REFUSED_LATER);
            return self.remotes.forget_if_idle(id);
        }
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if is_relayed && remote.link.current.as_ref().is_some_and(|link| !link.is_relayed()) {
            // A link that carries tensors waits for a connection without a relay, as long as for any lost connection.
            self.swarm.close_connection(connection);
            self.dialer.try_later(connection, now + CIRCUIT_LATER);
            return self.remotes.forget_if_idle(id);
        }
        let outlived = remote.paths.superseded_by(endpoint, now);
        self.learn_carriers(id, connection, endpoint, &outlived, now);
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        remote.paths.note_connection(connection, endpoint, now);
        let is_news = is_relayed && remote.notices.begin(Condition::Relayed);
        let peer = remote.peer;
        // A peer that has said goodbye may come back. So may one that this peer said goodbye to, once the goodbye has arrived.
        let is_parting = remote.link.intent == LinkIntent::Disconnect && remote.link.closing.is_some();
        if !is_parting {
            remote.link.intent = LinkIntent::Connect;
        }
        for connection in outlived {
            self.swarm.close_connection(connection);
        }
        if is_news {
            self.sinks.notify_of(peer, PeerNotice::Relayed);
        }
        self.note_carrier(id);
        if is_relayed {
            self.upkeep().report();
        } else {
            self.widen(id);
        }
        self.links().open_lane(id);
    }

    /// Takes in which carrier a new connection, which replaces those in `outlived`, shows to work.
    fn learn_carriers(
        &mut self,
        id: libp2p::PeerId,
        connection: ConnectionId,
        endpoint: &ConnectedPoint,
        outlived: &[ConnectionId],
        now: Instant,
    ) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let address = endpoint.get_remote_address();
        let is_beside_tcp = Carrier::of(address) == Carrier::Quic
            && remote.paths.carrier_without(outlived) == Some(Carrier::Tcp);
        let evidence = match endpoint {
            _ if endpoint.is_relayed() || is_beside_tcp => CarrierEvidence::None,
            ConnectedPoint::Dialer { .. } => CarrierEvidence::Out,
            ConnectedPoint::Listener { .. } => CarrierEvidence::In,
        };
        let arrival = NewConnection { connection, address, evidence };
        remote.paths.carriers = self.dialer.connected(id, arrival, remote.paths.carriers, now);
    }

    /// An attempt to dial has failed. If the peer's machine says that nothing listens there any more, the link is closed at
    /// once.
    pub(super) fn on_dial_failed(&mut self, attempt: ConnectionId, error: &DialError) {
        let id = self.dialer.whose(attempt);
        let failures = self.dialer.failed(attempt, error, Instant::now());
        failures.into_iter().for_each(|failure| self.sinks.notify(failure.into()));
        let Some((id, remote)) = id.and_then(|id| Some((id, self.remotes.get(&id)?))) else { return };
        if remote.link.current.is_some() && remote.is_gone(&refused_everywhere(error)) {
            self.links().give_up(id, "connection refused".to_owned());
        }
    }

    fn on_connection_closed(
        &mut self,
        id: libp2p::PeerId,
        connection: ConnectionId,
        cause: Option<ConnectionError>,
    ) {
        let now = Instant::now();
        let is_smaller = *self.swarm.local_peer_id() < id;
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let closed = remote.paths.connections.remove(&connection);
        let has_unrelayed_connection = remote.paths.has_unrelayed_connection();
        if !has_unrelayed_connection {
            self.connectivity.forget(id);
        }
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if remote.has_usable_connection() {
            if remote.link.is_unanswered() {
                // The opening may have been on the connection that closed, and then it gets neither an answer nor an error.
                remote.link.stop_outgoing();
            }
            self.note_carrier(id);
            self.widen(id);
            return self.links().open_lane(id);
        }
        if closed.is_none() {
            // The connection was refused when it opened.
            return;
        }
        remote.link.stop_outgoing();
        if let Some(closing_link) = remote.link.closing.take() {
            closing_link.link.close();
        }
        let reason = remote.paths.close_reason.take().unwrap_or_else(|| cause_text(cause));
        // A connection that is closed as soon as it stands was refused: dialing again at once would lead to the same.
        let was_refused = closed.is_some_and(|connection| now - connection.since < REFUSED_WITHIN);
        let due = if is_smaller && !was_refused { now } else { now + REDIAL_LATER };
        if remote.link.current.is_some() {
            let (peer, addresses, carriers) =
                (remote.peer, remote.paths.addresses.clone(), remote.paths.carriers);
            remote.link.note_outage(reason.clone(), now);
            let is_news = remote.notices.begin(Condition::Reconnecting);
            self.dialer.reconnect(id, addresses, carriers, due);
            self.connectivity.search_soon(now);
            if is_news {
                self.sinks.notify_of(peer, PeerNotice::Reconnecting { reason });
            }
        } else {
            self.dialer.retry_from(id, due);
        }
        self.remotes.forget_if_idle(id);
    }
}

impl NetworkActor {
    /// Remembers what the connections to a peer run over, and tells the user if that is QUIC from now on.
    fn note_carrier(&mut self, id: libp2p::PeerId) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let Some(carrier) = remote.paths.carrier_without(&[]) else { return };
        remote.paths.carriers.last = Some(carrier);
        let peer = remote.peer;
        match carrier {
            Carrier::Quic if remote.notices.begin(Condition::OverQuic) => {
                self.sinks.notify_of(peer, PeerNotice::QuicInUse);
            }
            Carrier::Quic => {}
            Carrier::Tcp => _ = remote.notices.end(Condition::OverQuic),
        }
    }

    /// If the last circuit to a peer is gone and there is a better connection, a link that led through the circuit carries
    /// tensors from now on.
    fn widen(&mut self, id: libp2p::PeerId) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let is_wide = remote.paths.has_unrelayed_connection() && remote.paths.circuits().is_empty();
        if !is_wide || !remote.notices.end(Condition::Relayed) {
            return;
        }
        let peer = remote.peer;
        if let Some(link) = remote.link.current.as_ref().filter(|link| link.is_relayed()).cloned() {
            link.end_relay();
            self.sinks.emit(LinkEvent::NoLongerRelayed(link));
        }
        // The user knows of the circuit, so its end is reported, even if no link had begun over it.
        self.sinks.notify_of(peer, PeerNotice::NoLongerRelayed);
        self.connectivity.upgraded.insert(id);
        self.upkeep().report();
    }
}

fn cause_text(cause: Option<ConnectionError>) -> String {
    match cause {
        Some(ConnectionError::IO(error)) => error_text(&error),
        Some(ConnectionError::KeepAliveTimeout) => "idle".to_owned(),
        None => "connection closed".to_owned(),
    }
}

/// How much later the peer with the larger id dials again.
const REDIAL_LATER: Duration = Duration::from_millis(500);
/// A connection that is closed so soon after it was opened was refused.
const REFUSED_WITHIN: Duration = Duration::from_millis(500);
/// How much later a peer is dialed whose connection was refused here.
const REFUSED_LATER: Duration = Duration::from_secs(60);
/// The pause after a circuit that the link cannot use.
const CIRCUIT_LATER: Duration = Duration::from_millis(500);
