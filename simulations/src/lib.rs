//! Many peergrad nodes in virtual time: the same code that runs over libp2p, without waiting.
//!
//! A [`cluster`] holds real nodes and a [`queue`] of future events. It takes the earliest event, passes it to its node, and turns the
//! node's outputs into later events. One seed decides everything, so a run can be repeated bit for bit. Beside it, [`delays`] measures what
//! stale parameters cost an algorithm, without any node.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod compare;
pub mod compute_model;
pub mod delays;
pub mod disk;
mod fault_injector;
pub mod filters;
pub mod frame_faults;
pub mod history;
pub mod host;
pub mod hosts;
pub mod invariants;
pub mod links;
pub mod liveness;
pub mod logs;
pub mod mutants;
mod network;
pub mod observation;
pub mod oracles;
pub mod queue;
pub mod report;
pub mod scenario;
pub mod simulation;
pub mod task;
pub mod trace;
mod uplink_report;
pub mod workload;
pub mod world;

pub use scenario::Scenario;
pub use simulation::{Outcome, Simulation};
pub use workload::Workload;
