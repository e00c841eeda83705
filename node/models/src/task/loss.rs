//! Losses: how wrong the outputs of a network are, and the gradient with respect to the outputs.
//!
//! A loss overwrites the outputs with its gradient, which is where the backward pass starts. Cross-entropy and squared error have the same
//! simple gradient: the prediction minus the target.

use std::ops::AddAssign;

use ndarray::{ArrayViewMut2, Axis};

use super::margin_loss::MarginLoss;
use super::pieces::{half, join};
use crate::data::labels::Labels;

/// A loss, which training minimizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Cross-entropy of the softmax of the outputs, one output for each class. Needs [`Labels::Classes`].
    SoftmaxCrossEntropy,
    /// Half the squared difference of the only output from the label. Needs [`Labels::Numbers`].
    HalfSquaredError,
    /// The squared hinge loss of a support vector machine. With one output for each class, each output tells its class from all others (one
    /// versus the rest), and their losses are added; a single output tells the second of two classes from the first. Needs
    /// [`Labels::Classes`].
    SquaredHinge,
}

/// Loss and number of correct classes of several rows of outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Summed over the rows.
    pub loss: f64,
    /// Rows that are taken for the right class; 0 where there are no classes.
    pub correct: u64,
}

impl AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
    }
}

impl Loss {
    /// Scores `outputs` (rows, outputs) and overwrites them with the gradient of the summed loss. `label_of(row)` is the index in
    /// `labels` of the row's sample.
    ///
    /// # Panics
    /// If the labels are not of the kind that the loss needs, or a class has no output.
    pub fn score(
        self,
        outputs: ArrayViewMut2<'_, f32>,
        labels: &Labels,
        label_of: impl Fn(usize) -> usize + Sync,
    ) -> Score {
        self.score_from(0, outputs, labels, &label_of)
    }

    /// As [`score`](Self::score), for `outputs` (rows, width) row-major whose rows have the labels in their order.
    ///
    /// # Panics
    /// As [`score`](Self::score), or if the number of outputs is no multiple of their width.
    pub fn score_all(self, outputs: &mut [f32], width: usize, labels: &Labels) -> Score {
        let shape = (outputs.len() / width, width);
        let view = ArrayViewMut2::from_shape(shape, outputs).expect("outputs for each row");
        self.score(view, labels, |row| row)
    }

    /// As [`score`](Self::score), of outputs whose first row is `start`.
    fn score_from(
        self,
        start: usize,
        mut outputs: ArrayViewMut2<'_, f32>,
        labels: &Labels,
        label_of: &(impl Fn(usize) -> usize + Sync),
    ) -> Score {
        let Some(count) = half(outputs.nrows(), outputs.ncols() * OUTPUT_WORK) else {
            let mut score = Score::default();
            for (row, outputs) in (start..).zip(outputs.rows_mut()) {
                let outputs = outputs.into_slice().expect("outputs are contiguous");
                score += self.score_row(outputs, labels, label_of(row));
            }
            return score;
        };
        let work = outputs.len() * OUTPUT_WORK;
        let (first, second) = outputs.split_at(Axis(0), count);
        let (mut score, rest) = join(
            work,
            || self.score_from(start, first, labels, label_of),
            || self.score_from(start + count, second, labels, label_of),
        );
        score += rest;
        score
    }

    /// Scores the outputs of the sample with this label.
    fn score_row(self, outputs: &mut [f32], labels: &Labels, label: usize) -> Score {
        match (self, labels) {
            (Self::SoftmaxCrossEntropy, Labels::Classes(classes)) => {
                let class = classes[label] as usize;
                let correct = u64::from(largest(outputs) == class);
                Score { loss: cross_entropy(outputs, class), correct }
            }
            (Self::SquaredHinge, Labels::Classes(classes)) => squared_hinge(outputs, classes[label] as usize),
            (Self::HalfSquaredError, Labels::Numbers(numbers)) => {
                outputs[0] -= numbers[label];
                Score { loss: 0.5 * f64::from(outputs[0]) * f64::from(outputs[0]), correct: 0 }
            }
            (loss, _) => panic!("the labels do not suit {loss:?}"),
        }
    }
}

/// The work for one output, in the time that a term of a product takes: most of it is an exponential.
const OUTPUT_WORK: usize = 500;

/// Overwrites the outputs of a row with their softmax: the probabilities of its classes.
pub fn softmax(outputs: &mut [f32]) {
    let highest = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    outputs.iter_mut().for_each(|output| *output = libm::expf(*output - highest));
    let sum: f32 = outputs.iter().sum();
    outputs.iter_mut().for_each(|output| *output /= sum);
}

/// The index of the largest output; of several equal ones, the first.
#[must_use]
pub fn largest(outputs: &[f32]) -> usize {
    let mut best = 0;
    for (index, &output) in outputs.iter().enumerate() {
        if output > outputs[best] {
            best = index;
        }
    }
    best
}

/// Returns `log(sum(exp(outputs))) - outputs[class]`, and overwrites the outputs with their softmax, minus 1 at `class`.
///
/// The largest output is subtracted first, so that no exponential overflows and the sum is at least 1.
fn cross_entropy(outputs: &mut [f32], class: usize) -> f64 {
    let highest = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let own = outputs[class] - highest;
    let mut sum = 0.0;
    for output in &mut *outputs {
        *output = (*output - highest).exp();
        sum += *output;
    }
    for output in &mut *outputs {
        *output /= sum;
    }
    outputs[class] -= 1.0;
    f64::from(sum).ln() - f64::from(own)
}

/// Scores the margins of a sample, and overwrites them with the slopes of their losses.
fn squared_hinge(outputs: &mut [f32], class: usize) -> Score {
    let is_right = match outputs {
        [margin] => (*margin > 0.0) == (class == 1),
        _ => largest(outputs) == class,
    };
    let is_single = outputs.len() == 1;
    let mut loss = 0.0;
    for (index, output) in outputs.iter_mut().enumerate() {
        let is_second = if is_single { class == 1 } else { index == class };
        let margin = f64::from(*output);
        loss += MarginLoss::SquaredHinge.loss(margin, is_second);
        *output = MarginLoss::SquaredHinge.slope(margin, is_second) as f32;
    }
    Score { loss, correct: u64::from(is_right) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, array};

    #[test]
    fn cross_entropy_by_hand() {
        let mut outputs = array![[0.0, 3.0_f32.ln()], [5.0, 5.0]];
        let labels = Labels::Classes(vec![0, 1]);
        let score = Loss::SoftmaxCrossEntropy.score(outputs.view_mut(), &labels, |row| row);
        assert!((score.loss - (4.0_f64.ln() + 2.0_f64.ln())).abs() < 1e-6);
        assert_eq!(score.correct, 0, "a tie goes to the first class");
        let expected: Array2<f32> = array![[-0.75, 0.75], [0.5, -0.5]];
        assert!((&outputs - &expected).iter().all(|difference| difference.abs() < 1e-6));
    }

    #[test]
    fn huge_outputs_do_not_overflow() {
        let mut outputs = array![[1e30_f32, -1e30, 0.0]];
        let labels = Labels::Classes(vec![1]);
        let score = Loss::SoftmaxCrossEntropy.score(outputs.view_mut(), &labels, |row| row);
        assert!((score.loss - 2e30).abs() < 1e24);
        assert_eq!(outputs, array![[1.0, -1.0, 0.0]]);
    }

    #[test]
    fn squared_hinge_by_hand() {
        // One output for each of three classes: 0.5 short of 1 on the right side, 0.25 on the wrong side, and far enough away.
        let mut outputs = array![[0.5_f32, -0.75, -3.0], [1.0, 1.0, -1.0]];
        let score = Loss::SquaredHinge.score(outputs.view_mut(), &Labels::Classes(vec![0, 1]), |row| row);
        assert_eq!(score, Score { loss: 0.25 + 0.0625 + 4.0, correct: 1 }, "a tie goes to the first class");
        assert_eq!(outputs, array![[-1.0, 0.5, 0.0], [4.0, 0.0, 0.0]]);
        // A single output for two classes.
        let mut outputs = array![[0.5_f32], [0.5], [0.0]];
        let score = Loss::SquaredHinge.score(outputs.view_mut(), &Labels::Classes(vec![1, 0, 0]), |row| row);
        assert_eq!(score, Score { loss: 0.25 + 2.25 + 1.0, correct: 2 });
        assert_eq!(outputs, array![[-1.0], [3.0], [2.0]]);
    }

    #[test]
    fn squared_error_by_hand() {
        let mut outputs = array![[3.0_f32], [1.0]];
        let labels = Labels::Numbers(vec![0.0, 9.0, 1.0]);
        let score = Loss::HalfSquaredError.score(outputs.view_mut(), &labels, |row| [2, 0][row]);
        assert_eq!(score, Score { loss: 2.5, correct: 0 });
        assert_eq!(outputs, array![[2.0], [1.0]]);
    }
}
