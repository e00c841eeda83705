//! A toy task for scenarios that care about messages and not about learning: least squares on made-up samples, with as
//! many parameters as one likes.

use std::sync::Arc;

use peergrad::io::DataReference;
use peergrad::loader::{Loaded, Loader, Training};
use peergrad::task::{Evaluation, Task};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::manifest::Manifest;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Least squares: sample `i` wants `parameters[j]` for a few `j` to sum to a target.
pub struct Toy {
    parameter_count: usize,
    sample_count: u32,
}

impl Toy {
    /// A task of this size.
    #[must_use]
    pub fn new(parameter_count: usize, sample_count: u32) -> Self {
        Self { parameter_count, sample_count }
    }

    /// The elements that a sample touches, and its target.
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

impl Task for Toy {
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
        let samples = u64::from(self.sample_count);
        Evaluation { samples, loss: loss / samples as f64, accuracy: None }
    }
}

/// Hands out one prepared task, whatever the specification says; optionally asks for a data file first.
pub struct Fixed {
    /// What is handed out.
    pub loaded: Loaded,
    /// The data file that the specification is said to need.
    pub data: Option<Arc<[u8]>>,
}

impl Fixed {
    /// Hands out `task`, trained as `training` says.
    #[must_use]
    pub fn new(task: impl Task, training: Training) -> Self {
        Self { loaded: Loaded::new(Arc::new(task), training), data: None }
    }
}

impl Loader for Fixed {
    fn data(&self, _specification: &[u8]) -> Result<Option<DataReference>, String> {
        Ok(self.data.as_ref().map(|data| DataReference {
            name: "toy".to_owned(),
            digest: ContentDigest::of(data),
            byte_count: data.len() as u64,
        }))
    }

    fn load(&self, _specification: &[u8], data: Option<Arc<[u8]>>) -> Result<Loaded, String> {
        if data.map(|data| ContentDigest::of(&data)) != self.data.as_ref().map(|data| ContentDigest::of(data))
        {
            return Err("the data is not what the specification says".to_owned());
        }
        Ok(self.loaded.clone())
    }
}
