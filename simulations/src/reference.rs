//! The plain reference: one process, one loop, the whole batch at once. Frozen; what swarms compute is compared with it,
//! number by number.

use peergrad::loader::Loaded;
use peergrad_protocol::ledger::{Ledger, permutation};

/// The course of a run trained by one loop.
pub struct Reference {
    /// Mean loss of each step, before its update.
    pub losses: Vec<f64>,
    /// The parameters after the last step.
    pub parameters: Vec<f32>,
}

/// Trains `loaded` for `steps` steps.
#[must_use]
pub fn train(loaded: &Loaded, steps: u64) -> Reference {
    let Loaded { task, manifest, training } = loaded;
    let count = manifest.parameter_count();
    let mut parameters = vec![0.0; count];
    task.initial(training.seed, &mut parameters);
    let mut moments = vec![0.0; count * training.rule.moment_count()];
    let mut gradient = vec![0.0; count];
    let mut ledger = Ledger::default();
    let mut losses = Vec::new();
    for step in 0..steps {
        let (batch, after) = ledger.take(training.batch_size, u64::from(task.sample_count()));
        ledger = after;
        let order = permutation(training.seed, batch.pass, task.sample_count());
        let spans = batch.spans.iter();
        let samples: Vec<u32> =
            spans.flat_map(|span| &order[span.start as usize..span.end as usize]).copied().collect();
        let loss = task.gradient(&parameters, &samples, &mut gradient);
        losses.push(loss / samples.len() as f64);
        let old = moments.clone();
        let scale = 1.0 / samples.len() as f32;
        let rate = training.schedule.rate(step);
        training.rule.apply(rate, step as u32 + 1, scale, &parameters, &mut gradient, &old, &mut moments);
        parameters.copy_from_slice(&gradient);
    }
    Reference { losses, parameters }
}
