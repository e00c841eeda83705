//! `simulate`: a swarm in virtual time. The same nodes that run over libp2p, under faults that a seed decides. And the report
//! of a real run, which is drawn the same way.

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

// What a thousand nodes hold is small, much, and all over the place.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A swarm in virtual time: many peers, slow lines, partitions and crashes on one machine, without waiting.
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
    /// Runs a scenario once and says what happened. Exit code 1 if an invariant was broken.
    Run(RunArguments),
    /// Runs a scenario again and prints what happened around the first thing that was against an invariant, or before the end.
    Replay(ReplayArguments),
    /// Runs a scenario in its small size with many seeds, on all cores. Exit code 1 if any of them broke an invariant.
    Sweep(SweepArguments),
    /// Runs scenarios that train the same model in different ways, and compares them: how good the model is after how many
    /// samples, how much time, how many bytes.
    Compare(CompareArguments),
    /// Measures what stale parameters cost an algorithm, without a network: batches until a model is good enough, where each update
    /// reaches each worker up to so many iterations late. Learning rates are those with which all are as fast while nothing is stale.
    Delays(DelaysArguments),
    /// Draws the report of a real run from the event logs that its peers have written to their data directories: one HTML file,
    /// as of a simulated run. The logs' clocks are set by the steps and views that several of them tell of.
    Report(ReportArguments),
    /// Runs mutants, which are known bugs, and checks that the invariants notice them. Exit code 1 if one is missed.
    Mutants(MutantsArguments),
}

#[derive(Args)]
struct ScenarioArguments {
    /// A scenario's name, see `list`, or the path of a file.
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// Decides everything that chance decides.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Peers, in place of the scenario's own number.
    #[arg(long)]
    peers: Option<usize>,
    /// In the small size that sweeps use.
    #[arg(long)]
    small: bool,
    /// With this planted bug, watched by its invariant alone; see `mutants`.
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

#[derive(Args)]
struct RunArguments {
    #[command(flatten)]
    chosen: ScenarioArguments,
    /// One JSON object a line instead of words; the last one sums up.
    #[arg(long)]
    json: bool,
    /// Writes a report with pictures: one HTML file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Args)]
struct ReplayArguments {
    #[command(flatten)]
    chosen: ScenarioArguments,
    /// How many things before it are printed.
    #[arg(long, default_value_t = 60)]
    lines: usize,
}

#[derive(Args)]
struct SweepArguments {
    /// Scenarios' names or files; all that come with the program if none is given.
    #[arg(value_name = "NAME|FILE")]
    scenarios: Vec<String>,
    /// Which seeds: from A up to, not including, B.
    #[arg(long, value_name = "A..B", default_value = "0..100", value_parser = seeds)]
    seeds: Range<u64>,
    /// One JSON object a scenario instead of words.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct CompareArguments {
    /// Two or more scenarios' names or files; the first is what the others are compared with.
    #[arg(value_name = "NAME|FILE", num_args = 2.., required = true)]
    scenarios: Vec<String>,
    /// Which seeds: from A up to, not including, B. They decide the initial parameters and the order of the samples too.
    #[arg(long, value_name = "A..B", default_value = "1..4", value_parser = seeds)]
    seeds: Range<u64>,
    /// Writes the curves: one HTML file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Args)]
struct DelaysArguments {
    /// Workers, each with its own cache of the parameters and its own optimizer.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// The most iterations that an update is late; 0 is always looked at, and first.
    #[arg(long, value_name = "S,S", value_delimiter = ',', default_values_t = [4, 16],
        value_parser = clap::value_parser!(u64).range(0..=1024))]
    staleness: Vec<u64>,
    /// Models: for each the widths of its hidden layers, with commas.
    #[arg(long, value_name = "WIDTHS", num_args = 1.., default_values = ["64", "64,64,64,64"], value_parser = delays::widths)]
    hidden: Vec<delays::Widths>,
    /// Optimizers, with what run.toml has by default for all but the rate.
    #[arg(long, value_name = "RULE,RULE", value_delimiter = ',', default_values = ["sgd", "momentum", "adam"],
        value_parser = ["sgd", "momentum", "adagrad", "adam", "adamw", "prox"])]
    rules: Vec<String>,
    /// A learning rate for each of the optimizers, in place of those that are found by `--baseline-batches`.
    #[arg(long, value_name = "RATE,RATE", value_delimiter = ',', conflicts_with = "baseline_batches", value_parser = delays::positive)]
    rates: Vec<f64>,
    /// The learning rate is the smallest of twelve a decade that comes to the target in so many batches where nothing is stale.
    #[arg(long, value_name = "BATCHES", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    baseline_batches: u64,
    /// Held-out accuracy to be reached by the mean of all caches.
    #[arg(long, value_name = "SHARE", default_value_t = 0.93, value_parser = delays::positive)]
    target: f64,
    /// Held-out loss to be reached, in place of an accuracy.
    #[arg(long, value_name = "LOSS", conflicts_with = "target", value_parser = delays::positive)]
    target_loss: Option<f64>,
    /// Batches, by all workers together, after which a study that has not reached the target is given up.
    #[arg(long, value_name = "BATCHES", default_value_t = 16_000)]
    batches_max: u64,
    /// Samples of a batch.
    #[arg(long, value_name = "SAMPLES", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Which seeds: from A up to, not including, B. They decide initial parameters, the order of the samples and the delays.
    #[arg(long, value_name = "A..B", default_value = "1..6", value_parser = seeds)]
    seeds: Range<u64>,
    /// A data file, as for `peer init`, in place of the digits that come with the program.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// One JSON object for each line of the table and staleness, instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ReportArguments {
    /// Event logs: data directories of peers, or files out of them (events.jsonl); of as many peers as there are.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// Where the page is written.
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// The run, by the beginning of its id, if the logs tell of several; else it is the last.
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
}

#[derive(Args)]
struct MutantsArguments {
    /// Which seeds are tried: from A up to, not including, B.
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
