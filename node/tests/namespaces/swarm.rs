//! The swarm: a peer on each host of a test network, all training the digits together.

use peergrad_protocol::PeerId;
use serde_json::Value;

use super::network::{TestNetwork, address};
use super::process::{
    Ended, PROGRAM, Process, TestFolder, end_all, invite_of, is_change, is_view_of, listening,
};

/// One peer on each host.
pub(crate) struct Swarm {
    /// By host; empty once they have ended.
    pub(crate) peers: Vec<Process>,
    /// The peers' ids, by host.
    ids: Vec<PeerId>,
    pub(crate) world: TestNetwork,
    place: TestFolder,
}

impl Swarm {
    /// Starts a peer on each of `count` hosts: one founds a run of `epochs` epochs, the others join by its invite.
    pub(crate) fn start(count: usize, epochs: u64) -> Option<Self> {
        Some(Self::start_in(TestNetwork::of(count)?, epochs))
    }

    /// As [`start`](Self::start), in an existing network.
    pub(crate) fn start_in(world: TestNetwork, epochs: u64) -> Self {
        let run = format!("epochs = {epochs}\n[data]\nfile = \"digits\"\n[sync]\ndigest_every = 1\n");
        Self::start_run(world, &run, &[])
    }

    /// As [`start_in`](Self::start_in), with this run file and with other files beside it.
    pub(crate) fn start_run(world: TestNetwork, run: &str, files: &[(&str, &[u8])]) -> Self {
        let count = world.len();
        let place = TestFolder::new();
        place.write("run.toml", run);
        files.iter().for_each(|(name, contents)| place.write(name, contents));
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
        Self { peers, ids, world, place }
    }

    /// As [`start`](Self::start), and waits until all of them are in the middle of training.
    pub(crate) fn training(count: usize, epochs: u64) -> Option<Self> {
        let mut swarm = Self::start(count, epochs)?;
        swarm.peers.iter_mut().for_each(|peer| peer.wait_for_step(20));
        Some(swarm)
    }

    /// Kills the peer on this host.
    pub(crate) fn kill(&mut self, host: usize) -> Ended {
        self.peers.remove(host).kill()
    }

    /// Starts the killed peer on this host again.
    pub(crate) fn restart(&mut self, host: usize) {
        let invite = self.place.invite(&format!("peer-{}", (host + 1) % self.world.len()));
        let mut peer = spawn(&self.world, &self.place, host, &["join", &invite]);
        assert_eq!(listening(&mut peer).0, self.ids[host], "it has its identity from its directory");
        self.peers.insert(host, peer);
    }

    /// The hosts in the order of their peers' ranks, which is that of the ids and of the ring.
    pub(crate) fn by_rank(&self) -> Vec<usize> {
        let mut hosts: Vec<usize> = (0..self.ids.len()).collect();
        hosts.sort_by_key(|host| self.ids[*host]);
        hosts
    }

    /// Waits until these hosts have gone on without the lost one, and returns their views.
    pub(crate) fn wait_for_loss(&mut self, hosts: &[usize], lost: usize) -> Vec<Value> {
        let name = self.ids[lost].to_string();
        hosts.iter().map(|host| self.peers[*host].wait(|event| is_change(event, "left", &name))).collect()
    }

    /// Waits until the first host has gone on without one of two others, of which either may be lost. Returns its view, with the host that
    /// is lost and the one that is not.
    pub(crate) fn wait_for_loss_of_either(
        &mut self,
        host: usize,
        others: [usize; 2],
    ) -> (Value, usize, usize) {
        let names = others.map(|other| self.ids[other].to_string());
        let view = self.peers[host].wait(|event| names.iter().any(|name| is_change(event, "left", name)));
        let [one, other] = others;
        match is_change(&view, "left", &names[0]) {
            true => (view, one, other),
            false => (view, other, one),
        }
    }

    /// Waits until all peers are in one view, and train in it.
    pub(crate) fn wait_for_all(&mut self) {
        let count = self.peers.len();
        for peer in &mut self.peers {
            peer.wait(|event| is_view_of(event, count));
        }
        self.peers.iter_mut().for_each(|peer| {
            peer.wait_for("step");
        });
    }

    /// Waits until all have ended; by host.
    pub(crate) fn end(&mut self) -> Vec<Ended> {
        self.peers.drain(..).map(Process::end).collect()
    }

    /// All leave, one after the other, and their reports form one history.
    pub(crate) fn leave(self) -> Vec<Ended> {
        self.leave_after(&[])
    }

    /// As [`leave`](Self::leave), if some have ended before.
    pub(crate) fn leave_after(mut self, before: &[Ended]) -> Vec<Ended> {
        let last = format!("peer-{}", self.peers.len() - 1);
        end_all(&self.place, &last, self.peers.drain(..).collect(), before)
    }
}

/// Runs a `peer` command on a host, with a data directory for this host.
fn spawn(world: &TestNetwork, place: &TestFolder, host: usize, arguments: &[&str]) -> Process {
    let (listen, directory) = (address(host).to_string(), format!("peer-{host}"));
    let mut command = world.host(host).command(PROGRAM);
    command.args(arguments).args(["--json", "--no-mdns", "--listen", &listen, "--dir", &directory]);
    Process::spawn(command.current_dir(place.path("")))
}
