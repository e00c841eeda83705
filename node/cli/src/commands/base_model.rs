//! A model that another one starts from: a model file of peergrad, or a folder in the layout of Hugging Face; and the prepared text that
//! holds it.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use peergrad_config::prepared_text::{BaseModel, prepare};
use peergrad_embed::text::text_table::{bytes, count};
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;

use super::files;
use crate::terminal::complain;

/// Reads a model that was trained before.
fn read_base(path: &Path) -> anyhow::Result<BaseModel> {
    let model = if path.is_dir() {
        let tensors = path.join("model.safetensors");
        if !tensors.exists() {
            bail!(
                "{} has no model.safetensors: give a folder with that file and config.json",
                path.display()
            );
        }
        let config = files::read_text(&path.join("config.json"))?;
        BaseModel::of_folder(&config, &files::read(&tensors)?)
    } else {
        BaseModel::of_model_file(&files::read(path)?)
    };
    model.with_context(|| path.display().to_string())
}

/// Writes a text and a model into one file beside the text: `book.txt` becomes `book.safetensors`. Returns its path.
pub(super) fn prepare_text(text: &Path, base: &Path) -> anyhow::Result<PathBuf> {
    let prepared = text.with_extension("safetensors");
    if prepared.exists() {
        bail!(
            "{} exists: use it with `--data {}`, or remove it, and the text is prepared again",
            prepared.display(),
            prepared.display()
        );
    }
    let model = read_base(base)?;
    let found = files::open(text)?;
    let name = text.display().to_string();
    let found = found.unpacked(&name, UNPACKED_BYTES_MAX)?;
    let found = found.all().with_context(|| format!("cannot read {name}"))?;
    let packed = prepare(&found, &model).with_context(|| base.display().to_string())?;
    let mut draft = files::draft_beside(&prepared)?;
    draft.write_all(&packed).with_context(|| format!("cannot write {}", prepared.display()))?;
    files::keep_draft(draft, &prepared)?;
    complain(&format!(
        "prepared {} and the model of {} parameters in {} ({})",
        text.display(),
        count(model.parameters.len() as u64),
        prepared.display(),
        bytes(packed.len() as u64)
    ));
    Ok(prepared)
}
