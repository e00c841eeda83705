//! The task: what a user brings. A model as a flat vector of parameters, its loss and gradient, and its data.
//!
//! The runtime owns the parameters, the batches and the optimizer; a task only answers questions about a vector that it
//! is handed. So a task knows nothing of peers, and the same task trains alone, in a swarm and in the simulator.
//!
//! # Invariants
//! - [`Task::initial`] and [`Task::manifest`] give the same bits on every machine: + - x / and sqrt only, or `libm`.
//! - A gradient may differ in its last bits between machines: it is computed once, and sent.

use peergrad_protocol::manifest::Manifest;

pub mod activation;
pub mod clicks;
pub mod logistic;
pub mod loss;
pub mod network;
mod product;
pub mod supervised;

/// A model with its loss, its gradient and its data.
pub trait Task: Send + Sync + 'static {
    /// Names and shapes of the parameters, in the order of the flat vector.
    fn manifest(&self) -> Manifest;

    /// Fills `parameters` with the values that training starts from, as a function of `seed`.
    ///
    /// They come as zeros in fresh memory. A task that starts at zero does nothing here, as is the default, and its
    /// parameters take no memory until they change.
    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        let _ = (seed, parameters);
    }

    /// Number of training samples; they are named `0..sample_count`.
    fn sample_count(&self) -> u32;

    /// Overwrites `gradient` with the gradient, summed over `samples`, of the loss at `parameters`, and returns the summed
    /// loss.
    ///
    /// A sum and not a mean: members of a batch have different numbers of samples, and the owner divides once.
    /// `gradient` holds unspecified values before; `samples` may be empty.
    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64;

    /// Samples that [`evaluate`](Task::evaluate) looks at, for a simulator to model its duration. Where a task does not say,
    /// as many as it trains on.
    fn held_out_count(&self) -> u32 {
        self.sample_count()
    }

    /// How well `parameters` do on samples that are never trained.
    fn evaluate(&self, parameters: &[f32]) -> Evaluation;

    /// This task, as one whose samples touch few parameters each, if it is one: with programs that keep their parameters in a table,
    /// only those that a worker's samples touch travel then.
    fn sparse(&self) -> Option<&dyn SparseTask> {
        None
    }
}

/// A task whose samples touch few of its parameters each: the loss of a sample depends on no others.
///
/// Its parameters begin at zero.
pub trait SparseTask: Task {
    /// Indices of the parameters that these samples touch, ascending.
    fn touched(&self, samples: &[u32]) -> Vec<u32>;

    /// As [`Task::gradient`], with the parameters that are [touched](Self::touched) alone, and the gradient with respect to them:
    /// both have as many elements as `touched`.
    fn gradient_at(&self, touched: &[u32], parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64;
}

/// How well a model does on held-out samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// How many samples were evaluated.
    pub samples: u32,
    /// Mean loss of these samples; 0 if there are none.
    pub loss: f64,
    /// Share of these samples that the model classifies correctly, 0 to 1; `None` for a model without classes.
    pub accuracy: Option<f64>,
}
