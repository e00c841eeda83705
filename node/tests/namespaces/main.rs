//! Peers on machines of their own, as far as the kernel can make them: real processes in real network namespaces.
//!
//! The counterpart of the simulator: the same faults, but with the kernel's TCP, the real clock and the real shell. What
//! the simulator shows a million times over, this shows once to be true of the program that people run.
//!
//! It needs Linux, root, and the commands `unshare`, `nsenter`, `ip` and `bash`, and `nft` for routers; without them each test says
//! so and passes.
//! Nothing here touches the network of the machine that it runs on.
//!
//! A test waits for events. Only how long a short cut lasts is real time, since the kernel's and the links' patience is.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "how long real things take is printed")]

mod direct;
mod forks;
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
