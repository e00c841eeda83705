//! Files that the user names: read with errors that name the file. Also the search for a run's data file.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use peergrad_config::specification::init::{WrittenRunFile, write_run_file};
use peergrad_core::io::DataReference;
use peergrad_models::data::embedded::embedded;
use peergrad_protocol::id::ContentDigest;
use serde_json::json;

use crate::terminal::{OutputFormat, complain, emit, print_line};

/// `peer init`: prints a run file for a data file.
pub(super) fn init(data: &Path, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let name = data.to_str().context("the data file's path is not valid Unicode: rename it")?;
    let bytes = match embedded(name) {
        Some(bytes) if !data.exists() => bytes.to_vec(),
        _ => read(data)?,
    };
    let WrittenRunFile { text, notices } = write_run_file(name, &bytes)?;
    warn_about(name, &notices);
    match format {
        OutputFormat::Json => emit(&json!({"event": "run_file", "text": text, "warnings": notices})),
        OutputFormat::Text => print_line(text.trim_end()),
    }
    Ok(ExitCode::SUCCESS)
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

/// Looks for a run's data file: at the path `given` by the user, among the built-in sets, and in the working directory under the last
/// part of the founder's name for it.
///
/// A file with a different digest is ignored, since it may be another file of the same name.
pub(super) fn find_data(reference: &DataReference, given: Option<&Path>) -> Option<Arc<[u8]>> {
    let found = find(reference, given, Path::new(""));
    if let (None, Some(given)) = (&found, given) {
        complain(&format!(
            "{} is not the data file of this run; asking the swarm for `{}`",
            given.display(),
            reference.name
        ));
    }
    found
}

fn find(reference: &DataReference, given: Option<&Path>, working_directory: &Path) -> Option<Arc<[u8]>> {
    let is_it = |bytes: &Vec<u8>| ContentDigest::of(bytes) == reference.digest;
    let named = base_name(&reference.name).map(|name| working_directory.join(name));
    let on_disk = given.map(Path::to_owned).into_iter().chain(named);
    let found = embedded(&reference.name).map(<[u8]>::to_vec).filter(is_it);
    let found =
        found.or_else(|| on_disk.filter_map(|path| read_exactly(&path, reference.byte_count)).find(is_it));
    found.map(Arc::from)
}

/// The last part of a path from another peer, whose system may separate parts otherwise. The rest is not used: it would let that peer
/// choose which of this machine's files are opened.
fn base_name(name: &str) -> Option<&OsStr> {
    Path::new(name.rsplit(['/', '\\']).next()?).file_name()
}

/// The contents of a regular file of this length; `None` if there is no such file. A device or a pipe might have no end, and is not read.
fn read_exactly(path: &Path, byte_count: u64) -> Option<Vec<u8>> {
    let is_readable = |metadata: &Metadata| metadata.is_file() && metadata.len() == byte_count;
    // Before it is opened, since opening a pipe waits for a writer; and again, since the path may name another file by now.
    std::fs::metadata(path).ok().filter(is_readable)?;
    let file = File::open(path).ok()?;
    file.metadata().ok().filter(is_readable)?;
    let mut bytes = Vec::new();
    file.take(byte_count).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: &[u8] = b"1,2,a\n";

    fn reference(name: &str, bytes: &[u8]) -> DataReference {
        DataReference {
            digest: ContentDigest::of(bytes),
            byte_count: bytes.len() as u64,
            name: name.to_owned(),
        }
    }

    #[test]
    fn only_the_last_part_of_the_name_is_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("data.csv"), DATA).unwrap();
        let find = |name: &str, given| find(&reference(name, DATA), given, folder.path());
        let foreign = elsewhere.join("data.csv");
        for name in [foreign.to_str().unwrap(), "elsewhere/data.csv", "elsewhere/..", "/", ".."] {
            assert_eq!(find(name, None), None, "{name}");
        }
        assert_eq!(find("other.csv", Some(&foreign)).as_deref(), Some(DATA), "the user may name any file");
        std::fs::write(folder.path().join("data.csv"), DATA).unwrap();
        for name in ["data.csv", "elsewhere/data.csv", "/far/away/data.csv", "C:\\far\\data.csv"] {
            assert_eq!(find(name, None).as_deref(), Some(DATA), "{name}");
        }
        std::fs::write(folder.path().join("data.csv"), [DATA, DATA].concat()).unwrap();
        assert_eq!(find("data.csv", None), None, "of another length");
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_pipes_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [Path::new("/dev/null"), Path::new("/dev/zero"), &pipe, folder.path()] {
            let name = path.to_str().unwrap();
            assert_eq!(find(&reference(name, b""), Some(path), folder.path()), None, "{name}");
        }
    }
}
