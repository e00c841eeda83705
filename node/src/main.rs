//! The `peer` binary.

use std::process::ExitCode;

use peergrad::specification::DeepBackend;

#[cfg(all(target_os = "linux", target_env = "gnu", not(feature = "deep")))]
mod heap;

/// Deep networks allocate and free megabytes for each layer: the C library's heap, kept small, would get these pages from the system each
/// time, which takes as long as the arithmetic.
#[cfg(feature = "deep")]
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(feature = "deep")))]
    heap::keep_small();
    peergrad_cli::main(deep())
}

/// What computes deep networks.
#[cfg(feature = "deep")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature there is nothing")]
fn deep() -> DeepBackend {
    Some(std::sync::Arc::new(peergrad_deep::Burn::cpu()))
}

/// Nothing here computes deep networks.
#[cfg(not(feature = "deep"))]
fn deep() -> DeepBackend {
    None
}
