//! Training one model on many machines with no server.
//!
//! # Train your own task
//! A binary implements [`Task`] and hands it to [`train`]; every machine runs the same binary, with `start` or `join`:
//!
//! ```no_run
//! use peergrad::prelude::*;
//!
//! /// Find `w` in y = w x, from points with w = 3.
//! struct Slope;
//!
//! impl Task for Slope {
//!     fn manifest(&self) -> Manifest {
//!         Manifest::tensor("w", [1])
//!     }
//!
//!     fn sample_count(&self) -> u32 {
//!         1000
//!     }
//!
//!     fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
//!         let errors = samples.iter().map(|&sample| (sample as f32 / 1000.0, parameters[0] - 3.0));
//!         gradient[0] = errors.clone().map(|(x, error)| 2.0 * error * x * x).sum();
//!         errors.map(|(x, error)| f64::from(error * x).powi(2)).sum()
//!     }
//!
//!     fn evaluate(&self, parameters: &[f32]) -> Evaluation {
//!         Evaluation { samples: 1, loss: f64::from(parameters[0] - 3.0).powi(2), accuracy: None }
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     peergrad::train("slope", Slope).optimizer(Optimizer::SGD).learning_rate(0.1).epochs(40).batch(64).run()
//! }
//! ```
//! A binary may also bring the algorithm: a [`Program`], set with [`Training::program`], or one that keeps its state in
//! [tables](table), set with [`Training::tables`]. The [`prelude`] has all that they are written with; the folder `examples` has
//! one of each.
//!
//! # Embed a peer
//! The same task trains inside a program that has its own command line, or none:
//!
//! ```no_run
//! use peergrad::embed::{Peer, PeerEvent};
//! # fn trained(task: impl peergrad::Task) -> Result<(), Box<dyn std::error::Error>> {
//! let training = peergrad::train("slope", task).epochs(40).peers(2);
//! let mut peer = Peer::start(training.new_run()?)?;
//! println!("others join with {}", peer.handle().invite().expect("a founder knows its run"));
//! for event in &mut peer {
//!     if let PeerEvent::Ended(outcome) = event {
//!         println!("ended: {:?}", outcome.result);
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! This crate re-exports what a user's binary needs, and makes the `peer` binary. Each of the crates below depends only on those
//! before it:
//!
//! | crate | what it is |
//! |---|---|
//! | [`protocol`] | what peers send each other: ids, views, messages |
//! | [`collectives`] | reduce-scatter and all-gather |
//! | `peergrad-models` | [`task`], [`data`], [`optimizer`], [`schedule`] |
//! | `peergrad-core` | the node: membership and training as a state machine without input or output |
//! | `peergrad-config` | from a run.toml to a task and its settings: [`specification`], [`model_file`] |
//! | `peergrad-net` | the node's input and output: links over libp2p, the data directory, threads, the clock |
//! | [`embed`] | a whole peer inside a program, and the status of a running peer |
//! | `peergrad-cli` | the commands of `peer` |
//! | `peergrad-page` | HTML pages with charts |

#![forbid(unsafe_code)]

pub mod prelude;

pub use peergrad_collectives as collectives;
pub use peergrad_embed as embed;
pub use peergrad_protocol as protocol;

pub use peergrad_config::{model_file, specification};
pub use peergrad_core::program::{self, context, loader, programs};
pub use peergrad_core::{io, partition_policy, table};
pub use peergrad_models::{data, optimizer, schedule, task};

pub use peergrad_cli::{Training, train};
pub use peergrad_core::program::ProgramFactory;
pub use prelude::{
    Buffer, Clock, Context, Contribution, Evaluation, Flow, GroupSettings, Interrupted, Loaded, Manifest,
    Optimizer, Pending, Program, Rank, SampleStats, ShardUpdate, SparseTask, Step, Task,
};
