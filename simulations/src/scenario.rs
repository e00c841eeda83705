//! A scenario: a swarm, its links, its workload, the faults with their times, and the expected results.
//!
//! It is written in Rust, or read from a TOML [file](mod@file); some are [`named`]. A scenario and a seed make a run: the seed decides
//! every delay, all other random choices, and whatever a fault leaves open.

use std::time::Duration;

use crate::disk::DiskMode;
use crate::frame_faults::{FrameFault, FrameKind};
use crate::host::Crash;
use crate::links::Links;
use crate::workload::Workload;

pub mod file;
pub mod named;
mod outcome;
mod swarm;

pub use outcome::{JoinOutcome, SurvivorOutcome};

/// A run to simulate.
#[derive(Clone)]
pub struct Scenario {
    /// The scenario's name.
    pub name: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// Number of peers in the first view.
    pub peers: usize,
    /// Their links.
    pub links: Links,
    /// Their task, program and data.
    pub workload: Workload,
    /// The capacity that each peer offers. With `None`, that follows from its line, as at a peer without `--capacity`.
    pub capacity: Option<u8>,
    /// Computing time for each sample.
    pub sample_time: Duration,
    /// Time that a disk takes to write a record.
    pub write_time: Duration,
    /// The faults, with their times.
    pub faults: Vec<PlannedFault>,
    /// The expected results.
    pub expect: Expect,
    /// Whether the seed also chooses links, speeds and small faults.
    pub is_swarm: bool,
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedFault {
    /// The earliest time of the fault.
    pub when: FaultTime,
    /// The seed adds up to this duration.
    pub within: Duration,
    /// The fault itself.
    pub fault: Fault,
}

/// The time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTime {
    /// This duration after the first processes were started.
    Start(Duration),
    /// This duration after training began.
    Training(Duration),
    /// When this step is first known to be committed.
    Step(u64),
    /// This duration after the first view was installed that is to merge another branch.
    Merge(Duration),
}

/// Which frames between two peers a cut blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directions {
    /// Those from the first to the second.
    Forward,
    /// Those of both.
    Both,
}

/// A fault, or another event in a swarm.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Frames are blocked between groups.
    Partition {
        /// How the peers are grouped.
        groups: Groups,
        /// How long; `None` means until the end.
        duration: Option<Duration>,
    },
    /// Frames are blocked between two peers, while both can reach the others.
    Cut {
        /// The two peers.
        between: [usize; 2],
        /// Which frames between them are blocked.
        directions: Directions,
        /// How long; `None` means until the end.
        duration: Option<Duration>,
    },
    /// A fault that repeats: a cut, or a machine that sleeps.
    Flap {
        /// The fault, and how long it lasts each time.
        fault: Box<Self>,
        /// How often it happens.
        times: u32,
        /// Time from one start to the next.
        every: Duration,
    },
    /// Processes are killed.
    Crash {
        /// The peers.
        targets: Targets,
        /// Whether the other ends of their connections notice.
        crash: Crash,
    },
    /// Processes are killed and started again.
    Restart {
        /// The peers.
        targets: Targets,
        /// How long they are down.
        duration: Duration,
        /// Whether they keep what was on their disks; otherwise they return as new peers.
        keeps_disk: bool,
    },
    /// The power of all machines is cut at once.
    Blackout {
        /// How long.
        duration: Duration,
        /// Time between the returns of two peers, in an order that the seed decides.
        every: Duration,
        /// How many return; `None` means all.
        count: Option<usize>,
        /// How many of those find their newest checkpoint damaged.
        damaged: usize,
    },
    /// Peers are asked to leave.
    Leave {
        /// The peers.
        targets: Targets,
    },
    /// A user of another member has peers expelled.
    Remove {
        /// The peers to expel.
        targets: Targets,
    },
    /// Peers are notified that others can no longer dial them: from then on they compute, and own nothing. Links remain.
    Unreachable {
        /// The peers.
        targets: Targets,
        /// How long; `None` means until the end.
        duration: Option<Duration>,
    },
    /// Peers compute more slowly.
    Slow {
        /// The peers.
        targets: Targets,
        /// Factor on the computing time, in percent.
        percent: u32,
        /// How long; `None` means until the end.
        duration: Option<Duration>,
    },
    /// Peers' machines are busy with other work from time to time.
    Bursts {
        /// The peers.
        targets: Targets,
        /// Jobs in a thousand that meet such work.
        per_mille: u32,
        /// How much longer those take, in percent.
        percent: u32,
    },
    /// Peers' machines are always busy with other work: each job takes longer, by an exponentially distributed time.
    Noise {
        /// The peers.
        targets: Targets,
        /// The mean of that time, in percent of the job's own time.
        percent: u32,
    },
    /// Machines sleep, as a laptop with a closed lid.
    Pause {
        /// The peers.
        targets: Targets,
        /// How long.
        duration: Duration,
    },
    /// Tasks panic.
    Panic {
        /// The peers.
        targets: Targets,
    },
    /// Tasks never end.
    Hang {
        /// The peers.
        targets: Targets,
    },
    /// Tasks take long at one step, and their users say so.
    Busy {
        /// The peers.
        targets: Targets,
        /// How much longer the step takes, and for how long the peers say that they are busy.
        duration: Duration,
    },
    /// Users end the run before its epochs are over.
    EndRun {
        /// The peers at which they do so.
        targets: Targets,
    },
    /// A machine with a copy of a peer's disk appears and joins.
    Clone {
        /// The peers whose disks are copied.
        targets: Targets,
    },
    /// Peers send bytes that are no frames.
    Garbage {
        /// The peers.
        targets: Targets,
        /// How many, on each of their links.
        count: usize,
    },
    /// Some of the frames that peers send are lost, changed, repeated or late, without a word.
    Frames {
        /// The peers.
        targets: Targets,
        /// What happens to a frame.
        fault: FrameFault,
        /// The frames that it may happen to.
        kind: FrameKind,
        /// How many of a million frames it happens to.
        per_million: u32,
        /// How long; `None` means until the end.
        duration: Option<Duration>,
    },
    /// Peers send outdated views: their present view once more, and an earlier one.
    StaleViews {
        /// The peers.
        targets: Targets,
    },
    /// Disks fail.
    Disk {
        /// The peers.
        targets: Targets,
        /// How the disks fail.
        mode: DiskMode,
        /// After that time they work again; `None` if they do not.
        duration: Option<Duration>,
    },
    /// The rates of peers' lines change.
    Throttle {
        /// The peers.
        targets: Targets,
        /// Bits a second that they can send.
        up: u64,
        /// Bits a second that they can receive.
        down: u64,
        /// How long; `None` means until the end.
        duration: Option<Duration>,
    },
    /// New peers join.
    Join {
        /// The number of peers.
        count: usize,
    },
    /// Users give orders one after the other: a peer is to leave, is removed, or joins.
    Orders {
        /// The number of orders.
        times: u32,
        /// The longest time from one to the next.
        every: Duration,
    },
    /// Repeatedly a peer crashes or a new one joins.
    Churn {
        /// How often.
        times: u32,
        /// Time from one to the next.
        every: Duration,
    },
}

/// The peers of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// The peers with these indices.
    Peers(Vec<usize>),
    /// This number of running peers, chosen by the seed.
    Any(usize),
}

/// How a partition groups peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    /// These groups; a peer that is in none of them can reach all.
    Peers(Vec<Vec<usize>>),
    /// Groups in these proportions, in the order of the hosts.
    Split(Vec<usize>),
}

/// The expected results of a scenario, beyond the invariants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expect {
    /// How the run ends for peers of the first view that no fault ended.
    pub survivors: SurvivorOutcome,
    /// How it ends for peers that were added later.
    pub joiners: JoinOutcome,
    /// Whether optimizer state of a chunk was lost with all members that stored it, and restarted; `None` if both are allowed.
    pub restarted: Option<bool>,
    /// Least number of committed steps.
    pub steps: u64,
    /// Least number of branches that are merged into the surviving one.
    pub merged: usize,
    /// Longest time without a commit while no fault is active.
    pub patience: Duration,
    /// Greatest relative difference of the losses from those of one plain loop.
    pub loss_tolerance: f64,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            survivors: SurvivorOutcome::Finish,
            joiners: JoinOutcome::Any,
            restarted: None,
            steps: 0,
            merged: 0,
            patience: Duration::from_secs(30),
            // Smooth models stay below 1e-6 for thousands of steps. If rounding moves the input of one ReLU across zero, for one sample,
            // the difference can be 5e-3 some thousand steps later. A sample too much or too little makes as much at once, but the
            // invariants notice that.
            loss_tolerance: 0.01,
        }
    }
}

impl Scenario {
    /// Whether some peer sends wrong values, so that members compute with others than the run would have without it.
    pub(crate) fn has_wrong_values(&self) -> bool {
        self.faults.iter().any(|planned| match planned.fault {
            Fault::Frames { fault: FrameFault::Wrong, kind, .. } => kind != FrameKind::Digests,
            _ => false,
        })
    }

    /// A swarm of `peers` on a local network, without any faults.
    #[must_use]
    pub fn new(name: &str, peers: usize, workload: Workload) -> Self {
        Self {
            name: name.to_owned(),
            about: String::new(),
            peers,
            links: Links::lan(),
            workload,
            capacity: None,
            sample_time: Duration::from_micros(20),
            write_time: Duration::from_millis(1),
            faults: Vec::new(),
            expect: Expect::default(),
            is_swarm: false,
        }
    }

    /// Changes the number of peers in the first view.
    ///
    /// # Errors
    /// If a fault names a peer that would not exist, or there are too few or too many.
    pub fn with_peers(mut self, peers: usize) -> Result<Self, PeersError> {
        if peers == 0 || peers > PEERS_MAX {
            return Err(PeersError::Count { peers });
        }
        match self.faults.iter().flat_map(|planned| planned.fault.names()).find(|&peer| peer >= peers) {
            Some(peer) => Err(PeersError::Named { peer, peers }),
            None => {
                self.peers = peers;
                Ok(self)
            }
        }
    }

    /// Changes the links.
    #[must_use]
    pub fn on(mut self, links: Links) -> Self {
        self.links = links;
        self
    }

    /// Adds a fault at a time after training began.
    #[must_use]
    pub fn after(self, time: Duration, fault: Fault) -> Self {
        self.at(FaultTime::Training(time), fault)
    }

    /// Adds a fault at another time.
    #[must_use]
    pub fn at(mut self, when: FaultTime, fault: Fault) -> Self {
        self.faults.push(PlannedFault { when, within: Duration::ZERO, fault });
        self
    }

    /// Sets how the run is to end for survivors.
    #[must_use]
    pub fn expecting(mut self, survivors: SurvivorOutcome) -> Self {
        self.expect.survivors = survivors;
        self
    }
}

impl Groups {
    /// The sizes of groups in these proportions, for `count` peers.
    pub(crate) fn sizes(parts: &[usize], count: usize) -> Vec<usize> {
        let total: usize = parts.iter().sum();
        let end = |upto: usize| count * parts[..upto].iter().sum::<usize>() / total.max(1);
        (0..parts.len()).map(|part| end(part + 1) - end(part)).collect()
    }
}

impl Fault {
    /// The indices of peers that the fault names.
    fn names(&self) -> Vec<usize> {
        match self {
            Self::Partition { groups: Groups::Peers(groups), .. } => groups.concat(),
            Self::Cut { between, .. } => between.to_vec(),
            Self::Flap { fault, .. } => fault.names(),
            Self::Crash { targets, .. }
            | Self::Restart { targets, .. }
            | Self::Leave { targets }
            | Self::Remove { targets }
            | Self::Unreachable { targets, .. }
            | Self::Slow { targets, .. }
            | Self::Bursts { targets, .. }
            | Self::Noise { targets, .. }
            | Self::Pause { targets, .. }
            | Self::Panic { targets }
            | Self::Hang { targets }
            | Self::Busy { targets, .. }
            | Self::EndRun { targets }
            | Self::Clone { targets }
            | Self::Garbage { targets, .. }
            | Self::StaleViews { targets }
            | Self::Frames { targets, .. }
            | Self::Disk { targets, .. }
            | Self::Throttle { targets, .. } => match targets {
                Targets::Peers(peers) => peers.clone(),
                Targets::Any(_) => vec![],
            },
            Self::Partition { .. }
            | Self::Blackout { .. }
            | Self::Join { .. }
            | Self::Orders { .. }
            | Self::Churn { .. } => vec![],
        }
    }
}

/// Why a scenario does not work with a number of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// There are no peers, or more than can be simulated.
    #[error("{peers} peers cannot be simulated; 1 to {PEERS_MAX} can")]
    Count {
        /// The number of peers.
        peers: usize,
    },
    /// A fault names a peer that would not exist.
    #[error(
        "a fault names peer {peer}, but there are only {peers} peers (numbered from 0): give more peers, or change the fault"
    )]
    Named {
        /// The peer's index.
        peer: usize,
        /// The number of peers.
        peers: usize,
    },
}

/// Most peers of a scenario.
pub const PEERS_MAX: usize = 1000;
/// Most peers of a scenario in a sweep over many seeds.
pub const SWEEP_PEERS_MAX: usize = 8;
/// The name of the check that a scenario went as its `[expect]` section says.
pub const EXPECTATION: &str = "expectation of the scenario";
