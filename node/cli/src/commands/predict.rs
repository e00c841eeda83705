//! `peer predict`: what a saved model says of each row of a data file, or of each picture of a folder, as CSV.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use peergrad_config::model_file::{ModelFile, Predictions};
use peergrad_config::specification::{ComputeDevice, DeepBackend, Specification};
use peergrad_embed::text::text_table::{count, plural};
use peergrad_embed::threads_of_one;
use peergrad_models::task::loss::largest;
use peergrad_net::compute_on;

use super::device::DeepDevices;
use super::model::{check_built_in, decode};
use super::{files, pictures};
use crate::terminal::{OutputFormat, complain, print_piece};

#[derive(Args)]
pub(super) struct PredictArguments {
    /// A model file written by `peer export`
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// A data file of the kind that the model was trained on, a CSV file with or without the column of labels; or, for a model of pictures, a picture
    /// or a folder of them
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Where to compute a deep network: `cpu`, or `gpu` with the feature `deep-wgpu`
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: ComputeDevice,
}

pub(super) fn predict(arguments: &PredictArguments, deep: &DeepDevices) -> anyhow::Result<ExitCode> {
    let path = &arguments.model;
    let model = decode(path, &files::read(path)?)?;
    check_built_in(&model, path)?;
    let specification = model.specification().with_context(|| path.display().to_string())?;
    let deep = deep.open(arguments.device, OutputFormat::Text)?;
    let work = || match pictures::are_at(&arguments.data) {
        true => predict_pictures(&model, &specification, &arguments.data, &deep),
        false => predict_rows(&model, &specification, &arguments.data, &deep),
    };
    compute_on(threads_of_one(1).get(), work).context("cannot start threads")?
}

fn predict_rows(
    model: &ModelFile,
    specification: &Specification,
    path: &Path,
    deep: &DeepBackend,
) -> anyhow::Result<ExitCode> {
    let name = path.display().to_string();
    let data = files::open(path)?;
    let predictions = specification.predict(&model.parameters, &name, data, deep)?;
    files::warn_about(&name, &predictions.notices);
    let mut table = Table::new("row", &predictions)?;
    for (number, row) in (1_u64..).zip(predictions.values.chunks_exact(predictions.width())) {
        table.add(&number.to_string(), row)?;
        if !table.print_if_long()? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    table.print()?;
    Ok(ExitCode::SUCCESS)
}

fn predict_pictures(
    model: &ModelFile,
    specification: &Specification,
    path: &Path,
    deep: &DeepBackend,
) -> anyhow::Result<ExitCode> {
    /// Bytes of pictures that are computed together.
    const TOGETHER_BYTES: usize = 16 << 20;
    let shape = specification.picture_shape()?;
    let together = (TOGETHER_BYTES / shape.iter().product::<usize>()).max(1);
    let paths = pictures::below(path)?;
    let mut table = Table::new("file", &specification.predict_pictures(&model.parameters, vec![], deep)?)?;
    let mut broken = 0;
    for paths in paths.chunks(together) {
        let (mut names, mut values) = (vec![], vec![]);
        for path in paths {
            let name = path.display().to_string();
            match pictures::read(path, shape) {
                Ok(picture) => {
                    values.extend(picture);
                    names.push(name);
                }
                Err(error) => {
                    complain(&format!("warning: {name}: {error}"));
                    broken += 1;
                }
            }
        }
        let predictions = specification.predict_pictures(&model.parameters, values, deep)?;
        for (name, row) in names.iter().zip(predictions.values.chunks_exact(predictions.width())) {
            table.add(name, row)?;
        }
        if !table.print()? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if broken == paths.len() {
        bail!("{} has no picture that can be read: give PNG, JPEG or WebP files", path.display());
    }
    if broken > 0 {
        complain(&format!(
            "warning: {} of {} could not be read; the others are in the table",
            count(broken as u64),
            plural(paths.len(), "file")
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The table of predictions: what a row is, what is predicted, and the probability (or the margin) of each class.
struct Table {
    classes: Vec<String>,
    writer: csv::Writer<Vec<u8>>,
}

impl Table {
    fn new(what: &str, predictions: &Predictions) -> anyhow::Result<Self> {
        let classes = predictions.classes.clone();
        let mut writer = csv::Writer::from_writer(vec![]);
        writer.write_record([what, "prediction"].into_iter().chain(classes.iter().map(String::as_str)))?;
        Ok(Self { classes, writer })
    }

    fn add(&mut self, name: &str, row: &[f32]) -> anyhow::Result<()> {
        if self.classes.is_empty() {
            return Ok(self.writer.write_record([name, &row[0].to_string()])?);
        }
        let shares = row.iter().map(|share| format!("{share:.4}"));
        let prediction = self.classes[largest(row)].clone();
        Ok(self.writer.write_record([name.to_owned(), prediction].into_iter().chain(shares))?)
    }

    /// Prints what has been added if it is much. Returns whether somebody reads it.
    fn print_if_long(&mut self) -> anyhow::Result<bool> {
        const PRINTED_TOGETHER_BYTES: usize = 1 << 16;
        if self.writer.get_ref().len() < PRINTED_TOGETHER_BYTES {
            return Ok(true);
        }
        self.print()
    }

    /// Prints what has been added. Returns whether somebody reads it.
    fn print(&mut self) -> anyhow::Result<bool> {
        self.writer.flush()?;
        let full = std::mem::replace(&mut self.writer, csv::Writer::from_writer(vec![]));
        let bytes = full.into_inner().map_err(|error| error.into_error())?;
        Ok(print_piece(&String::from_utf8_lossy(&bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(table: Table) -> String {
        String::from_utf8(table.writer.into_inner().unwrap()).unwrap()
    }

    #[test]
    fn classes_have_probabilities_and_numbers_stand_alone() {
        let classes = vec!["cat".to_owned(), "dog, large".to_owned()];
        let predictions = Predictions { classes, values: vec![], notices: vec![] };
        let mut table = Table::new("file", &predictions).unwrap();
        table.add("a/1.png", &[0.25, 0.75]).unwrap();
        assert_eq!(text(table), "file,prediction,cat,\"dog, large\"\na/1.png,\"dog, large\",0.2500,0.7500\n");
        let predictions = Predictions { classes: vec![], values: vec![], notices: vec![] };
        let mut table = Table::new("row", &predictions).unwrap();
        table.add("1", &[-2.5]).unwrap();
        assert_eq!(text(table), "row,prediction\n1,-2.5\n");
    }
}
