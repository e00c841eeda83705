//! Counters: how much went over all links, and how long was computed, for the summary at the end.
//!
//! Bytes are counted where frames are written and read, acknowledgements included; what Noise, yamux, TLS, QUIC and TCP add is
//! not in them (a few percent).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::link::Way;

/// Counted by all links and jobs of a process together.
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
    computing_nanoseconds: AtomicU64,
}

/// What the counters showed at one moment.
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
    /// Streams that were closed because what came over them was no frame.
    pub bad_streams: u64,
    /// Times a link went on after its connection had broken.
    pub resumed_links: u64,
    /// Of the bytes that were written to links, those that went over direct lanes.
    pub direct_bytes: u64,
    /// Connections to the port for direct lanes that showed no right to be there.
    pub refused_strangers: u64,
}

impl Counters {
    /// What the counters show.
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
            refused_strangers: show(&self.refused_strangers),
        }
    }

    /// For how long the jobs so far were computed.
    #[must_use]
    pub fn computing(&self) -> Duration {
        Duration::from_nanos(self.computing_nanoseconds.load(Ordering::Relaxed))
    }

    pub(super) fn add_computing(&self, time: Duration) {
        self.computing_nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn add_sent_bytes(&self, byte_count: usize) {
        self.sent_bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
    }

    pub(super) fn add_sent_frame(&self, way: Way, byte_count: usize) {
        self.sent_frames.fetch_add(1, Ordering::Relaxed);
        self.add_sent_bytes(byte_count);
        if way == Way::Direct {
            self.direct_bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn add_received_bytes(&self, byte_count: usize) {
        self.received_bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
    }

    pub(super) fn add_received_frame(&self, byte_count: usize) {
        self.received_frames.fetch_add(1, Ordering::Relaxed);
        self.add_received_bytes(byte_count);
    }

    pub(super) fn add_bad_stream(&self) {
        self.bad_streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_resumed_link(&self) {
        self.resumed_links.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one more, and says how many there are.
    pub(super) fn add_refused_stranger(&self) -> u64 {
        self.refused_strangers.fetch_add(1, Ordering::Relaxed) + 1
    }
}
