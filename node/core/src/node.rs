//! The node: everything that a peer decides, as one state machine whose inputs are time, bytes and results.
//!
//! ```text
//!   Input --> Node { machine, executor } --> Output
//!                     |        |
//!                     |        '- the program's coroutine, polled until it waits
//!                     '- a founder or joiner, then a member (training, membership, merge)
//! ```
//! It never waits, reads no clock and draws no random numbers, so the same node runs over libp2p and in virtual time, bit for bit.

use std::sync::Arc;

use peergrad_protocol::{Buffer, Instant};

pub use crate::config::{Config, StartMode};
use crate::io::{Input, Output};
use crate::machine::Machine;
use crate::node_report::NodeReport;
pub use crate::node_report::{MemberProgress, NodeState, Wait};
use crate::program::executor::ProgramExecutor;

/// The part of a peer that makes all decisions.
pub struct Node {
    /// The peer's role in its run, and the routing of each input to that role.
    machine: Machine,
    /// What runs the program: its coroutine is polled until it waits. `None` before the first view.
    executor: Option<ProgramExecutor>,
}

impl Node {
    /// A node before its first input.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { machine: Machine::new(config), executor: None }
    }

    /// Handles one input and appends its outputs to `out`. The caller carries them out before the next call.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        let first = out.len();
        self.decide(now, input, out);
        self.machine.count_sent(now, first, out);
    }

    /// Has the machine handle the input, and the program whatever follows from that.
    fn decide(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
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

/// A program that gives more commands than this within one input is in an endless loop.
const COMMANDS_MAX: usize = 1 << 16;
