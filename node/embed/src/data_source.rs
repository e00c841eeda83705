//! Where a run's data file comes from: memory, the checkpoints, or this machine's disk. If it is in none of them, the swarm sends it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use peergrad_core::io::DataReference;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::embedded::embedded;
use peergrad_net::CheckpointStore;

use crate::data_file::open_data;

/// Where a run's data file comes from.
#[derive(Debug, Default)]
pub struct DataSource {
    /// It, if it has been opened. The first request takes them, so that a file that nobody needs any more takes no memory.
    loaded: Mutex<Option<DataBytes>>,
    /// Its path on this machine, if the user gave one.
    path: Option<PathBuf>,
}

/// What a search for a data file found on disk.
#[derive(Debug)]
pub(crate) struct Found {
    /// The file's bytes; `None` if it is not on this machine.
    pub(crate) bytes: Option<DataBytes>,
    /// How many bytes of it were fetched before, if it is not on this machine.
    pub(crate) part_bytes: u64,
    /// The path that the user gave, if another file is there.
    pub(crate) other_at: Option<PathBuf>,
}

impl DataSource {
    /// It has been opened already, from this path if it has one.
    #[must_use]
    pub fn loaded(bytes: DataBytes, path: Option<PathBuf>) -> Self {
        Self { loaded: Mutex::new(Some(bytes)), path }
    }

    /// It has to be found on this machine, at this path if there is one.
    #[must_use]
    pub fn search(path: Option<PathBuf>) -> Self {
        Self { loaded: Mutex::new(None), path }
    }

    /// The data file: what has been read, from among the checkpoints, or found on this machine.
    pub(crate) fn find(&self, reference: &DataReference, checkpoints: &CheckpointStore) -> Found {
        // Before the file is looked for: a peer may have stopped before it gave it its name.
        let part_bytes = checkpoints.data_part_bytes(reference);
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
        match loaded.or_else(|| fetched(reference, &checkpoints.data_path(reference))) {
            Some(bytes) => Found { bytes: Some(bytes), part_bytes: 0, other_at: None },
            None => Found { part_bytes, ..search(reference, self.path.as_deref(), Path::new("")) },
        }
    }
}

/// A file that came from the swarm; `None` if it was never fetched. One that is damaged is removed, so that it is fetched again.
fn fetched(reference: &DataReference, path: &Path) -> Option<DataBytes> {
    let found = open_data(path).ok()?;
    if found.byte_count() == reference.byte_count && found.digest() == reference.digest {
        return Some(found);
    }
    // A file that cannot be removed is replaced when it is fetched again.
    let _ = std::fs::remove_file(path);
    None
}

/// Looks for a run's data file: at the path `given` by the user, among the built-in sets, and in the working directory under the last
/// part of the founder's name for it.
///
/// A file with a different digest is ignored, since it may be another file of the same name.
fn search(reference: &DataReference, given: Option<&Path>, working_directory: &Path) -> Found {
    let is_it = |bytes: &DataBytes| bytes.digest() == reference.digest;
    let named = base_name(&reference.name).map(|name| working_directory.join(name));
    let on_disk = given.map(Path::to_owned).into_iter().chain(named);
    let found = embedded(&reference.name).map(DataBytes::from).filter(is_it);
    let found =
        found.or_else(|| on_disk.filter_map(|path| open_exactly(&path, reference.byte_count)).find(is_it));
    let other_at = given.filter(|_| found.is_none()).map(Path::to_owned);
    Found { bytes: found, part_bytes: 0, other_at }
}

/// The last part of a path from another peer, whose system may separate parts otherwise. The rest is not used: it would let that peer
/// choose which of this machine's files are opened.
fn base_name(name: &str) -> Option<&OsStr> {
    Path::new(name.rsplit(['/', '\\']).next()?).file_name()
}

/// A regular file of this length; `None` if there is no such file. A device or a pipe might have no end, and is not read.
fn open_exactly(path: &Path, byte_count: u64) -> Option<DataBytes> {
    // Before it is opened, since opening a pipe waits for a writer.
    std::fs::metadata(path).ok().filter(|metadata| metadata.is_file() && metadata.len() == byte_count)?;
    open_data(path).ok()
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::id::ContentDigest;

    use super::*;

    const DATA: &[u8] = b"1,2,a\n";

    fn reference(name: &str, bytes: &[u8]) -> DataReference {
        DataReference {
            digest: ContentDigest::of(bytes),
            byte_count: bytes.len() as u64,
            name: name.to_owned(),
        }
    }

    #[test]
    fn only_the_last_part_of_the_name_is_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("data.csv"), DATA).unwrap();
        let find = |name: &str, given| {
            let found = search(&reference(name, DATA), given, folder.path()).bytes;
            found.map(|bytes| bytes.all().unwrap().into_owned())
        };
        let foreign = elsewhere.join("data.csv");
        for name in [foreign.to_str().unwrap(), "elsewhere/data.csv", "elsewhere/..", "/", ".."] {
            assert_eq!(find(name, None), None, "{name}");
        }
        assert_eq!(find("other.csv", Some(&foreign)).as_deref(), Some(DATA), "the user may name any file");
        std::fs::write(folder.path().join("data.csv"), DATA).unwrap();
        for name in ["data.csv", "elsewhere/data.csv", "/far/away/data.csv", "C:\\far\\data.csv"] {
            assert_eq!(find(name, None).as_deref(), Some(DATA), "{name}");
        }
        std::fs::write(folder.path().join("data.csv"), [DATA, DATA].concat()).unwrap();
        assert_eq!(find("data.csv", None), None, "of another length");
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_pipes_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [Path::new("/dev/null"), Path::new("/dev/zero"), &pipe, folder.path()] {
            let name = path.to_str().unwrap();
            let found = search(&reference(name, b""), Some(path), folder.path());
            assert!(found.bytes.is_none(), "{name}");
            assert_eq!(found.other_at.as_deref(), Some(path), "{name}");
        }
    }
}
