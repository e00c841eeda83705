//! How long a host takes to compute: a time for each sample, increased by the other load of the machine.

use std::time::Duration;

use rand::Rng;
use rand::rngs::ChaCha8Rng;

/// The computing speed of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeModel {
    /// Time for each sample that a job touches.
    pub sample_time: Duration,
    /// Time for each job, however small.
    pub job_time: Duration,
    /// Factor on the computing time, in percent: 100 is the normal speed.
    pub slowness_percent: u32,
    /// Transient slowness from other load; `None` if there is none.
    pub bursts: Option<Bursts>,
    /// What other load adds to each job on average, in percent of the job's time; the amount is distributed exponentially.
    pub noise_percent: u32,
}

/// Transient slowness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Jobs in a thousand that meet a burst.
    pub per_mille: u32,
    /// Factor on the time of those jobs, in percent.
    pub slowness_percent: u32,
}

impl ComputeModel {
    /// A speed without other load.
    #[must_use]
    pub fn steady(sample_time: Duration) -> Self {
        let job_time = Duration::from_micros(50);
        Self { sample_time, job_time, slowness_percent: 100, bursts: None, noise_percent: 0 }
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
        let steady = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        if self.noise_percent == 0 {
            return steady;
        }
        // Never 0, so that its logarithm is a number.
        let luck = (f64::from(generator.next_u32()) + 1.0) / (f64::from(u32::MAX) + 1.0);
        steady.saturating_add(steady.mul_f64(f64::from(self.noise_percent) / 100.0 * -libm::log(luck)))
    }
}
