//! The `peer` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    peergrad::cli::main()
}
