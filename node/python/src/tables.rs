//! A peer whose user has tables.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::options::{RunOptions, TaskOptions, training};
use crate::peer::{NativePeer, locked};
use crate::table_clock::NativeClock;
use crate::table_options::{Declaration, TableOptions};
use crate::table_program::{ClockOffer, LastRows, TableProgram, TableTask};

/// A peer, and the clocks that it wants from its user.
#[pyclass(module = "peergrad._native", extends = NativePeer, frozen)]
pub(crate) struct NativeTables {
    offers: Mutex<Receiver<ClockOffer>>,
    last_rows: LastRows,
}

/// Row numbers, of 64 bits, and values, of 32 bits, in this machine's order.
type RowBytes<'py> = (Bound<'py, PyByteArray>, Bound<'py, PyByteArray>);

#[pymethods]
impl NativeTables {
    /// Starts a peer for a task. `initial` holds the values of the tables that do not start with zeros, which are the tensors of the task.
    #[new]
    fn new(
        py: Python<'_>,
        task: TaskOptions,
        run: RunOptions,
        initial: Vec<Bound<'_, PyAny>>,
        tables: Vec<TableOptions>,
        staleness: Option<u64>,
        atomic: bool,
    ) -> PyResult<PyClassInitializer<Self>> {
        let declaration = Declaration::new(tables, staleness, atomic)?;
        let (name, last_rows) = (declaration.program_name(), LastRows::default());
        let read_at_end: Vec<String> = declaration.read_at_end().map(str::to_owned).collect();
        let (offers, offered) = channel();
        let rows = Arc::clone(&last_rows);
        let program = move |_: &_| TableProgram {
            offers: offers.clone(),
            read_at_end: read_at_end.clone(),
            is_atomic: atomic,
            last_rows: Arc::clone(&rows),
            open: None,
        };
        let start = task.start(py, &initial)?;
        let settings = Arc::clone(&start.settings);
        let training = training(&task, TableTask(start))?
            .tables(move |loaded| declaration.spec(loaded), program)
            .program_name(name);
        let peer = NativePeer::start(py, run, &training, task.sizes(), settings)?;
        let this = Self { offers: Mutex::new(offered), last_rows };
        Ok(PyClassInitializer::from(peer).add_subclass(this))
    }

    /// The next clock, if there is one within so many seconds.
    fn wait(slf: &Bound<'_, Self>, seconds: f64) -> PyResult<Option<Py<NativeClock>>> {
        let (py, this, peer) = (slf.py(), slf.get(), slf.as_super().get());
        peer.process.check()?;
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let offer = py.detach(|| locked(&this.offers).recv_timeout(time).ok());
        offer.map(|offer| Py::new(py, NativeClock::new(offer, peer.process))).transpose()
    }

    /// The rows of a table that are not zero at the end of the run: their numbers and values. `None` if this peer has not read it.
    fn last_rows<'py>(slf: &Bound<'py, Self>, table: &str) -> PyResult<Option<RowBytes<'py>>> {
        let py = slf.py();
        slf.as_super().get().process.check()?;
        // No lock is held while Python objects are made.
        let last_rows = locked(&slf.get().last_rows).get(table).cloned();
        let Some(rows) = last_rows else { return Ok(None) };
        let numbers = PyByteArray::new_with(py, rows.indices.len() * size_of::<u64>(), |bytes| {
            let places = bytes.chunks_exact_mut(size_of::<u64>()).zip(rows.indices.iter());
            places.for_each(|(place, row)| place.copy_from_slice(&row.to_ne_bytes()));
            Ok(())
        })?;
        let values = PyByteArray::new_with(py, size_of_val(&rows.values[..]), |bytes| {
            let places = bytes.chunks_exact_mut(size_of::<f32>()).zip(&rows.values);
            places.for_each(|(place, value)| place.copy_from_slice(&value.to_ne_bytes()));
            Ok(())
        })?;
        Ok(Some((numbers, values)))
    }
}
