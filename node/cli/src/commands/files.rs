//! Files that the user names: read with errors that name the file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use peergrad_config::specification::init::{WrittenRunFile, write_run_file};
use peergrad_config::specification::run_file::ModelKind;
use peergrad_models::data::embedded::embedded;
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde_json::json;

use crate::terminal::{OutputFormat, complain, emit, print_line};

/// `peer init`: prints a run file for a data file.
pub(super) fn init(data: &Path, model: Option<ModelKind>, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let name = data.to_str().context("the data file's path is not valid Unicode: rename it")?;
    let bytes = match embedded(name) {
        Some(bytes) if !data.exists() => bytes.to_vec(),
        _ => read(data)?,
    };
    let WrittenRunFile { text, notices } = write_run_file(name, &bytes, model)?;
    warn_about(name, &notices);
    match format {
        OutputFormat::Json => emit(&json!({"event": "run_file", "text": text, "warnings": notices})),
        OutputFormat::Text => print_line(text.trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

/// A kind of model, as a run file has it.
pub(super) fn model_kind(text: &str) -> Result<ModelKind, String> {
    ModelKind::deserialize(StrDeserializer::<Error>::new(text)).map_err(|error| error.to_string())
}

/// Writes what was inferred from a data file and may be wrong.
pub(super) fn warn_about(file: &str, notices: &[String]) {
    notices.iter().for_each(|notice| complain(&format!("warning: {file}: {notice}")));
}

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The bytes of the data file that a run file names: built in, or at a path relative to the run file's folder.
pub(super) fn data_of(run_file: &Path, name: &str) -> anyhow::Result<Vec<u8>> {
    match data_path(run_file, name) {
        Some(path) => read(&path).with_context(|| {
            format!("{}: `file` in [data] is a path relative to that file's folder", run_file.display())
        }),
        None => Ok(embedded(name).expect("a name without a path is built in").to_vec()),
    }
}

/// The path of the data file that a run file names; `None` if it is built in.
pub(super) fn data_path(run_file: &Path, name: &str) -> Option<PathBuf> {
    let path = run_file.parent().unwrap_or(Path::new("")).join(name);
    (embedded(name).is_none() || path.exists()).then_some(path)
}
