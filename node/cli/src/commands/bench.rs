//! `peer bench`: how fast tensors go round, between real peers on this machine.
//!
//! A model that costs next to nothing to compute is trained by real processes over the real lanes, with membership and all that
//! faults need in place; so a step without its gradient is an all-reduce of the whole model, the owners' update, and the commit.
//! What limits it here are the cores and the memory of one machine; between machines it is their lines.
//!
//! # How it works
//! All cases are measured in each round, one after the other, so that a machine that is slow for a while is so for all of them.
//! A case is a [`swarm`](super::swarm) of its own, whose peers are this program's `bench-peer` with the same number of parameters.
//! Of each round's steps the median counts, after the first few; of the rounds, the median again.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use peergrad_core::program::ProgramFactory;
use peergrad_models::task::{Evaluation, Task};
use peergrad_page::pairing::median;
use peergrad_protocol::limits::SEGMENT_ELEMENTS;
use peergrad_protocol::manifest::Manifest;
use serde_json::{Value, json};

use super::progress::Screen;
use super::swarm::{LineChannel, ScratchDirectory, Swarm, SwarmConfig, SwarmOutput};
use super::{CustomCommand, run_custom_command};
use crate::terminal::{emit, print_line};
use crate::text::text_table::text_table;

/// As it is written in a run file, and on the command line.
macro_rules! shown_by_name {
    ($kind:ty) => {
        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.to_possible_value().expect("none is hidden").get_name())
            }
        }
    };
}

mod rows;
pub(super) mod tables;

#[derive(Args)]
pub(super) struct BenchArguments {
    /// Peers, one case for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [2, 4],
          value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: Vec<u32>,
    /// Sizes of the model, in MiB of f32
    #[arg(long, value_name = "MIB,...", value_delimiter = ',', default_values_t = [16, 64],
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    mebibytes: Vec<u32>,
    /// How tensors travel
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values_t = [Topology::Auto])]
    topology: Vec<Topology>,
    /// What elements travel as, gradients and parameters alike; a ring carries `f32` only
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values_t = [Codec::F32])]
    codec: Vec<Codec>,
    /// Size of one piece on the wire, in KiB
    #[arg(long, value_name = "KIB", default_value_t = SEGMENT_KIB, value_parser = clap::value_parser!(u32).range(1..=1024))]
    segment_kib: u32,
    /// How often all cases are measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Steps that count in each round
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// The results as JSON, one object a line, on standard output
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

/// A peer of a bench; `peer bench` starts it.
#[derive(Args)]
pub(super) struct BenchPeerArguments {
    mebibytes: u32,
    samples: u32,
    #[command(subcommand)]
    command: CustomCommand,
}

/// What is measured at once.
#[derive(Clone, Copy, Debug)]
struct Case {
    peers: u32,
    mebibytes: u32,
    topology: Topology,
    codec: Codec,
    segment_kib: u32,
    steps: u32,
}

/// What one round of a case came to.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    step_seconds: f64,
    /// A step without the time in which the gradient is made.
    reduce_seconds: f64,
    /// Of one peer, in one step; `None` where the system does not tell.
    cpu_seconds: Option<f64>,
    /// Sent by one peer in one step.
    bytes_sent: f64,
}

pub(super) fn bench(arguments: &BenchArguments) -> anyhow::Result<ExitCode> {
    let cases = cases(arguments)?;
    run_rounds(&cases, arguments.rounds, arguments.json)
}

/// What is measured at once: a swarm of its own.
trait Bench {
    /// What one round of it came to.
    type Measurement;

    fn label(&self) -> String;

    fn measure(&self, output: &SwarmOutput, channel: &LineChannel) -> anyhow::Result<Self::Measurement>;

    /// What a round came to, in a word or two.
    fn result_text(&self, measured: &Self::Measurement) -> String;

    fn object(&self, measured: &Self::Measurement) -> Value;

    /// The medians of all rounds.
    fn median(measured: &[Self::Measurement]) -> Self::Measurement;

    /// All of them as a table.
    fn results(cases: &[Self], measured: &[Vec<Self::Measurement>]) -> String
    where
        Self: Sized;
}

/// Measures all cases in each round, one after the other, and tells the results.
fn run_rounds<C: Bench>(cases: &[C], rounds: u32, is_json: bool) -> anyhow::Result<ExitCode> {
    let output = SwarmOutput { screen: Screen::new(), is_json };
    let channel = LineChannel::open();
    let mut measured: Vec<Vec<C::Measurement>> = cases.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        for (case, measured) in cases.iter().zip(&mut measured) {
            let one = case.measure(&output, &channel)?;
            if output.is_json {
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
    if output.is_json {
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

/// Every combination that there is.
fn cases(arguments: &BenchArguments) -> anyhow::Result<Vec<Case>> {
    let (segment_kib, steps) = (arguments.segment_kib, arguments.steps);
    let mut cases = Vec::new();
    for &peers in &arguments.peers {
        for &mebibytes in &arguments.mebibytes {
            for &topology in &arguments.topology {
                for &codec in &arguments.codec {
                    // Sums on their way round a ring would be rounded at every peer.
                    if topology != Topology::Ring || codec == Codec::F32 {
                        cases.push(Case { peers, mebibytes, topology, codec, segment_kib, steps });
                    }
                }
            }
        }
    }
    if cases.is_empty() {
        bail!("a ring carries f32 only; leave out `--topology ring`");
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
        let scratch = ScratchDirectory::create("bench")?;
        let run_file = scratch.path().join("run.toml");
        std::fs::write(&run_file, self.run_file()).context("cannot write the run.toml")?;
        let steps = self.steps;
        let all = steps + WARM_UP;
        let program =
            ["bench-peer", &self.mebibytes.to_string(), &(all * self.peers).to_string()].map(str::to_owned);
        let config = SwarmConfig {
            name: format!("the bench with {}", self.label()),
            program: &program,
            run_file: &run_file,
            seed: None,
            data: None,
            peers: self.peers,
            folder: scratch.path(),
        };
        // Bars of a few steps tell nobody anything.
        let quiet = SwarmOutput { is_json: true, ..output.clone() };
        let mut swarm = Swarm::start(config, quiet, channel)?;
        let mut ends = Vec::new();
        let (mut before, mut after) = (None, None);
        while swarm.advance()? {
            let peer = &swarm.peers[0];
            let (committed, now) = (peer.steps, (peer.usage.training_seconds, peer.usage.computing_seconds));
            if committed as usize <= ends.len() {
                continue;
            }
            ends.resize(committed as usize, now);
            let usage = || (swarm.cpu_seconds(), swarm.peers[0].usage.bytes_sent);
            if committed == u64::from(WARM_UP) {
                before = Some(usage());
            } else if committed == u64::from(all) {
                after = Some(usage());
            }
        }
        swarm.check_digests()?;
        let ((Some((cpu_before, sent_before)), Some((cpu_after, sent_after))), true) =
            ((before, after), ends.len() == all as usize)
        else {
            bail!("the peers took {} steps and not {all}", ends.len());
        };
        let counted = &ends[WARM_UP as usize - 1..];
        let measured = counted.windows(2).map(|ends| (ends[1].0 - ends[0].0, ends[1].1 - ends[0].1));
        let step_seconds = median(measured.clone().map(|(all, _)| all)).expect("steps are counted");
        let reduce_seconds = median(measured.map(|(all, computing)| all - computing)).expect("as many");
        let per_step = |sum: f64| sum / f64::from(steps);
        let cpu_seconds =
            cpu_before.zip(cpu_after).map(|(before, after)| per_step(after - before) / f64::from(self.peers));
        Ok(Measurement {
            step_seconds,
            reduce_seconds,
            cpu_seconds,
            bytes_sent: per_step((sent_after - sent_before) as f64),
        })
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
        let of =
            |number: fn(&Measurement) -> f64| median(measured.iter().map(number)).expect("there is a round");
        Measurement {
            step_seconds: of(|one| one.step_seconds),
            reduce_seconds: of(|one| one.reduce_seconds),
            cpu_seconds: median(measured.iter().filter_map(|one| one.cpu_seconds)),
            bytes_sent: of(|one| one.bytes_sent),
        }
    }

    fn results(cases: &[Self], measured: &[Vec<Measurement>]) -> String {
        let header = [
            "peers",
            "MiB",
            "topology",
            "codec",
            "ms",
            "from .. to",
            "GB/s",
            "CPU-s per GiB and peer",
            "ms a step",
        ];
        let rows = cases.iter().zip(measured).map(|(case, measured)| {
            let steps = || measured.iter().map(|one| one.reduce_seconds * 1e3);
            let middle = Self::median(measured);
            let (fastest, slowest) = (steps().fold(f64::INFINITY, f64::min), steps().fold(0.0, f64::max));
            let cpu =
                case.cpu_per_gib(&middle).map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}"));
            vec![
                case.peers.to_string(),
                case.mebibytes.to_string(),
                case.topology.to_string(),
                case.codec.to_string(),
                format!("{:.1}", middle.reduce_seconds * 1e3),
                format!("{fastest:.1} .. {slowest:.1}"),
                format!("{:.2}", case.bytes_per_second(&middle) / 1e9),
                cpu,
                format!("{:.1}", middle.step_seconds * 1e3),
            ]
        });
        text_table(&header, &rows.collect::<Vec<_>>())
    }
}

impl Case {
    /// The cheapest rule there is.
    fn run_file(&self) -> String {
        let Self { peers, topology, codec, segment_kib, .. } = self;
        format!(
            "epochs = 1\nbatch = {peers}\n[optimizer]\nrule = \"sgd\"\nrate = 0.001\n[sync]\ntopology = \"{topology}\"\n\
             segment_kib = {segment_kib}\ngradients = \"{codec}\"\nparameters = \"{codec}\"\n"
        )
    }

    fn byte_count(&self) -> f64 {
        f64::from(self.mebibytes) * f64::from(1 << 20)
    }

    /// Of the model as f32, whatever travels.
    fn bytes_per_second(&self, measured: &Measurement) -> f64 {
        self.byte_count() / measured.reduce_seconds
    }

    fn cpu_per_gib(&self, measured: &Measurement) -> Option<f64> {
        measured.cpu_seconds.map(|seconds| seconds * f64::from(1 << 30) / self.byte_count())
    }
}

/// Runs one of the peers.
pub(super) fn bench_peer(arguments: BenchPeerArguments) -> anyhow::Result<ExitCode> {
    let BenchPeerArguments { mebibytes, samples, command } = arguments;
    run_custom_command("bench", Arc::new(EmptyTask { mebibytes, samples }), ProgramFactory::sync(), command)
}

/// A model whose gradient is always the same.
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

/// As in a run file.
const SEGMENT_KIB: u32 = (SEGMENT_ELEMENTS * size_of::<f32>() / 1024) as u32;
/// Steps that do not count: memory is taken and windows open.
const WARM_UP: u32 = 5;
