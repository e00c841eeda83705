//! Peers on separate machines, as far as the kernel can imitate them: real processes in real network namespaces.
//!
//! These tests are the counterpart of the simulator: the same faults, but with the kernel's TCP, the real clock and real sockets. What the
//! simulator shows for a million runs, they show once for the program that people use.
//!
//! They need Linux, root, and the commands `unshare`, `nsenter`, `ip` and `bash`, and `nft` for routers; without them each test prints that
//! and passes. They do not touch the network of the machine that they run on.
//!
//! A test waits for events. Only the duration of a short cut is real time, since so are the time limits of the kernel and of links.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "how long real things take is printed")]

mod direct;
mod forks;
mod large_packets;
mod long_partitions;
mod network;
mod partitions;
#[path = "../common/process.rs"]
#[allow(dead_code, reason = "shared with tests/processes, where all of it is used")]
mod process;
mod quic;
mod reachability;
mod routers;
mod swarm;
mod training;
mod two_networks;
