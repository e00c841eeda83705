//! The command line of peergrad: the [commands] of the `peer` binary, the [status] service of a running peer, and the [text] that
//! both show.

#![forbid(unsafe_code)]

pub mod commands;
pub mod status;
mod terminal;
pub mod text;

pub use commands::{Training, main, train};
