//! A peer as a Python object: its events and its end, whatever its user computes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use peergrad::Training;
use peergrad::embed::text::event_text::event_text;
use peergrad::embed::{Outcome, Peer, PeerEvent, PeerHandle, StartReport};
use peergrad::io::{Event, Failure, RunSize};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::{Arrays, Given, Sizes, python_error};
use crate::options::{RunOptions, TensorSizes};
use crate::process::Process;

create_exception!(
    peergrad,
    Refused,
    PyException,
    "The members refuse this peer, or it cannot take part in their run."
);

/// A peer.
#[pyclass(module = "peergrad._native", frozen, subclass)]
pub(crate) struct NativePeer {
    pub(crate) process: Process,
    peer: Mutex<Option<Peer>>,
    handle: PeerHandle,
    start_report: StartReport,
    /// Name and number of elements of each tensor.
    pub(crate) tensors: TensorSizes,
    /// The settings of the run that are the user's own, as TOML, once they are known.
    settings: Arc<OnceLock<String>>,
    progress: Mutex<Progress>,
}

/// What the peer has told so far.
#[derive(Default)]
struct Progress {
    /// The size of the run, once the peer has prepared its task.
    scope: Option<RunSize>,
    /// How the run has ended.
    outcome: Option<Arc<Outcome>>,
}

#[pymethods]
impl NativePeer {
    /// What has happened since the last call: tuples of a kind and what belongs to it.
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.process.check()?;
        let new: VecDeque<PeerEvent> = py.detach(|| {
            let mut peer = locked(&self.peer);
            let Some(peer) = peer.as_mut() else { return VecDeque::new() };
            std::iter::from_fn(|| peer.next_within(Duration::ZERO).ok().flatten()).collect()
        });
        let mut events = vec![];
        for event in new {
            events.extend(self.event(py, event)?);
        }
        Ok(events)
    }

    /// How the run has ended at this peer; `None` until then.
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.process.check()?;
        self.ended().map(|outcome| outcome_dict(py, &outcome)).transpose()
    }

    /// Copies the last parameters into arrays, after the end. Returns whether there are any.
    fn last_parameters(&self, py: Python<'_>, into: Vec<Bound<'_, PyAny>>) -> PyResult<bool> {
        self.process.check()?;
        let into = Arrays::get(&into, &Sizes { tensors: &self.tensors, are_written: true })?;
        let outcome = self.ended();
        let Some(state) = outcome.as_ref().and_then(|outcome| outcome.state.as_ref()) else {
            return Ok(false);
        };
        into.fill(py, &state.parameters)
            .map_err(|error| python_error(&error, &self.tensors, Given::InStep))?;
        Ok(true)
    }

    /// The settings of the run that are the user's own, as TOML; `None` until they are known.
    fn settings(&self) -> PyResult<Option<&str>> {
        self.process.check()?;
        Ok(self.settings.get().map(String::as_str))
    }

    /// The id of the run; `None` until it is known.
    fn run(&self) -> PyResult<Option<String>> {
        self.process.check()?;
        Ok(self.handle.invite().map(|invite| invite.run.to_string()))
    }

    /// The invite; `None` until the run is known.
    fn invite(&self) -> PyResult<Option<String>> {
        self.process.check()?;
        Ok(self.handle.invite().map(|invite| invite.to_string()))
    }

    /// What `peer status --json` prints; `None` once the peer has stopped.
    fn status(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.process.check()?;
        let status = py.detach(|| self.handle.status());
        let text = status.map(|status| serde_json::to_string(&*status));
        text.transpose().map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Facts of the start: peer, directory, run if founded here.
    fn started<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = &self.start_report;
        let facts = PyDict::new(py);
        facts.set_item("peer", report.peer.to_string())?;
        facts.set_item("directory", &report.directory)?;
        facts.set_item("founded", report.founded.map(|run| run.to_string()))?;
        facts.set_item("replaced", report.replaced.map(|run| run.to_string()))?;
        facts.set_item("addresses", &report.addresses)?;
        Ok(facts)
    }

    /// Says that a step may take so many seconds from now; 0 takes it back.
    fn busy(&self, seconds: f64) -> PyResult<()> {
        self.process.check()?;
        self.handle.busy(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        Ok(())
    }

    /// Ends the run at all peers after the next step.
    fn end_run(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check()?;
        py.detach(|| self.handle.end_run()).map_err(PyRuntimeError::new_err)
    }

    /// Asks the peer to hand over what it owns and to leave.
    fn leave(&self) -> PyResult<()> {
        self.process.check()?;
        self.handle.leave();
        Ok(())
    }

    /// Stops the peer at once, as in a crash.
    fn stop(&self, py: Python<'_>) {
        if self.process.is_this() {
            let peer = locked(&self.peer).take();
            py.detach(|| drop(peer));
        }
    }
}

impl NativePeer {
    /// Starts a peer for this training.
    pub(crate) fn start(
        py: Python<'_>,
        run: RunOptions,
        training: &Training,
        tensors: TensorSizes,
        settings: Arc<OnceLock<String>>,
    ) -> PyResult<Self> {
        let peer = py.detach(|| run.start(training))?;
        Ok(Self {
            process: Process::this(),
            handle: peer.handle(),
            start_report: peer.start_report().clone(),
            peer: Mutex::new(Some(peer)),
            tensors,
            settings,
            progress: Mutex::default(),
        })
    }

    /// How the run has ended. No lock is held while Python objects are made: that may run any code, which may want the lock.
    fn ended(&self) -> Option<Arc<Outcome>> {
        locked(&self.progress).outcome.clone()
    }

    /// The event as Python reads it, if it reads it.
    fn event<'py>(&self, py: Python<'py>, event: PeerEvent) -> PyResult<Option<Bound<'py, PyTuple>>> {
        Ok(Some(match event {
            PeerEvent::Node(Event::Committed(it)) => {
                ("step", (it.step.0, it.epoch, it.loss, it.samples, it.left_out, it.steps_expected))
                    .into_pyobject(py)?
            }
            PeerEvent::Node(event) => {
                if let Event::Prepared { size, .. } = &event {
                    locked(&self.progress).scope = Some(*size);
                }
                let scope = locked(&self.progress).scope;
                match event_text(&event, &self.start_report.peer, scope.as_ref()) {
                    Some(text) => {
                        (if is_trouble(&event) { "warning" } else { "info" }, text).into_pyobject(py)?
                    }
                    None => return Ok(None),
                }
            }
            PeerEvent::Notice(notice) => ("notice", notice.to_string()).into_pyobject(py)?,
            PeerEvent::Panicked(reason) => ("panicked", reason).into_pyobject(py)?,
            PeerEvent::Ended(outcome) => {
                let text = outcome.result.as_ref().err().map(ToString::to_string);
                locked(&self.progress).outcome = Some(Arc::new(outcome));
                ("ended", text).into_pyobject(py)?
            }
        }))
    }
}

impl Drop for NativePeer {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // Its threads do not exist in a forked child, and nothing here may wait for them.
            std::mem::forget(locked(&self.peer).take());
        }
    }
}

fn outcome_dict<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let kind = match &outcome.result {
        Ok(()) => "done",
        Err(Failure::Left) => "left",
        Err(Failure::TaskPanicked(_)) => "gave_up",
        Err(Failure::Refused { .. } | Failure::Unusable(_) | Failure::WrongSpecification { .. }) => "refused",
        Err(_) => "failed",
    };
    dict.set_item("outcome", kind)?;
    dict.set_item("reason", outcome.result.as_ref().err().map(ToString::to_string))?;
    dict.set_item("has_handed_over", outcome.has_handed_over)?;
    if let Some(state) = &outcome.state {
        dict.set_item("run", state.run.to_string())?;
        dict.set_item("steps", state.steps)?;
        dict.set_item("samples", state.samples)?;
        dict.set_item("left_out", state.left_out)?;
        dict.set_item("own_samples", state.own_samples)?;
        dict.set_item("digest", state.digest.to_string())?;
    }
    let model = outcome.model.as_ref();
    dict.set_item("model", model.ok().and_then(Option::as_ref).map(|model| &model.path))?;
    dict.set_item("not_saved", model.err().map(ToString::to_string))?;
    Ok(dict)
}

/// Whether a user should look at the event.
fn is_trouble(event: &Event) -> bool {
    matches!(
        event,
        Event::Paused { .. }
            | Event::Stalled { .. }
            | Event::FaultNoticed { .. }
            | Event::Quarantined(_)
            | Event::MembersUnreachable { .. }
            | Event::NoPeerAnswers
            | Event::NoActiveMember { .. }
            | Event::ParametersUnreachable { .. }
            | Event::ChunksMissing { .. }
            | Event::InitialParametersDiffer(_)
    )
}

/// Locks a mutex; what it holds is right at all times.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
