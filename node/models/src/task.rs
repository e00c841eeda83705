//! The task: a model as a flat vector of parameters, its loss and gradient, and its data. A user implements it.
//!
//! The peers own the parameters, the batches and the optimizer. A task is a set of functions of a parameter vector and of sample
//! indices; it knows nothing of peers, so the same task trains in one process, on many machines and in the simulator.
//!
//! # Invariants
//! - [`Task::initial`] and [`Task::manifest`] return the same bits on every machine: they use + - x / and sqrt only, or `libm`.
//! - A gradient may differ in its last bits between machines, because each gradient is computed by one member, which sends it.

use peergrad_protocol::manifest::Manifest;

pub mod activation;
pub mod clicks;
pub mod factorization;
pub mod lda;
pub mod loss;
pub mod margin_loss;
pub mod network;
mod pieces;
pub(crate) mod product;
pub mod sparse_linear;
pub mod step_info;
pub mod supervised;
pub mod synthetic_ratings;

pub use step_info::{Claim, StepInfo, Wanted};

/// Takes the loss that a task will return, and the elements of its gradient that are known so far, from the first one on.
pub type KnownGradient<'a> = dyn FnMut(f64, &[f32]) + 'a;

/// A model with its loss, its gradient and its data.
pub trait Task: Send + Sync + 'static {
    /// Names and shapes of the parameter tensors, in the order in which they lie in the flat vector.
    ///
    /// Every call must return the same manifest; all peers of a run compare its digest.
    fn manifest(&self) -> Manifest;

    /// Fills `parameters`, which are all zero before, with the values that training starts from, as a function of `seed`.
    ///
    /// - `parameters`: (parameters), as long as the [manifest](Self::manifest) says.
    ///
    /// The default leaves the zeros; the memory of a parameter that stays zero is not touched.
    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        let _ = (seed, parameters);
    }

    /// Number of training samples; their indices are `0..sample_count`. At least 1, and the same at every call.
    fn sample_count(&self) -> u32;

    /// How many samples of a batch one member computes together, because they depend on each other: blocks of so many are not divided among
    /// members. At least 1, which is the default, and the same at every call.
    fn block(&self) -> u32 {
        1
    }

    /// Overwrites `gradient` with the gradient of the loss at `parameters`, summed over `samples`, and returns the sum of their
    /// losses.
    ///
    /// - `parameters`: (parameters), the flat vector.
    /// - `samples`: (batch part), indices below [`sample_count`](Self::sample_count); may be empty.
    /// - `gradient`: (parameters), with unspecified values before the call.
    ///
    /// The result is a sum and not a mean because members compute different numbers of samples; the owner of a shard divides
    /// once. If an element or the loss is not finite, these samples are left out of the step. The elements of a
    /// [statistic](crate::optimizer::Treatment::Statistic) are no gradient but the statistic's value times the number of samples.
    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64;

    /// As [`gradient`](Self::gradient), for a task that wants to know which step it computes for. The built-in programs call this one; the
    /// default ignores the step.
    fn contribute(&self, step: &StepInfo, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        let _ = step;
        self.gradient(parameters, samples, gradient)
    }

    /// As [`contribute`](Self::contribute), for a task whose gradient is known from its first element on while the others are still being
    /// computed: the members can sum these meanwhile. The program of synchronous steps calls this one.
    ///
    /// - `finished`: takes, as often as the task likes, the loss that the task will return, and the elements of the gradient that will not
    ///   change any more, from the first one on: each time more of them.
    ///
    /// Once elements are handed out, these samples cannot be left out of the step as a whole. If later elements are not finite, they become
    /// zeros, and the loss of the step is not a number. A contribution in parts takes memory for another gradient.
    ///
    /// The default hands out nothing: all of the gradient is known at its end.
    fn contribute_in_parts(
        &self,
        step: &StepInfo,
        parameters: &[f32],
        samples: &[u32],
        gradient: &mut [f32],
        finished: &mut KnownGradient<'_>,
    ) -> f64 {
        let _ = finished;
        self.contribute(step, parameters, samples, gradient)
    }

    /// Takes the local steps of a round in its own way, for example with an optimizer of its own, and returns the summed loss of the
    /// samples. `None`, the default, leaves them to the built-in optimizer.
    ///
    /// - `parameters`: (parameters), those of the round's start, overwritten with those after its local steps.
    /// - `samples`: (round part), for all local steps; may be empty.
    ///
    /// If an element or the loss is not finite, this member's part is left out of the round. A round may be undone and repeated: then it
    /// starts again from the round's parameters, and a state that the task keeps by itself has seen the samples twice. Parameter groups hold
    /// only as far as the task itself treats these parameters so.
    fn learn(&self, step: &StepInfo, parameters: &mut [f32], samples: &[u32]) -> Option<f64> {
        let _ = (step, parameters, samples);
        None
    }

    /// Takes the settings of the run that are this task's own: the section `[settings]` of the founder's run.toml, as TOML; empty if there
    /// is none. It is called before this peer takes part in the run, at its founder twice. The default takes none.
    ///
    /// # Errors
    /// Why the task cannot be trained with these settings, as a text for the user. The founder does not start then, and a joiner ends.
    fn configure(&self, settings: &str) -> Result<(), String> {
        if settings.is_empty() { Ok(()) } else { Err("this task has no settings of its own".to_owned()) }
    }

    /// Floating-point operations of the gradient of one sample, from which the status shows how many the run computes in a second. `None`,
    /// the default: it does not show them.
    fn flops_per_sample(&self) -> Option<u64> {
        None
    }

    /// Tokens of a sample of text, from which the status shows how many the run computes in a second. `None`, the default: it does not show
    /// them.
    fn tokens_per_sample(&self) -> Option<u64> {
        None
    }

    /// Number of samples that [`evaluate`](Task::evaluate) computes, from which the simulator models its duration. Default:
    /// [`sample_count`](Self::sample_count).
    fn held_out_count(&self) -> u32 {
        self.sample_count()
    }

    /// The mean loss, and the accuracy if there are classes, on samples that are never trained. It may be called while another thread
    /// computes a gradient.
    ///
    /// - `parameters`: (parameters), the flat vector.
    fn evaluate(&self, parameters: &[f32]) -> Evaluation;

    /// This task as a [`SparseTask`], if it is one; `None` by default. A program that keeps the parameters in a table then sends
    /// only the parameters that a worker's samples touch.
    fn sparse(&self) -> Option<&dyn SparseTask> {
        None
    }
}

/// A task whose samples each touch few parameters: the loss of a sample depends on these parameters only.
///
/// The parameters are cut into rows, which are read and changed as a whole: rows of one parameter, unless the task says otherwise.
pub trait SparseTask: Task {
    /// The tables of rows, one after the other, that the flat vector consists of. Default: one table, each parameter a row.
    fn tables(&self) -> Vec<ParameterTable> {
        let rows = self.manifest().parameter_count() as u64;
        vec![ParameterTable { name: "parameters", rows, width: 1 }]
    }

    /// Indices of the rows that `samples` touch, counted over all [tables](Self::tables): ascending, each index once.
    fn touched(&self, samples: &[u32]) -> Vec<u32>;

    /// As [`Task::gradient`], restricted to the rows that the samples touch.
    ///
    /// - `touched`: (touched), the result of [`touched`](Self::touched) for these samples.
    /// - `parameters`: the values of these rows, one row after the other.
    /// - `gradient`: as long, overwritten with the gradient with respect to them.
    fn gradient_at(&self, touched: &[u32], parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64;
}

/// A part of the flat vector of a [`SparseTask`], in rows of the same width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterTable {
    /// Its name.
    pub name: &'static str,
    /// The number of rows.
    pub rows: u64,
    /// Parameters of a row.
    pub width: usize,
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
