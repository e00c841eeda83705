//! The swarm: a peer on each host of a world, training the digits together.

use peergrad_protocol::PeerId;

use super::process::{Ended, PROGRAM, Place, Process, invite_of, listening};
use super::world::{World, address};

/// One peer on each host.
pub(crate) struct Swarm {
    /// By host, until they have ended.
    peers: Vec<Process>,
    /// By host.
    ids: Vec<PeerId>,
    pub(crate) world: World,
    _place: Place,
}

impl Swarm {
    /// Starts a peer on each of `count` hosts: one founds a run of so many passes, the others join by its invite.
    pub(crate) fn start(count: usize, passes: u64) -> Option<Self> {
        let world = World::of(count)?;
        let place = Place::new();
        let run = format!("passes = {passes}\n[data]\nfile = \"digits\"\n[sync]\ndigest_every = 1\n");
        place.write("run.toml", run);
        let wanted = count.to_string();
        let mut founder = spawn(&world, &place, 0, &["start", "run.toml", "--peers", &wanted]);
        let mut ids = vec![listening(&mut founder).0];
        let invite = invite_of(&mut founder);
        let mut peers = vec![founder];
        for host in 1..count {
            let mut joiner = spawn(&world, &place, host, &["join", &invite]);
            ids.push(listening(&mut joiner).0);
            peers.push(joiner);
        }
        Some(Self { peers, ids, world, _place: place })
    }

    /// As [`start`](Self::start), and waits until all of them are in the middle of training.
    pub(crate) fn training(count: usize, passes: u64) -> Option<Self> {
        let mut swarm = Self::start(count, passes)?;
        swarm.peers.iter_mut().for_each(|peer| peer.wait_for_step(20));
        Some(swarm)
    }

    /// The hosts in the order of the ring: ranks go by id.
    pub(crate) fn ring(&self) -> Vec<usize> {
        let mut hosts: Vec<usize> = (0..self.ids.len()).collect();
        hosts.sort_by_key(|host| self.ids[*host]);
        hosts
    }

    /// Waits until all have ended; by host.
    pub(crate) fn end(&mut self) -> Vec<Ended> {
        self.peers.drain(..).map(Process::end).collect()
    }

    /// The host whose peer is gone, according to the one that failed on `host`: it may be that one itself.
    pub(crate) fn named_by(&self, host: usize, failed: &Ended) -> usize {
        let why = failed.failure();
        if why.starts_with("the other members have lost this peer") {
            return host;
        }
        let is_named = |id: &PeerId| why.starts_with(&format!("peer {} is gone", id.short()));
        self.ids.iter().position(is_named).unwrap_or_else(|| panic!("it names nobody: {why}"))
    }
}

/// A `peer` command on a host, with a data directory of the host's own.
fn spawn(world: &World, place: &Place, host: usize, arguments: &[&str]) -> Process {
    let (listen, directory) = (address(host).to_string(), format!("peer-{host}"));
    let mut command = world.host(host).command(PROGRAM);
    command.args(arguments).args(["--json", "--no-mdns", "--listen", &listen, "--dir", &directory]);
    Process::spawn(command.current_dir(place.path("")))
}
