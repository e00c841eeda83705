//! The configuration of a node: its identity, and how it starts.

use std::sync::Arc;

use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::{Incarnation, PeerId, RunId};

use crate::program::loader::Loader;
use crate::state::shared_cache::SharedCache;

/// The identity of a node, and how it starts.
pub struct Config {
    /// The peer's key.
    pub peer: PeerId,
    /// The number of this start of the peer.
    pub incarnation: Incarnation,
    /// The addresses at which others can dial it, best first.
    pub addresses: Vec<String>,
    /// How much the peer offers to own, 0 to [`CAPACITY_MAX`](peergrad_protocol::limits::CAPACITY_MAX). With `None`, that follows from its line
    /// beside those of the other members.
    pub capacity: Option<u8>,
    /// Turns the run's specification into a task.
    pub loader: Arc<dyn Loader>,
    /// The pool for the memory of segments, received ones and new ones.
    pub segments: peergrad_protocol::Pool,
    /// The cache of what all nodes of one process compute alike. A node that is alone in its process has its own.
    pub cache: SharedCache,
    /// The record that an earlier start of this peer persisted last; `None` at its first start.
    pub restored: Option<Arc<[u8]>>,
    /// The checkpoints of that record's run that earlier starts have saved and that can be read, newest first.
    pub saved: Vec<SavedCheckpoint>,
    /// How the node enters the run.
    pub start_mode: StartMode,
}

/// How a node enters its run.
pub enum StartMode {
    /// It founds the run.
    Bootstrap {
        /// The encoded specification of the run.
        specification: Arc<[u8]>,
        /// Random bytes that make the run id unique.
        nonce: [u8; 32],
        /// How many peers to wait for before training begins, this one included.
        peers: usize,
        /// The checkpoint from which the founder starts alone; it is of another run with the same specification. `None`: from initial
        /// values.
        from: Option<SavedCheckpoint>,
    },
    /// It joins through the first member that it is linked to.
    Join {
        /// The run of the invite; `None` for any run.
        run: Option<RunId>,
    },
}
