//! From what a user wrote to what is trained: a run.toml becomes a [`specification`], and that a task with its program.
//!
//! [`model_file`] is a trained model as a file; [`single_process`] trains in one process what a swarm is compared with.

#![forbid(unsafe_code)]

pub mod model_file;
pub mod single_process;
pub mod specification;
