//! The terminal: lines to standard output and standard error, and what this program is called there.

use std::io::Write;

use serde_json::Value;

/// One object, one line, at once: whoever reads may be waiting for it.
pub(crate) fn emit(object: &Value) {
    print_line(&object.to_string());
}

/// Words for people, to standard error. Nobody has to be there to read them.
pub(crate) fn complain(words: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{words}");
}

/// A result, to standard output.
pub(crate) fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    // A reader that has gone is no reason to stop training, nor an accident: it has seen enough.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// What this program is called, without its folder.
pub(crate) fn program_name() -> String {
    let path = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = path.as_deref().and_then(std::path::Path::file_name).and_then(std::ffi::OsStr::to_str);
    name.unwrap_or("peer").to_owned()
}
