//! The task whose gradients come from a loop in Python: each job of the node waits for the user's thread.
//!
//! ```text
//!  compute thread                       the user's thread
//!  contribute(parameters, samples)
//!     offer: step, samples ------------> Swarm.next() returns a Step
//!     copies parameters <--------------- Step.parameters(into)
//!                                        ... computes ...
//!     copies the vectors <-------------- Step.finish(vectors, loss)
//!  returns the loss
//! ```
//! These copies are made by the compute thread, which attaches to the interpreter for them. The user's thread waits meanwhile, so nobody
//! else writes to the arrays. There is one copy of the parameters and one of the result.
//!
//! Small vectors travel with the messages instead: a second copy of them takes less time than a thread needs to wake up.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use peergrad::task::StepInfo;
use peergrad::{Evaluation, Manifest, Task};
use pyo3::Python;

use crate::arrays::{ArrayError, Arrays};
use crate::options::TaskStart;

/// A model that the user computes. This side knows where it starts.
pub(crate) struct UserTask {
    /// Its shape, its first parameters and the number of its samples.
    pub(crate) start: TaskStart,
    /// Where the steps go that the user is to compute.
    pub(crate) offers: Sender<Offer>,
}

/// One step for the user's loop.
pub(crate) struct Offer {
    /// What a task learns about it.
    pub(crate) info: StepInfo,
    /// The samples that this peer computes.
    pub(crate) samples: Arc<[u32]>,
    /// What the step wants back.
    pub(crate) wants: Wants,
    /// The parameters from which it starts, if there are at most [`SENT_MAX`].
    pub(crate) parameters: Option<Box<[f32]>>,
    /// Where the user's requests go. If it is dropped before the step is finished, this peer gives up.
    pub(crate) requests: Sender<Request>,
}

/// How many parameters a vector may have that is sent between the threads: 256 KiB.
pub(crate) const SENT_MAX: usize = 1 << 16;

/// What a step wants back from the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// The gradient, summed over the samples.
    Gradient,
    /// The parameters after the user's own local steps.
    Parameters,
}

/// What the user's thread asks the compute thread to do.
pub(crate) enum Request {
    /// To copy the step's parameters into these arrays.
    Parameters { into: Arrays, reply: Sender<Result<(), ArrayError>> },
    /// To take the result. After an error the step is still open.
    Finish { vectors: Arrays, loss: f64, reply: Sender<Result<(), ArrayError>> },
    /// To take this result, which is checked.
    Take { values: Box<[f32]>, loss: f64 },
    /// To leave these samples out.
    Skip,
    /// To leave the run. A step may live on in a traceback, so the user's side does not rely on its end.
    GiveUp,
}

impl UserTask {
    /// Offers a step to the user, and does what the user asks until it is finished. Returns the summed loss.
    ///
    /// - `parameters`: (parameters), from which the step starts.
    /// - `result`: (parameters), overwritten with what the user returns.
    fn serve(
        &self,
        info: &StepInfo,
        wants: Wants,
        parameters: ParameterPlace<'_>,
        samples: &[u32],
        result: &mut [f32],
    ) -> f64 {
        let (requests, requested): (_, Receiver<Request>) = channel();
        let small = (result.len() <= SENT_MAX).then(|| parameters.read(result).into());
        let offer = Offer { info: info.clone(), samples: samples.into(), wants, parameters: small, requests };
        if self.offers.send(offer).is_err() {
            give_up();
        }
        for request in requested {
            match request {
                Request::Parameters { into, reply } => {
                    let parameters = parameters.read(result);
                    let copied = attached(into, |py, into| into.fill(py, parameters));
                    let _ = reply.send(copied);
                }
                Request::Finish { vectors, loss, reply } => {
                    // What a failed copy leaves in `result` is overwritten by the next one.
                    let copied = attached(vectors, |py, vectors| vectors.copy_to(py, result));
                    let is_done = copied.is_ok();
                    let _ = reply.send(copied);
                    if is_done {
                        return loss;
                    }
                }
                Request::Take { values, loss } => {
                    result.copy_from_slice(&values);
                    return loss;
                }
                Request::Skip => return f64::NAN,
                Request::GiveUp => break,
            }
        }
        give_up()
    }
}

/// Where the parameters of a step are.
#[derive(Clone, Copy)]
enum ParameterPlace<'a> {
    /// In memory of their own.
    Apart(&'a [f32]),
    /// In the memory of the result.
    InResult,
}

impl<'a> ParameterPlace<'a> {
    /// The parameters, for a step with this `result`.
    fn read<'b>(self, result: &'b [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        match self {
            Self::Apart(parameters) => parameters,
            Self::InResult => result,
        }
    }
}

/// Does something with arrays while the interpreter may be used; an error once that shuts down.
fn attached(
    arrays: Arrays,
    work: impl FnOnce(Python<'_>, &Arrays) -> Result<(), ArrayError>,
) -> Result<(), ArrayError> {
    let mut arrays = Some(arrays);
    let done = Python::try_attach(|py| {
        let arrays = arrays.take().expect("they are taken once");
        work(py, &arrays)
    });
    // Without an interpreter nobody can release them.
    std::mem::forget(arrays);
    done.unwrap_or(Err(ArrayError::InterpreterGone))
}

/// This peer does not compute the step, and leaves the run. The other members repeat the step with its samples.
pub(crate) fn give_up() -> ! {
    // Unlike a panic, this prints nothing.
    resume_unwind(Box::new(GAVE_UP.to_owned()))
}

/// Why a peer has left whose user did not finish a step.
const GAVE_UP: &str = "its user left the training loop within a step";

impl Task for UserTask {
    fn manifest(&self) -> Manifest {
        self.start.manifest.clone()
    }

    fn initial(&self, _seed: u64, parameters: &mut [f32]) {
        parameters.copy_from_slice(&self.start.initial);
    }

    fn sample_count(&self) -> u32 {
        self.start.samples
    }

    fn gradient(&self, _: &[f32], _: &[u32], _: &mut [f32]) -> f64 {
        unreachable!("programs call `contribute`")
    }

    fn contribute(&self, step: &StepInfo, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        if samples.is_empty() {
            gradient.fill(0.0);
            return 0.0;
        }
        self.serve(step, Wants::Gradient, ParameterPlace::Apart(parameters), samples, gradient)
    }

    fn learn(&self, step: &StepInfo, parameters: &mut [f32], samples: &[u32]) -> Option<f64> {
        if samples.is_empty() {
            return Some(0.0);
        }
        Some(self.serve(step, Wants::Parameters, ParameterPlace::InResult, samples, parameters))
    }

    fn flops_per_sample(&self) -> Option<u64> {
        self.start.flops_per_sample
    }

    fn configure(&self, settings: &str) -> Result<(), String> {
        self.start.configure(settings);
        Ok(())
    }

    fn held_out_count(&self) -> u32 {
        0
    }

    fn evaluate(&self, _: &[f32]) -> Evaluation {
        Evaluation { samples: 0, loss: 0.0, accuracy: None }
    }
}
