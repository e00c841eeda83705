//! A forward pass in training: what its samples draw from, and the statistics that it measures.

use std::cell::RefCell;

use burn_tensor::Tensor;

/// A forward pass of samples that are trained.
pub(crate) struct Training<'a> {
    /// (samples): what each draws from.
    pub(crate) seeds: &'a [u64],
    /// The new values of statistics, each with the index of its tensor.
    statistics: RefCell<Vec<(usize, Tensor<1>)>>,
}

impl<'a> Training<'a> {
    pub(crate) fn new(seeds: &'a [u64]) -> Self {
        Self { seeds, statistics: RefCell::default() }
    }

    /// Notes the new value of a statistic.
    pub(crate) fn measured(&self, tensor: usize, value: Tensor<1>) {
        self.statistics.borrow_mut().push((tensor, value.inner()));
    }

    /// The new values, each with the index of its tensor.
    pub(crate) fn into_statistics(self) -> Vec<(usize, Tensor<1>)> {
        self.statistics.into_inner()
    }
}
