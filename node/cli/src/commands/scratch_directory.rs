//! Temporary folders for the data directories of processes that a command starts.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// A temporary folder that is removed on drop.
pub(super) struct ScratchDirectory {
    path: PathBuf,
}

impl ScratchDirectory {
    /// Creates a folder for a command of this name.
    pub(super) fn create(command: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("peergrad-{command}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // Anything that is left is in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
