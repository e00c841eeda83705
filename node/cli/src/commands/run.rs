//! `peer start` and `peer join`: runs one peer, from its arguments to its exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use peergrad_config::specification::{BuiltinLoader, RunFile, resolve_with_notices};
use peergrad_core::io::DataReference;
use peergrad_core::node::{Config, Node, StartMode};
use peergrad_core::program::loader::Loader;
use peergrad_core::state::shared_cache::SharedCache;
use peergrad_net::driver::DataFinder;
use peergrad_net::{
    BootstrapAddress, CheckpointStore, Checkpoints, ChosenDirectory, Compute, DEFAULT_PORT, Damaged,
    Directory, Environment, Listen, Mdns, MonotonicClock, Network, NetworkOptions, Notice, Port,
    StableStorage, drive, random_bytes,
};
use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::limits::{CONTACTS_MAX, MEMBERS_MAX, SEGMENTS_KEPT_MAX};
use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::{Incarnation, PeerId, Pool, RunId};
use tokio::sync::mpsc;

use super::Training;
use super::arguments::{
    CustomStartArguments, FounderArguments, JoinArguments, PeerArguments, StartArguments,
};
use super::files;
use super::join_target::{JoinTarget, join_target_of, multiaddresses, secret_for_a_new_run};
use super::progress::Screen;
use super::report::{Report, UsageMeter};
use super::running_peer::RunningPeer;
use super::signals::{stop_requested, stop_requested_again};
use super::started_from::StartedFrom;
use crate::status::log::LogOrigin;
use crate::status::{EventStreams, MetricsPort, Monitoring};
use crate::terminal::{OutputFormat, program_name};

/// How one peer is to run.
pub(super) struct PeerPlan {
    pub(super) start_mode: StartMode,
    pub(super) loader: Arc<dyn Loader>,
    pub(super) secret: Secret,
    pub(super) bootstrap_addresses: Vec<BootstrapAddress>,
    pub(super) data: DataSource,
    pub(super) peer: PeerArguments,
    /// The data directory, if it is already open; `None` selects one from the arguments.
    pub(super) directory: Option<Directory>,
    /// The run file that a new run is started from; `None` without one.
    pub(super) started_from: Option<StartedFrom>,
}

/// Where the run's data file comes from.
pub(super) struct DataSource {
    /// Its bytes, if it has been read. The first request takes them, so that a file that nobody needs any more takes no memory.
    loaded: Mutex<Option<Arc<[u8]>>>,
    /// Its path on this machine, if the user gave one.
    path: Option<PathBuf>,
}

impl DataSource {
    /// It has to be found on this machine, at this path if there is one.
    pub(super) fn search(path: Option<PathBuf>) -> Self {
        Self { loaded: Mutex::new(None), path }
    }

    /// The data file: what has been read, from among the checkpoints, or found on this machine.
    fn find(&self, reference: &DataReference, checkpoints: &CheckpointStore) -> Option<Arc<[u8]>> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
        let loaded = loaded.or_else(|| checkpoints.data(reference));
        loaded.or_else(|| files::find_data(reference, self.path.as_deref()))
    }
}

/// Starts a new run of a built-in model.
pub(super) fn start(arguments: StartArguments) -> anyhow::Result<ExitCode> {
    let path = &arguments.run_file;
    let run_file = read_run_file(path, arguments.founder.seed)?;
    let name = &run_file.data()?.file;
    let memory = arguments.founder.peer.memory();
    if let Some(path) = files::data_path(path, name) {
        // A file that cannot be read is an error below.
        memory.check(std::fs::metadata(path).map_or(0, |metadata| metadata.len()))?;
    }
    let data: Arc<[u8]> = files::data_of(path, name)?.into();
    let (specification, notices) = resolve_with_notices(&run_file, name, &data)?;
    files::warn_about(name, &notices);
    memory.check(specification.memory_bytes())?;
    let specification = specification.to_bytes()?;
    let started_from = StartedFrom::read(path);
    let data = DataSource { loaded: Mutex::new(Some(data)), path: files::data_path(path, name) };
    let loader = Arc::new(BuiltinLoader { memory });
    found(&run_file, started_from, specification, loader, data, arguments.founder)
}

/// Starts a new run of this binary's custom task.
pub(super) fn start_custom(training: &Training, arguments: CustomStartArguments) -> anyhow::Result<ExitCode> {
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
            program_name()
        );
    }
    RunFile::parse_over(&files::read_text(path)?, defaults).with_context(|| name.to_string())
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
    let FounderArguments { peers, seed: _, secret_file, mut peer } = arguments;
    // The default port may be replaced by a free one if it is taken, even if the file states it.
    let port = run_file.network.port;
    peer.port = peer.port.or((port != DEFAULT_PORT).then_some(port));
    peer.no_mdns |= !run_file.network.mdns;
    peer.threads = peer.threads.or(run_file.compute.threads);
    let peers = peers.unwrap_or(run_file.network.peers) as usize;
    if peers == 0 || peers > MEMBERS_MAX {
        bail!("--peers counts this peer too: give 1 to train alone, or at most {MEMBERS_MAX}");
    }
    let secret = match secret_file {
        Some(path) => secret_for_a_new_run(&path)?,
        None => Secret(random_bytes()),
    };
    let start_mode = StartMode::Bootstrap {
        specification: specification.into(),
        nonce: random_bytes(),
        peers,
        from: None,
    };
    run(PeerPlan {
        start_mode,
        loader,
        secret,
        bootstrap_addresses: vec![],
        data,
        peer,
        directory: None,
        started_from,
    })
}

pub(super) fn join(arguments: JoinArguments, loader: Arc<dyn Loader>) -> anyhow::Result<ExitCode> {
    let JoinTarget { run: run_id, secret, bootstrap_addresses } =
        join_target_of(&arguments.invite, &arguments.more, arguments.secret_file.as_deref())?;
    if let Some(path) = &arguments.data {
        // Fails now, rather than after this peer is admitted.
        std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    let start_mode = StartMode::Join { run: run_id };
    let data = DataSource::search(arguments.data);
    run(PeerPlan {
        start_mode,
        loader,
        secret,
        bootstrap_addresses,
        data,
        peer: arguments.peer,
        directory: None,
        started_from: None,
    })
}

/// Runs one peer until its run has ended.
pub(super) fn run(plan: PeerPlan) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(NETWORK_THREADS)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let outcome = runtime.block_on(run_peer(plan));
    // A search for the data file must not keep the process alive.
    runtime.shutdown_background();
    outcome
}

async fn run_peer(mut plan: PeerPlan) -> anyhow::Result<ExitCode> {
    let opened = open_peer(&mut plan).await?;
    let PeerPlan { start_mode, loader, secret, data, peer, .. } = plan;
    let OpenedPeer { chosen, previous, incarnation, segments, mut network, notices, metrics } = opened;
    let contact = network.contact();
    let clock = MonotonicClock::start();
    let meter = UsageMeter { clock, counters: network.counters() };
    let report = Report::new(contact.peer, OutputFormat::of_flag(peer.json), meter);
    report_directory(&chosen, &report);
    let threads = peer.threads(chosen.directory.path()).get();
    report.listening(&contact.addresses, network.direct_port(), threads);
    previous.say(&start_mode, &chosen.directory, &report);
    let checkpoint_store = chosen.directory.checkpoint_store();
    let mut running = RunningPeer::new(chosen.directory, secret, contact.clone(), network.port(), report);
    let founded = founded_run(&start_mode);
    if let Some(run) = founded {
        running.found(run)?;
    }
    let config = Config {
        peer: contact.peer,
        incarnation,
        addresses: contact.addresses,
        capacity: peer.capacity,
        loader,
        segments,
        cache: SharedCache::default(),
        restored: previous.restored,
        saved: previous.saved,
        start_mode,
    };
    let origin = LogOrigin { peer: contact.peer, incarnation, run: founded };
    let (events, observed) = mpsc::unbounded_channel();
    let (monitoring, streams) =
        Monitoring::open(running.directory.path(), &origin, (&mut network, clock), observed, notices);
    // Dropped when the run has ended.
    let _metrics = metrics.map(|port| {
        running.report.notice(&Notice::Metrics { address: port.address() });
        port.serve(monitoring.service().clone())
    });
    let searched = checkpoint_store.clone();
    let find_data: DataFinder = Arc::new(move |reference| data.find(reference, &searched));
    let compute = Compute::start(network.counters(), threads)
        .with_context(|| format!("cannot start {threads} threads; give a smaller number with --threads"))?;
    let (store, disk_notices) =
        StableStorage::start(running.directory.durable_path()).context("cannot start a thread")?;
    let checkpoints = Checkpoints::start(checkpoint_store).context("cannot start a thread")?;
    let EventStreams { admin_requests, events: reported, notices } = streams;
    let environment =
        Environment { network, compute, clock, find_data, store, checkpoints, events, admin_requests };
    let screen = running.report.screen();
    let mut node = Node::new(config);
    let driving = tokio::spawn(async move { drive(&mut node, environment, interrupt(screen)).await });
    let ended = running.watch(reported, notices, disk_notices).await?;
    driving.await.context("the peer stopped unexpectedly")?;
    monitoring.close().await;
    running.end(ended)
}

/// What a peer holds before its node starts.
struct OpenedPeer {
    chosen: ChosenDirectory,
    previous: PreviousRun,
    incarnation: Incarnation,
    /// The buffers of received segments.
    segments: Pool,
    network: Network,
    notices: mpsc::UnboundedReceiver<Notice>,
    /// The port for metrics; `None` if the user asked for none.
    metrics: Option<MetricsPort>,
}

/// Opens the data directory, the metrics port and the network.
async fn open_peer(plan: &mut PeerPlan) -> anyhow::Result<OpenedPeer> {
    let peer = &plan.peer;
    let chosen = match plan.directory.take() {
        Some(directory) => ChosenDirectory { directory, passed_over: vec![], stopped: vec![] },
        None => open_directory(peer.dir.as_deref(), &plan.start_mode)?,
    };
    let metrics = match peer.metrics {
        Some(port) => Some(MetricsPort::bind(port).await?),
        None => None,
    };
    let identity = chosen.directory.identity()?;
    let incarnation = chosen.directory.next_incarnation()?;
    let previous = PreviousRun::read(&chosen.directory, &plan.start_mode, identity.peer())?;
    if let (Some(file), Some(run)) = (&plan.started_from, founded_run(&plan.start_mode)) {
        file.keep(chosen.directory.path(), run);
    }
    let mut bootstrap_addresses = std::mem::take(&mut plan.bootstrap_addresses);
    bootstrap_addresses.extend(previous.members.iter().cloned());
    let segments = Pool::new(SEGMENTS_KEPT_MAX);
    let (network, notices) = Network::start(NetworkOptions {
        identity,
        start: incarnation,
        secret: plan.secret,
        listen: Listen { address: peer.listen, port: peer.port.map_or(previous.port, Port::Exactly) },
        external: multiaddresses(&peer.external)?,
        upnp: peer.upnp,
        bootstrap_addresses,
        mdns: if peer.no_mdns { Mdns::Off } else { Mdns::On },
        pool: segments.clone(),
    })
    .await?;
    Ok(OpenedPeer { chosen, previous, incarnation, segments, network, notices, metrics })
}

/// The run that a peer founds; `None` if it joins one.
fn founded_run(start_mode: &StartMode) -> Option<RunId> {
    match start_mode {
        StartMode::Bootstrap { specification, nonce, .. } => Some(RunId::derive(specification, nonce)),
        StartMode::Join { .. } => None,
    }
}

/// Reports the data directory if it is not the default one.
fn report_directory(ChosenDirectory { directory, passed_over, stopped }: &ChosenDirectory, report: &Report) {
    let here = directory.path().display();
    if !passed_over.is_empty() {
        report.say(&format!("another peer runs on this machine, so this one keeps its data in {here}"));
    }
    if let Some(path) = stopped.first() {
        report.say(&format!(
            "{} holds an unfinished run (`{} resume` continues it), so this peer keeps its data in {here}",
            path.display(),
            program_name()
        ));
    }
}

/// What an earlier start of this peer left in its data directory.
struct PreviousRun {
    /// The bytes of its durable record; `None` if it has never been a member of a run.
    restored: Option<Arc<[u8]>>,
    /// The same, decoded; `None` if it is missing or damaged.
    record: Option<DurableRecord>,
    /// Other members of its last view, if it joins the same run.
    members: Vec<BootstrapAddress>,
    /// Its checkpoints of the run, newest first.
    saved: Vec<SavedCheckpoint>,
    damaged: Vec<Damaged>,
    /// The port it listened on, since restarted members look for it there.
    port: Port,
}

impl PreviousRun {
    fn read(directory: &Directory, start_mode: &StartMode, me: PeerId) -> anyhow::Result<Self> {
        let restored = directory.restored()?;
        let record = restored.as_deref().and_then(DurableRecord::from_bytes);
        let mut previous =
            Self { members: vec![], saved: vec![], damaged: vec![], port: Port::default(), restored, record };
        if let (StartMode::Join { run }, Some(record)) = (start_mode, &previous.record) {
            previous.members = members_before(record, run.as_ref(), me);
            (previous.saved, previous.damaged) = directory.checkpoint_store().scan(&record.view.run);
            let left = directory.last_record().filter(|left| left.invite.run == record.view.run);
            previous.port = left.map_or(previous.port, |left| Port::Preferred(left.port));
        }
        Ok(previous)
    }

    fn say(&self, start_mode: &StartMode, directory: &Directory, report: &Report) {
        for Damaged { path, reason } in &self.damaged {
            report.say(&format!("skipped the damaged checkpoint {} ({reason})", path.display()));
        }
        if self.restored.is_some() && self.record.is_none() {
            report.say(
                "the durable record of an earlier run is damaged on disk: this peer takes part as a new one",
            );
        }
        if let (StartMode::Bootstrap { .. }, Some(record)) = (start_mode, &self.record) {
            report.say(&format!(
                "this new run replaces the unfinished run {} in {} (to keep both, give a new run its own directory with --dir)",
                record.view.run.short(),
                directory.path().display()
            ));
        }
    }
}

/// The other members of the view that this peer was in when it stopped, if that was in the same run. They may still train when the
/// member that issued the invite does not.
fn members_before(record: &DurableRecord, run: Option<&RunId>, me: PeerId) -> Vec<BootstrapAddress> {
    if run.is_some_and(|run| *run != record.view.run) {
        return Vec::new();
    }
    let members = record.view.members.iter().filter(|member| member.peer != me);
    members.take(CONTACTS_MAX).map(|member| BootstrapAddress::Contact(member.contact())).collect()
}

fn open_directory(given: Option<&Path>, start_mode: &StartMode) -> anyhow::Result<ChosenDirectory> {
    let run = if let StartMode::Join { run } = start_mode { run.as_ref() } else { None };
    Ok(match given {
        Some(path) => {
            ChosenDirectory { directory: Directory::open(path)?, passed_over: vec![], stopped: vec![] }
        }
        None => Directory::open_default(run)?,
    })
}

/// Completes at the first Ctrl-C; a second one stops the process at once.
async fn interrupt(screen: Screen) {
    stop_requested().await;
    screen.say("leaving; press Ctrl-C again to stop at once without saving");
    tokio::spawn(async {
        stop_requested_again().await;
        std::process::exit(1);
    });
}

/// Network threads: two let sending and receiving overlap.
const NETWORK_THREADS: usize = 2;
