//! The process that started a peer: a forked child has none of its threads, and must not wait for them.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The id of the process in which a peer runs.
#[derive(Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    /// This process.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is still that process.
    pub(crate) fn is_this(self) -> bool {
        std::process::id() == self.0
    }

    /// # Errors
    /// This process was forked from that one.
    pub(crate) fn check(self) -> PyResult<()> {
        if self.is_this() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "this process was forked from the one that trains: the swarm works there only. Workers of a DataLoader may load data, but not use the swarm",
        ))
    }
}
