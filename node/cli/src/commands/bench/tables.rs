//! `peer bench-table`: measures how many table rows per second peers on this machine read and update.
//!
//! Every peer is a worker and owns a part of the table: a parameter server without a server. An acknowledged addition is stored on
//! all replicas. The cores of one machine, which all peers share, are the limit here.
//!
//! # How it works
//! As in [`bench`](super), each round measures all cases, and a case is its own swarm. Its peers run the program of
//! [`rows`](super::rows) and report completed operations. The measurement covers the operations of that program's third part, without
//! the last tenth, in which workers run out of work one after another. The memory of a row is the growth of all peers between two
//! states, a table with a few rows and the whole table, divided by the number of new rows.

use std::convert::Infallible;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use peergrad_net::MonotonicClock;
use peergrad_page::pairing::median;
use peergrad_protocol::Instant;
use serde_json::{Value, json};

use super::super::arguments::former;
use super::super::swarm::{LineChannel, Swarm, SwarmOutput};
use super::super::{CustomCommand, Training, run_custom_command, train};
use super::rows::{EPOCHS_BEFORE, FEW, OperationsTask, TableWorkload, Work};
use super::{Bench, BenchmarkRound, median_of, optional_text, range_text, run_rounds};
use crate::terminal::OutputFormat;
use peergrad_embed::text::text_table::text_table;

#[derive(Args)]
pub(crate) struct BenchTableArguments {
    /// Numbers of peers, one case for each
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [2, 4],
          value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: Vec<u32>,
    /// Row widths, in numbers of four bytes
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [16],
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    width: Vec<u32>,
    /// What workers do: read rows, add to them, or do both to the same rows
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values_t = [Work::Get, Work::Add, Work::Both])]
    work: Vec<Work>,
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    rows: u32,
    /// Rows per operation, spread over the whole table
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(FEW)))]
    batch: u32,
    /// Operations that a worker has in flight
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    in_flight: u32,
    /// Replicas of each row, its owner included
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=8))]
    replicas: u32,
    /// How often each row is accessed in each round
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    epochs: u32,
    /// Make each operation atomic: other peers keep its additions in a journal before the owners of its rows get them
    #[arg(long)]
    atomic: bool,
    /// The former name of `--replicas`
    #[arg(long = "copies", hide = true, value_name = "N", value_parser = former("--replicas"))]
    _copies: Option<Infallible>,
    /// The former name of `--epochs`
    #[arg(long = "passes", hide = true, value_name = "N", value_parser = former("--epochs"))]
    _passes: Option<Infallible>,
    /// How many times to measure each case
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print the results as JSON on standard output, one object a line
    #[arg(long)]
    json: bool,
}

/// One peer of a table benchmark; `peer bench-table` starts it.
#[derive(Args)]
pub(crate) struct BenchTablePeerArguments {
    #[command(flatten)]
    shape: TableWorkload,
    #[command(subcommand)]
    command: CustomCommand,
}

/// One combination of settings.
#[derive(Clone, Copy, Debug)]
struct Case {
    peers: u32,
    replicas: u32,
    shape: TableWorkload,
}

/// The result of one round of a case, over all peers.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    /// Rows per second that were read, or added to; with both, as many of each.
    rows_per_second: f64,
    /// CPU time for one row; `None` where the system does not report it.
    cpu_seconds: Option<f64>,
    /// Bytes sent for one row.
    bytes_sent: f64,
    /// Memory of one row with all its replicas and indices; `None` where the system does not report it.
    resident_bytes: Option<f64>,
}

/// The usage of all peers up to a certain time.
struct Usage {
    /// The time.
    at: Instant,
    /// Completed operations.
    operations: u64,
    cpu_seconds: Option<f64>,
    bytes_sent: u64,
    resident_bytes: Option<u64>,
}

impl Usage {
    fn of(swarm: &Swarm, at: Instant) -> Self {
        let peers = &swarm.peers;
        Self {
            at,
            operations: peers.iter().map(|peer| peer.trained.samples).sum(),
            cpu_seconds: swarm.cpu_seconds(),
            bytes_sent: peers.iter().map(|peer| peer.usage.bytes_sent).sum(),
            resident_bytes: swarm.resident_bytes(),
        }
    }
}

pub(crate) fn bench_table(arguments: &BenchTableArguments) -> anyhow::Result<ExitCode> {
    let cases = cases(arguments);
    run_rounds(&cases, arguments.rounds, OutputFormat::of_flag(arguments.json))
}

/// Every combination of the settings.
fn cases(arguments: &BenchTableArguments) -> Vec<Case> {
    let BenchTableArguments { rows, batch, in_flight, replicas, epochs, atomic, .. } = *arguments;
    let mut cases = Vec::new();
    for &peers in &arguments.peers {
        for &width in &arguments.width {
            for &work in &arguments.work {
                let shape = TableWorkload { rows, width, batch, work, in_flight, epochs, atomic };
                cases.push(Case { peers, replicas, shape: shape.with_whole_operations() });
            }
        }
    }
    cases
}

impl Bench for Case {
    type Measurement = Measurement;

    fn label(&self) -> String {
        let Self { peers, shape: TableWorkload { width, work, .. }, .. } = self;
        format!("{peers} peers, {width} numbers per row, {work}")
    }

    fn measure(&self, output: &SwarmOutput, channel: &LineChannel) -> anyhow::Result<Measurement> {
        let mut program = vec!["bench-table-peer".to_owned()];
        program.extend(self.shape.arguments());
        let round = BenchmarkRound::prepare(&self.label(), program, &self.run_file(), self.peers)?;
        let mut swarm = round.start(output, channel)?;
        let epoch = u64::from(self.shape.operations());
        let counted = (epoch * u64::from(self.shape.epochs)) as f64 * COUNTED;
        let (before, filled) = (epoch, u64::from(EPOCHS_BEFORE) * epoch);
        // The usage is read when the number of operations passes each of these.
        let marks = [before, filled, filled + counted as u64];
        let (clock, mut usages) = (MonotonicClock::start(), Vec::<Usage>::new());
        while swarm.advance()? {
            let done: u64 = swarm.peers.iter().map(|peer| peer.trained.samples).sum();
            if marks.get(usages.len()).is_some_and(|mark| done >= *mark) {
                usages.push(Usage::of(&swarm, clock.now()));
            }
        }
        let Ok([few, all, end]) = <[Usage; 3]>::try_from(usages) else {
            bail!("the peers ended before they had accessed all rows");
        };
        Ok(self.between(&few, &all, &end))
    }

    fn result_text(&self, measured: &Measurement) -> String {
        format!("{:.0} rows/s", measured.rows_per_second)
    }

    fn object(&self, measured: &Measurement) -> Value {
        let Self { peers, replicas, shape } = self;
        let (gets, adds) = self.gets_and_adds(measured);
        json!({
            "peers": peers, "replicas": replicas, "rows": shape.rows, "width": shape.width,
            "work": shape.work.to_string(), "batch": shape.batch, "in_flight": shape.in_flight, "atomic": shape.atomic,
            "gets_per_second": gets, "adds_per_second": adds,
            "value_bytes_per_second": self.value_bytes_per_second(measured),
            "cpu_seconds_per_row": measured.cpu_seconds, "bytes_sent_per_row": measured.bytes_sent,
            "resident_bytes_per_row": measured.resident_bytes,
        })
    }

    fn median(measured: &[Measurement]) -> Measurement {
        Measurement {
            rows_per_second: median_of(measured, |one| one.rows_per_second),
            cpu_seconds: median(measured.iter().filter_map(|one| one.cpu_seconds)),
            bytes_sent: median_of(measured, |one| one.bytes_sent),
            resident_bytes: median(measured.iter().filter_map(|one| one.resident_bytes)),
        }
    }

    fn results(cases: &[Self], measured: &[Vec<Measurement>]) -> String {
        let header = [
            "peers",
            "numbers",
            "work",
            "gets/s",
            "adds/s",
            "min .. max",
            "MB/s",
            "CPU-us per row",
            "bytes sent per row",
            "bytes kept per row",
        ];
        let rows = cases.iter().zip(measured).map(|(case, measured)| {
            let middle = Self::median(measured);
            let (gets, adds) = case.gets_and_adds(&middle);
            vec![
                case.peers.to_string(),
                case.shape.width.to_string(),
                case.shape.work.to_string(),
                format!("{gets:.0}"),
                format!("{adds:.0}"),
                range_text(measured.iter().map(|one| one.rows_per_second), 0),
                format!("{:.1}", case.value_bytes_per_second(&middle) / 1e6),
                optional_text(middle.cpu_seconds.map(|seconds| seconds * 1e6), 2),
                format!("{:.0}", middle.bytes_sent),
                optional_text(middle.resident_bytes, 0),
            ]
        });
        text_table(&header, &rows.collect::<Vec<_>>())
    }
}

impl Case {
    /// The result, from the usage with a few rows, with all rows, and at the end of the measurement.
    fn between(&self, few: &Usage, all: &Usage, end: &Usage) -> Measurement {
        let seconds = end.at.since(all.at).as_secs_f64();
        let rows = (end.operations - all.operations) as f64 * f64::from(self.shape.batch);
        let grown = few.resident_bytes.zip(all.resident_bytes);
        let new_rows = f64::from(self.shape.rows - FEW);
        Measurement {
            rows_per_second: rows / seconds,
            cpu_seconds: all.cpu_seconds.zip(end.cpu_seconds).map(|(before, after)| (after - before) / rows),
            bytes_sent: (end.bytes_sent - all.bytes_sent) as f64 / rows,
            resident_bytes: grown.map(|(before, after)| (after as f64 - before as f64) / new_rows),
        }
    }

    fn run_file(&self) -> String {
        let epochs = EPOCHS_BEFORE + self.shape.epochs;
        format!("epochs = {epochs}\nbatch = {OPERATIONS_PER_CLOCK}\n[shards]\nreplicas = {}\n", self.replicas)
    }

    /// Rows read per second, and rows added to per second.
    fn gets_and_adds(&self, measured: &Measurement) -> (f64, f64) {
        let work = self.shape.work;
        let of = |is_done: bool| if is_done { measured.rows_per_second } else { 0.0 };
        (of(work.reads()), of(work.adds()))
    }

    /// Bytes of row values that are read or added per second.
    fn value_bytes_per_second(&self, measured: &Measurement) -> f64 {
        let (gets, adds) = self.gets_and_adds(measured);
        (gets + adds) * f64::from(self.shape.width) * size_of::<f32>() as f64
    }
}

/// Runs one peer.
pub(crate) fn bench_table_peer(arguments: BenchTablePeerArguments) -> anyhow::Result<ExitCode> {
    let BenchTablePeerArguments { shape, command } = arguments;
    run_custom_command(
        Training { program: shape.launch(), ..train("bench-table", OperationsTask(shape.operations())) },
        command,
    )
}

/// How many operations a worker is assigned for one clock.
const OPERATIONS_PER_CLOCK: u32 = 16;
/// The measured share of the third part's operations. At the end, workers run out of work one after another.
const COUNTED: f64 = 0.9;
