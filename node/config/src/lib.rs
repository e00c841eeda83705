//! Configuration: turns a user's run.toml into a [`specification`], and that into a task with its program.
//!
//! [`model_file`] reads and writes trained models. [`file_error`] says what to do about errors of files. [`single_process`] is the plain reference that swarms are compared with.
//! [`sweep`] trains the same model with many settings, one at each peer.

#![forbid(unsafe_code)]

pub mod base_model;
pub mod file_error;
pub mod model_file;
pub mod prepared_text;
pub mod single_process;
pub mod specification;
pub mod sweep;
pub mod terminal;
