//! Round trips: how long frames take to a peer and back. A peer whose frames always arrive late delays each step several times.
//!
//! What is in flight before a heartbeat delays it, and so does a long line; neither is a fault. Frames that take seconds over a line that is
//! mostly idle are one.
//!
//! # How it works
//! 1. Each heartbeat names the newest one that its sender has received. The receiver knows when it sent that one: the time since then is a
//!    round trip, up to a heartbeat interval too long.
//! 2. The shortest recent trip counts. A pause or an overloaded moment makes some trips longer, not all.
//! 3. A trip is *clear* if neither end had sent much that had not arrived: what a member sends to a third one stands in front of its
//!    heartbeats as well. Each says so of itself. Data wait in the sender until its line has carried them, and for seconds if that is slow.
//! 4. A peer is late if even its shortest trip takes longer than any line, half of its trips are clear, and most of the other peers, two at
//!    least, are more than twice as fast. What delays this peer itself makes all of its trips longer.
//!
//! # Not here
//! What other programs send over the same line. Whether one complaint is enough: `membership/complaints.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use peergrad_protocol::message::SentFrames;
use peergrad_protocol::{Instant, PeerId};

/// The round trips to all peers with a link.
#[derive(Default)]
pub(super) struct RoundTrips {
    by_peer: BTreeMap<PeerId, Link>,
    /// The interval between the heartbeats of a member of the present view.
    heartbeat_interval: Duration,
}

/// The round trips over one link.
#[derive(Default)]
struct Link {
    /// This peer's heartbeats that the other one has not named yet, the oldest first.
    unanswered: VecDeque<SentHeartbeat>,
    /// The trips of the last [`RECENT`], the oldest first.
    recent: VecDeque<Trip>,
}

struct SentHeartbeat {
    /// What it said of the frames before it, by which it is named.
    sent: SentFrames,
    at: Instant,
    /// Whether much was on its way from this peer.
    is_busy: bool,
}

struct Trip {
    ended: Instant,
    duration: Duration,
    /// Whether neither end had sent much that had not arrived.
    is_clear: bool,
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

    /// A view begins whose members send a heartbeat in each such interval. Forgets all trips, but not what is on its way.
    pub(super) fn restart(&mut self, heartbeat_interval: Duration) {
        self.heartbeat_interval = heartbeat_interval;
        self.by_peer.values_mut().for_each(|link| link.recent.clear());
    }

    /// A heartbeat is sent, with this count of the frames before it. `is_busy` says whether much is on its way from here to whatever peer.
    pub(super) fn note_sent(&mut self, now: Instant, to: &PeerId, sent: SentFrames, is_busy: bool) {
        let Some(link) = self.by_peer.get_mut(to) else { return };
        if link.unanswered.len() == UNANSWERED_MAX {
            link.unanswered.pop_front();
        }
        link.unanswered.push_back(SentHeartbeat { sent, at: now, is_busy });
    }

    /// A heartbeat has arrived, which names this one of this peer's own as the newest that its sender has received. `is_busy` says whether
    /// much is on its way from one of the two to whatever peer.
    pub(super) fn note_heard(&mut self, now: Instant, from: &PeerId, heard: SentFrames, is_busy: bool) {
        let Some(link) = self.by_peer.get_mut(from) else { return };
        // A heartbeat that is named twice, or was never sent, tells nothing.
        let Some(index) = link.unanswered.iter().position(|heartbeat| heartbeat.sent == heard) else {
            return;
        };
        let heartbeat = link.unanswered.drain(..=index).next_back().expect("the one at the index");
        let is_clear = !is_busy && !heartbeat.is_busy;
        link.recent.push_back(Trip { ended: now, duration: now.since(heartbeat.at), is_clear });
        while link.recent.front().is_some_and(|trip| now.since(trip.ended) > RECENT) {
            link.recent.pop_front();
        }
    }

    /// Whether this peer's frames are late.
    pub(super) fn is_late(&self, now: Instant, peer: &PeerId) -> bool {
        let late_min = LINE_MAX + self.heartbeat_interval;
        let Some(link) = self.by_peer.get(peer) else { return false };
        let Some(shortest) = link.shortest(now).filter(|shortest| *shortest >= late_min) else {
            return false;
        };
        if link.recent.len() < TRIPS_MIN || link.observed_for(now) < OBSERVED_MIN || !link.is_mostly_clear() {
            return false;
        }
        let others = self.by_peer.iter().filter(|(other, _)| *other != peer);
        let trips: Vec<Duration> = others.filter_map(|(_, link)| link.shortest(now)).collect();
        let faster = trips.iter().filter(|trip| 2 * **trip <= shortest).count();
        faster >= FASTER_MIN && 2 * faster > trips.len()
    }
}

impl Link {
    /// The shortest recent trip.
    fn shortest(&self, now: Instant) -> Option<Duration> {
        let recent = self.recent.iter().filter(|trip| now.since(trip.ended) <= RECENT);
        recent.map(|trip| trip.duration).min()
    }

    /// How long ago the oldest recent trip ended.
    fn observed_for(&self, now: Instant) -> Duration {
        self.recent.front().map_or(Duration::ZERO, |trip| now.since(trip.ended))
    }

    /// Whether at least half of the recent trips are clear.
    fn is_mostly_clear(&self) -> bool {
        2 * self.recent.iter().filter(|trip| trip.is_clear).count() >= self.recent.len()
    }
}

/// For how long a trip counts.
const RECENT: Duration = Duration::from_secs(10);
/// For how long trips must have been observed.
const OBSERVED_MIN: Duration = Duration::from_secs(4);
/// No line takes longer: a connection over two satellites takes 1.2 s. A heartbeat also waits for the next one of the other peer.
const LINE_MAX: Duration = Duration::from_millis(1500);
/// How many other peers must be faster: of two slow lines behind one router, each would be compared with the other one alone.
const FASTER_MIN: usize = 2;
/// How many trips are needed.
const TRIPS_MIN: usize = 8;
/// Heartbeats of more than a minute.
const UNANSWERED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::peer;

    /// So many heartbeats in turn are sent while the peer's line is busy, and while it is not; `None`: it is never busy.
    type Load = Option<u64>;

    const INTERVAL: Duration = Duration::from_millis(250);

    const LITTLE: Load = None;
    const FULL: Load = Some(u64::MAX);

    /// Ten seconds of heartbeats to peers, each of which answers after so many milliseconds, with these loads. Returns which
    /// peers are late.
    fn late(peers: &[(u64, Load)]) -> Vec<bool> {
        let mut trips = RoundTrips::default();
        trips.restart(INTERVAL);
        let id = |index: usize| peer(index as u8 + 1);
        (0..peers.len()).for_each(|index| trips.link_up(id(index)));
        let at = |milliseconds| Instant(0).after(Duration::from_millis(milliseconds));
        for milliseconds in (0..10_000).step_by(50) {
            for (index, (delay, load)) in peers.iter().enumerate() {
                let number = milliseconds / 250;
                if milliseconds % 250 == 0 {
                    trips.note_sent(at(milliseconds), &id(index), sent(number), false);
                }
                if let Some(begun) = milliseconds.checked_sub(*delay).filter(|begun| begun % 250 == 0) {
                    let is_busy = load.is_some_and(|every| (number / every) % 2 == 0);
                    trips.note_heard(at(milliseconds), &id(index), sent(begun / 250), is_busy);
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
        assert_eq!(late(&[(2000, LITTLE), (50, LITTLE), (300, LITTLE)]), [true, false, false]);
        assert_eq!(late(&[(2000, LITTLE), (50, LITTLE)]), [false, false], "only one to compare with");
        assert_eq!(late(&[(1500, LITTLE), (50, LITTLE), (50, LITTLE)]), [false; 3], "a long line");
    }

    #[test]
    fn data_in_front_of_heartbeats_is_no_fault() {
        assert_eq!(late(&[(2000, FULL), (50, LITTLE), (50, LITTLE)]), [false; 3]);
        let others = late(&[(2000, LITTLE), (50, FULL), (50, FULL)]);
        assert_eq!(others, [true, false, false], "the load of others does not matter");
    }

    #[test]
    fn what_delays_this_peer_is_not_held_against_others() {
        assert_eq!(late(&[(2000, LITTLE), (2100, LITTLE), (3000, LITTLE)]), [false; 3]);
        assert_eq!(late(&[(2000, LITTLE)]), [false], "there is nobody to compare with");
        assert_eq!(
            late(&[(2000, LITTLE), (2000, LITTLE), (2000, LITTLE), (50, LITTLE)]),
            [false; 4],
            "most are slow"
        );
    }

    #[test]
    fn one_short_trip_among_long_ones_shows_that_the_line_is_not_the_reason() {
        let mut trips = RoundTrips::default();
        trips.restart(INTERVAL);
        let at = |milliseconds| Instant(0).after(Duration::from_millis(milliseconds));
        for index in [1, 2, 3] {
            trips.link_up(peer(index));
        }
        for count in 0..30 {
            let begun = 250 * count;
            let delay = if count == 20 { 200 } else { 2000 };
            for (index, delay) in [(1, delay), (2, 50), (3, 50)] {
                trips.note_sent(at(begun), &peer(index), sent(count), false);
                trips.note_heard(at(begun + delay), &peer(index), sent(count), false);
            }
        }
        assert!(!trips.is_late(at(9_500), &peer(1)));
        trips.restart(INTERVAL);
        assert!(!trips.is_late(at(9_500), &peer(1)), "nothing is known");
    }
}
