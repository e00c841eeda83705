//! What the `peer` binary is made of: its [commands], the [status] of a running peer, and the [words](text) of both.

#![forbid(unsafe_code)]

pub mod commands;
pub mod status;
mod terminal;
pub mod text;

pub use commands::{Training, main, train};
