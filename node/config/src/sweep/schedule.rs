//! The schedule: which trial is trained next, and how far. A pure function of the results, so all workers compute the same one.
//!
//! ```text
//! rung 2   3 trials, 40 epochs    o o o              the best third of the rung below
//! rung 1   9 trials, 13 epochs    o o o o o o o o o  the best third of the rung below
//! rung 0  27 trials,  4 epochs    all of them
//! ```
//! A *job* is a trial at a rung. Jobs are numbered in the order in which they are decided. A rung says how many epochs of its whole
//! training a trial gets. A job trains its trial from the beginning, so nothing but results passes from rung to rung.
//!
//! # How it works
//! - **Grid and random** have one rung: all trials, in order.
//! - **Successive halving** decides all jobs of a rung at once, when all results of the rung below are known.
//! - **ASHA** takes trials in an order that has nothing to do with their values, since a grid often goes from bad values to good ones. It does not wait for a whole rung. A trial goes on when it is among the best part of the results of its rung so far. If there is
//!   none, a new trial begins. Usually "so far" depends on who is fastest. Here job k is decided by the results of the jobs before
//!   k - P + 1 only, with P = [`parallel`](Strategy::Asha::parallel). If they give nothing to do, the results of one more job count, then
//!   of another one, in the order of their numbers. So the jobs are the same for any number of workers, and up to P of them work at once.
//!
//! # Cost
//! With R rungs, and E epochs for N trials, successive halving trains about R N E / eta^(R - 1) epochs in place of N E.
//!
//! # Reading
//! Jamieson and Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter Optimization*, 2016. Li et al., *A System for
//! Massively Parallel Hyperparameter Tuning*, 2020, algorithm 2: there, workers ask in any order; here, in the order of jobs.

use std::collections::BTreeSet;

use peergrad_protocol::cursor::permutation;
use serde::{Deserialize, Serialize};

use super::results::TrialResult;

/// How a sweep chooses what to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Strategy {
    /// All trials, to the end.
    All {},
    /// Successive halving.
    Halving {
        /// One of so many trials goes on to the next rung.
        eta: usize,
        /// The number of rungs.
        rungs: usize,
    },
    /// Asynchronous successive halving.
    Asha {
        /// One of so many trials goes on to the next rung.
        eta: usize,
        /// The number of rungs.
        rungs: usize,
        /// How many jobs are under way at most.
        parallel: usize,
    },
}

/// A trial at a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job {
    /// The number of the trial, from 0.
    pub trial: usize,
    /// The rung, from 0.
    pub rung: usize,
}

/// The jobs that are decided so far.
#[derive(Clone, Debug)]
pub struct Schedule {
    strategy: Strategy,
    trial_count: usize,
    jobs: Vec<Job>,
    /// Those that ASHA has decided.
    decided: BTreeSet<Job>,
    is_complete: bool,
    /// The order in which ASHA begins trials, shape (trials).
    order: Vec<u32>,
}

impl Strategy {
    /// The number of rungs.
    #[must_use]
    pub fn rungs(&self) -> usize {
        match *self {
            Self::All {} => 1,
            Self::Halving { rungs, .. } | Self::Asha { rungs, .. } => rungs,
        }
    }

    /// How many epochs a trial of so many epochs gets at a rung: all at the last one, at least one at each.
    #[must_use]
    pub fn epochs(&self, rung: usize, epochs: u64) -> u64 {
        match *self {
            Self::All {} => epochs,
            Self::Halving { eta, rungs } | Self::Asha { eta, rungs, .. } => {
                let divisor = (eta as u64).saturating_pow((rungs - 1 - rung) as u32);
                (epochs / divisor).max(1)
            }
        }
    }

    /// The most jobs that there can be.
    #[must_use]
    pub fn jobs_max(&self, trial_count: usize) -> usize {
        trial_count * self.rungs()
    }

    /// The most rungs that are worth while for so many trials and epochs, and at most [`RUNGS_DEFAULT_MAX`].
    #[must_use]
    pub fn rungs_default(eta: usize, trial_count: usize, epochs: u64) -> usize {
        let is_possible = |rungs: &usize| {
            let factor = (eta as u64).saturating_pow((*rungs - 1) as u32);
            factor <= trial_count as u64 && factor <= epochs
        };
        (1..=RUNGS_DEFAULT_MAX).rev().find(is_possible).unwrap_or(1)
    }
}

impl Schedule {
    /// No job is decided yet.
    #[must_use]
    pub fn new(strategy: Strategy, trial_count: usize) -> Self {
        let order = permutation(ORDER_SEED, 0, trial_count as u32);
        let (jobs, decided) = (Vec::new(), BTreeSet::new());
        Self { strategy, trial_count, jobs, decided, is_complete: false, order }
    }

    /// The jobs that are decided, by their numbers.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Whether there will be no more jobs.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Decides all jobs that these results allow.
    ///
    /// - `results`: (jobs), `None` for a job that is not done. A longer slice than there are jobs is allowed.
    pub fn extend(&mut self, results: &[Option<TrialResult>]) {
        while !self.is_complete && self.decide(results) {}
    }

    /// Decides some jobs, or that there are no more. Returns false if more results are needed.
    fn decide(&mut self, results: &[Option<TrialResult>]) -> bool {
        match self.strategy {
            Strategy::All {} => {
                self.jobs = (0..self.trial_count).map(|trial| Job { trial, rung: 0 }).collect();
                self.is_complete = true;
                true
            }
            Strategy::Halving { eta, rungs } => self.decide_rung(eta, rungs, results),
            Strategy::Asha { eta, rungs, parallel } => self.decide_next(eta, rungs, parallel, results),
        }
    }

    /// Successive halving: decides a whole rung.
    fn decide_rung(&mut self, eta: usize, rungs: usize, results: &[Option<TrialResult>]) -> bool {
        let Some(rung) = self.jobs.last().map(|job| job.rung) else {
            self.jobs = (0..self.trial_count).map(|trial| Job { trial, rung: 0 }).collect();
            return true;
        };
        if rung + 1 == rungs {
            self.is_complete = true;
            return true;
        }
        let Some(ranked) = self.ranked(rung, self.jobs.len(), results) else { return false };
        let count = (ranked.len() / eta).max(1);
        let mut next: Vec<usize> = ranked.into_iter().take(count).collect();
        next.sort_unstable();
        self.jobs.extend(next.into_iter().map(|trial| Job { trial, rung: rung + 1 }));
        true
    }

    /// ASHA: decides the next job.
    fn decide_next(
        &mut self,
        eta: usize,
        rungs: usize,
        parallel: usize,
        results: &[Option<TrialResult>],
    ) -> bool {
        let count = self.jobs.len();
        for known in (count + 1).saturating_sub(parallel)..=count {
            let is_known = |job: usize| results.get(job).is_some_and(Option::is_some);
            if !(0..known).all(is_known) {
                return false;
            }
            let promoted = (0..rungs - 1).rev().find_map(|rung| self.promoted(rung, known, eta, results));
            let next = promoted.or_else(|| {
                let begun = self.jobs.iter().filter(|job| job.rung == 0).count();
                self.order.get(begun).map(|trial| Job { trial: *trial as usize, rung: 0 })
            });
            if let Some(job) = next {
                self.jobs.push(job);
                self.decided.insert(job);
                return true;
            }
        }
        self.is_complete = true;
        true
    }

    /// The best trial of the rung that may go on and has not, by the results of the first `known` jobs.
    fn promoted(
        &self,
        rung: usize,
        known: usize,
        eta: usize,
        results: &[Option<TrialResult>],
    ) -> Option<Job> {
        let ranked = self.ranked(rung, known, results)?;
        let best = ranked.iter().take(ranked.len() / eta);
        let mut next = best.map(|trial| Job { trial: *trial, rung: rung + 1 });
        next.find(|job| !self.decided.contains(job))
    }

    /// The trials of a rung among the first `known` jobs, the best first. `None` if a result is not known.
    fn ranked(&self, rung: usize, known: usize, results: &[Option<TrialResult>]) -> Option<Vec<usize>> {
        let of_rung = self.jobs.iter().take(known).enumerate().filter(|(_, job)| job.rung == rung);
        let scored = of_rung.map(|(index, job)| Some((results.get(index).copied().flatten()?, job.trial)));
        let mut scored: Vec<(TrialResult, usize)> = scored.collect::<Option<_>>()?;
        scored.sort_by(|(one, first), (other, second)| one.order(other).then(first.cmp(second)));
        Some(scored.into_iter().map(|(_, trial)| trial).collect())
    }

    /// The number of the job with the best result at the highest rung that has one; `None` without results.
    #[must_use]
    pub fn best(&self, results: &[Option<TrialResult>]) -> Option<usize> {
        let done = self
            .jobs
            .iter()
            .enumerate()
            .filter_map(|(index, job)| Some((index, job, results.get(index)?.as_ref()?)));
        let order = |(_, job, result): &(usize, &Job, &TrialResult),
                     (_, other, than): &(usize, &Job, &TrialResult)| {
            other.rung.cmp(&job.rung).then_with(|| result.order(than)).then(job.trial.cmp(&other.trial))
        };
        done.min_by(order).map(|(index, ..)| index)
    }
}

/// Any number: the order of trials is the same in all sweeps of so many.
const ORDER_SEED: u64 = 1;
/// The most rungs, unless the user gives their number: more of them judge trials by very few epochs.
pub const RUNGS_DEFAULT_MAX: usize = 3;
/// The most rungs that a user may give.
pub const RUNGS_MAX: usize = 8;
/// The largest share of trials that does not go on, as a divisor.
pub const ETA_MAX: usize = 16;
/// The most jobs that ASHA may have under way.
pub const PARALLEL_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// The accuracy of a trial at a rung, which differs for each trial, and at low rungs is not quite the order of the highest.
    fn result(Job { trial, rung }: Job) -> TrialResult {
        let quality = (trial * 7) % 27;
        let noise = if rung == 0 { (trial * 5) % 3 } else { 0 };
        TrialResult { loss: 1.0, accuracy: Some((quality + noise) as f32 / 30.0), diverged: false }
    }

    /// Runs a schedule with so many workers, which end in the order that `pick` says. Returns the jobs and the best trial.
    fn run(
        strategy: Strategy,
        trials: usize,
        workers: usize,
        mut pick: impl FnMut(usize) -> usize,
    ) -> (Vec<Job>, usize) {
        let mut schedule = Schedule::new(strategy, trials);
        let mut results: Vec<Option<TrialResult>> = vec![None; strategy.jobs_max(trials)];
        let (mut begun, mut under_way) = (0, Vec::new());
        loop {
            schedule.extend(&results);
            while under_way.len() < workers && begun < schedule.jobs().len() {
                under_way.push(begun);
                begun += 1;
            }
            if under_way.is_empty() {
                assert!(schedule.is_complete(), "a schedule always goes on");
                let best = schedule.best(&results).unwrap();
                return (schedule.jobs().to_vec(), schedule.jobs()[best].trial);
            }
            let done = under_way.remove(pick(under_way.len()));
            results[done] = Some(result(schedule.jobs()[done]));
        }
    }

    const HALVING: Strategy = Strategy::Halving { eta: 3, rungs: 3 };
    const ASHA: Strategy = Strategy::Asha { eta: 3, rungs: 3, parallel: 6 };

    #[test]
    fn jobs_are_the_same_for_any_number_of_workers_in_any_order() {
        for strategy in [Strategy::All {}, HALVING, ASHA] {
            let alone = run(strategy, 27, 1, |_| 0);
            assert!(alone.0.len() <= strategy.jobs_max(27));
            for workers in [2, 4, 9, 40] {
                let mut state = 1_u64;
                let at_random = |count: usize| {
                    state = peergrad_protocol::cursor::mixed(state);
                    (state % count as u64) as usize
                };
                assert_eq!(run(strategy, 27, workers, at_random), alone, "{strategy:?}, {workers} workers");
                assert_eq!(
                    run(strategy, 27, workers, |count| count - 1),
                    alone,
                    "{strategy:?}, the last first"
                );
            }
        }
    }

    #[test]
    fn each_trial_is_at_each_rung_at_most_once() {
        for strategy in [Strategy::All {}, HALVING, ASHA] {
            for trials in [1, 2, 3, 8, 27, 50] {
                let (mut jobs, _) = run(strategy, trials, 3, |_| 0);
                let count = jobs.len();
                jobs.sort_unstable();
                jobs.dedup();
                assert_eq!(jobs.len(), count, "{strategy:?}");
                let begun = jobs.iter().filter(|job| job.rung == 0).count();
                assert_eq!(begun, trials, "all trials begin: {strategy:?}");
            }
        }
    }

    #[test]
    fn halving_keeps_the_best_third_and_costs_a_third() {
        let (jobs, best) = run(HALVING, 27, 4, |_| 0);
        let at = |rung| jobs.iter().filter(|job| job.rung == rung).count();
        assert_eq!([at(0), at(1), at(2)], [27, 9, 3]);
        let full = run(Strategy::All {}, 27, 1, |_| 0);
        assert_eq!((full.0.len(), best), (27, 23), "the best of all is found");
        let epochs: u64 = jobs.iter().map(|job| HALVING.epochs(job.rung, 40)).sum();
        assert_eq!(epochs, 27 * 4 + 9 * 13 + 3 * 40);
        assert!(epochs * 3 < 27 * 40);
    }

    #[test]
    fn asha_promotes_before_a_rung_is_complete_and_works_at_once() {
        let (jobs, _) = run(ASHA, 27, 6, |_| 0);
        let first_promotion = jobs.iter().position(|job| job.rung == 1).unwrap();
        assert!(first_promotion < 27, "{first_promotion}");
        // Without any result, `parallel` jobs are decided.
        let mut schedule = Schedule::new(ASHA, 27);
        schedule.extend(&[]);
        assert_eq!(schedule.jobs().len(), 6);
        assert!(jobs.iter().any(|job| job.rung == 2));
    }

    #[test]
    fn a_trial_that_diverged_is_the_worst_and_ties_go_to_the_first() {
        let mut schedule = Schedule::new(Strategy::All {}, 3);
        schedule.extend(&[]);
        let fine = TrialResult { loss: 5.0, accuracy: Some(0.1), diverged: false };
        let diverged = TrialResult { loss: 0.0, accuracy: None, diverged: true };
        assert_eq!(schedule.best(&[Some(diverged), Some(fine), Some(fine)]), Some(1));
        assert_eq!(schedule.best(&[None, None, Some(diverged)]), Some(2));
        assert_eq!(schedule.best(&[]), None);
    }

    #[test]
    fn rungs_follow_from_trials_and_epochs() {
        assert_eq!(Strategy::rungs_default(3, 27, 40), 3);
        assert_eq!(Strategy::rungs_default(3, 8, 40), 2);
        assert_eq!(Strategy::rungs_default(3, 27, 2), 1);
        assert_eq!(Strategy::rungs_default(2, 100, 100), 3);
        let asha = Strategy::Asha { eta: 3, rungs: 4, parallel: 2 };
        assert_eq!([0, 1, 2, 3].map(|rung| asha.epochs(rung, 40)), [1, 4, 13, 40]);
    }
}
