//! The native half of the Python package `peergrad`: a peer in the user's process, whose steps the user computes.
//!
//! | file | what it is |
//! |---|---|
//! | `swarm.rs` | the peer as a Python object: its steps, its events, its end |
//! | `user_task.rs` | the task that waits for the user's thread |
//! | `step.rs` | one step in the user's hands |
//! | `arrays.rs` | the user's arrays |
//! | `process.rs` | whether this process is a forked child |
//! | `options.rs` | from keyword arguments to a peer |
//!
//! The Python half, in `peergrad/`, has the classes that users see. It calls this one with arrays and plain values only.

#![forbid(unsafe_code)]

use pyo3::prelude::*;

mod arrays;
mod options;
mod process;
mod step;
mod swarm;
mod user_task;

/// The extension module `peergrad._native`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::step::NativeStep;
    #[pymodule_export]
    use super::swarm::{NativeSwarm, Refused, command};

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        peergrad::embed::text::command_name::set_command_name("python -m peergrad");
        Ok(())
    }
}
