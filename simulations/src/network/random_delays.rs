//! Random delays: what distance, jitter and lost packets add to a transmission, and how long silence lasts before it is noticed.

use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::Transmission;
use crate::host::HostId;
use crate::links::Links;

/// The lines between hosts, and the generator of what varies on them.
pub(super) struct RandomDelays {
    /// The lines between hosts.
    pub(super) links: Links,
    /// The source of everything that varies.
    generator: ChaCha8Rng,
}

impl RandomDelays {
    /// Delays on these lines, as the seed decides.
    pub(super) fn new(links: Links, seed: u64) -> Self {
        Self { links, generator: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// From nothing to `most`, each with the same chance.
    pub(super) fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.generator.next_u64() % (most.as_nanos() as u64 + 1))
    }

    /// What the network adds to the latency of one frame.
    pub(super) fn jitter(&mut self) -> Duration {
        self.up_to(self.links.jitter)
    }

    /// The time from one host to another for one transmission, without the time that its bytes take.
    pub(super) fn transit_time(&mut self, transmission: &Transmission, from: HostId, to: HostId) -> Duration {
        let distance = self.links.distance(from, to);
        distance + self.jitter() + self.loss(transmission, distance)
    }

    /// The time that sending lost packets again costs a frame.
    fn loss(&mut self, transmission: &Transmission, distance: Duration) -> Duration {
        if self.links.loss_per_million == 0 {
            return Duration::ZERO;
        }
        let packets = transmission.byte_count().div_ceil(PACKET_BYTES).max(1) as u64;
        let is_lost =
            self.generator.next_u64() % 1_000_000 < packets * u64::from(self.links.loss_per_million);
        if is_lost { 2 * distance + RETRANSMISSION } else { Duration::ZERO }
    }

    /// How long one end waits in silence before it closes a connection.
    pub(super) fn silence_patience(&mut self) -> Duration {
        let patience = self.links.silence_patience;
        patience + self.up_to(patience / 4)
    }
}

/// Payload bytes of a packet.
const PACKET_BYTES: usize = 1400;
/// Time to notice a lost packet, in addition to a round trip.
const RETRANSMISSION: Duration = Duration::from_millis(10);
