//! The status server: answers requests on a socket in the data directory and over the network.
//!
//! ```text
//! connection                                   peer
//!   {"format":1}\n --------------------->           the format that it reads
//!   <-------------------- {"format":1, ...}\n       the status; or {"error": ..., "version": ...}
//!   more requests may follow on the same stream
//! ```
//! Only the user who started the peer can open the socket file. A network client connects over libp2p and proves the run's secret
//! before its stream reaches this server. Such a client is not a member and receives no frames.
//!
//! # Bounds
//! A client holds a place from its first request on (`places.rs`). One that finds no place is told that the peer is busy. A request is a short
//! line. A client that is idle for longer than `IDLE_MAX`, or reads too slowly, is disconnected.

use std::io;
use std::time::Duration;

use futures::io::BufReader;
use peergrad_net::StatusStreams;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::lines::LineStream;
use super::{FORMAT, StatusService};
use places::{ClientPlaces, FirstRequest, Source};

mod places;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusRequest {
    /// The status format that the client reads.
    pub(super) format: u32,
    /// A command to carry out first; only accepted from this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<AdminCommand>,
}

/// A command to a running peer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminCommand {
    /// Expel the member with this id from the run.
    Remove(String),
    /// Change the run's secret.
    Rekey,
    /// End the run at all members.
    EndRun,
    /// Reset table chunks that no peer has any more.
    DeclareLost,
}

/// The answer to a request that is declined.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ErrorResponse {
    /// The reason, as text.
    pub(super) error: String,
    /// Whether the same request may succeed later, when other clients have gone.
    #[serde(default)]
    pub(super) is_busy: bool,
    /// The release of this peer's program.
    pub(super) version: String,
}

/// Answers requests until it is dropped.
#[derive(Debug)]
pub struct StatusServer {
    tasks: Vec<JoinHandle<()>>,
    #[cfg(unix)]
    socket: Option<std::path::PathBuf>,
}

impl StatusServer {
    /// Starts to answer requests over the network, and on Unix also on a socket in `directory`. The second result is an error if
    /// there is no such socket.
    pub fn start(
        directory: &std::path::Path,
        service: StatusService,
        status_streams: Option<StatusStreams>,
    ) -> (Self, Result<(), String>) {
        let places = ClientPlaces::default();
        let mut tasks = Vec::new();
        if let Some(status_streams) = status_streams {
            tasks.push(tokio::spawn(serve_network(status_streams, service.clone(), places.clone())));
        }
        #[cfg(unix)]
        {
            let path = directory.join(SOCKET);
            match local::listen(&path) {
                Ok(listener) => {
                    tasks.push(tokio::spawn(local::serve(listener, service, places)));
                    (Self { tasks, socket: Some(path) }, Ok(()))
                }
                Err(reason) => (Self { tasks, socket: None }, Err(reason)),
            }
        }
        #[cfg(not(unix))]
        {
            let _ = directory;
            (Self { tasks }, Ok(()))
        }
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        #[cfg(unix)]
        if let Some(path) = &self.socket {
            // A socket file that stays is recognized by the missing lock of its peer.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a client has sent.
enum Line {
    /// A request in this peer's format.
    Request(StatusRequest),
    /// Anything else: the reason to decline it.
    Other(String),
}

impl Line {
    fn of(bytes: &[u8]) -> Self {
        match serde_json::from_slice::<StatusRequest>(bytes) {
            Ok(request) if request.format == FORMAT => Self::Request(request),
            Ok(StatusRequest { format, .. }) => Self::Other(format!(
                "the request asks for format {format}, but this peer supports format {FORMAT}"
            )),
            Err(_) => Self::Other("this peer does not understand the request".to_owned()),
        }
    }

    fn kind(&self) -> FirstRequest {
        match self {
            Self::Request(StatusRequest { order: Some(_), .. }) => FirstRequest::Order,
            Self::Request(_) | Self::Other(_) => FirstRequest::Question,
        }
    }
}

fn declined(error: String, is_busy: bool) -> Vec<u8> {
    let declined = ErrorResponse { error, is_busy, version: env!("CARGO_PKG_VERSION").to_owned() };
    serde_json::to_vec(&declined).expect("text can be written as JSON")
}

/// The answer to one line.
async fn answer(line: Line, from: Source, service: &StatusService) -> Vec<u8> {
    let order = match line {
        Line::Request(StatusRequest { order, .. }) => order,
        Line::Other(reason) => return declined(reason, false),
    };
    let done = match order {
        None => Ok(()),
        Some(_) if from != Source::Local => {
            Err("only the user of a member can do that, on the member's machine".to_owned())
        }
        Some(AdminCommand::Remove(peer)) => service.remove(&peer).await,
        Some(AdminCommand::Rekey) => service.rekey().await,
        Some(AdminCommand::EndRun) => service.end_run().await,
        Some(AdminCommand::DeclareLost) => service.declare_lost().await,
    };
    match done {
        Ok(()) => {
            serde_json::to_vec(&*service.status().await).expect("text and numbers can be written as JSON")
        }
        Err(error) => declined(error, false),
    }
}

/// Answers the requests of one client until it closes the stream.
///
/// # Errors
/// The stream broke, the client was idle or too slow, or it sent a line that is incomplete or longer than any request.
async fn serve_client(
    mut stream: impl LineStream,
    from: Source,
    service: &StatusService,
    places: &ClientPlaces,
) -> io::Result<()> {
    let mut place = None;
    loop {
        let patience = if place.is_some() { IDLE_MAX } else { FIRST_MAX };
        let line = timeout(patience, stream.read_line(REQUEST_BYTES_MAX)).await.map_err(timed_out)??;
        match line.last() {
            None => return Ok(()),
            Some(b'\n') => {}
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
        let line = Line::of(&line);
        if place.is_none() {
            place = places.take(from, line.kind());
        }
        let mut answer = match place {
            Some(_) => answer(line, from, service).await,
            None => declined(ClientPlaces::text(from), true),
        };
        answer.push(b'\n');
        timeout(WRITING_MAX, stream.write(&answer)).await.map_err(timed_out)??;
        if place.is_none() {
            return Ok(());
        }
    }
}

/// Serves clients that connect over the network.
async fn serve_network(mut status_streams: StatusStreams, service: StatusService, places: ClientPlaces) {
    while let Some((machine, stream)) = status_streams.next().await {
        // So many wait only if somebody opens streams without a pause: those get no answer.
        let Some(connection) = places.admit(machine) else { continue };
        let (service, places) = (service.clone(), places.clone());
        tokio::spawn(async move {
            // A client may disconnect at any time.
            let _ = serve_client(BufReader::new(stream), Source::Network(machine), &service, &places).await;
            drop(connection);
        });
    }
}

fn timed_out<T>(_: T) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

#[cfg(unix)]
mod local {
    //! Requests over the socket in the data directory.

    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use socket2::{Domain, SockAddr, Socket, Type};
    use tokio::io::BufReader;
    use tokio::net::UnixListener;

    use super::{AGAIN, ClientPlaces, Source, StatusService, io, serve_client};

    /// Opens the socket. Replaces one left by a crash, since this process holds the directory's lock.
    pub(super) fn listen(path: &Path) -> Result<UnixListener, String> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.to_string()),
            _ => {}
        }
        bind(path).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                format!("the path of {} is too long for a socket; choose a shorter --dir", path.display())
            }
            _ => format!("{}: {error}", path.display()),
        })
    }

    /// Nobody can connect before the socket listens, and it listens only after other users are shut out.
    fn bind(path: &Path) -> io::Result<UnixListener> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        socket.listen(WAITING_MAX)?;
        socket.set_nonblocking(true)?;
        UnixListener::from_std(OwnedFd::from(socket).into())
    }

    /// How many clients the system lets wait.
    const WAITING_MAX: i32 = 128;

    pub(super) async fn serve(listener: UnixListener, service: StatusService, places: ClientPlaces) {
        loop {
            // Further clients wait in the system's queue.
            let connection = places.local_connection().await;
            let Ok((stream, _)) = listener.accept().await else {
                // Usually too many open files: try again later.
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let (service, places) = (service.clone(), places.clone());
            tokio::spawn(async move {
                // A client may disconnect at any time.
                let _ = serve_client(BufReader::new(stream), Source::Local, &service, &places).await;
                drop(connection);
            });
        }
    }
}

/// The file name of the socket in a data directory.
pub(super) const SOCKET: &str = "status.sock";
const REQUEST_BYTES_MAX: u64 = 256;
/// How long a client may wait before its first request.
const FIRST_MAX: Duration = Duration::from_secs(5);
/// How long a client may wait before its next request.
const IDLE_MAX: Duration = Duration::from_secs(60);
const WRITING_MAX: Duration = Duration::from_secs(10);
#[cfg(unix)]
const AGAIN: Duration = Duration::from_millis(100);
