//! A whole peer inside a program: options in; events, answers and an outcome out.
//!
//! ```text
//!   PeerOptions --> Peer::start --> Peer ---- next() ----> PeerEvent, ..., PeerEvent::Ended(Outcome)
//!                                    '------ handle() ---> PeerHandle: status, invite, leave
//! ```
//! A peer runs on threads of its own. It reads no arguments, handles no signals, prints nothing and never ends the process: the `peer`
//! binary is one user of it, and adds these.
//!
//! # In your process
//! - No call needs an async runtime, and none may be made in an async task: each waits for the peer's threads.
//! - A peer raises the limit of open files, as far as the system allows without special rights.
//! - A forked child has no threads of the peer: it must not use the peer.
//! - Several peers in one process each take three quarters of the free memory, and all cores, unless they are told otherwise.
//! - Texts name the command of this process: see [`text::command_name`]. They may hold what other peers sent: a terminal should get them
//!   through [`text::printable`].
//!
//! # Map
//! | module | what it is |
//! |---|---|
//! | [`options`] | what a peer is started with |
//! | [`peer`] | the running peer: its events, and the handle by which others ask it |
//! | [`outcome`] | how it ended, and its model on disk |
//! | [`stopped_peer`] | a peer that stopped in the middle of a run, and how it goes on |
//! | [`status`] | the status of a running peer: answers over a socket, an event log, metrics |
//! | [`text`] | events and states as sentences and as JSON |

#![forbid(unsafe_code)]

pub mod data_file;
mod data_source;
mod event_queue;
pub mod options;
pub mod outcome;
pub mod peer;
mod peer_task;
mod previous_run;
mod run_publication;
pub mod status;
pub mod stopped_peer;
pub mod text;

pub use data_file::open_data;
pub use data_source::DataSource;
pub use options::{Connectivity, DirectoryChoice, PeerOptions, memory_limit, threads_of_one};
pub use outcome::{Outcome, SaveError, SavedModel};
pub use peer::{NotYet, Peer, PeerEvent, PeerHandle, StartError, StartReport};
pub use stopped_peer::{ResumeError, StoppedPeer};

pub use libp2p::Multiaddr;
pub use peergrad_core::node::StartMode;
pub use peergrad_net::{
    BootstrapAddress, Counters, Damaged, Directory, DirectoryError, IdentityError, Mdns, MonotonicClock,
    Notice, StartError as NetworkError,
};
