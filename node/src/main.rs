//! The `peer` binary.

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod heap;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    heap::keep_small();
    peergrad_cli::main()
}
