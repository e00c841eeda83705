//! Addresses as they come from others, and short lists of them.

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use peergrad_protocol::limits::ADDRESSES_MAX;

/// Adds an address to a list that stays short; the newest push out the oldest.
pub(super) fn remember(addresses: &mut Vec<Multiaddr>, address: Multiaddr) {
    if addresses.contains(&address) {
        return;
    }
    if addresses.len() == ADDRESSES_MAX {
        addresses.remove(0);
    }
    addresses.push(address);
}

/// Addresses that others gave: what cannot be read is left out.
pub(super) fn parse_all(texts: &[String]) -> Vec<Multiaddr> {
    texts.iter().filter_map(|text| text.parse().ok()).map(without_peer).collect()
}

/// The address alone: the peer's id at its end is known anyway.
pub(super) fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    address
}
