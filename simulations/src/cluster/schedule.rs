//! The schedule: the virtual time, and the events to come.

use std::sync::Arc;

use peergrad_core::io::{Input, PersistId, Retention};
use peergrad_core::state::checkpoint::Checkpoint;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::{Instant, StepNumber};

use crate::host::ProcessId;
use crate::hosts::Hosts;
use crate::network::{Network, NetworkEvent};
use crate::queue::Queue;

/// The clock and the queue of a cluster.
#[derive(Default)]
pub(super) struct Schedule {
    /// The virtual time.
    now: Instant,
    /// The events to come, by time.
    queue: Queue<ScheduledEvent>,
}

/// An event to come. One for a process that has ended by then is dropped.
pub(super) enum ScheduledEvent {
    Input {
        process: ProcessId,
        input: Input,
    },
    Tick(ProcessId),
    /// A record is on the disk.
    Written {
        process: ProcessId,
        id: PersistId,
        record: DurableBytes,
    },
    /// A checkpoint is on the disk, also if the process has ended.
    Saved {
        process: ProcessId,
        checkpoint: Arc<Checkpoint>,
        retention: Retention,
    },
    /// The checkpoint after so many steps is kept apart, if it is still on the disk.
    KeepBest {
        process: ProcessId,
        steps: StepNumber,
    },
    Network(NetworkEvent),
}

impl Schedule {
    /// The virtual time.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// When the next event happens; `None` if there is none.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.queue.next_at()
    }

    /// Moves the clock to `at`; no event may be due before.
    pub(super) fn advance_to(&mut self, at: Instant) {
        assert!(self.next_at().is_none_or(|next| next >= at), "nothing is skipped");
        self.now = self.now.max(at);
    }

    /// Takes the next event, and sets the clock to its time.
    pub(super) fn pop(&mut self) -> Option<ScheduledEvent> {
        let (at, event) = self.queue.pop()?;
        self.now = at;
        Some(event)
    }

    /// Adds an event.
    pub(super) fn push(&mut self, at: Instant, event: ScheduledEvent) {
        self.queue.push(at, event);
    }

    /// Adds an input.
    pub(super) fn push_input(&mut self, at: Instant, process: ProcessId, input: Input) {
        self.queue.push(at, ScheduledEvent::Input { process, input });
    }

    /// Adds a tick of a process at `at`, unless there is an earlier one.
    pub(super) fn push_tick(&mut self, at: Instant, id: ProcessId, hosts: &mut Hosts) {
        let at = at.max(self.now);
        let Some(process) = hosts.process_mut(id) else { return };
        if process.wake.is_none_or(|wake| at < wake) {
            process.wake = Some(at);
            self.queue.push(at, ScheduledEvent::Tick(id));
        }
    }

    /// Adds the events that the network asks for.
    pub(super) fn push_network_events(&mut self, network: &mut Network) {
        for (at, event) in network.take_scheduled() {
            self.queue.push(at, ScheduledEvent::Network(event));
        }
    }
}
