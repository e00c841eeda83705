//! The options that several commands share: those of the first peer of a run, of a joiner, and of every peer.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::{ComputeDevice, ThreadCount};
use peergrad_embed::memory_limit;

use crate::text::quantities::parse_bytes;

#[derive(Args)]
pub(super) struct StartArguments {
    /// The run file, as written by `peer init`. With `file = "digits"` in [data] no data file is needed: the digits are built in
    #[arg(value_name = "RUN.toml")]
    pub(super) run_file: PathBuf,
    #[command(flatten)]
    pub(super) founder: FounderArguments,
}

#[derive(Args)]
pub(super) struct CustomStartArguments {
    /// How to train: epochs, batch, seed, [optimizer], [sync], [network]; every setting has a default
    #[arg(value_name = "RUN.toml")]
    pub(super) run_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) founder: FounderArguments,
}

/// The options of the first peer of a run.
#[derive(Args)]
pub(super) struct FounderArguments {
    /// How many peers to wait for before training begins, this one included; 1 trains alone [default: from run.toml, or 2]
    #[arg(long, value_name = "N")]
    pub(super) peers: Option<u32>,
    /// Seed of the initial parameters, the sample order and the held-out rows; overrides `seed` in run.toml
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Read the run's secret from this file, or create the file with a new secret; others then use `join ADDRESS --secret-file`
    #[arg(long, value_name = "FILE")]
    pub(super) secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) peer: PeerArguments,
}

#[derive(Args)]
pub(super) struct JoinArguments {
    /// An invite; or, with --secret-file, the address of any member (HOST, HOST:PORT or a multiaddress); or `-` to read the
    /// invite from standard input, which hides it from other users of this machine
    #[arg(value_name = "INVITE")]
    pub(super) invite: String,
    /// More member addresses to try
    #[arg(value_name = "ADDRESS")]
    pub(super) more: Vec<String>,
    /// File with the run's secret (64 hexadecimal digits), when joining by address
    #[arg(long, value_name = "FILE")]
    pub(super) secret_file: Option<PathBuf>,
    /// The run's data file on this machine [default: look for it by name, then fetch it from the swarm]
    #[arg(long, value_name = "FILE")]
    pub(super) data: Option<PathBuf>,
    #[command(flatten)]
    pub(super) peer: PeerArguments,
}

#[derive(Args)]
pub(super) struct ResumeArguments {
    /// Not an argument of `resume`, but what many try, such as a run file: the answer says what to do instead
    #[arg(hide = true)]
    pub(super) extra: Option<String>,
    /// Do not wait for the other members: start a new run from this peer's newest checkpoint
    #[arg(long)]
    pub(super) alone: bool,
    /// The run's data file on this machine [default: look for it by name, then fetch it from the swarm]
    #[arg(long, value_name = "FILE")]
    pub(super) data: Option<PathBuf>,
    #[command(flatten)]
    pub(super) peer: PeerArguments,
}

/// The options of every peer.
#[derive(Args)]
pub(super) struct PeerArguments {
    /// Port to listen on; direct tensor connections use the port 1000 above it [default: from run.toml, or 4747, or any free port
    /// if that one is taken]
    #[arg(long, value_name = "N")]
    pub(super) port: Option<u16>,
    /// Listen on this IP address only
    #[arg(long, value_name = "IP")]
    pub(super) listen: Option<IpAddr>,
    /// An address at which others can reach this peer, e.g. that of a router which forwards a port (HOST:PORT or a multiaddress;
    /// may be repeated). Other peers test it, and this peer reports the result
    #[arg(long, value_name = "ADDRESS")]
    pub(super) external: Vec<String>,
    /// Ask the router to forward the port while this peer runs (UPnP)
    #[arg(long)]
    pub(super) upnp: bool,
    /// Data directory [default: the first unused one of ~/.local/share/peergrad, .../2, ...]
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// How much of the parameters to own, relative to other peers, 0 to 16; a peer that others cannot dial owns nothing [default: 4, and
    /// with `topology = "auto"` over long lines, more or less than that by the rate of this peer's line]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u8).range(..=i64::from(peergrad_protocol::limits::CAPACITY_MAX)))]
    pub(super) capacity: Option<u8>,
    /// How much memory the run may take here, such as 500MB or 2GiB; a run that needs more is refused [default: three quarters of what
    /// is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(super) max_memory: Option<u64>,
    /// How many threads compute a gradient, with the same result for any number; small models use one in any case [default: from
    /// run.toml, or the cores that the peer may use, divided by the peers of this user on the machine]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) threads: Option<ThreadCount>,
    /// Where to compute deep networks: `cpu`, or `gpu` with the feature `deep-wgpu`. Other models are computed on the processor
    /// [default: from run.toml, or cpu]
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<ComputeDevice>,
    /// The former name of `--capacity`
    #[arg(long = "weight", hide = true, value_name = "N", value_parser = former("--capacity"))]
    _weight: Option<Infallible>,
    /// Serve Prometheus metrics on this port of 127.0.0.1 [default: 9747]; 0 selects any free port
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = DEFAULT_METRICS_PORT_TEXT)]
    pub(super) metrics: Option<u16>,
    /// Do not look for peers on the local network
    #[arg(long)]
    pub(super) no_mdns: bool,
    /// Print events as JSON on standard output, one object a line
    #[arg(long)]
    pub(super) json: bool,
}

impl PeerArguments {
    /// How much memory the run may take at this peer.
    pub(super) fn memory(&self) -> MemoryLimit {
        memory_limit(self.max_memory)
    }
}

/// A parser for an option's former name: it rejects every value and names the option `current`.
pub(super) fn former(
    current: &'static str,
) -> impl Fn(&str) -> Result<Infallible, String> + Clone + Send + Sync {
    move |_| Err(format!("this option is now called `{current}`"))
}

/// [`DEFAULT_METRICS_PORT`](peergrad_embed::status::DEFAULT_METRICS_PORT) as text, for clap.
const DEFAULT_METRICS_PORT_TEXT: &str = "9747";
