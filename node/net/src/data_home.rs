//! The data home: where the default data directories lie, and whether a peer uses one of them.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// The default directories that exist, in the order in which peers take them.
#[must_use]
pub fn default_directories() -> Vec<PathBuf> {
    default_candidates().into_iter().flatten().take_while(|path| path.exists()).collect()
}

/// `peergrad`, `peergrad/2`, `peergrad/3`, ... in the folder for data of this user's programs; `None` if the user has no such folder.
pub(super) fn default_candidates() -> Option<impl Iterator<Item = PathBuf>> {
    // A relative path would mean another directory for each folder that a command runs in; the XDG standard says to ignore it.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")))?;
    Some(candidates_in(data.join("peergrad")))
}

/// The directories below `base`, which is the first.
pub(super) fn candidates_in(base: PathBuf) -> impl Iterator<Item = PathBuf> {
    let others = base.clone();
    std::iter::once(base).chain((2..=DEFAULTS_MAX).map(move |number| others.join(number.to_string())))
}

/// Whether a peer runs in a data directory. Takes the lock for an instant, shared, so that two commands that ask at once do not mistake each
/// other for a peer.
#[must_use]
pub fn is_in_use(directory: &Path) -> bool {
    let Ok(lock) = File::open(directory.join(LOCK_FILE)) else { return false };
    matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// How many other peers of this user run in the default directories, beside the one in `own`.
#[must_use]
pub fn peers_beside(own: &Path) -> usize {
    let own = own.canonicalize().ok();
    default_directories().iter().filter(|path| path.canonicalize().ok() != own && is_in_use(path)).count()
}

/// The file that a running peer has locked.
pub(super) const LOCK_FILE: &str = "lock";
/// Default directories of one user.
pub(super) const DEFAULTS_MAX: usize = 64;
