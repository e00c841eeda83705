//! The shell: everything between a pure node and the world, which is sockets, threads, files and the clock.
//!
//! ```text
//!             inputs                        frames, link up, link down
//!   machine <--------- driver <------------------------------------- network ---- one link per peer
//!           ---------> (the only loop) ----------------------------->   |             outgoing lane
//!             outputs      |        frames, credit, dial, hang up       |             incoming lane
//!                          +--> compute (its own threads)               +---- libp2p swarm: TCP, or QUIC
//! ```
//! The machine decides, and the shell carries out its decisions. A connection may break and come back. A *link* hides that: frames
//! arrive whole, once, and in the order of their priority, or the machine is told that the link is gone. A *lane* of a link is a substream
//! of libp2p, or a separate TLS connection between two peers that can dial each other.
//!
//! # Where to start
//! [`driver`] is the loop; [`link`] explains how frames survive a broken connection; [`network`] keeps the links;
//! [`directory`] describes the files on disk; [`reachability`] finds out how others reach this peer.

#![forbid(unsafe_code)]

mod address;
mod bootstrap_address;
pub mod checkpoints;
pub mod clock;
pub mod compute;
pub mod counters;
mod data_home;
mod dial;
mod direct;
pub mod directory;
mod discovery;
pub mod driver;
mod files;
mod handshake_limits;
pub mod identity;
mod keyring;
pub mod link;
pub mod listen;
mod machine;
mod memory;
pub mod network;
pub mod notice;
mod open_files;
#[cfg(test)]
mod pipe;
mod proof;
mod quic;
pub mod random;
pub mod reachability;
pub mod record;
mod remote;
mod silence_limit;
pub mod stable_storage;
mod status_client;
mod substreams;
mod transport;
mod unfinished_run;

pub use bootstrap_address::{BootstrapAddress, NotAnAddress};
pub use checkpoints::{BEST_FILE, CheckpointStore, Checkpoints, Damaged, decode_checkpoint};
pub use clock::{MonotonicClock, unix_seconds};
pub use compute::{Compute, compute_on};
pub use counters::{Counters, Traffic};
pub use data_home::{is_in_use, peers_beside};
pub use dial::Unreached;
pub use directory::{ChosenDirectory, Directory, DirectoryError, default_directories};
pub use driver::{AdminRequest, Environment, StateMachine, drive};
pub use files::{create_private, write_atomically, write_private};
pub use identity::{Identity, IdentityError};
pub use listen::{DEFAULT_PORT, Listen, ListenError, Port};
pub use machine::{Machine, Place, Places};
pub use memory::available_memory;
pub use network::{
    Disconnector, Lane, LinkSnapshot, Network, NetworkHandle, NetworkOptions, NetworkStatus, StartError,
};
pub use notice::{Notice, PeerNotice};
pub use open_files::{FileLimit, FileShortage};
pub use random::random_bytes;
pub use reachability::{Advice, PortForwarding, Reachability, ReachabilityState, Tried};
pub use record::{RecordError, RunRecord};
pub use stable_storage::StableStorage;
pub use status_client::{StatusClient, StatusClientError, StatusStreams, StatusTarget};
pub use transport::Mdns;
pub use unfinished_run::UnfinishedRun;
