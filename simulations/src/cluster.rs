//! A cluster of nodes on one virtual clock.
//!
//! # How it works
//! [`Cluster::tick`] takes the earliest event, sets the clock, lets the node handle it, and schedules what the node wants:
//! frames arrive after a link's latency and jitter, in order per link and as bytes; jobs are computed at once and answered
//! after a modelled time.
//!
//! # Not here
//! Bandwidth, disks, partitions: links only delay, and faults are [`Cluster::kill`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use peergrad::io::{Event, Input, Output};
use peergrad::loader::Loader;
use peergrad::memo::Memo;
use peergrad::node::{Config, Node, Role};
use peergrad_protocol::{Buffer, Frame, Incarnation, Instant, PeerId, Pool, RunId};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::queue::Queue;

/// Nodes, their links, and what happens next.
pub struct Cluster {
    settings: Settings,
    nodes: BTreeMap<PeerId, Simulated>,
    queue: Queue<(PeerId, Happening)>,
    now: Instant,
    generator: ChaCha8Rng,
    /// Both directions of every link that is up.
    links: BTreeSet<(PeerId, PeerId)>,
    /// By direction: when the last thing sent on it arrives.
    last_arrival: BTreeMap<(PeerId, PeerId), Instant>,
    trace: blake3::Hasher,
    /// What the nodes told their users, in order.
    pub events: Vec<(Instant, PeerId, Event)>,
}

/// What the world is like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Decides every delay.
    pub seed: u64,
    /// Time that anything spends on a link at least.
    pub latency: Duration,
    /// At most so much is added to it.
    pub jitter: Duration,
    /// Modelled computing time for each sample touched.
    pub sample_time: Duration,
    /// Time from a crash until others notice.
    pub detection: Duration,
    /// Time that a peer with a data file takes to read it.
    pub disk_time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            latency: Duration::from_micros(200),
            jitter: Duration::from_micros(300),
            sample_time: Duration::from_micros(20),
            detection: Duration::from_secs(1),
            disk_time: Duration::ZERO,
        }
    }
}

struct Simulated {
    node: Node,
    data: Option<Arc<[u8]>>,
    segments: Pool,
    /// The earliest tick that is scheduled.
    wake: Option<Instant>,
}

/// Something on its way to a node; frames as bytes, so that the codec is always exercised.
enum Happening {
    Input(Input),
    Frame { from: PeerId, head: Vec<u8>, payload: Option<Vec<u8>> },
    Tick,
}

impl Cluster {
    /// An empty cluster at time zero.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            generator: ChaCha8Rng::seed_from_u64(settings.seed),
            settings,
            nodes: BTreeMap::new(),
            queue: Queue::default(),
            now: Instant::default(),
            links: BTreeSet::new(),
            last_arrival: BTreeMap::new(),
            trace: blake3::Hasher::new(),
            events: Vec::new(),
        }
    }

    /// Starts the founder of a run; it has `data`, and waits for `peers` peers.
    pub fn found(
        &mut self,
        name: u8,
        peers: usize,
        specification: Arc<[u8]>,
        loader: Arc<dyn Loader>,
        data: Option<Arc<[u8]>>,
    ) -> PeerId {
        let role = Role::Founder { specification, nonce: [7; 32], peers };
        self.start(name, role, loader, data)
    }

    /// Starts a joiner that knows the address of `bootstrap`.
    pub fn join(
        &mut self,
        name: u8,
        run: Option<RunId>,
        bootstrap: PeerId,
        loader: Arc<dyn Loader>,
        data: Option<Arc<[u8]>>,
    ) -> PeerId {
        let peer = self.start(name, Role::Joiner { run }, loader, data);
        self.connect(peer, bootstrap);
        peer
    }

    fn start(&mut self, name: u8, role: Role, loader: Arc<dyn Loader>, data: Option<Arc<[u8]>>) -> PeerId {
        // Hashed, so that the order of names is not the order of ranks.
        let peer = PeerId(*blake3::hash(&[name]).as_bytes());
        let segments = Pool::new(64);
        let config = Config {
            peer,
            incarnation: Incarnation(1),
            addresses: vec![format!("/memory/{name}")],
            weight: 1,
            loader,
            segments: segments.clone(),
            memo: Memo::default(),
            restored: None,
            role,
        };
        self.nodes.insert(peer, Simulated { node: Node::new(config), data, segments, wake: None });
        self.queue.push(self.now, (peer, Happening::Tick));
        peer
    }

    /// Brings up the link between two peers, if both are alive and it is not up.
    fn connect(&mut self, a: PeerId, b: PeerId) {
        let is_new =
            self.nodes.contains_key(&a) && self.nodes.contains_key(&b) && !self.links.contains(&(a, b));
        if !is_new {
            return;
        }
        for (from, to) in [(a, b), (b, a)] {
            self.links.insert((from, to));
            self.arrive(from, to, Happening::Input(Input::LinkUp(from)));
        }
    }

    /// Asks a peer to leave.
    pub fn leave(&mut self, peer: PeerId) {
        self.queue.push(self.now, (peer, Happening::Input(Input::Leave)));
    }

    /// Crashes a peer: it is gone at once, and its neighbours notice after a while.
    pub fn kill(&mut self, victim: PeerId) {
        self.nodes.remove(&victim);
        let neighbours: Vec<PeerId> =
            self.links.iter().filter(|(from, _)| *from == victim).map(|(_, to)| *to).collect();
        for peer in neighbours {
            self.links.remove(&(victim, peer));
            self.links.remove(&(peer, victim));
            let down = Input::LinkDown { peer: victim, reason: "killed".to_owned() };
            self.queue.push(self.now.after(self.settings.detection), (peer, Happening::Input(down)));
        }
    }

    /// Lets one event happen. False if nothing is left to happen.
    pub fn tick(&mut self) -> bool {
        let Some((at, (peer, happening))) = self.queue.pop() else { return false };
        self.now = at;
        let Some(simulated) = self.nodes.get_mut(&peer) else { return true };
        let input = match happening {
            Happening::Input(input) => input,
            Happening::Tick => {
                simulated.wake = None;
                Input::Tick
            }
            Happening::Frame { from, head, payload } => {
                self.trace.update(&at.0.to_le_bytes()).update(&peer.0).update(&head);
                let payload = payload.map(|bytes| filled(&simulated.segments, &bytes));
                Input::Frame { from, frame: Frame { head, payload } }
            }
        };
        let mut out = Vec::new();
        simulated.node.handle(at, input, &mut out);
        for output in out {
            self.carry_out(peer, output);
        }
        self.schedule_wake(peer);
        true
    }

    fn carry_out(&mut self, peer: PeerId, output: Output) {
        match output {
            Output::Send { to, frame } => {
                let payload = frame.payload.as_ref().map(|payload| payload.bytes().to_vec());
                self.arrive(peer, to, Happening::Frame { from: peer, head: frame.head, payload });
            }
            Output::Credit { to, segments } => {
                self.arrive(peer, to, Happening::Input(Input::Credit { peer, segments }));
            }
            Output::Dial(contact) => self.connect(peer, contact.peer),
            Output::Hangup(other) => {
                // The one who hangs up knows it: only the other end is told.
                let was_up = self.links.remove(&(peer, other));
                self.links.remove(&(other, peer));
                if was_up {
                    let down = Input::LinkDown { peer, reason: "hung up".to_owned() };
                    self.queue.push(self.now, (other, Happening::Input(down)));
                }
            }
            Output::Compute(job) => {
                let duration = self.settings.sample_time * u32::try_from(job.cost).unwrap_or(u32::MAX);
                let computed = Input::Computed { job: job.id, result: Ok((job.work)()) };
                self.queue.push(self.now.after(duration), (peer, Happening::Input(computed)));
            }
            Output::Locate(_) => {
                let data = self.nodes[&peer].data.clone();
                // That there is no file is known at once.
                let duration = data.as_ref().map_or(Duration::ZERO, |_| self.settings.disk_time);
                self.queue.push(self.now.after(duration), (peer, Happening::Input(Input::Located(data))));
            }
            Output::Persist { id, .. } => {
                let persisted = Input::Persisted { id, result: Ok(()) };
                self.queue.push(self.now, (peer, Happening::Input(persisted)));
            }
            Output::Event(event) => self.events.push((self.now, peer, event)),
        }
    }

    /// Schedules an arrival at the other end of a link: later than everything sent on it before.
    fn arrive(&mut self, from: PeerId, to: PeerId, happening: Happening) {
        if from != to && !self.links.contains(&(from, to)) {
            return;
        }
        let jitter = self.settings.jitter.as_nanos() as u64;
        let delay = self.settings.latency + Duration::from_nanos(self.generator.next_u64() % (jitter + 1));
        let last = self.last_arrival.entry((from, to)).or_default();
        *last = (*last).max(self.now.after(delay));
        self.queue.push(*last, (to, happening));
    }

    fn schedule_wake(&mut self, peer: PeerId) {
        let Some(simulated) = self.nodes.get_mut(&peer) else { return };
        let Some(deadline) = simulated.node.deadline() else { return };
        if simulated.wake.is_none_or(|wake| deadline < wake) {
            simulated.wake = Some(deadline);
            self.queue.push(deadline.max(self.now), (peer, Happening::Tick));
        }
    }

    /// Runs until nothing is left to happen.
    pub fn run(&mut self) {
        while self.tick() {}
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// A node, to look at.
    #[must_use]
    pub fn node(&self, peer: PeerId) -> &Node {
        &self.nodes[&peer].node
    }

    /// Digest of every frame's time, receiver and header so far: equal for equal seeds.
    #[must_use]
    pub fn trace_hash(&self) -> String {
        self.trace.finalize().to_hex().to_string()
    }
}

/// A pooled copy of a payload that was on the wire.
fn filled(pool: &Pool, bytes: &[u8]) -> Buffer {
    let mut buffer = pool.take_bytes(bytes.len());
    buffer.bytes_mut().copy_from_slice(bytes);
    buffer
}
