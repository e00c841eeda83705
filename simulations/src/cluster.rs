//! A cluster of nodes on one virtual clock.
//!
//! # How it works
//! [`Cluster::tick`] takes the earliest event, sets the clock, lets it happen, and carries out what the nodes want:
//! ```text
//! queue, by (time, sequence) --> input of one node --> its outputs --+--> network: frames as bytes, credit, dials
//!    ^                                                               +--> pace: jobs, done at once, answered later
//!    |                                                               +--> disk: records, answered later
//!    '------------------------- later events ------------------------+--> laws and history
//! ```
//! One seed decides everything: delays, speeds, luck. Frames are hashed into a trace as they arrive, so two runs are the
//! same if their hashes are.
//!
//! # Not here
//! What goes wrong and when: [`crate::faults`]. What must hold: [`crate::laws`].

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use peergrad::io::{Event, Input, Job, Output, Panicked, PersistId};
use peergrad::loader::Loader;
use peergrad::memo::Memo;
use peergrad::node::{Config, Node, Role, Standing};
use peergrad_protocol::message::Contact;
use peergrad_protocol::{Frame, Incarnation, Instant, PeerId, Pool, RunId};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::disk::Disk;
use crate::history::{History, State};
use crate::host::HostId;
use crate::laws::{Laws, Observation, Violation};
use crate::links::Links;
use crate::network::{Cargo, Delivered, Delivery, Move, Network};
use crate::pace::Pace;
use crate::queue::Queue;
use crate::rules::{Envelope, Rule, Verdict};
use crate::trace::Trace;

/// Nodes, their hosts and links, and what happens next.
pub struct Cluster {
    now: Instant,
    queue: Queue<Happening>,
    hosts: Vec<Host>,
    /// The hosts of a peer: more than one only if somebody copied its identity.
    homes: BTreeMap<PeerId, Vec<HostId>>,
    network: Network,
    rules: Vec<Box<dyn Rule>>,
    generator: ChaCha8Rng,
    laws: Laws,
    trace: Trace,
    history: History,
    events: Vec<(Instant, HostId, Event)>,
    /// What members of a view compute alike is computed once here.
    memo: Memo,
    run: Option<RunId>,
    running_count: usize,
}

/// What a host is made of.
#[derive(Clone)]
pub struct HostSetup {
    /// Turns the specification into a task there.
    pub loader: Arc<dyn Loader>,
    /// The data file, where it lies on that machine.
    pub data: Option<Arc<[u8]>>,
    /// How fast it computes.
    pub pace: Pace,
    /// How its disk behaves.
    pub disk: Disk,
    /// Time that it takes to read the data file.
    pub reading_time: Duration,
    /// How much it offers to own.
    pub weight: u8,
}

/// How a process comes into the run.
#[derive(Clone)]
pub enum Entry {
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

struct Host {
    peer: PeerId,
    setup: HostSetup,
    incarnation: u64,
    process: Option<Process>,
    /// Processes that have been started here; inputs for an earlier one are dropped.
    starts: u32,
    /// What arrived while the machine slept.
    asleep: Option<VecDeque<Input>>,
    /// When the process was started, or the machine last woke up.
    attentive_since: Instant,
    trouble: Option<Trouble>,
}

struct Process {
    node: Node,
    segments: Pool,
    /// The earliest tick that is scheduled.
    wake: Option<Instant>,
}

/// What is wrong with a host's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Its next job panics.
    Panic,
    /// Its jobs never end.
    Hang,
}

/// Something that is about to happen.
enum Happening {
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
    /// A record reaches the disk.
    Written {
        host: HostId,
        start: u32,
        id: PersistId,
        record: Arc<[u8]>,
    },
    Network(Move),
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
            homes: BTreeMap::new(),
            network: Network::new(links, generator.next_u64()),
            rules: Vec::new(),
            generator,
            laws: Laws::default(),
            trace: Trace::default(),
            history: History::default(),
            events: Vec::new(),
            memo: Memo::default(),
            run: None,
            running_count: 0,
        }
    }

    // Hosts and processes.

    /// Adds a host with an identity of its own.
    pub fn add(&mut self, setup: HostSetup) -> HostId {
        self.add_as(peer_of(HostId(self.hosts.len() as u32)), setup)
    }

    /// Adds a host whose disk is a copy of another one's: two machines, one identity.
    pub fn add_copy(&mut self, of: HostId) -> HostId {
        let original = &self.hosts[of.index()];
        let (peer, setup, incarnation) = (original.peer, original.setup.clone(), original.incarnation);
        let copy = self.add_as(peer, setup);
        self.hosts[copy.index()].incarnation = incarnation;
        copy
    }

    fn add_as(&mut self, peer: PeerId, setup: HostSetup) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        self.hosts.push(Host {
            peer,
            setup,
            incarnation: 0,
            process: None,
            starts: 0,
            asleep: None,
            attentive_since: self.now,
            trouble: None,
        });
        self.homes.entry(peer).or_default().push(id);
        self.network.add(peer);
        self.history.lanes.push(crate::history::Lane { peer, spans: vec![], notes: vec![] });
        id
    }

    /// Starts a process on a host: the first one, or after the one before has crashed or ended.
    ///
    /// # Panics
    /// If one is running there.
    pub fn start(&mut self, host: HostId, entry: Entry) {
        let contacts = match &entry {
            Entry::Found { .. } => vec![],
            Entry::Join { bootstraps, .. } => bootstraps.clone(),
        };
        let role = match entry {
            Entry::Found { specification, peers } => {
                self.run = Some(RunId::derive(&specification, &NONCE));
                Role::Founder { specification, nonce: NONCE, peers }
            }
            Entry::Join { run, .. } => Role::Joiner { run },
        };
        let place = &mut self.hosts[host.index()];
        assert!(place.process.is_none(), "one process a host");
        place.starts += 1;
        place.incarnation += 1;
        place.attentive_since = self.now;
        let segments = Pool::new(SEGMENTS_KEPT);
        let config = Config {
            peer: place.peer,
            incarnation: Incarnation(place.incarnation),
            addresses: vec![address(host)],
            weight: place.setup.weight,
            loader: Arc::clone(&place.setup.loader),
            segments: segments.clone(),
            memo: self.memo.clone(),
            restored: place.setup.disk.record().cloned(),
            role,
        };
        place.process = Some(Process { node: Node::new(config), segments, wake: None });
        let start = place.starts;
        self.running_count += 1;
        self.network.start(host);
        self.history.become_state(host, self.now, State::Joining);
        self.queue.push(self.now, Happening::Tick { host, start });
        for contact in contacts {
            self.network.dial(self.now, host, contact);
        }
        self.settle_network();
    }

    /// Ends a process in the middle of whatever it does. With a reset its connections say so; without, the power is gone.
    pub fn crash(&mut self, host: HostId, has_reset: bool) {
        let place = &mut self.hosts[host.index()];
        if place.process.take().is_none() {
            return;
        }
        self.running_count -= 1;
        place.asleep = None;
        place.setup.disk.crash();
        self.network.crash(self.now, host, has_reset);
        self.history.become_state(host, self.now, State::Down);
        self.observe(Observation::Crashed { host });
        self.settle_network();
    }

    /// Asks a peer to leave.
    pub fn leave(&mut self, host: HostId) {
        self.input_later(self.now, host, Input::Leave);
    }

    /// The machine falls asleep: nothing reaches its process until [`Cluster::wake`].
    pub fn sleep(&mut self, host: HostId) {
        let place = &mut self.hosts[host.index()];
        if place.process.is_some() && place.asleep.is_none() {
            place.asleep = Some(VecDeque::new());
            self.network.sleep(self.now, host);
            self.history.become_state(host, self.now, State::Paused);
            self.settle_network();
        }
    }

    /// The machine wakes up and finds what arrived meanwhile.
    pub fn wake(&mut self, host: HostId) {
        let place = &mut self.hosts[host.index()];
        let Some(missed) = place.asleep.take() else { return };
        place.attentive_since = self.now;
        self.network.wake(host);
        let spans = &self.history.lanes[host.index()].spans;
        let before = spans.iter().rev().map(|span| span.state).find(|state| *state != State::Paused);
        self.history.become_state(host, self.now, before.unwrap_or(State::Joining));
        for input in missed {
            self.input_later(self.now, host, input);
        }
        let start = self.hosts[host.index()].starts;
        self.queue.push(self.now, Happening::Tick { host, start });
    }

    /// What a host is made of, to be changed.
    pub fn setup_mut(&mut self, host: HostId) -> &mut HostSetup {
        &mut self.hosts[host.index()].setup
    }

    /// From now on something is wrong with the task there, or no longer.
    pub fn set_trouble(&mut self, host: HostId, trouble: Option<Trouble>) {
        self.hosts[host.index()].trouble = trouble;
    }

    // Links.

    /// Nothing gets from one host to another any more, until [`Cluster::heal`].
    pub fn cut(&mut self, from: HostId, to: HostId) {
        self.network.cut(self.now, from, to);
        self.settle_network();
    }

    /// Undoes one cut.
    pub fn heal(&mut self, from: HostId, to: HostId) {
        self.network.heal(self.now, from, to);
        self.settle_network();
    }

    /// Changes a host's line; bits a second.
    pub fn throttle(&mut self, host: HostId, up: Option<u64>, down: Option<u64>) {
        self.network.throttle(host, up, down);
    }

    /// Adds a rule behind those that are there.
    pub fn add_rule(&mut self, rule: Box<dyn Rule>) {
        self.rules.push(rule);
    }

    /// Sends a frame as if the process there had.
    pub fn forge(&mut self, from: HostId, to: HostId, frame: Frame) {
        self.network.send(self.now, from, to, Cargo::Frame(frame), Duration::ZERO);
        self.settle_network();
    }

    // Time.

    /// Lets one event happen. False if nothing is left to happen.
    pub fn tick(&mut self) -> bool {
        let Some((at, happening)) = self.queue.pop() else { return false };
        self.now = at;
        match happening {
            Happening::Input { host, start, input } => self.input(host, start, input),
            Happening::Tick { host, start } => {
                if let Some(process) = self.process_mut(host, start) {
                    process.wake = None;
                    self.input(host, start, Input::Tick);
                }
            }
            Happening::Written { host, start, id, record } => {
                if self.process_mut(host, start).is_some() {
                    let result = self.hosts[host.index()].setup.disk.write(record);
                    self.input(host, start, Input::Persisted { id, result });
                }
            }
            Happening::Network(event) => {
                self.network.happen(at, event);
                self.schedule_moves();
                for delivery in self.network.take_deliveries() {
                    let Some((host, input)) = self.receive(delivery) else { continue };
                    self.input(host, self.hosts[host.index()].starts, input);
                }
            }
        }
        true
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.queue.next_at()
    }

    /// Moves the clock to `at`, where nothing happens before.
    pub fn advance_to(&mut self, at: Instant) {
        assert!(self.next_at().is_none_or(|next| next >= at), "nothing is skipped");
        self.now = self.now.max(at);
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Hands one input to a node and carries out what it wants.
    fn input(&mut self, host: HostId, start: u32, input: Input) {
        if self.process_mut(host, start).is_none() {
            return;
        }
        let place = &mut self.hosts[host.index()];
        if let Some(missed) = &mut place.asleep {
            // A tick that was missed is asked for again.
            if !matches!(input, Input::Tick) {
                missed.push_back(input);
            }
            return;
        }
        let process = place.process.as_mut().expect("it was just there");
        let mut out = Vec::new();
        process.node.handle(self.now, input, &mut out);
        for output in out {
            self.carry_out(host, start, output);
        }
        self.settle_network();
        self.schedule_tick(host, start);
    }

    fn carry_out(&mut self, host: HostId, start: u32, output: Output) {
        match output {
            Output::Send { to, frame } => self.send(host, to, frame),
            Output::Credit { to, segments } => self.give_credit(host, to, segments),
            Output::Dial(contact) => self.dial(host, &contact),
            Output::Hangup(peer) => {
                if let Some(to) = self.linked(host, peer) {
                    self.network.hang_up(self.now, host, to);
                }
            }
            Output::Compute(job) => self.compute(host, start, job),
            Output::Locate(_) => {
                let setup = &self.hosts[host.index()].setup;
                let data = setup.data.clone();
                // That there is no file is known at once.
                let time = data.as_ref().map_or(Duration::ZERO, |_| setup.reading_time);
                self.input_later(self.now.after(time), host, Input::Located(data));
            }
            Output::Persist { id, record } => {
                let at = self.now.after(self.hosts[host.index()].setup.disk.write_time);
                self.queue.push(at, Happening::Written { host, start, id, record });
            }
            Output::Event(event) => self.tell(host, event),
        }
    }

    /// A job's work is done now, and its answer comes when the host would have it.
    fn compute(&mut self, host: HostId, start: u32, job: Job) {
        let place = &mut self.hosts[host.index()];
        let duration = place.setup.pace.duration(job.cost, &mut self.generator);
        let result = match place.trouble {
            Some(Trouble::Hang) => return,
            Some(Trouble::Panic) => Err(Panicked("planted".to_owned())),
            None => catch_unwind(AssertUnwindSafe(job.work)).map_err(|payload| Panicked(words_of(&*payload))),
        };
        let input = Input::Computed { job: job.id, result };
        self.queue.push(self.now.after(duration), Happening::Input { host, start, input });
    }

    fn send(&mut self, from: HostId, peer: PeerId, frame: Frame) {
        if peer == self.hosts[from.index()].peer {
            return self.input_later(self.now, from, Input::Frame { from: peer, frame });
        }
        let Some(to) = self.linked(from, peer) else { return };
        let envelope = Envelope { at: self.now, from, to, frame: &frame };
        let mut verdicts = self.rules.iter_mut().map(|rule| rule.on_frame(&envelope));
        let verdict = verdicts.find(|verdict| !matches!(verdict, Verdict::Pass)).unwrap_or(Verdict::Pass);
        let (frames, delay) = match verdict {
            Verdict::Pass => (vec![frame], Duration::ZERO),
            Verdict::Drop => return,
            Verdict::Delay(delay) => (vec![frame], delay),
            Verdict::Replace(frames) => (frames, Duration::ZERO),
        };
        for frame in frames {
            self.history.traffic.add(self.now, from, to, frame.byte_count() as u64);
            if let Ok(message) = frame.decode() {
                let payload = frame.payload.as_deref();
                self.observe(Observation::Sent { from, to, message: &message, payload });
            }
            self.network.send(self.now, from, to, Cargo::Frame(frame), delay);
        }
    }

    fn give_credit(&mut self, from: HostId, peer: PeerId, segments: u32) {
        let Some(to) = self.linked(from, peer) else { return };
        self.observe(Observation::Granted { from, to, segments });
        let rules = self.rules.iter_mut();
        let segments = rules.fold(segments, |segments, rule| rule.on_credit(from, to, segments));
        self.network.send(self.now, from, to, Cargo::Credit(segments), Duration::ZERO);
    }

    /// Dials the host that the address names, if the peer is there.
    fn dial(&mut self, from: HostId, contact: &Contact) {
        let homes = self.homes.get(&contact.peer).map_or(&[][..], Vec::as_slice);
        let is_named = |home: &&HostId| contact.addresses.contains(&address(**home));
        if let Some(&to) = homes.iter().find(is_named).or(homes.first())
            && to != from
            && self.linked(from, contact.peer).is_none()
        {
            self.network.dial(self.now, from, to);
        }
    }

    fn linked(&self, from: HostId, peer: PeerId) -> Option<HostId> {
        let homes = self.homes.get(&peer)?;
        homes.iter().copied().find(|&home| self.network.is_up(from, home))
    }

    // What comes back.

    /// Schedules what the network is about to do, and what it has delivered at once.
    fn settle_network(&mut self) {
        self.schedule_moves();
        for delivery in self.network.take_deliveries() {
            let Some((host, input)) = self.receive(delivery) else { continue };
            self.input_later(self.now, host, input);
        }
    }

    fn schedule_moves(&mut self) {
        for (at, event) in self.network.take_moves() {
            self.queue.push(at, Happening::Network(event));
        }
    }

    /// A delivery as its receiver's node hears of it.
    fn receive(&mut self, Delivery { to, from, what }: Delivery) -> Option<(HostId, Input)> {
        let peer = self.hosts[from.index()].peer;
        let input = match what {
            Delivered::Up => Input::LinkUp(peer),
            Delivered::Down(_) if !self.rules.iter_mut().all(|rule| rule.is_told(to, from)) => return None,
            Delivered::Down(reason) => Input::LinkDown { peer, reason: reason.to_owned() },
            Delivered::Credit(segments) => Input::Credit { peer, segments },
            Delivered::Frame(frame) => {
                self.trace.frame(self.now, from, to, &frame);
                Input::Frame { from: peer, frame: self.received(to, frame) }
            }
        };
        Some((to, input))
    }

    /// The frame as its receiver holds it: bytes, in a buffer of its own pool.
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
        self.queue.push(at, Happening::Input { host, start, input });
    }

    fn schedule_tick(&mut self, host: HostId, start: u32) {
        let Some(process) = self.process_mut(host, start) else { return };
        let Some(deadline) = process.node.deadline() else { return };
        if process.wake.is_none_or(|wake| deadline < wake) {
            process.wake = Some(deadline);
            self.queue.push(deadline.max(self.now), Happening::Tick { host, start });
        }
    }

    /// A node tells its user something.
    fn tell(&mut self, host: HostId, event: Event) {
        match &event {
            Event::Installed { view, digest, shard } => {
                self.history.installed(host, self.now, view, *digest, *shard);
            }
            Event::Began => {
                self.history.began.get_or_insert(self.now);
            }
            Event::Committed(committed) => self.history.committed(host, self.now, *committed),
            Event::Violation { peer, reject } => {
                let by = self.homes.get(peer).map_or("?".to_owned(), |homes| homes[0].to_string());
                self.history.note(host, self.now, format!("refused what {by} sent: {reject}"));
            }
            Event::Ended(ended) => {
                let is_finished = ended.outcome.is_ok();
                if let Err(failure) = &ended.outcome {
                    self.history.note(host, self.now, format!("stopped: {failure}"));
                }
                self.history.become_state(host, self.now, State::Ended { is_finished });
            }
            _ => {}
        }
        self.trace.event(self.now, host, &event);
        self.observe(Observation::Told { host, event: &event });
        if let Event::Ended(_) = event {
            // The process is over once it has said goodbye.
            self.hosts[host.index()].process = None;
            self.running_count -= 1;
            self.network.part(self.now, host);
        }
        self.events.push((self.now, host, event));
    }

    fn observe(&mut self, observation: Observation<'_>) {
        let world = World { now: self.now, hosts: &self.hosts, homes: &self.homes };
        self.laws.observe(&observation, &world);
    }

    /// Checks what only time can break.
    pub fn take_census(&mut self) {
        let world = World { now: self.now, hosts: &self.hosts, homes: &self.homes };
        self.laws.take_census(&world);
    }

    fn process_mut(&mut self, host: HostId, start: u32) -> Option<&mut Process> {
        let place = &mut self.hosts[host.index()];
        if place.starts == start { place.process.as_mut() } else { None }
    }
}

// Looking.
impl Cluster {
    /// What the laws check from now on.
    pub fn watch(&mut self, laws: Laws) {
        self.laws = laws;
    }

    /// What was against a law, in order.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.laws.violations()
    }

    /// Hosts, those without a process included.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len() as u32).map(HostId)
    }

    /// The peer on a host.
    #[must_use]
    pub fn peer(&self, host: HostId) -> PeerId {
        self.hosts[host.index()].peer
    }

    /// The first host of a peer.
    #[must_use]
    pub fn host_of(&self, peer: PeerId) -> Option<HostId> {
        self.homes.get(&peer).map(|homes| homes[0])
    }

    /// Where the node on a host is; `None` if no process runs there.
    #[must_use]
    pub fn standing(&self, host: HostId) -> Option<Standing> {
        self.hosts[host.index()].process.as_ref().map(|process| process.node.standing())
    }

    /// Whether the machine sleeps.
    #[must_use]
    pub fn is_asleep(&self, host: HostId) -> bool {
        self.hosts[host.index()].asleep.is_some()
    }

    /// Whether anybody founds the run or is in it.
    #[must_use]
    pub fn has_run(&self) -> bool {
        let is_in = |host| matches!(self.standing(host), Some(Standing::Founding | Standing::Member(_)));
        self.hosts().any(is_in)
    }

    /// Processes that have not ended.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.running_count
    }

    /// The names of the laws that are watched over.
    #[must_use]
    pub fn law_names(&self) -> Vec<&'static str> {
        self.laws.names().collect()
    }

    /// The lines between hosts, where nothing else was said.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.network.links
    }

    /// The run that was founded.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        self.run
    }

    /// What the nodes told their users, in order.
    #[must_use]
    pub fn events(&self) -> &[(Instant, HostId, Event)] {
        &self.events
    }

    /// What happened, for looking at.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Something worth a word happened to the peer on a host.
    pub fn note(&mut self, host: HostId, words: &str) {
        self.history.note(host, self.now, words.to_owned());
    }

    /// What happened, for adding to.
    pub fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// What arrived and was told, as one digest and perhaps as lines.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// As [`Cluster::trace`], for asking it to keep lines.
    pub fn trace_mut(&mut self) -> &mut Trace {
        &mut self.trace
    }
}

/// The hosts, as the laws see them.
pub struct World<'a> {
    /// The virtual time.
    pub now: Instant,
    hosts: &'a [Host],
    homes: &'a BTreeMap<PeerId, Vec<HostId>>,
}

impl World<'_> {
    /// Where the node on a host is; `None` if no process runs there.
    #[must_use]
    pub fn standing(&self, host: HostId) -> Option<Standing> {
        self.hosts[host.index()].process.as_ref().map(|process| process.node.standing())
    }

    /// Since when a process runs there on a machine that is awake.
    #[must_use]
    pub fn attentive_since(&self, host: HostId) -> Option<Instant> {
        let place = &self.hosts[host.index()];
        (place.process.is_some() && place.asleep.is_none()).then_some(place.attentive_since)
    }

    /// The peer on a host.
    #[must_use]
    pub fn peer(&self, host: HostId) -> PeerId {
        self.hosts[host.index()].peer
    }

    /// The hosts of a peer.
    #[must_use]
    pub fn homes(&self, peer: PeerId) -> &[HostId] {
        self.homes.get(&peer).map_or(&[], Vec::as_slice)
    }

    /// What really lies on a host's disk.
    #[must_use]
    pub fn record(&self, host: HostId) -> Option<&Arc<[u8]>> {
        self.hosts[host.index()].setup.disk.record()
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len() as u32).map(HostId)
    }
}

/// The peer on a host with an identity of its own: hashed, so that the order of hosts is not the order of ranks.
pub(crate) fn peer_of(host: HostId) -> PeerId {
    PeerId(*blake3::hash(&host.0.to_le_bytes()).as_bytes())
}

/// Where a host can be dialed.
fn address(host: HostId) -> String {
    format!("/memory/{}", host.0)
}

fn words_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}

/// Makes the run's id; any bytes will do.
const NONCE: [u8; 32] = [7; 32];
/// Idle segment buffers that a simulated peer keeps.
const SEGMENTS_KEPT: usize = 8;
