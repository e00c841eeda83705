//! A cluster of nodes on one virtual clock.
//!
//! # How it works
//! [`Cluster::tick`] takes the earliest event, sets the clock, passes the event on, and carries out what the nodes ask for:
//! ```text
//! queue, by (time, sequence) --> input of one node --> its outputs --+--> network: frames as bytes, credit, dials
//!    ^                                                               +--> compute model: jobs, done at once, answered later
//!    |                                                               +--> disk: records, answered later
//!    '------------------------- later events ------------------------+--> invariants and history
//! ```
//! One seed decides everything: delays, speeds, and chance. Frames are hashed into a trace as they arrive, so two runs are the same if
//! their hashes are.
//!
//! # Parts
//! `schedule.rs` has the clock and the queue, `environment.rs` carries out what a node asks for, `arrivals.rs` turns what the network
//! delivers into inputs, `orders.rs` has the orders of users, and `record.rs` keeps what happened. Tests and faults act through
//! `control.rs` and look through `inspect.rs`.
//!
//! # Not here
//! Faults and their times are in `fault_injector.rs`; what must hold is in [`crate::invariants`].

use std::time::Duration;

use peergrad_core::io::{Input, Output, PersistId};
use peergrad_core::state::shared_cache::SharedCache;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::{Instant, RunId};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::filters::Filters;
use crate::host::{HostId, Process, ProcessId};
use crate::hosts::Hosts;
use crate::links::Links;
use crate::network::Network;
use crate::observation::Observation;
use crate::world::World;
use environment::{Environment, linked};
use orders::Order;
use record::Record;
use schedule::{Schedule, ScheduledEvent};

mod arrivals;
mod control;
mod environment;
mod inspect;
mod orders;
mod record;
mod schedule;

pub use control::{Dialability, UserCommand};

/// Nodes, their hosts and links, and what happens next.
pub struct Cluster {
    /// The virtual time and the events to come.
    schedule: Schedule,
    /// The hosts, with their processes and disks.
    hosts: Hosts,
    /// The connections between hosts and the frames in transit.
    network: Network,
    /// Code that drops or changes frames before the network takes them.
    filters: Filters,
    /// What is checked and remembered of the run.
    record: Record,
    /// The source of computing times and incarnations.
    generator: ChaCha8Rng,
    /// Outputs of a node until they are carried out; empty in between.
    outputs: Vec<Output>,
    /// Results that all members of a view would compute alike, computed once here.
    cache: SharedCache,
    /// The run that was founded; `None` before that.
    run: Option<RunId>,
    /// The orders of users that end a process, oldest first.
    orders: Vec<Order>,
}

impl Cluster {
    /// An empty cluster at time zero.
    #[must_use]
    pub fn new(seed: u64, links: Links) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        Self {
            schedule: Schedule::default(),
            hosts: Hosts::default(),
            network: Network::new(links, generator.next_u64()),
            filters: Filters::default(),
            record: Record::default(),
            generator,
            outputs: Vec::new(),
            cache: SharedCache::default(),
            run: None,
            orders: Vec::new(),
        }
    }

    // Time.

    /// Processes one event. Returns false if there is none left.
    pub fn tick(&mut self) -> bool {
        let Some(scheduled) = self.schedule.pop() else { return false };
        let now = self.now();
        match scheduled {
            ScheduledEvent::Input { process, input } => self.input(process, input),
            ScheduledEvent::Tick(process) => {
                // If the process has asked for an earlier tick since this one was scheduled, that one has its own event, and this one is
                // ignored.
                let is_due = |process: &mut &mut Process| process.wake.take_if(|wake| *wake == now).is_some();
                if self.hosts.process_mut(process).as_mut().is_some_and(is_due) {
                    self.report_uplink(process);
                    self.input(process, Input::Tick);
                }
            }
            ScheduledEvent::Written { process, id, record } => {
                if self.hosts.process_mut(process).is_some() {
                    self.write(process, id, record);
                }
            }
            ScheduledEvent::KeepBest { process, steps } => {
                let disk = &self.hosts.get(process.host).setup.disk;
                let is_there = disk.checkpoints().any(|checkpoint| checkpoint.saved.steps == steps);
                let result = if is_there { Ok(()) } else { Err("it is gone".to_owned()) };
                self.input(process, Input::BestKept { steps, result });
            }
            ScheduledEvent::Saved { process, checkpoint, retention } => {
                // The record of a process that has ended is still written.
                let place = self.hosts.get_mut(process.host);
                if place.starts == process.start && !place.has_crashed {
                    let steps = checkpoint.saved.steps;
                    let result = place.setup.disk.save(checkpoint, retention);
                    self.input(process, Input::CheckpointSaved { steps, result });
                }
            }
            ScheduledEvent::Network(event) => {
                self.network.handle(now, event);
                self.pass_network_events(|cluster, host, input| {
                    cluster.input(cluster.hosts.newest_process(host), input);
                });
            }
        }
        true
    }

    /// Tells a node, before a tick, what has changed at its uplink.
    fn report_uplink(&mut self, process: ProcessId) {
        let is_busy = self.network.has_waiting(process.host);
        let lines = self.network.take_lines(process.host).into_iter();
        let lines = lines.map(|(to, line)| (self.hosts.get(to).peer, line)).collect();
        let now = self.now();
        let Some(running) = self.hosts.process_mut(process) else { return };
        for input in running.uplink.news(now, is_busy, lines) {
            self.input(process, input);
        }
    }

    /// Has a process's disk write a record. If it is full, that is tried again, unless there is a newer record by then.
    fn write(&mut self, process: ProcessId, id: PersistId, record: DurableBytes) {
        let Some(running) = self.hosts.process_mut(process) else { return };
        let is_superseded = running.disk_fails && running.newest_record != Some(id);
        if is_superseded || running.written_record >= Some(id) {
            return;
        }
        let is_written = self.hosts.get_mut(process.host).setup.disk.write(record.clone());
        let Some(running) = self.hosts.process_mut(process) else { return };
        running.disk_fails = !is_written;
        let report = if is_written {
            running.written_record = Some(id);
            Input::Persisted(id)
        } else {
            let at = self.schedule.now().after(DISK_RETRY);
            self.schedule.push(at, ScheduledEvent::Written { process, id, record });
            Input::NotPersisted(id)
        };
        self.input(process, report);
    }

    /// When the next event happens; `None` if there is none.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.schedule.next_at()
    }

    /// Moves the clock to `at`; no event may be due before.
    pub fn advance_to(&mut self, at: Instant) {
        self.schedule.advance_to(at);
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.schedule.now()
    }

    /// Checks the invariants that waiting alone can violate.
    pub fn check_periodically(&mut self) {
        let world = World { now: self.schedule.now(), hosts: &self.hosts, network: &self.network };
        self.record.invariants.check_periodically(&world);
    }

    // Inputs.

    /// Passes one input to a node and carries out its outputs.
    fn input(&mut self, id: ProcessId, input: Input) {
        if self.hosts.process_mut(id).is_none() {
            return;
        }
        let now = self.now();
        if let Some(missed) = &mut self.hosts.get_mut(id.host).asleep {
            // A tick that was missed is requested again.
            if !matches!(input, Input::Tick) {
                missed.push_back(input);
            }
            return;
        }
        if let Input::LinkUp(peer) = input
            && let Some(to) = linked(&self.hosts, &self.network, id.host, peer)
            && let Some(session) = self.network.interfaces.session(id.host, to)
        {
            self.environment(id).observe(&Observation::Linked { at: id.host, to, session });
        }
        let mut out = std::mem::take(&mut self.outputs);
        let process = self.hosts.process_mut(id).expect("it was just there");
        match &input {
            Input::LinkUp(peer) => _ = process.linked.insert(*peer),
            Input::LinkDown { peer, .. } => {
                process.linked.remove(peer);
                process.uplink.forget(peer);
            }
            _ => {}
        }
        process.node.handle(now, input, &mut out);
        let mut environment = self.environment(id);
        out.drain(..).for_each(|output| environment.execute(output));
        self.outputs = out;
        self.schedule_network();
        if let Some(deadline) = self.hosts.process_mut(id).and_then(|process| process.node.deadline()) {
            self.schedule.push_tick(deadline, id, &mut self.hosts);
        }
    }

    /// The parts of the cluster that the outputs of a process can touch.
    fn environment(&mut self, process: ProcessId) -> Environment<'_> {
        Environment {
            process,
            schedule: &mut self.schedule,
            hosts: &mut self.hosts,
            network: &mut self.network,
            filters: &mut self.filters,
            record: &mut self.record,
            cache: &self.cache,
            generator: &mut self.generator,
        }
    }

    /// Schedules the network's next events and what it has delivered now.
    fn schedule_network(&mut self) {
        self.pass_network_events(|cluster, host, input| cluster.input_soon(host, input));
    }

    /// Schedules the network's next events, and passes on what it has delivered.
    fn pass_network_events(&mut self, mut pass: impl FnMut(&mut Self, HostId, Input)) {
        self.schedule.push_network_events(&mut self.network);
        let now = self.now();
        for delivery in self.network.take_deliveries() {
            let to = delivery.to;
            let (filters, trace) = (&mut self.filters, &mut self.record.trace);
            if let Some(input) = arrivals::input_of(delivery, now, &self.hosts, filters, trace) {
                pass(self, to, input);
            }
        }
    }

    /// Passes an input to the process on a host after the events of this instant.
    fn input_soon(&mut self, host: HostId, input: Input) {
        let process = self.hosts.newest_process(host);
        self.schedule.push_input(self.now(), process, input);
    }
}

/// How long after a failure a record is written again.
const DISK_RETRY: Duration = Duration::from_secs(1);
