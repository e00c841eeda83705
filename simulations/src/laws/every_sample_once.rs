//! Law 6, every sample once: step by step, the samples trained are those that seed and ledger say, whoever computes them.

use peergrad::io::Event;
use peergrad::loader::Loaded;
use peergrad_protocol::ledger::{Batch, Ledger};

use super::{Law, Observation};
use crate::cluster::World;

/// The ledger as it must be.
pub struct EverySampleOnce {
    batch_size: u64,
    sample_count: u64,
    ledger: Ledger,
    batches: Vec<Batch>,
}

impl EverySampleOnce {
    /// The law for a run of this task.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        Self {
            batch_size: loaded.training.batch_size,
            sample_count: u64::from(loaded.task.sample_count()),
            ledger: Ledger::default(),
            batches: Vec::new(),
        }
    }

    /// The batch of a step.
    fn batch(&mut self, step: u64) -> &Batch {
        while self.batches.len() as u64 <= step {
            let (batch, after) = self.ledger.take(self.batch_size, self.sample_count);
            self.batches.push(batch);
            self.ledger = after;
        }
        &self.batches[step as usize]
    }
}

impl Law for EverySampleOnce {
    fn name(&self) -> &'static str {
        "every sample once (law 6)"
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        let Observation::Told { host, event: Event::Committed(committed) } = observation else {
            return Ok(());
        };
        let step = committed.step.0;
        let batch = self.batch(step);
        let (due, pass) = (batch.len(), batch.pass);
        let claimed = committed.samples + committed.left_out;
        if claimed == due && committed.pass == pass && committed.samples <= due {
            return Ok(());
        }
        Err(format!(
            "{host} commits step {step} with {} samples and {} left out in pass {}; its batch has {due}, in pass {pass}",
            committed.samples, committed.left_out, committed.pass
        ))
    }
}
