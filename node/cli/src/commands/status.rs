//! `peer status`: shows the state of the peers on this machine, or of a remote peer to a user who knows the run's secret.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use peergrad_net::{StatusTarget, default_directories, is_in_use};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::join_target::{JoinTarget, join_target_of};
use super::local_peer::block_on;
use super::signals::stop_requested;
use crate::terminal::{OutputFormat, complain, emit, print_styled};
use peergrad_embed::status::{Status, StatusConnection, StatusError, connect_directory, connect_run};
use render::{Block, RenderedStatus, render};
use terminal::{Canvas, joined};

mod render;
mod terminal;

#[derive(Args)]
pub(super) struct StatusArguments {
    /// Ask a remote peer: an invite; or, with --secret-file, the address of any member (HOST, HOST:PORT or a multiaddress); or `-`
    /// to read the invite from standard input [default: the peers that run in this user's default directories]
    #[arg(value_name = "INVITE", conflicts_with = "dir")]
    invite: Option<String>,
    /// More member addresses to try
    #[arg(value_name = "ADDRESS")]
    more: Vec<String>,
    /// File with the run's secret (64 hexadecimal digits), when asking by address
    #[arg(long, value_name = "FILE", requires = "invite")]
    secret_file: Option<PathBuf>,
    /// The data directory of the peer to ask
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Refresh every second, until Ctrl-C or the end of the run
    #[arg(long)]
    watch: bool,
    /// Print JSON, one object a line for each peer; docs/status.md explains the fields
    #[arg(long)]
    json: bool,
}

/// A peer to ask, and the connection to it.
struct QueriedPeer {
    location: PeerLocation,
    /// The open connection; `None` before the first request and after an error.
    connection: Option<StatusConnection>,
    /// Its newest status; `None` before the first.
    last: Option<Status>,
    /// Whether the peer has ended.
    is_over: bool,
}

/// Where a peer is.
enum PeerLocation {
    /// On this machine, with its data in this directory.
    Directory(PathBuf),
    /// Anywhere: the first member that can be reached.
    Run(JoinTarget),
}

/// What `peer status` prints for an answer of a peer, on a terminal of `width` columns.
#[must_use]
pub fn status_text(status: &Status, width: usize) -> String {
    render(&Block { status, directory: None, trouble: None }, width).text()
}

pub(super) fn status(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    block_on(ask(arguments))
}

async fn ask(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let mut peers = peers(arguments)?;
    let format = OutputFormat::of_flag(arguments.json);
    if !arguments.watch {
        return print_once(&mut peers, format).await;
    }
    tokio::select! {
        code = watch(&mut peers, format) => code,
        () = stop_requested() => Ok(ExitCode::SUCCESS),
    }
}

fn peers(arguments: &StatusArguments) -> anyhow::Result<Vec<QueriedPeer>> {
    let locations = match (&arguments.invite, &arguments.dir) {
        (Some(invite), _) => {
            let join_target = join_target_of(invite, &arguments.more, arguments.secret_file.as_deref())?;
            vec![PeerLocation::Run(join_target)]
        }
        (None, Some(directory)) => vec![PeerLocation::Directory(directory.clone())],
        (None, None) => {
            let running = default_directories().into_iter().filter(|directory| is_in_use(directory));
            running.map(PeerLocation::Directory).collect()
        }
    };
    if locations.is_empty() {
        bail!(
            "no peer runs in this user's default directories: start one with `peer start` or `peer join`, or name a running peer's data directory with --dir; `peer status INVITE` asks a remote peer"
        );
    }
    Ok(locations.into_iter().map(QueriedPeer::new).collect())
}

/// Shows each peer once. An error of one peer does not keep the others from being shown.
async fn print_once(peers: &mut [QueriedPeer], format: OutputFormat) -> anyhow::Result<ExitCode> {
    let (mut blocks, mut errors) = (Vec::new(), Vec::new());
    for peer in peers {
        match peer.ask().await {
            Ok(status) if format.is_json() => emit(&object(&status, peer.directory())),
            Ok(status) => {
                let block = Block { status: &status, directory: peer.directory(), trouble: None };
                blocks.push(render(&block, terminal::width()));
            }
            Err(error) => errors.push(error),
        }
    }
    if !blocks.is_empty() {
        print_styled(&joined(&blocks));
    }
    match errors.pop() {
        None => Ok(ExitCode::SUCCESS),
        Some(last) => {
            errors.iter().for_each(|error| complain(&format!("error: {error}")));
            Err(last.into())
        }
    }
}

/// Shows all peers again and again, until all have ended.
async fn watch(peers: &mut [QueriedPeer], format: OutputFormat) -> anyhow::Result<ExitCode> {
    let mut canvas = Canvas::default();
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let mut blocks = Vec::new();
        for peer in peers.iter_mut().filter(|peer| !peer.is_over || !format.is_json()) {
            let block = peer.poll(format).await?;
            blocks.extend(block);
        }
        if !format.is_json() {
            canvas.show(blocks);
        }
        if peers.iter().all(|peer| peer.is_over) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

impl QueriedPeer {
    fn new(location: PeerLocation) -> Self {
        Self { location, connection: None, last: None, is_over: false }
    }

    fn directory(&self) -> Option<&Path> {
        match &self.location {
            PeerLocation::Directory(directory) => Some(directory),
            PeerLocation::Run(_) => None,
        }
    }

    /// Asks for the status, over the open connection or a new one. An error closes the connection.
    async fn ask(&mut self) -> Result<Status, StatusError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let status = connection.status().await?;
        self.connection = Some(connection);
        Ok(status)
    }

    async fn connect(&self) -> Result<StatusConnection, StatusError> {
        match &self.location {
            PeerLocation::Directory(directory) => connect_directory(directory).await,
            PeerLocation::Run(JoinTarget { run, secret, bootstrap_addresses }) => {
                let join_target =
                    StatusTarget { secret: *secret, bootstrap_addresses: bootstrap_addresses.clone() };
                connect_run(join_target, *run).await
            }
        }
    }

    /// Asks once while watching, and returns what to show; `None` if it was printed as JSON.
    ///
    /// # Errors
    /// The peer has never answered.
    async fn poll(&mut self, format: OutputFormat) -> Result<Option<RenderedStatus>, StatusError> {
        let asked = if self.is_over { Err(None) } else { self.ask().await.map_err(Some) };
        let trouble = match asked {
            Ok(status) => {
                self.last = Some(status);
                None
            }
            // A peer that never answered is a user's mistake; one that is silent or gone is shown as such.
            Err(Some(error)) if self.last.is_none() => return Err(error),
            Err(Some(error)) if error.may_pass() => Some(error.to_string()),
            Err(_) => {
                self.is_over = true;
                Some("it has ended".to_owned())
            }
        };
        let Some(status) = &self.last else { return Ok(None) };
        if format.is_json() {
            let report = object(status, self.directory());
            emit(&trouble.map_or(report, |error| json!({"peer": status.peer, "error": error})));
            return Ok(None);
        }
        let block = Block { status, directory: self.directory(), trouble: trouble.as_deref() };
        Ok(Some(render(&block, terminal::width())))
    }
}

/// The status as JSON, with the data directory of a peer on this machine.
fn object(status: &Status, directory: Option<&Path>) -> Value {
    let mut object = serde_json::to_value(status).expect("text and numbers have a JSON form");
    if let Some(directory) = directory {
        object["directory"] = json!(directory);
    }
    object
}

/// The pause between two requests while watching.
const ROUND: Duration = Duration::from_secs(1);
