//! Connections: what the swarm reports, and what that means for a link.
//!
//! Losing one is no news to the driver: the link waits, and the other end is dialed again.

use std::time::Duration;

use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionError, ConnectionId, DialError, SwarmEvent};
use libp2p::{identify, mdns, ping};
use tokio::time::Instant;

use super::super::addresses::{parse_all, without_peer};
use super::super::dial::refused_everywhere;
use super::super::link::words_of;
use super::super::listen::announced;
use super::super::notice::Notice;
use super::super::quic::{Carrier, over_tcp};
use super::super::remote::Stance;
use super::super::transport::BehaviourEvent;
use super::switchboard::Switchboard;

impl Switchboard {
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
            SwarmEvent::NewListenAddr { .. } | SwarmEvent::ExpiredListenAddr { .. } => {
                let listening: Vec<_> = self.swarm.listeners().cloned().collect();
                self.announce.send_replace(announced(&self.external, &listening));
            }
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
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                if let Some(remote) = self.remotes.get_mut(&peer_id) {
                    // Its own loopback addresses would lead us to ourselves.
                    let usable = parse_all(&announced(&[], &info.listen_addrs));
                    for address in usable {
                        remote.note_host(&address);
                        remote.remember(address);
                    }
                }
            }
            BehaviourEvent::Neighbours(mdns::Event::Discovered(found)) => {
                let is_other = |(peer, address): &(libp2p::PeerId, _)| {
                    peer != self.swarm.local_peer_id() && Carrier::of(address) == Carrier::Tcp
                };
                for (peer, address) in found.into_iter().filter(is_other) {
                    self.dialing.try_neighbour(peer, address, Instant::now());
                }
            }
            _ => {}
        }
    }

    fn on_connected(&mut self, id: libp2p::PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let now = Instant::now();
        let carrier = Carrier::of(endpoint.get_remote_address());
        self.dialing.connected(id, connection, carrier);
        let Some(remote) = self.remote(id) else {
            self.swarm.close_connection(connection);
            return;
        };
        let mut outlived = Vec::new();
        match endpoint {
            ConnectedPoint::Dialer { address, .. } => {
                remote.remember(over_tcp(without_peer(address.clone())));
                remote.note_machine(address);
            }
            // Nobody dials a peer to which it has a connection: the other end has given up those from before.
            ConnectedPoint::Listener { send_back_addr, .. } => {
                remote.note_machine(send_back_addr);
                let is_old = |since: &Instant| now.duration_since(*since) > DIALED_AT_ONCE;
                outlived
                    .extend(remote.connections.iter().filter(|(_, since)| is_old(since)).map(|(id, _)| *id));
            }
        }
        remote.connections.insert(connection, now);
        remote.closing = None;
        let was = std::mem::replace(&mut remote.carrier, carrier);
        let news =
            (was != carrier && carrier == Carrier::Quic).then_some(Notice::OverQuic { peer: remote.peer });
        // Whoever has said goodbye may come back; and whoever we said goodbye to, once that has been heard.
        let is_parting = remote.stance == Stance::Leaving && remote.parting.is_some();
        if !is_parting {
            remote.stance = Stance::Linking;
        }
        for connection in outlived {
            self.swarm.close_connection(connection);
        }
        news.into_iter().for_each(|notice| self.notify(notice));
        self.open_lane(id);
    }

    /// An attempt to dial has failed. Where its own machine says that nobody listens any more, a link that waits for its
    /// connection waits for nothing.
    pub(super) fn on_dial_failed(&mut self, attempt: ConnectionId, error: &DialError) {
        let id = self.dialing.whose(attempt);
        let notices = self.dialing.failed(attempt, error, Instant::now());
        notices.into_iter().for_each(|notice| self.notify(notice));
        let Some((id, remote)) = id.and_then(|id| Some((id, self.remotes.get(&id)?))) else { return };
        if remote.link.is_some() && remote.is_gone(&refused_everywhere(error)) {
            self.take_down(id, "connection refused".to_owned());
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
        remote.connections.remove(&connection);
        if !remote.connections.is_empty() {
            return;
        }
        remote.stop_outgoing();
        if let Some(parting) = remote.parting.take() {
            parting.link.close();
        }
        let reason = remote.closing.take().unwrap_or_else(|| words_of_cause(cause));
        let due = if is_smaller { now } else { now + REDIAL_LATER };
        if remote.link.is_some() {
            let (peer, addresses, carrier) = (remote.peer, remote.addresses.clone(), remote.carrier);
            remote.note_outage(reason.clone(), now);
            if let Some(outage) = &mut remote.outage {
                outage.is_told = true;
            }
            self.dialing.call_back(id, addresses, carrier, due);
            self.notify(Notice::Reconnecting { peer, reason });
        } else {
            self.dialing.wait_again(id, due);
        }
        self.forget_if_idle(id);
    }
}

fn words_of_cause(cause: Option<ConnectionError>) -> String {
    match cause {
        Some(ConnectionError::IO(error)) => words_of(&error),
        Some(ConnectionError::KeepAliveTimeout) => "idle".to_owned(),
        None => "connection closed".to_owned(),
    }
}

/// How much later the larger id dials again.
const REDIAL_LATER: Duration = Duration::from_millis(500);
/// Two connections within this time come from dialing each other at once, and both stay.
const DIALED_AT_ONCE: Duration = Duration::from_secs(3);
