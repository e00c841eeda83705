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
//! # Not here
//! Faults and their times are in `fault_injector.rs`; what must hold is in [`crate::invariants`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::{Event, Input, Job, Output, Panicked, PersistId};
use peergrad_core::state::checkpoint::Checkpoint;
use peergrad_core::state::shared_cache::SharedCache;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::message::Contact;
use peergrad_protocol::{Frame, Instant, PeerId, RunId};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::filters::{Envelope, FrameAction, FrameFilter};
use crate::history::History;
use crate::host::{Host, HostId, Process, TaskFault, address};
use crate::invariants::Invariants;
use crate::links::Links;
use crate::network::{Delivery, LinkEvent, Network, NetworkEvent, Transmission};
use crate::observation::Observation;
use crate::queue::Queue;
use crate::trace::Trace;
use crate::world::World;

mod control;
mod events;
mod inspect;

/// Nodes, their hosts and links, and what happens next.
pub struct Cluster {
    now: Instant,
    queue: Queue<ScheduledEvent>,
    hosts: Vec<Host>,
    /// The hosts of a peer: more than one only if its identity was copied.
    hosts_by_peer: BTreeMap<PeerId, Vec<HostId>>,
    network: Network,
    filters: Vec<Box<dyn FrameFilter>>,
    generator: ChaCha8Rng,
    invariants: Invariants,
    trace: Trace,
    history: History,
    events: Vec<(Instant, HostId, Event)>,
    /// Outputs of a node until they are carried out; empty in between.
    outputs: Vec<Output>,
    /// Results that all members of a view would compute alike, computed once here.
    cache: SharedCache,
    run: Option<RunId>,
    running_count: usize,
    /// Whether a member has finished the run.
    has_finished_member: bool,
}

/// An event to come.
enum ScheduledEvent {
    /// An input reaches the process that was the `start`-th on its host.
    Input {
        host: HostId,
        start: u32,
        input: Input,
    },
    Tick {
        host: HostId,
        start: u32,
    },
    /// A record is on the disk.
    Written {
        host: HostId,
        start: u32,
        id: PersistId,
        record: DurableBytes,
    },
    /// A checkpoint is on the disk.
    Saved {
        host: HostId,
        start: u32,
        checkpoint: Arc<Checkpoint>,
        keep: usize,
    },
    Network(NetworkEvent),
}

impl Cluster {
    /// An empty cluster at time zero.
    #[must_use]
    pub fn new(seed: u64, links: Links) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        Self {
            now: Instant::default(),
            queue: Queue::default(),
            hosts: Vec::new(),
            hosts_by_peer: BTreeMap::new(),
            network: Network::new(links, generator.next_u64()),
            filters: Vec::new(),
            generator,
            invariants: Invariants::default(),
            trace: Trace::default(),
            history: History::default(),
            events: Vec::new(),
            outputs: Vec::new(),
            cache: SharedCache::default(),
            run: None,
            running_count: 0,
            has_finished_member: false,
        }
    }

    // Time.

    /// Processes one event. Returns false if there is none left.
    pub fn tick(&mut self) -> bool {
        let Some((at, scheduled)) = self.queue.pop() else { return false };
        self.now = at;
        match scheduled {
            ScheduledEvent::Input { host, start, input } => self.input(host, start, input),
            ScheduledEvent::Tick { host, start } => {
                // If the process has asked for an earlier tick since this one was scheduled, that one has its own event, and this one is
                // ignored.
                let is_due = |process: &mut &mut Process| process.wake.take_if(|wake| *wake == at).is_some();
                if self.process_mut(host, start).as_mut().is_some_and(is_due) {
                    self.input(host, start, Input::Tick);
                }
            }
            ScheduledEvent::Written { host, start, id, record } => {
                if self.process_mut(host, start).is_some() {
                    let result = self.hosts[host.index()].setup.disk.write(record);
                    self.input(host, start, Input::Persisted { id, result });
                }
            }
            ScheduledEvent::Saved { host, start, checkpoint, keep } => {
                // The record of a process that has ended is still written.
                let place = &mut self.hosts[host.index()];
                if place.starts == start && !place.has_crashed {
                    let steps = checkpoint.saved.steps;
                    let result = place.setup.disk.save(checkpoint, keep);
                    self.input(host, start, Input::CheckpointSaved { steps, result });
                }
            }
            ScheduledEvent::Network(event) => {
                self.network.handle(at, event);
                self.schedule_network_events();
                for delivery in self.network.take_deliveries() {
                    let Some((host, input)) = self.receive(delivery) else { continue };
                    self.input(host, self.hosts[host.index()].starts, input);
                }
            }
        }
        true
    }

    /// When the next event happens; `None` if there is none.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.queue.next_at()
    }

    /// Moves the clock to `at`; no event may be due before.
    pub fn advance_to(&mut self, at: Instant) {
        assert!(self.next_at().is_none_or(|next| next >= at), "nothing is skipped");
        self.now = self.now.max(at);
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Passes one input to a node and carries out its outputs.
    fn input(&mut self, host: HostId, start: u32, input: Input) {
        if self.process_mut(host, start).is_none() {
            return;
        }
        let place = &mut self.hosts[host.index()];
        if let Some(missed) = &mut place.asleep {
            // A tick that was missed is requested again.
            if !matches!(input, Input::Tick) {
                missed.push_back(input);
            }
            return;
        }
        if let Input::LinkUp(peer) = input
            && let Some(to) = self.linked(host, peer)
            && let Some(session) = self.network.session(host, to)
        {
            self.observe(Observation::Linked { at: host, to, session });
        }
        let (now, mut out) = (self.now, std::mem::take(&mut self.outputs));
        let process = self.process_mut(host, start).expect("it was just there");
        match &input {
            Input::LinkUp(peer) => _ = process.linked.insert(*peer),
            Input::LinkDown { peer, .. } => _ = process.linked.remove(peer),
            _ => {}
        }
        process.node.handle(now, input, &mut out);
        for output in out.drain(..) {
            self.execute(host, start, output);
        }
        self.outputs = out;
        self.schedule_network();
        self.schedule_tick(host, start);
    }

    fn execute(&mut self, host: HostId, start: u32, output: Output) {
        match output {
            Output::Send { to, frame } => self.send(host, to, frame),
            Output::Credit { to, segments } => self.give_credit(host, to, segments),
            Output::Dial(contact) => self.dial(host, &contact),
            Output::Disconnect(peer) => {
                // A link of which the node has not been notified yet remains.
                let process = self.process_mut(host, start);
                let is_known = process.is_some_and(|process| process.linked.remove(&peer));
                match self.linked(host, peer) {
                    Some(to) if is_known => self.network.hang_up(self.now, host, to),
                    Some(_) => {}
                    None => {
                        let homes = self.hosts_by_peer.get(&peer).into_iter().flatten();
                        homes.for_each(|&to| self.network.stop_dialing(host, to));
                    }
                }
            }
            Output::Compute(job) => self.compute(host, start, job),
            Output::FindData(_) => {
                let setup = &self.hosts[host.index()].setup;
                let data = setup.data.clone();
                // Without a file the answer comes at once.
                let time = data.as_ref().map_or(Duration::ZERO, |_| setup.reading_time);
                self.input_later(self.now.after(time), host, Input::DataFound(data));
            }
            Output::Persist { id, record } => {
                let at = self.now.after(self.hosts[host.index()].setup.disk.write_time);
                self.queue.push(at, ScheduledEvent::Written { host, start, id, record });
            }
            Output::StoreData { data, .. } => self.hosts[host.index()].setup.data = Some(data),
            Output::SaveCheckpoint { checkpoint, keep } => {
                let at = self.now.after(self.hosts[host.index()].setup.disk.write_time);
                self.queue.push(at, ScheduledEvent::Saved { host, start, checkpoint, keep });
            }
            Output::LoadCheckpoint(saved) => {
                let setup = &mut self.hosts[host.index()].setup;
                let result = setup.disk.restore(&saved);
                let at = self.now.after(setup.reading_time);
                self.input_later(at, host, Input::CheckpointLoaded(result));
            }
            Output::Event(event) => self.on_event(host, event),
        }
    }

    /// Does a job now; the answer arrives after the time that the host needs for it.
    fn compute(&mut self, host: HostId, start: u32, job: Job) {
        let place = &mut self.hosts[host.index()];
        let duration = place.setup.compute_model.duration(job.cost, &mut self.generator);
        let id = job.id;
        let result = match place.task_fault {
            Some(TaskFault::Hang) => return,
            Some(TaskFault::Panic) => Err(Panicked("injected".to_owned())),
            None => job.run(),
        };
        let input = Input::Computed { job: id, result };
        self.queue.push(self.now.after(duration), ScheduledEvent::Input { host, start, input });
    }

    fn send(&mut self, from: HostId, peer: PeerId, frame: Frame) {
        if peer == self.hosts[from.index()].peer {
            if let Ok(message) = self.cache.message(&frame) {
                let payload = frame.payload.as_deref();
                self.observe(Observation::Sent { from, to: from, message: &message, payload });
            }
            return self.input_later(self.now, from, Input::Frame { from: peer, frame });
        }
        let Some(to) = self.linked(from, peer) else { return };
        let envelope = Envelope { at: self.now, from, to, frame: &frame };
        let mut verdicts = self.filters.iter_mut().map(|filter| filter.on_frame(&envelope));
        let verdict =
            verdicts.find(|verdict| !matches!(verdict, FrameAction::Pass)).unwrap_or(FrameAction::Pass);
        let (frames, delay) = match verdict {
            FrameAction::Pass => (vec![frame], Duration::ZERO),
            FrameAction::Drop => return,
            FrameAction::Delay(delay) => (vec![frame], delay),
            FrameAction::Replace(frames) => (frames, Duration::ZERO),
        };
        for frame in frames {
            self.history.traffic.add(self.now, from, to, frame.byte_count() as u64);
            if let Ok(message) = self.cache.message(&frame) {
                let payload = frame.payload.as_deref();
                self.observe(Observation::Sent { from, to, message: &message, payload });
            }
            self.network.send(self.now, from, to, Transmission::Frame(frame), delay);
        }
    }

    fn give_credit(&mut self, from: HostId, peer: PeerId, segments: u32) {
        let Some(to) = self.linked(from, peer) else { return };
        self.observe(Observation::Granted { from, to, segments });
        let filters = self.filters.iter_mut();
        let segments = filters.fold(segments, |segments, filter| filter.on_credit(from, to, segments));
        self.network.send(self.now, from, to, Transmission::Credit(segments), Duration::ZERO);
    }

    /// Dials the host that the address names, if that host has the peer.
    fn dial(&mut self, from: HostId, contact: &Contact) {
        if self.linked(from, contact.peer).is_some() {
            return;
        }
        let homes = self.hosts_by_peer.get(&contact.peer).map_or(&[][..], Vec::as_slice);
        let is_named = |home: &&HostId| contact.addresses.contains(&address(**home));
        let named = if homes.len() > 1 { homes.iter().find(is_named) } else { None };
        if let Some(&to) = named.or(homes.first()).filter(|to| **to != from) {
            self.network.dial(self.now, from, to);
        }
    }

    fn linked(&self, from: HostId, peer: PeerId) -> Option<HostId> {
        let homes = self.hosts_by_peer.get(&peer)?;
        homes.iter().copied().find(|&home| self.network.is_up(from, home))
    }

    // Answers.

    /// Schedules the network's next events, and passes on what it has delivered now.
    fn schedule_network(&mut self) {
        self.schedule_network_events();
        for delivery in self.network.take_deliveries() {
            let Some((host, input)) = self.receive(delivery) else { continue };
            self.input_later(self.now, host, input);
        }
    }

    fn schedule_network_events(&mut self) {
        for (at, event) in self.network.take_scheduled() {
            self.queue.push(at, ScheduledEvent::Network(event));
        }
    }

    /// A delivery as an input of its receiver's node; `None` if that process has ended.
    fn receive(&mut self, Delivery { to, from, event }: Delivery) -> Option<(HostId, Input)> {
        let peer = self.hosts[from.index()].peer;
        let input = match event {
            LinkEvent::Up => Input::LinkUp(peer),
            LinkEvent::Down(_) if !self.filters.iter_mut().all(|filter| filter.hears_link_down(to, from)) => {
                return None;
            }
            LinkEvent::Down(reason) => Input::LinkDown { peer, reason: reason.to_owned() },
            LinkEvent::Credit(segments) => Input::Credit { peer, segments },
            LinkEvent::Frame(frame) => {
                self.trace.frame(self.now, from, to, &frame);
                Input::Frame { from: peer, frame: self.received(to, frame) }
            }
        };
        Some((to, input))
    }

    /// The frame as its receiver holds it: bytes, in a buffer from the receiver's pool.
    fn received(&self, to: HostId, frame: Frame) -> Frame {
        let Some(process) = &self.hosts[to.index()].process else { return frame };
        let payload = frame.payload.map(|sent| {
            let mut payload = process.segments.take_bytes(sent.byte_count());
            payload.bytes_mut().copy_from_slice(sent.bytes());
            payload
        });
        Frame { head: frame.head, payload }
    }

    fn input_later(&mut self, at: Instant, host: HostId, input: Input) {
        let start = self.hosts[host.index()].starts;
        self.queue.push(at, ScheduledEvent::Input { host, start, input });
    }

    fn schedule_tick(&mut self, host: HostId, start: u32) {
        let Some(process) = self.process_mut(host, start) else { return };
        if let Some(deadline) = process.node.deadline() {
            self.tick_at(deadline, host, start);
        }
    }

    /// Schedules a tick of a node at `at` or earlier.
    fn tick_at(&mut self, at: Instant, host: HostId, start: u32) {
        let at = at.max(self.now);
        let Some(process) = self.process_mut(host, start) else { return };
        if process.wake.is_none_or(|wake| at < wake) {
            process.wake = Some(at);
            self.queue.push(at, ScheduledEvent::Tick { host, start });
        }
    }

    fn observe(&mut self, observation: Observation<'_>) {
        let world = World {
            now: self.now,
            hosts: &self.hosts,
            hosts_by_peer: &self.hosts_by_peer,
            network: &self.network,
        };
        self.invariants.observe(&observation, &world);
    }

    /// Checks the invariants that waiting alone can violate.
    pub fn check_periodically(&mut self) {
        let world = World {
            now: self.now,
            hosts: &self.hosts,
            hosts_by_peer: &self.hosts_by_peer,
            network: &self.network,
        };
        self.invariants.check_periodically(&world);
    }

    fn process_mut(&mut self, host: HostId, start: u32) -> Option<&mut Process> {
        let place = &mut self.hosts[host.index()];
        if place.starts == start { place.process.as_mut() } else { None }
    }
}
