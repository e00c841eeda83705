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
//! At most `CLIENTS_MAX` clients are connected at a time; further ones are disconnected. A request is a short line. A client that is
//! idle for longer than `IDLE_MAX`, or reads too slowly, is disconnected.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::io::BufReader;
use peergrad_net::StatusStreams;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::lines::LineStream;
use super::{FORMAT, StatusService};

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
    /// Reset table chunks that no peer has any more.
    DeclareLost,
}

/// Where a request comes from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// From the user who started the peer, on this machine.
    Local,
    /// From a network client that knows the run's secret.
    Remote,
}

/// The answer to a request that is declined.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ErrorResponse {
    /// The reason, as text.
    pub(super) error: String,
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
        let slots = Arc::new(Semaphore::new(CLIENTS_MAX));
        let mut tasks = Vec::new();
        if let Some(status_streams) = status_streams {
            tasks.push(tokio::spawn(serve_network(status_streams, service.clone(), Arc::clone(&slots))));
        }
        #[cfg(unix)]
        {
            let path = directory.join(SOCKET);
            match local::listen(&path) {
                Ok(listener) => {
                    tasks.push(tokio::spawn(local::serve(listener, service, slots)));
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

/// The answer to one line.
async fn answer(line: &[u8], from: Source, service: &StatusService) -> Vec<u8> {
    let declined = |error: String| {
        let declined = ErrorResponse { error, version: env!("CARGO_PKG_VERSION").to_owned() };
        serde_json::to_vec(&declined).expect("text can be written as JSON")
    };
    let mut bytes = match serde_json::from_slice::<StatusRequest>(line) {
        Ok(StatusRequest { format: FORMAT, order }) => {
            let done = match order {
                None => Ok(()),
                Some(_) if from == Source::Remote => {
                    Err("only the user of a member can do that, on the member's machine".to_owned())
                }
                Some(AdminCommand::Remove(peer)) => service.remove(&peer).await,
                Some(AdminCommand::Rekey) => service.rekey().await,
                Some(AdminCommand::DeclareLost) => service.declare_lost().await,
            };
            match done {
                Ok(()) => serde_json::to_vec(&*service.status().await)
                    .expect("text and numbers can be written as JSON"),
                Err(error) => declined(error),
            }
        }
        Ok(StatusRequest { format, .. }) => {
            declined(format!("the request asks for format {format}, but this peer supports format {FORMAT}"))
        }
        Err(_) => declined("this peer does not understand the request".to_owned()),
    };
    bytes.push(b'\n');
    bytes
}

/// Answers the requests of one client until it closes the stream.
///
/// # Errors
/// The stream broke, the client was idle or too slow, or it sent a line that is incomplete or longer than any request.
async fn serve_client(mut stream: impl LineStream, from: Source, service: &StatusService) -> io::Result<()> {
    loop {
        let line = timeout(IDLE_MAX, stream.read_line(REQUEST_BYTES_MAX)).await.map_err(timed_out)??;
        match line.last() {
            None => return Ok(()),
            Some(b'\n') => {}
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
        let answer = answer(&line, from, service).await;
        timeout(WRITING_MAX, stream.write(&answer)).await.map_err(timed_out)??;
    }
}

/// Serves a client in its own task while it holds one of the slots. Without a free slot, the client is disconnected.
fn admit(
    stream: impl LineStream + Send + 'static,
    from: Source,
    service: &StatusService,
    slots: &Arc<Semaphore>,
) {
    let Ok(slot) = Arc::clone(slots).try_acquire_owned() else { return };
    let service = service.clone();
    tokio::spawn(async move {
        // A client may disconnect at any time.
        let _ = serve_client(stream, from, &service).await;
        drop(slot);
    });
}

/// Serves clients that connect over the network.
async fn serve_network(mut status_streams: StatusStreams, service: StatusService, slots: Arc<Semaphore>) {
    while let Some(stream) = status_streams.next().await {
        admit(BufReader::new(stream), Source::Remote, &service, &slots);
    }
}

fn timed_out<T>(_: T) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

#[cfg(unix)]
mod local {
    //! Requests over the socket in the data directory.

    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use tokio::io::BufReader;
    use tokio::net::UnixListener;

    use super::{AGAIN, Arc, Semaphore, Source, StatusService, admit, io};

    /// Opens the socket. Replaces one left by a crash, since this process holds the directory's lock.
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

    pub(super) async fn serve(listener: UnixListener, service: StatusService, slots: Arc<Semaphore>) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Usually too many open files: try again later.
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            admit(BufReader::new(stream), Source::Local, &service, &slots);
        }
    }
}

/// The file name of the socket in a data directory.
pub(super) const SOCKET: &str = "status.sock";
/// The most clients at a time.
const CLIENTS_MAX: usize = 16;
const REQUEST_BYTES_MAX: u64 = 256;
/// How long a client may wait before its next request.
const IDLE_MAX: Duration = Duration::from_secs(60);
const WRITING_MAX: Duration = Duration::from_secs(10);
#[cfg(unix)]
const AGAIN: Duration = Duration::from_millis(100);
