//! Least squares on generated samples: a small problem that can be learned, with any number of parameters.

use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Least squares: sample `i` requires the sum of a few `parameters[j]` to be a target.
#[derive(Clone, Debug)]
pub struct Squares {
    parameter_count: usize,
    sample_count: u32,
}

impl Squares {
    /// A task with these numbers of parameters and samples.
    #[must_use]
    pub fn new(parameter_count: usize, sample_count: u32) -> Self {
        Self { parameter_count, sample_count }
    }

    /// The elements that a sample uses, and its target.
    fn sample(&self, sample: u32) -> ([usize; 3], f32) {
        let mut generator = ChaCha8Rng::seed_from_u64(u64::from(sample));
        let elements = [(); 3].map(|()| generator.next_u32() as usize % self.parameter_count);
        (elements, (generator.next_u32() % 1000) as f32 / 500.0 - 1.0)
    }

    fn error(&self, parameters: &[f32], sample: u32) -> ([usize; 3], f32) {
        let (elements, target) = self.sample(sample);
        (elements, elements.iter().map(|&element| parameters[element]).sum::<f32>() - target)
    }
}

impl Task for Squares {
    fn manifest(&self) -> Manifest {
        Manifest::new([("weights", &[self.parameter_count as u32][..])])
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        parameters.fill_with(|| (generator.next_u32() >> 8) as f32 / 1e8);
    }

    fn sample_count(&self) -> u32 {
        self.sample_count
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let mut loss = 0.0;
        for &sample in samples {
            let (elements, error) = self.error(parameters, sample);
            elements.iter().for_each(|&element| gradient[element] += error);
            loss += f64::from(error * error) / 2.0;
        }
        loss
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let error = |sample| f64::from(self.error(parameters, sample).1);
        let loss: f64 = (0..self.sample_count).map(|sample| error(sample) * error(sample) / 2.0).sum();
        let samples = self.sample_count;
        Evaluation { samples, loss: loss / f64::from(samples), accuracy: None }
    }
}
