//! Finding the peer on this machine that a command is meant for.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use peergrad_net::{default_directories, is_in_use};

/// Runs asynchronous work to its end on this thread.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the asynchronous runtime")?.block_on(work)
}

/// The data directory of the one running peer, or the directory that the user gave.
pub(super) fn running_member(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(directory) = given {
        return Ok(directory.to_owned());
    }
    let mut running: Vec<PathBuf> = default_directories().into_iter().filter(|it| is_in_use(it)).collect();
    match (running.pop(), running.len()) {
        (Some(directory), 0) => Ok(directory),
        (Some(last), _) => {
            bail!("several peers run on this machine: select one with --dir, such as {}", last.display())
        }
        (None, _) => bail!(
            "no peer runs in this user's default directories: run this command on a member's machine, or name its data directory with --dir"
        ),
    }
}
