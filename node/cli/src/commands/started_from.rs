//! The run file that a run was started from: kept in the founder's data directory, so that `resume` can say what has changed since.
//!
//! A resumed run goes on with its own values, whatever the file says by then. A user who has edited the file has to learn that.

use std::path::{Path, PathBuf};

use peergrad_config::specification::run_file::ComputeSection;
use peergrad_config::specification::{RunFile, changed_keys};
use peergrad_net::write_private;
use peergrad_protocol::RunId;
use serde::{Deserialize, Serialize};

use super::files;
use peergrad_embed::text::command_name::command_name;

/// A run file, as it was when a run was started from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartedFrom {
    /// The file, as an absolute path.
    path: PathBuf,
    /// Its text.
    text: String,
}

/// What is stored.
#[derive(Serialize, Deserialize)]
struct StoredFile {
    /// The run's id.
    run: String,
    #[serde(flatten)]
    file: StartedFrom,
}

impl StartedFrom {
    /// The run file at `path`, which has just been read; `None` if it cannot be read again.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        Some(Self { path: std::path::absolute(path).ok()?, text })
    }

    /// The text of the file, as it was then.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Keeps it in a data directory, for a later `resume` of `run`. If that fails, a changed file goes unnoticed then.
    pub(super) fn keep(&self, directory: &Path, run: RunId) {
        let stored = StoredFile { run: run.to_string(), file: self.clone() };
        let bytes = serde_json::to_vec_pretty(&stored).expect("texts have a JSON form");
        let _ = write_private(&directory.join(FILE), &bytes);
    }

    /// The file that `run` was started from, if that was done with this data directory.
    pub(super) fn load(directory: &Path, run: RunId) -> Option<Self> {
        let bytes = std::fs::read(directory.join(FILE)).ok()?;
        let stored: StoredFile = serde_json::from_slice(&bytes).ok()?;
        (stored.run == run.to_string()).then_some(stored.file)
    }

    /// The path of the data file that the run file named; `None` if there is none now.
    pub(super) fn data_path(&self) -> Option<PathBuf> {
        let run_file = RunFile::parse(&self.text).ok()?;
        files::data_path(&self.path, &run_file.data().ok()?.file).filter(|path| path.exists())
    }

    /// How the run file told this peer to compute; `None` if it is no run file of this release.
    pub(super) fn compute(&self) -> Option<ComputeSection> {
        Some(RunFile::parse(&self.text).ok()?.compute)
    }

    /// What a user should know who resumes the run: how the file differs from what the run was started with. `None` if it does not, or is
    /// gone.
    pub(super) fn change_text(&self) -> Option<String> {
        let now = std::fs::read_to_string(&self.path).ok()?;
        let name = self.path.display();
        let advice = format!(
            "the run goes on with its own values. To train with the new ones, begin a new run: `{} start {name} --dir DIRECTORY`, with a new directory",
            command_name()
        );
        match changed_keys(&self.text, &now) {
            Ok(changed) if changed.is_empty() => None,
            Ok(changed) => {
                let shown: Vec<String> =
                    changed.iter().take(CHANGES_SHOWN_MAX).map(ToString::to_string).collect();
                let more = match changed.len().saturating_sub(CHANGES_SHOWN_MAX) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                Some(format!(
                    "{name} has changed since this run was started: {}{more}; {advice}",
                    shown.join(", ")
                ))
            }
            Err(reason) => Some(format!(
                "{name} has changed since this run was started, and is no run file now ({reason}); {advice}"
            )),
        }
    }
}

/// The file in the data directory.
const FILE: &str = "started-from.json";
/// How many changed keys are named.
const CHANGES_SHOWN_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_described_and_another_run_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, "epochs = 4\n[data]\nfile = \"digits\"\n").unwrap();
        StartedFrom::read(&path).unwrap().keep(folder.path(), RunId([1; 32]));
        assert_eq!(StartedFrom::load(folder.path(), RunId([2; 32])), None);
        let file = StartedFrom::load(folder.path(), RunId([1; 32])).unwrap();
        assert_eq!(file.change_text(), None);
        std::fs::write(&path, "# a remark\nepochs = 4\n[data]\nfile = \"digits\"\n").unwrap();
        assert_eq!(file.change_text(), None);
        std::fs::write(&path, "epochs = 5\n[data]\nfile = \"digits\"\n").unwrap();
        let text = file.change_text().unwrap();
        assert!(text.contains("`epochs` (5, in the run 4); the run goes on with its own values"), "{text}");
        std::fs::write(&path, "epochs = ").unwrap();
        assert!(file.change_text().unwrap().contains("is no run file now"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.change_text(), None);
    }

    #[test]
    fn the_data_file_lies_beside_the_run_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, "[data]\nfile = \"tables/a.csv\"\n").unwrap();
        let file = StartedFrom::read(&path).unwrap();
        assert_eq!(file.data_path(), None, "it is missing");
        let data = folder.path().join("tables/a.csv");
        std::fs::create_dir(folder.path().join("tables")).unwrap();
        std::fs::write(&data, "1,2\n").unwrap();
        assert_eq!(file.data_path(), Some(data));
    }
}
