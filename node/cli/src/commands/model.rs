//! `peer evaluate`: measures the accuracy and loss of a saved model on a data file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use peergrad_config::model_file::{DataPart, ModelFile};
use peergrad_config::specification::DeepBackend;
use peergrad_models::data::embedded::embedded;
use peergrad_net::compute_on;
use serde_json::json;

use super::files;
use crate::terminal::{emit, print_line};
use peergrad_embed::text::text_table::count;
use peergrad_embed::threads_of_one;

#[derive(Args)]
pub(super) struct EvaluateArguments {
    /// A model file written by `peer export`
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The data file: the one that the model was trained on (its held-out rows are used), or one of the same format with the same
    /// columns (all rows are used). Columns with names may be in another order
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn evaluate(arguments: &EvaluateArguments, deep: &DeepBackend) -> anyhow::Result<ExitCode> {
    let model = decode(&arguments.model, &files::read(&arguments.model)?)?;
    let name = arguments.data.display().to_string();
    let data = match embedded(&name) {
        Some(bytes) if !arguments.data.exists() => bytes.to_vec(),
        _ => files::read(&arguments.data)?,
    };
    if model.origin.specification.is_empty() {
        bail!(
            "{} holds the model of a custom task from another program; this program can evaluate only models that run.toml describes",
            arguments.model.display()
        );
    }
    let evaluated = compute_on(threads_of_one(1).get(), || model.evaluate(&name, &data, deep));
    let evaluated = evaluated.context("cannot start threads")?;
    let evaluated = evaluated.with_context(|| arguments.model.display().to_string())?;
    files::warn_about(&name, &evaluated.notices);
    let (evaluation, held_out) = (evaluated.evaluation, evaluated.part == DataPart::HeldOut);
    if arguments.json {
        emit(&json!({
            "event": "evaluation", "accuracy": evaluation.accuracy, "loss": evaluation.loss,
            "samples": evaluation.samples, "held_out": held_out, "warnings": evaluated.notices,
        }));
        return Ok(ExitCode::SUCCESS);
    }
    let accuracy = evaluation.accuracy.map(|share| format!("accuracy {share:.4}, ")).unwrap_or_default();
    let rows = match evaluated.part {
        DataPart::HeldOut => "held-out rows",
        DataPart::Trained => "rows that the model was trained on (none was held out)",
        DataPart::All => "rows",
    };
    print_line(&format!(
        "{accuracy}loss {:.4} on {} {rows}",
        evaluation.loss,
        count(evaluation.samples.into())
    ));
    Ok(ExitCode::SUCCESS)
}

/// Reads the bytes of a model file. An error names its path.
pub(super) fn decode(path: &Path, bytes: &[u8]) -> anyhow::Result<ModelFile> {
    ModelFile::decode(bytes).with_context(|| path.display().to_string())
}
