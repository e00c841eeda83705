//! Random numbers of a sweep, a function of its seed.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// A sequence of random numbers.
#[derive(Debug)]
pub(super) struct Random(ChaCha8Rng);

impl Random {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Self(ChaCha8Rng::from_seed(seed))
    }

    /// From 0 on, below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `count`, and any number.
    pub(super) fn pair(&mut self, count: usize) -> [u32; 2] {
        let bits = self.0.next_u64();
        [(((bits >> 32) * count as u64) >> 32) as u32, bits as u32]
    }
}
