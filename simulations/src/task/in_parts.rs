//! A task that hands out the beginning of its gradient early, as a deep network does.

use std::sync::Arc;

use peergrad_models::task::{Evaluation, KnownGradient, SparseTask, StepInfo, Task};
use peergrad_protocol::cursor::mixed;
use peergrad_protocol::manifest::Manifest;

/// The task.
pub struct InParts(pub Arc<dyn Task>);

impl Task for InParts {
    fn manifest(&self) -> Manifest {
        self.0.manifest()
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        self.0.initial(seed, parameters);
    }

    fn sample_count(&self) -> u32 {
        self.0.sample_count()
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        self.0.gradient(parameters, samples, gradient)
    }

    /// In up to four parts, which depend on the step and the member.
    fn contribute_in_parts(
        &self,
        step: &StepInfo,
        parameters: &[f32],
        samples: &[u32],
        gradient: &mut [f32],
        finished: &mut KnownGradient<'_>,
    ) -> f64 {
        let loss = self.0.contribute(step, parameters, samples, gradient);
        let draw = mixed(step.seed);
        let mut ends: Vec<usize> =
            (0..draw % 5).map(|part| (mixed(draw ^ (part + 1)) % gradient.len() as u64) as usize).collect();
        ends.sort_unstable();
        ends.iter().for_each(|&end| finished(loss, &gradient[..end]));
        loss
    }

    fn sparse(&self) -> Option<&dyn SparseTask> {
        self.0.sparse()
    }

    fn held_out_count(&self) -> u32 {
        self.0.held_out_count()
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        self.0.evaluate(parameters)
    }
}
