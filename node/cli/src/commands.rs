//! The command line: what a user types, and what they are told.
//!
//! Human words go to standard error, results to standard output; with `--json`, one object a line on standard output.
//! Exit codes: 0 done, 1 failed, 2 misused. A binary with a task of its own shares `start`, `join`, `invite`, `status` and `export`.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use peergrad_config::specification::BuiltinLoader;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

mod bench;
mod compare;
pub mod curve;
mod declare_lost;
mod demo;
mod epochs;
mod files;
mod invite;
mod local_peer;
mod model;
pub mod plot;
mod progress;
mod rekey;
mod remove;
mod report;
mod resume;
mod run;
mod running_peer;
mod signals;
mod status;
mod swarm;
mod train;

pub use train::{Training, train};

/// Training one model on many machines with no server.
#[derive(Parser)]
#[command(name = "peer", version, arg_required_else_help = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Try it on this machine:    peer demo
On several machines:       peer init --data my.csv > run.toml
                           peer start run.toml        (prints the line to type on the others)
Is it well?                peer status --watch";

#[derive(Subcommand)]
enum Command {
    /// Train handwritten digits with four peers on this machine: a few seconds
    Demo(demo::DemoArguments),
    /// Train with each of several run files on this machine, one after the other, and tell how they compare
    Compare(compare::CompareArguments),
    /// Measure how fast tensors go round between peers on this machine
    Bench(bench::BenchArguments),
    /// A peer of a bench
    #[command(hide = true)]
    BenchPeer(bench::BenchPeerArguments),
    /// Measure how many rows of a table peers on this machine read and add to
    BenchTable(bench::tables::BenchTableArguments),
    /// A peer of a bench of a table
    #[command(hide = true)]
    BenchTablePeer(bench::tables::BenchTablePeerArguments),
    /// Look at a data file and write a commented run.toml for it to standard output
    Init {
        /// The data: CSV with or without a header, LIBSVM, or IDX (as MNIST) with the labels behind the samples, plain or gzipped;
        /// or `digits`, handwritten ones that are built in: no file is needed to try things out
        #[arg(long, value_name = "FILE")]
        data: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Found a run: the first peer, which prints the line for the others
    Start(StartArguments),
    /// Join a run
    Join(JoinArguments),
    /// Go on with the run that the last peer of this machine was in when it stopped
    Resume(ResumeArguments),
    /// Print a fresh invite of the peer that is running on this machine
    Invite(invite::InviteArguments),
    /// Say how the peers on this machine are, or one elsewhere: who is in, who owns what, how fast it goes, what is wrong
    Status(status::StatusArguments),
    /// Put a member out of the run for good: it hands over what it owns, and is not let in again
    Remove(remove::RemoveArguments),
    /// Give the run another secret while it goes on: invites from before are of no use any more
    Rekey(rekey::RekeyArguments),
    /// Go on without the parts of a run's tables that nobody has any more: they begin anew
    DeclareLost(declare_lost::DeclareLostArguments),
    /// Copy the newest model that a peer on this machine has saved
    Export(model::ExportArguments),
    /// Say how well a saved model does on data
    Evaluate(model::EvaluateArguments),
}

#[derive(Args)]
struct StartArguments {
    /// What to train: a file that `peer init` wrote. Where it says `file = "digits"` in [data], no data file is needed: those are
    /// built in
    #[arg(value_name = "RUN.toml")]
    run_file: PathBuf,
    #[command(flatten)]
    founder: FounderArguments,
}

#[derive(Args)]
struct CustomStartArguments {
    /// How to train: epochs, batch, seed, [optimizer], [sync], [network]; everything has a default
    #[arg(value_name = "RUN.toml")]
    run_file: Option<PathBuf>,
    #[command(flatten)]
    founder: FounderArguments,
}

/// What only the first peer of a run can be told.
#[derive(Args)]
struct FounderArguments {
    /// Peers to wait for before training begins, this one included; 1 trains alone [default: run.toml's, or 2]
    #[arg(long, value_name = "N")]
    peers: Option<u32>,
    /// Decides initial parameters, order of samples and held-out rows, in place of run.toml's `seed`
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Use the secret in this file, or write a new one there if there is none; for `join ADDRESS --secret-file`
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    peer: PeerArguments,
}

#[derive(Args)]
struct JoinArguments {
    /// An invite; or with --secret-file the address of any member (HOST, HOST:PORT or a multiaddress); or `-` to read the
    /// invite from standard input, so that other users of this machine do not see it
    #[arg(value_name = "INVITE")]
    invite: String,
    /// More addresses to try
    #[arg(value_name = "ADDRESS", requires = "secret_file")]
    more: Vec<String>,
    /// File with the run's secret (64 hexadecimal digits), when joining by address
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The run's data file on this machine; without it, it is looked for by name and then asked for in the swarm
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    peer: PeerArguments,
}

#[derive(Args)]
struct ResumeArguments {
    /// Do not wait for the others: found a run of its own that goes on from this peer's newest checkpoint
    #[arg(long)]
    alone: bool,
    /// The run's data file on this machine; without it, it is looked for by name, and then asked for in the swarm
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    peer: PeerArguments,
}

/// What every peer can be told.
#[derive(Args)]
struct PeerArguments {
    /// Port to listen on, and for tensors the one 1000 above it [default: run.toml's, or 4747, or any other if that is taken]
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// Listen on this address of the machine only
    #[arg(long, value_name = "IP")]
    listen: Option<IpAddr>,
    /// An address under which others reach this peer, e.g. of a router that forwards another port (HOST:PORT or a multiaddress; may be
    /// repeated). Others try it, and this peer says what they found
    #[arg(long, value_name = "ADDRESS")]
    external: Vec<String>,
    /// Ask the router to forward the port by itself (UPnP), for as long as this peer runs
    #[arg(long)]
    upnp: bool,
    /// Data directory [default: the first free one of ~/.local/share/peergrad, .../2, ...]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How much of the parameters to own relative to other peers, 0 to 16; nothing for as long as others cannot dial this peer
    #[arg(long, value_name = "N", default_value_t = peergrad_protocol::limits::CAPACITY_DEFAULT,
          value_parser = clap::value_parser!(u8).range(..=i64::from(peergrad_protocol::limits::CAPACITY_MAX)))]
    capacity: u8,
    /// The former name of `--capacity`
    #[arg(long = "weight", hide = true, value_name = "N", value_parser = former("--capacity"))]
    _weight: Option<Infallible>,
    /// Offer numbers for Prometheus at this port of this machine alone, 127.0.0.1 [default: 9747]; 0: any port that is free
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = DEFAULT_METRICS_PORT_TEXT)]
    metrics: Option<u16>,
    /// Do not look for peers on the local network
    #[arg(long)]
    no_mdns: bool,
    /// Events as JSON, one object a line, on standard output
    #[arg(long)]
    json: bool,
}

/// Refuses whatever value an option is given by its former name, and says what it is called now.
fn former(current: &'static str) -> impl Fn(&str) -> Result<Infallible, String> + Clone + Send + Sync {
    move |_| Err(format!("this option is called `{current}` now"))
}

/// As text: [`DEFAULT_METRICS_PORT`](crate::status::DEFAULT_METRICS_PORT).
const DEFAULT_METRICS_PORT_TEXT: &str = "9747";

/// A binary that brings its own task.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct CustomCli {
    #[command(subcommand)]
    command: CustomCommand,
}

#[derive(Subcommand)]
enum CustomCommand {
    /// Found a run: the first peer, which prints the line for the others
    Start(CustomStartArguments),
    /// Join a run
    Join(JoinArguments),
    /// Go on with the run that the last peer of this machine was in when it stopped
    Resume(ResumeArguments),
    /// Print a fresh invite of the peer that is running on this machine
    Invite(invite::InviteArguments),
    /// Say how the peers on this machine are, or one elsewhere: who is in, who owns what, how fast it goes, what is wrong
    Status(status::StatusArguments),
    /// Put a member out of the run for good: it hands over what it owns, and is not let in again
    Remove(remove::RemoveArguments),
    /// Give the run another secret while it goes on: invites from before are of no use any more
    Rekey(rekey::RekeyArguments),
    /// Go on without the parts of a run's tables that nobody has any more: they begin anew
    DeclareLost(declare_lost::DeclareLostArguments),
    /// Copy the newest model that a peer on this machine has saved
    Export(model::ExportArguments),
}

/// Runs the `peer` binary.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    start_logging();
    finish(match command {
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::BenchPeer(arguments) => bench::bench_peer(arguments),
        Command::BenchTable(arguments) => bench::tables::bench_table(&arguments),
        Command::BenchTablePeer(arguments) => bench::tables::bench_table_peer(arguments),
        Command::Init { data, json } => files::init(&data, json),
        Command::Start(arguments) => run::start(arguments),
        Command::Join(arguments) => run::join(arguments, Arc::new(BuiltinLoader)),
        Command::Resume(arguments) => resume::resume(arguments, Arc::new(BuiltinLoader)),
        Command::Invite(arguments) => invite::invite(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Remove(arguments) => remove::remove(&arguments),
        Command::Rekey(arguments) => rekey::rekey(&arguments),
        Command::DeclareLost(arguments) => declare_lost::declare_lost(&arguments),
        Command::Export(arguments) => model::export(&arguments),
        Command::Evaluate(arguments) => model::evaluate(&arguments),
    })
}

/// Runs a binary that brings its own task: `start`, `join`, `resume`, `invite`, `status` and `export` as `peer` has them.
fn run_custom(training: Training) -> ExitCode {
    let CustomCli { command } = CustomCli::parse();
    start_logging();
    finish(run_custom_command(training, command))
}

fn run_custom_command(training: Training, command: CustomCommand) -> anyhow::Result<ExitCode> {
    match command {
        CustomCommand::Start(arguments) => run::start_custom(&training, arguments),
        CustomCommand::Join(arguments) => run::join(arguments, Arc::new(training.loader())),
        CustomCommand::Resume(arguments) => resume::resume(arguments, Arc::new(training.loader())),
        CustomCommand::Invite(arguments) => invite::invite(&arguments),
        CustomCommand::Status(arguments) => status::status(&arguments),
        CustomCommand::Remove(arguments) => remove::remove(&arguments),
        CustomCommand::Rekey(arguments) => rekey::rekey(&arguments),
        CustomCommand::DeclareLost(arguments) => declare_lost::declare_lost(&arguments),
        CustomCommand::Export(arguments) => model::export(&arguments),
    }
}

fn finish(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        let words = format!("{error:#}");
        crate::terminal::complain(&format!("error: {words}"));
        // Whoever reads JSON does not read standard error; every command has this switch.
        if std::env::args_os().any(|argument| argument == "--json") {
            crate::terminal::emit(&serde_json::json!({"event": "failed", "reason": words}));
        }
        ExitCode::FAILURE
    })
}

/// Writes logs of the libraries below to standard error, if the environment asks for them: `PEERGRAD_LOG=debug`, or
/// `PEERGRAD_LOG=info,libp2p_kad=trace` for one library in more detail.
fn start_logging() {
    let Ok(wanted) = std::env::var("PEERGRAD_LOG") else { return };
    let filter: Targets = match wanted.parse() {
        Ok(filter) => filter,
        Err(error) => {
            return crate::terminal::complain(&format!("PEERGRAD_LOG=\"{wanted}\" is not used: {error}"));
        }
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(filter);
    // A second call in one process (tests) is harmless.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_help_says_that_nobody_needs_a_file_to_try_it_out() {
        for name in ["init", "start"] {
            let mut command = Cli::command();
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(help.contains("digits") && help.contains("built in"), "{name}: {help}");
        }
    }
}
