//! A task with another task's gradient, altered: for a peer whose code differs from that of the others, or that overflows.

use std::sync::Arc;

use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;

/// The task.
pub struct AlteredTask {
    /// The task whose gradient is altered.
    pub task: Arc<dyn Task>,
    /// Computes the gradient in its place, from the task, the parameters and the samples; returns the summed loss.
    pub gradient: Gradient,
}

/// As [`Task::gradient`], with the original task as first argument.
pub type Gradient = Arc<dyn Fn(&dyn Task, &[f32], &[u32], &mut [f32]) -> f64 + Send + Sync>;

impl Task for AlteredTask {
    fn manifest(&self) -> Manifest {
        self.task.manifest()
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        self.task.initial(seed, parameters);
    }

    fn sample_count(&self) -> u32 {
        self.task.sample_count()
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        (self.gradient)(&*self.task, parameters, samples, gradient)
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        self.task.evaluate(parameters)
    }
}
