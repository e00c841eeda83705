//! The node: everything that a peer decides, as one state machine whose inputs are time, bytes and results.
//!
//! ```text
//!   Input --> Node { machine, host } --> Output
//!                     |        |
//!                     |        '- the program's coroutine, polled until it waits
//!                     '- joining or founding -> training (rounds, parameters, commits)
//! ```
//! It never waits, reads no clock and draws no random numbers, so the same node runs over libp2p and in virtual time, bit for bit.

use std::sync::Arc;

use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Incarnation, Instant, PeerId, RunId, ViewDigest};

use crate::io::{Input, Output};
use crate::machine::Machine;
use crate::node_report::NodeReport;
use crate::program::executor::ProgramExecutor;
use crate::program::loader::Loader;
use crate::state::shared_cache::SharedCache;

/// The part of a peer that makes all decisions.
pub struct Node {
    machine: Machine,
    executor: Option<ProgramExecutor>,
}

/// The identity of a node, and how it starts.
pub struct Config {
    /// The peer's key.
    pub peer: PeerId,
    /// The number of this start of the peer.
    pub incarnation: Incarnation,
    /// The addresses at which others can dial it, best first.
    pub addresses: Vec<String>,
    /// How much the peer offers to own, 0 to [`CAPACITY_MAX`](peergrad_protocol::limits::CAPACITY_MAX).
    pub capacity: u8,
    /// Turns the run's specification into a task.
    pub loader: Arc<dyn Loader>,
    /// The pool for the memory of segments, received ones and new ones.
    pub segments: peergrad_protocol::Pool,
    /// The cache of what all nodes of one process compute alike. A node that is alone in its process has its own.
    pub cache: SharedCache,
    /// The record that an earlier start of this peer persisted last; `None` if there is none.
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

impl Node {
    /// A node before its first input.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { machine: Machine::new(config), executor: None }
    }

    /// Handles one input and appends its outputs to `out`. The caller carries them out before the next call.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        self.machine.input(now, input, out);
        if self.executor.is_none() {
            self.executor = self.machine.program();
        }
        let Some(executor) = &mut self.executor else { return };
        for _ in 0..COMMANDS_MAX {
            let Some(command) = executor.next() else { return };
            self.machine.command(now, command, out);
        }
        panic!("a program gave {COMMANDS_MAX} commands without waiting for anything");
    }

    /// Call [`Node::handle`] with [`Input::Tick`] no later than this.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.machine.deadline()
    }

    /// The state of this node, for a status line or a simulator that checks invariants. It costs little.
    #[must_use]
    pub fn state(&self) -> NodeState {
        self.machine.state()
    }

    /// A report on this node and on the other members as it sees them, for people. It goes through all members.
    #[must_use]
    pub fn node_report(&self, now: Instant) -> NodeReport {
        self.machine.node_report(now)
    }

    /// The newest committed parameters; with local parameters, those of this member. `None` before the first.
    #[must_use]
    pub fn parameters(&self) -> Option<&Arc<Buffer>> {
        self.machine.parameters()
    }

    /// The optimizer state that this node stores, after the newest step that it knows to be committed, for a simulator that compares
    /// replicas. Each item is a chunk, its state (moment count, elements), and the number of updates behind it.
    pub fn optimizer_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        self.machine.optimizer_states()
    }
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeState {
    /// It founds a run, and waits for peers.
    Bootstrap,
    /// It asks to join.
    Join,
    /// It was a member before its process stopped. It asks to join again, or waits for the other members of that view to return, to resume
    /// from their checkpoints.
    Recovery,
    /// It is a member.
    Member(MemberProgress),
    /// Its run has ended.
    Ended,
}

/// How far a member is in its view.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberProgress {
    /// The view that is installed here.
    pub view: Arc<View>,
    /// Its digest.
    pub digest: ViewDigest,
    /// Whether it has parameters. A newcomer gets its first ones from the other members.
    pub has_parameters: bool,
    /// The number of steps that are complete at this member.
    pub complete: u64,
    /// The number of steps that this member knows to be committed.
    pub committed: u64,
    /// What the present step waits for.
    pub wait: Wait,
    /// Segments from other members that are held here and whose credit was not returned, over all links.
    pub held_segments: u32,
}

/// What a member waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The next view, before a step that is not taken in this one; or chunks of a step that is rolled forward.
    Start,
    /// The members to agree on the next view.
    View,
    /// Its own program: a gradient, or other work between two operations.
    Program,
    /// Sums of the shard that it owns.
    Sums,
    /// The shards of other owners.
    Shards,
    /// Rows of a table, samples to compute, or the acknowledgement of its additions.
    Rows,
    /// The other members to complete the run.
    Closing,
    /// The evaluation of the final parameters.
    Evaluation,
}

/// A program that gives more commands than this within one input is in an endless loop.
const COMMANDS_MAX: usize = 1 << 16;
