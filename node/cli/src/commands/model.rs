//! `peer evaluate`: measures the accuracy or the error of a saved model on a data file, and its loss.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use peergrad_config::model_file::{Confusion, DataPart, Evaluated, ModelFile};
use peergrad_config::specification::ComputeDevice;
use peergrad_net::compute_on;
use serde_json::{Value, json};

use super::device::DeepDevices;
use super::files;
use crate::terminal::{OutputFormat, emit, print_line};
use peergrad_embed::text::text_table::{count, text_table};
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
    /// Where to compute a deep network: `cpu`, or `gpu` with the feature `deep-wgpu`
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: ComputeDevice,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn evaluate(arguments: &EvaluateArguments, deep: &DeepDevices) -> anyhow::Result<ExitCode> {
    let model = decode(&arguments.model, &files::read(&arguments.model)?)?;
    let name = arguments.data.display().to_string();
    let data = files::open(&arguments.data)?;
    check_built_in(&model, &arguments.model)?;
    let deep = deep.open(arguments.device, OutputFormat::of_flag(arguments.json))?;
    let evaluated = compute_on(threads_of_one(1).get(), || model.evaluate(&name, &data, &deep));
    let evaluated = evaluated.context("cannot start threads")?;
    let evaluated = evaluated.with_context(|| arguments.model.display().to_string())?;
    files::warn_about(&name, &evaluated.notices);
    let (evaluation, held_out) = (evaluated.evaluation, evaluated.part == DataPart::HeldOut);
    if arguments.json {
        emit(&json!({
            "event": "evaluation", "accuracy": evaluation.accuracy, "loss": evaluation.loss,
            "rmse": evaluated.rmse, "perplexity": evaluated.perplexity, "samples": evaluation.samples, "held_out": held_out, "warnings": evaluated.notices,
            "confusion": evaluated.confusion.as_ref().map(confusion_json),
        }));
        return Ok(ExitCode::SUCCESS);
    }
    let accuracy = evaluation.accuracy.map(|share| format!("accuracy {share:.4}, ")).unwrap_or_default();
    let rmse = evaluated.rmse.map(|rmse| format!("RMSE {rmse:.4}, ")).unwrap_or_default();
    let perplexity =
        evaluated.perplexity.map(|perplexity| format!("perplexity {perplexity:.1}, ")).unwrap_or_default();
    print_line(&format!(
        "{accuracy}{rmse}{perplexity}loss {:.4} on {}",
        evaluation.loss,
        samples(&evaluated)
    ));
    if let Some(confusion) = &evaluated.confusion {
        let text = confusion_text(confusion);
        if !text.is_empty() {
            print_line("");
            text.lines().for_each(print_line);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What was evaluated, in words.
pub(super) fn samples(evaluated: &Evaluated) -> String {
    let (row, rows) =
        if evaluated.perplexity.is_some() { ("document", "documents") } else { ("row", "rows") };
    let number = evaluated.evaluation.samples;
    let rows = if number == 1 { row } else { rows };
    let number = count(number.into());
    match evaluated.part {
        DataPart::HeldOut => format!("{number} held-out {rows}"),
        DataPart::Trained => format!("{number} {rows} that the model was trained on (none was held out)"),
        DataPart::All => format!("{number} {rows}"),
    }
}

/// One object for each pair of classes that occurred.
fn confusion_json(confusion: &Confusion) -> Value {
    let name = |class: u32| confusion.classes[class as usize].as_str();
    let pairs = confusion.counts.iter();
    pairs
        .map(|(&(label, predicted), &times)| {
            json!({"class": name(label), "predicted": name(predicted), "times": times})
        })
        .collect()
}

/// Refuses the model of a custom task.
pub(super) fn check_built_in(model: &ModelFile, path: &Path) -> anyhow::Result<()> {
    if model.origin.specification.is_empty() {
        bail!(
            "{} holds the model of a custom task from another program; this program can use only models that run.toml describes",
            path.display()
        );
    }
    Ok(())
}

/// Which classes were taken for which: a table of all if they are few, else the most frequent mistakes.
fn confusion_text(confusion: &Confusion) -> String {
    /// With more classes the table does not fit a terminal.
    const CLASSES_SHOWN: usize = 16;
    const MISTAKES_SHOWN: usize = 10;
    let name = |class: u32| confusion.classes[class as usize].as_str();
    let times = |label: u32, predicted: u32| confusion.counts.get(&(label, predicted)).copied().unwrap_or(0);
    let classes = 0..confusion.classes.len() as u32;
    if classes.len() <= CLASSES_SHOWN {
        let mut header = vec!["is \\ taken for"];
        header.extend(classes.clone().map(name));
        let rows: Vec<Vec<String>> = classes
            .clone()
            .map(|label| {
                let cell = |times: u64| if times == 0 { ".".to_owned() } else { count(times) };
                let cells = classes.clone().map(|predicted| cell(times(label, predicted)));
                std::iter::once(name(label).to_owned()).chain(cells).collect()
            })
            .collect();
        return text_table(&header, &rows);
    }
    let mut mistakes: Vec<(&(u32, u32), &u64)> =
        confusion.counts.iter().filter(|((label, predicted), _)| label != predicted).collect();
    mistakes.sort_by_key(|&(pair, &times)| (std::cmp::Reverse(times), *pair));
    let rows: Vec<Vec<String>> = mistakes
        .iter()
        .take(MISTAKES_SHOWN)
        .map(|&(&(label, predicted), &times)| {
            vec![name(label).to_owned(), name(predicted).to_owned(), count(times)]
        })
        .collect();
    if rows.is_empty() { String::new() } else { text_table(&["is", "taken for", "times"], &rows) }
}

/// Reads the bytes of a model file. An error names its path.
pub(super) fn decode(path: &Path, bytes: &[u8]) -> anyhow::Result<ModelFile> {
    ModelFile::decode(bytes).with_context(|| path.display().to_string())
}
