//! Training one model on many machines with no server.
//!
//! # Bringing one's own
//! A binary with a [`Task`] of its own calls [`run`]; one that also has a [`Program`] of its own calls [`run_program`], or, where that
//! keeps its state in [tables](table), [`run_launch`]. All that they are written with stands here at the top: a [`Task`] has a
//! [`Manifest`] and gives an [`Evaluation`]; a [`Program`] asks its [`Context`] for a [`Step`], and makes [`Contribution`]s, or for a
//! [`Clock`], and reads and adds.
//!
//! # Map
//! This crate gathers what others hold for those who bring their own, and makes the `peer` binary of it. The crates below name only
//! those before them:
//!
//! | crate | what it is |
//! |---|---|
//! | [`protocol`] | the language of peers: ids, views, messages |
//! | [`collectives`] | reduce-scatter and all-gather |
//! | `peergrad-models` | [`task`], [`data`], [`optimizer`], [`schedule`] |
//! | `peergrad-core` | the node, which decides everything and waits for nothing |
//! | `peergrad-config` | what a run.toml becomes: [`specification`], [`model_file`] |
//! | `peergrad-net` | everything that waits: links over libp2p, the data directory, threads, the clock |
//! | `peergrad-cli` | the commands of `peer`, and the status of a running one |
//! | `peergrad-page` | pages to look at |

#![forbid(unsafe_code)]

pub use peergrad_collectives as collectives;
pub use peergrad_protocol as protocol;

pub use peergrad_config::{model_file, specification};
pub use peergrad_core::program::{self, context, loader, programs};
pub use peergrad_core::{io, partition_policy, table};
pub use peergrad_models::{data, optimizer, schedule, task};

pub use peergrad_cli::{run_launch, run_program, run_task as run};
pub use peergrad_core::program::context::{Clock, Context, Contribution, Interrupted, Pending, Step};
pub use peergrad_core::program::loader::Loaded;
pub use peergrad_core::program::{Flow, Program, ProgramFactory};
pub use peergrad_models::optimizer::Optimizer;
pub use peergrad_models::task::{Evaluation, SparseTask, Task};
pub use peergrad_protocol::manifest::Manifest;
pub use peergrad_protocol::message::SampleStats;
pub use peergrad_protocol::{Buffer, Rank};
