//! Fixed delays: what stale gradients cost in the long run, if each of them is late by the same number of steps.
//!
//! One learner sees one sample after the other and pays the loss of its present parameters. It learns from a sample only some steps later.
//! That is what happens when machines take turns: while one computes, the others have changed the parameters.
//!
//! ```text
//! x(t + 1) = projection of  x(t) - rate(t) * gradient(t - delay)      rate(t) = scale / sqrt(t - delay)
//! ```
//! The *regret* is how much more the learner has paid than the best fixed parameters would have. On average over the steps it falls with
//! 1 / sqrt(t). The delay costs much in the beginning, and almost nothing in the end.
//!
//! # How it works
//! Logistic regression tells two digits apart, from embedded samples that are drawn one by one. Samples have length 1, so a gradient is
//! not longer than 1. Parameters stay in a ball. The best fixed parameters are those for all samples drawn so far, by accelerated projected
//! gradient descent.
//!
//! # Invariants
//! - Learners with different delays see the same samples in the same order, if the seed is the same.
//!
//! # Reading
//! Langford, Smola and Zinkevich, "Slow Learners are Fast", 2009, algorithm 1 and theorem 8. Ours: the scale is the theorem's for the largest
//! delay, for all delays, so that they can be compared. `docs/experiments.md` has the results.

use std::collections::VecDeque;

use peergrad_models::data::dense_table::unpack;
use peergrad_models::data::embedded::{DIGITS, embedded};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Number of steps of a learner.
pub const STEPS: usize = 20_000;
/// Number of first steps in which the delay shows most.
pub const EARLY_STEPS: usize = 500;
/// Greatest delay of a gradient, in steps.
pub const DELAY_MAX: usize = 1024;
/// The numbers of steps after which the regret is measured; the last one is [`STEPS`].
pub const MEASURED: [usize; 5] = [STEPS / 16, STEPS / 8, STEPS / 4, STEPS / 2, STEPS];

/// A sequence of samples, and what the best fixed parameters pay for them.
pub struct Stream {
    /// The features of each sample, times 1 or -1 by its class: the margin is their product with the parameters.
    samples: Vec<Features>,
    /// The index of the sample of each step: (steps).
    drawn: Vec<usize>,
    /// The mean loss of the best fixed parameters, after each of [`MEASURED`] steps.
    least: [f64; MEASURED.len()],
}

/// What a learner has paid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paid {
    /// Mean loss of the first [`EARLY_STEPS`] steps.
    pub early_loss: f64,
    /// Average regret of a step, after each of [`MEASURED`] steps.
    pub regret: [f64; MEASURED.len()],
}

impl Paid {
    /// The average regret after all steps.
    #[must_use]
    pub fn last_regret(&self) -> f64 {
        self.regret[MEASURED.len() - 1]
    }

    /// The exponent with which the average regret falls: the slope of its logarithm over that of the number of steps (least squares). It is
    /// not a number if the regret is not above 0.
    #[must_use]
    pub fn slope(&self) -> f64 {
        let count = MEASURED.len() as f64;
        let points = || {
            MEASURED
                .iter()
                .zip(self.regret)
                .map(|(steps, regret)| (libm::log(*steps as f64), libm::log(regret)))
        };
        let (x, y) = points().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
        let (above, below) = points().fold((0.0, 0.0), |(above, below), point| {
            let apart = point.0 - x;
            (above + apart * (point.1 - y), below + apart * apart)
        });
        above / below
    }
}

impl Stream {
    /// The sequence of a seed.
    ///
    /// # Panics
    /// Never: the samples are embedded.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let samples = samples();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Multiply and shift.
        let mut draw = || ((u128::from(random.next_u64()) * samples.len() as u128) >> 64) as usize;
        let drawn: Vec<usize> = (0..STEPS).map(|_| draw()).collect();
        let least = MEASURED.map(|steps| {
            let mut counts = vec![0.0; samples.len()];
            drawn[..steps].iter().for_each(|sample| counts[*sample] += 1.0 / steps as f64);
            least_loss(&samples, &counts)
        });
        Self { samples, drawn, least }
    }

    /// What a learner pays that gets each gradient `delay` steps late.
    #[must_use]
    pub fn learn(&self, delay: usize) -> Paid {
        let mut parameters = [0.0; FEATURES];
        let mut late = VecDeque::with_capacity(delay + 1);
        let (mut early_loss, mut paid) = (0.0, 0.0);
        let mut regret = [0.0; MEASURED.len()];
        for (step, sample) in (1..).zip(&self.drawn) {
            let features = &self.samples[*sample];
            let margin = product(features, &parameters);
            paid += loss(margin);
            late.push_back((features, slope(margin)));
            if late.len() > delay {
                let (features, slope) = late.pop_front().expect("it is not empty");
                let rate = SCALE / ((step - delay) as f64).sqrt();
                add(&mut parameters, -rate * slope, features);
                project(&mut parameters);
            }
            if step == EARLY_STEPS {
                early_loss = paid / step as f64;
            }
            if let Some(index) = MEASURED.iter().position(|measured| *measured == step) {
                regret[index] = paid / step as f64 - self.least[index];
            }
        }
        Paid { early_loss, regret }
    }
}

/// The features of a sample: the pixels and a constant, times 1 or -1 by its class; of length 1.
type Features = [f64; FEATURES];

/// Pixels of a digit, and a constant.
const FEATURES: usize = 65;
/// The two digits.
const CLASSES: [&str; 2] = ["3", "8"];
/// Parameters are no longer than this.
const RADIUS: f64 = 20.0;
/// The learning rate of the first step: the diameter of the ball over the root of twice a delay of 64.
const SCALE: f64 = 2.0 * RADIUS / 11.313_708_498_984_761;
/// Steps of the descent to the best fixed parameters.
const DESCENT_STEPS: u32 = 500;

/// The embedded samples of the two digits.
fn samples() -> Vec<Features> {
    let bytes = unpack(DIGITS, embedded(DIGITS).expect("the digits are embedded")).expect("they are whole");
    let lines = str::from_utf8(&bytes).expect("they are text").lines();
    let sample = |line: &str| {
        let (pixels, label) = line.rsplit_once(',').expect("the label is the last cell");
        let class = CLASSES.iter().position(|class| *class == label)?;
        let sign = if class == 0 { 1.0 } else { -1.0 };
        let mut features = [sign; FEATURES];
        for (feature, pixel) in features.iter_mut().zip(pixels.split(',')) {
            *feature = sign * pixel.parse::<f64>().expect("a pixel is a number") / 16.0;
        }
        let length = product(&features, &features).sqrt();
        Some(features.map(|feature| feature / length))
    };
    lines.filter_map(sample).collect()
}

/// The least mean loss of fixed parameters, with these weights of the samples, whose sum is 1.
fn least_loss(samples: &[Features], weights: &[f64]) -> f64 {
    /// Four over the square of the samples' length: no gradient of the mean loss changes faster than a quarter of it.
    const RATE: f64 = 4.0;
    let mut parameters = [0.0; FEATURES];
    let (mut ahead, mut momentum) = (parameters, 1.0_f64);
    for _ in 0..DESCENT_STEPS {
        let mut next = ahead;
        for (features, weight) in samples.iter().zip(weights) {
            add(&mut next, -RATE * weight * slope(product(features, &ahead)), features);
        }
        project(&mut next);
        let larger = (1.0 + (1.0 + 4.0 * momentum * momentum).sqrt()) / 2.0;
        let factor = (momentum - 1.0) / larger;
        ahead = next;
        for (ahead, (next, before)) in ahead.iter_mut().zip(next.iter().zip(&parameters)) {
            *ahead += factor * (next - before);
        }
        (parameters, momentum) = (next, larger);
    }
    samples.iter().zip(weights).map(|(features, weight)| weight * loss(product(features, &parameters))).sum()
}

/// The loss of a margin, log(1 + exp(-margin)).
fn loss(margin: f64) -> f64 {
    libm::log1p(libm::exp(-margin.abs())) + (-margin).max(0.0)
}

/// The derivative of the loss of a margin.
fn slope(margin: f64) -> f64 {
    -1.0 / (1.0 + libm::exp(margin))
}

fn product(one: &Features, other: &Features) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn add(parameters: &mut Features, factor: f64, features: &Features) {
    parameters.iter_mut().zip(features).for_each(|(parameter, feature)| *parameter += factor * feature);
}

/// Moves parameters to the nearest point of the ball.
fn project(parameters: &mut Features) {
    let length = product(parameters, parameters).sqrt();
    if length > RADIUS {
        parameters.iter_mut().for_each(|parameter| *parameter *= RADIUS / length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_costs_much_in_the_beginning_and_little_in_the_end() {
        let stream = Stream::new(1);
        let [prompt, late] = [0, 64].map(|delay| stream.learn(delay));
        println!("{prompt:?}, slope {}; {late:?}, slope {}", prompt.slope(), late.slope());
        assert!(late.early_loss > 1.5 * prompt.early_loss, "{late:?}, {prompt:?}");
        let ratio = late.last_regret() / prompt.last_regret();
        assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
        for paid in [prompt, late] {
            assert!((-0.75..=-0.35).contains(&paid.slope()), "{}", paid.slope());
        }
        assert_eq!(Stream::new(1).learn(64), late, "a seed decides every bit");
    }

    /// The gradient of the first step is used at the end of step 1 + delay, so the parameters are zero up to that step.
    #[test]
    fn a_gradient_is_late_by_the_delay() {
        let stream = Stream::new(1);
        let [learned, not_yet] =
            [EARLY_STEPS - 2, EARLY_STEPS - 1].map(|delay| stream.learn(delay).early_loss);
        assert!((not_yet - loss(0.0)).abs() < 1e-12, "{not_yet}");
        assert!((learned - loss(0.0)).abs() > 1e-4, "{learned}");
    }

    #[test]
    fn no_fixed_parameters_pay_less_than_the_least_loss() {
        let samples = samples();
        assert_eq!(samples.len(), 357, "183 times 3 and 174 times 8");
        let weights = vec![1.0 / samples.len() as f64; samples.len()];
        let least = least_loss(&samples, &weights);
        let mut random = ChaCha8Rng::seed_from_u64(2);
        for _ in 0..1000 {
            let mut parameters =
                [0.0; FEATURES].map(|_: f64| (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 - 0.5);
            parameters.iter_mut().for_each(|parameter| *parameter *= 40.0);
            project(&mut parameters);
            let mean: f64 = samples
                .iter()
                .zip(&weights)
                .map(|(sample, weight)| weight * loss(product(sample, &parameters)))
                .sum();
            assert!(mean >= least, "{mean} is less than {least}");
        }
    }
}
