//! One clock in the user's hands.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use peergrad::prelude::{Row, Rows, SampleStats};
use peergrad::table::TableError;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::batch::NativeBatch;
use crate::process::Process;
use crate::table_program::{ClockOffer, Order};
use crate::table_rows::NamedRows;

/// A clock that waits for its end. If it is dropped before, the peer leaves the run.
#[pyclass(module = "peergrad._native", extends = NativeBatch, frozen)]
pub(crate) struct NativeClock {
    offer: ClockOffer,
    process: Process,
}

/// A table, as the user's rows refer to it.
struct Place<'a> {
    name: &'a str,
    /// Its rows among those of all tables.
    rows: Range<Row>,
    width: usize,
}

impl Place<'_> {
    /// The rows that a user names.
    fn named(&self, py: Python<'_>, rows: &PyBuffer<i64>) -> PyResult<NamedRows> {
        let numbers = rows.to_vec(py)?;
        py.detach(|| NamedRows::of(&numbers, &self.rows)).map_err(|row| {
            let (name, last) = (self.name, self.rows.end - self.rows.start - 1);
            PyIndexError::new_err(format!(
                "there is no row {row} in table `{name}`, which has the rows 0 to {last}"
            ))
        })
    }

    fn check_size(&self, rows: &PyBuffer<i64>, values: &PyBuffer<f32>) -> PyResult<()> {
        let (found, expected) = (values.item_count(), rows.item_count() * self.width);
        if found == expected {
            return Ok(());
        }
        let name = self.name;
        Err(PyValueError::new_err(format!("{found} numbers for rows of table `{name}` that have {expected}")))
    }
}

impl NativeClock {
    pub(crate) fn new(offer: ClockOffer, process: Process) -> PyClassInitializer<Self> {
        let batch = NativeBatch { info: offer.info.clone(), samples: Arc::clone(&offer.samples) };
        PyClassInitializer::from(batch).add_subclass(Self { offer, process })
    }

    fn place<'a>(&self, name: &'a str) -> PyResult<Place<'a>> {
        let layout = &self.offer.layout;
        let rows = layout.rows(name).map_err(|_| {
            let names = layout.tables().map(|table| format!("`{}`", table.name)).collect::<Vec<_>>();
            PyValueError::new_err(format!("there is no table `{name}`: this run has {}", names.join(", ")))
        })?;
        let width = layout.width(layout.chunk_of(rows.start));
        Ok(Place { name, rows, width })
    }

    /// Gives the program an order; nothing happens if the peer has stopped.
    fn tell(&self, order: Order) -> PyResult<()> {
        self.process.check()?;
        let _ = self.offer.orders.send(order);
        Ok(())
    }

    /// Gives the program an order and waits for its reply, without the interpreter, except that signals are handled.
    fn ask<T: Send>(&self, py: Python<'_>, order: impl FnOnce(Sender<T>) -> Order) -> PyResult<T> {
        let (reply, mut replied): (_, Receiver<T>) = channel();
        self.tell(order(reply))?;
        loop {
            let (answer, back) = py.detach(move || (replied.recv_timeout(SIGNALS_EVERY), replied));
            replied = back;
            match answer {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    let text = "the peer has stopped: it no longer has this clock";
                    return Err(PyRuntimeError::new_err(text));
                }
            }
        }
    }

    fn add_error(&self, error: TableError, place: &Place<'_>) -> PyErr {
        PyValueError::new_err(match error {
            TableError::NotFinite(row) => format!(
                "what is added to row {} of table `{}` has an element that is infinite or not a number: lower the rate or check the samples, or call `clock.skip()`, which leaves these samples out",
                row - place.rows.start,
                place.name
            ),
            other => other.to_string(),
        })
    }
}

#[pymethods]
impl NativeClock {
    /// Reads rows of a table into an array: (rows, width).
    fn get(&self, py: Python<'_>, table: &str, rows: PyBuffer<i64>, into: PyBuffer<f32>) -> PyResult<()> {
        self.process.check()?;
        let place = self.place(table)?;
        place.check_size(&rows, &into)?;
        let named = place.named(py, &rows)?;
        let values = self.ask(py, |reply| Order::Get { rows: named.set.clone(), reply })?;
        let values = py.detach(|| named.spread(values, place.width));
        into.copy_from_slice(py, &values)
    }

    /// Adds an array, (rows, width), to rows of a table.
    fn add(&self, py: Python<'_>, table: &str, rows: PyBuffer<i64>, values: PyBuffer<f32>) -> PyResult<()> {
        self.process.check()?;
        let place = self.place(table)?;
        place.check_size(&rows, &values)?;
        let named = place.named(py, &rows)?;
        let values = values.to_vec(py)?;
        let layout = &self.offer.layout;
        let rows = py.detach(|| {
            let values = named.sum(values, place.width);
            let rows = Rows { indices: named.set, values };
            layout.check_rows(&rows).map(|()| rows)
        });
        let rows = rows.map_err(|error| self.add_error(error, &place))?;
        self.ask(py, |reply| Order::Add { rows, reply })
    }

    /// Waits until all additions are safe. Returns whether they are: not if the members have gone on without this peer.
    fn push(&self, py: Python<'_>) -> PyResult<bool> {
        self.ask(py, |reply| Order::Push { reply })
    }

    /// Ends the clock, with the summed loss of its samples. Returns whether the members still waited for it.
    fn end(&self, loss: f64) -> PyResult<bool> {
        let is_wanted = self.offer.info.is_wanted();
        self.tell(Order::End(SampleStats { samples: self.offer.samples.len() as u64, loss }))?;
        Ok(is_wanted)
    }

    /// Ends the clock, and leaves its samples out.
    fn skip(&self) -> PyResult<()> {
        self.tell(Order::End(SampleStats::default()))
    }

    /// Gives the clock back before it was used, by a peer that is about to leave.
    fn decline(&self) -> PyResult<()> {
        self.tell(Order::Decline)
    }

    /// The peer leaves the run, and other members compute the samples of this clock.
    fn give_up(&self) -> PyResult<()> {
        self.tell(Order::GiveUp)
    }
}

/// How often a thread that waits for rows handles signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
