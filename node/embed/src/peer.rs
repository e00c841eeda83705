//! A running peer.

use std::io;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use peergrad_core::io::{Event, FoundData, panic_message};
use peergrad_core::node::{Config, Node, StartMode};
use peergrad_core::state::shared_cache::SharedCache;
use peergrad_net::driver::DataFinder;
use peergrad_net::{
    Checkpoints, ChosenDirectory, Compute, Counters, Damaged, Directory, DirectoryError, Environment,
    IdentityError, Listen, MonotonicClock, Network, NetworkOptions, Notice, Port, StableStorage, drive,
};
use peergrad_protocol::invite::Invite;
use peergrad_protocol::limits::SEGMENTS_KEPT_MAX;
use peergrad_protocol::{Incarnation, PeerId, Pool, RunId};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::data_source::Found;
use crate::event_queue::{EventReceiver, EventSender, event_queue};
use crate::options::default_threads;
use crate::peer_task::{PeerTask, Reports};
use crate::previous_run::PreviousRun;
use crate::run_publication::RunPublication;
use crate::status::log::LogOrigin;
use crate::status::metrics::MetricsError;
use crate::status::{EventStreams, MetricsPort, MetricsServer, Monitoring, Status, StatusService};
use crate::{Connectivity, DataSource, DirectoryChoice, Outcome, PeerOptions};

/// A peer that runs on threads of its own.
///
/// If it is dropped before it has ended, it stops at once, as in a crash: the others go on without it, and nothing is handed over.
pub struct Peer {
    /// The threads of the network, the status and the storage; `None` while it is dropped.
    runtime: Option<Runtime>,
    start_report: StartReport,
    events: EventReceiver,
    handle: PeerHandle,
}

/// What a peer chose and found when it started.
#[derive(Clone, Debug)]
pub struct StartReport {
    /// Its id.
    pub peer: PeerId,
    /// Addresses that it announces.
    pub addresses: Vec<String>,
    /// The port of its direct lanes; `None` if it cannot offer any.
    pub direct_port: Option<NonZeroU16>,
    /// How many threads compute a gradient.
    pub threads: NonZeroUsize,
    /// Its data directory.
    pub directory: PathBuf,
    /// Default directories that it did not take because other peers use them.
    pub directories_in_use: Vec<PathBuf>,
    /// Default directories that it did not take because they hold another unfinished run.
    pub directories_of_other_runs: Vec<PathBuf>,
    /// Checkpoints of the run that cannot be read.
    pub damaged: Vec<Damaged>,
    /// Whether its record of an earlier run cannot be read, so that it takes part as a new peer.
    pub is_record_damaged: bool,
    /// The unfinished run in its directory that a new one replaces; `None` if it replaces none.
    pub replaced: Option<RunId>,
    /// The run that it founds; `None` if it joins one.
    pub founded: Option<RunId>,
}

/// What a running peer tells.
#[derive(Debug)]
pub enum PeerEvent {
    /// Something has happened in the run. Of the committed steps, the newest are left out while very many wait to be taken.
    Node(Event),
    /// Something has happened around it: on the network, or on disk.
    Notice(Notice),
    /// The run has ended at this peer, and its directory is released. Nothing follows.
    Ended(Outcome),
    /// The peer's own code has panicked, with this message. Nothing follows.
    Panicked(String),
}

/// There is no event yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no event yet")]
pub struct NotYet;

/// A way to ask a running peer, from any thread. Clones are the same.
#[derive(Clone, Debug)]
pub struct PeerHandle {
    /// The threads of the peer.
    runtime: tokio::runtime::Handle,
    service: StatusService,
    invites: watch::Receiver<Option<Invite>>,
    is_leaving: watch::Sender<bool>,
    busy: watch::Sender<Duration>,
    counters: Arc<Counters>,
    clock: MonotonicClock,
}

/// A peer cannot be started. Each message says what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Its identity cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// It cannot listen.
    #[error(transparent)]
    Network(#[from] peergrad_net::StartError),
    /// The system has no room for so many threads that compute.
    #[error("cannot start {threads} threads: {cause}; give a smaller number of threads")]
    Compute {
        /// The number of threads.
        threads: NonZeroUsize,
        /// The system's error.
        cause: io::Error,
    },
    /// The peer's own code has panicked.
    #[error("the peer has panicked while it started")]
    Panicked,
    /// The system has no room for the threads of the network or the disk.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
}

impl Peer {
    /// Starts a peer. Returns once it listens; a founder can invite others from then on.
    ///
    /// # Errors
    /// Its directory cannot be used, or the system refuses a port or threads.
    pub fn start(options: PeerOptions) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(NETWORK_THREADS)
            .thread_name("peergrad")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let (sender, events) = event_queue();
        let (started, start) = std::sync::mpsc::channel();
        runtime.spawn(async move { started.send(launch(options, sender).await) });
        let launched = start.recv().unwrap_or_else(|_| Err(StartError::Panicked));
        match launched {
            Ok((start_report, handle)) => Ok(Self { runtime: Some(runtime), start_report, events, handle }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// What the peer chose and found when it started.
    #[must_use]
    pub fn start_report(&self) -> &StartReport {
        &self.start_report
    }

    /// A way to ask the peer while others wait for its events.
    #[must_use]
    pub fn handle(&self) -> PeerHandle {
        self.handle.clone()
    }

    /// As [`next`](Iterator::next), for at most so long.
    ///
    /// # Errors
    /// There was no event in this time.
    pub fn next_within(&mut self, time: Duration) -> Result<Option<PeerEvent>, NotYet> {
        match self.events.take_within(time) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(NotYet),
        }
    }
}

/// Waits for each event. The last one is [`PeerEvent::Ended`] or [`PeerEvent::Panicked`].
impl Iterator for Peer {
    type Item = PeerEvent;

    fn next(&mut self) -> Option<PeerEvent> {
        self.events.take().ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A search for the data file must not keep the process alive.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl PeerHandle {
    /// Asks the peer to hand over what it owns, and to leave. Its last event says how that went.
    pub fn leave(&self) {
        self.is_leaving.send_replace(true);
    }

    /// Says that the program of this peer is busy: for this time from now, it may compute at one step, and the others wait for it. That is for
    /// what a user knows to take long, such as a compilation, a validation or a breakpoint. Each call takes the place of the one before.
    ///
    /// At most [`BUSY_MAX`](peergrad_protocol::limits::BUSY_MAX), an hour; if it takes longer, say so again before that is over. When the
    /// time is over, the `patience_seconds` of the run begin. A busy peer that stops is noticed as soon as any other.
    pub fn busy(&self, time: Duration) {
        self.busy.send_replace(time);
    }

    /// Says that the program of this peer is not busy any more.
    pub fn not_busy(&self) {
        self.busy(Duration::ZERO);
    }

    /// The state of the peer, as `peer status --json` prints it; `None` once the peer was dropped.
    #[must_use]
    pub fn status(&self) -> Option<Arc<Status>> {
        let (service, (answer, answered)) = (self.service.clone(), std::sync::mpsc::channel());
        self.runtime.spawn(async move { answer.send(service.status().await) });
        answered.recv().ok()
    }

    /// Ends the run at all members before its epochs are over: after the next step, or in a run with tables once the samples that workers
    /// hold are done. Each peer then has the same model. The peer gives the order while it is a member; nothing shows that it has arrived
    /// but the end of the run.
    ///
    /// # Errors
    /// The reason, as text, why this is not possible: the peer is no member at present, or has stopped.
    pub fn end_run(&self) -> Result<(), String> {
        let (service, (answer, answered)) = (self.service.clone(), std::sync::mpsc::channel());
        self.runtime.spawn(async move { answer.send(service.end_run().await) });
        answered.recv().unwrap_or_else(|_| Err("the peer has stopped".to_owned()))
    }

    /// An invite to the run, with which others join it; `None` until the peer knows its run.
    #[must_use]
    pub fn invite(&self) -> Option<Invite> {
        self.invites.borrow().clone()
    }

    /// What the peer has sent and received.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The clock of the peer, which began when it started.
    #[must_use]
    pub fn clock(&self) -> MonotonicClock {
        self.clock
    }
}

/// A peer whose node has not started yet.
struct Prepared {
    chosen: ChosenDirectory,
    previous: PreviousRun,
    incarnation: Incarnation,
    /// The buffers of received segments.
    segments: Pool,
    network: Network,
    notices: mpsc::UnboundedReceiver<Notice>,
    metrics: Option<MetricsPort>,
    threads: NonZeroUsize,
}

/// Starts all parts of a peer.
async fn launch(
    mut options: PeerOptions,
    sender: EventSender,
) -> Result<(StartReport, PeerHandle), StartError> {
    let prepared = prepare(&mut options).await?;
    let start_report = start_report(&prepared, &options.start_mode);
    let PeerOptions { start_mode, loader, secret, data, capacity, .. } = options;
    let Prepared { chosen, previous, incarnation, segments, mut network, notices, metrics, threads } =
        prepared;
    let (contact, counters, clock) = (network.contact(), network.counters(), MonotonicClock::start());
    let directory = chosen.directory;
    let mut publication = RunPublication::new(secret, contact.clone(), network.port());
    if let Some(run) = start_report.founded {
        publication.set_run(run);
        publication.publish(&directory)?;
    }
    let invites = publication.invites();
    let config = Config {
        peer: contact.peer,
        incarnation,
        addresses: contact.addresses,
        capacity,
        loader,
        segments,
        cache: SharedCache::default(),
        restored: previous.restored,
        saved: previous.saved,
        start_mode,
    };
    let origin = LogOrigin { peer: contact.peer, incarnation, run: start_report.founded };
    let (events, observed) = mpsc::unbounded_channel();
    let (monitoring, EventStreams { admin_requests, events: reported, notices }) =
        Monitoring::open(directory.path(), &origin, (&mut network, clock), observed, notices);
    let service = monitoring.service().clone();
    let (tell, other_notices) = mpsc::unbounded_channel();
    let metrics = metrics.map(|port| serve_metrics(port, &service, &tell));
    let compute = Compute::start(Arc::clone(&counters), threads)
        .map_err(|cause| StartError::Compute { threads, cause })?;
    let (store, disk_notices) =
        StableStorage::start(directory.durable_path(), directory.lock()).map_err(StartError::Threads)?;
    let find_data = data_finder(data, &directory, tell);
    let checkpoints =
        Checkpoints::start(directory.checkpoint_store(), directory.lock()).map_err(StartError::Threads)?;
    let (busy, told_busy) = watch::channel(Duration::ZERO);
    let environment = Environment {
        network,
        compute,
        clock,
        find_data,
        store,
        checkpoints,
        events,
        admin_requests,
        busy: told_busy,
    };
    let (is_leaving, mut leaves) = watch::channel(false);
    let driving = tokio::spawn(async move {
        let leave = async {
            // All handles are gone, so nobody will ask.
            if leaves.wait_for(|is_leaving| *is_leaving).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        drive(&mut Node::new(config), environment, leave).await;
    });
    let reports = Reports { events: reported, notices, disk_notices, other_notices };
    let task = PeerTask::new(directory, publication, sender);
    tokio::spawn(finish(task, reports, driving, monitoring, metrics));
    let runtime = tokio::runtime::Handle::current();
    Ok((start_report, PeerHandle { runtime, service, invites, is_leaving, busy, counters, clock }))
}

/// Surrounds the node until it has ended, and then ends what was started with it.
async fn finish(
    mut task: PeerTask,
    reports: Reports,
    driving: JoinHandle<()>,
    monitoring: Monitoring,
    metrics: Option<MetricsServer>,
) {
    let ended = task.watch(reports).await;
    let driven = driving.await;
    monitoring.close().await;
    drop(metrics);
    match (ended, driven) {
        (Some(ended), _) => task.conclude(ended),
        (None, Err(error)) if error.is_panic() => task.panicked(panic_message(&*error.into_panic())),
        // The peer was dropped.
        _ => {}
    }
}

/// Opens the data directory, the metrics port and the network.
async fn prepare(options: &mut PeerOptions) -> Result<Prepared, StartError> {
    let chosen =
        choose(std::mem::replace(&mut options.directory, DirectoryChoice::Default), &options.start_mode)?;
    let metrics = match options.metrics {
        Some(port) => Some(MetricsPort::bind(port).await?),
        None => None,
    };
    let identity = chosen.directory.identity()?;
    let incarnation = chosen.directory.next_incarnation()?;
    let previous = PreviousRun::read(&chosen.directory, &options.start_mode, identity.peer())?;
    let mut bootstrap_addresses = std::mem::take(&mut options.bootstrap_addresses);
    bootstrap_addresses.extend(previous.members.iter().cloned());
    let segments = Pool::new(SEGMENTS_KEPT_MAX);
    let Connectivity { listen, port, external, upnp, mdns } = options.connectivity.clone();
    let (network, notices) = Network::start(NetworkOptions {
        identity,
        start: incarnation,
        secret: options.secret,
        listen: Listen { address: listen, port: port.map_or(previous.port, Port::Exactly) },
        external,
        upnp,
        bootstrap_addresses,
        mdns,
        pool: segments.clone(),
    })
    .await?;
    let threads = options.threads.unwrap_or_else(|| default_threads(chosen.directory.path())).get();
    Ok(Prepared { chosen, previous, incarnation, segments, network, notices, metrics, threads })
}

fn choose(choice: DirectoryChoice, start_mode: &StartMode) -> Result<ChosenDirectory, DirectoryError> {
    let run = if let StartMode::Join { run } = start_mode { run.as_ref() } else { None };
    let directory = match choice {
        DirectoryChoice::Default => return Directory::open_default(run),
        DirectoryChoice::At(path) => Directory::open(&path)?,
        DirectoryChoice::Open(directory) => directory,
    };
    Ok(ChosenDirectory { directory, passed_over: vec![], stopped: vec![] })
}

fn start_report(prepared: &Prepared, start_mode: &StartMode) -> StartReport {
    let Prepared { chosen, previous, network, threads, .. } = prepared;
    let contact = network.contact();
    let founded = match start_mode {
        StartMode::Bootstrap { specification, nonce, .. } => Some(RunId::derive(specification, nonce)),
        StartMode::Join { .. } => None,
    };
    StartReport {
        peer: contact.peer,
        addresses: contact.addresses,
        direct_port: network.direct_port(),
        threads: *threads,
        directory: chosen.directory.path().to_owned(),
        directories_in_use: chosen.passed_over.clone(),
        directories_of_other_runs: chosen.stopped.clone(),
        damaged: previous.damaged.clone(),
        is_record_damaged: previous.is_record_damaged(),
        replaced: previous.replaced_by(start_mode),
        founded,
    }
}

fn serve_metrics(
    port: MetricsPort,
    service: &StatusService,
    tell: &mpsc::UnboundedSender<Notice>,
) -> MetricsServer {
    let _ = tell.send(Notice::Metrics { address: port.address() });
    port.serve(service.clone())
}

/// What looks for the run's data file at this peer.
fn data_finder(data: DataSource, directory: &Directory, tell: mpsc::UnboundedSender<Notice>) -> DataFinder {
    let checkpoints = directory.checkpoint_store();
    Arc::new(move |reference| {
        let Found { bytes, part_bytes, other_at } = data.find(reference, &checkpoints);
        if let Some(path) = other_at {
            let _ = tell.send(Notice::OtherDataFile { path, wanted: reference.name.clone() });
        }
        match bytes {
            Some(bytes) => FoundData::Whole(bytes),
            None if part_bytes > 0 => FoundData::Part { byte_count: part_bytes },
            None => FoundData::Nothing,
        }
    })
}

/// Network threads: two let sending and receiving overlap.
const NETWORK_THREADS: usize = 2;
