//! A model that another one starts from: a model file of peergrad, or a folder in the layout of Hugging Face; and the prepared text that
//! holds it.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use peergrad_config::base_model::{BaseModel, indexed_files};
use peergrad_config::prepared_text::{TextTokens, prepare};
use peergrad_embed::text::text_table::{bytes, count};
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;

use super::files;
use super::tokenizer::Tokenizer;
use crate::terminal::complain;

/// Reads a model that was trained before.
fn read_base(path: &Path) -> anyhow::Result<BaseModel> {
    let model = if path.is_dir() {
        let config = files::read_text(&path.join("config.json"))?;
        let tensors = tensor_files(path)?.into_iter().map(|file| files::read(&file));
        BaseModel::of_folder(&config, &tensors.collect::<anyhow::Result<Vec<_>>>()?)
    } else {
        BaseModel::of_model_file(&files::read(path)?)
    };
    model.with_context(|| path.display().to_string())
}

/// The files with the tensors of a model in a folder: one, or those that its index lists.
fn tensor_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (file, index) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
    if file.exists() {
        return Ok(vec![file]);
    }
    if !index.exists() {
        bail!(
            "{} has no model.safetensors and no model.safetensors.index.json: give a folder with one of them and config.json",
            folder.display()
        );
    }
    let listed = indexed_files(&files::read_text(&index)?);
    let listed = listed.with_context(|| folder.display().to_string())?;
    Ok(listed.iter().map(|name| folder.join(name)).collect())
}

/// The tokenizer of a model in a folder; `None` if it has none, as models of bytes.
fn tokenizer_of(base: &Path) -> Option<PathBuf> {
    Some(base.join("tokenizer.json")).filter(|path| base.is_dir() && path.exists())
}

/// Writes a text and a model into one file beside the text: `book.txt` becomes `book.prepared.safetensors`. Returns its path.
///
/// - `base`: the model, if there is one.
/// - `tokenizer`: what makes tokens of the text; by default that of the model, and otherwise its bytes are its tokens.
pub(super) fn prepare_text(
    text: &Path,
    base: Option<&Path>,
    tokenizer: Option<&Path>,
) -> anyhow::Result<PathBuf> {
    let prepared = text.with_extension("prepared.safetensors");
    files::check_is_new(&prepared, text)?;
    let model = base.map(read_base).transpose()?;
    let tokenizer = tokenizer.map(Path::to_owned).or_else(|| tokenizer_of(base?));
    let found = files::open(text)?;
    let name = text.display().to_string();
    let found = found.unpacked(&name, UNPACKED_BYTES_MAX)?;
    let found = found.all().with_context(|| format!("cannot read {name}"))?;
    let (packed, token_count) = match tokenizer {
        None => (prepare(TextTokens::Bytes(&found), model.as_ref()), found.len()),
        Some(path) => {
            let file = files::read(&path)?;
            let tokenizer = Tokenizer::read(&file).with_context(|| path.display().to_string())?;
            let text = std::str::from_utf8(&found);
            let text =
                text.with_context(|| format!("{name} is not text in UTF-8: save it in that encoding"))?;
            let tokens = tokenizer.encode(text).with_context(|| path.display().to_string())?;
            let vocabulary = tokenizer.vocabulary();
            let text = TextTokens::Numbers { tokens: &tokens, vocabulary, tokenizer: &file };
            (prepare(text, model.as_ref()), tokens.len())
        }
    };
    let packed = packed.with_context(|| base.unwrap_or(text).display().to_string())?;
    let mut draft = files::draft_beside(&prepared)?;
    draft.write_all(&packed).with_context(|| format!("cannot write {}", prepared.display()))?;
    files::keep_draft(draft, &prepared)?;
    complain(&format!(
        "prepared {} ({} tokens{}) in {} ({})",
        text.display(),
        count(token_count as u64),
        model.map_or_else(String::new, |model| {
            format!(", with a model of {} parameters", count(model.parameters.len() as u64))
        }),
        prepared.display(),
        bytes(packed.len() as u64)
    ));
    Ok(prepared)
}
