//! `peer sweep`: tries values of a run file's keys on all machines of a swarm, and finds the best.
//!
//! The peers of a sweep share a table of trials. Each trains whole trials alone and adds their results; see [`peergrad_config::sweep`]. The
//! first peer prints an invite, with which others join by `peer join`, as they join any run. With `--peers N`, it also starts N - 1 more
//! processes on this machine.
//!
//! | file | what it has |
//! |---|---|
//! | [`monitor`] | what the worker tells, on its way to the display |
//! | [`display`] | lines, the live table, JSON |
//! | [`table`] | the text and the objects |
//! | [`page`] | the picture |
//! | [`local_peers`] | the processes on this machine |
//! | [`wanted_files`] | the page and the best run file |

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use peergrad_config::specification::{ComputeDevice, RunFile};
use peergrad_config::sweep::specification::{StrategyChoice, SweepPlan, run_file_with};
use peergrad_config::sweep::{SweepSpecification, TrialSource};
use peergrad_embed::{DataSource, PeerOptions, threads_of_one};
use peergrad_net::random_bytes;
use peergrad_protocol::invite::Secret;

use super::arguments::{PeerArguments, ResumeArguments};
use super::device::{self, DeepDevices};
use super::join_target::secret_for_a_new_run;
use super::run::{Surroundings, run};
use super::started_from::StartedFrom;
use super::{compare, files, resume};
use crate::terminal::{OutputFormat, complain};
use local_peers::LocalPeersPlan;
use monitor::SweepMonitor;
use wanted_files::WantedFiles;

pub(super) mod display;
pub(super) mod local_peers;
pub(super) mod monitor;
mod page;
mod table;
pub(super) mod wanted_files;

#[derive(Args)]
pub(super) struct SweepArguments {
    /// The run file whose keys vary, as written by `peer init`
    #[arg(value_name = "RUN.toml", required_unless_present = "resume")]
    run_file: Option<PathBuf>,
    /// A key and the values to try, once for each key: `optimizer.rate=0.001,0.01`, `model.hidden=[32],[128,64]`; a range of numbers
    /// `LOW..HIGH`, with `:log` by factors, from which random trials draw; or COUNT numbers of it, `LOW..HIGH:log:COUNT`. Keys: `epochs`,
    /// `batch`, `shuffle`, and those of [model] and [optimizer]
    #[arg(long, value_name = "KEY=VALUES", conflicts_with = "resume")]
    vary: Vec<String>,
    /// How trials are chosen: `grid` trains all combinations, `random` draws some. `halving` trains all of them a little, and the better
    /// ones more; `asha` does so without waiting for all. These two take a grid, or random trials with --trials [default: grid, or
    /// random with --trials]
    #[arg(long, value_name = "STRATEGY", conflicts_with = "resume")]
    strategy: Option<StrategyName>,
    /// How many trials to draw at random, 1 to 512
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    trials: Option<usize>,
    /// Seed of the draws and of each training; overrides `seed` in run.toml
    #[arg(long, value_name = "S", conflicts_with = "resume")]
    seed: Option<u64>,
    /// `halving` and `asha`: one of so many trials goes on to the next rung, with so many times as many epochs, 2 to 16 [default: 3]
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    eta: Option<usize>,
    /// `halving` and `asha`: the number of rungs, 1 to 8. The highest has all epochs of the run file [default: 3, or fewer for few trials
    /// or epochs]
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    rungs: Option<usize>,
    /// `asha`: how many trials are under way at most; the result depends on it, and not on the number of peers [default: 8]
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    parallel: Option<usize>,
    /// How many peers to start on this machine, this one included; peers on other machines come on top, with `peer join`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    /// How many peers to wait for before the first trial, this one and those on other machines included [default: those that this
    /// machine starts]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), conflicts_with = "resume")]
    wait_for: Option<u32>,
    /// Write a page with pictures of all results to this HTML file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the run file with the best values to this file
    #[arg(long, value_name = "FILE")]
    best: Option<PathBuf>,
    /// Continue the sweep that the last peer on this machine was in, from its checkpoints (--dir selects the data directory)
    #[arg(long)]
    resume: bool,
    /// Read the sweep's secret from this file, or create the file with a new secret; others then use `join ADDRESS --secret-file`
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    peer: PeerArguments,
}

/// The strategies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StrategyName {
    /// All combinations.
    Grid,
    /// Random combinations.
    Random,
    /// Successive halving.
    Halving,
    /// Asynchronous successive halving.
    Asha,
}

pub(super) fn sweep(arguments: SweepArguments, deep: &DeepDevices) -> anyhow::Result<ExitCode> {
    for path in arguments.report.iter().chain(&arguments.best) {
        compare::check_writable(path)?;
    }
    if arguments.resume { continue_sweep(arguments, deep) } else { start_sweep(arguments, deep) }
}

/// Starts a new sweep.
fn start_sweep(arguments: SweepArguments, deep: &DeepDevices) -> anyhow::Result<ExitCode> {
    let plan = arguments.plan()?;
    let SweepArguments { run_file: path, peers, wait_for, report, best, secret_file, mut peer, seed, .. } =
        arguments;
    let path = path.context("give a run file: `peer sweep run.toml --vary KEY=VALUES`")?;
    let text = files::read_text(&path)?;
    let run_file = super::run::read_run_file(&path, seed)?;
    let name = &run_file.data()?.file;
    let memory = peer.memory();
    let data = files::data_of(&path, name)?;
    let source = plan(&run_file);
    let (specification, notices) = SweepSpecification::resolve(&run_file, &text, &source, name, &data)?;
    files::warn_about(name, &notices);
    memory.check(specification.memory_bytes())?;
    let device = peer.device.or(run_file.compute.device).unwrap_or_default();
    let deep = open_device(&specification, device, deep, &peer)?;
    specification.trial(0).check_backend(&deep)?;
    let monitor = SweepMonitor::new();
    let loader = device::loader(device, memory, deep, Arc::clone(&monitor));
    let secret = match secret_file {
        Some(path) => secret_for_a_new_run(&path)?,
        None => Secret(random_bytes()),
    };
    if peers > 1 {
        peer.threads = Some(peer.threads.unwrap_or_else(|| threads_of_one(peers as usize)));
    }
    let bytes = specification.to_bytes()?;
    let options =
        PeerOptions::new_run(&run_file, bytes.into(), peers.max(wait_for.unwrap_or(1)) as usize, loader);
    let data_path = files::data_path(&path, name);
    let local_peers = LocalPeersPlan::of(peers, data_path.clone(), &peer);
    let data = DataSource::loaded(data, data_path);
    let text = if let Some(seed) = seed { with_seed(&text, seed)? } else { text };
    let surroundings = Surroundings {
        started_from: StartedFrom::read(&path),
        monitor: Some(monitor),
        local_peers,
        wanted: WantedFiles { report, best: best.map(|path| (path, text)) },
    };
    run(PeerOptions { secret, data, ..options }, peer, surroundings)
}

/// Continues a sweep that was stopped.
fn continue_sweep(arguments: SweepArguments, deep: &DeepDevices) -> anyhow::Result<ExitCode> {
    let SweepArguments { run_file, peers, report, best, peer, .. } = arguments;
    let resumed = ResumeArguments { extra: None, alone: false, data: None, peer };
    let text = run_file.as_deref().map(files::read_text).transpose()?;
    let loader = |peer: &PeerArguments| device::peer_loader(peer, deep);
    resume::resume_with(resumed, loader, |surroundings, peer, stopped| {
        if !SweepSpecification::is_one(stopped.specification()) {
            bail!(
                "the last run of this machine was no sweep: `peer resume` continues it, and --dir selects another"
            );
        }
        let text = text.or_else(|| surroundings.started_from.as_ref().map(|file| file.text().to_owned()));
        if best.is_some() && text.is_none() {
            bail!(
                "give the run file too: `peer sweep run.toml --resume --best FILE` writes it with the best values"
            );
        }
        surroundings.wanted = WantedFiles { report, best: best.zip(text) };
        surroundings.local_peers = LocalPeersPlan::resumed(peers, stopped.directory(), peer);
        Ok(())
    })
}

/// What computes the trials, if they are deep networks.
fn open_device(
    specification: &SweepSpecification,
    device: ComputeDevice,
    deep: &DeepDevices,
    peer: &PeerArguments,
) -> anyhow::Result<peergrad_config::specification::DeepBackend> {
    let is_deep = specification.trial(0).model.is_deep();
    if !is_deep && peer.device == Some(ComputeDevice::Gpu) {
        complain("only deep networks are computed on a GPU; these models are computed on the processor");
    }
    deep.open(if is_deep { device } else { ComputeDevice::Cpu }, OutputFormat::of_flag(peer.json))
}

/// The text of a run file with another seed.
fn with_seed(text: &str, seed: u64) -> anyhow::Result<String> {
    Ok(run_file_with(text, &["seed".to_owned()], &[seed.to_string()])?)
}

impl SweepArguments {
    /// What the user asks for, as a function of the run file, whose seed may be the one of the draws.
    ///
    /// # Errors
    /// Options that do not go together.
    fn plan(&self) -> anyhow::Result<impl Fn(&RunFile) -> SweepPlan + use<>> {
        let by_trials = if self.trials.is_some() { StrategyName::Random } else { StrategyName::Grid };
        let name = self.strategy.unwrap_or(by_trials);
        match (name, self.trials) {
            (StrategyName::Grid, Some(_)) => {
                bail!("a grid has all trials: leave `--trials` out, or use `--strategy random`")
            }
            (StrategyName::Random, None) => {
                bail!("say how many trials to draw: `--strategy random --trials N`")
            }
            _ => {}
        }
        let climbs = matches!(name, StrategyName::Halving | StrategyName::Asha);
        for (option, is_given) in [("--eta", self.eta.is_some()), ("--rungs", self.rungs.is_some())] {
            if is_given && !climbs {
                bail!("`{option}` is for `--strategy halving` and `asha`: leave it out, or use one of these");
            }
        }
        if self.parallel.is_some() && name != StrategyName::Asha {
            bail!("`--parallel` is for `--strategy asha`: leave it out, or use that");
        }
        let (eta, rungs, parallel) = (self.eta.unwrap_or(ETA), self.rungs, self.parallel.unwrap_or(PARALLEL));
        let strategy = match name {
            StrategyName::Grid | StrategyName::Random => StrategyChoice::All,
            StrategyName::Halving => StrategyChoice::Halving { eta, rungs },
            StrategyName::Asha => StrategyChoice::Asha { eta, rungs, parallel },
        };
        let (variations, trials) = (self.vary.clone(), self.trials);
        Ok(move |run: &RunFile| SweepPlan {
            variations: variations.clone(),
            source: trials.map_or(TrialSource::Grid, |count| TrialSource::Random { count, seed: run.seed }),
            strategy,
        })
    }
}

/// One of so many trials goes on by default.
const ETA: usize = 3;
/// How many trials ASHA has under way at most, by default.
const PARALLEL: usize = 8;
