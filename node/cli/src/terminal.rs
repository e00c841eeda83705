//! The terminal: writes lines to standard output and standard error.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use peergrad_config::file_error::explained;
use serde_json::Value;

use peergrad_embed::text::printable::{is_obeyed, printable};

/// The form of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    /// Text for people.
    Text,
    /// JSON for programs, one object a line.
    Json,
}

impl OutputFormat {
    /// JSON if the user gave the flag `--json`, otherwise text.
    pub(crate) fn of_flag(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }

    /// Whether programs read the output.
    pub(crate) fn is_json(self) -> bool {
        self == Self::Json
    }
}

/// Writes an object as one line to standard output and flushes, since a reader may be waiting for it.
pub(crate) fn emit(object: &Value) {
    write_line(&json_line(object));
}

/// An object as JSON, in which what a terminal would obey is escaped: JSON itself escapes only a part of it.
fn json_line(object: &Value) -> String {
    let text = object.to_string();
    if !text.contains(is_obeyed) {
        return text;
    }
    let escaped = |letter: char| match is_obeyed(letter) {
        true => format!("\\u{:04x}", u32::from(letter)),
        false => letter.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Writes text for people to standard error. A closed standard error is ignored.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable(text));
}

/// Writes a result to standard output.
pub(crate) fn print_line(text: &str) {
    write_line(&printable(text));
}

/// Writes a result with styles of this program to standard output. What came from others must be printable already.
pub(crate) fn print_styled(text: &str) {
    write_line(text);
}

/// Writes a piece of a line to standard output. Returns whether somebody reads it.
pub(crate) fn print_piece(text: &str) -> bool {
    write_text(&printable(text))
}

fn write_line(text: &str) {
    write_text(&format!("{text}\n"));
}

fn write_text(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) else { return true };
    // Training continues after the reader has closed the pipe, as `head` does, or the terminal, as an ended session does.
    let is_gone =
        error.kind() == ErrorKind::BrokenPipe || (cfg!(unix) && error.raw_os_error() == Some(libc::EIO));
    let is_problem = !is_gone;
    if is_problem && !IS_OUTPUT_INCOMPLETE.swap(true, Ordering::Relaxed) {
        complain(&format!("cannot write to standard output: {}", explained(&error)));
    }
    false
}

/// Whether a part of standard output could not be written, for another reason than that its reader has gone.
pub(crate) fn is_output_incomplete() -> bool {
    IS_OUTPUT_INCOMPLETE.load(Ordering::Relaxed)
}

static IS_OUTPUT_INCOMPLETE: AtomicBool = AtomicBool::new(false);
