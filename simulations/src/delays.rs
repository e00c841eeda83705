//! Delays: what stale parameters cost an algorithm, and nothing else. No network, no nodes, no machine that is slow.
//!
//! Each worker has a *cache* of the parameters, from which it computes. Whatever it makes of its batch is an *update*, which is
//! added to all caches, but not at once: it reaches each of them some iterations later, by a draw of its own.
//!
//! ```text
//!   iteration           t                t + 1        t + 2        t + 3
//!   worker 0    cache 0 ---> update --+--------------> cache 0
//!                                     +-> cache 1
//!                                     +---------------------------> cache 2
//! ```
//! What is counted is batches until the model is good enough: the reference with which programs that compute from stale
//! parameters are compared, whatever machines and lines they run on.
//!
//! # How it works
//! The update that worker `q` makes in iteration `t` reaches the cache of worker `p` at the start of iteration `t + 1 + r`, with
//! `r` uniform in `0..=s` for each (`q`, `p`, `t`). That holds for `p = q` too: a worker waits for its own updates like everybody else. So
//! the delay is 1 + s / 2 on average, one worker can be studied alone, and `s = 0` is synchronous training: all caches are the same bits.
//!
//! An update is what the worker's own optimizer, with its own state, makes of the mean gradient at its cache. Updates are added up
//! and not averaged: N workers at rate η go as far in an iteration as one at N η.
//!
//! # Invariants
//! - Each update reaches each cache exactly once, older ones first, those of one iteration by worker: the same seed gives the same
//!   bits (for a task whose gradient does, which is so on one kind of processor).
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
mod trials;

pub use draws::delay;
pub use trials::{Trials, median};

/// What is studied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// How many there are.
    pub workers: u32,
    /// The most iterations that an update is late.
    pub staleness: u64,
    /// Samples of a batch; each worker has one in each iteration.
    pub batch: u32,
    /// Turns a mean gradient into an update.
    pub rule: Optimizer,
    /// The learning rate, throughout.
    pub rate: f64,
    /// Decides the initial parameters, the order of samples, and all delays.
    pub seed: u64,
}

/// When a model is good enough, on samples that nobody trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At least this share of them is classified rightly.
    Accuracy(f64),
    /// The mean loss is at most this.
    Loss(f64),
}

impl Target {
    /// Whether it is.
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
    /// Iterations that are over.
    iterations: u64,
    /// The updates of the last iterations, the newest last; in each, by worker.
    underway: VecDeque<Vec<Vec<f32>>>,
    samples: Samples,
}

struct Worker {
    cache: Vec<f32>,
    /// (moment count, n): the optimizer's state, and room for the next.
    moments: [Vec<f32>; 2],
}

impl<'a> Study<'a> {
    /// All caches at the initial parameters.
    ///
    /// # Panics
    /// If there are no workers, samples, or samples in a batch; or the rule is FTRL, whose parameters are not what they were
    /// before and an update.
    #[must_use]
    pub fn new(task: &'a dyn Task, setting: Setting) -> Self {
        let Setting { workers, batch, rule, seed, .. } = setting;
        assert!(workers > 0 && batch > 0 && task.sample_count() > 0, "somebody has something to compute");
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

    /// One batch of each worker.
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

    /// Adds what arrives at the start of the iteration that comes now.
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

    /// What each worker computes from in the iteration that comes now: (n) each.
    pub fn caches(&self) -> impl Iterator<Item = &[f32]> {
        self.workers.iter().map(|worker| &worker.cache[..])
    }

    /// Batches that have been computed, by all workers together.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.iterations * u64::from(self.setting.workers)
    }

    /// How good the mean of all caches is.
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

    /// Goes on until the target is reached, and says after how many batches that was; `None` if it is not within `batches_max`, or the
    /// loss is not finite any more.
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

    /// The caches after 40 iterations; 7 does not divide the samples of an epoch.
    fn caches(task: &dyn Task, setting: Setting) -> Vec<Vec<u32>> {
        let mut study = Study::new(task, setting);
        (0..40).for_each(|_| study.iterate());
        study.caches().map(bits).collect()
    }

    /// One vector of parameters, and no caches: every worker computes from it, then all updates are added.
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
    fn without_staleness_it_is_synchronous_training() {
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
