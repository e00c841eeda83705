//! The run record: what another `peer` command on this machine needs to know of the running peer.
//!
//! It lies in the data directory until the run is over, so that a stopped peer can resume the run. Only its owner can read it,
//! since it holds the run's secret. Reading it does not take the peer's lock, but shows whether the peer runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use peergrad_config::file_error::advice;
use peergrad_protocol::invite::Invite;
use serde::{Deserialize, Serialize};

use super::data_home::{default_directories, is_in_use};
use super::files;

/// A run, as seen by one of its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// The run's id, its secret, and this peer with the addresses it listens on.
    pub invite: Invite,
    /// The port on which the peer listens, and on which restarted peers look for it.
    pub port: u16,
}

impl RunRecord {
    /// Reads the record of the peer that runs in `directory`.
    ///
    /// # Errors
    /// No peer runs there, or its record cannot be read.
    pub fn read(directory: &Path) -> Result<Self, RecordError> {
        let idle = || RecordError::NotRunning { directory: directory.to_owned() };
        if !is_in_use(directory) {
            return Err(idle());
        }
        let path = directory.join(RECORD_FILE);
        match fs::read(&path) {
            Ok(bytes) => Self::from_file_bytes(&bytes).ok_or(RecordError::Damaged { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(idle()),
            Err(cause) => Err(RecordError::Unreadable { path, cause }),
        }
    }

    /// The records of all peers that run in the default directories, with their directories.
    #[must_use]
    pub fn read_defaults() -> Vec<(PathBuf, Self)> {
        default_directories()
            .into_iter()
            .filter_map(|path| Self::read(&path).ok().map(|record| (path, record)))
            .collect()
    }

    /// The record that an earlier peer has left in `directory`, which this process has locked.
    pub(super) fn read_last(directory: &Path) -> Option<Self> {
        Self::from_file_bytes(&fs::read(directory.join(RECORD_FILE)).ok()?)
    }

    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        files::write_private(&directory.join(RECORD_FILE), &self.file_bytes())
    }

    /// Removes the record. If that fails, the record names a run that is over, and a peer that tries to join it is told so.
    pub(super) fn remove(directory: &Path) {
        let _ = fs::remove_file(directory.join(RECORD_FILE));
    }

    fn file_bytes(&self) -> Vec<u8> {
        let form = RecordFile { invite: self.invite.to_string(), port: self.port };
        serde_json::to_vec_pretty(&form).expect("text and numbers have a JSON form")
    }

    fn from_file_bytes(bytes: &[u8]) -> Option<Self> {
        let form: RecordFile = serde_json::from_slice(bytes).ok()?;
        Some(Self { invite: form.invite.parse().ok()?, port: form.port })
    }
}

/// The record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// No process uses the directory, or its peer has no run yet.
    #[error("no peer runs in {}: start one with `peer start` or `peer join`, or name a running peer's data directory with --dir", directory.display())]
    NotRunning {
        /// The directory.
        directory: PathBuf,
    },
    /// The file is not a record.
    #[error("{} is damaged; restart the peer that runs there", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {cause}; {}", path.display(), remedy(cause))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// What to do about a record that cannot be read: usually it belongs to another user.
fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => "run this command as the user who started the peer",
        _ => advice(cause),
    }
}

#[derive(Serialize, Deserialize)]
struct RecordFile {
    invite: String,
    port: u16,
}

const RECORD_FILE: &str = "run.json";
