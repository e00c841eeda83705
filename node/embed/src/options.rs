//! What a peer is started with.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libp2p::Multiaddr;
use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::{RunFile, ThreadCount};
use peergrad_core::node::StartMode;
use peergrad_core::program::loader::Loader;
use peergrad_net::{
    BootstrapAddress, DEFAULT_PORT, Directory, Mdns, available_memory, peers_beside, random_bytes,
};
use peergrad_protocol::invite::{Invite, Secret};

use crate::DataSource;

/// How one peer is to run.
pub struct PeerOptions {
    /// Whether it founds a run or joins one.
    pub start_mode: StartMode,
    /// What builds the task of the run.
    pub loader: Arc<dyn Loader>,
    /// The secret of the run, which members prove to each other.
    pub secret: Secret,
    /// Addresses at which members of the run may be found.
    pub bootstrap_addresses: Vec<BootstrapAddress>,
    /// Where the run's data file comes from.
    pub data: DataSource,
    /// Where the peer keeps its files.
    pub directory: DirectoryChoice,
    /// How others reach it.
    pub connectivity: Connectivity,
    /// How much of the parameters it owns, relative to others, 0 to 16; `None` lets the members choose.
    pub capacity: Option<u8>,
    /// How many threads compute; `None` for the cores that the process may use, divided by the peers of this user on the machine.
    pub threads: Option<ThreadCount>,
    /// The port of 127.0.0.1 for Prometheus metrics, 0 for any free one; `None` for no metrics.
    pub metrics: Option<u16>,
}

impl PeerOptions {
    /// Founds a run of this encoded specification, with a new secret and what the run file says of this peer. Training begins once so many
    /// peers are there, this one included.
    #[must_use]
    pub fn new_run(
        run_file: &RunFile,
        specification: Arc<[u8]>,
        peers: usize,
        loader: Arc<dyn Loader>,
    ) -> Self {
        let start_mode = StartMode::Bootstrap { specification, nonce: random_bytes(), peers, from: None };
        let RunFile { network, compute, .. } = run_file;
        let connectivity = Connectivity {
            // The default port may be replaced by a free one if it is taken, even if the file states it.
            port: (network.port != DEFAULT_PORT).then_some(network.port),
            mdns: if network.mdns { Mdns::On } else { Mdns::Off },
            ..Connectivity::default()
        };
        let threads = compute.threads;
        Self { connectivity, threads, ..Self::new(start_mode, Secret(random_bytes()), loader) }
    }

    /// Joins the run of this invite.
    #[must_use]
    pub fn join(invite: Invite, loader: Arc<dyn Loader>) -> Self {
        let start_mode = StartMode::Join { run: Some(invite.run) };
        let bootstrap_addresses = invite.contacts.into_iter().map(BootstrapAddress::Contact).collect();
        Self { bootstrap_addresses, ..Self::new(start_mode, invite.secret, loader) }
    }

    /// With a default for everything that has one.
    #[must_use]
    pub fn new(start_mode: StartMode, secret: Secret, loader: Arc<dyn Loader>) -> Self {
        Self {
            start_mode,
            loader,
            secret,
            bootstrap_addresses: vec![],
            data: DataSource::default(),
            directory: DirectoryChoice::Default,
            connectivity: Connectivity::default(),
            capacity: None,
            threads: None,
            metrics: None,
        }
    }
}

/// Where a peer keeps its files.
#[derive(Debug)]
pub enum DirectoryChoice {
    /// The first unused one of the default directories.
    Default,
    /// This one, which is created if it is missing.
    At(PathBuf),
    /// This one, which is open already.
    Open(Directory),
}

/// How others reach a peer.
#[derive(Clone, Debug)]
pub struct Connectivity {
    /// The only address of this machine that it listens on; `None` for all.
    pub listen: Option<IpAddr>,
    /// The port that it listens on; `None` for its former one or the default one, and any free port if that is taken.
    pub port: Option<u16>,
    /// Addresses at which others can reach it, such as that of a router that forwards a port.
    pub external: Vec<Multiaddr>,
    /// Whether the router is asked to forward the port.
    pub upnp: bool,
    /// Whether it looks for peers on the local network.
    pub mdns: Mdns,
}

impl Default for Connectivity {
    fn default() -> Self {
        Self { listen: None, port: None, external: vec![], upnp: false, mdns: Mdns::On }
    }
}

/// How much memory a run may take: so many bytes, or by default three quarters of what is free.
#[must_use]
pub fn memory_limit(bytes: Option<u64>) -> MemoryLimit {
    MemoryLimit::new(bytes.or_else(|| Some(available_memory()? / 4 * 3)))
}

/// How many threads each of `peers` on this machine gets by default.
#[must_use]
pub fn threads_of_one(peers: usize) -> ThreadCount {
    // The system tells how many cores this process may use; where it does not, one is sure.
    ThreadCount::share(std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN), peers)
}

/// The threads of a peer whose data directory is `directory`, if its user gave no number.
pub(crate) fn default_threads(directory: &Path) -> ThreadCount {
    threads_of_one(1 + peers_beside(directory))
}
