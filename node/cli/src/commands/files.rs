//! Files that the user names: read with errors that say which file, and looked for where the specification points.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use peergrad_config::specification::init::write_run_file;
use peergrad_core::io::DataReference;
use peergrad_models::data::embedded::embedded;
use peergrad_protocol::id::ContentDigest;
use serde_json::json;

use crate::terminal::{complain, emit, print_line};

/// `peer init`: a run file for this data.
pub(super) fn init(data: &Path, is_json: bool) -> anyhow::Result<ExitCode> {
    let name = data.to_str().context("the data file's path is not valid Unicode: rename it")?;
    let bytes = match embedded(name) {
        Some(bytes) if !data.exists() => bytes.to_vec(),
        _ => read(data)?,
    };
    let text = write_run_file(name, &bytes)?;
    if is_json {
        emit(&json!({"event": "run_file", "text": text}));
    } else {
        print_line(text.trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The data file that a run file names: embedded, or by its path from the run file's folder.
pub(super) fn data_of(run_file: &Path, name: &str) -> anyhow::Result<Vec<u8>> {
    match data_path(run_file, name) {
        Some(path) => read(&path).with_context(|| {
            format!("{}: `file` in [data], a path from that file's folder", run_file.display())
        }),
        None => Ok(embedded(name).expect("what has no path is embedded").to_vec()),
    }
}

/// Where that file is, unless it is embedded.
pub(super) fn data_path(run_file: &Path, name: &str) -> Option<PathBuf> {
    let path = run_file.parent().unwrap_or(Path::new("")).join(name);
    (embedded(name).is_none() || path.exists()).then_some(path)
}

/// Looks for a run's data file: where the user said, among the embedded sets, and under the founder's name for it.
///
/// A file with other contents is as good as none: it may be another one of the same name.
pub(super) fn find_data(reference: &DataReference, given: Option<&Path>) -> Option<Arc<[u8]>> {
    let found = find(reference, given);
    if let (None, Some(given)) = (&found, given) {
        complain(&format!(
            "{} is not the data file of this run; asking the swarm for `{}`",
            given.display(),
            reference.name
        ));
    }
    found
}

fn find(reference: &DataReference, given: Option<&Path>) -> Option<Arc<[u8]>> {
    let is_it = |bytes: &Vec<u8>| ContentDigest::of(bytes) == reference.digest;
    let named = Path::new(&reference.name);
    let candidates: [Option<PathBuf>; 3] =
        [given.map(Path::to_owned), Some(named.to_owned()), named.file_name().map(PathBuf::from)];
    let on_disk = candidates.into_iter().flatten().filter(|path| {
        // Reading a file of another size only to hash it would be a waste.
        std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == reference.byte_count)
    });
    let found = embedded(&reference.name).map(<[u8]>::to_vec).filter(is_it);
    let found = found.or_else(|| on_disk.filter_map(|path| std::fs::read(path).ok()).find(is_it));
    found.map(Arc::from)
}
