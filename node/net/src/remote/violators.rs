//! Violators: peers that hold the secret and break the protocol of lanes again and again. They are refused for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::PeerId;
use peergrad_protocol::limits::REJECTS_MAX;
use tokio::time::Instant;

/// The peers that have broken the protocol recently.
#[derive(Debug, Default)]
pub(crate) struct Violators {
    by_peer: BTreeMap<PeerId, Violator>,
}

#[derive(Debug)]
struct Violator {
    /// How many streams of this peer broke the protocol.
    streams: u32,
    /// When the last one did.
    last: Instant,
}

impl Violators {
    /// A stream of this peer has broken the protocol. Returns how many have.
    pub(crate) fn note(&mut self, peer: PeerId, now: Instant) -> u32 {
        self.by_peer.retain(|_, violator| now - violator.last < REFUSED_FOR);
        // A peer that holds the secret may take one identity after the other.
        if self.by_peer.len() >= VIOLATORS_MAX {
            let oldest = self.by_peer.iter().min_by_key(|(_, violator)| violator.last);
            let oldest = oldest.map(|(peer, _)| *peer).filter(|oldest| *oldest != peer);
            oldest.map(|oldest| self.by_peer.remove(&oldest));
        }
        let violator = self.by_peer.entry(peer).or_insert(Violator { streams: 0, last: now });
        violator.streams = violator.streams.saturating_add(1);
        violator.last = now;
        violator.streams
    }

    /// Whether connections with this peer are closed at once.
    pub(crate) fn is_refused(&self, peer: &PeerId, now: Instant) -> bool {
        let is_last = |it: &Violator| it.streams >= REJECTS_MAX && now - it.last < REFUSED_FOR;
        self.by_peer.get(peer).is_some_and(is_last)
    }
}

/// For how long a violation counts.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// How many peers are remembered.
const VIOLATORS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_refused_for_a_minute_after_many_bad_streams() {
        let (mut violators, peer, now) = (Violators::default(), PeerId::random(), Instant::now());
        (1..REJECTS_MAX).for_each(|count| assert_eq!(violators.note(peer, now), count));
        assert!(!violators.is_refused(&peer, now));
        violators.note(peer, now);
        assert!(violators.is_refused(&peer, now) && !violators.is_refused(&PeerId::random(), now));
        assert!(!violators.is_refused(&peer, now + REFUSED_FOR));
        assert_eq!(violators.note(peer, now + REFUSED_FOR), 1);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (mut violators, now) = (Violators::default(), Instant::now());
        for _ in 0..2 * VIOLATORS_MAX {
            violators.note(PeerId::random(), now);
        }
        assert_eq!(violators.by_peer.len(), VIOLATORS_MAX);
    }
}
