//! What becomes of hosts, their processes and their lines: the cluster from the side of whoever plays fate.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use peergrad::io::Input;
use peergrad::node::{Config, Node, Role};
use peergrad_protocol::{Frame, Incarnation, PeerId, Pool, RunId};

use rand::Rng;

use super::Cluster;
use crate::history::{Lane, State};
use crate::host::{Entry, Host, HostId, HostSetup, Process, Trouble, address, peer_of};
use crate::laws::Observation;
use crate::network::Cargo;
use crate::rules::Rule;

impl Cluster {
    // Hosts and processes.

    /// Adds a host with an identity of its own.
    pub fn add(&mut self, setup: HostSetup) -> HostId {
        self.add_as(peer_of(HostId(self.hosts.len() as u32)), setup)
    }

    /// Adds a host whose disk is a copy of another one's: two machines, one identity.
    pub fn add_copy(&mut self, of: HostId) -> HostId {
        let original = &self.hosts[of.index()];
        let (peer, mut setup, incarnation) = (original.peer, original.setup.clone(), original.incarnation);
        // A durable record counts only where it was written.
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
            attentive_since: self.now,
            trouble: None,
        });
        self.homes.entry(peer).or_default().push(id);
        self.network.add(peer);
        self.history.lanes.push(Lane { peer, spans: vec![], notes: vec![] });
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
                Role::Founder { specification, nonce: NONCE, peers, from: None }
            }
            Entry::Join { run, .. } => Role::Joiner { run },
        };
        let draw = (self.generator.next_u64() % 256) as u8;
        let place = &mut self.hosts[host.index()];
        assert!(place.process.is_none(), "one process a host");
        place.starts += 1;
        place.has_crashed = false;
        place.incarnation += 1;
        place.attentive_since = self.now;
        let segments = Pool::new(SEGMENTS_KEPT);
        let config = Config {
            peer: place.peer,
            incarnation: Incarnation::of_start(place.incarnation, draw),
            addresses: vec![address(host)],
            weight: place.setup.weight,
            loader: Arc::clone(&place.setup.loader),
            segments: segments.clone(),
            memo: self.memo.clone(),
            restored: place.setup.disk.record().map(|record| record.to_bytes().into()),
            saved: place.setup.disk.checkpoints().map(|checkpoint| checkpoint.saved.clone()).collect(),
            role,
        };
        place.process =
            Some(Process { node: Node::new(config), segments, wake: None, linked: BTreeSet::new() });
        let start = place.starts;
        self.running_count += 1;
        self.network.start(host);
        self.history.become_state(host, self.now, State::Joining);
        self.tick_at(self.now, host, start);
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
        place.has_crashed = true;
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

    /// Asks a peer to put the peer of another host out of the run for good.
    pub fn expel(&mut self, asked: HostId, host: HostId) {
        let peer = self.peer(host);
        self.input_later(self.now, asked, Input::Expel(peer));
    }

    /// The user of this host's peer says that what nobody has any more of tables is lost.
    pub fn declare_lost(&mut self, host: HostId) {
        self.input_later(self.now, host, Input::DeclareLost);
    }

    /// Tells a peer whether others can dial it.
    pub fn place(&mut self, host: HostId, is_reachable: bool) {
        let addresses = vec![address(host)];
        self.input_later(self.now, host, Input::Placed { addresses, is_reachable });
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
        self.network.wake(self.now, host);
        let spans = &self.history.lanes[host.index()].spans;
        let before = spans.iter().rev().map(|span| span.state).find(|state| *state != State::Paused);
        self.history.become_state(host, self.now, before.unwrap_or(State::Joining));
        // At once: what else happens at this instant came after it.
        let start = self.hosts[host.index()].starts;
        for input in missed {
            self.input(host, start, input);
        }
        self.settle_network();
        self.tick_at(self.now, host, start);
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
}

/// Makes the run's id; any bytes will do.
const NONCE: [u8; 32] = [7; 32];
/// Idle segment buffers that a simulated peer keeps.
const SEGMENTS_KEPT: usize = 8;
