//! `peer start` and `peer join`: runs one peer, from its arguments to its exit code.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use peergrad_config::specification::{ComputeDevice, RunFile, resolve_with_notices};
use peergrad_core::node::StartMode;
use peergrad_core::program::loader::Loader;
use peergrad_embed::text::command_name::command_name;
use peergrad_embed::{Connectivity, DataSource, DirectoryChoice, Peer, PeerEvent, PeerHandle, PeerOptions};
use peergrad_net::{Mdns, random_bytes};
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::limits::MEMBERS_MAX;
use peergrad_protocol::message::Contact;

use super::Training;
use super::arguments::{
    CustomStartArguments, FounderArguments, JoinArguments, PeerArguments, StartArguments,
};
use super::check_device_of_custom_task;
use super::device::{self, DeepDevices, PeerLoader};
use super::files;
use super::join_target::{JoinTarget, join_target_of, multiaddresses, secret_for_a_new_run};
use super::progress::Screen;
use super::report::{Report, UsageMeter};
use super::signals::{stop_requested, stop_requested_again};
use super::started_from::StartedFrom;
use super::sweep::display::SweepDisplay;
use super::sweep::local_peers::LocalPeersPlan;
use super::sweep::monitor::SweepMonitor;
use super::sweep::wanted_files::WantedFiles;
use crate::terminal::{OutputFormat, complain};

/// Starts a new run of a built-in model.
pub(super) fn start(arguments: StartArguments, deep: &DeepDevices) -> anyhow::Result<ExitCode> {
    let path = &arguments.run_file;
    let run_file = read_run_file(path, arguments.founder.seed)?;
    let name = &run_file.data()?.file;
    let memory = arguments.founder.peer.memory();
    if let Some(path) =
        files::data_path(path, name).filter(|_| !run_file.model.kind.is_deep() || name.ends_with(".gz"))
    {
        // A file that cannot be read is an error below. The samples of deep networks may stay on disk.
        memory.check(std::fs::metadata(path).map_or(0, |metadata| metadata.len()))?;
    }
    let data = files::data_of(path, name)?;
    let (specification, notices) = resolve_with_notices(&run_file, name, &data)?;
    files::warn_about(name, &notices);
    memory.check(specification.memory_bytes())?;
    let peer = &arguments.founder.peer;
    let device = if run_file.model.kind.is_deep() {
        peer.device.or(run_file.compute.device).unwrap_or_default()
    } else {
        if peer.device == Some(ComputeDevice::Gpu) {
            complain("only deep networks are computed on a GPU; this model is computed on the processor");
        }
        ComputeDevice::Cpu
    };
    let deep = deep.open(device, OutputFormat::of_flag(peer.json))?;
    specification.check_backend(&deep)?;
    let specification = specification.to_bytes()?;
    let started_from = StartedFrom::read(path);
    let data = DataSource::loaded(data, files::data_path(path, name));
    let loader = device::loader(device, memory, deep, SweepMonitor::new());
    found(&run_file, started_from, specification, loader, data, arguments.founder)
}

/// Starts a new run of this binary's custom task.
pub(super) fn start_custom(training: &Training, arguments: CustomStartArguments) -> anyhow::Result<ExitCode> {
    check_device_of_custom_task(&arguments.founder.peer)?;
    let mut run_file = training.settings.clone();
    if let Some(path) = &arguments.run_file {
        run_file = read_run_file_over(path, &run_file)?;
    }
    let run_file = with_seed(run_file, arguments.founder.seed);
    let specification = training.specification(&run_file)?.to_bytes()?;
    let loader = Arc::new(training.loader().within(arguments.founder.peer.memory()));
    let started_from = arguments.run_file.as_deref().and_then(StartedFrom::read);
    found(&run_file, started_from, specification, loader, DataSource::search(None), arguments.founder)
}

/// Reads a run file. `seed`, if given, replaces the file's.
pub(super) fn read_run_file(path: &Path, seed: Option<u64>) -> anyhow::Result<RunFile> {
    Ok(with_seed(read_run_file_over(path, &RunFile::default())?, seed))
}

/// The settings of the file; those that it does not mention are taken from `defaults`.
fn read_run_file_over(path: &Path, defaults: &RunFile) -> anyhow::Result<RunFile> {
    let name = path.display();
    const OF_DATA: [&str; 6] = ["csv", "tsv", "gz", "libsvm", "svm", "idx"];
    let is_data = |extension: &std::ffi::OsStr| OF_DATA.iter().any(|data| extension == *data);
    if path.extension().is_some_and(is_data) {
        bail!(
            "{name} looks like a data file; create a run file for it first: `{} init --data {name} > run.toml`",
            command_name()
        );
    }
    let mut run_file =
        RunFile::parse_over(&files::read_text(path)?, defaults).with_context(|| name.to_string())?;
    if let Some(data) = &mut run_file.data {
        let folder = path.parent().unwrap_or(Path::new(""));
        data.read_word_lists(|list| files::read(&folder.join(list)))
            .with_context(|| format!("{name}: lists of words are paths relative to that file's folder"))?;
    }
    Ok(run_file)
}

fn with_seed(run_file: RunFile, seed: Option<u64>) -> RunFile {
    RunFile { seed: seed.unwrap_or(run_file.seed), ..run_file }
}

fn found(
    run_file: &RunFile,
    started_from: Option<StartedFrom>,
    specification: Vec<u8>,
    loader: Arc<dyn Loader>,
    data: DataSource,
    arguments: FounderArguments,
) -> anyhow::Result<ExitCode> {
    // `run_file` holds the seed already.
    let FounderArguments { peers, seed: _, secret_file, peer } = arguments;
    let peers = peers.unwrap_or(run_file.network.peers) as usize;
    if peers == 0 || peers > MEMBERS_MAX {
        bail!("--peers counts this peer too: give 1 to train alone, or at most {MEMBERS_MAX}");
    }
    let secret = match secret_file {
        Some(path) => secret_for_a_new_run(&path)?,
        None => Secret(random_bytes()),
    };
    let options = PeerOptions::new_run(run_file, specification.into(), peers, loader);
    run(
        PeerOptions { secret, data, ..options },
        peer,
        Surroundings { started_from, ..Surroundings::default() },
    )
}

pub(super) fn join(
    arguments: JoinArguments,
    PeerLoader { loader, monitor }: PeerLoader,
) -> anyhow::Result<ExitCode> {
    let JoinTarget { run: run_id, secret, bootstrap_addresses } =
        join_target_of(&arguments.invite, &arguments.more, arguments.secret_file.as_deref())?;
    if let Some(path) = &arguments.data {
        // Fails now, rather than after this peer is admitted.
        std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    let options = PeerOptions::new(StartMode::Join { run: run_id }, secret, loader);
    let data = DataSource::search(arguments.data);
    let surroundings = Surroundings { monitor, ..Surroundings::default() };
    run(PeerOptions { bootstrap_addresses, data, ..options }, arguments.peer, surroundings)
}

/// What belongs to a peer besides its run.
#[derive(Default)]
pub(super) struct Surroundings {
    /// The run file that it founds the run from; `None` if it founds none, or from no file.
    pub(super) started_from: Option<StartedFrom>,
    /// What the worker of a sweep tells; `None` if the run can be none.
    pub(super) monitor: Option<Arc<SweepMonitor>>,
    /// The peers to start beside it.
    pub(super) local_peers: LocalPeersPlan,
    /// What to write at the end of a sweep.
    pub(super) wanted: WantedFiles,
}

/// Runs one peer until its run has ended.
pub(super) fn run(
    options: PeerOptions,
    arguments: PeerArguments,
    surroundings: Surroundings,
) -> anyhow::Result<ExitCode> {
    let Surroundings { started_from, monitor, local_peers, wanted } = surroundings;
    let format = OutputFormat::of_flag(arguments.json);
    let secret = options.secret;
    let resumed = if let StartMode::Join { run } = &options.start_mode { *run } else { None };
    let mut peer = Peer::start(with_arguments(options, arguments)?)?;
    let (handle, started) = (peer.handle(), peer.start_report());
    if let (Some(file), Some(run)) = (started_from, started.founded) {
        file.keep(&started.directory, run);
    }
    let meter = UsageMeter { clock: handle.clock(), counters: Arc::clone(handle.counters()) };
    let mut report = Report::new(started.peer, format, meter);
    report.started(started);
    if let (Some(run), Some(invite)) = (started.founded, handle.invite()) {
        report.invite(&invite.to_string(), &run);
    }
    let directory = started.directory.clone();
    let contact = Contact { peer: started.peer, addresses: started.addresses.clone() };
    let of_resumed = resumed.map(|run| Invite { run, secret, contacts: vec![contact] });
    let others = local_peers.start(&directory, handle.invite().or(of_resumed))?;
    let screen = report.screen();
    let display = monitor.clone().map(|monitor| SweepDisplay::start(monitor, screen, format)).transpose()?;
    leave_when_interrupted(report.screen(), handle, monitor.clone())?;
    let is_sweep = || monitor.as_ref().is_some_and(|monitor| monitor.is_sweep());
    let outcome = loop {
        match peer.next().context("the peer stopped unexpectedly")? {
            PeerEvent::Node(event) => {
                if is_sweep() {
                    report.leave_training_to_display();
                }
                report.event(&event);
            }
            PeerEvent::Notice(notice) => report.notice(&notice),
            PeerEvent::Ended(outcome) => break outcome,
            PeerEvent::Panicked(reason) => bail!("the peer stopped unexpectedly: {reason}"),
        }
    };
    if let Some(display) = display {
        display.finish(outcome.is_success());
    }
    let written = monitor.as_ref().map_or(Ok(()), |monitor| wanted.write(monitor, format));
    report.outcome(&outcome, &directory);
    drop(others);
    written?;
    let code = if outcome.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    // The outcome is reported even if saving has failed.
    outcome.model?;
    Ok(code)
}

/// The options, with what the user gave in their place.
fn with_arguments(options: PeerOptions, arguments: PeerArguments) -> anyhow::Result<PeerOptions> {
    let PeerArguments { listen, port, external, upnp, no_mdns, dir, capacity, threads, metrics, .. } =
        arguments;
    let of_run = options.connectivity;
    let connectivity = Connectivity {
        listen,
        port: port.or(of_run.port),
        external: multiaddresses(&external)?,
        upnp,
        mdns: if no_mdns { Mdns::Off } else { of_run.mdns },
    };
    let threads = threads.or(options.threads);
    let directory = match (options.directory, dir) {
        (DirectoryChoice::Default, Some(path)) => DirectoryChoice::At(path),
        (chosen, _) => chosen,
    };
    Ok(PeerOptions { directory, connectivity, capacity, threads, metrics, ..options })
}

/// Asks the peer to leave at the first Ctrl-C; a second one stops the process at once. Waits on a thread of its own, since the others may
/// wait for the reader of the output.
fn leave_when_interrupted(
    screen: Screen,
    peer: PeerHandle,
    monitor: Option<Arc<SweepMonitor>>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot wait for signals")?;
    let wait = move || {
        runtime.block_on(stop_requested());
        let (said, saying) = mpsc::channel();
        let say = move || {
            screen.say("leaving; press Ctrl-C again to stop at once without saving");
            said.send(())
        };
        // It waits for the reader of the output, if that does not read.
        if thread::Builder::new().spawn(say).is_ok() {
            let _ = saying.recv_timeout(SAYING_MAX);
        }
        if let Some(monitor) = &monitor {
            monitor.leave();
        }
        peer.leave();
        runtime.block_on(stop_requested_again());
        std::process::exit(1);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).context("cannot wait for signals")?;
    Ok(())
}

/// How long a peer waits for the reader of the output before it leaves.
const SAYING_MAX: Duration = Duration::from_millis(200);
