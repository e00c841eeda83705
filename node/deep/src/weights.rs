//! The flat vector of parameters as tensors, and their gradients back into a flat vector.

use burn_tensor::{Device, Gradients, Tensor, TensorData};
use peergrad_models::deep::Architecture;

/// The parameters of a network on a device.
pub(crate) struct Weights {
    /// Each as a row: what gradients are kept of.
    rows: Vec<Tensor<1>>,
    shapes: Vec<Vec<usize>>,
}

impl Weights {
    /// Copies the parameters to a device.
    ///
    /// - `parameters`: (parameters).
    pub(crate) fn load(architecture: &Architecture, parameters: &[f32], device: &Device) -> Self {
        let mut rest = parameters;
        let mut rows = vec![];
        let mut shapes = vec![];
        for tensor in architecture.tensors() {
            let (values, after) = rest.split_at(tensor.len());
            rows.push(Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device));
            shapes.push(tensor.shape);
            rest = after;
        }
        Self { rows, shapes }
    }

    /// The same values, with gradients of their own.
    pub(crate) fn tracked(&self) -> Self {
        let rows = self.rows.iter().map(|row| row.clone().autodiff().require_grad()).collect();
        Self { rows, shapes: self.shapes.clone() }
    }

    /// A tensor in its shape.
    ///
    /// # Panics
    /// It has another number of dimensions.
    pub(crate) fn get<const D: usize>(&self, index: usize) -> Tensor<D> {
        let shape: [usize; D] =
            self.shapes[index].as_slice().try_into().expect("as many dimensions as the network says");
        self.rows[index].clone().reshape(shape)
    }

    /// Adds the values of a statistic, once for each of so many samples, to its place in a flat vector.
    ///
    /// - `gradient`: (parameters).
    pub(crate) fn add_statistic(
        &self,
        index: usize,
        values: Tensor<1>,
        samples: usize,
        gradient: &mut [f32],
    ) {
        let start: usize = self.shapes[..index].iter().map(|shape| shape.iter().product::<usize>()).sum();
        let values = values.into_data();
        let values = values.as_slice::<f32>().expect("statistics are f32");
        for (sum, value) in gradient[start..].iter_mut().zip(values) {
            *sum += value * samples as f32;
        }
    }

    /// Adds the gradients to a flat vector.
    ///
    /// - `gradient`: (parameters).
    pub(crate) fn add_gradients(&self, gradients: &mut Gradients, gradient: &mut [f32]) {
        let mut rest = gradient;
        for (row, shape) in self.rows.iter().zip(&self.shapes) {
            let (sums, after) = rest.split_at_mut(shape.iter().product());
            if let Some(found) = row.grad_remove(gradients) {
                let found = found.into_data();
                let found = found.as_slice::<f32>().expect("gradients are f32");
                sums.iter_mut().zip(found).for_each(|(sum, value)| *sum += value);
            }
            rest = after;
        }
    }
}
