//! The run record: what another `peer` command on this machine needs to know of the peer that is running.
//!
//! It lies in the data directory, readable by its owner only since it holds the run's secret, until the run is over: a peer that
//! was stopped goes on with it. Reading it takes no lock from the peer, but tells a peer that runs from one that has stopped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use peergrad_protocol::invite::Invite;
use serde::{Deserialize, Serialize};

use super::data_home::{default_directories, is_in_use};
use super::files;

/// A run, as seen by one of its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// Run id, secret, and this peer with the addresses it listens on.
    pub invite: Invite,
    /// The port on which it listens: where others that are started again look for it.
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

    /// The record that a peer has left in `directory` which this process has taken.
    pub(super) fn read_last(directory: &Path) -> Option<Self> {
        Self::from_file_bytes(&fs::read(directory.join(RECORD_FILE)).ok()?)
    }

    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        files::write_private(&directory.join(RECORD_FILE), &self.file_bytes())
    }

    /// One that cannot be removed is of a run that is over, as whoever joins it is told.
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

/// There is no record to be had.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// No process uses the directory, or the one that does has no run yet.
    #[error("no peer is running in {}; start one with `peer start` or `peer join`, or name its directory with --dir", directory.display())]
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
    #[error("cannot read {}: {cause}; run this command as the user who started the peer", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
struct RecordFile {
    invite: String,
    port: u16,
}

const RECORD_FILE: &str = "run.json";
