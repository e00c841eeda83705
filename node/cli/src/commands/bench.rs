//! `peer bench`: measures the all-reduce speed between real peers on this machine.
//!
//! Real processes train a model with a trivial gradient over real connections, with membership and fault tolerance active. So the
//! time of a step, minus its gradient, covers an all-reduce of the whole model, the owners' update, and the commit. Here the cores
//! and the memory of one machine are the limit; between machines, the network is.
//!
//! # How it works
//! Each round measures all cases, one after another, so that a temporary load on the machine affects all cases alike. A case is its
//! own [`swarm`](super::swarm), whose peers run `bench-peer` of this program. The result of a round is the median over its steps,
//! without the first few; the result of a case is the median over its rounds.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use peergrad_models::task::{Evaluation, Task};
use peergrad_page::pairing::median;
use peergrad_protocol::limits::SEGMENT_ELEMENTS;
use peergrad_protocol::manifest::Manifest;
use serde_json::{Value, json};

use super::progress::Screen;
use super::scratch_directory::ScratchDirectory;
use super::swarm::{LineChannel, Swarm, SwarmConfig, SwarmOutput};
use super::{CustomCommand, run_custom_command, train};
use crate::terminal::{OutputFormat, emit, print_line};
use peergrad_embed::text::text_table::text_table;

/// Displays a value by its name in run files and on the command line.
macro_rules! shown_by_name {
    ($kind:ty) => {
        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.to_possible_value().expect("no value is hidden").get_name())
            }
        }
    };
}

mod rows;
pub(super) mod tables;

#[derive(Args)]
pub(super) struct BenchArguments {
    /// Numbers of peers, one case for each
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [2, 4],
          value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: Vec<u32>,
    /// Model sizes, in MiB of f32
    #[arg(long, value_name = "MIB,...", value_delimiter = ',', default_values_t = [16, 64],
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    mebibytes: Vec<u32>,
    /// Topologies of the all-reduce
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values_t = [Topology::Auto])]
    topology: Vec<Topology>,
    /// Encodings of gradients and parameters; a ring supports only `f32`
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values_t = [Codec::F32])]
    codec: Vec<Codec>,
    /// Segment size on the wire, in KiB
    #[arg(long, value_name = "KIB", default_value_t = SEGMENT_KIB, value_parser = clap::value_parser!(u32).range(1..=1024))]
    segment_kib: u32,
    /// How many times to measure each case
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measured steps in each round
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Print the results as JSON on standard output, one object a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Topology {
    Auto,
    Ring,
    Direct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Codec {
    F32,
    Bf16,
    F16,
    Int8,
}

shown_by_name!(Topology);
shown_by_name!(Codec);

/// One peer of a benchmark; `peer bench` starts it.
#[derive(Args)]
pub(super) struct BenchPeerArguments {
    /// Size of the model, in MiB.
    mebibytes: u32,
    /// Samples of the only epoch.
    samples: u32,
    #[command(subcommand)]
    command: CustomCommand,
}

/// One combination of settings.
#[derive(Clone, Copy, Debug)]
struct Case {
    peers: u32,
    mebibytes: u32,
    topology: Topology,
    codec: Codec,
    segment_kib: u32,
    steps: u32,
}

/// The result of one round of a case.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    /// Duration of a step.
    step_seconds: f64,
    /// Duration of a step without its gradient.
    reduce_seconds: f64,
    /// CPU time of one peer for one step; `None` where the system does not report it.
    cpu_seconds: Option<f64>,
    /// Bytes that one peer sends for one step.
    bytes_sent: f64,
}

/// The usage of the peers up to a certain step.
struct Usage {
    /// CPU time of all peers; `None` where the system does not report it.
    cpu_seconds: Option<f64>,
    /// Bytes that the founder has sent.
    bytes_sent: u64,
}

pub(super) fn bench(arguments: &BenchArguments) -> anyhow::Result<ExitCode> {
    let cases = cases(arguments)?;
    run_rounds(&cases, arguments.rounds, OutputFormat::of_flag(arguments.json))
}

/// One case of a benchmark, measured with its own swarm.
trait Bench {
    /// The result of one round.
    type Measurement;

    /// The settings as text.
    fn label(&self) -> String;

    /// Runs one round.
    fn measure(&self, output: &SwarmOutput, channel: &LineChannel) -> anyhow::Result<Self::Measurement>;

    /// The main result of a round, in a word or two.
    fn result_text(&self, measured: &Self::Measurement) -> String;

    /// The settings and the results as a JSON object.
    fn object(&self, measured: &Self::Measurement) -> Value;

    /// The medians over all rounds.
    fn median(measured: &[Self::Measurement]) -> Self::Measurement;

    /// All cases as a text table.
    fn results(cases: &[Self], measured: &[Vec<Self::Measurement>]) -> String
    where
        Self: Sized;
}

/// Measures all cases in each round, one after another, and prints the results.
fn run_rounds<C: Bench>(cases: &[C], rounds: u32, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let output = SwarmOutput { screen: Screen::new(), format };
    let channel = LineChannel::open();
    let mut measured: Vec<Vec<C::Measurement>> = cases.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        for (case, measured) in cases.iter().zip(&mut measured) {
            let one = case.measure(&output, &channel)?;
            if format.is_json() {
                let mut object = case.object(&one);
                object["event"] = "round".into();
                object["round"] = round.into();
                emit(&object);
            } else {
                output.screen.say(&format!("round {round}: {}: {}", case.label(), case.result_text(&one)));
            }
            measured.push(one);
        }
    }
    if format.is_json() {
        for (case, measured) in cases.iter().zip(&measured) {
            let mut object = case.object(&C::median(measured));
            object["event"] = "bench".into();
            emit(&object);
        }
    } else {
        print_line(C::results(cases, &measured).trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// One round of a case before its swarm starts.
struct BenchmarkRound {
    /// The swarm's name in errors.
    name: String,
    /// The arguments of this program before `start` and `join`.
    program: Vec<String>,
    run_file: PathBuf,
    peers: u32,
    /// The folder of the run file and of the peers' data. It is removed at the end.
    scratch: ScratchDirectory,
}

impl BenchmarkRound {
    /// Writes the run file.
    fn prepare(label: &str, program: Vec<String>, run_file_text: &str, peers: u32) -> anyhow::Result<Self> {
        let scratch = ScratchDirectory::create("bench")?;
        let run_file = scratch.path().join("run.toml");
        std::fs::write(&run_file, run_file_text).context("cannot write the run.toml")?;
        Ok(Self { name: format!("the benchmark with {label}"), program, run_file, peers, scratch })
    }

    fn start<'a>(&'a self, output: &SwarmOutput, channel: &'a LineChannel) -> anyhow::Result<Swarm<'a>> {
        let config = SwarmConfig {
            name: self.name.clone(),
            program: &self.program,
            run_file: &self.run_file,
            seed: None,
            data: None,
            peers: self.peers,
            folder: self.scratch.path(),
        };
        // A short run needs no progress bars.
        let quiet = SwarmOutput { format: OutputFormat::Json, ..output.clone() };
        Swarm::start(config, quiet, channel)
    }
}

/// The median over all rounds of one number.
fn median_of<M>(measured: &[M], number: fn(&M) -> f64) -> f64 {
    median(measured.iter().map(number)).expect("there is at least one round")
}

/// The smallest and the largest number, as text.
fn range_text(numbers: impl Iterator<Item = f64> + Clone, digits: usize) -> String {
    let (smallest, largest) = (numbers.clone().fold(f64::INFINITY, f64::min), numbers.fold(0.0, f64::max));
    format!("{smallest:.digits$} .. {largest:.digits$}")
}

/// A number as text, or a dash where the system does not report it.
fn optional_text(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
}

/// Every supported combination of the settings.
fn cases(arguments: &BenchArguments) -> anyhow::Result<Vec<Case>> {
    let (segment_kib, steps) = (arguments.segment_kib, arguments.steps);
    let mut cases = Vec::new();
    for &peers in &arguments.peers {
        for &mebibytes in &arguments.mebibytes {
            for &topology in &arguments.topology {
                for &codec in &arguments.codec {
                    // A ring would round the partial sums at every peer.
                    if topology != Topology::Ring || codec == Codec::F32 {
                        cases.push(Case { peers, mebibytes, topology, codec, segment_kib, steps });
                    }
                }
            }
        }
    }
    if cases.is_empty() {
        bail!("a ring supports only f32; leave out `--topology ring`");
    }
    Ok(cases)
}

impl Bench for Case {
    type Measurement = Measurement;

    fn label(&self) -> String {
        let Self { peers, mebibytes, topology, codec, .. } = self;
        format!("{peers} peers, {mebibytes} MiB, {topology}, {codec}")
    }

    fn measure(&self, output: &SwarmOutput, channel: &LineChannel) -> anyhow::Result<Measurement> {
        let all = self.steps + WARM_UP;
        let program =
            ["bench-peer", &self.mebibytes.to_string(), &(all * self.peers).to_string()].map(str::to_owned);
        let round = BenchmarkRound::prepare(&self.label(), program.to_vec(), &self.run_file(), self.peers)?;
        let mut swarm = round.start(output, channel)?;
        let mut ends = Vec::new();
        let (mut before, mut after) = (None, None);
        while swarm.advance()? {
            let peer = &swarm.peers[0];
            let (committed, now) = (peer.steps, (peer.usage.training_seconds, peer.usage.computing_seconds));
            if committed as usize <= ends.len() {
                continue;
            }
            ends.resize(committed as usize, now);
            let usage =
                || Usage { cpu_seconds: swarm.cpu_seconds(), bytes_sent: swarm.peers[0].usage.bytes_sent };
            if committed == u64::from(WARM_UP) {
                before = Some(usage());
            } else if committed == u64::from(all) {
                after = Some(usage());
            }
        }
        swarm.check_digests()?;
        match (before, after) {
            (Some(before), Some(after)) if ends.len() == all as usize => {
                Ok(self.measurement(&ends[WARM_UP as usize - 1..], &before, &after))
            }
            _ => bail!("the peers took {} steps instead of {all}", ends.len()),
        }
    }

    fn result_text(&self, measured: &Measurement) -> String {
        format!("{:.1} ms", measured.reduce_seconds * 1e3)
    }

    fn object(&self, measured: &Measurement) -> Value {
        json!({
            "peers": self.peers, "mebibytes": self.mebibytes, "topology": self.topology.to_string(),
            "codec": self.codec.to_string(), "step_seconds": measured.step_seconds,
            "reduce_seconds": measured.reduce_seconds,
            "bytes_per_second": self.bytes_per_second(measured), "bytes_sent": measured.bytes_sent,
            "cpu_seconds_per_gib_and_peer": self.cpu_per_gib(measured),
        })
    }

    fn median(measured: &[Measurement]) -> Measurement {
        Measurement {
            step_seconds: median_of(measured, |one| one.step_seconds),
            reduce_seconds: median_of(measured, |one| one.reduce_seconds),
            cpu_seconds: median(measured.iter().filter_map(|one| one.cpu_seconds)),
            bytes_sent: median_of(measured, |one| one.bytes_sent),
        }
    }

    fn results(cases: &[Self], measured: &[Vec<Measurement>]) -> String {
        let header = [
            "peers",
            "MiB",
            "topology",
            "codec",
            "ms",
            "min .. max",
            "GB/s",
            "CPU-s per GiB and peer",
            "ms per step",
        ];
        let rows = cases.iter().zip(measured).map(|(case, measured)| {
            let middle = Self::median(measured);
            vec![
                case.peers.to_string(),
                case.mebibytes.to_string(),
                case.topology.to_string(),
                case.codec.to_string(),
                format!("{:.1}", middle.reduce_seconds * 1e3),
                range_text(measured.iter().map(|one| one.reduce_seconds * 1e3), 1),
                format!("{:.2}", case.bytes_per_second(&middle) / 1e9),
                optional_text(case.cpu_per_gib(&middle), 2),
                format!("{:.1}", middle.step_seconds * 1e3),
            ]
        });
        text_table(&header, &rows.collect::<Vec<_>>())
    }
}

impl Case {
    /// The run file, with the cheapest optimizer.
    fn run_file(&self) -> String {
        let Self { peers, topology, codec, segment_kib, .. } = self;
        format!(
            "epochs = 1\nbatch = {peers}\n[optimizer]\nrule = \"sgd\"\nrate = 0.001\n[sync]\ntopology = \"{topology}\"\n\
             segment_kib = {segment_kib}\ngradients = \"{codec}\"\nparameters = \"{codec}\"\n"
        )
    }

    /// The medians over the steps between `ends`, which are the training and computing seconds at the end of each step.
    fn measurement(&self, ends: &[(f64, f64)], before: &Usage, after: &Usage) -> Measurement {
        let measured = ends.windows(2).map(|ends| (ends[1].0 - ends[0].0, ends[1].1 - ends[0].1));
        let step_seconds = median(measured.clone().map(|(all, _)| all)).expect("there is a measured step");
        let reduce_seconds =
            median(measured.map(|(all, computing)| all - computing)).expect("there is a measured step");
        let per_step = |sum: f64| sum / f64::from(self.steps);
        let cpu_seconds = before.cpu_seconds.zip(after.cpu_seconds);
        Measurement {
            step_seconds,
            reduce_seconds,
            cpu_seconds: cpu_seconds.map(|(before, after)| per_step(after - before) / f64::from(self.peers)),
            bytes_sent: per_step((after.bytes_sent - before.bytes_sent) as f64),
        }
    }

    /// Bytes of the model as f32.
    fn byte_count(&self) -> f64 {
        f64::from(self.mebibytes) * f64::from(1 << 20)
    }

    /// Bytes of the model as f32 per second, whatever the encoding.
    fn bytes_per_second(&self, measured: &Measurement) -> f64 {
        self.byte_count() / measured.reduce_seconds
    }

    /// CPU seconds of one peer per GiB of f32; `None` where the system does not report them.
    fn cpu_per_gib(&self, measured: &Measurement) -> Option<f64> {
        measured.cpu_seconds.map(|seconds| seconds * f64::from(1 << 30) / self.byte_count())
    }
}

/// Runs one peer.
pub(super) fn bench_peer(arguments: BenchPeerArguments) -> anyhow::Result<ExitCode> {
    let BenchPeerArguments { mebibytes, samples, command } = arguments;
    run_custom_command(train("bench", EmptyTask { mebibytes, samples }), command)
}

/// A task whose gradient is constant.
struct EmptyTask {
    mebibytes: u32,
    samples: u32,
}

impl Task for EmptyTask {
    fn manifest(&self) -> Manifest {
        Manifest::new([("nothing", &[self.mebibytes, 1 << 18][..])])
    }

    fn sample_count(&self) -> u32 {
        self.samples
    }

    fn gradient(&self, _: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(samples.len() as f32);
        0.0
    }

    fn evaluate(&self, _: &[f32]) -> Evaluation {
        Evaluation { samples: 1, loss: 0.0, accuracy: None }
    }
}

/// The default segment size, as in run files.
const SEGMENT_KIB: u32 = (SEGMENT_ELEMENTS * size_of::<f32>() / 1024) as u32;
/// Steps before the measurement, in which memory is allocated and congestion windows grow.
const WARM_UP: u32 = 5;
