//! The client side of the status server: asks a peer on this machine over the socket in its data directory, and a remote peer over
//! the network, as a client that proves the run's secret.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use peergrad_net::{StatusClient, StatusClientError, StatusTarget, is_in_use};
use peergrad_protocol::RunId;
use serde_json::Value;
use tokio::time::timeout;

use super::lines::LineStream;
use super::server::{AdminCommand, ErrorResponse, SOCKET, StatusRequest};
use super::{FORMAT, Status};
use crate::text::printable::make_printable;

/// A connection to a peer, for any number of requests.
#[derive(Debug)]
pub struct StatusConnection {
    conversation: Conversation,
    /// The name of the peer in errors.
    name: String,
    /// The data directory of a peer on this machine; `None` for one that is asked over the network.
    directory: Option<PathBuf>,
    /// The run that the peer must be in; `None` if any will do.
    run: Option<RunId>,
}

#[derive(Debug)]
enum Conversation {
    #[cfg(unix)]
    Local(tokio::io::BufReader<tokio::net::UnixStream>),
    StatusClient(Box<StatusClient>),
}

/// Why a peer could not be asked. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// No peer runs in the directory.
    #[error("no peer runs in {}: start one with `peer start` or `peer join`, or name a running peer's data directory with --dir", directory.display())]
    NoPeer {
        /// The data directory.
        directory: PathBuf,
    },
    /// A peer ran in the directory, and ended without cleaning up.
    #[error("no peer runs in {} any more: the last one was killed, or its machine stopped; `peer resume --dir {}` continues the run", directory.display(), directory.display())]
    LeftOver {
        /// The data directory.
        directory: PathBuf,
    },
    /// A peer runs in the directory, but has no socket.
    #[error("a peer runs in {}, but does not accept requests: it is starting or ending (try again), or its release does not support `status`", directory.display())]
    NoSocket {
        /// The data directory.
        directory: PathBuf,
    },
    /// The peer accepted the connection but does not answer.
    #[error(
        "{name} does not answer: its process is suspended (Ctrl-Z, SIGSTOP), or its machine is overloaded"
    )]
    Silent {
        /// The name of the peer.
        name: String,
    },
    /// The peer belongs to another user.
    #[error("cannot ask the peer in {}: {cause}; run this command as the user who started the peer", directory.display())]
    Denied {
        /// The data directory.
        directory: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// No peer was reached over the network.
    #[error(transparent)]
    Unreached(#[from] StatusClientError),
    /// The peer runs an incompatible release.
    #[error("{name} runs release {version} and this program is release {}; they are incompatible here ({text}): use the same release on both machines", env!("CARGO_PKG_VERSION"))]
    OtherRelease {
        /// The name of the peer.
        name: String,
        /// Its release.
        version: String,
        /// The peer's error message.
        text: String,
    },
    /// The peer declined a command.
    #[error("{name} declined: {text}")]
    NotDone {
        /// The name of the peer.
        name: String,
        /// The reason.
        text: String,
    },
    /// The answer is not a status.
    #[error("this program (release {}) does not understand the answer of {name}: use the same release on both machines", env!("CARGO_PKG_VERSION"))]
    NoStatus {
        /// The name of the peer.
        name: String,
    },
    /// The peer is in another run than the invite's.
    #[error("{name} is in run {found}, not in the invite's run: get an invite to the run that you want")]
    OtherRun {
        /// The name of the peer.
        name: String,
        /// The id of its run.
        found: String,
    },
    /// The peer has no place for this client.
    #[error("{name} is busy: {text}")]
    Busy {
        /// The name of the peer.
        name: String,
        /// Why, and what to do.
        text: String,
    },
    /// The connection broke, but the process of the peer still runs.
    #[error("{name} runs, but closed the connection ({cause}): try again")]
    Interrupted {
        /// The name of the peer.
        name: String,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The connection broke.
    #[error(
        "{name} closed the connection ({cause}): if its process has ended, `peer resume` on its machine restarts it"
    )]
    Ended {
        /// The name of the peer.
        name: String,
        /// The error of the operating system.
        cause: io::Error,
    },
}

/// Connects to the peer that runs in this data directory.
///
/// # Errors
/// No peer runs there, or it accepts no requests.
#[cfg(unix)]
pub async fn connect_directory(directory: &Path) -> Result<StatusConnection, StatusError> {
    let path = directory.join(SOCKET);
    let owned = || directory.to_owned();
    let mut attempt = tokio::net::UnixStream::connect(&path).await;
    for _ in 0..STARTING_ATTEMPTS {
        if attempt.is_ok() || !is_in_use(directory) {
            break;
        }
        // A starting peer locks its directory a moment before it opens the socket.
        tokio::time::sleep(STARTING).await;
        attempt = tokio::net::UnixStream::connect(&path).await;
    }
    match attempt {
        Ok(stream) => Ok(StatusConnection {
            conversation: Conversation::Local(tokio::io::BufReader::new(stream)),
            name: format!("the peer in {}", directory.display()),
            directory: Some(owned()),
            run: None,
        }),
        Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
            Err(StatusError::Denied { directory: owned(), cause })
        }
        Err(_) if is_in_use(directory) => Err(StatusError::NoSocket { directory: owned() }),
        Err(_) if path.exists() => Err(StatusError::LeftOver { directory: owned() }),
        Err(_) => Err(StatusError::NoPeer { directory: owned() }),
    }
}

/// Connects to the peer that runs in this data directory. Without Unix sockets, this uses the network.
///
/// # Errors
/// No peer runs there, or it accepts no requests.
#[cfg(not(unix))]
pub async fn connect_directory(directory: &Path) -> Result<StatusConnection, StatusError> {
    use peergrad_net::{BootstrapAddress, RunRecord};
    let _ = (SOCKET, is_in_use(directory));
    let record =
        RunRecord::read(directory).map_err(|_| StatusError::NoPeer { directory: directory.to_owned() })?;
    let invite = record.invite;
    let bootstrap_addresses = invite.contacts.into_iter().map(BootstrapAddress::Contact).collect();
    connect_run(StatusTarget { secret: invite.secret, bootstrap_addresses }, Some(invite.run)).await
}

/// Connects to the first peer of a run that can be reached.
///
/// # Errors
/// No peer can be reached.
pub async fn connect_run(
    invitation: StatusTarget,
    run: Option<RunId>,
) -> Result<StatusConnection, StatusError> {
    let client = StatusClient::connect(invitation).await?;
    let name = format!("peer {}", client.peer().short());
    let conversation = Conversation::StatusClient(Box::new(client));
    Ok(StatusConnection { conversation, name, directory: None, run })
}

impl StatusConnection {
    /// Asks for the present status.
    ///
    /// # Errors
    /// The peer does not answer, or this program does not understand the answer.
    pub async fn status(&mut self) -> Result<Status, StatusError> {
        self.ask(&StatusRequest { format: FORMAT, order: None }).await
    }

    /// Sends a command, and returns the status after it was accepted.
    ///
    /// # Errors
    /// As [`StatusConnection::status`], or the peer declined the command.
    pub async fn order(&mut self, order: AdminCommand) -> Result<Status, StatusError> {
        let answer = self.ask(&StatusRequest { format: FORMAT, order: Some(order) }).await;
        answer.map_err(|error| match error {
            StatusError::OtherRelease { name, version, text } if version == env!("CARGO_PKG_VERSION") => {
                StatusError::NotDone { name, text }
            }
            error => error,
        })
    }

    async fn ask(&mut self, request: &StatusRequest) -> Result<Status, StatusError> {
        let mut request = serde_json::to_vec(request).expect("text and numbers can be written as JSON");
        request.push(b'\n');
        let exchange = timeout(ANSWER_MAX, self.conversation.exchange(&request)).await;
        let line = match exchange {
            Ok(Ok(line)) => line,
            Ok(Err(cause)) if self.directory.as_deref().is_some_and(is_in_use) => {
                return Err(StatusError::Interrupted { name: self.name.clone(), cause });
            }
            Ok(Err(cause)) => return Err(StatusError::Ended { name: self.name.clone(), cause }),
            Err(_) => return Err(StatusError::Silent { name: self.name.clone() }),
        };
        let status = parse_answer(&self.name, &line)?;
        match (&self.run, &status.run) {
            (Some(meant), Some(found)) if meant.to_string() != *found => {
                Err(StatusError::OtherRun { name: self.name.clone(), found: found.clone() })
            }
            _ => Ok(status),
        }
    }
}

impl StatusError {
    /// Whether the peer may answer later: nothing shows that its process has ended.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Silent { .. }
                | Self::Unreached(_)
                | Self::Busy { .. }
                | Self::Interrupted { .. }
                | Self::NoSocket { .. }
        )
    }
}

impl Conversation {
    async fn exchange(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            #[cfg(unix)]
            Self::Local(stream) => exchange(stream, request).await,
            Self::StatusClient(client) => exchange(client.stream(), request).await,
        }
    }
}

/// The status in a peer's answer, without what a terminal would act on. `name` is that of the peer in errors.
///
/// # Errors
/// The peer is busy or declined, or its release is incompatible.
pub fn parse_answer(name: &str, line: &[u8]) -> Result<Status, StatusError> {
    let no_status = |_| StatusError::NoStatus { name: name.to_owned() };
    let mut value: Value = serde_json::from_slice(line).map_err(no_status)?;
    make_printable(&mut value);
    match serde_json::from_value(value.clone()) {
        Ok(ErrorResponse { error: text, is_busy: true, .. }) => {
            return Err(StatusError::Busy { name: name.to_owned(), text });
        }
        Ok(ErrorResponse { error: text, version, .. }) => {
            return Err(StatusError::OtherRelease { name: name.to_owned(), version, text });
        }
        Err(_) => {}
    }
    if value["format"] != FORMAT {
        let version = value["version"].as_str().unwrap_or("unknown").to_owned();
        let text = format!("status format {}", value["format"]);
        return Err(StatusError::OtherRelease { name: name.to_owned(), version, text });
    }
    serde_json::from_value(value).map_err(no_status)
}

/// Sends a request and reads the answer.
async fn exchange(stream: &mut impl LineStream, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write(request).await?;
    let line = stream.read_line(ANSWER_BYTES_MAX).await?;
    if line.last() == Some(&b'\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// How long to wait for an answer; a peer needs at most four seconds to collect it.
const ANSWER_MAX: Duration = Duration::from_secs(6);
/// The longest accepted answer; more than a status of a thousand members.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// The pause between two attempts while a peer may be starting.
#[cfg(unix)]
const STARTING: Duration = Duration::from_millis(100);
#[cfg(unix)]
const STARTING_ATTEMPTS: usize = 10;

#[cfg(all(test, unix))]
mod tests {
    use peergrad_net::Directory;
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_a_running_peer_closes_is_not_taken_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let hang_up = tokio::spawn(async move {
            for _ in 0..2 {
                drop(listener.accept().await.unwrap());
            }
        });
        let mut first = connect_directory(folder.path()).await.unwrap();
        let error = first.status().await.unwrap_err();
        assert!(matches!(error, StatusError::Interrupted { .. }) && error.may_pass(), "{error}");
        let mut second = connect_directory(folder.path()).await.unwrap();
        hang_up.await.unwrap();
        drop(directory);
        let error = second.status().await.unwrap_err();
        assert!(matches!(error, StatusError::Ended { .. }) && !error.may_pass(), "{error}");
    }
}
