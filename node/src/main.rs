//! The `peer` binary.

use std::process::ExitCode;

use peergrad::specification::DeepBackend;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod heap;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
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
