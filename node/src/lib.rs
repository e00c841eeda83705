//! Training one model on many machines with no server.
//!
//! # Map
//! The pure half decides everything and waits for nothing: [`node`] is its surface and [`io`] what crosses it. Inside, a
//! machine founds or joins a run and trains in a session, and a [`program`] is the algorithm as straight-line code.
//! [`task`] is what a user brings; [`loader`] builds one from a specification; [`specification`] is what a run.toml
//! becomes. [`page`] draws what people look at; a [`node_report`] is what a node tells those who ask how it is.
//!
//! # Bringing one's own
//! A binary with a [`Task`] of its own calls `run`; one that also has a [`Program`] of its own calls `run_program`, or, where that
//! keeps its state in [tables](table), `run_launch`. All that they are written with stands here at the top: a [`Task`] has a
//! [`Manifest`] and gives an [`Evaluation`]; a [`Program`] asks its [`Context`] for a [`Step`], and makes [`Contribution`]s, or for a
//! [`Clock`], and reads and adds.
//!
//! The shell (feature `net`, on by default) is everything that waits: `net` holds the links over libp2p, the data
//! directory, the compute thread and the driver; `status` tells how a peer is, to those who ask and to its event log; `cli` is the
//! `peer` binary.

#![forbid(unsafe_code)]

mod assignment;
mod blend;
mod bootstrap;
mod executor;
#[cfg(test)]
mod fixtures;
mod jobs;
mod join;
mod machine;
mod membership;
mod optimizer_shard;
mod preparation;
mod recovery;
mod shard_map;
mod training;
mod view_change;

pub mod checkpoint;
pub mod context;
pub mod data;
pub mod io;
pub mod loader;
pub mod model_file;
pub mod node;
pub mod node_report;
pub mod optimizer;
pub mod page;
pub mod pairing;
pub mod partition_policy;
pub mod program;
pub mod programs;
pub mod schedule;
pub mod shared_cache;
pub mod single_process;
pub mod specification;
pub mod table;
pub mod task;

#[cfg(feature = "net")]
pub mod cli;
#[cfg(feature = "net")]
pub mod net;
#[cfg(feature = "net")]
pub mod status;

pub use peergrad_collectives as collectives;
pub use peergrad_protocol as protocol;

pub use context::{Clock, Context, Contribution, Interrupted, Pending, Step};
pub use loader::Loaded;
pub use optimizer::Optimizer;
pub use peergrad_protocol::manifest::Manifest;
pub use peergrad_protocol::message::SampleStats;
pub use peergrad_protocol::{Buffer, Rank};
pub use program::{Flow, Program, ProgramFactory};
pub use task::{Evaluation, SparseTask, Task};

#[cfg(feature = "net")]
pub use cli::{run_launch, run_program, run_task as run};
