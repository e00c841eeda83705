//! Margin losses: how wrong a linear classifier is about one of two classes.
//!
//! The margin z is the weighted sum of the features, plus the bias: the classifier takes a sample for the second class if z is above 0. The
//! loss depends on z alone, so the gradient is the slope along z times the features.
//!
//! ```text
//! y = 1 for the second class, -1 for the first      loss                 slope along z
//! cross-entropy (logistic regression)               log(1 + exp(-y z))   -y / (1 + exp(y z))
//! squared hinge (support vector machine)            max(0, 1 - y z)^2    -2 y max(0, 1 - y z)
//! ```
//! Both are convex and smooth. The squared hinge is exactly zero for a sample that is at least 1 on its side, so such samples have no
//! influence; the others are the support vectors.
//!
//! # Reading
//! Cortes and Vapnik, *Support-Vector Networks*, 1995; Fan et al., *LIBLINEAR: A Library for Large Linear Classification*, 2008, section 2.

/// The loss of a linear classifier for two classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarginLoss {
    /// The cross-entropy of logistic regression, whose margin is the logarithm of the odds of the second class.
    CrossEntropy,
    /// The squared hinge loss of a support vector machine.
    SquaredHinge,
}

impl MarginLoss {
    /// The loss at a margin; `is_second`: whether the sample is of the second class. No exponential overflows.
    #[must_use]
    pub fn loss(self, margin: f64, is_second: bool) -> f64 {
        let against = if is_second { -margin } else { margin };
        match self {
            Self::CrossEntropy => against.max(0.0) + (-against.abs()).exp().ln_1p(),
            Self::SquaredHinge => {
                let hinge = (1.0 + against).max(0.0);
                hinge * hinge
            }
        }
    }

    /// The slope of the loss along the margin.
    #[must_use]
    pub fn slope(self, margin: f64, is_second: bool) -> f64 {
        let against = if is_second { -margin } else { margin };
        let size = match self {
            Self::CrossEntropy if against > 0.0 => 1.0 / (1.0 + (-against).exp()),
            Self::CrossEntropy => {
                let odds = against.exp();
                odds / (1.0 + odds)
            }
            Self::SquaredHinge => 2.0 * (1.0 + against).max(0.0),
        };
        if is_second { -size } else { size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSSES: [MarginLoss; 2] = [MarginLoss::CrossEntropy, MarginLoss::SquaredHinge];

    #[test]
    fn known_values() {
        let hinge = MarginLoss::SquaredHinge;
        assert_eq!((hinge.loss(-1.0, true), hinge.slope(-1.0, true)), (4.0, -4.0));
        assert_eq!((hinge.loss(0.5, false), hinge.slope(0.5, false)), (2.25, 3.0));
        assert_eq!((hinge.loss(1.0, true), hinge.slope(1.5, true)), (0.0, 0.0), "beyond the margin");
        let entropy = MarginLoss::CrossEntropy;
        assert!((entropy.loss(0.125, false) - 0.125_f64.exp().ln_1p()).abs() < 1e-12);
        assert_eq!(entropy.loss(-1000.0, true), 1000.0);
        assert_eq!((entropy.slope(1000.0, true), entropy.slope(1000.0, false)), (0.0, 1.0));
    }

    #[test]
    fn slopes_agree_with_finite_differences() {
        for loss in LOSSES {
            for margin in [-3.0, -0.9, 0.1, 0.8, 2.5] {
                for is_second in [false, true] {
                    let reach = 1e-5;
                    let rise = loss.loss(margin + reach, is_second) - loss.loss(margin - reach, is_second);
                    let found = loss.slope(margin, is_second);
                    assert!((found - rise / (2.0 * reach)).abs() < 1e-4, "{loss:?} at {margin}: {found}");
                }
            }
        }
    }
}
