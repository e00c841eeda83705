//! Control of hosts, their processes and their lines: the cluster as the fault injector and tests use it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::Input;
use peergrad_core::node::{Config, Node, StartMode};
use peergrad_protocol::{Frame, Incarnation, PeerId, Pool, RunId};
use rand::Rng;

use super::Cluster;
use crate::filters::FrameFilter;
use crate::frame_faults::FaultyFrames;
use crate::history::{PeerHistory, PeerState};
use crate::host::{Crash, EntryMode, Host, HostId, HostSetup, Process, TaskFault, address, peer_of};
use crate::network::Transmission;
use crate::observation::Observation;
use crate::uplink_report::UplinkReport;

/// What a user asks of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserCommand {
    /// The peer is to leave the run.
    Leave,
    /// The peer of that host is to be expelled.
    Expel(HostId),
    /// The run is to end at all members.
    EndRun,
    /// Table chunks whose replicas are all gone are to be given up.
    DeclareLost,
    /// The peer is busy for so long: the others are to wait for it.
    Busy(Duration),
}

/// Whether other peers can dial a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialability {
    /// They can.
    Public,
    /// They cannot: the peer has to dial them.
    Hidden,
}

impl Cluster {
    // Hosts and processes.

    /// Adds a host with a new identity.
    pub fn add(&mut self, setup: HostSetup) -> HostId {
        self.add_as(peer_of(self.hosts.next_id()), setup)
    }

    /// Adds a host whose disk is a copy of another host's: two machines with one identity.
    pub fn add_clone(&mut self, of: HostId) -> HostId {
        let original = self.hosts.get(of);
        let (peer, mut setup, incarnation) = (original.peer, original.setup.clone(), original.incarnation);
        // A durable record is valid only on the disk where it was written.
        setup.disk.forget();
        let copy = self.add_as(peer, setup);
        self.hosts.get_mut(copy).incarnation = incarnation;
        copy
    }

    fn add_as(&mut self, peer: PeerId, setup: HostSetup) -> HostId {
        self.network.add(peer);
        self.record.history.peers.push(PeerHistory { peer, spans: vec![], notes: vec![] });
        self.hosts.add(Host::new(peer, setup, self.schedule.now()))
    }

    /// Starts a process on a host: the first one, or another after the last one crashed or ended.
    ///
    /// # Panics
    /// If a process is running there.
    pub fn start(&mut self, host: HostId, entry: EntryMode) {
        let contacts = match &entry {
            EntryMode::Found { .. } => vec![],
            EntryMode::Join { bootstraps, .. } => bootstraps.clone(),
        };
        let start_mode = match entry {
            EntryMode::Found { specification, peers } => {
                self.run = Some(RunId::derive(&specification, &NONCE));
                StartMode::Bootstrap { specification, nonce: NONCE, peers, from: None }
            }
            EntryMode::Join { run, .. } => StartMode::Join { run },
        };
        let draw = (self.generator.next_u64() % 256) as u8;
        let now = self.now();
        let place = self.hosts.get_mut(host);
        assert!(place.process.is_none(), "one process a host");
        place.starts += 1;
        place.has_crashed = false;
        place.incarnation += 1;
        place.awake_since = now;
        let segments = Pool::new(SEGMENTS_KEPT);
        let config = Config {
            peer: place.peer,
            incarnation: Incarnation::of_start(place.incarnation, draw),
            addresses: vec![address(host)],
            capacity: place.setup.capacity,
            loader: Arc::clone(&place.setup.loader),
            segments: segments.clone(),
            cache: self.cache.clone(),
            restored: place.setup.disk.record().map(|record| record.to_bytes().into()),
            saved: place.setup.disk.checkpoints().map(|checkpoint| checkpoint.saved.clone()).collect(),
            start_mode,
        };
        place.process = Some(Process {
            node: Node::new(config),
            segments,
            wake: None,
            linked: BTreeSet::new(),
            uplink: UplinkReport::default(),
            newest_record: None,
            written_record: None,
            disk_fails: false,
        });
        self.network.start(host);
        self.record.history.set_state(host, now, PeerState::Joining);
        let process = self.hosts.newest_process(host);
        self.schedule.push_tick(now, process, &mut self.hosts);
        for contact in contacts {
            self.network.dial(now, host, contact);
        }
        self.schedule_network();
    }

    /// Ends a process at once.
    pub fn crash(&mut self, host: HostId, crash: Crash) {
        let now = self.now();
        let place = self.hosts.get_mut(host);
        if place.process.take().is_none() {
            return;
        }
        place.has_crashed = true;
        place.asleep = None;
        place.setup.disk.crash();
        self.network.crash(now, host, crash);
        self.record.history.set_state(host, now, PeerState::Down);
        let process = self.hosts.newest_process(host);
        self.environment(process).observe(&Observation::Crashed { host });
        self.schedule_network();
    }

    /// A user asks something of the peer on a host.
    pub fn command(&mut self, host: HostId, command: UserCommand) {
        let input = match command {
            UserCommand::Leave => Input::Leave,
            UserCommand::Expel(other) => Input::Expel(self.hosts.peer(other)),
            UserCommand::EndRun => Input::EndRun,
            UserCommand::DeclareLost => Input::DeclareLost,
            UserCommand::Busy(time) => Input::Busy(time),
        };
        self.note_order(host, command);
        self.input_soon(host, input);
    }

    /// Notifies a peer whether others can dial it.
    pub fn notify_reachability(&mut self, host: HostId, dialability: Dialability) {
        let is_reachable = dialability == Dialability::Public;
        self.input_soon(host, Input::ReachabilityChanged { addresses: vec![address(host)], is_reachable });
    }

    /// The machine goes to sleep: its process receives nothing until [`Cluster::wake`].
    pub fn sleep(&mut self, host: HostId) {
        let now = self.now();
        let place = self.hosts.get_mut(host);
        if place.process.is_some() && place.asleep.is_none() {
            place.asleep = Some(VecDeque::new());
            self.network.sleep(now, host);
            self.record.history.set_state(host, now, PeerState::Paused);
            self.schedule_network();
        }
    }

    /// The machine wakes up and its process receives what arrived meanwhile.
    pub fn wake(&mut self, host: HostId) {
        let now = self.now();
        let place = self.hosts.get_mut(host);
        let Some(missed) = place.asleep.take() else { return };
        place.awake_since = now;
        self.network.wake(now, host);
        let spans = &self.record.history.peers[host.index()].spans;
        let before = spans.iter().rev().map(|span| span.state).find(|state| *state != PeerState::Paused);
        self.record.history.set_state(host, now, before.unwrap_or(PeerState::Joining));
        // Passed on at once, before other events of this instant, which came later.
        let process = self.hosts.newest_process(host);
        for input in missed {
            self.input(process, input);
        }
        self.schedule_network();
        self.schedule.push_tick(now, process, &mut self.hosts);
    }

    /// The configuration of a host, for changes.
    pub fn setup_mut(&mut self, host: HostId) -> &mut HostSetup {
        &mut self.hosts.get_mut(host).setup
    }

    /// Sets or clears a fault of the task on a host.
    pub fn set_task_fault(&mut self, host: HostId, task_fault: Option<TaskFault>) {
        self.hosts.get_mut(host).task_fault = task_fault;
    }

    // Links.

    /// Blocks frames from one host to another until [`Cluster::heal`].
    pub fn cut(&mut self, from: HostId, to: HostId) {
        self.network.cut(self.now(), from, to);
        self.schedule_network();
    }

    /// Removes one such block.
    pub fn heal(&mut self, from: HostId, to: HostId) {
        self.network.heal(self.now(), from, to);
        self.schedule_network();
    }

    /// Changes the rates of a host's line, in bits a second.
    pub fn throttle(&mut self, host: HostId, up: Option<u64>, down: Option<u64>) {
        self.network.throttle(host, up, down);
    }

    /// The frames of a host have a fault from now on.
    pub(crate) fn break_frames(&mut self, faulty: FaultyFrames) {
        self.hosts.get_mut(faulty.host).has_faulty_frames = true;
        self.add_filter(Box::new(faulty));
    }

    /// Adds a filter after the existing ones.
    pub fn add_filter(&mut self, filter: Box<dyn FrameFilter>) {
        self.filters.add(filter);
    }

    /// Sends a frame in the name of the process there.
    pub fn forge(&mut self, from: HostId, to: HostId, frame: Frame) {
        self.hosts.get_mut(from).forged.add(to, frame.priority(), 1);
        self.network.send(self.now(), from, to, Transmission::Frame(frame), Duration::ZERO);
        self.schedule_network();
    }
}

/// The random bytes that are part of the run's id; their value does not matter.
const NONCE: [u8; 32] = [7; 32];
/// How many idle segment buffers a simulated peer keeps.
const SEGMENTS_KEPT: usize = 8;
