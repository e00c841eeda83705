//! A node as a pure machine: it decides everything and waits for nothing.
//!
//! It is *given* time, bytes and results, and says what is to be done. Sockets, threads, disks and clocks are outside: this crate
//! can name neither libp2p nor tokio, so the same node runs over a network and in virtual time.
//!
//! # Map
//! [`node`] is the surface and [`io`] what crosses it. Inside, a `machine` routes what comes in: a peer
//! starts, joins or returns to a run and agrees with the others on who is in (`membership`), takes steps in a
//! `training` over the chunks that it keeps ([`state`]), or serves tables ([`table`]). A [`program`] is the
//! algorithm as straight-line code.

#![forbid(unsafe_code)]

#[cfg(test)]
mod fixtures;
mod machine;
mod membership;
mod training;

pub mod io;
pub mod node;
pub mod node_report;
pub mod partition_policy;
pub mod program;
pub mod state;
pub mod table;
