//! `peer resume`: continues the run that a peer on this machine was in when it stopped.
//!
//! If other members still train, the peer rejoins them. If all have stopped, the restarted members wait for each other and continue
//! from their checkpoints together. With `--alone` the peer does not wait for other members: its newest checkpoint becomes a new run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use peergrad_core::node::StartMode;
use peergrad_core::program::loader::Loader;
use peergrad_embed::{DataSource, DirectoryChoice, PeerOptions};
use peergrad_net::directory::default_directories;
use peergrad_net::{Directory, DirectoryError, random_bytes};
use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::invite::{Invite, NotAnInvite, Secret};

use super::arguments::ResumeArguments;
use super::run::run;
use super::started_from::StartedFrom;
use crate::terminal::complain;
use peergrad_embed::text::command_name::command_name;

pub(super) fn resume(arguments: ResumeArguments, loader: Arc<dyn Loader>) -> anyhow::Result<ExitCode> {
    let ResumeArguments { extra, alone, data, mut peer } = arguments;
    if let Some(extra) = extra {
        bail!("{}", extra_text(&extra));
    }
    let (directory, record) = stopped(peer.dir.as_deref())?;
    let started_from = StartedFrom::load(directory.path(), record.view.run);
    if let Some(text) = started_from.as_ref().and_then(StartedFrom::change_text) {
        complain(&text);
    }
    if let Some(path) = &data {
        std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    peer.threads = peer.threads.or_else(|| started_from.as_ref()?.threads());
    let data = DataSource::search(data.or_else(|| started_from.as_ref()?.data_path()));
    let (start_mode, secret) =
        if alone { new_run(&directory, record)? } else { same_run(&directory, &record)? };
    let options = PeerOptions::new(start_mode, secret, loader);
    let directory = DirectoryChoice::Open(directory);
    // With `--alone`, a new run begins with the values of the old one.
    run(PeerOptions { data, directory, ..options }, peer, started_from)
}

/// What to do instead, for a user who gave `resume` something to resume.
fn extra_text(extra: &str) -> String {
    let program = command_name();
    if !matches!(extra.parse::<Invite>(), Err(NotAnInvite::Prefix)) {
        return format!(
            "`resume` takes no invite: `{program} resume` continues the last run of this machine, and `{program} join INVITE` joins a run"
        );
    }
    if Path::new(extra).is_dir() {
        return format!("name the data directory with --dir: `{program} resume --dir {extra}`");
    }
    format!(
        "`resume` takes no run file: a run goes on with the values that it was started with. To continue the last run of this machine: `{program} resume` (`--dir DIR` selects its data directory). To begin a new run with the values in {extra}: `{program} start {extra}`"
    )
}

/// How to found a new run from the newest checkpoint, with a new secret.
fn new_run(directory: &Directory, record: DurableRecord) -> anyhow::Result<(StartMode, Secret)> {
    let run_id = record.view.run;
    let (saved, damaged) = directory.checkpoint_store().scan(&run_id);
    for damaged in &damaged {
        let (path, reason) = (damaged.path.display(), &damaged.reason);
        complain(&format!("skipped the damaged checkpoint {path} ({reason})"));
    }
    let Some(newest) = saved.into_iter().next() else {
        bail!(
            "there is no checkpoint of run {} in {} to continue from; start a new run with `{} start`",
            run_id.short(),
            directory.path().display(),
            command_name()
        );
    };
    complain(&format!(
        "starting a new run that continues run {} after step {}",
        run_id.short(),
        newest.steps.0
    ));
    let specification = record.definition.specification.into();
    let start_mode =
        StartMode::Bootstrap { specification, nonce: random_bytes(), peers: 1, from: Some(newest) };
    Ok((start_mode, Secret(random_bytes())))
}

/// How to rejoin the run that the peer was in, with its secret.
fn same_run(directory: &Directory, record: &DurableRecord) -> anyhow::Result<(StartMode, Secret)> {
    let last = directory.last_record().filter(|last| last.invite.run == record.view.run);
    let last = last.with_context(|| {
        format!(
            "{} no longer holds the secret of run {}; use `{} join INVITE --dir` with an invite to it",
            directory.path().display(),
            record.view.run.short(),
            command_name()
        )
    })?;
    Ok((StartMode::Join { run: Some(last.invite.run) }, last.invite.secret))
}

/// The data directory of a peer that stopped during a run, and its durable record of that run.
fn stopped(given: Option<&Path>) -> anyhow::Result<(Directory, DurableRecord)> {
    if let Some(path) = given {
        let directory = Directory::open(path)?;
        let record = record_in(&directory)?;
        let record = record.with_context(|| format!("{} holds no unfinished run: name another data directory with --dir, or join a run with `peer join INVITE`", path.display()))?;
        return Ok((directory, record));
    }
    let mut in_use: Vec<PathBuf> = Vec::new();
    for path in default_directories() {
        match Directory::open(&path) {
            Ok(directory) => {
                if let Some(record) = record_in(&directory)? {
                    return Ok((directory, record));
                }
            }
            Err(DirectoryError::InUse { path }) => in_use.push(path),
            Err(other) => return Err(other.into()),
        }
    }
    let running = match in_use.len() {
        0 => String::new(),
        count => format!(" ({count} running)"),
    };
    bail!(
        "no peer on this machine has an unfinished run{running}; name its data directory with --dir, or join the run again with an invite"
    )
}

fn record_in(directory: &Directory) -> anyhow::Result<Option<DurableRecord>> {
    Ok(directory.restored()?.and_then(|bytes| DurableRecord::from_bytes(&bytes)))
}
