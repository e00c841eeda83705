//! What a step and a clock have in common: the samples of one batch, at this peer.

use std::sync::Arc;

use peergrad::task::StepInfo;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A batch that the user computes.
#[pyclass(module = "peergrad._native", frozen, subclass)]
pub(crate) struct NativeBatch {
    pub(crate) info: StepInfo,
    pub(crate) samples: Arc<[u32]>,
}

#[pymethods]
impl NativeBatch {
    /// The number of the step or clock, from 0.
    #[getter]
    fn number(&self) -> u64 {
        self.info.number
    }

    /// The epoch of its samples, from 0.
    #[getter]
    fn epoch(&self) -> u64 {
        self.info.epoch
    }

    /// The learning rate of the schedule.
    #[getter]
    fn rate(&self) -> f64 {
        self.info.rate
    }

    #[getter]
    fn rank(&self) -> usize {
        self.info.rank
    }

    #[getter]
    fn members(&self) -> usize {
        self.info.member_count
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.info.seed
    }

    /// Whether the members still wait for it.
    #[getter]
    fn is_wanted(&self) -> bool {
        self.info.is_wanted()
    }

    /// The indices of its samples, as bytes of 32-bit numbers in this machine's order.
    fn samples<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes: Vec<u8> = self.samples.iter().flat_map(|sample| sample.to_ne_bytes()).collect();
        PyBytes::new(py, &bytes)
    }
}
