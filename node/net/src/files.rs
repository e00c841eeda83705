//! Files that are whole or absent: after a crash or on a full disk, the earlier contents are still there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path`, and replaces the earlier contents in one instant.
///
/// They are written to a draft, which is forced to disk and renamed; then the folder is forced to disk.
///
/// # Errors
/// The system's error. The old contents are still in place.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, Readers::Anyone)
}

/// As [`write_atomically`], but only the owner can read the file, from its first byte on.
///
/// # Errors
/// The system's error. The old contents are still in place.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, Readers::Owner)
}

/// Creates a file that only its owner can read.
///
/// # Errors
/// The system's error; [`io::ErrorKind::AlreadyExists`] if the file exists.
pub fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path, bytes, Readers::Owner)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    Anyone,
    Owner,
}

fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let draft = draft_of(path)?;
    let written = write_draft(&draft, bytes, readers).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // A draft that is left only takes room; the first error is the one that matters.
        let _ = fs::remove_file(&draft);
    }
    written?;
    sync_folder(path)
}

/// Forces the folder's entry for `path` to disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Creates an empty draft that only the owner can read, for a library that writes to a path.
pub(super) fn create_draft(draft: &Path) -> io::Result<()> {
    write_draft(draft, b"", Readers::Owner)
}

fn write_draft(draft: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    // A draft that a crash has left may have other permissions.
    match fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    create(draft, bytes, readers)
}

fn create(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if readers == Readers::Owner {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    #[cfg(not(unix))]
    let _ = readers;
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The path of the draft: in the same folder, so that the rename stays within one file system.
pub(super) fn draft_of(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut draft = std::ffi::OsString::from(".");
    draft.push(name);
    draft.push(format!(".{}.draft", std::process::id()));
    Ok(path.with_file_name(draft))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_replaced_and_no_draft_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_contents() {
        let folder = tempfile::tempdir().unwrap();
        let occupied = folder.path().join("occupied");
        fs::create_dir(&occupied).unwrap();
        assert!(write_atomically(&occupied, b"new").is_err(), "a folder cannot be replaced by a file");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
