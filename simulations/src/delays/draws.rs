//! The random choices of a study, each a function of the seed and of its purpose.

use peergrad_protocol::cursor::permutation;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The extra iterations before the update that worker `from` makes in `iteration` reaches worker `to`: uniform in `0..=staleness`.
#[must_use]
pub fn delay(seed: u64, from: u32, to: u32, iteration: u64, staleness: u64) -> u64 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&iteration.to_le_bytes());
    key[16..20].copy_from_slice(&from.to_le_bytes());
    key[20..24].copy_from_slice(&to.to_le_bytes());
    key[24..30].copy_from_slice(b"delays");
    // Multiply and shift, as in a permutation.
    let draw = u128::from(ChaCha8Rng::from_seed(key).next_u64());
    ((draw * (u128::from(staleness) + 1)) >> 64) as u64
}

/// The order of samples: one permutation for each epoch, from which the batches are taken in turn.
pub(super) struct Samples {
    seed: u64,
    epoch: u64,
    order: Vec<u32>,
    position: usize,
    batch: Vec<u32>,
}

impl Samples {
    pub(super) fn new(seed: u64, count: u32) -> Self {
        Self { seed, epoch: 0, order: permutation(seed, 0, count), position: 0, batch: Vec::new() }
    }

    /// The next `count` samples; a batch may span two epochs.
    pub(super) fn take(&mut self, count: u32) -> &[u32] {
        self.batch.clear();
        for _ in 0..count {
            if self.position == self.order.len() {
                self.epoch += 1;
                self.order = permutation(self.seed, self.epoch, self.order.len() as u32);
                self.position = 0;
            }
            self.batch.push(self.order[self.position]);
            self.position += 1;
        }
        &self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_go_through_epoch_after_epoch() {
        let mut samples = Samples::new(3, 10);
        let taken: Vec<u32> = (0..10).flat_map(|_| samples.take(7).to_vec()).collect();
        let expected: Vec<u32> = (0..7).flat_map(|epoch| permutation(3, epoch, 10)).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn delays_are_uniform_and_independent() {
        for staleness in [0, 1, 4, 16] {
            let mut counts = vec![0_u32; staleness as usize + 1];
            let (mut same, mut all) = (0, 0);
            for iteration in 0..1000 {
                for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
                    let drawn = delay(9, from, to, iteration, staleness);
                    counts[drawn as usize] += 1;
                    let others = [
                        delay(8, from, to, iteration, staleness),
                        delay(9, from + 4, to, iteration, staleness),
                        delay(9, from, to + 4, iteration, staleness),
                        delay(9, from, to, iteration + 1000, staleness),
                    ];
                    same += others.iter().filter(|other| **other == drawn).count();
                    all += others.len();
                }
            }
            let share = 1.0 / counts.len() as f64;
            let is_near =
                |found: f64, of: f64| (found - of * share).abs() <= 4.5 * (of * share * (1.0 - share)).sqrt();
            assert!(counts.iter().all(|count| is_near(f64::from(*count), 16_000.0)), "{counts:?}");
            assert!(is_near(same as f64, all as f64), "{staleness}: {same} of {all} are the same");
        }
    }
}
