//! A whole peer inside a program: options in; events, answers and an outcome out.
//!
//! ```text
//!   PeerOptions --> Peer::start --> Peer ---- next() ----> PeerEvent, ..., PeerEvent::Ended(Outcome)
//!                                    '------ handle() ---> PeerHandle: status, invite, leave
//! ```
//! A peer runs on threads of its own. It reads no arguments, handles no signals, prints nothing and never ends the process: the `peer`
//! binary is one user of it, and adds these.
//!
//! # Map
//! | module | what it is |
//! |---|---|
//! | [`options`] | what a peer is started with |
//! | [`peer`] | the running peer: its events, and the handle by which others ask it |
//! | [`outcome`] | how it ended, and its model on disk |
//! | [`status`] | the status of a running peer: answers over a socket, an event log, metrics |
//! | [`text`] | events and states as sentences and as JSON |

#![forbid(unsafe_code)]

pub mod data_source;
mod host;
pub mod options;
pub mod outcome;
pub mod peer;
mod previous_run;
mod run_publication;
pub mod status;
pub mod text;

pub use data_source::DataSource;
pub use options::{Connectivity, DirectoryChoice, PeerOptions, memory_limit, threads_of_one};
pub use outcome::{Outcome, SaveError, SavedModel};
pub use peer::{Opening, Peer, PeerEvent, PeerHandle, StartError};
