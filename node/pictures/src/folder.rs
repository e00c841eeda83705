//! Pictures in folders: one folder for each class, or all files below a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::layout::{Class, Layout, SourceKind, is_skipped};
use crate::pack_error::PackError;

/// A folder of class folders.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) layout: Layout,
    /// For each class of the layout its files, sorted.
    pub(crate) files: Vec<Vec<PathBuf>>,
}

/// What lies in a folder.
enum Kind {
    File,
    Folder,
    /// A symbolic link to a folder. To follow it may lead around in a circle.
    LinkedFolder,
    /// A socket, a named pipe, or a device.
    Other,
}

impl Folder {
    /// Lists the classes and their files. Below `path` itself, links to folders count as files without a class.
    pub(crate) fn list(path: &Path) -> Result<Self, PackError> {
        let mut layout = Layout::new(SourceKind::Folder);
        let mut files = vec![];
        for (found, kind) in sorted_children(path)? {
            let name = found.file_name().unwrap_or_default();
            match kind {
                Kind::Folder => {
                    let below = files_below(&found)?;
                    let nested = below.iter().any(|file| file.parent() != Some(&found));
                    let name = name.as_encoded_bytes().to_vec();
                    layout.classes.push(Class { name, files: below.len(), nested });
                    files.push(below);
                }
                Kind::File | Kind::LinkedFolder => {
                    layout.without_class.push(name.to_string_lossy().into_owned());
                }
                Kind::Other => {}
            }
        }
        Ok(Self { layout, files })
    }
}

/// The files to make predictions for: `path` itself if it is a file, or all files below it at any depth, sorted.
///
/// Names that begin with a dot, `Thumbs.db`, `desktop.ini` and `__MACOSX` are left out below `path`. Symbolic links to files are followed,
/// those to folders are not. The files may be something else than pictures.
///
/// # Errors
/// If `path` does not exist, or if it or a folder below it cannot be read.
pub fn pictures_below(path: &Path) -> Result<Vec<PathBuf>, PackError> {
    if fs::metadata(path).map_err(|error| unreadable(path, &error))?.is_dir() {
        files_below(path)
    } else {
        Ok(vec![path.to_owned()])
    }
}

/// All files below a folder, sorted.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, PackError> {
    let mut files = vec![];
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for (found, kind) in sorted_children(&folder)? {
            match kind {
                Kind::File => files.push(found),
                Kind::Folder => folders.push(found),
                Kind::LinkedFolder | Kind::Other => {}
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// What lies directly in a folder, sorted by the bytes of the names, without the names that are left out.
fn sorted_children(folder: &Path) -> Result<Vec<(PathBuf, Kind)>, PackError> {
    let mut children = vec![];
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
        let entry = entry.map_err(|error| unreadable(folder, &error))?;
        if is_skipped(entry.file_name().as_encoded_bytes()) {
            continue;
        }
        let kind = kind_of(&entry).map_err(|error| unreadable(&entry.path(), &error))?;
        children.push((entry.path(), kind));
    }
    children.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
    Ok(children)
}

fn kind_of(entry: &fs::DirEntry) -> io::Result<Kind> {
    let kind = entry.file_type()?;
    if !kind.is_symlink() {
        return Ok(match kind {
            kind if kind.is_file() => Kind::File,
            kind if kind.is_dir() => Kind::Folder,
            _ => Kind::Other,
        });
    }
    Ok(match fs::metadata(entry.path()) {
        Ok(found) if found.is_dir() => Kind::LinkedFolder,
        Ok(found) if !found.is_file() => Kind::Other,
        // A link that leads nowhere is a file that cannot be read, and is counted as one.
        _ => Kind::File,
    })
}

/// The error that a path cannot be read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> PackError {
    PackError::Read { path: path.display().to_string(), reason: error.to_string() }
}
