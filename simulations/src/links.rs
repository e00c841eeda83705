//! Models of network links: latency, jitter, loss and bandwidth, with presets for common networks.
//!
//! A peer has one access line, shared by all that it sends and all that it receives. Between two peers there is a latency for one
//! direction; a round trip takes twice that.

use std::time::Duration;

use crate::host::HostId;

/// The network of a swarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// Latency of one direction between two peers of one region.
    pub latency: Duration,
    /// The most that is added to the latency; the amount differs for each frame.
    pub jitter: Duration,
    /// Packets lost of a million. A lost packet is sent again: that costs time, and delays the frames behind it on its link. The more are
    /// lost, the less a link carries, as with TCP.
    pub loss_per_million: u32,
    /// TCP connections of a link, 1 to 16. Where packets are lost, each carries as much. Real peers find by trying how many they need.
    pub connections: u32,
    /// Bits a second that a peer can send; `None` means no limit.
    pub up: Option<u64>,
    /// Bits a second that a peer can receive; `None` means no limit.
    pub down: Option<u64>,
    /// Latency of one direction between regions, added to `latency`; empty if there is one region. Peers are assigned to regions in turn.
    pub regions: Vec<Vec<Duration>>,
    /// How long a link is kept after its connection was reset, while no new connection is there.
    pub reset_patience: Duration,
    /// How long a peer may be silent before its link is down. Each end waits up to a quarter longer, at random.
    pub silence_patience: Duration,
}

impl Links {
    /// Machines on one switch: latency 0.2 to 0.5 ms, 1 Gbit/s.
    #[must_use]
    pub fn lan() -> Self {
        Self {
            latency: Duration::from_micros(200),
            jitter: Duration::from_micros(300),
            loss_per_million: 0,
            connections: 1,
            up: Some(1_000_000_000),
            down: Some(1_000_000_000),
            regions: vec![],
            reset_patience: Duration::from_secs(2),
            silence_patience: Duration::from_secs(8),
        }
    }

    /// Home connections in one country: 30 ms, 50 Mbit/s down, 10 Mbit/s up. Losses would limit a TCP connection to 24 Mbit/s.
    #[must_use]
    pub fn home() -> Self {
        Self {
            latency: Duration::from_millis(30),
            jitter: Duration::from_millis(5),
            loss_per_million: 100,
            up: Some(10_000_000),
            down: Some(50_000_000),
            ..Self::lan()
        }
    }

    /// Data centres in Europe, North America and Asia: 200 Mbit/s, 40 to 120 ms between them. Losses limit a TCP connection between two of
    /// them to 30 to 38 Mbit/s.
    #[must_use]
    pub fn continents() -> Self {
        let row = |millis: [u64; 3]| millis.map(Duration::from_millis).to_vec();
        Self {
            latency: Duration::from_millis(2),
            jitter: Duration::from_millis(2),
            loss_per_million: 50,
            up: Some(200_000_000),
            down: Some(200_000_000),
            regions: vec![row([0, 40, 110]), row([40, 0, 75]), row([110, 75, 0])],
            ..Self::lan()
        }
    }

    /// Latency from one peer to another, without jitter.
    #[must_use]
    pub fn distance(&self, from: HostId, to: HostId) -> Duration {
        let region = |host: HostId| host.index() % self.regions.len();
        let between = match self.regions.is_empty() {
            true => Duration::ZERO,
            false => self.regions[region(from)][region(to)],
        };
        self.latency + between
    }
}

/// How long `bytes` take at `rate` bits a second.
#[must_use]
pub fn sending_time(bytes: usize, rate: Option<u64>) -> Duration {
    let Some(rate) = rate else { return Duration::ZERO };
    Duration::from_nanos((bytes as u128 * 8 * 1_000_000_000 / u128::from(rate.max(1))) as u64)
}
