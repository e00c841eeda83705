//! `simulate`: a swarm in virtual time. It runs the same nodes that run over libp2p, under faults that a seed decides. It also draws the
//! report of a real run, in the same form.

#![forbid(unsafe_code)]

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use peergrad_page::pairing::seeds;

mod compare;
mod delays;
mod json;
mod list;
mod mutants;
mod replay;
mod report;
mod run;
mod say;
mod source;
mod sweep;
mod text;

// A thousand nodes hold many small allocations, scattered over memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A swarm in virtual time: many peers, slow links, partitions and crashes on one machine, without waiting.
#[derive(Parser)]
#[command(name = "simulate", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The scenarios that come with the program.
    List,
    /// Prints a named scenario's file, to be copied and changed.
    Show {
        /// Its name.
        name: String,
    },
    /// Prints every key that a scenario file can have, explained; it is such a file itself.
    Keys,
    /// Runs a scenario once and prints what happened. Exit code 1 if an invariant was violated.
    Run(RunArguments),
    /// Runs a scenario again and prints what happened before and at the first violation, or before the end.
    Replay(ReplayArguments),
    /// Runs a scenario in its small size with many seeds, on all cores. Exit code 1 if any of them violated an invariant.
    Sweep(SweepArguments),
    /// Runs scenarios that train the same model in different ways, and compares how good the model is after how many samples, how much time
    /// and how many bytes.
    Compare(CompareArguments),
    /// Measures what stale parameters cost an algorithm, without a network: the number of batches until a model is good enough, where each
    /// update reaches each worker a number of iterations late. Each learning rate is one with which all are equally fast without staleness.
    Delays(DelaysArguments),
    /// Draws the report of a real run from the event logs in its peers' data directories: one HTML file, as for a simulated run. The clocks
    /// of the logs are aligned by the steps and views that several logs have.
    Report(ReportArguments),
    /// Runs mutants, which are planted bugs, and checks that the invariants notice them. Exit code 1 if one is missed.
    Mutants(MutantsArguments),
}

#[derive(Args)]
struct ScenarioArguments {
    /// A scenario's name, see `list`, or the path of a file.
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// Determines all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of peers, in place of the scenario's own.
    #[arg(long)]
    peers: Option<usize>,
    /// Use the small size that sweeps use.
    #[arg(long)]
    small: bool,
    /// Plant this bug, and check only the invariant that must notice it; see `mutants`.
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

#[derive(Args)]
struct RunArguments {
    #[command(flatten)]
    chosen: ScenarioArguments,
    /// Print one JSON object a line instead of text; the last one is the summary.
    #[arg(long)]
    json: bool,
    /// Write a report with charts: one HTML file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Args)]
struct ReplayArguments {
    #[command(flatten)]
    chosen: ScenarioArguments,
    /// How many events before it are printed.
    #[arg(long, default_value_t = 60)]
    lines: usize,
}

#[derive(Args)]
struct SweepArguments {
    /// Scenarios' names or files; without any, all that come with the program.
    #[arg(value_name = "NAME|FILE")]
    scenarios: Vec<String>,
    /// Seeds: from A up to, not including, B.
    #[arg(long, value_name = "A..B", default_value = "0..100", value_parser = seeds)]
    seeds: Range<u64>,
    /// Print one JSON object a scenario instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct CompareArguments {
    /// Names or files of two or more scenarios; the others are compared with the first.
    #[arg(value_name = "NAME|FILE", num_args = 2.., required = true)]
    scenarios: Vec<String>,
    /// Seeds: from A up to, not including, B. They also determine the initial parameters and the order of the samples.
    #[arg(long, value_name = "A..B", default_value = "1..4", value_parser = seeds)]
    seeds: Range<u64>,
    /// Write the curves: one HTML file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Args)]
struct DelaysArguments {
    /// Workers, each with its own cache of the parameters and its own optimizer.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// The most iterations by which an update is late; 0 is always measured, and first.
    #[arg(long, value_name = "S,S", value_delimiter = ',', default_values_t = [4, 16],
        value_parser = clap::value_parser!(u64).range(0..=1024))]
    staleness: Vec<u64>,
    /// Models: for each the widths of its hidden layers, separated by commas.
    #[arg(long, value_name = "WIDTHS", num_args = 1.., default_values = ["64", "64,64,64,64"], value_parser = delays::widths)]
    hidden: Vec<delays::Widths>,
    /// Optimizers, with the defaults of run.toml for all settings but the rate.
    #[arg(long, value_name = "RULE,RULE", value_delimiter = ',', default_values = ["sgd", "momentum", "adam"],
        value_parser = ["sgd", "momentum", "adagrad", "adam", "adamw", "prox"])]
    rules: Vec<String>,
    /// A learning rate for each of the optimizers, in place of a search with `--baseline-batches`.
    #[arg(long, value_name = "RATE,RATE", value_delimiter = ',', conflicts_with = "baseline_batches", value_parser = delays::positive)]
    rates: Vec<f64>,
    /// The learning rate is the smallest of twelve a decade that reaches the target in this number of batches without staleness.
    #[arg(long, value_name = "BATCHES", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    baseline_batches: u64,
    /// The held-out accuracy that the mean of all caches must reach.
    #[arg(long, value_name = "SHARE", default_value_t = 0.93, value_parser = delays::positive)]
    target: f64,
    /// The held-out loss that it must reach, in place of an accuracy.
    #[arg(long, value_name = "LOSS", conflicts_with = "target", value_parser = delays::positive)]
    target_loss: Option<f64>,
    /// Number of batches, over all workers, after which a study that has not reached the target ends.
    #[arg(long, value_name = "BATCHES", default_value_t = 16_000)]
    batches_max: u64,
    /// Samples of a batch.
    #[arg(long, value_name = "SAMPLES", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Seeds: from A up to, not including, B. They determine initial parameters, the order of the samples and the delays.
    #[arg(long, value_name = "A..B", default_value = "1..6", value_parser = seeds)]
    seeds: Range<u64>,
    /// A data file, as for `peer init`, in place of the digits that come with the program.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Print one JSON object for each line of the table and staleness, instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ReportArguments {
    /// Event logs: data directories of peers, or their files events.jsonl; those of all peers give the best report.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// The file to write.
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// The run, by the beginning of its id, if the logs have several; without it, the last run.
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
}

#[derive(Args)]
struct MutantsArguments {
    /// Seeds to try: from A up to, not including, B.
    #[arg(long, value_name = "A..B", default_value = "0..200", value_parser = seeds)]
    seeds: Range<u64>,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::List => list::list(),
        Command::Show { name } => list::show(&name),
        Command::Keys => list::keys(),
        Command::Run(arguments) => run::run(&arguments),
        Command::Replay(arguments) => replay::replay(&arguments),
        Command::Sweep(arguments) => sweep::sweep(&arguments),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::Delays(arguments) => delays::delays(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Mutants(arguments) => mutants::mutants(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        if !say::is_closed(&error) {
            eprintln!("simulate: {error:#}");
        }
        ExitCode::from(2)
    })
}
