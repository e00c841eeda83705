//! The files of inputs: failures that a session writes, and the regressions in the tree.
//!
//! The name of a file begins with its target's name and a hyphen, so that one command can run it again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::target::Target;
use crate::targets;

/// The folder of the inputs that failed once.
#[must_use]
pub fn regressions_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

/// The target of a file, by its name.
#[must_use]
pub fn target_of(path: &Path) -> Option<&'static dyn Target> {
    let name = path.file_name()?.to_str()?;
    targets::named(name.split(['-', '.']).next()?)
}

/// The inputs of a target in a folder, by name. There are none without the folder.
///
/// # Errors
/// A file cannot be read.
pub fn inputs_in(folder: &Path, target: &dyn Target) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    let is_its = |path: &PathBuf| target_of(path).is_some_and(|of| of.name() == target.name());
    paths.into_iter().filter(is_its).map(|path| Ok((path.clone(), fs::read(path)?))).collect()
}
