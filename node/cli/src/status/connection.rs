//! Asking: how a peer is, from the outside. On its machine by the socket in its data directory; from elsewhere over the network,
//! by the run's secret, as a client that is gone afterwards.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::AsyncBufReadExt as _;
use futures::AsyncReadExt as _;
use futures::AsyncWriteExt as _;
use peergrad_net::{StatusClient, StatusClientError, StatusTarget, is_in_use};
use peergrad_protocol::RunId;
use serde_json::Value;
use tokio::time::timeout;

use super::server::{AdminCommand, ErrorResponse, SOCKET, StatusRequest};
use super::{FORMAT, Status};

/// Somebody who asks a peer, as often as they like.
#[derive(Debug)]
pub struct StatusConnection {
    conversation: Conversation,
    /// Whom it asks, for its words.
    whom: String,
    /// The run that was meant, where that was said.
    run: Option<RunId>,
}

#[derive(Debug)]
enum Conversation {
    #[cfg(unix)]
    Local(tokio::io::BufReader<tokio::net::UnixStream>),
    StatusClient(Box<StatusClient>),
}

/// A peer could not be asked. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// Nobody is there.
    #[error("no peer runs in {}: start one with `peer start` or `peer join`, or name the data directory of one that runs with --dir", directory.display())]
    NoPeer {
        /// The directory.
        directory: PathBuf,
    },
    /// There was one.
    #[error("no peer runs in {} any more: the last one there was killed, or its machine stopped; `peer join INVITE --dir {}` takes part again", directory.display(), directory.display())]
    LeftOver {
        /// The directory.
        directory: PathBuf,
    },
    /// There is one, but it offers no status.
    #[error("a peer runs in {}, but cannot be asked: it is just starting or ending (try again), or of a release that does not know `status`", directory.display())]
    NoSocket {
        /// The directory.
        directory: PathBuf,
    },
    /// There is one, and it says nothing.
    #[error(
        "{whom} does not answer: its process is suspended (Ctrl-Z, SIGSTOP), or its machine is far too busy"
    )]
    Silent {
        /// Who.
        whom: String,
    },
    /// It belongs to somebody else.
    #[error("cannot ask the peer in {}: {cause}; run this command as the user who started the peer", directory.display())]
    Denied {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Nobody was reached over the network.
    #[error(transparent)]
    Unreached(#[from] StatusClientError),
    /// It is of another release.
    #[error("{whom} is of release {version}, this program of {}, and they do not understand each other here ({words}): use the same release on both machines", env!("CARGO_PKG_VERSION"))]
    OtherRelease {
        /// Who.
        whom: String,
        /// Its release.
        version: String,
        /// What it said.
        words: String,
    },
    /// It does not do what it was told to do.
    #[error("{whom} does not do that: {words}")]
    NotDone {
        /// Who was asked.
        whom: String,
        /// Why not.
        words: String,
    },
    /// What came is no status.
    #[error("{whom} answers in a way that this program (release {}) does not understand: use the same release on both machines", env!("CARGO_PKG_VERSION"))]
    NoStatus {
        /// Who.
        whom: String,
    },
    /// It is in another run than the one that was meant.
    #[error("{whom} is in run {found}, not in the invite's: ask for an invite of the run you want")]
    OtherRun {
        /// Who.
        whom: String,
        /// Its run.
        found: String,
    },
    /// The conversation broke off.
    #[error("{whom} has ended ({cause})")]
    Ended {
        /// Who.
        whom: String,
        /// What the system said.
        cause: io::Error,
    },
}

/// Asks the peer that runs in this data directory.
///
/// # Errors
/// There is none, or it cannot be asked.
#[cfg(unix)]
pub async fn connect_directory(directory: &Path) -> Result<StatusConnection, StatusError> {
    let path = directory.join(SOCKET);
    let owned = || directory.to_owned();
    let mut attempt = tokio::net::UnixStream::connect(&path).await;
    for _ in 0..STARTING_TRIES {
        if attempt.is_ok() || !is_in_use(directory) {
            break;
        }
        // A peer that is just starting has its directory a moment before its socket.
        tokio::time::sleep(STARTING).await;
        attempt = tokio::net::UnixStream::connect(&path).await;
    }
    match attempt {
        Ok(stream) => Ok(StatusConnection {
            conversation: Conversation::Local(tokio::io::BufReader::new(stream)),
            whom: format!("the peer in {}", directory.display()),
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

/// Asks the peer that runs in this data directory: where there are no such sockets, as its client.
///
/// # Errors
/// There is none, or it cannot be asked.
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

/// Asks whichever peer of a run is reached first.
///
/// # Errors
/// Nobody is reached, or does not know the question.
pub async fn connect_run(
    invitation: StatusTarget,
    run: Option<RunId>,
) -> Result<StatusConnection, StatusError> {
    let client = StatusClient::connect(invitation).await?;
    let whom = format!("peer {}", client.peer().short());
    Ok(StatusConnection { conversation: Conversation::StatusClient(Box::new(client)), whom, run })
}

impl StatusConnection {
    /// How the peer is now.
    ///
    /// # Errors
    /// It does not answer, or not so that this program understands it.
    pub async fn status(&mut self) -> Result<Status, StatusError> {
        self.ask(&StatusRequest { format: FORMAT, order: None }).await
    }

    /// Has something done; how the peer is that was told to see to it.
    ///
    /// # Errors
    /// As [`StatusConnection::status`]; or it will not.
    pub async fn order(&mut self, order: AdminCommand) -> Result<Status, StatusError> {
        let answer = self.ask(&StatusRequest { format: FORMAT, order: Some(order) }).await;
        answer.map_err(|error| match error {
            StatusError::OtherRelease { whom, version, words } if version == env!("CARGO_PKG_VERSION") => {
                StatusError::NotDone { whom, words }
            }
            error => error,
        })
    }

    async fn ask(&mut self, request: &StatusRequest) -> Result<Status, StatusError> {
        let whom = || self.whom.clone();
        let mut request = serde_json::to_vec(request).expect("text and numbers have a JSON form");
        request.push(b'\n');
        let exchange = timeout(ANSWER_MAX, self.conversation.exchange(&request)).await;
        let line = match exchange {
            Ok(Ok(line)) => line,
            Ok(Err(cause)) => return Err(StatusError::Ended { whom: self.whom.clone(), cause }),
            Err(_) => return Err(StatusError::Silent { whom: self.whom.clone() }),
        };
        let value: Value =
            serde_json::from_slice(&line).map_err(|_| StatusError::NoStatus { whom: whom() })?;
        if let Ok(ErrorResponse { error: words, version }) = serde_json::from_value(value.clone()) {
            return Err(StatusError::OtherRelease { whom: whom(), version, words });
        }
        if value["format"] != FORMAT {
            let version = value["version"].as_str().unwrap_or("unknown").to_owned();
            let words = format!("form {} of the status", value["format"]);
            return Err(StatusError::OtherRelease { whom: whom(), version, words });
        }
        let status: Status =
            serde_json::from_value(value).map_err(|_| StatusError::NoStatus { whom: whom() })?;
        match (&self.run, &status.run) {
            (Some(meant), Some(found)) if meant.to_string() != *found => {
                Err(StatusError::OtherRun { whom: whom(), found: found.clone() })
            }
            _ => Ok(status),
        }
    }
}

impl Conversation {
    async fn exchange(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        match self {
            #[cfg(unix)]
            Self::Local(stream) => {
                use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
                stream.get_mut().write_all(request).await?;
                AsyncBufReadExt::read_until(
                    &mut AsyncReadExt::take(stream, ANSWER_BYTES_MAX),
                    b'\n',
                    &mut line,
                )
                .await?;
            }
            Self::StatusClient(client) => {
                let stream = client.stream();
                stream.get_mut().write_all(request).await?;
                stream.get_mut().flush().await?;
                stream.take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line).await?;
            }
        }
        if line.last() == Some(&b'\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// A peer takes four seconds at most to find out.
const ANSWER_MAX: Duration = Duration::from_secs(6);
/// More than a thousand members take.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// How long a start may take.
#[cfg(unix)]
const STARTING: Duration = Duration::from_millis(100);
#[cfg(unix)]
const STARTING_TRIES: usize = 10;
