//! The tensors of a deep network: their names, their shapes, and how they start.

use std::f64::consts::TAU;

use peergrad_protocol::manifest::Manifest;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// A tensor of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Its name, which PyTorch uses for the same tensor.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How it starts.
    pub start: Start,
    /// Whether it is no parameter but a statistic, whose mean over samples replaces it after each step.
    pub is_statistic: bool,
}

/// How a tensor starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// All elements have this value.
    Constant(f32),
    /// Uniform in `-limit..limit`.
    Uniform {
        /// The limit.
        limit: f32,
    },
    /// Normal with a mean of 0.
    Normal {
        /// The standard deviation.
        deviation: f32,
    },
}

impl TensorSpec {
    /// A tensor of this name, shape and start.
    pub(super) fn new(name: String, shape: &[usize], start: Start) -> Self {
        Self { name, shape: shape.to_vec(), start, is_statistic: false }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Names and shapes of these tensors.
///
/// # Panics
/// If an extent is 2^32 or more.
pub fn manifest(tensors: &[TensorSpec]) -> Manifest {
    let extent = |&extent: &usize| u32::try_from(extent).expect("an extent below 2^32");
    let shapes: Vec<Vec<u32>> =
        tensors.iter().map(|tensor| tensor.shape.iter().map(extent).collect()).collect();
    Manifest::new(tensors.iter().zip(&shapes).map(|(tensor, shape)| (tensor.name.as_str(), shape.as_slice())))
}

/// Fills `parameters` with the first values of these tensors, which are drawn in the order of the indices.
pub(super) fn initial(
    indices: impl Iterator<Item = usize>,
    tensors: &[TensorSpec],
    seed: u64,
    parameters: &mut [f32],
) {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[16..28].copy_from_slice(b"initial deep");
    let mut generator = ChaCha8Rng::from_seed(key);
    let ends = tensors.iter().scan(0, |end, tensor| {
        *end += tensor.len();
        Some(*end)
    });
    let ends: Vec<usize> = ends.collect();
    for index in indices {
        let tensor = &tensors[index];
        let values = &mut parameters[ends[index] - tensor.len()..ends[index]];
        match tensor.start {
            Start::Constant(value) => values.fill(value),
            Start::Uniform { limit } => {
                values
                    .iter_mut()
                    .for_each(|value| *value = limit * (2.0 * unit(&mut generator) - 1.0) as f32);
            }
            Start::Normal { deviation } => {
                values.iter_mut().for_each(|value| *value = deviation * normal(&mut generator));
            }
        }
    }
}

/// Uniform in 0..1, with 32 bits.
fn unit(generator: &mut ChaCha8Rng) -> f64 {
    f64::from(generator.next_u32()) / f64::from(1u32 << 31) / 2.0
}

/// A standard normal number (Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958). `libm` has the same bits
/// everywhere.
fn normal(generator: &mut ChaCha8Rng) -> f32 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - unit(generator)));
    (radius * libm::cos(TAU * unit(generator))) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(start: Start, seed: u64) -> Vec<f32> {
        let mut values = vec![f32::NAN; 4000];
        initial(0..1, &[TensorSpec::new("t".to_owned(), &[40, 100], start)], seed, &mut values);
        values
    }

    #[test]
    fn first_values_have_their_distribution() {
        assert!(drawn(Start::Constant(1.0), 1).iter().all(|&value| value == 1.0));
        let uniform = drawn(Start::Uniform { limit: 0.5 }, 1);
        assert!(uniform.iter().all(|value| value.abs() <= 0.5));
        assert!(uniform.iter().any(|&value| value > 0.49) && uniform.iter().any(|&value| value < -0.49));
        let normal = drawn(Start::Normal { deviation: 0.02 }, 1);
        let (mean, square) =
            normal.iter().fold((0.0, 0.0), |(sum, square), value| (sum + value, square + value * value));
        assert!((mean / 4000.0).abs() < 0.001, "{mean}");
        assert!(((square / 4000.0).sqrt() - 0.02).abs() < 0.001, "{square}");
        assert_ne!(normal, drawn(Start::Normal { deviation: 0.02 }, 2));
    }

    /// A change of these bits would make peers of two versions disagree.
    #[test]
    fn first_values_keep_their_bits() {
        let bits = |start| drawn(start, 7)[..2].iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(Start::Uniform { limit: 1.0 }), [3_199_127_529, 3_206_016_025]);
        assert_eq!(bits(Start::Normal { deviation: 1.0 }), [1_048_865_612, 1_068_277_375]);
    }

    #[test]
    fn tensors_lie_one_after_the_other() {
        let tensor = |name: &str, value| TensorSpec::new(name.to_owned(), &[2], Start::Constant(value));
        let tensors = [tensor("a", 1.0), tensor("b", 2.0)];
        let mut values = [0.0; 4];
        initial([1, 0].into_iter(), &tensors, 1, &mut values);
        assert_eq!(values, [1.0, 1.0, 2.0, 2.0]);
        assert_eq!(manifest(&tensors).parameter_count(), 4);
    }
}
