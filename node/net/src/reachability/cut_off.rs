//! Peers that are cut off from this one: neither can dial the other, although others reach both.
//!
//! ```text
//!   b ---- network 1 ---- a ---- network 2 ---- c          b and c reach each other through a only
//! ```
//! # How it works
//! 1. A peer that misses another one tries circuits through its relays. A relay on which the other one has no reservation refuses the
//!    circuit, and tells the other one that a circuit to it is wanted.
//! 2. That peer reserves places at relays for a while, so the next attempt succeeds.
//! 3. If both have only a circuit for [`CUT_OFF_AFTER`], neither can dial the other. Then each of the two that reaches no more peers than it
//!    is cut off from owns nothing, as a peer behind a router, until they have a direct connection or one of them is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::StreamProtocol;
use tokio::time::Instant;

/// A relay opens a substream of this protocol, and closes it, to say that a circuit to the other end is wanted.
pub(crate) const CIRCUIT_WANTED_PROTOCOL: StreamProtocol = StreamProtocol::new("/peergrad/circuit/1");

/// The peers that this one is cut off from, and whether any of them looks for a circuit.
#[derive(Debug, Default)]
pub(crate) struct CutOff {
    /// Peers that are reached through a relay only: since when, and until when that was last so.
    relayed: BTreeMap<PeerId, (Instant, Instant)>,
    /// When a relay last said that a circuit to this peer is wanted; `None` if none has.
    wanted_at: Option<Instant>,
}

impl CutOff {
    /// A relay says that a circuit to this peer is wanted.
    pub(crate) fn want_circuit(&mut self, now: Instant) {
        self.wanted_at = Some(now);
    }

    /// Whether this peer should have reservations at relays although others can dial it.
    pub(crate) fn needs_relays(&self, now: Instant) -> bool {
        !self.relayed.is_empty() || self.wanted_at.is_some_and(|wanted_at| now < wanted_at + RESERVED_FOR)
    }

    /// Notes how a peer is reached now; `None` if it is not connected.
    pub(crate) fn note(&mut self, peer: PeerId, is_relayed: Option<bool>, now: Instant) {
        match is_relayed {
            Some(true) => self.relayed.entry(peer).or_insert((now, now)).1 = now,
            Some(false) => _ = self.relayed.remove(&peer),
            None => {}
        }
    }

    /// Forgets peers that have not been connected for a while. A circuit that ends is replaced sooner.
    pub(crate) fn forget_gone(&mut self, now: Instant) {
        self.relayed.retain(|_, (_, last)| now < *last + GONE_AFTER);
    }

    /// The peers that have been reached through a relay only for long.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &PeerId> {
        let is_lasting =
            |(_, (since, last)): &(&PeerId, &(Instant, Instant))| *last >= *since + CUT_OFF_AFTER;
        self.relayed.iter().filter(is_lasting).map(|(peer, _)| peer)
    }
}

/// How long a peer may be reached through a relay only before it counts as cut off. A direct connection, if one is possible, is usually
/// made within seconds.
const CUT_OFF_AFTER: Duration = Duration::from_secs(10);
/// After this time without a connection a peer is gone.
const GONE_AFTER: Duration = Duration::from_secs(60);
/// How long reservations are kept for a peer that looks for a circuit. It tries every second.
const RESERVED_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_cut_off_after_a_while_behind_a_relay_and_until_it_is_reached_directly() {
        let (mut cut_off, peer, now) = (CutOff::default(), PeerId::random(), Instant::now());
        cut_off.note(peer, Some(true), now);
        assert_eq!(cut_off.peers().next(), None, "a direct connection may follow");
        let later = now + CUT_OFF_AFTER;
        cut_off.note(peer, Some(true), later);
        assert_eq!(cut_off.peers().next(), Some(&peer));
        cut_off.note(peer, None, later);
        cut_off.forget_gone(later + GONE_AFTER / 2);
        assert_eq!(cut_off.peers().next(), Some(&peer), "the circuit is replaced");
        cut_off.forget_gone(later + GONE_AFTER);
        assert_eq!(cut_off.peers().next(), None, "it is gone");
        cut_off.note(peer, Some(true), now);
        cut_off.note(peer, Some(true), later);
        cut_off.note(peer, Some(false), later);
        assert_eq!(cut_off.peers().next(), None, "it can be reached");
    }

    #[test]
    fn relays_are_needed_while_a_circuit_is_wanted_or_used() {
        let (mut cut_off, peer, now) = (CutOff::default(), PeerId::random(), Instant::now());
        assert!(!cut_off.needs_relays(now));
        cut_off.want_circuit(now);
        assert!(cut_off.needs_relays(now) && !cut_off.needs_relays(now + RESERVED_FOR));
        cut_off.note(peer, Some(true), now);
        assert!(cut_off.needs_relays(now + RESERVED_FOR));
    }
}
