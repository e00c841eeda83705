//! Errors of files: what a user can do about what the system says.
//!
//! The same error comes from a checkpoint, a log or a key. Its remedy depends on its kind alone, so all of them take it from here.

use std::io::{Error, ErrorKind};

/// What to do about an error of the system while a file was read or written.
#[must_use]
pub fn advice(error: &Error) -> &'static str {
    if is_too_many_open_files(error) {
        return "raise the limit of open files (`ulimit -n`)";
    }
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on the disk",
        ErrorKind::FileTooLarge => "raise the limit of file sizes (`ulimit -f`)",
        ErrorKind::PermissionDenied => "make it readable and writable to you",
        ErrorKind::ReadOnlyFilesystem => "name a place that is not read-only",
        ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::AlreadyExists
        | ErrorKind::InvalidFilename => "check the path",
        _ => "check the disk",
    }
}

/// The system's words and what to do, as a part of a sentence.
#[must_use]
pub fn explained(error: &Error) -> String {
    format!("{error}; {}", advice(error))
}

/// Whether this process, or the whole system, has as many files open as are allowed. The library has no kind for it.
fn is_too_many_open_files(error: &Error) -> bool {
    const OF_THE_SYSTEM: i32 = 23;
    const OF_THE_PROCESS: i32 = 24;
    cfg!(unix) && matches!(error.raw_os_error(), Some(OF_THE_SYSTEM | OF_THE_PROCESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_fits_the_kind_of_error() {
        for (kind, words) in [
            (ErrorKind::StorageFull, "make room"),
            (ErrorKind::QuotaExceeded, "make room"),
            (ErrorKind::FileTooLarge, "`ulimit -f`"),
            (ErrorKind::PermissionDenied, "writable to you"),
            (ErrorKind::ReadOnlyFilesystem, "not read-only"),
            (ErrorKind::NotADirectory, "check the path"),
            (ErrorKind::InvalidData, "check the disk"),
        ] {
            assert!(advice(&kind.into()).contains(words), "{kind}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn errors_of_linux_are_explained() {
        let texts = [24, 27, 28].map(|number| explained(&Error::from_raw_os_error(number)));
        assert_eq!(
            texts,
            [
                "Too many open files (os error 24); raise the limit of open files (`ulimit -n`)",
                "File too large (os error 27); raise the limit of file sizes (`ulimit -f`)",
                "No space left on device (os error 28); make room on the disk",
            ]
        );
    }
}
