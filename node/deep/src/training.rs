//! A forward pass in training: what its samples draw from, where its stages end, and the statistics that it measures.

use std::cell::RefCell;

use burn_tensor::Tensor;

/// A forward pass of samples that are trained.
pub(crate) struct Training<'a> {
    /// (samples): what each draws from.
    pub(crate) seeds: &'a [u64],
    /// Whether the gradient is computed stage by stage.
    has_stages: bool,
    found: RefCell<Found>,
}

/// What a forward pass leaves behind.
#[derive(Default)]
pub(crate) struct Found {
    /// The ends of its stages but the last one, in order.
    pub(crate) cuts: Vec<Cut>,
    /// The new values of statistics, each with the index of its tensor.
    pub(crate) statistics: Vec<(usize, Tensor<1>)>,
}

/// Values between two stages, as one row.
pub(crate) struct Cut {
    /// What the stage before has computed.
    pub(crate) output: Tensor<1>,
    /// The same values without their history, which the stage behind takes in.
    pub(crate) input: Tensor<1>,
}

impl<'a> Training<'a> {
    pub(crate) fn new(seeds: &'a [u64], has_stages: bool) -> Self {
        Self { seeds, has_stages, found: RefCell::default() }
    }

    /// Notes the new value of a statistic.
    pub(crate) fn measured(&self, tensor: usize, value: Tensor<1>) {
        self.found.borrow_mut().statistics.push((tensor, value.inner()));
    }

    /// Ends a stage with these values, and returns them to begin the next stage: its gradient is computed before that of this stage.
    pub(crate) fn end_stage<const D: usize>(&self, values: Tensor<D>) -> Tensor<D> {
        if !self.has_stages {
            return values;
        }
        let shape = values.dims();
        let output = values.reshape([shape.iter().product::<usize>()]);
        let input = Tensor::from_inner(output.clone().inner()).require_grad();
        self.found.borrow_mut().cuts.push(Cut { output, input: input.clone() });
        input.reshape(shape)
    }

    pub(crate) fn into_found(self) -> Found {
        self.found.into_inner()
    }
}
