//! The commands of the `peer` binary, and of binaries that bring a custom task.
//!
//! Messages for people go to standard error and results to standard output; with `--json`, standard output has one JSON object a
//! line. Exit codes: 0 success, 1 failure, 2 wrong usage. A binary with a custom task has every command that does not depend on
//! built-in models: `start`, and those that it shares with `peer`.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use peergrad_config::specification::ComputeDevice;
use peergrad_config::specification::run_file::ModelKind;
use peergrad_protocol::invite::without_invites;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::terminal::OutputFormat;
use arguments::{CustomStartArguments, JoinArguments, PeerArguments, ResumeArguments, StartArguments};
use device::{DeepDevices, PeerLoader};

mod arguments;
mod base_model;
mod bench;
mod compare;
pub mod curve;
mod declare_lost;
mod demo;
pub mod device;
mod end_run;
mod epochs;
mod export;
mod files;
mod generate;
mod invite;
mod join_target;
mod local_peer;
mod model;
mod parquet;
mod pictures;
pub mod plot;
mod predict;
mod progress;
mod rekey;
mod remove;
mod report;
mod resume;
mod run;
mod scratch_directory;
mod signals;
mod started_from;
mod status;
mod swarm;
mod sweep;
mod text_folder;
mod tokenizer;
mod topics;
mod train;

pub use status::status_text;
pub use train::{Training, train};

/// Train one model on many machines, without a server.
#[derive(Parser)]
#[command(name = "peer", version, arg_required_else_help = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Try it on this machine:    peer demo
On several machines:       peer init --data my.csv > run.toml
                           peer start run.toml        (prints the command for the other machines)
Watch the progress:        peer status --watch";

#[derive(Subcommand)]
enum Command {
    /// Train on handwritten digits with four peers on this machine, in a few seconds. `demo cnn` trains a convolutional network
    Demo(demo::DemoArguments),
    /// Train with several run files on this machine, one after another, and compare the results
    Compare(compare::CompareArguments),
    /// Try values of a run file's keys, each trial at one of the peers, and find the best
    Sweep(Box<sweep::SweepArguments>),
    /// Measure the all-reduce speed between peers on this machine
    Bench(bench::BenchArguments),
    /// One peer of `bench`
    #[command(hide = true)]
    BenchPeer(bench::BenchPeerArguments),
    /// Measure how many table rows per second peers on this machine read and update
    BenchTable(bench::tables::BenchTableArguments),
    /// One peer of `bench-table`
    #[command(hide = true)]
    BenchTablePeer(bench::tables::BenchTablePeerArguments),
    /// Inspect a data file and print a commented run.toml for it
    Init {
        /// The data file: CSV with or without a header, LIBSVM, or IDX (MNIST's format) with the labels appended to the samples;
        /// plain or gzipped. Or a folder that has a folder of pictures for each class (PNG, JPEG, WebP), or a tar archive of one; a text,
        /// or a folder of texts; a Parquet file, or a folder of such files (with the feature `parquet`). Or `digits`: handwritten digits
        /// that are built in, so that you can try everything without a file
        #[arg(long, value_name = "FILE")]
        data: PathBuf,
        /// The kind of model: mlp, softmax, linear, logistic, svm; for ratings factorization, for documents lda, for rows that are
        /// pictures cnn or resnet, for prose gpt or llama. By default it follows from the data
        #[arg(long, value_name = "KIND", value_parser = files::model_kind)]
        model: Option<ModelKind>,
        /// A language model that the text is taught to: a file written by `peer export`, or a folder with config.json and
        /// model.safetensors, or several such files and their index (GPT-2, LLaMA, Qwen2, Mistral). Text and model become one file
        #[arg(long, value_name = "MODEL")]
        base: Option<PathBuf>,
        /// A tokenizer.json, which makes the tokens of the text; by default that of `--base`, and otherwise tokens are bytes
        #[arg(long, value_name = "FILE")]
        tokenizer: Option<PathBuf>,
        /// The column of a Parquet file whose texts a language model learns; by default the only column of texts
        #[arg(long, value_name = "NAME")]
        column: Option<String>,
        /// Height and width of the pictures of a folder, to which they are scaled; what is too long is cut
        #[arg(long, value_name = "PIXELS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
        size: u16,
        /// Drop the colours of the pictures of a folder
        #[arg(long)]
        grey: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Start a new run as its first peer, and print the join command for the other machines
    Start(StartArguments),
    #[command(flatten)]
    Run(RunCommand),
    /// Evaluate a saved model on a data file
    Evaluate(model::EvaluateArguments),
    /// Print what a saved model predicts for each row of a data file or each picture of a folder, as CSV
    Predict(predict::PredictArguments),
    /// Continue a text with a saved language model
    Generate(generate::GenerateArguments),
    /// Print the topics of a saved topic model, and how well it fits other documents
    Topics(topics::TopicsArguments),
}

/// The commands that every binary has, whatever it trains.
#[derive(Subcommand)]
enum RunCommand {
    /// Join a run
    Join(JoinArguments),
    /// Continue the run that a peer on this machine was in when it stopped
    Resume(ResumeArguments),
    /// Print a current invite from the peer that runs on this machine
    Invite(invite::InviteArguments),
    /// Show the state of peers on this machine, or of a remote one: members, shards, speed and problems
    Status(status::StatusArguments),
    /// Remove a member from the run permanently, after it has handed over its shard
    Remove(remove::RemoveArguments),
    /// End the run at all peers after the next step; each saves the same model
    EndRun(end_run::EndRunArguments),
    /// Change the run's secret without a restart; old invites stop working
    Rekey(rekey::RekeyArguments),
    /// Give up table chunks whose replicas are all gone; they restart from initial values
    DeclareLost(declare_lost::DeclareLostArguments),
    /// Copy the newest model of a peer on this machine: its newest checkpoint while the run goes on, or the model that it saved
    Export(export::ExportArguments),
}

/// The command line of a binary with a custom task.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct CustomCli {
    #[command(subcommand)]
    command: CustomCommand,
}

#[derive(Subcommand)]
enum CustomCommand {
    /// Start a new run as its first peer, and print the join command for the other machines
    Start(CustomStartArguments),
    #[command(flatten)]
    Run(RunCommand),
}

/// Runs the `peer` binary. `deep` computes deep networks, if it can.
#[must_use]
pub fn main(deep: DeepDevices) -> ExitCode {
    run_command(parsed(std::env::args_os()), deep)
}

/// The same inside a program with a command line of its own.
///
/// - `program`: the executable and the arguments that start this program again, before those of a command.
/// - `arguments`: the name of the program, and what its user has typed.
#[must_use]
pub fn main_of(program: impl IntoIterator<Item = String>, arguments: Vec<String>) -> ExitCode {
    swarm::set_program(program.into_iter().collect());
    run_command(parsed(arguments), DeepDevices::none())
}

fn run_command(Cli { command }: Cli, deep: DeepDevices) -> ExitCode {
    signals::outlive_file_size_limit();
    start_logging();
    finish(match command {
        Command::Demo(arguments) => demo::demo(&arguments, &deep.cpu),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::Sweep(arguments) => sweep::sweep(*arguments, &deep),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::BenchPeer(arguments) => bench::bench_peer(arguments),
        Command::BenchTable(arguments) => bench::tables::bench_table(&arguments),
        Command::BenchTablePeer(arguments) => bench::tables::bench_table_peer(arguments),
        Command::Init { data, model, base, tokenizer, column, size, grey, json } => {
            let settings = pictures::PackSettings { side: size.into(), grey };
            files::init(
                &data,
                model,
                (base.as_deref(), tokenizer.as_deref()),
                column.as_deref(),
                settings,
                OutputFormat::of_flag(json),
            )
        }
        Command::Start(arguments) => run::start(arguments, &deep),
        Command::Run(command) => command.run(|peer| device::peer_loader(peer, &deep)),
        Command::Evaluate(arguments) => model::evaluate(&arguments, &deep),
        Command::Predict(arguments) => predict::predict(&arguments, &deep),
        Command::Generate(arguments) => generate::generate(&arguments, &deep),
        Command::Topics(arguments) => topics::topics(&arguments),
    })
}

/// Runs a binary that trains a custom task: it has the commands of `peer` that do not depend on built-in models.
fn run_custom(training: Training) -> ExitCode {
    let CustomCli { command } = parsed(std::env::args_os());
    signals::outlive_file_size_limit();
    start_logging();
    finish(run_custom_command(training, command))
}

fn run_custom_command(training: Training, command: CustomCommand) -> anyhow::Result<ExitCode> {
    match command {
        CustomCommand::Start(arguments) => run::start_custom(&training, arguments),
        CustomCommand::Run(command) => command.run(|peer| {
            check_device_of_custom_task(peer)?;
            Ok(PeerLoader { loader: Arc::new(training.loader().within(peer.memory())), monitor: None })
        }),
    }
}

/// A custom task computes wherever its own code does.
fn check_device_of_custom_task(peer: &PeerArguments) -> anyhow::Result<()> {
    if peer.device == Some(ComputeDevice::Gpu) {
        anyhow::bail!(
            "`--device gpu` is for the deep networks of a run.toml; this program trains a task of its own"
        );
    }
    Ok(())
}

impl RunCommand {
    /// Carries the command out. `loader` returns what builds the task of a run that this peer joins or resumes, for a peer with these
    /// arguments.
    fn run(
        self,
        loader: impl FnOnce(&PeerArguments) -> anyhow::Result<PeerLoader>,
    ) -> anyhow::Result<ExitCode> {
        match self {
            Self::Join(arguments) => {
                let loader = loader(&arguments.peer)?;
                run::join(arguments, loader)
            }
            Self::Resume(arguments) => resume::resume(arguments, loader),
            Self::Invite(arguments) => invite::invite(&arguments),
            Self::Status(arguments) => status::status(&arguments),
            Self::Remove(arguments) => remove::remove(&arguments),
            Self::EndRun(arguments) => end_run::end_run(&arguments),
            Self::Rekey(arguments) => rekey::rekey(&arguments),
            Self::DeclareLost(arguments) => declare_lost::declare_lost(&arguments),
            Self::Export(arguments) => export::export(&arguments),
        }
    }
}

/// The arguments of a command line. An error repeats what was typed, but no invite.
fn parsed<A: Parser>(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> A {
    A::try_parse_from(arguments).unwrap_or_else(|error| {
        let text = error.render().to_string();
        match without_invites(text.trim_end()) {
            Cow::Owned(shown) if error.use_stderr() => {
                crate::terminal::complain(&shown);
                std::process::exit(USAGE_ERROR)
            }
            _ => error.exit(),
        }
    })
}

/// The exit code of a command: 1 as well if a result could not be written.
fn finish(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    let code = outcome.unwrap_or_else(|error| {
        let reason = without_invites(&format!("{error:#}")).into_owned();
        crate::terminal::complain(&format!("error: {reason}"));
        // A program that reads the JSON output does not see standard error. Commands without this option have rejected it before.
        if std::env::args_os().any(|argument| argument == "--json") {
            crate::terminal::emit(&serde_json::json!({"event": "failed", "reason": reason}));
        }
        ExitCode::FAILURE
    });
    if crate::terminal::is_output_incomplete() { ExitCode::FAILURE } else { code }
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

/// The exit code of a command line that is wrong.
const USAGE_ERROR: i32 = 2;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_help_mentions_the_built_in_data() {
        for name in ["init", "start"] {
            let mut command = Cli::command();
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(help.contains("digits") && help.contains("built in"), "{name}: {help}");
        }
    }
}
