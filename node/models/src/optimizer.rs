//! The optimizer: the rule by which the owner of a chunk turns the chunk's summed gradient into new parameters.
//!
//! An optimizer treats each element separately, so the parameters may be cut anywhere: the owner of chunk 7 updates chunk 7, and no
//! other peer needs that chunk's momentum. The formulas are those of PyTorch.
//!
//! ```text
//!  summed gradient ──x scale──> mean g ──(+ weight decay)──> rule ──> new parameters
//!                                                           │  ▲
//!                                              new moments <┘  └─ old moments
//! ```
//! Old and new moments lie in separate memory because an update is pending until its step is committed: undoing the step leaves the
//! old moments as they were.
//!
//! # Invariants
//! - The same bits on every machine: + - x / and sqrt in the order written here; powers by `libm` in `f64`.
//! - An element's result depends on that element alone: cutting a vector elsewhere changes nothing.
//!
//! # Reading
//! Kingma and Ba, "Adam", 2015, algorithm 1; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019,
//! algorithm 2; Sutskever et al., "On the importance of initialization and momentum", 2013 (PyTorch's form: the rate
//! multiplies the velocity, not the gradient that enters it); Duchi et al., "Adaptive Subgradient Methods", 2011 (Adagrad).

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use crate::schedule::Schedule;
pub use bounds::Bounds;
pub use groups::{GroupedOptimizer, GroupedUpdate, ParameterGroups, Treatment};
use proximal::{FtrlUpdate, ProximalUpdate};

mod bounds;
mod clipping;
mod groups;
mod proximal;

/// A rule for updating parameters from a mean gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "lowercase", deny_unknown_fields)]
pub enum Optimizer {
    /// Stochastic gradient descent: a step against the gradient. No moments.
    Sgd {
        /// This times the parameter is added to the gradient.
        weight_decay: f32,
    },
    /// A step against a decaying sum of gradients. One moment: that sum, called the velocity.
    Momentum {
        /// The factor by which the velocity decays in each step, 0 to 1.
        momentum: f32,
        /// Whether to use Nesterov's form: the gradient plus `momentum` times the new velocity, in place of the velocity.
        nesterov: bool,
        /// This times the parameter is added to the gradient.
        weight_decay: f32,
    },
    /// A step against the running mean of gradients, divided by the root of the running mean of their squares. Two moments: these means.
    Adam {
        /// The decay of the running mean, 0 to 1.
        beta1: f32,
        /// The decay of the running mean of squares, 0 to 1.
        beta2: f32,
        /// Added to the root, so that the divisor is not zero.
        epsilon: f32,
        /// This times the parameter is added to the gradient.
        weight_decay: f32,
    },
    /// A step against the gradient, divided by the root of the sum of all squared gradients. One moment: that sum.
    Adagrad {
        /// Added to the root, so that the divisor is not zero.
        epsilon: f32,
        /// This times the parameter is added to the gradient.
        weight_decay: f32,
    },
    /// Proximal gradient descent: a step against the gradient, then towards zero; a parameter that L1 outweighs becomes exactly zero.
    /// No moments.
    Prox {
        /// The weight of L1: this times the sum of absolute parameters is added to the loss.
        l1: f32,
        /// The weight of L2: this times half the sum of squared parameters is added to the loss.
        l2: f32,
    },
    /// FTRL-Proximal: minimizes the sum of all linearized losses so far. It yields exact zeros as [`Prox`](Self::Prox) does, and has a
    /// rate for each parameter as [`Adagrad`](Self::Adagrad) does. Two moments. The first update ignores the initial parameters.
    Ftrl {
        /// Added to the root of the sum of squared gradients (the paper's beta).
        beta: f32,
        /// The weight of L1: this times the sum of absolute parameters is added to the loss.
        l1: f32,
        /// The weight of L2: this times half the sum of squared parameters is added to the loss.
        l2: f32,
    },
    /// Adam whose weight decay shrinks the parameters directly and does not enter the moments.
    AdamW {
        /// The decay of the running mean, 0 to 1.
        beta1: f32,
        /// The decay of the running mean of squares, 0 to 1.
        beta2: f32,
        /// Added to the root, so that the divisor is not zero.
        epsilon: f32,
        /// The share of each parameter, times the learning rate, that is subtracted from it in each step.
        weight_decay: f32,
    },
}

impl Optimizer {
    /// Plain stochastic gradient descent, without weight decay.
    pub const SGD: Self = Self::Sgd { weight_decay: 0.0 };
    /// Heavy-ball momentum of 0.9, without weight decay.
    pub const MOMENTUM: Self = Self::Momentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    /// Adam with the constants of its paper, without weight decay.
    pub const ADAM: Self = Self::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    /// AdamW with the constants of PyTorch: as [`ADAM`](Self::ADAM), with a decoupled weight decay of 0.01.
    pub const ADAMW: Self = Self::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    /// Adagrad with the constants of PyTorch, without weight decay.
    pub const ADAGRAD: Self = Self::Adagrad { epsilon: 1e-10, weight_decay: 0.0 };

    /// Elements of optimizer state for each parameter: 0, 1 or 2.
    #[inline]
    #[must_use]
    pub fn moment_count(&self) -> usize {
        match self {
            Self::Sgd { .. } | Self::Prox { .. } => 0,
            Self::Momentum { .. } | Self::Adagrad { .. } => 1,
            Self::Adam { .. } | Self::AdamW { .. } | Self::Ftrl { .. } => 2,
        }
    }

    /// The same rule with another weight decay; unchanged if the rule has none.
    #[must_use]
    pub fn with_weight_decay(mut self, decay: f32) -> Self {
        match &mut self {
            Self::Sgd { weight_decay }
            | Self::Momentum { weight_decay, .. }
            | Self::Adam { weight_decay, .. }
            | Self::AdamW { weight_decay, .. }
            | Self::Adagrad { weight_decay, .. } => *weight_decay = decay,
            Self::Prox { .. } | Self::Ftrl { .. } => {}
        }
        self
    }

    /// Whether the rule has a weight decay. `prox` and `ftrl` have an L2 penalty in its place.
    #[must_use]
    pub fn has_weight_decay(&self) -> bool {
        !matches!(self, Self::Prox { .. } | Self::Ftrl { .. })
    }

    /// The update of one step.
    ///
    /// - `rate`: the learning rate.
    /// - `step`: how many updates the elements have had, this one included: 1 for the first, when all moments are zero.
    /// - `scale`: the factor that turns the summed gradient into the mean.
    ///
    /// One update serves all chunks of a step, because Adam's correction for the first steps takes two powers.
    ///
    /// # Panics
    /// If `step` is 0.
    #[must_use]
    pub fn update(&self, rate: f64, step: u32, scale: f32) -> Update {
        assert!(step > 0, "an update counts itself");
        let moment_count = self.moment_count();
        let kind = match *self {
            Self::Sgd { weight_decay } => {
                Kind::Sgd(MomentumUpdate { rate: rate as f32, scale, momentum: 0.0, weight_decay })
            }
            Self::Momentum { momentum, nesterov, weight_decay } => {
                let velocity = MomentumUpdate { rate: rate as f32, scale, momentum, weight_decay };
                if nesterov { Kind::Nesterov(velocity) } else { Kind::Momentum(velocity) }
            }
            Self::Adagrad { epsilon, weight_decay } => {
                Kind::Adagrad(AdagradUpdate { rate: rate as f32, scale, epsilon, weight_decay })
            }
            Self::Prox { l1, l2 } => Kind::Prox(ProximalUpdate { rate: rate as f32, scale, l1, l2 }),
            Self::Ftrl { beta, l1, l2 } => {
                let (l1, l2) = (l1 * step as f32, l2 * step as f32);
                Kind::Ftrl(FtrlUpdate { rate: rate as f32, scale, beta, l1, l2 })
            }
            Self::Adam { beta1, beta2, epsilon, weight_decay } => Kind::Adam(AdamUpdate {
                weight_decay,
                ..AdamUpdate::new(rate, step, scale, [beta1, beta2], epsilon)
            }),
            Self::AdamW { beta1, beta2, epsilon, weight_decay } => {
                let keep = (1.0 - rate * f64::from(weight_decay)) as f32;
                Kind::Adam(AdamUpdate { keep, ..AdamUpdate::new(rate, step, scale, [beta1, beta2], epsilon) })
            }
        };
        Update { moment_count, kind, bounds: None }
    }
}

/// An optimizer with the rate, the step and the scale of one step, for any number of slices of the parameters.
pub struct Update {
    moment_count: usize,
    kind: Kind,
    /// Where new values stay; `None`: anywhere.
    bounds: Option<Bounds>,
}

enum Kind {
    Sgd(MomentumUpdate),
    Momentum(MomentumUpdate),
    Nesterov(MomentumUpdate),
    Adagrad(AdagradUpdate),
    Prox(ProximalUpdate),
    Ftrl(FtrlUpdate),
    Adam(AdamUpdate),
    /// No optimizer: the mean, of so many samples, replaces the parameter.
    Mean(f32),
}

impl Update {
    /// The update of a statistic: the sum over so many samples becomes their mean. All moments stay as they are.
    fn mean(moment_count: usize, samples: u64) -> Self {
        Self { moment_count, kind: Kind::Mean(samples as f32), bounds: None }
    }

    /// The same update, after which values outside these bounds move to the nearer end.
    #[must_use]
    pub fn within(self, bounds: Option<Bounds>) -> Self {
        Self { bounds, ..self }
    }

    /// Updates one slice of n elements, for example a chunk.
    ///
    /// - `parameters`: (n), the values before.
    /// - `vector`: (n), the summed gradient; afterwards the new values.
    /// - `old`, `new`: (moment count, n), one moment after the other: the state before; overwritten by the state after.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    pub fn apply(&self, parameters: &[f32], vector: &mut [f32], old: &[f32], new: &mut [f32]) {
        self.apply_within(0..vector.len(), parameters, vector, old, new);
    }

    /// As [`apply`](Self::apply), for the elements `within` of the slice only; all others stay as they are.
    ///
    /// # Panics
    /// If the lengths do not fit together, or the slice is shorter than `within` says.
    pub fn apply_within(
        &self,
        within: Range<usize>,
        parameters: &[f32],
        vector: &mut [f32],
        old: &[f32],
        new: &mut [f32],
    ) {
        let count = vector.len();
        assert_eq!(parameters.len(), count, "a parameter for each gradient");
        assert_eq!(old.len(), count * self.moment_count, "the rule's state before");
        assert_eq!(new.len(), count * self.moment_count, "the rule's state after");
        let moments = Moments { old, new, count, within: within.clone() };
        let (parameters, vector) = (&parameters[within.clone()], &mut vector[within]);
        match &self.kind {
            Kind::Sgd(MomentumUpdate { rate, scale, weight_decay, .. }) => {
                sgd(*rate, *scale, *weight_decay, parameters, vector);
            }
            Kind::Momentum(rule) => rule.apply(parameters, vector, moments.first(), |_, velocity| velocity),
            Kind::Nesterov(rule) => {
                rule.apply(parameters, vector, moments.first(), |gradient, velocity| {
                    gradient + rule.momentum * velocity
                });
            }
            Kind::Adagrad(rule) => rule.apply(parameters, vector, moments.first()),
            Kind::Prox(rule) => rule.apply(parameters, vector),
            Kind::Ftrl(rule) => rule.apply(parameters, vector, moments.both()),
            Kind::Adam(rule) => rule.apply(parameters, vector, moments.both()),
            Kind::Mean(samples) => {
                vector.iter_mut().for_each(|sum| *sum /= samples);
                moments.keep(self.moment_count);
            }
        }
        if let Some(bounds) = self.bounds {
            bounds.project(vector);
        }
    }
}

/// The moments of the elements of a slice that are updated.
struct Moments<'a> {
    /// (moment count, `count`): those before.
    old: &'a [f32],
    /// (moment count, `count`): those after.
    new: &'a mut [f32],
    /// The number of elements of the slice.
    count: usize,
    /// The elements that are updated.
    within: Range<usize>,
}

/// One moment of the elements that are updated: before, and after.
type Moment<'a> = (&'a [f32], &'a mut [f32]);

impl<'a> Moments<'a> {
    /// The only moment of a rule.
    fn first(self) -> Moment<'a> {
        (&self.old[self.within.clone()], &mut self.new[self.within])
    }

    /// The two moments of a rule.
    fn both(self) -> [Moment<'a>; 2] {
        let (old, new) = (self.old.split_at(self.count), self.new.split_at_mut(self.count));
        let within = self.within;
        [(&old.0[within.clone()], &mut new.0[within.clone()]), (&old.1[within.clone()], &mut new.1[within])]
    }

    /// Leaves each of so many moments as it was.
    fn keep(self, moment_count: usize) {
        for moment in 0..moment_count {
            let within = self.within.start + moment * self.count..self.within.end + moment * self.count;
            self.new[within.clone()].copy_from_slice(&self.old[within]);
        }
    }
}

fn sgd(rate: f32, scale: f32, weight_decay: f32, parameters: &[f32], vector: &mut [f32]) {
    for (element, &parameter) in vector.iter_mut().zip(parameters) {
        let gradient = *element * scale + weight_decay * parameter;
        *element = parameter - rate * gradient;
    }
}

/// The constants of one momentum update.
struct MomentumUpdate {
    rate: f32,
    scale: f32,
    momentum: f32,
    weight_decay: f32,
}

impl MomentumUpdate {
    /// `direction` gives the vector to step against, from the gradient and the new velocity of an element.
    fn apply(
        &self,
        parameters: &[f32],
        vector: &mut [f32],
        (old, new): Moment<'_>,
        direction: impl Fn(f32, f32) -> f32,
    ) {
        let moments = old.iter().zip(new);
        for ((element, &parameter), (&before, after)) in vector.iter_mut().zip(parameters).zip(moments) {
            let gradient = *element * self.scale + self.weight_decay * parameter;
            let velocity = self.momentum * before + gradient;
            *after = velocity;
            *element = parameter - self.rate * direction(gradient, velocity);
        }
    }
}

/// The constants of one Adagrad update.
struct AdagradUpdate {
    rate: f32,
    scale: f32,
    epsilon: f32,
    weight_decay: f32,
}

impl AdagradUpdate {
    fn apply(&self, parameters: &[f32], vector: &mut [f32], (old, new): Moment<'_>) {
        let sums = old.iter().zip(new);
        for ((element, &parameter), (&before, after)) in vector.iter_mut().zip(parameters).zip(sums) {
            let gradient = *element * self.scale + self.weight_decay * parameter;
            let sum = before + gradient * gradient;
            *after = sum;
            *element = parameter - self.rate * (gradient / (sum.sqrt() + self.epsilon));
        }
    }
}

/// The constants of one Adam or AdamW update.
struct AdamUpdate {
    scale: f32,
    /// This times the parameter is added to the gradient (Adam).
    weight_decay: f32,
    /// The share of a parameter that the decoupled weight decay leaves (AdamW); 1 for Adam.
    keep: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// rate / (1 - beta1^step)
    step_size: f32,
    /// sqrt(1 - beta2^step)
    root_correction: f32,
}

impl AdamUpdate {
    /// Without weight decay of either kind.
    fn new(rate: f64, step: u32, scale: f32, [beta1, beta2]: [f32; 2], epsilon: f32) -> Self {
        let correction = |beta: f32| 1.0 - libm::pow(f64::from(beta), f64::from(step));
        Self {
            scale,
            weight_decay: 0.0,
            keep: 1.0,
            beta1,
            beta2,
            epsilon,
            step_size: (rate / correction(beta1)) as f32,
            root_correction: correction(beta2).sqrt() as f32,
        }
    }

    fn apply(&self, parameters: &[f32], vector: &mut [f32], [means, squares]: [Moment<'_>; 2]) {
        let means = means.0.iter().zip(means.1);
        let squares = squares.0.iter().zip(squares.1);
        let (new_share1, new_share2) = (1.0 - self.beta1, 1.0 - self.beta2);
        for (((element, &parameter), mean), square) in
            vector.iter_mut().zip(parameters).zip(means).zip(squares)
        {
            let gradient = *element * self.scale + self.weight_decay * parameter;
            let new_mean = self.beta1 * *mean.0 + new_share1 * gradient;
            let new_square = self.beta2 * *square.0 + new_share2 * gradient * gradient;
            *mean.1 = new_mean;
            *square.1 = new_square;
            let root = new_square.sqrt() / self.root_correction + self.epsilon;
            *element = parameter * self.keep - self.step_size * (new_mean / root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAM: Optimizer = Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };

    /// The parameter and the state after each of `steps` updates of one element with the mean gradient `gradient`.
    fn follow(
        rule: Optimizer,
        rate: f64,
        parameter: f32,
        gradient: impl Fn(u32, f32) -> f32,
        steps: u32,
    ) -> f32 {
        let mut parameter = [parameter];
        let mut old = vec![0.0; rule.moment_count()];
        for step in 1..=steps {
            let mut new = vec![f32::NAN; old.len()];
            let mut vector = [gradient(step, parameter[0])];
            rule.update(rate, step, 1.0).apply(&parameter, &mut vector, &old, &mut new);
            (parameter, old) = (vector, new);
        }
        parameter[0]
    }

    #[track_caller]
    fn assert_close(found: f32, expected: f64) {
        assert!((f64::from(found) - expected).abs() < 1e-6 * expected.abs().max(1.0), "{found} {expected}");
    }

    #[test]
    fn sgd_by_hand() {
        // 1 - 0.1 (2 + 0.5 x 1) = 0.75; 0.75 - 0.1 (2 + 0.375) = 0.5125
        assert_close(follow(Optimizer::Sgd { weight_decay: 0.5 }, 0.1, 1.0, |_, _| 2.0, 2), 0.5125);
    }

    #[test]
    fn the_sum_is_scaled_to_the_mean() {
        let mut vector = [8.0];
        Optimizer::Sgd { weight_decay: 0.0 }.update(0.5, 1, 0.25).apply(&[3.0], &mut vector, &[], &mut []);
        assert_eq!(vector, [2.0]);
    }

    #[test]
    fn momentum_by_hand() {
        // Velocities 1, then 1.9, then 2.71, with a gradient of 1.
        let plain = Optimizer::Momentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        assert_close(follow(plain, 0.1, 0.0, |_, _| 1.0, 3), -0.1 * (1.0 + 1.9 + 2.71));
        // Looking ahead: 1 + 0.9 x 1, then 1 + 0.9 x 1.9.
        let nesterov = Optimizer::Momentum { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
        assert_close(follow(nesterov, 0.1, 0.0, |_, _| 1.0, 2), -0.1 * (1.9 + 2.71));
    }

    #[test]
    fn adagrad_by_hand() {
        // Gradients 3, then 4: sums of squares 9, then 25.
        let rule = Optimizer::Adagrad { epsilon: 0.0, weight_decay: 0.0 };
        assert_close(follow(rule, 0.5, 1.0, |step, _| step as f32 + 2.0, 2), 1.0 - 0.5 * (1.0 + 0.8));
    }

    #[test]
    fn a_proximal_step_by_hand() {
        let rule = Optimizer::Prox { l1: 0.5, l2: 1.0 };
        // (2 - 0.1 x 4 - 0.1 x 0.5) / 1.1; from below alike; and what is within reach of zero is zero.
        assert_close(follow(rule, 0.1, 2.0, |_, _| 4.0, 1), 1.55 / 1.1);
        assert_close(follow(rule, 0.1, -2.0, |_, _| -4.0, 1), -1.55 / 1.1);
        assert_eq!(follow(rule, 0.1, 0.04, |_, _| 0.0, 1), 0.0);
        assert_eq!(follow(rule, 0.1, 0.0, |_, _| -0.5, 1), 0.0);
    }

    #[test]
    fn ftrl_by_hand() {
        let rule = Optimizer::Ftrl { beta: 1.0, l1: 0.5, l2: 2.0 };
        // From 0 with a gradient of 3: z = 3, n = 9, x = -(3 - 0.5) / ((1 + 3) / 0.1 + 2).
        let first = -2.5 / 42.0;
        assert_close(follow(rule, 0.1, 0.0, |_, _| 3.0, 1), first);
        // Then 4: n = 25, z = 3 + 4 - (5 - 3) / 0.1 x.
        let z = 7.0 - 20.0 * first;
        let gradient = |step: u32, _| step as f32 + 2.0;
        assert_close(follow(rule, 0.1, 0.0, gradient, 2), -(z - 2.0 * 0.5) / (6.0 / 0.1 + 2.0 * 2.0));
        assert_eq!(follow(rule, 0.1, 0.0, |_, _| 0.4, 1), 0.0, "it is not worth it");
    }

    #[test]
    fn sparse_rules_find_the_minimum_of_the_regularized_loss() {
        // (x - 1)^2 / 2 + |x| / 4 + x^2 / 4
        let minimum = (1.0 - 0.25) / (1.0 + 0.5);
        let gradient = |_, x: f32| x - 1.0;
        assert_close(follow(Optimizer::Prox { l1: 0.25, l2: 0.5 }, 0.1, 3.0, gradient, 2000), minimum);
        // Its rate falls, so that it only comes near.
        let ftrl = follow(Optimizer::Ftrl { beta: 1.0, l1: 0.25, l2: 0.5 }, 0.5, 3.0, gradient, 5000);
        assert!((f64::from(ftrl) - minimum).abs() < 1e-3, "{ftrl}");
        for rule in [Optimizer::Prox { l1: 1.5, l2: 0.0 }, Optimizer::Ftrl { beta: 1.0, l1: 1.5, l2: 0.0 }] {
            assert_eq!(follow(rule, 0.1, 0.0, gradient, 1), 0.0, "the loss is not worth leaving zero");
        }
    }

    #[test]
    fn the_first_step_of_adam_is_the_rate() {
        // Whatever the gradient's size: m = 0.1 g and v = 0.001 g^2, both undone by the corrections.
        for gradient in [1e-3, 1.0, 1e3] {
            assert_close(follow(ADAM, 0.01, 1.0, |_, _| gradient, 1), 0.99);
        }
    }

    #[test]
    fn adam_by_hand() {
        // g = 1 then -1: m = 0.1, -0.01; v = 0.001, 0.001999. Second step: m / 0.19 and v / 0.001999 = 1.
        assert_close(
            follow(ADAM, 0.1, 0.0, |step, _| if step == 1 { 1.0 } else { -1.0 }, 2),
            -0.1 + 0.1 * 0.01 / 0.19,
        );
    }

    #[test]
    fn weight_decay_enters_adam_s_moments_but_not_adam_w_s() {
        let adam = Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
        // A gradient of decay alone: Adam still takes a full step, AdamW shrinks by rate x decay.
        assert_close(follow(adam, 0.01, 2.0, |_, _| 0.0, 1), 1.99);
        let adam_w = Optimizer::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
        assert_close(follow(adam_w, 0.01, 2.0, |_, _| 0.0, 1), 2.0 * 0.999);
        assert_close(follow(adam_w, 0.01, 2.0, |_, _| 5.0, 1), 2.0 * 0.999 - 0.01);
    }

    #[test]
    fn adam_follows_a_plain_reference() {
        let gradient = |step: u32, x: f64| 2.0 * x + (f64::from(step) * 0.7).sin();
        let (rate, beta1, beta2) = (0.02, f64::from(0.9_f32), f64::from(0.999_f32));
        let (mut x, mut mean, mut square) = (1.5_f64, 0.0, 0.0);
        for step in 1..=200 {
            let g = gradient(step, x);
            mean = beta1 * mean + (1.0 - beta1) * g;
            square = beta2 * square + (1.0 - beta2) * g * g;
            let corrected = mean / (1.0 - beta1.powi(step as i32));
            let root = (square / (1.0 - beta2.powi(step as i32))).sqrt();
            x -= rate * corrected / (root + 1e-8);
        }
        let found = follow(ADAM, rate, 1.5, |step, x| gradient(step, f64::from(x)) as f32, 200);
        assert!((f64::from(found) - x).abs() < 1e-4, "{found} {x}");
    }

    #[test]
    fn cutting_a_vector_into_ranges_changes_no_bit() {
        let parameters: Vec<f32> = (0..37).map(|i| (i as f32 * 0.37).sin()).collect();
        let gradient: Vec<f32> = (0..37).map(|i| (i as f32 * 1.1).cos() * 100.0).collect();
        let old: Vec<f32> = (0..74).map(|i| (i as f32 * 0.21).sin().abs()).collect();
        let update = |range: std::ops::Range<usize>| {
            let mut vector = gradient[range.clone()].to_vec();
            let old = [&old[range.clone()], &old[range.start + 37..range.end + 37]].concat();
            let mut new = vec![0.0; old.len()];
            ADAM.update(0.001, 5, 0.125).apply(&parameters[range], &mut vector, &old, &mut new);
            vector.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(update(0..37), [update(0..5), update(5..32), update(32..37)].concat());
    }

    #[test]
    fn bits_are_pinned() {
        let found = follow(ADAM, 0.05, 0.3, |step, x| x * 3.0 - step as f32 * 0.1, 20);
        assert_eq!(found.to_bits(), PINNED, "{found} is {:#x}", found.to_bits());
    }

    /// Recorded once on x86-64; any machine must find it.
    const PINNED: u32 = 0x3f08_5b64;
}
