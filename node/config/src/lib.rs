//! Configuration: turns a user's run.toml into a [`specification`], and that into a task with its program.
//!
//! [`model_file`] reads and writes trained models. [`single_process`] is the plain reference that swarms are compared with.

#![forbid(unsafe_code)]

pub mod model_file;
pub mod single_process;
pub mod specification;
