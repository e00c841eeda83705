//! A peer that stopped in the middle of a run, and how it goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use peergrad_core::node::StartMode;
use peergrad_core::program::loader::Loader;
use peergrad_net::directory::default_directories;
use peergrad_net::{Damaged, Directory, DirectoryError, random_bytes};
use peergrad_protocol::RunId;
use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::SavedCheckpoint;

use crate::{DirectoryChoice, PeerOptions};

/// A peer that stopped in the middle of a run.
#[derive(Debug)]
pub struct StoppedPeer {
    directory: Directory,
    record: DurableRecord,
}

/// There is no stopped peer, or it cannot go on. Each message says what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// A data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The directory that the user named has no unfinished run.
    #[error("{} holds no unfinished run: name another data directory, or join a run with an invite", path.display())]
    NothingUnfinished {
        /// The directory.
        path: PathBuf,
    },
    /// No default directory has an unfinished run.
    #[error(
        "no peer on this machine has an unfinished run{}; name its data directory, or join the run again with an invite",
        if *running > 0 { format!(" ({running} running)") } else { String::new() }
    )]
    NobodyStopped {
        /// How many of these directories running peers use.
        running: usize,
    },
    /// The directory does not say how members prove themselves.
    #[error("{} no longer holds the secret of run {}; join it again with an invite, in the same data directory", path.display(), run.short())]
    NoSecret {
        /// The directory.
        path: PathBuf,
        /// The run.
        run: RunId,
    },
}

impl StoppedPeer {
    /// The peer whose data is in this directory; with `None`, the first one that stopped in a default directory.
    ///
    /// # Errors
    /// No peer has stopped there in the middle of a run, or the system refuses a directory.
    pub fn find(path: Option<&Path>) -> Result<Self, ResumeError> {
        let Some(path) = path else { return Self::find_in_defaults() };
        let found = Self::in_directory(Directory::open(path)?)?;
        found.ok_or_else(|| ResumeError::NothingUnfinished { path: path.to_owned() })
    }

    fn find_in_defaults() -> Result<Self, ResumeError> {
        let mut running = 0;
        for path in default_directories() {
            match Directory::open(&path) {
                Ok(directory) => {
                    if let Some(stopped) = Self::in_directory(directory)? {
                        return Ok(stopped);
                    }
                }
                Err(DirectoryError::InUse { .. }) => running += 1,
                Err(other) => return Err(other.into()),
            }
        }
        Err(ResumeError::NobodyStopped { running })
    }

    fn in_directory(directory: Directory) -> Result<Option<Self>, DirectoryError> {
        let record = directory.restored()?.and_then(|bytes| DurableRecord::from_bytes(&bytes));
        Ok(record.map(|record| Self { directory, record }))
    }

    /// Its data directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The run that it was in.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.record.view.run
    }

    /// The specification of that run.
    #[must_use]
    pub fn specification(&self) -> &[u8] {
        &self.record.definition.specification
    }

    /// Its newest checkpoint of that run, if there is one, and those that cannot be read.
    #[must_use]
    pub fn newest_checkpoint(&self) -> (Option<SavedCheckpoint>, Vec<Damaged>) {
        let (saved, damaged) = self.directory.checkpoint_store().scan(&self.run());
        (saved.into_iter().next(), damaged)
    }

    /// The options with which it goes on in the same run, with the members that still train, or with those that come back.
    ///
    /// # Errors
    /// Its directory no longer has the run's secret.
    pub fn resume(self, loader: Arc<dyn Loader>) -> Result<PeerOptions, ResumeError> {
        let run = self.run();
        let last = self.directory.last_record().filter(|last| last.invite.run == run);
        let Some(last) = last else {
            return Err(ResumeError::NoSecret { path: self.directory().to_owned(), run });
        };
        let options = PeerOptions::new(StartMode::Join { run: Some(run) }, last.invite.secret, loader);
        Ok(PeerOptions { directory: DirectoryChoice::Open(self.directory), ..options })
    }

    /// The options with which it goes on alone: it founds a new run, with a new secret, that begins with this checkpoint.
    #[must_use]
    pub fn resume_alone(self, from: SavedCheckpoint, loader: Arc<dyn Loader>) -> PeerOptions {
        let specification = self.record.definition.specification.into();
        let start_mode =
            StartMode::Bootstrap { specification, nonce: random_bytes(), peers: 1, from: Some(from) };
        let options = PeerOptions::new(start_mode, Secret(random_bytes()), loader);
        PeerOptions { directory: DirectoryChoice::Open(self.directory), ..options }
    }
}
