//! Counters: how many bytes and frames went over all links, and how long jobs were computed, for the summary at the end.
//!
//! Bytes are counted where frames are written and read, with acknowledgements. The overhead of Noise, yamux, TLS, QUIC and TCP,
//! a few percent, is not counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use peergrad_core::io::Line;
use peergrad_protocol::PeerId;
use peergrad_protocol::limits::MEMBERS_MAX;

use super::link::LaneKind;

/// The counters of a process, shared by all its links and jobs.
#[derive(Debug, Default)]
pub struct Counters {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    sent_frames: AtomicU64,
    received_frames: AtomicU64,
    bad_streams: AtomicU64,
    resumed_links: AtomicU64,
    direct_bytes: AtomicU64,
    refused_strangers: AtomicU64,
    refused_connections: AtomicU64,
    computing_nanoseconds: AtomicU64,
    /// The bytes again for each peer at the other end, and the line to it, also of links that have ended.
    peers: Mutex<BTreeMap<PeerId, Arc<PeerCounters>>>,
}

/// The bytes to and from one peer.
#[derive(Debug, Default)]
struct PeerCounters {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// The line to it, as last measured.
    line: Mutex<Option<Line>>,
}

impl PeerCounters {
    /// A panic elsewhere cannot leave the line half-changed.
    fn line(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters for one lane: each byte is counted in total and for the lane's peer.
#[derive(Debug)]
pub(super) struct LaneCounters<'a> {
    all: &'a Counters,
    /// The counters of the peer; `None` for peers beyond the number that is counted one by one.
    peer: Option<Arc<PeerCounters>>,
}

/// The values of the counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes written to links; a frame that was sent again counts again.
    pub sent_bytes: u64,
    /// Bytes read from links.
    pub received_bytes: u64,
    /// Frames written to links.
    pub sent_frames: u64,
    /// Frames read from links.
    pub received_frames: u64,
    /// Streams that were closed because the bytes on them were not a frame.
    pub bad_streams: u64,
    /// How often a link resumed after its connection had broken.
    pub resumed_links: u64,
    /// Of the bytes that were written to links, those that went over direct lanes.
    pub direct_bytes: u64,
    /// Connections that this peer refused because the other end had not proved the secret.
    pub refused_strangers: u64,
}

impl Counters {
    /// The current values.
    #[must_use]
    pub fn read(&self) -> Traffic {
        let show = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            sent_bytes: show(&self.sent_bytes),
            received_bytes: show(&self.received_bytes),
            sent_frames: show(&self.sent_frames),
            received_frames: show(&self.received_frames),
            bad_streams: show(&self.bad_streams),
            resumed_links: show(&self.resumed_links),
            direct_bytes: show(&self.direct_bytes),
            refused_strangers: show(&self.refused_strangers) + show(&self.refused_connections),
        }
    }

    /// The total time that jobs were computed.
    #[must_use]
    pub fn computing(&self) -> Duration {
        Duration::from_nanos(self.computing_nanoseconds.load(Ordering::Relaxed))
    }

    pub(super) fn add_computing(&self, time: Duration) {
        self.computing_nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The counters for a lane of this peer's link.
    pub(super) fn with(&self, peer: PeerId) -> LaneCounters<'_> {
        let mut peers = self.peers();
        let has_room = peers.len() < PEERS_MAX || peers.contains_key(&peer);
        let peer = has_room.then(|| Arc::clone(peers.entry(peer).or_default()));
        LaneCounters { all: self, peer }
    }

    /// For each peer, the bytes that were written to its links and the bytes that were read from them.
    #[must_use]
    pub fn by_peer(&self) -> BTreeMap<PeerId, (u64, u64)> {
        let show = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let both = |one: &Arc<PeerCounters>| (show(&one.sent_bytes), show(&one.received_bytes));
        self.peers().iter().map(|(peer, one)| (*peer, both(one))).collect()
    }

    /// The lines to other peers, as last measured; without those that were not.
    #[must_use]
    pub fn lines(&self) -> BTreeMap<PeerId, Line> {
        self.peers().iter().filter_map(|(peer, one)| Some((*peer, (*one.line())?))).collect()
    }

    /// A panic elsewhere cannot leave the map half-changed.
    fn peers(&self) -> MutexGuard<'_, BTreeMap<PeerId, Arc<PeerCounters>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_bad_stream(&self) {
        self.bad_streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_resumed_link(&self) {
        self.resumed_links.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts connections that were refused at the port of libp2p.
    pub(super) fn add_refused_connections(&self, count: u64) {
        self.refused_connections.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts one more connection that was refused at the port for direct lanes, and returns how many there are.
    pub(super) fn add_refused_stranger(&self) -> u64 {
        self.refused_strangers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl LaneCounters<'_> {
    pub(super) fn add_sent_bytes(&self, byte_count: usize) {
        self.all.sent_bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
        if let Some(peer) = &self.peer {
            peer.sent_bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn add_sent_frame(&self, lane_kind: LaneKind, byte_count: usize) {
        self.all.sent_frames.fetch_add(1, Ordering::Relaxed);
        self.add_sent_bytes(byte_count);
        if lane_kind == LaneKind::Direct {
            self.all.direct_bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn add_received_bytes(&self, byte_count: usize) {
        self.all.received_bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
        if let Some(peer) = &self.peer {
            peer.received_bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
        }
    }

    /// The line of the lane was measured again.
    pub(super) fn note_line(&self, line: Line) {
        if let Some(peer) = &self.peer {
            *peer.line() = Some(line);
        }
    }

    pub(super) fn add_received_frame(&self, byte_count: usize) {
        self.all.received_frames.fetch_add(1, Ordering::Relaxed);
        self.add_received_bytes(byte_count);
    }
}

/// Peers whose bytes are counted one by one. Peers could come and go with new identities without end.
const PEERS_MAX: usize = 2 * MEMBERS_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_in_total_and_per_peer() {
        let counters = Counters::default();
        let [first, second] = [1, 2].map(|byte| PeerId([byte; 32]));
        counters.with(first).add_sent_frame(LaneKind::Direct, 10);
        // A lane that ended and another one of the same peer.
        counters.with(first).add_sent_frame(LaneKind::Substream, 5);
        counters.with(second).add_received_frame(7);
        let Traffic { sent_bytes, received_bytes, sent_frames, received_frames, direct_bytes, .. } =
            counters.read();
        assert_eq!((sent_bytes, received_bytes, direct_bytes), (15, 7, 10));
        assert_eq!((sent_frames, received_frames), (2, 1));
        assert_eq!(counters.by_peer(), BTreeMap::from([(first, (15, 0)), (second, (0, 7))]));
        let line = Line::without_losses(Duration::from_millis(100), 25_000_000);
        counters.with(second).note_line(line);
        assert_eq!(counters.lines(), BTreeMap::from([(second, line)]));
    }

    #[test]
    fn peers_beyond_the_limit_are_counted_only_in_total() {
        let counters = Counters::default();
        for number in 0..PEERS_MAX as u64 + 3 {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_le_bytes());
            counters.with(PeerId(id)).add_sent_bytes(1);
        }
        assert_eq!(counters.by_peer().len(), PEERS_MAX);
        assert_eq!(counters.read().sent_bytes, PEERS_MAX as u64 + 3);
    }
}
