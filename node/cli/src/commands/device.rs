//! The device that deep networks are computed on: the processor, or a GPU that is opened when it is asked for.

use std::sync::Arc;

use anyhow::{anyhow, bail};
use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::{BuiltinLoader, ComputeDevice, DeepBackend, Specification};
use peergrad_config::sweep::SweepLoader;
use peergrad_core::io::DataReference;
use peergrad_core::program::loader::{Loaded, Loader};
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::deep::Backend;
use serde_json::json;

use super::arguments::PeerArguments;
use super::sweep::monitor::SweepMonitor;
use crate::terminal::{OutputFormat, complain, emit};

/// What computes deep networks in a program, on each device.
#[derive(Clone, Debug)]
pub struct DeepDevices {
    /// On the processor; `None` if the program cannot.
    pub cpu: DeepBackend,
    /// Opens a GPU. `None` if the program cannot use one.
    pub gpu: Option<OpenGpu>,
}

/// Opens a GPU. An error says what the user can do.
pub type OpenGpu = fn() -> Result<OpenedGpu, String>;

/// A GPU.
#[derive(Debug)]
pub struct OpenedGpu {
    /// What computes on it.
    pub backend: Arc<dyn Backend>,
    /// What it calls itself.
    pub name: String,
}

impl DeepDevices {
    /// Of a program that computes no deep networks.
    #[must_use]
    pub fn none() -> Self {
        Self { cpu: None, gpu: None }
    }

    /// What computes on this device. A GPU is opened, and named to the user.
    ///
    /// # Errors
    /// There is no GPU, or the program cannot use one.
    pub(super) fn open(&self, device: ComputeDevice, format: OutputFormat) -> anyhow::Result<DeepBackend> {
        if device == ComputeDevice::Cpu {
            return Ok(self.cpu.clone());
        }
        let Some(open) = self.gpu else {
            bail!(
                "this program cannot compute on a GPU: build `peer` with `cargo build --release --features deep-wgpu`, or leave `device` out"
            );
        };
        let OpenedGpu { backend, name } = open().map_err(|reason| anyhow!("{reason}"))?;
        match format {
            OutputFormat::Text => complain(&format!("deep networks are computed on {name}")),
            OutputFormat::Json => emit(&json!({"event": "device", "device": name})),
        }
        Ok(Some(backend))
    }
}

/// What builds the task of a run, and learns of a sweep.
pub(super) struct PeerLoader {
    pub(super) loader: Arc<dyn Loader>,
    /// What the worker of a sweep tells; `None` in a program that takes part in none.
    pub(super) monitor: Option<Arc<SweepMonitor>>,
}

/// What builds the task of a run that a peer with these arguments joins or resumes.
pub(super) fn peer_loader(peer: &PeerArguments, deep: &DeepDevices) -> anyhow::Result<PeerLoader> {
    let device = peer.device.unwrap_or_default();
    let deep = deep.open(device, OutputFormat::of_flag(peer.json))?;
    let monitor = SweepMonitor::new();
    let loader = loader(device, peer.memory(), deep, Arc::clone(&monitor));
    Ok(PeerLoader { loader, monitor: Some(monitor) })
}

/// What builds the task of a run at a peer that computes deep networks on this device.
pub(super) fn loader(
    device: ComputeDevice,
    memory: MemoryLimit,
    deep: DeepBackend,
    host: Arc<SweepMonitor>,
) -> Arc<dyn Loader> {
    let loader = SweepLoader { builtin: BuiltinLoader { memory, deep }, host };
    match device {
        ComputeDevice::Cpu => Arc::new(loader),
        ComputeDevice::Gpu => Arc::new(CompilingLoader(loader)),
    }
}

/// Computes a gradient before the peer takes part. A GPU's programs are compiled for the first one, which may take longer than the other
/// members wait for a step.
struct CompilingLoader(SweepLoader);

impl Loader for CompilingLoader {
    fn data(&self, specification: &[u8]) -> Result<Option<DataReference>, String> {
        self.0.data(specification)
    }

    fn load(&self, specification: &[u8], data: Option<DataBytes>) -> Result<Loaded, String> {
        let loaded = self.0.load(specification, data)?;
        if Specification::parse(specification).is_ok_and(|found| found.model.is_deep()) {
            let mut parameters = vec![0.0; loaded.manifest.parameter_count()];
            let mut gradient = parameters.clone();
            loaded.task.initial(1, &mut parameters);
            let samples: Vec<u32> = (0..loaded.task.sample_count().min(FIRST_SAMPLES)).collect();
            loaded.task.gradient(&parameters, &samples, &mut gradient);
        }
        Ok(loaded)
    }
}

/// How many samples the gradient before training has: a whole piece, as most pieces of a batch are.
const FIRST_SAMPLES: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_gpus_says_how_to_get_one() {
        let devices = DeepDevices::none();
        assert!(devices.open(ComputeDevice::Cpu, OutputFormat::Text).unwrap().is_none());
        let error = devices.open(ComputeDevice::Gpu, OutputFormat::Text).unwrap_err().to_string();
        assert!(error.contains("--features deep-wgpu"), "{error}");
        let gpu: OpenGpu = || Err("there is no GPU".to_owned());
        let error = DeepDevices { cpu: None, gpu: Some(gpu) }.open(ComputeDevice::Gpu, OutputFormat::Text);
        assert_eq!(error.unwrap_err().to_string(), "there is no GPU");
    }
}
