//! `peer export`: copies the newest model of a peer on this machine.
//!
//! That is the newest checkpoint of a run that goes on or was interrupted, and otherwise the model that the peer saved at the end. The
//! peer is neither asked nor disturbed: a checkpoint on disk is whole, and a new one does not change it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use peergrad_config::file_error::explained;
use peergrad_config::model_file::ModelFile;
use peergrad_config::specification::Checkpointing;
use peergrad_net::directory::default_directories;
use peergrad_net::{CheckpointStore, UnfinishedRun, write_atomically};
use serde_json::json;

use super::files;
use super::model::decode;
use crate::terminal::{complain, emit, print_line};
use peergrad_embed::outcome::MODEL_FILE;
use peergrad_embed::text::command_name::command_name;
use peergrad_embed::text::text_table::count;

#[derive(Args)]
pub(super) struct ExportArguments {
    /// The file to write, e.g. model.safetensors
    #[arg(value_name = "FILE")]
    to: PathBuf,
    /// The peer's data directory [default: the one with the newest model or checkpoint]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A model in a data directory.
struct FoundModel {
    model: ModelFile,
    source: ModelSource,
}

/// Where a model was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ModelSource {
    /// The peer saved it when it stopped.
    Saved,
    /// The newest checkpoint of a run that goes on.
    RunningCheckpoint,
    /// The newest checkpoint of a run that was interrupted.
    InterruptedCheckpoint,
}

pub(super) fn export(arguments: &ExportArguments) -> anyhow::Result<ExitCode> {
    let directory = match &arguments.dir {
        Some(directory) => directory.clone(),
        None => newest_directory().context("no peer on this machine has saved a model or a checkpoint; finish a run first, or name its data directory with --dir")?,
    };
    let FoundModel { model, source } = find(&directory)?;
    write_atomically(&arguments.to, &model.encode())
        .map_err(|error| anyhow!("cannot write {}: {}", arguments.to.display(), explained(&error)))?;
    if arguments.json {
        emit(&json!({
            "event": "exported", "file": arguments.to.display().to_string(), "run": model.origin.run.to_string(),
            "steps": model.origin.steps, "parameters": model.parameters.len(),
            "is_checkpoint": source != ModelSource::Saved,
        }));
        return Ok(ExitCode::SUCCESS);
    }
    let origin = match source {
        ModelSource::Saved => "",
        ModelSource::RunningCheckpoint => " (the newest checkpoint; the run goes on)",
        ModelSource::InterruptedCheckpoint => " (the newest checkpoint; the run was interrupted)",
    };
    complain(&format!(
        "run {}, {} parameters after {} steps, from {}{origin}",
        model.origin.run.short(),
        count(model.parameters.len() as u64),
        count(model.origin.steps),
        directory.display()
    ));
    print_line(&arguments.to.display().to_string());
    Ok(ExitCode::SUCCESS)
}

/// The newest model in a data directory.
fn find(directory: &Path) -> anyhow::Result<FoundModel> {
    let path = directory.join(MODEL_FILE);
    let Some(unfinished) = UnfinishedRun::read(directory) else {
        if !path.exists() {
            bail!("no peer has saved a model in {} yet; finish a run there first", directory.display());
        }
        return Ok(FoundModel { model: decode(&path, &files::read(&path)?)?, source: ModelSource::Saved });
    };
    // A peer that stopped and resumed has both: a saved model, and checkpoints since then.
    let saved = files::read(&path).ok().and_then(|bytes| ModelFile::decode(&bytes).ok());
    let earlier = saved.as_ref().map(|model| model.origin.run).filter(|run| *run != unfinished.run);
    let saved = saved.filter(|model| model.origin.run == unfinished.run);
    let checkpoint = CheckpointStore::in_directory(directory).newest(&unfinished.run);
    let checkpoint =
        checkpoint.map(|bytes| decode(&directory.join("checkpoints"), &bytes)).transpose()?.filter(
            |checkpoint| saved.as_ref().is_none_or(|saved| saved.origin.steps <= checkpoint.origin.steps),
        );
    let source = match unfinished.is_running {
        true => ModelSource::RunningCheckpoint,
        false => ModelSource::InterruptedCheckpoint,
    };
    match (checkpoint, saved) {
        (Some(model), _) => Ok(FoundModel { model, source }),
        (None, Some(model)) => Ok(FoundModel { model, source: ModelSource::Saved }),
        (None, None) => bail!("{}", no_checkpoint_text(directory, &unfinished, earlier.is_some())),
    }
}

/// Why an unfinished run has no checkpoint, and when it will have one.
fn no_checkpoint_text(directory: &Path, unfinished: &UnfinishedRun, has_earlier_model: bool) -> String {
    let UnfinishedRun { run, specification, is_running } = unfinished;
    let program = command_name();
    let when = match (specification.as_deref().map(Checkpointing::of), is_running) {
        (None, _) => format!("training has not begun there (`{program} status` shows what it waits for)"),
        (Some(Some(Checkpointing::Every { seconds })), true) => {
            format!("it writes one every {seconds} s; ask again then")
        }
        (Some(Some(Checkpointing::WhenStopping)), true) => {
            "with `seconds = 0` in [checkpoints], it writes one only when it stops".to_owned()
        }
        (Some(None), true) => "it writes one from time to time; ask again later".to_owned(),
        (Some(_), false) => {
            format!("it was interrupted before it wrote one; `{program} resume` continues it")
        }
    };
    let earlier = match has_earlier_model {
        true => format!(". {MODEL_FILE} there is of an earlier run; copy that file if you want it"),
        false => String::new(),
    };
    format!("run {} in {} has no checkpoint yet: {when}{earlier}", run.short(), directory.display())
}

/// The default directory in which a model or a checkpoint was written last.
fn newest_directory() -> Option<PathBuf> {
    let written = |directory: &PathBuf| {
        let run = UnfinishedRun::read(directory).map(|unfinished| unfinished.run);
        let checkpoint = run.and_then(|run| CheckpointStore::in_directory(directory).written_at(&run));
        checkpoint.max(modified(&directory.join(MODEL_FILE)))
    };
    let times = default_directories().into_iter().map(|directory| (written(&directory), directory));
    // A run without a checkpoint is told why it has none.
    let candidates =
        times.filter(|(time, directory)| time.is_some() || UnfinishedRun::read(directory).is_some());
    candidates.max_by_key(|(time, _)| *time).map(|(_, directory)| directory)
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}
