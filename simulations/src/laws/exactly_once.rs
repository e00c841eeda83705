//! Law 3, exactly once: each contribution that a commit claims is in it once. Checked where gradients are integers: there
//! the parameters after a step can be counted out, and one sample twice, or left out, changes them by whole units.

use std::collections::BTreeMap;

use peergrad::io::Event;
use peergrad::loader::Training;
use peergrad::optimizer::Rule;
use peergrad::schedule::Schedule;
use peergrad::task::Task;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::ledger::{Ledger, permutation};

use super::{Law, Observation};
use crate::cluster::World;
use crate::task::Integers;

/// The totals as they must be.
pub struct ExactlyOnce {
    task: Integers,
    training: Training,
    ledger: Ledger,
    totals: Vec<i64>,
    /// By step: what its commit must hold.
    digests: BTreeMap<u64, ContentDigest>,
}

impl ExactlyOnce {
    /// Whether the parameters of such a run can be counted out: plain descent at one rate, in batches of one size, where
    /// every sum and every update is exact.
    #[must_use]
    pub fn applies(task: &Integers, training: &Training) -> bool {
        let Training { batch_size, schedule, .. } = training;
        let is_plain = training.rule == Rule::Sgd { weight_decay: 0.0 };
        let is_power_of_two = |rate: f64| rate.is_normal() && rate.to_bits().trailing_zeros() >= 52;
        let has_one_rate = *schedule == Schedule::constant(schedule.base) && is_power_of_two(schedule.base);
        let sample_count = u64::from(task.sample_count());
        let has_one_size = batch_size.is_power_of_two() && sample_count.is_multiple_of(*batch_size);
        let total_max = sample_count.saturating_mul(training.passes).saturating_mul(GRADIENT_MAX);
        is_plain && has_one_rate && has_one_size && total_max <= EXACT_MAX
    }

    /// The law for a run to which it [applies](Self::applies).
    #[must_use]
    pub fn new(task: Integers, training: &Training) -> Self {
        let totals = task.sum(&[]);
        let digests = BTreeMap::new();
        Self { task, training: training.clone(), ledger: Ledger::default(), totals, digests }
    }

    /// The digest after a step, counting up to it.
    fn digest(&mut self, step: u64) -> ContentDigest {
        while self.digests.len() as u64 <= step {
            let sample_count = self.task.sample_count();
            let (batch, after) = self.ledger.take(self.training.batch_size, u64::from(sample_count));
            let order = permutation(self.training.seed, batch.pass, sample_count);
            let spans = batch.spans.iter();
            let samples: Vec<u32> =
                spans.flat_map(|s| &order[s.start as usize..s.end as usize]).copied().collect();
            for (total, sum) in self.totals.iter_mut().zip(self.task.sum(&samples)) {
                *total += sum;
            }
            self.ledger = after;
            let unit = self.training.schedule.rate(0) / self.training.batch_size as f64;
            let parameters: Vec<f32> =
                self.totals.iter().map(|&total| (0.0 - total as f64 * unit) as f32).collect();
            let digest = ContentDigest::of(bytemuck::cast_slice(&parameters));
            self.digests.insert(self.digests.len() as u64, digest);
        }
        self.digests[&step]
    }
}

impl Law for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly once (law 3)"
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        let Observation::Told { host, event: Event::Committed(committed) } = observation else {
            return Ok(());
        };
        let Some(told) = committed.digest else { return Ok(()) };
        if self.digest(committed.step.0) == told {
            return Ok(());
        }
        Err(format!(
            "step {} at {host}: the parameters do not hold each contribution exactly once",
            committed.step.0
        ))
    }
}

/// The largest element of a sample's gradient.
const GRADIENT_MAX: u64 = 2;
/// Integers up to this are exact in `f32`.
const EXACT_MAX: u64 = 1 << 24;

#[cfg(test)]
mod tests {
    use peergrad::specification::RunFile;

    use super::*;
    use crate::workload::Workload;

    #[test]
    fn only_what_can_be_counted_out_is() {
        let applies = |run: &str| {
            let workload = Workload::integers(&RunFile::parse(run).unwrap(), 100, 640).unwrap();
            ExactlyOnce::applies(workload.integers.as_ref().unwrap(), &workload.loaded.training)
        };
        let optimizer = "[optimizer]\nrule = \"sgd\"\nrate";
        assert!(applies(&format!("batch = 64\npasses = 4\n{optimizer} = 0.5")));
        for run in [
            "".to_owned(),
            format!("batch = 64\npasses = 4\n{optimizer} = 0.3"),
            format!("batch = 60\npasses = 4\n{optimizer} = 0.5"),
            format!("batch = 256\npasses = 4\n{optimizer} = 0.5"),
            format!("batch = 64\npasses = 100000\n{optimizer} = 0.5"),
            "batch = 64\npasses = 4\n[optimizer]\nrule = \"adam\"\nrate = 0.5".to_owned(),
        ] {
            assert!(!applies(&run), "{run}");
        }
    }
}
