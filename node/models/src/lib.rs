//! What is trained: tasks, the data they learn from, the rules that update parameters, and learning rates.
//!
//! A [`Task`](task::Task) is a model with its loss and its data: the user's, or one of the built-in models. [`data`] reads samples from
//! files, [`optimizer`] turns a mean gradient into new parameters, and [`schedule`] gives the learning rate of each step. This crate
//! knows nothing of other peers.

#![forbid(unsafe_code)]

pub mod data;
pub mod deep;
pub mod optimizer;
pub mod schedule;
pub mod task;
