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
//! - No member stores records for others or announces that it provides any: there are only tables of addresses.
//!
//! # Reading
//! Maymounkov & Mazieres, *Kademlia*, 2002. We use its routing and none of its storage.

use std::time::Duration;

use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::kad::{self, BucketInserts, Mode, StoreInserts};
use libp2p::{PeerId, StreamProtocol};

/// The Kademlia behaviour of this peer.
pub(super) type PeerDiscovery = kad::Behaviour<MemoryStore>;

pub(super) fn behaviour(own: PeerId) -> PeerDiscovery {
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
    let mut behaviour = PeerDiscovery::with_config(own, MemoryStore::with_config(own, nothing), config);
    behaviour.set_mode(Some(Mode::Server));
    behaviour
}

const PROTOCOL: StreamProtocol = StreamProtocol::new("/peergrad/finding/1");
/// An answer that takes longer is useless: meanwhile the wanted peer is dialed again at its old addresses.
const QUERY_MAX: Duration = Duration::from_secs(10);
/// Twenty peers with a handful of addresses each.
const PACKET_BYTES_MAX: usize = 64 << 10;
