//! The `peer` binary.

use std::process::ExitCode;

use peergrad_cli::DeepDevices;

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
fn deep() -> DeepDevices {
    DeepDevices { cpu: Some(std::sync::Arc::new(peergrad_deep::Burn::cpu())), gpu: gpu() }
}

/// Nothing here computes deep networks.
#[cfg(not(feature = "deep"))]
fn deep() -> DeepDevices {
    DeepDevices::none()
}

/// What computes them on a GPU.
#[cfg(feature = "deep-wgpu")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature there is nothing")]
fn gpu() -> Option<peergrad_cli::OpenGpu> {
    Some(|| {
        let (burn, name) = peergrad_deep::Burn::gpu().map_err(|error| error.to_string())?;
        Ok(peergrad_cli::OpenedGpu { backend: std::sync::Arc::new(burn), name })
    })
}

/// Nothing here computes on a GPU.
#[cfg(all(feature = "deep", not(feature = "deep-wgpu")))]
fn gpu() -> Option<peergrad_cli::OpenGpu> {
    None
}
