//! Law 3, exactly once: each contribution that a commit claims is in it once. Checked where gradients are integers: there
//! the parameters after a step can be counted out, and one sample twice, or left out, changes them by whole units.

use std::collections::BTreeMap;

use peergrad::io::Event;
use peergrad::loader::Training;
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
    /// The law for a run of this task, whose rate and batch size are powers of two.
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
