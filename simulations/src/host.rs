//! The host: a machine that can run one peer, with its disk and its speed. It remains when the process on it ends.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::{Input, PersistId};
use peergrad_core::node::Node;
use peergrad_core::program::loader::Loader;
use peergrad_protocol::{Instant, PeerId, Pool, RunId};

use crate::compute_model::ComputeModel;
use crate::disk::Disk;
use crate::frame_faults::CountCorrection;
use crate::uplink_report::UplinkReport;

/// A host's number, from 0 in the order in which hosts were added; printed as `p3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

impl HostId {
    /// The number as an index into vectors by host.
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

/// The configuration of a host.
#[derive(Clone)]
pub struct HostSetup {
    /// Turns the specification into a task on this host.
    pub loader: Arc<dyn Loader>,
    /// The data file on that machine; `None` if it has none.
    pub data: Option<Arc<[u8]>>,
    /// Its computing speed.
    pub compute_model: ComputeModel,
    /// Its disk.
    pub disk: Disk,
    /// Time that it takes to read the data file.
    pub reading_time: Duration,
    /// The capacity that it offers: its weight in the placement of chunks. With `None`, that follows from its line.
    pub capacity: Option<u8>,
}

/// How a process enters the run.
#[derive(Clone)]
pub enum EntryMode {
    /// It founds the run.
    Found {
        /// The run's specification, in bytes.
        specification: Arc<[u8]>,
        /// Number of peers to wait for, including the founder.
        peers: usize,
    },
    /// It joins through these hosts.
    Join {
        /// The run to join; `None` if only the addresses are known.
        run: Option<RunId>,
        /// The hosts that it dials.
        bootstraps: Vec<HostId>,
    },
}

/// A process of a host: the `start`-th one on it, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId {
    /// The host.
    pub(crate) host: HostId,
    /// The number of processes that were started on the host up to this one.
    pub(crate) start: u32,
}

/// A host, with its process.
pub(crate) struct Host {
    /// The identity of the peer on it.
    pub(crate) peer: PeerId,
    /// Its configuration, which faults may change.
    pub(crate) setup: HostSetup,
    /// How often a peer with this identity has been started from this disk.
    pub(crate) incarnation: u64,
    /// The running process; `None` if there is none.
    pub(crate) process: Option<Process>,
    /// How many processes have been started on this host; inputs for an earlier one are dropped.
    pub(crate) starts: u32,
    /// Whether the last of them was crashed, and did not end by itself.
    pub(crate) has_crashed: bool,
    /// Inputs that arrived while the machine slept; `None` while it is awake.
    pub(crate) asleep: Option<VecDeque<Input>>,
    /// When the process was started, or the machine last woke up.
    pub(crate) awake_since: Instant,
    /// The fault of its task; `None` if that works.
    pub(crate) task_fault: Option<TaskFault>,
    /// Whether the frames that it sends have a fault, or had one.
    pub(crate) has_faulty_frames: bool,
    /// The frames that it has sent and its node has not: its heartbeats count them.
    pub(crate) forged: CountCorrection,
}

impl Host {
    /// A host without a process, at this time.
    pub(crate) fn new(peer: PeerId, setup: HostSetup, now: Instant) -> Self {
        Self {
            peer,
            setup,
            incarnation: 0,
            process: None,
            starts: 0,
            has_crashed: false,
            asleep: None,
            awake_since: now,
            task_fault: None,
            has_faulty_frames: false,
            forged: CountCorrection::default(),
        }
    }
}

/// A running process.
pub(crate) struct Process {
    /// The node, which is the same code as in a real peer.
    pub(crate) node: Node,
    /// The pool of buffers for received segments.
    pub(crate) segments: Pool,
    /// When the earliest scheduled tick is; `None` if none is scheduled.
    pub(crate) wake: Option<Instant>,
    /// Peers for which the node was notified of a link.
    pub(crate) linked: BTreeSet<PeerId>,
    /// What the node was last told of its uplink.
    pub(crate) uplink: UplinkReport,
    /// The newest record that the node wants to be written; `None` before the first.
    pub(crate) newest_record: Option<PersistId>,
    /// The newest record that was written.
    pub(crate) written_record: Option<PersistId>,
    /// Whether its disk could not write the newest record that it was given.
    pub(crate) disk_fails: bool,
}

/// How a process ends without a goodbye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed: its machine resets its connections, which the other ends notice.
    Killed,
    /// The machine loses power: the other ends hear nothing.
    PowerLost,
}

/// A fault in a host's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskFault {
    /// Its next job panics.
    Panic,
    /// Its jobs never end.
    Hang,
    /// Its next job takes so much longer; the fault ends with it.
    Long(Duration),
}

/// The identity of the peer on a host. It is a hash, so that the order of hosts is not the order of ranks.
pub(crate) fn peer_of(host: HostId) -> PeerId {
    PeerId(*blake3::hash(&host.0.to_le_bytes()).as_bytes())
}

/// The address of a host.
pub(crate) fn address(host: HostId) -> String {
    format!("/memory/{}", host.0)
}
