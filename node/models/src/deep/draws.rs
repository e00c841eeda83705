//! What is drawn at random for a sample while it is trained: dropout, and changes of pictures.
//!
//! Each draw is a function of the run's seed, the epoch, the sample and the place in the network. So a sample that is dealt again, or to
//! another member, gets the same.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// What a sample draws from in one epoch.
#[must_use]
pub fn sample_seed(run_seed: u64, epoch: u64, sample: u32) -> u64 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&run_seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..20].copy_from_slice(&sample.to_le_bytes());
    key[20..26].copy_from_slice(b"sample");
    ChaCha8Rng::from_seed(key).next_u64()
}

/// A generator for one place: a layer, or a change of the picture.
#[must_use]
pub fn generator(sample_seed: u64, place: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&sample_seed.to_le_bytes());
    key[8..16].copy_from_slice(&place.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Factors of dropout: 0 with a probability of `share`, and otherwise `1 / (1 - share)`, so that the mean stays (Srivastava et al.,
/// "Dropout", 2014, section 10).
///
/// - `factors`: overwritten.
pub fn dropout(sample_seed: u64, place: u64, share: f32, factors: &mut [f32]) {
    let mut generator = generator(sample_seed, place);
    let threshold = (f64::from(share) * f64::from(u32::MAX)) as u32;
    let kept = 1.0 / (1.0 - share);
    for factor in factors {
        *factor = if generator.next_u32() < threshold { 0.0 } else { kept };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_epochs_draw_differently() {
        let seed = sample_seed(7, 0, 0);
        assert_eq!(seed, sample_seed(7, 0, 0));
        for other in [sample_seed(8, 0, 0), sample_seed(7, 1, 0), sample_seed(7, 0, 1)] {
            assert_ne!(seed, other);
        }
    }

    #[test]
    fn dropout_keeps_the_mean() {
        let mut factors = vec![0.0; 10_000];
        dropout(1, 2, 0.25, &mut factors);
        let dropped = factors.iter().filter(|&&factor| factor == 0.0).count();
        assert!((2300..2700).contains(&dropped), "{dropped}");
        assert!(factors.iter().all(|&factor| factor == 0.0 || factor == 1.0 / 0.75));
        let mut again = vec![0.0; 10_000];
        dropout(1, 3, 0.25, &mut again);
        assert_ne!(factors, again, "another layer");
    }
}
