//! The `peer` binary.

use std::process::ExitCode;

/// Peers come and go, threads with them: the C library's heap grows by that for hours, in pieces that nobody can use. This one is flat.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    peergrad::cli::main()
}
