//! Pictures in a tar archive, gzipped or not: a folder of class folders in one file.
//!
//! An archive can only be read forward, and its files have any order. So it is read twice: first its names, which tell the classes and how
//! many files there are, then the pictures. The paths in an archive are only names here; nothing is unpacked onto the disk.
//!
//! Most archives have one folder in which all the others are: `101_ObjectCategories/cat/1.jpg`. That folder is no class:
//!
//! ```text
//! cat/1.jpg  dog/2.jpg                   classes cat, dog
//! photos/cat/1.jpg  photos/dog/2.jpg     classes cat, dog     all files have the same first folder, and it holds folders
//! ```

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tar::Entry;

use crate::counted::Counted;
use crate::decode::PictureError;
use crate::layout::{Class, Layout, SourceKind, is_skipped};
use crate::limits::{FILE_BYTES_MAX, WITHOUT_CLASS_KEPT_MAX};
use crate::pack_error::PackError;
use crate::sniff::unpacked;

/// After so many files the first reading of an archive tells how far it is.
const FILES_PER_PROGRESS: usize = 1024;

/// The most bytes that are allocated because an archive says so, before they are there.
const TRUSTED_BYTES: u64 = 1 << 20;

/// An archive whose names are known.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) layout: Layout,
    path: PathBuf,
}

/// A picture in an archive.
pub(crate) struct ArchivedFile {
    /// The place of its class in the layout.
    pub(crate) class: usize,
    /// Its path in the archive, for messages.
    pub(crate) name: String,
    pub(crate) bytes: Result<Vec<u8>, PictureError>,
}

/// The files of a folder that is the first part of paths in an archive.
#[derive(Debug)]
struct Top {
    files: Counted<String>,
    /// For each folder within it: how many files, and whether some are deeper.
    folders: BTreeMap<Vec<u8>, (usize, bool)>,
}

impl Archive {
    /// Reads the names in an archive. `progress` hears how many files there are so far.
    pub(crate) fn list(path: &Path, progress: &mut dyn FnMut(usize)) -> Result<Self, PackError> {
        let mut without_class = Counted::new(WITHOUT_CLASS_KEPT_MAX);
        let mut tops: BTreeMap<Vec<u8>, Top> = BTreeMap::new();
        let mut count = 0_usize;
        for_each_file(path, |_, name| {
            count += 1;
            if count.is_multiple_of(FILES_PER_PROGRESS) {
                progress(count);
            }
            match parts(name).as_slice() {
                [] => {}
                [_] => without_class.push(shown(name)),
                [top, below @ ..] => tops.entry(top.to_vec()).or_insert_with(Top::new).add(below, name),
            }
            Ok(())
        })?;
        let mut layout = Layout::new(SourceKind::Archive);
        layout.without_class = without_class;
        layout.set_classes(tops);
        Ok(Self { layout, path: path.to_owned() })
    }

    /// Calls `picture` with each file that has a class, in the order of the archive.
    pub(crate) fn for_each_picture(
        &self,
        mut picture: impl FnMut(ArchivedFile) -> Result<(), PackError>,
    ) -> Result<(), PackError> {
        for_each_file(&self.path, |entry, name| {
            let parts = parts(name);
            let parts = match &self.layout.top {
                Some(top) if parts.first() == Some(&top.as_slice()) => &parts[1..],
                Some(_) => return Ok(()),
                None => &parts,
            };
            let [class, _, ..] = parts else { return Ok(()) };
            let class = self.layout.classes.binary_search_by(|known| known.name.as_slice().cmp(class));
            let changed = |_| self.broken("it changed while it was read".to_owned());
            let (class, name) = (class.map_err(changed)?, shown(name));
            let bytes = self.read(entry, &name)?;
            picture(ArchivedFile { class, name, bytes })
        })
    }

    /// The bytes of a file, if they are not too many. The error outside is one of the archive.
    fn read(
        &self,
        entry: &mut Entry<'_, Box<dyn Read>>,
        name: &str,
    ) -> Result<Result<Vec<u8>, PictureError>, PackError> {
        let size = entry.size();
        if size > FILE_BYTES_MAX {
            return Ok(Err(PictureError::FileTooLarge));
        }
        let mut bytes = Vec::with_capacity(size.min(TRUSTED_BYTES) as usize);
        entry.read_to_end(&mut bytes).map_err(|error| self.broken(error.to_string()))?;
        if (bytes.len() as u64) < size {
            return Err(self.broken(format!("it ends within {name}")));
        }
        Ok(Ok(bytes))
    }

    fn broken(&self, reason: String) -> PackError {
        broken(&self.path, reason)
    }
}

impl Top {
    fn new() -> Self {
        Self { files: Counted::new(WITHOUT_CLASS_KEPT_MAX), folders: BTreeMap::new() }
    }

    /// Counts a file.
    ///
    /// - `below`: the parts of its path that follow this folder, at least one.
    fn add(&mut self, below: &[&[u8]], path: &[u8]) {
        match below {
            [folder, _, deeper @ ..] => {
                let (files, nested) = self.folders.entry(folder.to_vec()).or_default();
                *files += 1;
                *nested |= !deeper.is_empty();
            }
            _ => self.files.push(shown(path)),
        }
    }
}

impl Layout {
    /// Takes the folders of an archive as classes, or the folders within the only one.
    fn set_classes(&mut self, mut tops: BTreeMap<Vec<u8>, Top>) {
        let only = if tops.len() == 1 { tops.first_entry() } else { None };
        if let Some(only) = only.filter(|only| !only.get().folders.is_empty()) {
            let (name, top) = only.remove_entry();
            self.without_class.append(top.files);
            self.top = Some(name);
            let class = |(name, (files, nested))| Class { name, files, nested };
            self.classes = top.folders.into_iter().map(class).collect();
            return;
        }
        let class = |(name, top): (_, Top)| {
            let deeper: usize = top.folders.values().map(|(files, _)| files).sum();
            Class { name, files: top.files.count + deeper, nested: deeper > 0 }
        };
        self.classes = tops.into_iter().map(class).collect();
    }
}

/// Calls `visit` with each file of an archive and the bytes of its path, except files whose names are left out.
fn for_each_file(
    path: &Path,
    mut visit: impl FnMut(&mut Entry<'_, Box<dyn Read>>, &[u8]) -> Result<(), PackError>,
) -> Result<(), PackError> {
    let failed = |error: io::Error| broken(path, error.to_string());
    let mut archive = tar::Archive::new(unpacked(path).map_err(failed)?);
    for entry in archive.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let name = entry.path_bytes().into_owned();
        if entry.header().entry_type().is_file() && !parts(&name).iter().any(|part| is_skipped(part)) {
            visit(&mut entry, &name)?;
        }
    }
    Ok(())
}

/// The parts of a path, without those that name no folder: `./photos//cat/1.jpg` has the parts photos, cat, 1.jpg.
fn parts(path: &[u8]) -> Vec<&[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b"." | b"..")).collect()
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn broken(path: &Path, reason: String) -> PackError {
    PackError::Archive { path: path.display().to_string(), reason }
}
