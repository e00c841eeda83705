//! A node as a pure machine: it decides everything and waits for nothing.
//!
//! Its input is time, bytes and results; its output says what to do. Sockets, threads, disks and clocks are outside: this crate can name
//! neither libp2p nor tokio, so the same node runs over a network and in virtual time.
//!
//! # Map
//! [`node`] is the interface and [`io`] what crosses it. Inside, a `machine` routes the inputs. A peer starts a run, joins it or recovers
//! in it, and agrees with the others on the members (`membership`). It takes steps (`training`) over the chunks that it stores ([`state`]),
//! or serves tables ([`table`]). Branches of a partitioned swarm meet and become one (`merge`). A [`program`] is the algorithm as
//! straight-line code.

#![forbid(unsafe_code)]

mod config;
#[cfg(test)]
mod fixtures;
mod machine;
mod membership;
mod merge;
mod peer_links;
mod training;

pub mod io;
pub mod node;
pub mod node_report;
pub mod partition_policy;
pub mod program;
pub mod state;
pub mod table;
