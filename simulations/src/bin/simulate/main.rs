//! `simulate`: a swarm in virtual time. The same nodes that run over libp2p, under faults that a seed decides. And the report
//! of a real run, which is drawn the same way.

#![forbid(unsafe_code)]

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use peergrad::pairing::seeds;

mod compare;
mod json;
mod list;
mod plants;
mod replay;
mod report;
mod run;
mod say;
mod source;
mod sweep;
mod words;

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
    /// Runs a scenario once and says what happened. Exit code 1 if a law was broken.
    Run(RunArguments),
    /// Runs a scenario again and prints what happened around the first thing that was against a law, or before the end.
    Replay(ReplayArguments),
    /// Runs a scenario in its small size with many seeds, on all cores. Exit code 1 if any of them broke a law.
    Sweep(SweepArguments),
    /// Runs scenarios that train the same model in different ways, and compares them: how good the model is after how many
    /// samples, how much time, how many bytes.
    Compare(CompareArguments),
    /// Draws the report of a real run from the event logs that its peers have written to their data directories: one HTML file,
    /// as of a simulated run. The logs' clocks are set by the steps and views that several of them tell of.
    Report(LogArguments),
    /// Plants known bugs and looks whether the laws notice them. Exit code 1 if one is missed.
    Plants(PlantsArguments),
}

#[derive(Args)]
struct Chosen {
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
    /// With this planted bug, watched by its law alone; see `plants`.
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
}

#[derive(Args)]
struct RunArguments {
    #[command(flatten)]
    chosen: Chosen,
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
    chosen: Chosen,
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
struct LogArguments {
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
struct PlantsArguments {
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
        Command::Report(arguments) => report::report(&arguments),
        Command::Plants(arguments) => plants::plants(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        if !say::is_closed(&error) {
            eprintln!("simulate: {error:#}");
        }
        ExitCode::from(2)
    })
}
