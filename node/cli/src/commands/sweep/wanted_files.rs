//! The files that a user wants at the end of a sweep: the page, and the run file with the best values.

use std::path::{Path, PathBuf};

use anyhow::Context;
use peergrad_config::sweep::specification::run_file_with;
use serde_json::json;

use super::monitor::{KnownSweep, SweepMonitor};
use super::page;
use crate::terminal::{OutputFormat, emit, print_line};

/// Which files to write.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct WantedFiles {
    /// Where to write the page.
    pub(super) report: Option<PathBuf>,
    /// Where to write the run file with the best values, and the text of the run file.
    pub(super) best: Option<(PathBuf, String)>,
}

impl WantedFiles {
    /// Writes what is wanted, if the run was a sweep and has results.
    pub(in crate::commands) fn write(
        &self,
        monitor: &SweepMonitor,
        format: OutputFormat,
    ) -> anyhow::Result<()> {
        let Some(KnownSweep { specification, snapshot }) = monitor.conclusion() else { return Ok(()) };
        let Some(best) = snapshot.best() else { return Ok(()) };
        if let Some(path) = &self.report {
            write(path, &page::page(&specification, &snapshot), "report", format)?;
        }
        if let Some((path, text)) = &self.best {
            let values = &specification.trials[snapshot.jobs[best].trial].values;
            write(path, &run_file_with(text, &specification.sweep.keys, values)?, "best", format)?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str, what: &str, format: OutputFormat) -> anyhow::Result<()> {
    let file = path.display();
    std::fs::write(path, text).with_context(|| format!("cannot write {file}; give another path"))?;
    match format {
        OutputFormat::Json => emit(&json!({"event": what, "file": file.to_string()})),
        OutputFormat::Text => print_line(&format!("{what}: {file}")),
    }
    Ok(())
}
