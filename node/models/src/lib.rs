//! What is trained: tasks, the data they learn from, the rules that update parameters, and learning rates.
//!
//! A [`Task`](task::Task) is what a user brings, or one of the built-in models. [`data`] reads tables of samples; [`optimizer`] turns
//! a mean gradient into new parameters; [`schedule`] says at which rate. Nothing here knows that there are other peers.

#![forbid(unsafe_code)]

pub mod data;
pub mod optimizer;
pub mod schedule;
pub mod task;
