//! The host: a machine that can run one peer, with its disk and its speed. It stays when the process on it dies.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::Input;
use peergrad_core::node::Node;
use peergrad_core::program::loader::Loader;
use peergrad_protocol::{Instant, PeerId, Pool, RunId};

use crate::compute_model::ComputeModel;
use crate::disk::Disk;

/// A host's number, from 0 in the order in which hosts were added. `p3` in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

impl HostId {
    /// As an index into what is kept by host.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// What a host is made of.
#[derive(Clone)]
pub struct HostSetup {
    /// Turns the specification into a task there.
    pub loader: Arc<dyn Loader>,
    /// The data file, where it lies on that machine.
    pub data: Option<Arc<[u8]>>,
    /// How fast it computes.
    pub compute_model: ComputeModel,
    /// How its disk behaves.
    pub disk: Disk,
    /// Time that it takes to read the data file.
    pub reading_time: Duration,
    /// How much it offers to own.
    pub capacity: u8,
}

/// How a process comes into the run.
#[derive(Clone)]
pub enum EntryMode {
    /// It founds the run.
    Found {
        /// What the run is.
        specification: Arc<[u8]>,
        /// Peers to wait for, itself included.
        peers: usize,
    },
    /// It joins through these hosts.
    Join {
        /// Which run; `None` if only the addresses are known.
        run: Option<RunId>,
        /// Whom it dials.
        bootstraps: Vec<HostId>,
    },
}

pub(crate) struct Host {
    pub(crate) peer: PeerId,
    pub(crate) setup: HostSetup,
    pub(crate) incarnation: u64,
    pub(crate) process: Option<Process>,
    /// Processes that have been started here; inputs for an earlier one are dropped.
    pub(crate) starts: u32,
    /// Whether the last of them was ended from outside.
    pub(crate) has_crashed: bool,
    /// What arrived while the machine slept.
    pub(crate) asleep: Option<VecDeque<Input>>,
    /// When the process was started, or the machine last woke up.
    pub(crate) awake_since: Instant,
    pub(crate) task_fault: Option<TaskFault>,
}

pub(crate) struct Process {
    pub(crate) node: Node,
    pub(crate) segments: Pool,
    /// The earliest tick that is scheduled.
    pub(crate) wake: Option<Instant>,
    /// Peers whose links it has been told of.
    pub(crate) linked: BTreeSet<PeerId>,
}

/// What is wrong with a host's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskFault {
    /// Its next job panics.
    Panic,
    /// Its jobs never end.
    Hang,
}

/// The peer on a host with an identity of its own: hashed, so that the order of hosts is not the order of ranks.
pub(crate) fn peer_of(host: HostId) -> PeerId {
    PeerId(*blake3::hash(&host.0.to_le_bytes()).as_bytes())
}

/// Where a host can be dialed.
pub(crate) fn address(host: HostId) -> String {
    format!("/memory/{}", host.0)
}
