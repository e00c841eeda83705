//! The optimizer state of one chunk, as owners and replicas store it and as checkpoints contain it.

/// Optimizer state: (numbers for each element, elements): the moments one after the other, then the master copy, if there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizerState {
    /// The moments and the master copy.
    pub moments: Vec<f32>,
    /// The number of updates behind the state.
    pub updates: u32,
}
