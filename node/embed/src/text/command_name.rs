//! The command that a user of this process types, which advice names.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static NAME: OnceLock<String> = OnceLock::new();

/// Sets what [`command_name`] returns from now on, for a program that is started under another name. Only the first call counts.
pub fn set_command_name(name: &str) {
    let _ = NAME.set(name.to_owned());
}

/// What a user types before `status`, `invite` or `resume`: by default, the name by which this program was started, without its folder.
#[must_use]
pub fn command_name() -> &'static str {
    NAME.get_or_init(|| {
        let path = std::env::args_os().next().map(PathBuf::from);
        let name = path.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
        name.unwrap_or("peer").to_owned()
    })
}
