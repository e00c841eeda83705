//! The flat vector of parameters as tensors, and their gradients.

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

    /// The gradient of a tensor, as a row; `None` if it has none.
    pub(crate) fn take_gradient(&self, index: usize, gradients: &mut Gradients) -> Option<Tensor<1>> {
        self.rows[index].grad_remove(gradients)
    }

    /// How many values each tensor has.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.shapes.iter().map(|shape| shape.iter().product())
    }
}
