//! Delays: what stale parameters alone cost an algorithm, without network, nodes or slow machines.
//!
//! Each worker has a *cache* of the parameters, from which it computes. From each batch it makes an *update*, which is added to all caches,
//! but not at once: it reaches each cache some iterations later, and the delay is drawn for each cache separately.
//!
//! ```text
//!   iteration           t                t + 1        t + 2        t + 3
//!   worker 0    cache 0 ---> update --+--------------> cache 0
//!                                     +-> cache 1
//!                                     +---------------------------> cache 2
//! ```
//! The result is the number of batches until the model is good enough. It is a reference for programs that compute from stale parameters,
//! independent of machines and links.
//!
//! # How it works
//! The update that worker `q` makes in iteration `t` reaches the cache of worker `p` at the start of iteration `t + 1 + r`, with `r`
//! uniform in `0..=s` for each (`q`, `p`, `t`). That holds for `p = q` too: a worker's updates reach its own cache late as well. So the
//! delay is 1 + s / 2 on average, one worker can be studied alone, and `s = 0` is synchronous training, with equal bits in all caches.
//!
//! A worker's optimizer, with the worker's own state, turns the mean gradient at its cache into an update. Updates are added up and not
//! averaged: in one iteration, N workers at rate η go as far as one worker at N η.
//!
//! # Invariants
//! - Each update reaches each cache exactly once, older ones first, and those of one iteration in order of workers. So the same seed gives
//!   the same bits, if the task's gradient does (which holds on one kind of processor).
//! - A delay is a function of (seed, `q`, `p`, `t`, `s`) alone.
//!
//! # Reading
//! Dai et al., "Toward Understanding the Impact of Staleness in Distributed Machine Learning", 2018, section 3, for the model of
//! delays. Ours: the model that is evaluated is the mean of the caches, and [`Trials::rate`] chooses rates.
//! `docs/experiments.md` has the results.

use std::collections::VecDeque;

use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::{Evaluation, Task};

use draws::Samples;

mod draws;
pub mod fixed;
mod trials;

pub use draws::delay;
pub use trials::{Trials, median};

/// The settings of a study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Number of workers.
    pub workers: u32,
    /// The most iterations by which an update is late.
    pub staleness: u64,
    /// Samples in a batch; each worker computes one batch in each iteration.
    pub batch: u32,
    /// Turns a mean gradient into an update.
    pub rule: Optimizer,
    /// The learning rate, which is constant.
    pub rate: f64,
    /// Decides the initial parameters, the order of samples, and all delays.
    pub seed: u64,
}

/// When a model is good enough, measured on held-out samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At least this share of the samples is classified correctly.
    Accuracy(f64),
    /// The mean loss is at most this.
    Loss(f64),
}

impl Target {
    /// Whether an evaluation reaches the target.
    #[must_use]
    pub fn is_reached(self, found: &Evaluation) -> bool {
        match self {
            Self::Accuracy(least) => found.accuracy.is_some_and(|accuracy| accuracy >= least),
            Self::Loss(most) => found.loss <= most,
        }
    }
}

/// Workers, their caches, and the updates that have not reached all of them.
pub struct Study<'a> {
    task: &'a dyn Task,
    setting: Setting,
    workers: Vec<Worker>,
    /// Number of iterations so far.
    iterations: u64,
    /// Updates that have not reached all caches: by iteration, the newest last, and by worker.
    underway: VecDeque<Vec<Vec<f32>>>,
    samples: Samples,
}

struct Worker {
    cache: Vec<f32>,
    /// Two buffers of (moment count, n): the optimizer's state, and space for the next one.
    moments: [Vec<f32>; 2],
}

impl<'a> Study<'a> {
    /// A study with all caches at the initial parameters.
    ///
    /// # Panics
    /// If there are no workers, no samples, or no samples in a batch; or if the rule is FTRL, whose new parameters are not the old ones
    /// plus an update.
    #[must_use]
    pub fn new(task: &'a dyn Task, setting: Setting) -> Self {
        let Setting { workers, batch, rule, seed, .. } = setting;
        assert!(workers > 0 && batch > 0 && task.sample_count() > 0, "there are workers and samples");
        assert!(!matches!(rule, Optimizer::Ftrl { .. }), "FTRL makes no updates");
        let count = task.manifest().parameter_count();
        let mut cache = vec![0.0; count];
        task.initial(seed, &mut cache);
        let moments = || vec![0.0; count * rule.moment_count()];
        let worker = || Worker { cache: cache.clone(), moments: [moments(), moments()] };
        Self {
            task,
            setting,
            workers: (0..workers).map(|_| worker()).collect(),
            iterations: 0,
            underway: VecDeque::new(),
            samples: Samples::new(seed, task.sample_count()),
        }
    }

    /// Computes one batch of each worker.
    pub fn iterate(&mut self) {
        let mut updates = match self.underway.len() as u64 > self.setting.staleness {
            true => self.underway.pop_front().expect("it is not empty"),
            false => self.workers.iter().map(|worker| vec![0.0; worker.cache.len()]).collect(),
        };
        let Setting { batch, rule, rate, .. } = self.setting;
        let step = u32::try_from(self.iterations + 1).expect("a study has fewer than 2^32 iterations");
        let rule = rule.update(rate, step, 1.0 / batch as f32);
        for (Worker { cache, moments: [old, new] }, update) in self.workers.iter_mut().zip(&mut updates) {
            self.task.gradient(cache, self.samples.take(batch), update);
            rule.apply(cache, update, old, new);
            std::mem::swap(old, new);
            update.iter_mut().zip(cache).for_each(|(update, before)| *update -= *before);
        }
        self.underway.push_back(updates);
        self.iterations += 1;
        self.deliver();
    }

    /// Adds to the caches what arrives at the start of this iteration.
    fn deliver(&mut self) {
        let Setting { staleness, seed, .. } = self.setting;
        let oldest = self.iterations - self.underway.len() as u64;
        for (made, updates) in (oldest..).zip(&self.underway) {
            let late = self.iterations - made - 1;
            for (to, worker) in (0..).zip(&mut self.workers) {
                for (from, update) in (0..).zip(updates) {
                    if delay(seed, from, to, made, staleness) == late {
                        worker.cache.iter_mut().zip(update).for_each(|(element, update)| *element += update);
                    }
                }
            }
        }
    }

    /// The parameters from which each worker computes in the next iteration: (n) each.
    pub fn caches(&self) -> impl Iterator<Item = &[f32]> {
        self.workers.iter().map(|worker| &worker.cache[..])
    }

    /// Number of batches computed, over all workers.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.iterations * u64::from(self.setting.workers)
    }

    /// Evaluation of the mean of all caches.
    #[must_use]
    pub fn evaluate(&self) -> Evaluation {
        let mut sums = vec![0.0; self.workers[0].cache.len()];
        for cache in self.caches() {
            sums.iter_mut().zip(cache).for_each(|(sum, element)| *sum += f64::from(*element));
        }
        let count = self.workers.len() as f64;
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
        self.task.evaluate(&mean)
    }

    /// Iterates until the target is reached, and returns the number of batches; `None` if it is not reached within `batches_max`, or the
    /// loss is no longer finite.
    pub fn batches_to(&mut self, target: Target, batches_max: u64) -> Option<u64> {
        while self.batches() + u64::from(self.setting.workers) <= batches_max {
            self.iterate();
            let found = self.evaluate();
            if target.is_reached(&found) {
                return Some(self.batches());
            }
            if !found.loss.is_finite() {
                break;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use peergrad_models::optimizer::Update;
    use peergrad_protocol::cursor::permutation;
    use peergrad_protocol::manifest::Manifest;

    use super::*;
    use crate::task::Squares;

    const SGD: Optimizer = Optimizer::Sgd { weight_decay: 0.0 };
    const MOMENTUM: Optimizer = Optimizer::Momentum { momentum: 0.9, nesterov: false, weight_decay: 0.01 };
    const ADAM: Optimizer = Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };

    fn setting(rule: Optimizer, staleness: u64) -> Setting {
        Setting { workers: 5, staleness, batch: 7, rule, rate: 0.01, seed: 3 }
    }

    fn bits(parameters: &[f32]) -> Vec<u32> {
        parameters.iter().map(|element| element.to_bits()).collect()
    }

    /// The caches after 40 iterations, as bits; 7 does not divide the samples of an epoch.
    fn caches(task: &dyn Task, setting: Setting) -> Vec<Vec<u32>> {
        let mut study = Study::new(task, setting);
        (0..40).for_each(|_| study.iterate());
        study.caches().map(bits).collect()
    }

    /// A reference with one vector of parameters and no caches: every worker computes from it, then all updates are added.
    fn plain(task: &dyn Task, Setting { workers, batch, rule, rate, seed, .. }: Setting) -> Vec<u32> {
        let count = task.manifest().parameter_count();
        let mut parameters = vec![0.0; count];
        task.initial(seed, &mut parameters);
        let orders: Vec<u32> =
            (0..20).flat_map(|epoch| permutation(seed, epoch, task.sample_count())).collect();
        let mut batches = orders.chunks_exact(batch as usize);
        let mut moments = vec![vec![0.0; count * rule.moment_count()]; workers as usize];
        for step in 1..=40 {
            let update: Update = rule.update(rate, step, 1.0 / batch as f32);
            let mut sum = parameters.clone();
            for moments in &mut moments {
                let (mut vector, old) = (vec![0.0; count], moments.clone());
                task.gradient(&parameters, batches.next().expect("epochs enough"), &mut vector);
                update.apply(&parameters, &mut vector, &old, moments);
                let changes = vector.iter().zip(&parameters).map(|(after, before)| after - before);
                sum.iter_mut().zip(changes).for_each(|(element, change)| *element += change);
            }
            parameters = sum;
        }
        bits(&parameters)
    }

    #[test]
    fn without_staleness_training_is_synchronous() {
        let task = Squares::new(50, 120);
        for rule in [SGD, MOMENTUM, ADAM] {
            let plain = plain(&task, setting(rule, 0));
            assert!(caches(&task, setting(rule, 0)).iter().all(|cache| *cache == plain), "{rule:?}");
            assert!(caches(&task, setting(rule, 1)).iter().all(|cache| *cache != plain), "{rule:?}");
        }
    }

    #[test]
    fn a_seed_decides_every_bit() {
        let task = Squares::new(50, 120);
        let of = |seed| caches(&task, Setting { seed, ..setting(ADAM, 4) });
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }

    /// Element `k` of the gradient of sample `k` is 1, the others are 0.
    struct Marks;

    impl Task for Marks {
        fn manifest(&self) -> Manifest {
            Manifest::new([("marks", &[600][..])])
        }

        fn sample_count(&self) -> u32 {
            600
        }

        fn gradient(&self, _parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
            gradient.fill(0.0);
            samples.iter().for_each(|&sample| gradient[sample as usize] = 1.0);
            0.0
        }

        fn evaluate(&self, _parameters: &[f32]) -> Evaluation {
            Evaluation { samples: 0, loss: 0.0, accuracy: None }
        }
    }

    #[test]
    fn every_update_reaches_every_worker_once_and_when_it_is_due() {
        for staleness in [0, 1, 5, 30] {
            let setting = Setting { workers: 4, batch: 1, rate: 1.0, ..setting(SGD, staleness) };
            let mut study = Study::new(&Marks, setting);
            let order = permutation(setting.seed, 0, 600);
            for now in 1..=150_u64 {
                study.iterate();
                for (to, cache) in (0..).zip(study.caches()) {
                    for (index, &sample) in order.iter().enumerate() {
                        let (made, from) = (index as u64 / 4, index as u32 % 4);
                        let due = made + 1 + delay(setting.seed, from, to, made, staleness);
                        let expected = if due <= now { -1.0 } else { 0.0 };
                        assert_eq!(
                            cache[sample as usize], expected,
                            "{from} to {to}, made in {made}, at {now}"
                        );
                    }
                }
            }
        }
    }
}
