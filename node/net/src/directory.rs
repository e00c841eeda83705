//! The data directory: the peer's identity, its number of starts and its records, used by one process at a time.
//!
//! ```text
//! ~/.local/share/peergrad/     lock  identity  incarnation  durable-*  run.json  checkpoints/  model.safetensors
//! ~/.local/share/peergrad/2/   the same, for a second peer on this machine; then 3, ...
//! ```
//! # Invariants
//! - While a [`Directory`] lives, no other process has it: the lock belongs to the open file and ends with the process, so a
//!   crash leaves nothing to clean up.
//! - No two starts of a peer have the same incarnation: the number is on disk before it is sent to any peer.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use peergrad_config::file_error::explained;
use peergrad_protocol::{Incarnation, RunId};

use super::checkpoints::CheckpointStore;
pub use super::data_home::default_directories;
use super::data_home::{DEFAULTS_MAX, LOCK_FILE, default_candidates};
use super::files;
use super::identity::{Identity, IdentityError};
use super::random::random_bytes;
use super::record::RunRecord;

/// A locked data directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Held, never read: dropping it releases the directory.
    lock: Arc<File>,
}

/// A directory, and what the user should know about the choice.
#[derive(Debug)]
pub struct ChosenDirectory {
    /// The directory.
    pub directory: Directory,
    /// Default directories that were skipped because other peers use them.
    pub passed_over: Vec<PathBuf>,
    /// Default directories that were skipped because a peer was stopped there in the middle of another run.
    pub stopped: Vec<PathBuf>,
}

/// The data directory cannot be used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process uses it.
    #[error("{} is in use by another peer; stop that one, or choose another --dir", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// All default directories are used.
    #[error(
        "{DEFAULTS_MAX} peers run on this machine or were stopped in the middle of a run; name a directory with --dir"
    )]
    AllInUse,
    /// The user has no folder for it.
    #[error("neither XDG_DATA_HOME nor HOME is set; name a directory with --dir")]
    Homeless,
    /// The system refuses it.
    #[error("cannot use {}: {}, or choose another --dir", path.display(), explained(cause))]
    Unusable {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// It belongs to another user, who could change its files.
    #[error("{} belongs to another user; choose another --dir", path.display())]
    OfAnotherUser {
        /// The directory.
        path: PathBuf,
    },
    /// Its permissions let other users replace its files.
    #[error("other users can write to {path}: take that away with `chmod go-w {path}`, or choose another --dir", path = path.display())]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
    },
    /// The count of starts is not a number.
    #[error("{} is damaged; write a number into it that is larger than any it has held, or delete the whole directory to continue as a new peer", path.display())]
    DamagedIncarnation {
        /// The file.
        path: PathBuf,
    },
}

impl Directory {
    /// Locks the directory that the user named, and creates it if it does not exist.
    ///
    /// # Errors
    /// Another process uses it, another user can write to it, or the system refuses it.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let unusable = |path: &Path, cause| DirectoryError::Unusable { path: path.to_owned(), cause };
        create_private(path).map_err(|cause| unusable(path, cause))?;
        #[cfg(unix)]
        check_access(path)?;
        let lock_path = path.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let lock = options.open(&lock_path);
        let lock = lock.map_err(|cause| unusable(&lock_path, cause))?;
        match try_lock(&lock) {
            Ok(()) => Ok(Self { path: path.to_owned(), lock: Arc::new(lock) }),
            Err(TryLockError::WouldBlock) => Err(DirectoryError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(cause)) => Err(unusable(&lock_path, cause)),
        }
    }

    /// Locks the default directory of a peer that was stopped in the middle of `run`; otherwise the first one that no other
    /// process uses and in which no other run was stopped in the middle.
    ///
    /// # Errors
    /// There is no such directory, or the system refuses it.
    pub fn open_default(run: Option<&RunId>) -> Result<ChosenDirectory, DirectoryError> {
        let left = default_directories().into_iter().find(|path| {
            let record = RunRecord::read_last(path);
            run.is_some() && record.map(|record| record.invite.run).as_ref() == run
        });
        let candidates = default_candidates().ok_or(DirectoryError::Homeless)?;
        Self::open_first(left.into_iter().chain(candidates), run)
    }

    fn open_first(
        candidates: impl Iterator<Item = PathBuf>,
        run: Option<&RunId>,
    ) -> Result<ChosenDirectory, DirectoryError> {
        let (mut passed_over, mut stopped) = (Vec::new(), Vec::new());
        for path in candidates {
            match Self::open(&path) {
                Ok(directory) if directory.last_run().is_none_or(|left| Some(&left) == run) => {
                    return Ok(ChosenDirectory { directory, passed_over, stopped });
                }
                Ok(_) => stopped.push(path),
                Err(DirectoryError::InUse { path }) => passed_over.push(path),
                Err(other) => return Err(other),
            }
        }
        Err(DirectoryError::AllInUse)
    }

    /// The run that was stopped here and can be resumed; `None` if the last run has ended, or there was none.
    fn last_run(&self) -> Option<RunId> {
        self.last_record().filter(|_| self.durable_path().exists()).map(|record| record.invite.run)
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity kept here. It is created at the first start.
    ///
    /// # Errors
    /// See [`Identity::load_or_create`].
    pub fn identity(&self) -> Result<Identity, IdentityError> {
        Identity::load_or_create(&self.path.join("identity"))
    }

    /// The number of this start: one more than the number of the last start.
    ///
    /// # Errors
    /// The number cannot be read or saved. Then no number was used up.
    pub fn next_incarnation(&self) -> Result<Incarnation, DirectoryError> {
        let path = self.path.join("incarnation");
        let unusable = |cause| DirectoryError::Unusable { path: path.clone(), cause };
        let last = match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse::<u64>().ok().and_then(|last| last.checked_add(1)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(1),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
            Err(cause) => return Err(unusable(cause)),
        };
        let [draw] = random_bytes();
        let next = last.ok_or_else(|| DirectoryError::DamagedIncarnation { path: path.clone() })?;
        files::write_private(&path, format!("{next}\n").as_bytes()).map_err(unusable)?;
        Ok(Incarnation::of_start(next, draw))
    }

    /// The record that a peer persisted here last, if there is one.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn restored(&self) -> Result<Option<Arc<[u8]>>, DirectoryError> {
        let path = self.durable_path();
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(DirectoryError::Unusable { path, cause }),
        }
    }

    /// The path of the peer's durable record. A copy of the directory has another path for it: the copy does not know what the
    /// original has promised since, and a peer that forgets a promise must not vote.
    #[must_use]
    pub fn durable_path(&self) -> PathBuf {
        self.path.join(format!("durable-{}", self.place()))
    }

    /// A text that names this machine and this directory, as far as the system tells. A copy of the directory has another one.
    fn place(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("peergrad 1 place of a data directory");
        hasher.update(&fs::read("/etc/machine-id").unwrap_or_default());
        #[cfg(unix)]
        if let Ok(metadata) = self.lock.metadata() {
            hasher.update(&std::os::unix::fs::MetadataExt::ino(&metadata).to_le_bytes());
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }

    /// The checkpoints in this directory.
    #[must_use]
    pub fn checkpoint_store(&self) -> CheckpointStore {
        CheckpointStore::in_directory(&self.path)
    }

    /// The record of the last run here, if a peer was stopped in the middle of it.
    #[must_use]
    pub fn last_record(&self) -> Option<RunRecord> {
        RunRecord::read_last(&self.path)
    }

    /// What keeps the directory locked until it is dropped, for a thread that writes to it.
    #[must_use]
    pub fn lock(&self) -> Arc<File> {
        Arc::clone(&self.lock)
    }

    /// Whether a thread still has a [`lock`](Self::lock).
    #[must_use]
    pub fn is_written_to(&self) -> bool {
        Arc::strong_count(&self.lock) > 1
    }

    /// Removes what a later start would resume. A file that cannot be removed makes the run look like one that was stopped in
    /// the middle.
    pub fn forget_run(&self) {
        let _ = fs::remove_file(self.durable_path());
        RunRecord::remove(&self.path);
    }

    /// Lets other `peer` commands on this machine see the run, until this directory is released.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn publish(&self, record: &RunRecord) -> Result<(), DirectoryError> {
        let unusable = |cause| DirectoryError::Unusable { path: self.path.clone(), cause };
        record.write(&self.path).map_err(unusable)
    }
}

/// A command that only asks whether a peer runs holds the lock for an instant. A second try tells such a command from a peer.
fn try_lock(lock: &File) -> Result<(), TryLockError> {
    lock.try_lock().or_else(|_| {
        std::thread::sleep(LOOK);
        lock.try_lock()
    })
}

/// An error if other users can change what is in a directory. It may have been there before, with any permissions.
#[cfg(unix)]
fn check_access(path: &Path) -> Result<(), DirectoryError> {
    use std::os::unix::fs::MetadataExt;
    const WRITABLE_BY_GROUP: u32 = 0o020;
    const WRITABLE_BY_ALL: u32 = 0o002;
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid().as_raw());
    let path = path.to_owned();
    // Root may write everywhere, and in a container its folders often belong to a user outside. Where each user has a group of their own,
    // folders are writable by that group.
    let is_open = |metadata: &fs::Metadata| {
        let is_open_to_group = metadata.mode() & WRITABLE_BY_GROUP != 0 && metadata.gid() != group;
        metadata.mode() & WRITABLE_BY_ALL != 0 || is_open_to_group
    };
    match fs::metadata(&path) {
        Ok(metadata) if !user.is_root() && metadata.uid() != user.as_raw() => {
            Err(DirectoryError::OfAnotherUser { path })
        }
        Ok(metadata) if is_open(&metadata) => Err(DirectoryError::WritableByOthers { path }),
        Ok(_) => Ok(()),
        Err(cause) => Err(DirectoryError::Unusable { path, cause }),
    }
}

/// Creates a directory that only its owner can use, with those around it that do not exist.
pub(super) fn create_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use peergrad_protocol::PeerId;
    use peergrad_protocol::invite::{Invite, Secret};
    use peergrad_protocol::message::Contact;

    use super::*;
    use crate::data_home::candidates_in;
    use crate::record::RecordError;

    #[test]
    fn a_named_directory_belongs_to_one_peer_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let first = Directory::open(&path).unwrap();
        let error = Directory::open(&path).unwrap_err();
        assert!(matches!(&error, DirectoryError::InUse { path: named } if *named == path));
        assert!(error.to_string().contains("--dir"), "{error}");
        drop(first);
        Directory::open(&path).unwrap();
    }

    #[test]
    fn a_second_peer_takes_the_next_default_directory_and_reports_it() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Directory::open_first(candidates_in(folder.path().join("peergrad")), None).unwrap();
        let (first, second, third) = (open(), open(), open());
        assert!(first.passed_over.is_empty());
        assert_eq!(second.passed_over, [first.directory.path()]);
        assert_eq!(third.directory.path(), first.directory.path().join("3"));
        let second_path = second.directory.path().to_owned();
        drop(second);
        assert_eq!(open().directory.path(), second_path);
    }

    #[test]
    fn the_directory_of_a_stopped_run_is_reserved_for_that_run() {
        let folder = tempfile::tempdir().unwrap();
        let open = |run| Directory::open_first(candidates_in(folder.path().join("peergrad")), run).unwrap();
        let first = open(None).directory;
        let invite = Invite { run: RunId([2; 32]), secret: Secret([3; 32]), contacts: vec![] };
        first.publish(&RunRecord { invite, port: 4747 }).unwrap();
        fs::write(first.durable_path(), "promised").unwrap();
        let path = first.path().to_owned();
        drop(first);
        for other in [None, Some(&RunId([1; 32]))] {
            let chosen = open(other);
            assert_eq!(chosen.stopped, std::slice::from_ref(&path));
            assert_eq!(chosen.directory.path(), path.join("2"));
        }
        let again = open(Some(&RunId([2; 32])));
        assert_eq!((again.directory.path(), again.stopped), (&*path, vec![]));
        again.directory.forget_run();
        drop(again.directory);
        assert_eq!(open(None).directory.path(), path);
    }

    #[test]
    fn a_copied_directory_has_no_durable_record() {
        let folder = tempfile::tempdir().unwrap();
        let [original, copy] =
            ["original", "copy"].map(|name| Directory::open(&folder.path().join(name)).unwrap());
        fs::write(original.durable_path(), "promised").unwrap();
        let name = original.durable_path().file_name().unwrap().to_owned();
        fs::copy(original.durable_path(), copy.path().join(name)).unwrap();
        assert_eq!(original.restored().unwrap().as_deref(), Some(&b"promised"[..]));
        assert_eq!(copy.restored().unwrap(), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let chmod = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o777, 0o702, 0o1777] {
            chmod(mode);
            let error = Directory::open(folder.path()).unwrap_err();
            assert!(matches!(error, DirectoryError::WritableByOthers { .. }), "{mode:o}: {error}");
            let command = format!("`chmod go-w {}`", folder.path().display());
            assert!(error.to_string().contains(&command), "{error}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
        }
        // Its group is this user's own.
        for mode in [0o755, 0o770] {
            chmod(mode);
            Directory::open(folder.path()).unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn others_can_read_nothing_in_a_directory() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peer");
        let directory = Directory::open(&path).unwrap();
        directory.identity().unwrap();
        directory.next_incarnation().unwrap();
        assert_eq!(mode(&path), 0o700);
        for file in fs::read_dir(&path).unwrap() {
            let file = file.unwrap().path();
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    }

    #[test]
    fn incarnations_grow() {
        let folder = tempfile::tempdir().unwrap();
        for expected in 1..4 {
            let directory = Directory::open(folder.path()).unwrap();
            let incarnation = directory.next_incarnation().unwrap();
            assert!(incarnation >= Incarnation::of_start(expected, 0));
            assert!(incarnation <= Incarnation::of_start(expected, u8::MAX));
        }
        let directory = Directory::open(folder.path()).unwrap();
        fs::write(folder.path().join("incarnation"), "many").unwrap();
        assert!(matches!(directory.next_incarnation(), Err(DirectoryError::DamagedIncarnation { .. })));
    }

    #[test]
    fn a_run_record_is_readable_only_while_its_peer_runs() {
        let folder = tempfile::tempdir().unwrap();
        let contact = Contact { peer: PeerId([1; 32]), addresses: vec!["/ip4/10.0.0.7/tcp/4747".to_owned()] };
        let invite = Invite { run: RunId([2; 32]), secret: Secret([3; 32]), contacts: vec![contact] };
        let record = RunRecord { invite, port: 4747 };

        let directory = Directory::open(folder.path()).unwrap();
        assert!(matches!(RunRecord::read(folder.path()), Err(RecordError::NotRunning { .. })));
        directory.publish(&record).unwrap();
        assert_eq!(RunRecord::read(folder.path()).unwrap(), record);

        // As after a crash: the record is there, the lock is not.
        let left_behind = fs::read(folder.path().join("run.json")).unwrap();
        drop(directory);
        fs::write(folder.path().join("run.json"), left_behind).unwrap();
        assert!(matches!(RunRecord::read(folder.path()), Err(RecordError::NotRunning { .. })));
    }
}
