//! Peer discovery: asking other members where a peer is now. It is Kademlia, for the members of one run alone.
//!
//! A friend has moved, and the number in our book rings in an empty house. We ask an acquaintance, who knows the new number or
//! somebody closer to the friend. So any old address of any member still leads in: the member that is reached there knows the
//! others.
//!
//! # How it works
//! Every member answers. There are no clients, as a member that cannot be dialed is still worth asking on a connection that it
//! has made itself. The addresses that a member announces by identify, relayed ones among them, go into the tables of the
//! members that it is connected with. A wanted peer that is not reached is searched for by its id.
//!
//! # Invariants
//! - Only peers that have shown the run's secret ask and answer, so tables of two runs never mix.
//! - An address that another member names is dialed only if it [may lead there](super::reachability::dial_rule).
//! - No member stores records for others or announces that it provides any: there are only tables of addresses.
//!
//! # Reading
//! Maymounkov & Mazieres, *Kademlia*, 2002. We use its routing and none of its storage.

use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::kad::{self, BucketInserts, Mode, StoreInserts};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, ListenAddresses, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, StreamProtocol};

use super::address::own_ips;
use super::reachability::dial_rule::may_lead_there;

type Kademlia = kad::Behaviour<MemoryStore>;

/// The peer discovery of this peer.
pub(super) struct PeerDiscovery {
    kademlia: Kademlia,
    /// Where this peer listens.
    listening: ListenAddresses,
}

impl PeerDiscovery {
    /// The discovery of the peer `own`.
    pub(super) fn new(own: PeerId) -> Self {
        Self { kademlia: kademlia(own), listening: ListenAddresses::default() }
    }

    /// A connected peer can be dialed at this address.
    pub(super) fn add_address(&mut self, peer: &PeerId, address: Multiaddr) {
        self.kademlia.add_address(peer, address);
    }

    /// Searches for a peer. The addresses that are found join the next attempt to dial it.
    pub(super) fn search(&mut self, peer: PeerId) {
        self.kademlia.get_closest_peers(peer);
    }
}

impl NetworkBehaviour for PeerDiscovery {
    type ConnectionHandler = <Kademlia as NetworkBehaviour>::ConnectionHandler;
    type ToSwarm = kad::Event;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        at: &Multiaddr,
        from: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.kademlia.handle_pending_inbound_connection(connection, at, from)
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        at: &Multiaddr,
        from: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.kademlia.handle_established_inbound_connection(connection, peer, at, from)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let mut found =
            self.kademlia.handle_pending_outbound_connection(connection, peer, addresses, role)?;
        let own = own_ips(self.listening.iter());
        found.retain(|address| may_lead_there(address, &[], &own));
        Ok(found)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.kademlia.handle_established_outbound_connection(connection, peer, address, role, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.listening.on_swarm_event(&event);
        self.kademlia.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.kademlia.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.kademlia.poll(context)
    }
}

fn kademlia(own: PeerId) -> Kademlia {
    let mut config = kad::Config::new(PROTOCOL);
    config
        .set_query_timeout(QUERY_MAX)
        .set_kbucket_inserts(BucketInserts::Manual)
        .set_record_filtering(StoreInserts::FilterBoth)
        .set_max_packet_size(PACKET_BYTES_MAX)
        .set_periodic_bootstrap_interval(None)
        .set_replication_interval(None)
        .set_publication_interval(None)
        .set_provider_publication_interval(None);
    let nothing = MemoryStoreConfig {
        max_records: 0,
        max_value_bytes: 0,
        max_provided_keys: 0,
        max_providers_per_key: 0,
    };
    let mut behaviour = Kademlia::with_config(own, MemoryStore::with_config(own, nothing), config);
    behaviour.set_mode(Some(Mode::Server));
    behaviour
}

const PROTOCOL: StreamProtocol = StreamProtocol::new("/peergrad/finding/1");
/// An answer that takes longer is useless: meanwhile the wanted peer is dialed again at its old addresses.
const QUERY_MAX: Duration = Duration::from_secs(10);
/// Twenty peers with a handful of addresses each.
const PACKET_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use libp2p::core::transport::ListenerId;
    use libp2p::multiaddr::Protocol;
    use libp2p::swarm::NewListenAddr;

    use super::*;

    #[test]
    fn an_address_of_loopback_that_another_member_names_is_not_dialed() {
        let mut discovery = PeerDiscovery::new(PeerId::random());
        let mut listen = |address: &str| {
            let (listener_id, addr) = (ListenerId::next(), &address.parse().unwrap());
            discovery.on_swarm_event(FromSwarm::NewListenAddr(NewListenAddr { listener_id, addr }));
        };
        listen("/ip4/127.0.0.1/tcp/4747");
        listen("/ip4/10.79.0.1/tcp/4747");
        let peer = PeerId::random();
        let usable: Multiaddr = "/ip4/10.79.0.3/tcp/9".parse().unwrap();
        for address in [usable.clone(), "/ip4/127.0.0.1/tcp/22".parse().unwrap()] {
            discovery.add_address(&peer, address);
        }
        let id = ConnectionId::new_unchecked(1);
        let found = discovery.handle_pending_outbound_connection(id, Some(peer), &[], Endpoint::Dialer);
        assert_eq!(found.unwrap(), [usable.with(Protocol::P2p(peer))]);
    }
}
