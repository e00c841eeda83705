//! Proximal rules, which make parameters exactly zero and so the model sparse.
//!
//! They minimize the mean loss + `l1` x sum |x| + `l2` / 2 x sum x^2. A plain gradient step on these terms would oscillate around zero;
//! a proximal rule solves for the new value instead.
//!
//! # Reading
//! Duchi and Singer, *Efficient Online and Batch Learning Using Forward Backward Splitting*, 2009 (`prox`); McMahan et al., *Ad
//! Click Prediction: a View from the Trenches*, 2013, algorithm 1 (`ftrl`).

use super::Moment;

/// The constants of one proximal step.
pub(super) struct ProximalUpdate {
    pub(super) rate: f32,
    pub(super) scale: f32,
    pub(super) l1: f32,
    pub(super) l2: f32,
}

impl ProximalUpdate {
    /// A step against the gradient, then towards zero. Keeps no moments.
    pub(super) fn apply(&self, parameters: &[f32], vector: &mut [f32]) {
        let (threshold, shrinkage) = (self.rate * self.l1, 1.0 + self.rate * self.l2);
        for (element, &parameter) in vector.iter_mut().zip(parameters) {
            let moved = parameter - self.rate * (*element * self.scale);
            *element = towards_zero(moved, threshold) / shrinkage;
        }
    }
}

/// The constants of one FTRL step (follow the regularized leader). We differ from the paper in the weights `l1` and `l2`: here each
/// loss adds them once more; there they are added once, and weigh less with every step.
pub(super) struct FtrlUpdate {
    pub(super) rate: f32,
    pub(super) scale: f32,
    pub(super) beta: f32,
    pub(super) l1: f32,
    pub(super) l2: f32,
}

impl FtrlUpdate {
    /// Two moments: z, the sum of gradients minus the proximal corrections, and n, the sum of squared gradients.
    pub(super) fn apply(&self, parameters: &[f32], vector: &mut [f32], [sums, squares]: [Moment<'_>; 2]) {
        let sums = sums.0.iter().zip(sums.1);
        let squares = squares.0.iter().zip(squares.1);
        for (((element, &parameter), sum), square) in vector.iter_mut().zip(parameters).zip(sums).zip(squares)
        {
            let gradient = *element * self.scale;
            let new_square = *square.0 + gradient * gradient;
            let root = new_square.sqrt();
            let pull = (root - square.0.sqrt()) / self.rate;
            let new_sum = *sum.0 + gradient - pull * parameter;
            *sum.1 = new_sum;
            *square.1 = new_square;
            *element = -towards_zero(new_sum, self.l1) / ((self.beta + root) / self.rate + self.l2);
        }
    }
}

/// `value` moved towards zero by `distance`; zero if that would pass zero (soft thresholding).
fn towards_zero(value: f32, distance: f32) -> f32 {
    if value > distance {
        value - distance
    } else if value < -distance {
        value + distance
    } else {
        0.0
    }
}
