//! Lines on standard output. Who reads them may have gone (`simulate run x | head -1`), which ends the program and is no
//! error of its own.

use std::io;

/// As `println!`, but an output that is closed or full is an error and not a panic.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stdout(), $($words)*)?;
    }};
}
pub(crate) use say;

/// Whether nobody reads any more.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
