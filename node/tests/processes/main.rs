//! The `peer` binary as a user meets it: real processes, real sockets, files, signals and mistakes.
//!
//! Each test starts processes on loopback in a folder of its own and follows what they report, line by line. Nothing
//! sleeps: a test waits for an event, and only a guard ends one that never comes.

#![allow(clippy::disallowed_methods, reason = "only a guard ends a wait for what never comes")]

mod comparing;
mod data_fetching;
mod departures;
mod joining;
mod late_joiners;
mod logs;
mod mdns;
mod metrics;
mod mistakes;
mod models;
mod power;
#[path = "../common/process.rs"]
mod process;
mod programs;
mod rekeying;
mod removing;
mod returning;
mod status;
mod strangers;
mod traffic;
mod training;
