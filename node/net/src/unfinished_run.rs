//! The unfinished run of a data directory, as another command sees it: the directory is not locked, and nothing in it is changed.

use std::fs;
use std::path::{Path, PathBuf};

use peergrad_protocol::RunId;
use peergrad_protocol::durable::DurableRecord;

use super::data_home::is_in_use;
use super::record::RunRecord;

/// A run that goes on in a data directory, or was interrupted there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedRun {
    /// The run.
    pub run: RunId,
    /// Its specification; `None` before the peer has entered a view.
    pub specification: Option<Vec<u8>>,
    /// Whether its peer runs now.
    pub is_running: bool,
}

impl UnfinishedRun {
    /// The unfinished run of `directory`; `None` if the last run there has ended, or there was none.
    #[must_use]
    pub fn read(directory: &Path) -> Option<Self> {
        let run = RunRecord::read_last(directory)?.invite.run;
        let is_running = is_in_use(directory);
        let records = durable_paths(directory).into_iter().filter_map(|path| fs::read(path).ok());
        let mut records = records.filter_map(|bytes| DurableRecord::from_bytes(&bytes));
        let specification =
            records.find(|record| record.view.run == run).map(|record| record.definition.specification);
        // A peer that was stopped before its run began has nothing to continue.
        (is_running || specification.is_some()).then_some(Self { run, specification, is_running })
    }
}

/// The durable records in a directory: usually one, and those of the directories that it was copied from.
fn durable_paths(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_record = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("durable-"))
    };
    files.map(|file| file.path()).filter(is_record).collect()
}
