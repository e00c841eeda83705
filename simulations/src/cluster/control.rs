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
use crate::history::{PeerHistory, PeerState};
use crate::host::{EntryMode, Host, HostId, HostSetup, Process, TaskFault, address, peer_of};
use crate::network::Transmission;
use crate::observation::Observation;

impl Cluster {
    // Hosts and processes.

    /// Adds a host with a new identity.
    pub fn add(&mut self, setup: HostSetup) -> HostId {
        self.add_as(peer_of(HostId(self.hosts.len() as u32)), setup)
    }

    /// Adds a host whose disk is a copy of another host's: two machines with one identity.
    pub fn add_clone(&mut self, of: HostId) -> HostId {
        let original = &self.hosts[of.index()];
        let (peer, mut setup, incarnation) = (original.peer, original.setup.clone(), original.incarnation);
        // A durable record is valid only on the disk where it was written.
        setup.disk.forget();
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
            has_crashed: false,
            asleep: None,
            awake_since: self.now,
            task_fault: None,
        });
        self.hosts_by_peer.entry(peer).or_default().push(id);
        self.network.add(peer);
        self.history.peers.push(PeerHistory { peer, spans: vec![], notes: vec![] });
        id
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
        let place = &mut self.hosts[host.index()];
        assert!(place.process.is_none(), "one process a host");
        place.starts += 1;
        place.has_crashed = false;
        place.incarnation += 1;
        place.awake_since = self.now;
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
        place.process =
            Some(Process { node: Node::new(config), segments, wake: None, linked: BTreeSet::new() });
        let start = place.starts;
        self.running_count += 1;
        self.network.start(host);
        self.history.set_state(host, self.now, PeerState::Joining);
        self.tick_at(self.now, host, start);
        for contact in contacts {
            self.network.dial(self.now, host, contact);
        }
        self.schedule_network();
    }

    /// Ends a process at once. With a reset, its connections report it; without, as in a power cut, the other ends hear nothing.
    pub fn crash(&mut self, host: HostId, has_reset: bool) {
        let place = &mut self.hosts[host.index()];
        if place.process.take().is_none() {
            return;
        }
        self.running_count -= 1;
        place.has_crashed = true;
        place.asleep = None;
        place.setup.disk.crash();
        self.network.crash(self.now, host, has_reset);
        self.history.set_state(host, self.now, PeerState::Down);
        self.observe(Observation::Crashed { host });
        self.schedule_network();
    }

    /// Asks a peer to leave.
    pub fn leave(&mut self, host: HostId) {
        self.input_later(self.now, host, Input::Leave);
    }

    /// Asks a peer to expel the peer of another host.
    pub fn expel(&mut self, asked: HostId, host: HostId) {
        let peer = self.peer(host);
        self.input_later(self.now, asked, Input::Expel(peer));
    }

    /// The user of this host's peer declares that table chunks whose replicas are all gone are lost.
    pub fn declare_lost(&mut self, host: HostId) {
        self.input_later(self.now, host, Input::DeclareLost);
    }

    /// Notifies a peer whether others can dial it.
    pub fn set_reachable(&mut self, host: HostId, is_reachable: bool) {
        let addresses = vec![address(host)];
        self.input_later(self.now, host, Input::ReachabilityChanged { addresses, is_reachable });
    }

    /// The machine goes to sleep: its process receives nothing until [`Cluster::wake`].
    pub fn sleep(&mut self, host: HostId) {
        let place = &mut self.hosts[host.index()];
        if place.process.is_some() && place.asleep.is_none() {
            place.asleep = Some(VecDeque::new());
            self.network.sleep(self.now, host);
            self.history.set_state(host, self.now, PeerState::Paused);
            self.schedule_network();
        }
    }

    /// The machine wakes up and its process receives what arrived meanwhile.
    pub fn wake(&mut self, host: HostId) {
        let place = &mut self.hosts[host.index()];
        let Some(missed) = place.asleep.take() else { return };
        place.awake_since = self.now;
        self.network.wake(self.now, host);
        let spans = &self.history.peers[host.index()].spans;
        let before = spans.iter().rev().map(|span| span.state).find(|state| *state != PeerState::Paused);
        self.history.set_state(host, self.now, before.unwrap_or(PeerState::Joining));
        // Passed on at once, before other events of this instant, which came later.
        let start = self.hosts[host.index()].starts;
        for input in missed {
            self.input(host, start, input);
        }
        self.schedule_network();
        self.tick_at(self.now, host, start);
    }

    /// The configuration of a host, for changes.
    pub fn setup_mut(&mut self, host: HostId) -> &mut HostSetup {
        &mut self.hosts[host.index()].setup
    }

    /// Sets or clears a fault of the task on a host.
    pub fn set_task_fault(&mut self, host: HostId, task_fault: Option<TaskFault>) {
        self.hosts[host.index()].task_fault = task_fault;
    }

    // Links.

    /// Blocks frames from one host to another until [`Cluster::heal`].
    pub fn cut(&mut self, from: HostId, to: HostId) {
        self.network.cut(self.now, from, to);
        self.schedule_network();
    }

    /// Removes one such block.
    pub fn heal(&mut self, from: HostId, to: HostId) {
        self.network.heal(self.now, from, to);
        self.schedule_network();
    }

    /// Changes the rates of a host's line, in bits a second.
    pub fn throttle(&mut self, host: HostId, up: Option<u64>, down: Option<u64>) {
        self.network.throttle(host, up, down);
    }

    /// Adds a filter after the existing ones.
    pub fn add_filter(&mut self, filter: Box<dyn FrameFilter>) {
        self.filters.push(filter);
    }

    /// Sends a frame in the name of the process there.
    pub fn forge(&mut self, from: HostId, to: HostId, frame: Frame) {
        self.network.send(self.now, from, to, Transmission::Frame(frame), Duration::ZERO);
        self.schedule_network();
    }
}

/// The random bytes that are part of the run's id; their value does not matter.
const NONCE: [u8; 32] = [7; 32];
/// How many idle segment buffers a simulated peer keeps.
const SEGMENTS_KEPT: usize = 8;
