//! Bugs in a peer's task: its gradients or its losses are wrong.

use peergrad_models::task::Task;

/// Adds the first sample's gradient twice.
pub(super) fn count_twice(task: &dyn Task, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
    let twice: Vec<u32> = samples.iter().chain(samples.first()).copied().collect();
    task.gradient(parameters, &twice, gradient)
}

/// Changes the gradient by one unit in the last place.
pub(super) fn off_by_one_ulp(
    task: &dyn Task,
    parameters: &[f32],
    samples: &[u32],
    gradient: &mut [f32],
) -> f64 {
    let loss = task.gradient(parameters, samples, gradient);
    for element in gradient.iter_mut() {
        *element = f32::from_bits(element.to_bits() ^ 1);
    }
    loss
}

/// Reports a loss that differs from the true one.
pub(super) fn overstate_loss(
    task: &dyn Task,
    parameters: &[f32],
    samples: &[u32],
    gradient: &mut [f32],
) -> f64 {
    task.gradient(parameters, samples, gradient) + 1.0
}
