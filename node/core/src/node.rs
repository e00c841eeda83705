//! The node: everything a peer decides, as one machine that is given time, bytes and results.
//!
//! ```text
//!   Input --> Node { machine, host } --> Output
//!                     |        |
//!                     |        '- the program's coroutine, polled until it waits
//!                     '- joining or founding -> session (rounds, parameters, commits)
//! ```
//! It never waits, reads no clock and draws no randomness of its own, so the same node runs over libp2p and in virtual
//! time, bit for bit.

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

/// One peer's deciding half.
pub struct Node {
    machine: Machine,
    executor: Option<ProgramExecutor>,
}

/// Who a node is and what it is to do.
pub struct Config {
    /// Its key.
    pub peer: PeerId,
    /// Which start of it this is.
    pub incarnation: Incarnation,
    /// Where others can dial it, best first.
    pub addresses: Vec<String>,
    /// How much it offers to own, 0 to [`CAPACITY_MAX`](peergrad_protocol::limits::CAPACITY_MAX).
    pub capacity: u8,
    /// Turns the run's specification into a task.
    pub loader: Arc<dyn Loader>,
    /// Where received segments and those that begin here are kept.
    pub segments: peergrad_protocol::Pool,
    /// What nodes of one process compute once for all of them; a node of its own has its own.
    pub cache: SharedCache,
    /// The record that an earlier start of this peer persisted last, if it is still there.
    pub restored: Option<Arc<[u8]>>,
    /// The checkpoints of that record's run that earlier starts have left and that can be read, newest first.
    pub saved: Vec<SavedCheckpoint>,
    /// How it comes into the run.
    pub start_mode: StartMode,
}

/// How a node comes into its run.
pub enum StartMode {
    /// It founds the run.
    Bootstrap {
        /// What the run is.
        specification: Arc<[u8]>,
        /// Random bytes that make the run id unique.
        nonce: [u8; 32],
        /// Peers to wait for before training begins, this one included.
        peers: usize,
        /// What it goes on from, alone: a checkpoint of another run of the same specification.
        from: Option<SavedCheckpoint>,
    },
    /// It joins through whatever member it is linked to first.
    Join {
        /// The run of the invite, where there was one.
        run: Option<RunId>,
    },
}

impl Node {
    /// A node that has not yet been told anything.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { machine: Machine::new(config), executor: None }
    }

    /// Takes in one input and appends what is to be done to `out`, which the caller carries out before the next call.
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

    /// Where this node is, for whoever looks on: a status line, or a simulator that checks the laws.
    #[must_use]
    pub fn state(&self) -> NodeState {
        self.machine.state()
    }

    /// How this node stands and how it sees the others, for a person; goes through all members.
    #[must_use]
    pub fn node_report(&self, now: Instant) -> NodeReport {
        self.machine.node_report(now)
    }

    /// The newest committed parameters: where members drift, its own.
    #[must_use]
    pub fn parameters(&self) -> Option<&Arc<Buffer>> {
        self.machine.parameters()
    }

    /// The optimizer state that this node keeps after the newest step that it knows to be committed, for a simulator that
    /// compares replicas: chunk, (moment count, elements), and the updates behind it.
    pub fn optimizer_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        self.machine.optimizer_states()
    }
}

/// Where a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeState {
    /// It founds a run, and waits for peers.
    Bootstrap,
    /// It asks to be let in.
    Join,
    /// It was a member before its process stopped, and asks to be let in again; or waits for others that are back, to go on from
    /// what they have saved.
    Recovery,
    /// It is a member.
    Member(MemberProgress),
    /// Its run has ended.
    Ended,
}

/// Where a member is in its view.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberProgress {
    /// The view that is installed here.
    pub view: Arc<View>,
    /// Its digest.
    pub digest: ViewDigest,
    /// Whether it has parameters: a newcomer gets its first from the others.
    pub has_parameters: bool,
    /// Steps that are complete here.
    pub complete: u64,
    /// Steps that are known here to be committed.
    pub committed: u64,
    /// What the step in progress waits for.
    pub wait: Wait,
    /// Segments of others that are held here and whose credit was not returned, over all links.
    pub held_segments: u32,
}

/// What a member waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The next view, before a step that is not taken in this one; or chunks of a step that is rolled forward.
    Start,
    /// The members to agree on the next view.
    View,
    /// Its own program: a gradient, or whatever it does between two operations.
    Program,
    /// Sums of the shard that it owns.
    Sums,
    /// Other owners' shards.
    Shards,
    /// Rows of a table, samples to compute, or what it has added to be safe.
    Rows,
    /// The others to be done with the run.
    Closing,
    /// Its own evaluation of what the run has come to.
    Evaluation,
}

/// A program that gives more commands than this within one input is spinning.
const COMMANDS_MAX: usize = 1 << 16;
