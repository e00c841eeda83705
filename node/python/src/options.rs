//! From the keyword arguments of a user to the options of a peer.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use peergrad::embed::{DirectoryChoice, Mdns, Multiaddr, Peer, PeerOptions, ResumeError, StoppedPeer};
use peergrad::protocol::invite::Invite;
use peergrad::specification::{RunFile, ThreadCount};
use peergrad::{Manifest, Task, Training};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::arrays::{Arrays, Given, Sizes, python_error};
use crate::peer::Refused;

/// What the task is: the keys of a Python mapping.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TaskOptions {
    /// What peers of a run call it, and compare.
    pub(crate) name: String,
    /// Name and shape of each tensor, in the order of the flat vector.
    pub(crate) tensors: Vec<(String, Vec<u32>)>,
    /// The number of training samples.
    pub(crate) samples: u32,
    /// Floating-point operations of the gradient of one sample, if the user says it.
    pub(crate) flops_per_sample: Option<u64>,
    /// The settings of a run that this peer founds, as the text of a run.toml.
    pub(crate) run_file: String,
}

/// Name and number of elements of each tensor.
pub(crate) type TensorSizes = Arc<[(String, usize)]>;

/// Where a run of a task starts, if this peer founds it.
pub(crate) struct TaskStart {
    /// The names and shapes of the tensors.
    pub(crate) manifest: Manifest,
    /// (parameters): the values that training starts from.
    pub(crate) initial: Vec<f32>,
    /// The number of training samples.
    pub(crate) samples: u32,
    /// Floating-point operations of the gradient of one sample, if the user says it.
    pub(crate) flops_per_sample: Option<u64>,
    /// The settings of the run that are the user's own, as TOML, once they are known.
    pub(crate) settings: Arc<OnceLock<String>>,
}

impl TaskStart {
    /// Takes in the settings of the run that are the user's own.
    pub(crate) fn configure(&self, settings: &str) {
        // The founder tells them twice.
        let _ = self.settings.set(settings.to_owned());
    }
}

/// Which run the peer is in.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RunOptions {
    /// An invite; `None` founds a run.
    pub(crate) invite: Option<String>,
    /// Where the peer keeps its files.
    pub(crate) directory: Option<PathBuf>,
    /// Whether it continues the run that a peer of this directory was in when it stopped.
    pub(crate) resume: bool,
    /// How much of the parameters it owns.
    pub(crate) capacity: Option<u8>,
    /// How many threads the built-in arithmetic uses.
    pub(crate) threads: Option<i64>,
    /// How others reach it.
    pub(crate) network: NetworkOptions,
}

/// How others reach the peer.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct NetworkOptions {
    pub(crate) listen: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) external: Vec<String>,
    pub(crate) upnp: bool,
    pub(crate) mdns: Option<bool>,
}

impl TaskOptions {
    /// Where a run of this task starts, with these initial parameters; zeros if there are none.
    pub(crate) fn start(&self, py: Python<'_>, initial: &[Bound<'_, PyAny>]) -> PyResult<TaskStart> {
        if self.tensors.iter().any(|(_, shape)| shape.contains(&0)) {
            return Err(PyValueError::new_err("no tensor may be empty"));
        }
        let shapes = self.tensors.iter().map(|(name, shape)| (name.as_str(), &shape[..]));
        let (manifest, tensors) = (Manifest::new(shapes), self.sizes());
        let mut values = vec![0.0; manifest.parameter_count()];
        if !initial.is_empty() {
            let arrays = Arrays::get(initial, &Sizes { tensors: &tensors, are_written: false })?;
            let copied = arrays.copy_to(py, &mut values);
            copied.map_err(|error| python_error(&error, &tensors, Given::Initial))?;
        }
        Ok(TaskStart {
            manifest,
            initial: values,
            samples: self.samples,
            flops_per_sample: self.flops_per_sample,
            settings: Arc::default(),
        })
    }

    /// Name and number of elements of each tensor.
    pub(crate) fn sizes(&self) -> TensorSizes {
        let size = |shape: &[u32]| shape.iter().map(|extent| *extent as usize).product();
        self.tensors.iter().map(|(name, shape)| (name.clone(), size(shape))).collect()
    }

    /// The settings of a run that this peer founds.
    pub(crate) fn run_file(&self) -> PyResult<RunFile> {
        RunFile::parse(&self.run_file).map_err(value_error)
    }
}

impl RunOptions {
    /// Starts the peer.
    pub(crate) fn start(self, training: &Training) -> PyResult<Peer> {
        let mut options = self.entry(training)?;
        let NetworkOptions { listen, port, external, upnp, mdns } = self.network;
        let connectivity = &mut options.connectivity;
        if let Some(listen) = listen {
            connectivity.listen = Some(listen.parse::<IpAddr>().map_err(|_| {
                PyValueError::new_err(format!("`listen` is `{listen}`: give an IP address of this machine"))
            })?);
        }
        connectivity.port = port.or(connectivity.port);
        connectivity.external = external.iter().map(|text| address(text)).collect::<PyResult<_>>()?;
        connectivity.upnp = upnp;
        match mdns {
            Some(true) => connectivity.mdns = Mdns::On,
            Some(false) => connectivity.mdns = Mdns::Off,
            None => {}
        }
        if let Some(threads) = self.threads {
            options.threads = Some(ThreadCount::try_from(threads).map_err(value_error)?);
        }
        options.capacity = self.capacity.or(options.capacity);
        if let (DirectoryChoice::Default, Some(path)) = (&options.directory, self.directory) {
            options.directory = DirectoryChoice::At(path);
        }
        Peer::start(options).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// The run that this peer continues, joins or founds.
    fn entry(&self, training: &Training) -> PyResult<PeerOptions> {
        if self.resume {
            match StoppedPeer::find(self.directory.as_deref()) {
                Ok(stopped) => return training.resume(stopped).map_err(refused),
                Err(ResumeError::NothingUnfinished { .. } | ResumeError::NobodyStopped { .. }) => {}
                Err(other) => return Err(PyOSError::new_err(other.to_string())),
            }
        }
        match &self.invite {
            Some(text) => {
                let invite: Invite = text.trim().parse().map_err(value_error)?;
                Ok(training.join(invite))
            }
            None => training.new_run().map_err(value_error),
        }
    }
}

fn address(text: &str) -> PyResult<Multiaddr> {
    text.parse().map_err(|error| {
        PyValueError::new_err(format!(
            "`{text}` in `external` is not an address ({error}): write it as /ip4/203.0.113.7/tcp/4001"
        ))
    })
}

pub(crate) fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    Refused::new_err(error.to_string())
}

/// The task with its settings.
pub(crate) fn training(options: &TaskOptions, task: impl Task) -> PyResult<Training> {
    let run_file = options.run_file()?;
    Ok(peergrad::train(&options.name, task).configure(move |settings| *settings = run_file))
}
