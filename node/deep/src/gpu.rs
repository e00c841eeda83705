//! A GPU, through wgpu: with Vulkan, Metal or DX12.
//!
//! A processor computes several pieces of a batch at once, each on a thread. A GPU computes each piece on all of its cores, one piece after
//! another. The parameters are copied to it once for each gradient. The gradients of the pieces are added there, and read back at the end.
//!
//! # Not here
//! The same bits as on the processor, or on another GPU. Peers need not agree on them: each gradient is computed by one member, which sends it.

use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

use burn_tensor::wgpu::WgpuInitError;
use burn_tensor::wgpu::wgpu::{AdapterInfo, DeviceType};
use burn_tensor::{Device, StreamId, Tensor, Transaction};
use peergrad_models::deep::{Architecture, Piece};

use crate::Burn;
use crate::pass::Pass;
use crate::weights::Weights;

/// No GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// The machine has no GPU that can be used.
    #[error(
        "there is no GPU that this program can use ({0}): install the driver of the graphics card, and Vulkan's loader (in Debian and Ubuntu \
         `apt install libvulkan1 mesa-vulkan-drivers`, and for a card of NVIDIA its own driver); or compute with `--device cpu`"
    )]
    Missing(String),
    /// It refuses.
    #[error("the GPU cannot be used: {0}. Update its driver, or compute with `--device cpu`")]
    Refused(String),
}

/// The GPU of this process.
pub(crate) struct Gpu {
    device: Device,
    name: String,
    /// The queue of its work. Each thread would have one of its own, with memory of its own.
    queue: Mutex<StreamId>,
}

/// burn opens a device once in a process.
static GPU: LazyLock<Result<Gpu, NoGpu>> = LazyLock::new(Gpu::open);

impl Gpu {
    fn open() -> Result<Self, NoGpu> {
        let (device, setup) = Device::wgpu_options().init_with_setup().map_err(|error| match error {
            WgpuInitError::AdapterUnavailable { message, .. } => NoGpu::Missing(message),
            other => NoGpu::Refused(other.to_string()),
        })?;
        let name = name(&setup.adapter.get_info());
        Ok(Self { device, name, queue: Mutex::new(StreamId::allocate()) })
    }

    /// Does this work once that of other threads is done.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> T) -> T {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.executes(work)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.name).finish()
    }
}

/// What a user calls it.
fn name(adapter: &AdapterInfo) -> String {
    let AdapterInfo { name, backend, .. } = adapter;
    let remark = match adapter.device_type {
        DeviceType::Cpu => ", which is no GPU but a program on the processor",
        _ => "",
    };
    format!("{name} ({backend}){remark}")
}

impl Burn {
    /// On a GPU, and its name: the fastest of this machine, or the one that the environment variable `CUBECL_WGPU_DEFAULT_DEVICE` selects.
    ///
    /// # Errors
    /// The machine has no GPU that can be used.
    pub fn gpu() -> Result<(Self, String), NoGpu> {
        let gpu = GPU.as_ref().map_err(Clone::clone)?;
        let mut burn = Self::on(gpu.device.clone());
        burn.gpu = Some(gpu);
        Ok((burn, gpu.name.clone()))
    }

    /// As [`gradient`](peergrad_models::deep::Backend::gradient), with one piece after another.
    pub(crate) fn gradient_in_turn(
        &self,
        architecture: &Architecture,
        parameters: &[f32],
        count: usize,
        pieces: &(dyn Fn(usize) -> Piece + Sync),
        gradient: &mut [f32],
    ) -> f64 {
        let weights = Weights::load(architecture, parameters, &self.plain);
        let mut losses = vec![];
        let mut sums: Vec<Option<Tensor<1>>> = vec![];
        for index in 0..count {
            let mut pass = Pass::forward(self, (architecture, &weights), pieces(index), false);
            losses.push(pass.loss());
            let found = pass.backward(0..weights.lengths().count());
            sums.resize(found.len(), None);
            for (sum, found) in sums.iter_mut().zip(found) {
                *sum = match (sum.take(), found) {
                    (Some(sum), Some(found)) => Some(sum + found),
                    (sum, found) => sum.or(found),
                };
            }
            if (index + 1) % PIECES_QUEUED_MAX == 0 {
                self.plain.sync().expect("the GPU works");
            }
        }
        let read = sums.iter().flatten().chain(&losses).cloned();
        let read = read.fold(Transaction::default(), |read, tensor| read.register(tensor)).execute();
        let mut read = read.iter().map(|data| data.as_slice::<f32>().expect("gradients are f32"));
        let mut rest = gradient;
        for (sum, length) in sums.iter().zip(weights.lengths()) {
            let (values, after) = rest.split_at_mut(length);
            if sum.is_some() {
                values.copy_from_slice(read.next().expect("each sum is read"));
            }
            rest = after;
        }
        read.map(|loss| f64::from(loss[0])).sum()
    }
}

/// How many pieces may wait for the GPU, with their samples.
const PIECES_QUEUED_MAX: usize = 8;
