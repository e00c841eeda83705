//! How long a host takes to compute: a time for each sample, slowed down by whatever else the machine does.

use std::time::Duration;

use rand::Rng;
use rand::rngs::ChaCha8Rng;

/// The computing speed of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// For each sample touched.
    pub sample_time: Duration,
    /// For each job, however small.
    pub job_time: Duration,
    /// So many times slower than the others, in percent.
    pub slowness_percent: u32,
    /// Now and then something else runs.
    pub bursts: Option<Bursts>,
}

/// Transient slowness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Jobs of a thousand that meet one.
    pub per_mille: u32,
    /// How much longer those take, in percent.
    pub slowness_percent: u32,
}

impl Pace {
    /// A pace without any trouble.
    #[must_use]
    pub fn steady(sample_time: Duration) -> Self {
        Self { sample_time, job_time: Duration::from_micros(50), slowness_percent: 100, bursts: None }
    }

    /// How long a job that touches `samples` samples takes this time; it varies by a tenth.
    pub fn duration(&self, samples: u64, generator: &mut ChaCha8Rng) -> Duration {
        let nanos = self.job_time.as_nanos() + self.sample_time.as_nanos() * u128::from(samples);
        let wobble = 95 + u128::from(generator.next_u32() % 11);
        let burst = match self.bursts {
            Some(bursts) if generator.next_u32() % 1000 < bursts.per_mille => bursts.slowness_percent,
            Some(_) | None => 100,
        };
        let nanos = nanos * wobble * u128::from(self.slowness_percent) * u128::from(burst) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
