//! The plain oracle: the same training in one process and one loop. Sums are in another order there, so it is close and not
//! the same.
//!
//! The batches are those of the commit log: where nobody goes in the middle of a step, what a run alone would take; else
//! what was left of a batch, and later what was given back. Optimizer state that a swarm lost is lost here too.
//!
//! Rounding in another order grows from step to step, in any trainer: some 1e-6 after a thousand steps of digits. After some
//! thousands it can have grown to anything, so only the first [`STEPS_COMPARED`] are compared.

use peergrad::io::Committed;
use peergrad::loader::Loaded;
use peergrad_protocol::ledger::permutation;
use peergrad_protocol::manifest::Chunks;

use super::lineage::Lineage;
use super::passes::Passes;

/// Compares the losses of committed steps with those of the plain loop; how far they are apart at most, relatively.
///
/// # Errors
/// In words, where they are further apart than `apart_max`.
pub fn compare<'a>(
    loaded: &Loaded,
    lineage: &Lineage,
    committed: impl IntoIterator<Item = &'a Committed>,
    apart_max: f64,
) -> Result<f64, String> {
    let mut plain = Plain::new(loaded);
    let mut passes = Passes::new(loaded);
    let mut largest = 0.0;
    for ours in committed.into_iter().take(STEPS_COMPARED) {
        if ours.step.0 != passes.steps() {
            return Err(format!("step {} is committed, and not step {}", ours.step.0, passes.steps()));
        }
        let Some(counted) = passes.count(lineage) else {
            return Err(format!("step {} is committed, and there is no view", ours.step.0));
        };
        let order = permutation(loaded.training.seed, counted.pass, loaded.task.sample_count());
        let restarted = lineage.restarted_with(ours.step.0);
        let theirs = plain.step(ours.step.0, &counted.samples(&order), &restarted);
        if counted.sample_count() == 0 {
            // Whoever had a part of it has gone.
            continue;
        }
        let apart = (ours.loss - theirs).abs() / theirs.abs().max(LOSS_MIN);
        if apart > apart_max || apart.is_nan() {
            return Err(format!(
                "the loss of step {} is {}, and {theirs} in the plain loop: {apart:.0e} apart, and rounding explains {apart_max:.0e}",
                ours.step.0, ours.loss
            ));
        }
        largest = f64::max(largest, apart);
    }
    Ok(largest)
}

/// The plain loop, between two steps.
struct Plain<'a> {
    loaded: &'a Loaded,
    chunks: Chunks,
    parameters: Vec<f32>,
    vector: Vec<f32>,
    /// By chunk: its moments, one after the other, and how many updates it has had.
    moments: Vec<(Vec<f32>, u32)>,
}

impl<'a> Plain<'a> {
    fn new(loaded: &'a Loaded) -> Self {
        let chunks = loaded.manifest.chunks();
        let mut parameters = vec![0.0; chunks.parameter_count()];
        loaded.task.initial(loaded.training.seed, &mut parameters);
        let moment_count = loaded.owner_moments();
        let moments = |chunk: usize| (vec![0.0; chunks.range(chunk).len() * moment_count], 0);
        let moments = (0..chunks.count()).map(moments).collect();
        Self { loaded, chunks, vector: parameters.clone(), parameters, moments }
    }

    /// One step on these samples; the mean of their losses. The chunks that are `restarted` have had no update before.
    fn step(&mut self, number: u64, samples: &[u32], restarted: &[usize]) -> f64 {
        for &chunk in restarted {
            let (moments, updates) = &mut self.moments[chunk];
            (*updates, *moments) = (0, vec![0.0; moments.len()]);
        }
        if samples.is_empty() {
            return 0.0;
        }
        let (task, training) = (&self.loaded.task, &self.loaded.training);
        let loss = task.gradient(&self.parameters, samples, &mut self.vector);
        let (rate, scale) = (training.schedule.rate(number), 1.0 / samples.len() as f32);
        for chunk in 0..self.chunks.count() {
            let (moments, updates) = &mut self.moments[chunk];
            *updates += 1;
            let (range, old) = (self.chunks.range(chunk), moments.clone());
            let update = training.rule.update(rate, *updates, scale);
            update.apply(&self.parameters[range.clone()], &mut self.vector[range], &old, moments);
        }
        std::mem::swap(&mut self.parameters, &mut self.vector);
        loss / samples.len() as f64
    }
}

/// A step that is done wrongly later on is for the replay to find.
pub const STEPS_COMPARED: usize = 1500;
/// Below this, losses are compared absolutely.
const LOSS_MIN: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peergrad::alone::train_alone;
    use peergrad::specification::RunFile;
    use peergrad_protocol::id::ViewDigest;

    use peergrad_protocol::view::{Member, View};
    use peergrad_protocol::{Incarnation, PeerId, RunId};

    use super::*;
    use crate::workload::Workload;

    fn alone() -> Lineage {
        let member =
            Member { peer: PeerId([1; 32]), incarnation: Incarnation(1), addresses: vec![], weight: 1 };
        let view = View::first(RunId([1; 32]), vec![member]);
        let mut lineage = Lineage::default();
        lineage.install(&Arc::new(view), ViewDigest([0; 32]));
        lineage
    }

    #[test]
    fn without_any_change_it_is_training_alone() {
        let run = RunFile::parse("batch = 24\npasses = 3").unwrap();
        let loaded = Workload::squares(&run, 300, 100).unwrap().loaded;
        let mut losses = Vec::new();
        let parameters = train_alone(&loaded, |step| losses.push(step.loss));
        let (mut plain, mut passes, lineage) = (Plain::new(&loaded), Passes::new(&loaded), alone());
        for (step, loss) in losses.into_iter().enumerate() {
            let counted = passes.count(&lineage).unwrap();
            let order = permutation(loaded.training.seed, counted.pass, loaded.task.sample_count());
            assert_eq!(plain.step(step as u64, &counted.samples(&order), &[]), loss, "step {step}");
        }
        assert_eq!(plain.parameters, parameters);
        assert!(passes.are_over(3));
    }
}
