//! The schedule: the learning rate as a function of the step number only.
//!
//! The batch and the rate do not depend on the number of members, so a member that joins at step 10,000 knows the rate of the others
//! without their history.
//!
//! ```text
//! base |    ______          constant      ____            step      ___            cosine
//!      |   /                             /    |___                 /   \
//!      |  /                             /         |___            /     \___  floor
//!      +--warm-up------> step          +---------------->        +---------------->
//! ```
//!
//! # Invariants
//! - The same bits on every machine: + - x / in `f64`, and `libm` for powers and cosines.

use serde::{Deserialize, Serialize};

/// The learning rate over a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The rate after the warm-up and before any decay.
    pub base: f64,
    /// Steps over which the rate rises linearly from `base / warmup_steps` to `base`; 0 for no warm-up.
    pub warmup_steps: u64,
    /// How the rate falls after the warm-up.
    pub decay: Decay,
}

/// How a learning rate falls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "decay", rename_all = "lowercase", deny_unknown_fields)]
pub enum Decay {
    /// The rate stays at the base.
    Constant,
    /// The rate is multiplied by `factor` after every `every` steps, counted from the start of the run.
    Step {
        /// The factor of one multiplication.
        factor: f64,
        /// Steps between two multiplications; at least 1.
        every: u64,
    },
    /// Half a cosine from the base at the end of the warm-up down to `floor` at `total_steps`; it stays there afterwards.
    /// (Loshchilov and Hutter, "SGDR", 2017, equation 5, without restarts.)
    Cosine {
        /// The rate at the end.
        floor: f64,
        /// Steps of the run, the warm-up included.
        total_steps: u64,
    },
}

impl Schedule {
    /// The same rate throughout.
    #[must_use]
    pub fn constant(base: f64) -> Self {
        Self { base, warmup_steps: 0, decay: Decay::Constant }
    }

    /// The learning rate of step `step`; the first step is 0.
    #[must_use]
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.base * ((step + 1) as f64 / self.warmup_steps as f64);
        }
        match self.decay {
            Decay::Constant => self.base,
            Decay::Step { factor, every } => self.base * libm::pow(factor, (step / every.max(1)) as f64),
            Decay::Cosine { floor, total_steps } => {
                let span = total_steps.saturating_sub(self.warmup_steps).max(1);
                let progress = (step - self.warmup_steps).min(span) as f64 / span as f64;
                floor + (self.base - floor) * 0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress))
            }
        }
    }
}

/// The linear scaling rule: converts a `rate` for batches of `reference_batch` samples to one for batches of `batch` samples.
///
/// The mean gradient of a larger batch is less noisy, so a step may be proportionally longer (Goyal et al., "Accurate, Large Minibatch
/// SGD", 2017, section 2.1). The rule holds for SGD and momentum, up to a few thousand samples.
///
/// # Panics
/// If `reference_batch` is 0.
#[must_use]
pub fn scaled(rate: f64, batch: u64, reference_batch: u64) -> f64 {
    assert!(reference_batch > 0, "a reference batch has samples");
    rate * (batch as f64 / reference_batch as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_is_linear() {
        let schedule = Schedule { base: 0.4, warmup_steps: 4, decay: Decay::Constant };
        let rates: Vec<f64> = (0..6).map(|step| schedule.rate(step)).collect();
        assert_eq!(rates, [0.1, 0.2, 0.4 * 0.75, 0.4, 0.4, 0.4]);
    }

    #[test]
    fn step_decay_multiplies_the_rate_at_fixed_intervals() {
        let decay = Decay::Step { factor: 0.5, every: 10 };
        let schedule = Schedule { base: 1.0, warmup_steps: 0, decay };
        assert_eq!([0, 9, 10, 19, 20].map(|step| schedule.rate(step)), [1.0, 1.0, 0.5, 0.5, 0.25]);
    }

    #[test]
    fn a_cosine_ends_at_its_floor() {
        let decay = Decay::Cosine { floor: 0.1, total_steps: 110 };
        let schedule = Schedule { base: 1.1, warmup_steps: 10, decay };
        assert_eq!(schedule.rate(10), 1.1);
        assert!((schedule.rate(60) - 0.6).abs() < 1e-12, "half way");
        assert_eq!(schedule.rate(110), 0.1);
        assert_eq!(schedule.rate(1_000_000), 0.1);
        assert!((10..110).all(|step| schedule.rate(step + 1) < schedule.rate(step)));
    }

    #[test]
    fn degenerate_schedules_are_finite() {
        let cosine = Decay::Cosine { floor: 0.0, total_steps: 0 };
        assert_eq!(Schedule { base: 1.0, warmup_steps: 0, decay: cosine }.rate(0), 1.0);
        let step = Decay::Step { factor: 0.1, every: 0 };
        assert!(Schedule { base: 1.0, warmup_steps: 0, decay: step }.rate(u64::MAX).is_finite());
    }

    #[test]
    fn a_double_batch_doubles_the_rate() {
        assert_eq!(scaled(0.1, 128, 64), 0.2);
        assert_eq!(scaled(0.1, 64, 64), 0.1);
    }
}
