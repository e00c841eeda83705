//! PeerDiscovery: where a peer is now, asked of those who know it. Kademlia, for the members of one run alone.
//!
//! Someone has moved, and the number in our book rings in an empty house. One asks an acquaintance, who knows the new number or
//! somebody nearer to it. So any old address of any member still leads in: whoever is reached there knows the others.
//!
//! # How it works
//! Every member answers; there are no clients, as a member that cannot be dialed is still worth asking on the connection that it
//! has made itself. What a member tells of its addresses (by identify, and again when they change) goes into the tables of those
//! it is connected with, the ways through a relay among them. One that is wanted and not reached is looked for by its id.
//!
//! # Invariants
//! - Only those answer and are asked who have shown the run's secret, so tables of two runs never mix.
//! - Nobody stores records for others, or says to provide any: tables of addresses are all there is.
//!
//! # Reading
//! Maymounkov & Mazieres, *Kademlia*, 2002. We use its routing and none of its storage.

use std::time::Duration;

use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::kad::{self, BucketInserts, Mode, StoreInserts};
use libp2p::{PeerId, StreamProtocol};

/// What answers and asks.
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
/// An answer that takes longer is of no use: the one looked for is dialed again at its old addresses meanwhile.
const QUERY_MAX: Duration = Duration::from_secs(10);
/// Twenty peers with a handful of addresses each.
const PACKET_BYTES_MAX: usize = 64 << 10;
