//! The `peer` binary.

use std::process::ExitCode;

/// What a peer holds does not grow while others come and go, and what this heap takes for it does not either.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    peergrad::cli::main()
}
