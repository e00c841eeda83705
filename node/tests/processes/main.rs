//! The `peer` binary as a user sees it: real processes, real sockets, files, signals and mistakes.
//!
//! Each test starts processes on loopback in a new folder and follows their reports, line by line. No test sleeps: it waits for an event,
//! and a time limit ends the test if the event never comes.

#![allow(clippy::disallowed_methods, reason = "only a guard ends a wait for what never comes")]

mod comparing;
mod data_fetching;
mod data_files;
mod departures;
mod joining;
mod late_joiners;
mod logs;
mod mdns;
mod metrics;
mod mistakes;
mod models;
#[cfg(feature = "parquet")]
mod parquet;
mod power;
#[path = "../common/process.rs"]
mod process;
mod programs;
mod rekeying;
mod removing;
mod resuming;
mod returning;
mod status;
mod strangers;
mod sweeping;
mod traffic;
mod training;
#[cfg(unix)]
mod unwritable_files;
