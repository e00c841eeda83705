//! Law 6, every sample once: step by step, as many samples are trained as a pass over all of them has for that step, with
//! those that are said to be left out.
//!
//! # Not here
//! Which samples: that shows in the parameters, and [`super::exactly_once`] and the replay look at those.

use peergrad::io::Event;
use peergrad::loader::Loaded;

use super::{Law, Observation};
use crate::cluster::World;

/// Passes as they must be, counted out without the ledger that nodes use.
pub struct EverySampleOnce {
    batch_size: u64,
    sample_count: u64,
}

impl EverySampleOnce {
    /// The law for a run of this task.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let sample_count = u64::from(loaded.task.sample_count());
        Self { batch_size: loaded.training.batch_size.min(sample_count), sample_count }
    }

    /// The pass of a step, and how many samples are its: whole batches, and what remains at the end of the pass.
    fn due(&self, step: u64) -> (u64, u64) {
        let steps_a_pass = self.sample_count.div_ceil(self.batch_size);
        let before = (step % steps_a_pass) * self.batch_size;
        (step / steps_a_pass, self.batch_size.min(self.sample_count - before))
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
        let (pass, due) = self.due(step);
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

#[cfg(test)]
mod tests {
    use peergrad_protocol::ledger::Ledger;

    use super::*;

    #[test]
    fn passes_counted_out_are_those_of_the_ledger() {
        for (batch_size, sample_count) in [(1, 1), (30, 740), (64, 640), (640, 640), (7, 5)] {
            let law = EverySampleOnce { batch_size: u64::min(batch_size, sample_count), sample_count };
            let mut ledger = Ledger::default();
            for step in 0..100 {
                let (batch, after) = ledger.take(batch_size, sample_count);
                assert_eq!(
                    law.due(step),
                    (batch.pass, batch.len()),
                    "{batch_size} of {sample_count}, step {step}"
                );
                ledger = after;
            }
        }
    }
}
