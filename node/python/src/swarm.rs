//! A peer whose user computes steps.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::options::{RunOptions, TaskOptions, training};
use crate::peer::{NativePeer, locked};
use crate::step::NativeStep;
use crate::user_task::{Offer, UserTask};

/// A peer, and the steps that it wants from its user.
#[pyclass(module = "peergrad._native", extends = NativePeer, frozen)]
pub(crate) struct NativeSwarm {
    offers: Mutex<Receiver<Offer>>,
}

#[pymethods]
impl NativeSwarm {
    /// Starts a peer for a task. `initial` holds the parameters that a run of its own starts from.
    #[new]
    fn new(
        py: Python<'_>,
        task: TaskOptions,
        run: RunOptions,
        initial: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        if task.tensors.is_empty() {
            return Err(PyValueError::new_err("`shapes` needs a tensor"));
        }
        let start = task.start(py, &initial)?;
        let settings = Arc::clone(&start.settings);
        let (sender, offers) = channel();
        let training = training(&task, UserTask { start, offers: sender })?;
        let peer = NativePeer::start(py, run, &training, task.sizes(), settings)?;
        Ok(PyClassInitializer::from(peer).add_subclass(Self { offers: Mutex::new(offers) }))
    }

    /// The next step, if there is one within so many seconds.
    fn wait(slf: &Bound<'_, Self>, seconds: f64) -> PyResult<Option<Py<NativeStep>>> {
        let (py, this, peer) = (slf.py(), slf.get(), slf.as_super().get());
        peer.process.check()?;
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let offer = py.detach(|| locked(&this.offers).recv_timeout(time).ok());
        let step = |offer| Py::new(py, NativeStep::new(offer, peer.process, Arc::clone(&peer.tensors)));
        offer.map(step).transpose()
    }
}
