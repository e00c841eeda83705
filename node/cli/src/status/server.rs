//! The server: answers those who ask, on a socket in the data directory and over the network.
//!
//! ```text
//! connection                                   peer
//!   {"format":1}\n --------------------->           which form it reads
//!   <-------------------- {"format":1, ...}\n       the status; or {"error": ..., "version": ...}
//!   again, on the same stream, as often as it likes
//! ```
//! The socket is a file that only the user who started the peer can open. Over the network a connection comes by libp2p, and has
//! shown that it holds the run's secret before this hears of it; it is no member, takes no frames, and is forgotten when it goes.
//!
//! # Bounds
//! `ASKERS_MAX` at a time; more are sent away. A request is a short line; one that waits for longer than `IDLE_MAX`, or is
//! read too slowly, is closed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use peergrad_net::StatusStreams;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{FORMAT, StatusService};

/// What a connection says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusRequest {
    /// The form that it reads.
    pub(super) format: u32,
    /// What is to be done first of all; only from this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<AdminCommand>,
}

/// What a peer can be told to see to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminCommand {
    /// That the member of this id is put out of the run.
    Remove(String),
    /// That the run has another secret.
    Rekey,
    /// That what nobody has any more of tables begins anew.
    DeclareLost,
}

/// Where a connection is.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// On this machine, as the user who started the peer.
    Local,
    /// Somewhere that the run's secret is known.
    Remote,
}

/// What it is told if it cannot be told how the peer is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ErrorResponse {
    /// In words.
    pub(super) error: String,
    /// The release of the one that says so.
    pub(super) version: String,
}

/// Answers as long as it is held.
#[derive(Debug)]
pub struct StatusServer {
    tasks: Vec<JoinHandle<()>>,
    #[cfg(unix)]
    socket: Option<std::path::PathBuf>,
}

impl StatusServer {
    /// Answers those who ask over the network, and, where the system has such sockets, in `directory`. The second result says
    /// why nobody can ask there.
    pub fn start(
        directory: &std::path::Path,
        service: StatusService,
        status_streams: Option<StatusStreams>,
    ) -> (Self, Result<(), String>) {
        let places = Arc::new(Semaphore::new(ASKERS_MAX));
        let mut tasks = Vec::new();
        if let Some(status_streams) = status_streams {
            tasks.push(tokio::spawn(network::serve(status_streams, service.clone(), Arc::clone(&places))));
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
            // One that stays is recognized by its peer's missing lock.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The answer to one line.
async fn answer(line: &[u8], from: Source, service: &StatusService) -> Vec<u8> {
    let declined = |error: String| {
        let declined = ErrorResponse { error, version: env!("CARGO_PKG_VERSION").to_owned() };
        serde_json::to_vec(&declined).expect("text has a JSON form")
    };
    let mut bytes = match serde_json::from_slice::<StatusRequest>(line) {
        Ok(StatusRequest { format: FORMAT, order }) => {
            let done = match order {
                None => Ok(()),
                Some(_) if from == Source::Remote => {
                    Err("that is for the users of members to say, at their machines".to_owned())
                }
                Some(AdminCommand::Remove(peer)) => service.remove(&peer).await,
                Some(AdminCommand::Rekey) => service.rekey().await,
                Some(AdminCommand::DeclareLost) => service.declare_lost().await,
            };
            match done {
                Ok(()) => {
                    serde_json::to_vec(&*service.status().await).expect("text and numbers have a JSON form")
                }
                Err(error) => declined(error),
            }
        }
        Ok(StatusRequest { format, .. }) => {
            declined(format!("asked in form {format}, and this peer speaks form {FORMAT}"))
        }
        Err(_) => declined("asked in a way that this peer does not understand".to_owned()),
    };
    bytes.push(b'\n');
    bytes
}

/// A line without its end, or nothing where the other end has closed.
fn request(line: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        // Cut off, or longer than any request.
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn timed_out<T>(_: T) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

#[cfg(unix)]
mod local {
    //! The socket.

    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    /// Opens the socket, in place of one that a crash has left: the directory is this process's own.
    pub(super) fn listen(path: &Path) -> Result<UnixListener, String> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.to_string()),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                format!("the path of {} is too long for a socket; choose a shorter --dir", path.display())
            }
            _ => format!("{}: {error}", path.display()),
        })?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(|error| error.to_string())?;
        Ok(listener)
    }

    pub(super) async fn serve(listener: UnixListener, service: StatusService, places: Arc<Semaphore>) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Too many open files, mostly; it passes.
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let service = service.clone();
            tokio::spawn(async move {
                // One that breaks off has seen enough.
                let _ = serve_client(stream, &service).await;
                drop(place);
            });
        }
    }

    async fn serve_client(stream: UnixStream, service: &StatusService) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            let mut reading = (&mut stream).take(REQUEST_BYTES_MAX);
            timeout(IDLE_MAX, reading.read_until(b'\n', &mut line)).await.map_err(timed_out)??;
            let Some(line) = request(line)? else { return Ok(()) };
            let answer = answer(&line, Source::Local, service).await;
            timeout(WRITING_MAX, stream.get_mut().write_all(&answer)).await.map_err(timed_out)??;
        }
    }
}

mod network {
    //! The network.

    use futures::io::BufReader;
    use futures::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
    use libp2p::Stream;

    use super::*;

    pub(super) async fn serve(
        mut status_streams: StatusStreams,
        service: StatusService,
        places: Arc<Semaphore>,
    ) {
        while let Some(stream) = status_streams.next().await {
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let service = service.clone();
            tokio::spawn(async move {
                let _ = serve_client(stream, &service).await;
                drop(place);
            });
        }
    }

    async fn serve_client(stream: Stream, service: &StatusService) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            let mut reading = (&mut stream).take(REQUEST_BYTES_MAX);
            timeout(IDLE_MAX, reading.read_until(b'\n', &mut line)).await.map_err(timed_out)??;
            let Some(line) = request(line)? else { return Ok(()) };
            let answer = answer(&line, Source::Remote, service).await;
            let writing = async {
                stream.get_mut().write_all(&answer).await?;
                stream.get_mut().flush().await
            };
            timeout(WRITING_MAX, writing).await.map_err(timed_out)??;
        }
    }
}

/// The socket in a data directory.
pub(super) const SOCKET: &str = "status.sock";
/// As many ask at once.
const ASKERS_MAX: usize = 16;
const REQUEST_BYTES_MAX: u64 = 256;
/// How long one may think about its next question.
const IDLE_MAX: Duration = Duration::from_secs(60);
const WRITING_MAX: Duration = Duration::from_secs(10);
#[cfg(unix)]
const AGAIN: Duration = Duration::from_millis(100);
