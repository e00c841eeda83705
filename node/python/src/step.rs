//! One step in the user's hands.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::arrays::{ArrayError, Arrays, Given, Sizes, python_error};
use crate::batch::NativeBatch;
use crate::options::TensorSizes;
use crate::process::Process;
use crate::user_task::{Offer, Request, SENT_MAX, Wants};

/// A step that waits for its result. If it is dropped unfinished, the peer leaves the run.
#[pyclass(module = "peergrad._native", extends = NativeBatch, frozen)]
pub(crate) struct NativeStep {
    offer: Offer,
    process: Process,
    /// Name and number of elements of each tensor.
    tensors: TensorSizes,
}

impl NativeStep {
    pub(crate) fn new(offer: Offer, process: Process, tensors: TensorSizes) -> PyClassInitializer<Self> {
        let batch = NativeBatch { info: offer.info.clone(), samples: Arc::clone(&offer.samples) };
        PyClassInitializer::from(batch).add_subclass(Self { offer, process, tensors })
    }

    /// Tells the compute thread something; nothing happens if the peer has stopped.
    fn tell(&self, request: Request) -> PyResult<()> {
        self.process.check()?;
        let _ = self.offer.requests.send(request);
        Ok(())
    }

    /// The number of parameters.
    fn len(&self) -> usize {
        self.tensors.iter().map(|(_, elements)| elements).sum()
    }

    fn error(&self, error: &ArrayError) -> PyErr {
        python_error(error, &self.tensors, Given::InStep)
    }

    /// Has the compute thread do something, and waits without the interpreter.
    fn ask(
        &self,
        py: Python<'_>,
        request: impl FnOnce(Sender<Result<(), ArrayError>>) -> Request,
    ) -> PyResult<()> {
        self.process.check()?;
        let (reply, replied): (_, Receiver<Result<(), ArrayError>>) = channel();
        let request = request(reply);
        let replied = Mutex::new(replied);
        let answer = py.detach(|| {
            self.offer.requests.send(request).ok()?;
            replied.into_inner().ok()?.recv().ok()
        });
        match answer {
            Some(answer) => answer.map_err(|error| self.error(&error)),
            None => Err(stopped()),
        }
    }
}

fn stopped() -> PyErr {
    PyRuntimeError::new_err("the peer has stopped: it no longer takes this step")
}

#[pymethods]
impl NativeStep {
    /// How many local steps the schedule counts for it.
    #[getter]
    fn local_steps(&self) -> u64 {
        let numbers = &self.offer.info.local_steps;
        numbers.end - numbers.start
    }

    /// Whether the members save a checkpoint of the parameters at which it starts.
    #[getter]
    fn is_checkpoint(&self) -> bool {
        self.offer.info.is_checkpoint
    }

    /// Whether it wants parameters back, and not a gradient.
    #[getter]
    fn wants_parameters(&self) -> bool {
        self.offer.wants == Wants::Parameters
    }

    /// Copies the parameters into arrays.
    fn parameters(&self, py: Python<'_>, into: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let into = Arrays::get(&into, &Sizes { tensors: &self.tensors, are_written: true })?;
        match &self.offer.parameters {
            Some(parameters) => {
                self.process.check()?;
                into.fill(py, parameters).map_err(|error| self.error(&error))
            }
            None => self.ask(py, |reply| Request::Parameters { into, reply }),
        }
    }

    /// Gives the result back; afterwards the arrays may change. Returns whether the members still waited for it.
    fn finish(&self, py: Python<'_>, vectors: Vec<Bound<'_, PyAny>>, loss: f64) -> PyResult<bool> {
        let is_wanted = self.offer.info.is_wanted();
        let vectors = Arrays::get(&vectors, &Sizes { tensors: &self.tensors, are_written: false })?;
        if self.len() <= SENT_MAX {
            self.process.check()?;
            let mut values = vec![0.0; self.len()].into_boxed_slice();
            vectors.copy_to(py, &mut values).map_err(|error| self.error(&error))?;
            self.offer.requests.send(Request::Take { values, loss }).map_err(|_| stopped())?;
        } else {
            self.ask(py, |reply| Request::Finish { vectors, loss, reply })?;
        }
        Ok(is_wanted)
    }

    /// Leaves the samples of the step out.
    fn skip(&self) -> PyResult<()> {
        self.tell(Request::Skip)
    }

    /// The peer leaves the run, and the other members repeat the step.
    fn give_up(&self) -> PyResult<()> {
        self.tell(Request::GiveUp)
    }
}
