//! The command line of peergrad: the [commands] of the `peer` binary, and of binaries with a custom task.

#![forbid(unsafe_code)]

pub mod commands;
mod terminal;
mod text;

pub use commands::device::{DeepDevices, OpenGpu, OpenedGpu};
pub use commands::{Training, main, main_of, train};
