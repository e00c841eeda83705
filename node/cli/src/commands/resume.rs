//! `peer resume`: continues the run that a peer on this machine was in when it stopped.
//!
//! If other members still train, the peer rejoins them. If all have stopped, the restarted members wait for each other and continue
//! from their checkpoints together. With `--alone` the peer does not wait for other members: its newest checkpoint becomes a new run.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use peergrad_core::program::loader::Loader;
use peergrad_embed::text::command_name::command_name;
use peergrad_embed::{Damaged, DataSource, PeerOptions, StoppedPeer};
use peergrad_protocol::invite::{Invite, NotAnInvite};

use super::arguments::{PeerArguments, ResumeArguments};
use super::device::PeerLoader;
use super::run::{Surroundings, run};
use super::started_from::StartedFrom;
use crate::terminal::complain;

pub(super) fn resume(
    arguments: ResumeArguments,
    loader: impl FnOnce(&PeerArguments) -> anyhow::Result<PeerLoader>,
) -> anyhow::Result<ExitCode> {
    resume_with(arguments, loader, |_, _, _| Ok(()))
}

/// As `peer resume`; `prepare` may change what belongs to the peer, or refuse to continue its run.
pub(super) fn resume_with(
    arguments: ResumeArguments,
    loader: impl FnOnce(&PeerArguments) -> anyhow::Result<PeerLoader>,
    prepare: impl FnOnce(&mut Surroundings, &PeerArguments, &StoppedPeer) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let ResumeArguments { extra, alone, data, mut peer } = arguments;
    if let Some(extra) = extra {
        bail!("{}", extra_text(&extra));
    }
    let stopped = StoppedPeer::find(peer.dir.as_deref());
    let stopped = stopped.map_err(|error| anyhow!("{error} (--dir DIR names a data directory)"))?;
    let started_from = StartedFrom::load(stopped.directory(), stopped.run());
    if let Some(text) = started_from.as_ref().and_then(StartedFrom::change_text) {
        complain(&text);
    }
    if let Some(path) = &data {
        std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    if let Some(compute) = started_from.as_ref().and_then(StartedFrom::compute) {
        peer.threads = peer.threads.or(compute.threads);
        peer.device = peer.device.or(compute.device);
    }
    let PeerLoader { loader, monitor } = loader(&peer)?;
    let data = DataSource::search(data.or_else(|| started_from.as_ref()?.data_path()));
    let mut surroundings = Surroundings { started_from, monitor, ..Surroundings::default() };
    prepare(&mut surroundings, &peer, &stopped)?;
    let options = if alone { resume_alone(stopped, loader)? } else { stopped.resume(loader)? };
    // With `--alone`, a new run begins with the values of the old one.
    run(PeerOptions { data, ..options }, peer, surroundings)
}

/// A new run from the newest checkpoint.
fn resume_alone(stopped: StoppedPeer, loader: Arc<dyn Loader>) -> anyhow::Result<PeerOptions> {
    let (newest, damaged) = stopped.newest_checkpoint();
    for Damaged { path, reason } in &damaged {
        complain(&format!("skipped the damaged checkpoint {} ({reason})", path.display()));
    }
    let run = stopped.run().short();
    let Some(newest) = newest else {
        bail!(
            "there is no checkpoint of run {run} in {} to continue from; start a new run with `{} start`",
            stopped.directory().display(),
            command_name()
        );
    };
    complain(&format!("starting a new run that continues run {run} after step {}", newest.steps.0));
    Ok(stopped.resume_alone(newest, loader))
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
