//! A pass over a piece: forward, and then backward, at once or through one stage after the other.
//!
//! ```text
//! forward    first stage --> cut --> stage --> cut --> last stage --> loss
//! backward                                        <-- last stage <--           its gradients are known first
//!                               <-- stage <--
//! ```

use std::ops::Range;

use burn_tensor::Tensor;
use peergrad_models::deep::{Architecture, Piece};

use crate::Burn;
use crate::backend::{forward, summed_loss};
use crate::training::{Cut, Found, Training};
use crate::weights::Weights;

/// A piece, after its forward pass.
pub(crate) struct Pass {
    weights: Weights,
    loss: Tensor<1>,
    /// What the next stage is differentiated from; `None` if nothing depends on what is left.
    slope: Option<Tensor<1>>,
    /// The ends of the stages that are left, without the last one's.
    cuts: Vec<Cut>,
    /// By tensor: the gradient as far as it is known.
    gradients: Vec<Option<Tensor<1>>>,
}

impl Pass {
    /// The forward pass, for a backward pass through all tensors at once, or stage by stage if it `has_stages`.
    pub(crate) fn forward(
        burn: &Burn,
        (architecture, weights): (&Architecture, &Weights),
        piece: Piece,
        has_stages: bool,
    ) -> Self {
        let Piece { inputs, targets, weight, seeds } = piece;
        // Tensors of its own: burn would otherwise keep one record of what several threads compute.
        let weights = weights.tracked();
        let training = Training::new(&seeds, has_stages);
        let outputs = forward(architecture, &weights, &inputs, Some(&training), &burn.recording);
        let loss = summed_loss(outputs, &targets, &burn.recording) * weight;
        let Found { cuts, statistics } = training.into_found();
        let mut gradients: Vec<Option<Tensor<1>>> = weights.lengths().map(|_| None).collect();
        // A statistic counts once for each sample.
        for (tensor, value) in statistics {
            gradients[tensor] = Some(value * seeds.len() as f32);
        }
        Self { weights, slope: Some(loss.clone()), loss: loss.inner(), cuts, gradients }
    }

    /// The loss of the piece.
    pub(crate) fn loss(&self) -> Tensor<1> {
        self.loss.clone()
    }

    /// Goes back through the last stage that is left, which has these tensors. Returns the gradient of each of them, as a row; `None` if it has
    /// none.
    pub(crate) fn backward(&mut self, stage: Range<usize>) -> Vec<Option<Tensor<1>>> {
        let cut = self.cuts.pop();
        if let Some(slope) = self.slope.take() {
            let mut found = slope.backward();
            for (index, known) in self.gradients.iter_mut().enumerate().skip(stage.start) {
                if let Some(gradient) = self.weights.take_gradient(index, &mut found) {
                    *known = Some(match known.take() {
                        Some(before) => before + gradient,
                        None => gradient,
                    });
                }
            }
            self.slope = cut.and_then(|cut| {
                let slope = cut.input.grad_remove(&mut found)?;
                Some((cut.output * Tensor::from_inner(slope)).sum())
            });
        }
        stage.map(|index| self.gradients[index].take()).collect()
    }
}
