//! How a run ended at a peer, and the model that it leaves in its data directory.

use std::path::{Path, PathBuf};

use peergrad_config::file_error::explained;
use peergrad_config::model_file::{ModelFile, Origin};
use peergrad_core::io::{Ended, Failure, FinalState};
use peergrad_net::{Directory, write_private};
use peergrad_protocol::RunId;
use peergrad_protocol::message::Refusal;

/// How a run ended at a peer.
#[derive(Debug)]
pub struct Outcome {
    /// Whether the run was completed, and if not, why.
    pub result: Result<(), Failure>,
    /// The newest committed state; `None` if training did not begin.
    pub state: Option<FinalState>,
    /// Whether other members own everything that this peer owned, so that its leaving costs nothing.
    pub has_handed_over: bool,
    /// The model in the data directory; `None` if no step was committed.
    pub model: Result<Option<SavedModel>, SaveError>,
}

/// A model in a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedModel {
    /// How many committed steps are behind it.
    pub steps: u64,
    /// Where it is.
    pub path: PathBuf,
    /// Where the model of an earlier run is now, if it was moved out of the way.
    pub earlier_model: Option<PathBuf>,
}

/// The model cannot be saved.
#[derive(Debug, thiserror::Error)]
#[error("cannot save the model to {}: {reason} ({})", path.display(), self.rest())]
pub struct SaveError {
    /// The file.
    pub path: PathBuf,
    /// Why, as text.
    pub reason: String,
    /// Whether there is a checkpoint in the same directory.
    pub has_checkpoints: bool,
}

impl Outcome {
    /// Whether the run was completed, or the peer has left it after other members owned everything that it had.
    #[must_use]
    pub fn is_success(&self) -> bool {
        match &self.result {
            Ok(()) => true,
            Err(failure) => self.has_handed_over && *failure == Failure::Left,
        }
    }

    /// Saves the model, and forgets in the data directory what a later start does not need.
    pub(crate) fn conclude(ended: Ended, has_handed_over: bool, directory: &Directory) -> Self {
        let Ended { outcome: result, state } = ended;
        let model = match &state {
            // Before the first step there is nothing to save.
            Some(state) if state.steps > 0 => save(directory, state).map(Some),
            Some(_) | None => Ok(None),
        };
        let outcome = Self { result, state, has_handed_over, model };
        if outcome.model.is_ok() {
            outcome.forget(directory);
        }
        outcome
    }

    fn forget(&self, directory: &Directory) {
        let is_over = matches!(
            self.result,
            Err(Failure::Refused { refusal: Refusal::Expelled(_) | Refusal::RunComplete, .. })
        );
        if self.is_success() || is_over {
            // The others no longer need this peer's vote.
            directory.forget_run();
        }
        if let (Ok(()), Some(state)) = (&self.result, &self.state) {
            // The final model replaces the checkpoints.
            directory.checkpoint_store().forget(&state.run);
        }
    }
}

impl SaveError {
    fn rest(&self) -> &'static str {
        if self.has_checkpoints {
            "the checkpoints beside it are kept, and each is a complete model"
        } else {
            "there is no checkpoint either: the model of this run is at the other peers, if there were any"
        }
    }
}

/// Writes the model into the data directory.
fn save(directory: &Directory, state: &FinalState) -> Result<SavedModel, SaveError> {
    let path = directory.path().join(MODEL_FILE);
    let origin = Origin {
        run: state.run,
        steps: state.steps,
        specification: String::from_utf8(state.specification.to_vec()).unwrap_or_default(),
    };
    let earlier_model = keep_earlier_run(&path, state.run);
    let model = ModelFile { manifest: state.manifest.clone(), parameters: state.parameters.to_vec(), origin };
    match write_private(&path, &model.encode()) {
        Ok(()) => Ok(SavedModel { steps: state.steps, path, earlier_model }),
        Err(error) => {
            let (reason, has_checkpoints) = (explained(&error).to_string(), has_checkpoints(directory));
            Err(SaveError { path, reason, has_checkpoints })
        }
    }
}

/// Renames the model of an earlier run, so that an aborted run cannot overwrite it. Returns the new path; `None` if there was no
/// such model.
fn keep_earlier_run(path: &Path, run: RunId) -> Option<PathBuf> {
    let earlier = ModelFile::decode(&std::fs::read(path).ok()?).ok()?.origin.run;
    let aside = path.with_file_name(format!("model-{}.safetensors", earlier.short()));
    // A failure to rename must not keep the new model from being saved.
    (earlier != run && std::fs::rename(path, &aside).is_ok()).then_some(aside)
}

/// Whether there is any checkpoint in the data directory.
fn has_checkpoints(directory: &Directory) -> bool {
    let is_model = |path: PathBuf| path.extension().is_some_and(|extension| extension == "safetensors");
    let entries = std::fs::read_dir(directory.path().join("checkpoints"));
    entries.is_ok_and(|entries| entries.flatten().any(|entry| is_model(entry.path())))
}

/// The file in the data directory that holds the model of the last run.
pub const MODEL_FILE: &str = "model.safetensors";
