//! Arrays of the user, which hold a flat vector in parts: any object with the buffer protocol, such as a NumPy array.

use peergrad::collectives::plan::are_finite;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// One array for each tensor, or a single one for the whole vector.
pub(crate) struct Arrays(Vec<PyBuffer<f32>>);

/// What is wrong with an array.
#[derive(Debug)]
pub(crate) enum ArrayError {
    /// The interpreter is shutting down.
    InterpreterGone,
    /// It cannot be read or written any more.
    Changed {
        /// The index of the array.
        array: usize,
    },
    /// An element is infinite or not a number.
    NotFinite {
        /// Its index in the flat vector.
        element: usize,
    },
}

impl Arrays {
    /// The arrays, which together hold `length` numbers.
    ///
    /// # Errors
    /// An array has another type or size, or is not contiguous.
    pub(crate) fn get(arrays: &[Bound<'_, PyAny>], sizes: &Sizes<'_>) -> PyResult<Self> {
        let expected: Vec<usize> = match arrays.len() {
            1 => vec![sizes.tensors.iter().map(|(_, size)| size).sum()],
            _ => sizes.tensors.iter().map(|(_, size)| *size).collect(),
        };
        if arrays.len() != expected.len() {
            let (found, tensors) = (arrays.len(), sizes.tensors.len());
            return Err(PyValueError::new_err(format!(
                "{found} arrays were given for {tensors} tensors: give one array for each tensor in the order of `shapes`, or a single flat one"
            )));
        }
        let numbered = arrays.iter().zip(expected).enumerate();
        let buffers = numbered.map(|(index, (array, size))| sizes.buffer(index, array, size));
        Ok(Self(buffers.collect::<PyResult<_>>()?))
    }

    /// Overwrites the arrays.
    pub(crate) fn fill(&self, py: Python<'_>, values: &[f32]) -> Result<(), ArrayError> {
        let mut rest = values;
        for (array, buffer) in self.0.iter().enumerate() {
            let (part, after) = rest.split_at(buffer.item_count());
            buffer.copy_from_slice(py, part).map_err(|_| ArrayError::Changed { array })?;
            rest = after;
        }
        Ok(())
    }

    /// Copies the arrays.
    pub(crate) fn copy_to(&self, py: Python<'_>, mut values: &mut [f32]) -> Result<(), ArrayError> {
        let mut begin = 0;
        for (array, buffer) in self.0.iter().enumerate() {
            let (part, after) = values.split_at_mut(buffer.item_count());
            buffer.copy_to_slice(py, part).map_err(|_| ArrayError::Changed { array })?;
            if !are_finite(part) {
                let at = part.iter().position(|value| !value.is_finite()).unwrap_or_default();
                return Err(ArrayError::NotFinite { element: begin + at });
            }
            begin += part.len();
            values = after;
        }
        Ok(())
    }
}

/// What arrays have to be.
pub(crate) struct Sizes<'a> {
    /// Name and number of elements of each tensor.
    pub(crate) tensors: &'a [(String, usize)],
    /// Whether they are written.
    pub(crate) are_written: bool,
}

impl Sizes<'_> {
    fn buffer(&self, index: usize, array: &Bound<'_, PyAny>, size: usize) -> PyResult<PyBuffer<f32>> {
        let name = || match self.tensors.get(index) {
            Some((name, elements)) if *elements == size => format!("the array of `{name}`"),
            _ => "the flat array".to_owned(),
        };
        let buffer = PyBuffer::<f32>::get(array).map_err(|error| {
            PyTypeError::new_err(format!(
                "{} is not an array of float32 ({error}): convert it, for example with `.astype(numpy.float32)`",
                name()
            ))
        })?;
        if !is_native(buffer.format().to_bytes()) {
            let text = format!("{} has bytes in another order than this machine", name());
            return Err(PyTypeError::new_err(format!("{text}: convert it with `.astype(numpy.float32)`")));
        }
        if buffer.item_count() != size {
            let found = buffer.item_count();
            let text = format!("{} has {found} elements, but the model has {size} there", name());
            return Err(PyValueError::new_err(text));
        }
        if !buffer.is_c_contiguous() {
            let text = format!("{} is not contiguous: pass `numpy.ascontiguousarray(...)`", name());
            return Err(PyValueError::new_err(text));
        }
        if self.are_written && buffer.readonly() {
            return Err(PyValueError::new_err(format!("{} cannot be written to", name())));
        }
        Ok(buffer)
    }
}

/// Whether an array of this format has the byte order of the machine.
fn is_native(format: &[u8]) -> bool {
    let other = if cfg!(target_endian = "little") { b">!".as_slice() } else { b"<".as_slice() };
    format.first().is_none_or(|first| !other.contains(first))
}

/// The exception for an error in arrays that were `given`, in words, for these tensors.
pub(crate) fn python_error(error: &ArrayError, tensors: &[(String, usize)], given: Given) -> PyErr {
    match error {
        ArrayError::InterpreterGone => PyRuntimeError::new_err("the interpreter is shutting down"),
        ArrayError::Changed { array } => {
            PyRuntimeError::new_err(format!("array {array} of the model cannot be copied any more"))
        }
        ArrayError::NotFinite { element } => {
            let name = tensor_of(tensors, *element);
            PyValueError::new_err(match given {
                Given::Initial => {
                    format!("`initial` has an element in `{name}` that is infinite or not a number")
                }
                Given::InStep => format!(
                    "what was computed for `{name}` has an element that is infinite or not a number: lower the rate or check the samples, or call `step.skip()`, which leaves these samples out"
                ),
            })
        }
    }
}

/// What arrays were given for.
#[derive(Clone, Copy)]
pub(crate) enum Given {
    /// For the parameters that a run starts from.
    Initial,
    /// For a step.
    InStep,
}

/// The name of the tensor that has this element of the flat vector.
fn tensor_of(tensors: &[(String, usize)], element: usize) -> &str {
    let mut end = 0;
    let found = tensors.iter().find(|(_, size)| {
        end += size;
        element < end
    });
    found.map_or("the model", |(name, _)| name)
}
