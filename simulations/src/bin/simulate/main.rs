//! `simulate`: a swarm in virtual time. It runs the same nodes that run over libp2p, under faults that a seed decides. It also draws
//! reports of real runs.

#![forbid(unsafe_code)]

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use peergrad_page::pairing::seeds;
use peergrad_simulations::delays::fixed::DELAY_MAX;

mod compare;
mod delays;
mod fixed_delays;
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
    /// Lists the scenarios that come with the program.
    List,
    /// Prints the file of a named scenario, to copy and change.
    Show {
        /// Its name.
        name: String,
    },
    /// Prints a scenario file that explains every key.
    Keys,
    /// Runs a scenario once and prints what happened. Exit code 1 if an invariant was violated.
    Run(RunArguments),
    /// Repeats a run and prints the last events before its first violation, or before its end.
    Replay(ReplayArguments),
    /// Runs a scenario in its small size with many seeds, on all cores. Exit code 1 if any of them violated an invariant.
    Sweep(SweepArguments),
    /// Runs scenarios that train the same model in different ways, and compares the quality of the model against samples, time and bytes.
    Compare(CompareArguments),
    /// Measures the cost of stale parameters, without a network: the number of batches until a model reaches a target, if each update
    /// reaches each worker some iterations late. The learning rates are chosen so that all cases are equally fast without staleness.
    Delays(DelaysArguments),
    /// Draws the report of a real run from its peers' event logs: one HTML file, as for a simulated run. The clocks of the logs are aligned
    /// by the steps and views that several logs share.
    Report(ReportArguments),
    /// Runs scenarios with planted bugs (mutants) and checks that the invariants catch them. Exit code 1 if one is missed.
    Mutants(MutantsArguments),
}

#[derive(Args)]
struct ScenarioArguments {
    /// Name of a scenario (see `list`), or path of a scenario file.
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of peers, instead of the scenario's.
    #[arg(long)]
    peers: Option<usize>,
    /// Use the small size that sweeps use.
    #[arg(long)]
    small: bool,
    /// Plant this bug (see `mutants`), and check only the invariant that must catch it.
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

#[derive(Args)]
struct RunArguments {
    #[command(flatten)]
    chosen: ScenarioArguments,
    /// Print one JSON object per line instead of text; the last one is the summary.
    #[arg(long)]
    json: bool,
    /// Write a report with charts as one HTML file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Args)]
struct ReplayArguments {
    #[command(flatten)]
    chosen: ScenarioArguments,
    /// Number of events to print.
    #[arg(long, default_value_t = 60)]
    lines: usize,
}

#[derive(Args)]
struct SweepArguments {
    /// Names or files of scenarios; default: all that come with the program.
    #[arg(value_name = "NAME|FILE")]
    scenarios: Vec<String>,
    /// Seeds: from A up to, not including, B.
    #[arg(long, value_name = "A..B", default_value = "0..100", value_parser = seeds)]
    seeds: Range<u64>,
    /// Print one JSON object per scenario instead of text.
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
    /// Write the curves as one HTML file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Args)]
struct DelaysArguments {
    /// Workers, each with its own cache of the parameters and its own optimizer.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Greatest delays of an update, in iterations; 0 is always measured, and first.
    #[arg(long, value_name = "S,S", value_delimiter = ',', default_values_t = [4, 16],
        value_parser = clap::value_parser!(u64).range(0..=1024))]
    staleness: Vec<u64>,
    /// Models, each given by the widths of its hidden layers, separated by commas.
    #[arg(long, value_name = "WIDTHS", num_args = 1.., default_values = ["64", "64,64,64,64"], value_parser = delays::widths)]
    hidden: Vec<delays::Widths>,
    /// Optimizers, with the default settings of run.toml except for the learning rate.
    #[arg(long, value_name = "RULE,RULE", value_delimiter = ',', default_values = ["sgd", "momentum", "adam"],
        value_parser = ["sgd", "momentum", "adagrad", "adam", "adamw", "prox"])]
    rules: Vec<String>,
    /// A learning rate for each optimizer, instead of a search with `--baseline-batches`.
    #[arg(long, value_name = "RATE,RATE", value_delimiter = ',', conflicts_with = "baseline_batches", value_parser = delays::positive)]
    rates: Vec<f64>,
    /// Number of batches in which the target must be reached without staleness. The smallest learning rate that does so is used, of twelve
    /// rates per decade.
    #[arg(long, value_name = "BATCHES", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    baseline_batches: u64,
    /// The target: held-out accuracy of the mean of all workers' caches.
    #[arg(long, value_name = "SHARE", default_value_t = 0.93, value_parser = delays::positive)]
    target: f64,
    /// The target as a held-out loss, instead of an accuracy.
    #[arg(long, value_name = "LOSS", conflicts_with = "target", value_parser = delays::positive)]
    target_loss: Option<f64>,
    /// Number of batches, over all workers, after which a study ends without having reached the target.
    #[arg(long, value_name = "BATCHES", default_value_t = 16_000)]
    batches_max: u64,
    /// Samples per batch.
    #[arg(long, value_name = "SAMPLES", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Seeds: from A up to, not including, B. They determine initial parameters, the order of the samples and the delays.
    #[arg(long, value_name = "A..B", default_value = "1..6", value_parser = seeds)]
    seeds: Range<u64>,
    /// A data file, as for `peer init`, instead of the built-in digits.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Measures something else, with one learner: its average regret after 20,000 steps, if each gradient is late by the same number of
    /// steps, one of these (default: 0,4,16,64; 0 is always measured, and first). Two of the built-in digits, logistic regression.
    #[arg(long, value_name = "DELAY,DELAY", value_delimiter = ',', num_args = 0..=1, default_missing_values = ["0", "4", "16", "64"],
        value_parser = clap::value_parser!(u64).range(0..=DELAY_MAX as u64), conflicts_with_all = ["workers", "staleness", "hidden", "rules", "rates",
        "baseline_batches", "target", "target_loss", "batches_max", "batch", "data"])]
    fixed: Option<Vec<u64>>,
    /// Print one JSON object for each row of the table and each staleness, instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ReportArguments {
    /// Event logs: data directories of peers, or their files events.jsonl. Give the logs of all peers if you have them.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// The file to write.
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// The beginning of a run's id, if the logs contain several runs; default: the last run.
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
