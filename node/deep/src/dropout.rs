//! Dropout, with the factors that each sample draws.

use burn_tensor::{Tensor, TensorData};
use peergrad_models::deep::draws::dropout;

/// Leaves values out: each sample's as its seed says.
///
/// - `values`: (samples, ...).
pub(crate) fn drop_out<const D: usize>(
    values: Tensor<D>,
    share: f32,
    place: usize,
    seeds: &[u64],
) -> Tensor<D> {
    if share == 0.0 {
        return values;
    }
    let shape = values.dims();
    let mut factors = vec![0.0; shape.iter().product()];
    let of_sample = factors.len() / seeds.len();
    for (factors, &seed) in factors.chunks_mut(of_sample).zip(seeds) {
        dropout(seed, place as u64, share, factors);
    }
    let factors = Tensor::from_data(TensorData::new(factors, shape), &values.device());
    values * factors
}
