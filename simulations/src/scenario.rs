//! A scenario: a swarm, its lines, what it trains, what goes wrong when, and what is expected of it.
//!
//! Written in Rust, or read from a TOML [file](mod@file); some are [`named`]. A scenario and a seed make a run: the seed
//! decides every delay, every piece of luck, and whatever a fault leaves open.

use std::time::Duration;

use crate::disk::DiskMode;
use crate::links::Links;
use crate::workload::Workload;

pub mod file;
pub mod named;
mod swarm;

/// Something to simulate.
#[derive(Clone)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// Peers in the first view.
    pub peers: usize,
    /// Their lines.
    pub links: Links,
    /// What they train.
    pub workload: Workload,
    /// Computing time for each sample.
    pub sample_time: Duration,
    /// Time that a disk takes to write a record.
    pub write_time: Duration,
    /// What goes wrong.
    pub faults: Vec<PlannedFault>,
    /// What must come of it.
    pub expect: Expect,
    /// Whether the seed also chooses lines, speeds and small troubles.
    pub is_swarm: bool,
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedFault {
    /// When.
    pub when: FaultTime,
    /// The seed adds up to so much.
    pub within: Duration,
    /// What.
    pub fault: Fault,
}

/// The time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTime {
    /// So long after the first processes were started.
    Start(Duration),
    /// So long after training began.
    Training(Duration),
    /// When this step is first known to be committed.
    Step(u64),
    /// So long after a view was first installed that is to merge another branch.
    Merge(Duration),
}

/// Something that goes wrong, or otherwise happens to a swarm.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// No frames between groups.
    Partition {
        /// How the peers are grouped.
        groups: Groups,
        /// For so long; for ever if `None`.
        duration: Option<Duration>,
    },
    /// No frames between two peers, while both see the others.
    Cut {
        /// The two.
        between: [usize; 2],
        /// Only from the first to the second.
        one_way: bool,
        /// For so long; for ever if `None`.
        duration: Option<Duration>,
    },
    /// The same again and again: a cut, or a machine that sleeps.
    Flap {
        /// What, and how long it lasts.
        fault: Box<Self>,
        /// How often.
        times: u32,
        /// From one to the next.
        every: Duration,
    },
    /// Processes die.
    Crash {
        /// Whose.
        targets: Targets,
        /// Whether their connections say so; not if the power went.
        has_reset: bool,
    },
    /// Processes die and are started again.
    Restart {
        /// Whose.
        targets: Targets,
        /// How long they are down.
        duration: Duration,
        /// Whether they come back with what was on their disks; otherwise as new peers.
        keeps_disk: bool,
    },
    /// The power goes everywhere at once.
    Blackout {
        /// How long.
        duration: Duration,
        /// So much later than the one before it each peer comes back, in an order that the seed decides.
        every: Duration,
        /// How many come back, if not all.
        count: Option<usize>,
        /// How many of those find their newest checkpoint damaged.
        damaged: usize,
    },
    /// Peers are asked to leave.
    Leave {
        /// Who.
        targets: Targets,
    },
    /// A user of another member has peers removed from the run for good.
    Remove {
        /// Whom.
        targets: Targets,
    },
    /// Others cannot dial peers any more, as those are told: they work, and own nothing. Links stay.
    Unreachable {
        /// Whom.
        targets: Targets,
        /// For so long; for ever if `None`.
        duration: Option<Duration>,
    },
    /// Peers compute more slowly.
    Slow {
        /// Who.
        targets: Targets,
        /// So many times slower, in percent.
        percent: u32,
        /// For so long; for ever if `None`.
        duration: Option<Duration>,
    },
    /// Something else runs on peers' machines now and then.
    Bursts {
        /// Whose.
        targets: Targets,
        /// Jobs of a thousand that meet it.
        per_mille: u32,
        /// How much longer those take, in percent.
        percent: u32,
    },
    /// Something else runs on peers' machines all the time: each job takes longer, by an exponentially distributed time.
    Noise {
        /// Whose.
        targets: Targets,
        /// What that is on average, in percent of the job's own time.
        percent: u32,
    },
    /// Machines sleep: a laptop's lid.
    Pause {
        /// Whose.
        targets: Targets,
        /// For so long.
        duration: Duration,
    },
    /// Tasks panic.
    Panic {
        /// Whose.
        targets: Targets,
    },
    /// Tasks never end.
    Hang {
        /// Whose.
        targets: Targets,
    },
    /// A machine with a copy of a peer's disk appears and joins.
    Clone {
        /// Whose disk.
        targets: Targets,
    },
    /// Peers send bytes that are no frames.
    Garbage {
        /// Who.
        targets: Targets,
        /// To each of their links.
        count: usize,
    },
    /// Peers send a view of another time: the one that they are in once more, and an earlier one.
    StaleViews {
        /// Who.
        targets: Targets,
    },
    /// Disks are not what they should be.
    Disk {
        /// Whose.
        targets: Targets,
        /// What they are.
        mode: DiskMode,
    },
    /// Lines become other ones.
    Throttle {
        /// Whose.
        targets: Targets,
        /// Bits a second that they can send.
        up: u64,
        /// Bits a second that they can receive.
        down: u64,
        /// For so long; for ever if `None`.
        duration: Option<Duration>,
    },
    /// New peers come.
    Join {
        /// How many.
        count: usize,
    },
    /// Again and again somebody crashes or somebody new comes.
    Churn {
        /// How often.
        times: u32,
        /// From one to the next.
        every: Duration,
    },
}

/// Which peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// These.
    Peers(Vec<usize>),
    /// So many of those that run, as the seed has it.
    Any(usize),
}

/// How a partition groups peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    /// These; who is in none of them reaches everyone.
    Peers(Vec<Vec<usize>>),
    /// In these proportions, in the order of the hosts.
    Split(Vec<usize>),
}

/// What must come of a scenario, beyond the invariants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expect {
    /// Of the peers of the first view that no fault ended.
    pub survivors: SurvivorOutcome,
    /// Of those that came later.
    pub joiners: JoinOutcome,
    /// Whether the state of some chunk was lost with all who held it, and started from nothing; `None`: it may.
    pub restarted: Option<bool>,
    /// Steps that are committed, at least.
    pub steps: u64,
    /// Branches that are merged into the one that is left, at least.
    pub merged: usize,
    /// No longer without a commit than this, faults off.
    pub patience: Duration,
    /// The losses are no further from those of one plain loop than this, relatively.
    pub loss_tolerance: f64,
}

/// How a run ends for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SurvivorOutcome {
    /// After the last step.
    Finish,
    /// Not at all: too few are left to agree on anything, and they wait for others to come back.
    Wait,
}

/// What becomes of late joiners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JoinOutcome {
    /// They become members.
    Join,
    /// They are told why not.
    Refused,
    /// Whatever is true.
    Any,
}

impl SurvivorOutcome {
    /// What peers do.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Wait => "wait for ever",
        }
    }
}

impl JoinOutcome {
    /// What becomes of newcomers.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Join => "become a member",
            Self::Refused => "be refused",
            Self::Any => "come or not",
        }
    }
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
            // Smooth models stay below 1e-6 for thousands of steps. Where rounding tips the input of one ReLU over zero, for
            // one sample, it can be 5e-3 some thousand steps later, which is what a sample too much or too little comes to
            // at once: that is for the invariants to see.
            loss_tolerance: 0.01,
        }
    }
}

impl Scenario {
    /// A swarm of `peers` on a local network, without any trouble.
    #[must_use]
    pub fn new(name: &str, peers: usize, workload: Workload) -> Self {
        Self {
            name: name.to_owned(),
            about: String::new(),
            peers,
            links: Links::lan(),
            workload,
            sample_time: Duration::from_micros(20),
            write_time: Duration::from_millis(1),
            faults: Vec::new(),
            expect: Expect::default(),
            is_swarm: false,
        }
    }

    /// With another number of peers in the first view.
    ///
    /// # Errors
    /// If a fault speaks of a peer that there would not be, or there are too few or too many.
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

    /// With other lines.
    #[must_use]
    pub fn on(mut self, links: Links) -> Self {
        self.links = links;
        self
    }

    /// With a fault, so long after training began.
    #[must_use]
    pub fn after(self, time: Duration, fault: Fault) -> Self {
        self.at(FaultTime::Training(time), fault)
    }

    /// With a fault at some other time.
    #[must_use]
    pub fn at(mut self, when: FaultTime, fault: Fault) -> Self {
        self.faults.push(PlannedFault { when, within: Duration::ZERO, fault });
        self
    }

    /// With survivors that end like this.
    #[must_use]
    pub fn expecting(mut self, survivors: SurvivorOutcome) -> Self {
        self.expect.survivors = survivors;
        self
    }
}

impl Groups {
    /// How many of `count` peers each of these proportions comes to.
    pub(crate) fn sizes(parts: &[usize], count: usize) -> Vec<usize> {
        let total: usize = parts.iter().sum();
        let end = |upto: usize| count * parts[..upto].iter().sum::<usize>() / total.max(1);
        (0..parts.len()).map(|part| end(part + 1) - end(part)).collect()
    }
}

impl Fault {
    /// The peers that it names.
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
            | Self::Clone { targets }
            | Self::Garbage { targets, .. }
            | Self::StaleViews { targets }
            | Self::Disk { targets, .. }
            | Self::Throttle { targets, .. } => match targets {
                Targets::Peers(peers) => peers.clone(),
                Targets::Any(_) => vec![],
            },
            Self::Partition { .. } | Self::Blackout { .. } | Self::Join { .. } | Self::Churn { .. } => vec![],
        }
    }
}

/// A scenario does not work with this number of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// None, or more than are simulated.
    #[error("{peers} peers cannot be simulated; 1 to {PEERS_MAX} can")]
    Count {
        /// The number.
        peers: usize,
    },
    /// A fault speaks of a peer that there would not be.
    #[error("a fault names peer {peer}, so {peers} peers are too few")]
    Named {
        /// The peer.
        peer: usize,
        /// The number of peers.
        peers: usize,
    },
}

/// Peers of a scenario, at most.
pub const PEERS_MAX: usize = 1000;
/// Peers of a scenario where many seeds are tried, at most.
pub const SWEEP_PEERS_MAX: usize = 8;
/// The name of the check that a scenario went as its `[expect]` section says.
pub const EXPECTATION: &str = "expectation of the scenario";
