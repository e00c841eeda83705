//! Asking: what commands share that have a peer on this machine tell or do something.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use peergrad_net::{default_directories, is_in_use};

/// Does what takes one thread and some waiting.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start asking")?.block_on(work)
}

/// The data directory of the one member that is meant.
pub(super) fn running_member(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(directory) = given {
        return Ok(directory.to_owned());
    }
    let mut running: Vec<PathBuf> = default_directories().into_iter().filter(|it| is_in_use(it)).collect();
    match (running.pop(), running.len()) {
        (Some(directory), 0) => Ok(directory),
        (Some(last), _) => bail!(
            "several peers run on this machine: say with --dir which one to ask, {} for one",
            last.display()
        ),
        (None, _) => bail!(
            "no peer runs in this user's default directories: type this where a member runs, or name its data directory with --dir"
        ),
    }
}
