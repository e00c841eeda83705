//! Round trips: how long frames take to a peer and back. A peer whose frames always arrive late delays each step several times.
//!
//! A link carries frames in order. So much data in front of a heartbeat delays it, and so does a long line; neither is a fault. Frames that
//! take seconds over a link that carries almost nothing are one.
//!
//! # How it works
//! 1. Each heartbeat names the newest one that its sender has received. The receiver knows when it sent that one: the time since then is a
//!    round trip, up to a heartbeat interval too long.
//! 2. The shortest recent trip counts. A pause or an overloaded moment makes some trips longer, not all.
//! 3. A peer is late if even its shortest trip is longer than any line, over a quiet link, and half of the other peers are more than twice
//!    as fast. What delays this peer itself makes all of its trips longer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use peergrad_protocol::message::SentFrames;
use peergrad_protocol::{Instant, PeerId};

/// The round trips to all peers with a link.
#[derive(Default)]
pub(super) struct RoundTrips {
    by_peer: BTreeMap<PeerId, Link>,
}

/// The round trips over one link.
#[derive(Default)]
struct Link {
    /// Bytes of all frames in both directions so far.
    bytes: u64,
    /// This peer's heartbeats that the other one has not named yet, the oldest first.
    unanswered: VecDeque<SentHeartbeat>,
    /// `bytes` when the newest heartbeat was sent that the other peer has named.
    answered_bytes: u64,
    /// The trips of the last [`RECENT`], the oldest first.
    recent: VecDeque<Trip>,
}

struct SentHeartbeat {
    /// What it said of the frames before it, by which it is named.
    sent: SentFrames,
    at: Instant,
    /// The link's `answered_bytes` and `bytes` when it was sent.
    bytes: (u64, u64),
}

struct Trip {
    ended: Instant,
    duration: Duration,
    /// Whether the link carried almost nothing meanwhile.
    is_quiet: bool,
}

impl RoundTrips {
    /// There is a new link to this peer.
    pub(super) fn link_up(&mut self, peer: PeerId) {
        self.by_peer.insert(peer, Link::default());
    }

    /// The link to this peer is down.
    pub(super) fn link_down(&mut self, peer: &PeerId) {
        self.by_peer.remove(peer);
    }

    /// Forgets all trips, but not what is on its way.
    pub(super) fn restart(&mut self) {
        self.by_peer.values_mut().for_each(|link| link.recent.clear());
    }

    /// A frame of so many bytes is sent to this peer, or has arrived from it.
    pub(super) fn note_bytes(&mut self, peer: &PeerId, bytes: usize) {
        if let Some(link) = self.by_peer.get_mut(peer) {
            link.bytes += bytes as u64;
        }
    }

    /// A heartbeat is sent, with this count of the frames before it.
    pub(super) fn note_sent(&mut self, now: Instant, to: &PeerId, sent: SentFrames) {
        let Some(link) = self.by_peer.get_mut(to) else { return };
        if link.unanswered.len() == UNANSWERED_MAX {
            link.unanswered.pop_front();
        }
        let bytes = (link.answered_bytes, link.bytes);
        link.unanswered.push_back(SentHeartbeat { sent, at: now, bytes });
    }

    /// A heartbeat has arrived, which names this one of this peer's own as the newest that its sender has received.
    pub(super) fn note_heard(&mut self, now: Instant, from: &PeerId, heard: SentFrames) {
        let Some(link) = self.by_peer.get_mut(from) else { return };
        // A heartbeat that is named twice, or was never sent, tells nothing.
        let Some(index) = link.unanswered.iter().position(|heartbeat| heartbeat.sent == heard) else {
            return;
        };
        let heartbeat = link.unanswered.drain(..=index).next_back().expect("the one at the index");
        let (bytes_before, bytes) = heartbeat.bytes;
        link.answered_bytes = bytes;
        let is_quiet = link.bytes - bytes_before <= QUIET_BYTES;
        link.recent.push_back(Trip { ended: now, duration: now.since(heartbeat.at), is_quiet });
        while link.recent.front().is_some_and(|trip| now.since(trip.ended) > RECENT) {
            link.recent.pop_front();
        }
    }

    /// Whether this peer's frames are late.
    pub(super) fn is_late(&self, now: Instant, peer: &PeerId) -> bool {
        let Some(shortest) = self.by_peer.get(peer).and_then(Link::shortest_quiet) else { return false };
        if shortest < LATE_MIN || self.by_peer[peer].observed_for(now) < OBSERVED_MIN {
            return false;
        }
        let others = self.by_peer.iter().filter(|(other, _)| *other != peer);
        let trips: Vec<Duration> = others.filter_map(|(_, link)| link.shortest()).collect();
        let faster = trips.iter().filter(|trip| 2 * **trip <= shortest).count();
        faster > 0 && 2 * faster >= trips.len()
    }
}

impl Link {
    /// The shortest recent trip.
    fn shortest(&self) -> Option<Duration> {
        self.recent.iter().map(|trip| trip.duration).min()
    }

    /// The same; `None` if too few of the trips were over a quiet link.
    fn shortest_quiet(&self) -> Option<Duration> {
        let quiet = self.recent.iter().filter(|trip| trip.is_quiet).count();
        self.shortest().filter(|_| quiet >= QUIET_TRIPS_MIN)
    }

    /// How long ago the oldest recent trip began.
    fn observed_for(&self, now: Instant) -> Duration {
        self.recent.front().map_or(Duration::ZERO, |trip| now.since(trip.ended))
    }
}

/// For how long a trip counts.
const RECENT: Duration = Duration::from_secs(10);
/// For how long trips must have been observed.
const OBSERVED_MIN: Duration = Duration::from_secs(4);
/// No line takes so long. A connection over two satellites takes 1.2 s, and a heartbeat waits up to 250 ms for the next one.
const LATE_MIN: Duration = Duration::from_millis(1750);
/// How many trips over a quiet link are needed.
const QUIET_TRIPS_MIN: usize = 8;
/// The most bytes that a quiet link carries in both directions during a trip and the one before: less than the slowest modem could.
const QUIET_BYTES: u64 = 32 << 10;
/// Heartbeats of more than a minute.
const UNANSWERED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::peer;

    /// Ten seconds of heartbeats to peers, each of which answers after so many milliseconds and gets so many bytes with each heartbeat.
    /// Returns whether each one is late.
    fn late(peers: &[(u64, usize)]) -> Vec<bool> {
        let mut trips = RoundTrips::default();
        let id = |index: usize| peer(index as u8 + 1);
        (0..peers.len()).for_each(|index| trips.link_up(id(index)));
        let at = |milliseconds| Instant(0).after(Duration::from_millis(milliseconds));
        for milliseconds in (0..10_000).step_by(50) {
            for (index, (delay, bytes)) in peers.iter().enumerate() {
                if milliseconds % 250 == 0 {
                    trips.note_bytes(&id(index), *bytes);
                    trips.note_sent(at(milliseconds), &id(index), sent(milliseconds / 250));
                }
                if let Some(begun) = milliseconds.checked_sub(*delay).filter(|begun| begun % 250 == 0) {
                    trips.note_heard(at(milliseconds), &id(index), sent(begun / 250));
                }
            }
        }
        (0..peers.len()).map(|index| trips.is_late(at(10_000), &id(index))).collect()
    }

    fn sent(count: u64) -> SentFrames {
        SentFrames { link: 1, count }
    }

    #[test]
    fn a_peer_that_takes_seconds_while_others_do_not_is_late() {
        assert_eq!(late(&[(2000, 100), (50, 100), (300, 100)]), [true, false, false]);
        assert_eq!(late(&[(2000, 100), (50, 100)]), [true, false]);
        assert_eq!(late(&[(1500, 100), (50, 100)]), [false, false], "a long line");
    }

    #[test]
    fn data_in_front_of_heartbeats_is_no_fault() {
        assert_eq!(late(&[(2000, 8_000), (50, 100)]), [false, false]);
    }

    #[test]
    fn what_delays_this_peer_is_not_held_against_others() {
        assert_eq!(late(&[(2000, 100), (2100, 100), (3000, 100)]), [false; 3]);
        assert_eq!(late(&[(2000, 100)]), [false], "there is nobody to compare with");
        assert_eq!(late(&[(2000, 100), (2000, 100), (2000, 100), (50, 100)]), [false; 4], "most are slow");
    }

    #[test]
    fn one_short_trip_among_long_ones_shows_that_the_line_is_not_the_reason() {
        let mut trips = RoundTrips::default();
        let at = |milliseconds| Instant(0).after(Duration::from_millis(milliseconds));
        for index in [1, 2] {
            trips.link_up(peer(index));
        }
        for count in 0..30 {
            let begun = 250 * count;
            let delay = if count == 20 { 200 } else { 2000 };
            for (index, delay) in [(1, delay), (2, 50)] {
                trips.note_sent(at(begun), &peer(index), sent(count));
                trips.note_heard(at(begun + delay), &peer(index), sent(count));
            }
        }
        assert!(!trips.is_late(at(9_500), &peer(1)));
        trips.restart();
        assert!(!trips.is_late(at(9_500), &peer(1)), "nothing is known");
    }
}
