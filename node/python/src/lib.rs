//! The native half of the Python package `peergrad`: a peer in the user's process, whose steps the user computes.
//!
//! | file | what it is |
//! |---|---|
//! | `peer.rs` | the peer as a Python object: its events, its end |
//! | `swarm.rs`, `step.rs` | a peer whose user computes steps, and one step in the user's hands |
//! | `user_task.rs` | the task that waits for the user's thread |
//! | `tables.rs`, `table_clock.rs` | a peer whose user has tables, and one clock in the user's hands |
//! | `table_program.rs` | the program that waits for the user's thread |
//! | `table_options.rs`, `table_rows.rs` | what the tables are, and the rows that the user names |
//! | `batch.rs` | what a step and a clock have in common |
//! | `arrays.rs` | the user's arrays |
//! | `process.rs` | whether this process is a forked child |
//! | `options.rs` | from keyword arguments to a peer |
//!
//! The Python half, in `peergrad/`, has the classes that users see. It calls this one with arrays and plain values only.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use pyo3::prelude::*;

mod arrays;
mod batch;
mod options;
mod peer;
mod process;
mod step;
mod swarm;
mod table_clock;
mod table_options;
mod table_program;
mod table_rows;
mod tables;
mod user_task;

/// The extension module `peergrad._native`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::batch::NativeBatch;
    #[pymodule_export]
    use super::command;
    #[pymodule_export]
    use super::peer::{NativePeer, Refused};
    #[pymodule_export]
    use super::step::NativeStep;
    #[pymodule_export]
    use super::swarm::NativeSwarm;
    #[pymodule_export]
    use super::table_clock::NativeClock;
    #[pymodule_export]
    use super::tables::NativeTables;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        peergrad::embed::text::command_name::set_command_name("python -m peergrad");
        Ok(())
    }
}

/// Runs a command of `peer` with these arguments, and returns whether it succeeded. `program` is what starts this program again.
#[pyfunction]
fn command(py: Python<'_>, program: Vec<String>, arguments: Vec<String>) -> bool {
    py.detach(|| peergrad_cli::main_of(program, arguments) == ExitCode::SUCCESS)
}
