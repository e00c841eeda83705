//! Connections: what the swarm reports, and what that means for a link.
//!
//! Losing one is no news to the driver: the link waits, and the other end is dialed again.

use std::time::Duration;

use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionError, ConnectionId, DialError, SwarmEvent};
use libp2p::{identify, mdns, ping};
use tokio::time::Instant;

use super::actor::NetworkActor;
use crate::address::{Carrier, over_tcp, without_peer};
use crate::dial::{CarrierEvidence, NewConnection, refused_everywhere};
use crate::link::{LinkEvent, error_text};
use crate::notice::Notice;
use crate::remote::{Connection, LinkIntent};
use crate::transport::BehaviourEvent;

impl NetworkActor {
    pub(super) fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
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
            SwarmEvent::NewListenAddr { .. } | SwarmEvent::ExpiredListenAddr { .. } => self.on_listening(),
            SwarmEvent::ListenerClosed { listener_id, .. } => self.on_listener_closed(listener_id),
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            _ => {}
        }
    }

    fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Ping(ping::Event { peer, result: Ok(round_trip), .. }) => {
                if let Some(remote) = self.remotes.get_mut(&peer) {
                    remote.round_trip = Some(round_trip);
                }
            }
            // libp2p only reports it; what to do is ours to say.
            BehaviourEvent::Ping(ping::Event { peer, connection, result: Err(error) })
                if !matches!(error, ping::Failure::Unsupported) =>
            {
                let remote = self.remotes.get(&peer);
                if remote
                    .and_then(|remote| remote.link.as_ref())
                    .is_some_and(|link| link.is_moving_on_substream())
                {
                    // On a slow line a ping waits behind tensors; the lane's own watchdog looks after this connection.
                    return;
                }
                if let Some(remote) = self.remotes.get_mut(&peer) {
                    remote.closing.get_or_insert_with(|| "no answer to pings".to_owned());
                }
                self.swarm.close_connection(connection);
            }
            BehaviourEvent::Identify(identify::Event::Received { peer_id, connection_id, info }) => {
                self.on_identified(peer_id, connection_id, &info);
            }
            BehaviourEvent::Mdns(mdns::Event::Discovered(found)) => {
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
        let Some(remote) = self.remote(id) else {
            self.swarm.close_connection(connection);
            return;
        };
        if is_relayed && remote.link.as_ref().is_some_and(|link| !link.is_relayed()) {
            // What carries tensors waits for a way of its own, for as long as any lost connection is waited for.
            self.swarm.close_connection(connection);
            self.dialer.try_later(connection, now + CIRCUIT_LATER);
            return self.forget_if_idle(id);
        }
        let outlived = remote.superseded_by(endpoint, now);
        let (address, before) = (endpoint.get_remote_address(), remote.carriers);
        let carrier = Carrier::of(address);
        let is_beside = carrier == Carrier::Quic && remote.carrier_without(&outlived) == Some(Carrier::Tcp);
        let evidence = match endpoint {
            _ if is_relayed || is_beside => CarrierEvidence::None,
            ConnectedPoint::Dialer { .. } => CarrierEvidence::Out,
            ConnectedPoint::Listener { .. } => CarrierEvidence::In,
        };
        let carriers =
            self.dialer.connected(id, NewConnection { connection, address, evidence }, before, now);
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        remote.carriers = carriers;
        match endpoint {
            _ if is_relayed => {
                if remote.connections.is_empty() {
                    remote.begin_relay_upgrade(now);
                }
                if let ConnectedPoint::Dialer { address, .. } = endpoint {
                    remote.remember(without_peer(address.clone()));
                }
            }
            ConnectedPoint::Dialer { address, .. } => {
                remote.remember(over_tcp(without_peer(address.clone())));
                remote.note_ip(address);
            }
            ConnectedPoint::Listener { send_back_addr, .. } => remote.note_ip(send_back_addr),
        }
        let dialed = match endpoint {
            ConnectedPoint::Dialer { address, .. } => Some(without_peer(address.clone())),
            ConnectedPoint::Listener { .. } => None,
        };
        remote.connections.insert(connection, Connection { since: now, carrier, is_relayed, dialed });
        remote.closing = None;
        let was_told = remote.is_relay_told;
        remote.is_relay_told |= is_relayed;
        let news = (is_relayed && !was_told).then_some(Notice::Relayed { peer: remote.peer });
        // Whoever has said goodbye may come back; and whoever we said goodbye to, once that has been heard.
        let is_parting = remote.intent == LinkIntent::Disconnect && remote.closing_link.is_some();
        if !is_parting {
            remote.intent = LinkIntent::Connect;
        }
        for connection in outlived {
            self.swarm.close_connection(connection);
        }
        news.into_iter().for_each(|notice| self.notify(notice));
        self.note_carrier(id);
        if is_relayed {
            self.report_reachability();
        } else {
            self.widen(id);
        }
        self.open_lane(id);
    }

    /// An attempt to dial has failed. Where its own machine says that nobody listens any more, a link that waits for its
    /// connection waits for nothing.
    pub(super) fn on_dial_failed(&mut self, attempt: ConnectionId, error: &DialError) {
        let id = self.dialer.whose(attempt);
        let failures = self.dialer.failed(attempt, error, Instant::now());
        failures.into_iter().for_each(|failure| self.notify(failure.into()));
        let Some((id, remote)) = id.and_then(|id| Some((id, self.remotes.get(&id)?))) else { return };
        if remote.link.is_some() && remote.is_gone(&refused_everywhere(error)) {
            self.drop_link(id, "connection refused".to_owned());
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
        let closed = remote.connections.remove(&connection);
        let has_unrelayed_connection = remote.has_unrelayed_connection();
        if !has_unrelayed_connection {
            self.connectivity.forget(id);
        }
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if remote.has_usable_connection() {
            if remote.is_unanswered() {
                // Its opening may have gone the way that is no more, and then nothing comes of it, not even an error.
                remote.stop_outgoing();
            }
            self.note_carrier(id);
            self.widen(id);
            return self.open_lane(id);
        }
        if closed.is_none() {
            // It was never taken.
            return;
        }
        remote.stop_outgoing();
        if let Some(closing_link) = remote.closing_link.take() {
            closing_link.link.close();
        }
        let reason = remote.closing.take().unwrap_or_else(|| cause_text(cause));
        let due = if is_smaller { now } else { now + REDIAL_LATER };
        if remote.link.is_some() {
            let (peer, addresses, carriers) = (remote.peer, remote.addresses.clone(), remote.carriers);
            remote.note_outage(reason.clone(), now);
            if let Some(outage) = &mut remote.outage {
                outage.is_told = true;
            }
            self.dialer.reconnect(id, addresses, carriers, due);
            self.notify(Notice::Reconnecting { peer, reason });
        } else {
            self.dialer.retry_from(id, due);
        }
        self.forget_if_idle(id);
    }
}

impl NetworkActor {
    /// Takes note of what the connections to a peer run over, and tells the user where that is QUIC from now on.
    fn note_carrier(&mut self, id: libp2p::PeerId) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let Some(carrier) = remote.carrier_without(&[]) else { return };
        remote.carriers.last = Some(carrier);
        let is_quic = carrier == Carrier::Quic;
        let was_told = std::mem::replace(&mut remote.is_quic_told, is_quic);
        if is_quic && !was_told {
            let peer = remote.peer;
            self.notify(Notice::QuicInUse { peer });
        }
    }

    /// If the last circuit to a peer is gone, and a better way is there: a link that led through it carries tensors from now on.
    fn widen(&mut self, id: libp2p::PeerId) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let is_wide = remote.has_unrelayed_connection() && remote.circuits().is_empty();
        if !is_wide || !std::mem::take(&mut remote.is_relay_told) {
            return;
        }
        let peer = remote.peer;
        if let Some(link) = remote.link.as_ref().filter(|link| link.is_relayed()).cloned() {
            link.set_relayed(false);
            self.emit(LinkEvent::NoLongerRelayed(link));
        }
        // Whoever was told of the circuit hears of this, also where no link had begun over it.
        self.notify(Notice::NoLongerRelayed { peer });
        self.connectivity.met.insert(id);
        self.report_reachability();
    }
}

fn cause_text(cause: Option<ConnectionError>) -> String {
    match cause {
        Some(ConnectionError::IO(error)) => error_text(&error),
        Some(ConnectionError::KeepAliveTimeout) => "idle".to_owned(),
        None => "connection closed".to_owned(),
    }
}

/// How much later the larger id dials again.
const REDIAL_LATER: Duration = Duration::from_millis(500);
/// How long after a circuit that is of no use another attempt is made.
const CIRCUIT_LATER: Duration = Duration::from_millis(500);
