//! What a binary with a task of its own needs: `use peergrad::prelude::*;`.
//!
//! - A task: [`Task`] with its [`Manifest`] and [`Evaluation`].
//! - The binary around it: [`train`], with an [`Optimizer`], and [`GroupSettings`] for tensors that are trained differently.
//! - A program that takes steps: [`Program`], whose round asks its [`Context`] for a [`Step`], adds a [`Contribution`], and says by
//!   a [`ShardUpdate`] how owners update.
//! - A program that keeps its state in tables: a [`TableSpec`] of [`Table`]s, and a [`Clock`] in place of the step.

pub use std::process::ExitCode;
pub use std::sync::Arc;

pub use peergrad_cli::{Training, train};
pub use peergrad_config::specification::GroupSettings;
pub use peergrad_core::program::context::{
    Clock, Context, Contribution, Interrupted, Pending, ShardUpdate, Step,
};
pub use peergrad_core::program::loader::Loaded;
pub use peergrad_core::program::{Flow, Program};
pub use peergrad_core::table::{
    ApplyMode, Atomicity, BatchScope, IdempotencyKey, Init, Integer, Map, ReadPolicy, Reduce, Row, RowChange,
    RowRule, RowSet, Rows, Table, TableRule, TableSpec,
};
pub use peergrad_models::optimizer::{Bounds, Optimizer};
pub use peergrad_models::task::{Evaluation, SparseTask, Task};
pub use peergrad_protocol::manifest::Manifest;
pub use peergrad_protocol::message::SampleStats;
pub use peergrad_protocol::{Buffer, Rank};
