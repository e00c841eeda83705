//! Integers as gradients: for vectors whose content does not matter, and to count exactly what arrived.
//!
//! Sample `s` has a gradient of small integers, `((s + j) mod 5) - 2` at element `j`. With a batch size and a rate that are powers of two
//! every sum and every update is exact in `f32`, in any order; so the parameters after any step can be computed without training.

use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;

/// The task.
#[derive(Clone, Debug)]
pub struct Integers {
    parameter_count: usize,
    sample_count: u32,
}

impl Integers {
    /// A task with these numbers of parameters and samples.
    #[must_use]
    pub fn new(parameter_count: usize, sample_count: u32) -> Self {
        Self { parameter_count, sample_count }
    }

    /// The sum of the gradients of `samples`, in integers.
    #[must_use]
    pub fn sum(&self, samples: &[u32]) -> Vec<i64> {
        let period = self.period(samples);
        (0..self.parameter_count).map(|element| period[element % PERIOD]).collect()
    }

    /// The first elements of the sum, after which it repeats.
    fn period(&self, samples: &[u32]) -> [i64; PERIOD] {
        let mut counts = [0; PERIOD];
        for &sample in samples {
            counts[sample as usize % PERIOD] += 1;
        }
        let at = |element: usize, residue: usize| ((residue + element) % PERIOD) as i64 - 2;
        std::array::from_fn(|element| (0..PERIOD).map(|residue| counts[residue] * at(element, residue)).sum())
    }
}

impl Task for Integers {
    fn manifest(&self) -> Manifest {
        Manifest::new([("integers", &[self.parameter_count as u32][..])])
    }

    fn sample_count(&self) -> u32 {
        self.sample_count
    }

    fn gradient(&self, _parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        let period = self.period(samples).map(|sum| sum as f32);
        for (index, element) in gradient.iter_mut().enumerate() {
            *element = period[index % PERIOD];
        }
        samples.iter().map(|sample| f64::from(sample % 7)).sum()
    }

    fn evaluate(&self, _parameters: &[f32]) -> Evaluation {
        Evaluation { samples: 0, loss: 0.0, accuracy: None }
    }
}

const PERIOD: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_add_up_in_integers() {
        let task = Integers::new(12, 40);
        let samples = [0, 3, 4, 9, 39];
        let mut gradient = vec![0.0; 12];
        task.gradient(&[], &samples, &mut gradient);
        let sum: Vec<f32> = task.sum(&samples).into_iter().map(|sum| sum as f32).collect();
        assert_eq!(gradient, sum);
        assert_eq!(sum[..3], [-2.0 + 1.0 + 2.0 + 2.0 + 2.0, -1.0 + 2.0 - 2.0 - 2.0 - 2.0, -5.0 + 0.0]);
    }
}
