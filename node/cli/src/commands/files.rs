//! Files that the user names: read with errors that name the file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use peergrad_config::specification::init::{WrittenRunFile, write_run_file};
use peergrad_config::specification::run_file::ModelKind;
use peergrad_embed::open_data;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::embedded::embedded;
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde_json::json;
use tempfile::NamedTempFile;

use super::parquet::Wanted;
use super::pictures::PackSettings;
use super::text_folder::JoinedForm;
use super::{base_model, parquet, pictures, text_folder};
use crate::terminal::{OutputFormat, complain, emit, print_line};

/// `peer init`: prints a run file for a data file. A folder becomes a data file first, and so does a Parquet file, of whose columns of texts
/// `column` names one.
pub(super) fn init(
    data: &Path,
    model: Option<ModelKind>,
    (base, tokenizer): (Option<&Path>, Option<&Path>),
    column: Option<&str>,
    settings: PackSettings,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    data.to_str().context("the data file's path is not valid Unicode: rename it")?;
    let source = data.display().to_string();
    let is_prepared = base.is_some() || tokenizer.is_some();
    if is_prepared && model.is_some_and(|kind| !kind.is_for_text()) {
        bail!(
            "only a language model starts from `--base` or has a `--tokenizer`: leave them or `--model` out"
        );
    }
    let of_documents = model == Some(ModelKind::Lda);
    let is_text = model.map(|kind| kind.is_for_text() || of_documents).or(is_prepared.then_some(true));
    let form = if of_documents { JoinedForm::Lines } else { JoinedForm::Prose };
    let is_parquet = !parquet::files_at(data)?.is_empty();
    let (mut data, left_out) = data_file_of(data, is_text, form, column, settings)?;
    // A text of Parquet files is one, whatever it looks like.
    let is_plain_text = is_parquet && !is_prepared && data.extension().is_some_and(|ending| ending == "txt");
    let model = model.or(is_plain_text.then_some(ModelKind::Gpt));
    if is_prepared {
        data = base_model::prepare_text(&data, base, tokenizer)?;
    }
    warn_about(&source, &left_out);
    let name = data.to_str().context("the data file's path is not valid Unicode: rename it")?;
    let bytes = open(&data)?;
    let written = write_run_file(name, bytes, model);
    if written.is_err() && is_prepared {
        // It was made just now, and would be in the way of another try.
        let _ = std::fs::remove_file(&data);
    }
    let WrittenRunFile { text, notices } = written?;
    warn_about(name, &notices);
    let notices = [left_out, notices].concat();
    match format {
        OutputFormat::Json => emit(&json!({"event": "run_file", "text": text, "warnings": notices})),
        OutputFormat::Text => print_line(text.trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The data file of what a user names: itself, or what Parquet files or a folder of pictures or texts become; and what was left out, each a
/// sentence. `is_text` says what the model is for, if the user has said it, and `form` what texts of a folder become.
fn data_file_of(
    data: &Path,
    is_text: Option<bool>,
    form: JoinedForm,
    column: Option<&str>,
    settings: PackSettings,
) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let tables = parquet::files_at(data)?;
    if !tables.is_empty() {
        return parquet::convert(data, tables, wanted_of_parquet(is_text, column)?);
    }
    if column.is_some() {
        bail!(
            "`--column` is for Parquet files, and {} is none: leave it out, or give such a file",
            data.display()
        );
    }
    let below = text_folder::look_below(data)?;
    let has_texts = match is_text {
        Some(is_text) => is_text && !below.texts.is_empty(),
        None => below.is_mostly_text(),
    };
    if has_texts {
        return text_folder::join(data, &below.texts, form);
    }
    if is_text == Some(true) && data.is_dir() {
        bail!("{} has no texts: give a folder with files such as chapter.txt", data.display());
    }
    if pictures::are_at(data) && is_text != Some(true) {
        return pictures::pack(data, settings);
    }
    Ok((data.to_owned(), vec![]))
}

/// What Parquet files are converted to, for a model of text or another one.
fn wanted_of_parquet(is_text: Option<bool>, column: Option<&str>) -> anyhow::Result<Wanted<'_>> {
    match (column, is_text) {
        (Some(_), Some(false)) => {
            bail!("`--column` names the texts of a language model: leave it or `--model` out")
        }
        (Some(column), _) => Ok(Wanted::TextOf(column)),
        (None, Some(true)) => Ok(Wanted::Text),
        (None, _) => Ok(Wanted::Any),
    }
}

/// A draft of a file, in the folder where it will be. It is locked while this process writes it. Drafts of the same file that nobody writes
/// any more, because their process was stopped, are removed.
pub(super) fn draft_beside(path: &Path) -> anyhow::Result<NamedTempFile> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (prefix, suffix) = (format!(".{name}."), ".draft");
    remove_abandoned(folder, &prefix, suffix);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(suffix);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // As any new file: the user's mask applies.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let draft = builder.tempfile_in(folder).with_context(|| format!("cannot write {}", path.display()))?;
    // Some file systems have no locks. There, no draft is removed.
    let _ = draft.as_file().try_lock();
    Ok(draft)
}

/// Removes the files with such names that no process has locked.
fn remove_abandoned(folder: &Path, prefix: &str, suffix: &str) {
    let is_draft = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with(prefix) && name.ends_with(suffix)
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().filter(is_draft) {
        // A draft that cannot be removed only takes room.
        if std::fs::File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Gives a draft its name, which no file may have.
pub(super) fn keep_draft(draft: NamedTempFile, path: &Path) -> anyhow::Result<()> {
    draft.persist_noclobber(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// Refuses to make a file of `source` where one is already.
pub(super) fn check_is_new(path: &Path, source: &Path) -> anyhow::Result<()> {
    if path.symlink_metadata().is_ok() {
        bail!(
            "{} exists: use it with `--data {}`, or move it away, and it is made again from {}",
            path.display(),
            path.display(),
            source.display()
        );
    }
    Ok(())
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

/// Opens the data file that a user names: at this path, or built in.
pub(super) fn open(path: &Path) -> anyhow::Result<DataBytes> {
    match path.to_str().and_then(embedded) {
        Some(bytes) if !path.exists() => Ok(bytes.into()),
        _ => open_data(path).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The data file that a run file names: built in, or at a path relative to the run file's folder.
pub(super) fn data_of(run_file: &Path, name: &str) -> anyhow::Result<DataBytes> {
    match data_path(run_file, name) {
        Some(path) => open(&path).with_context(|| {
            format!("{}: `file` in [data] is a path relative to that file's folder", run_file.display())
        }),
        None => Ok(embedded(name).expect("a name without a path is built in").into()),
    }
}

/// The path of the data file that a run file names; `None` if it is built in.
pub(super) fn data_path(run_file: &Path, name: &str) -> Option<PathBuf> {
    let path = run_file.parent().unwrap_or(Path::new("")).join(name);
    (embedded(name).is_none() || path.exists()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_that_a_stopped_process_left_is_removed_and_one_in_use_is_not() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("photos.idx");
        let drafts = || std::fs::read_dir(place.path()).unwrap().count();
        let in_use = draft_beside(&path).unwrap();
        std::fs::write(place.path().join(".photos.idx.0abc.draft"), "half").unwrap();
        std::fs::write(place.path().join(".other.idx.0abc.draft"), "of another file").unwrap();
        let second = draft_beside(&path).unwrap();
        assert_eq!(drafts(), 3);
        assert!(in_use.path().exists());
        keep_draft(second, &path).unwrap();
        drop(in_use);
        assert_eq!(drafts(), 2, "the file and the draft of the other one");
    }
}
