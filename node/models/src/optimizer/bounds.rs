//! Bounds: the interval in which parameters stay, whatever the optimizer does.
//!
//! After each update, a parameter outside the interval moves to the nearer end. That is the projection onto a box, so any rule becomes its
//! projected form, and the minimum that training approaches is the best one inside the box. Bounds from zero on make parameters nonnegative.
//!
//! ```text
//!      low             high
//!  x ->|---------------|<- y          the rule has moved two parameters to x and y; both end at a border
//! ```
//! # Invariants
//! - A parameter's result depends on that parameter alone: cutting a vector elsewhere changes nothing.
//! - Means of parameters within the bounds are within the bounds, except for rounding.
//!
//! # Reading
//! Bertsekas, *On the Goldstein-Levitin-Polyak gradient projection method*, 1976.

use serde::{Deserialize, Serialize};

/// The interval in which all parameters stay. An end may be infinite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f32; 2]", into = "[f32; 2]")]
pub struct Bounds {
    /// The least value of a parameter.
    pub low: f32,
    /// The greatest value of a parameter.
    pub high: f32,
}

impl Bounds {
    /// Bounds that make all parameters nonnegative.
    pub const NONNEGATIVE: Self = Self { low: 0.0, high: f32::INFINITY };

    /// Whether there are numbers between the ends.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.low < self.high && self.low < f32::INFINITY && self.high > f32::NEG_INFINITY
    }

    /// Moves values that are outside to the nearer end. A value that is not finite stays so, since an update that overflows is to be noticed.
    pub fn project(self, values: &mut [f32]) {
        for value in values.iter_mut().filter(|value| value.is_finite()) {
            if *value < self.low {
                *value = self.low;
            } else if *value > self.high {
                *value = self.high;
            }
        }
    }
}

impl From<[f32; 2]> for Bounds {
    fn from([low, high]: [f32; 2]) -> Self {
        Self { low, high }
    }
}

impl From<Bounds> for [f32; 2] {
    fn from(Bounds { low, high }: Bounds) -> Self {
        [low, high]
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::*;
    use crate::optimizer::{GroupedOptimizer, Optimizer, ParameterGroups, Treatment};

    #[test]
    fn values_outside_move_to_the_nearer_end() {
        let mut values = [-3.0, -1.0, 0.5, 2.0, 7.0, f32::INFINITY, f32::NAN];
        Bounds { low: -1.0, high: 2.0 }.project(&mut values);
        assert_eq!(values[..6], [-1.0, -1.0, 0.5, 2.0, 2.0, f32::INFINITY]);
        assert!(values[6].is_nan());
        let mut values = [-3.0, 1e30];
        Bounds::NONNEGATIVE.project(&mut values);
        assert_eq!(values, [0.0, 1e30]);
    }

    #[test]
    fn an_interval_without_numbers_is_invalid() {
        let is_valid = |low, high| Bounds { low, high }.is_valid();
        assert!(is_valid(0.0, f32::INFINITY) && is_valid(f32::NEG_INFINITY, 0.0) && is_valid(-1.0, 1.0));
        assert!(!is_valid(1.0, 1.0) && !is_valid(2.0, 1.0) && !is_valid(f32::NAN, 1.0));
        assert!(!is_valid(0.0, f32::NAN));
    }

    /// (x - 3)^2 / 2 and (x + 3)^2 / 2 have their minima outside: the best values inside are the ends.
    #[test]
    fn every_rule_ends_at_the_best_values_inside() {
        let rules = [
            (Optimizer::SGD, 0.1),
            (Optimizer::MOMENTUM, 0.05),
            (Optimizer::ADAM, 0.05),
            (Optimizer::ADAMW, 0.05),
            (Optimizer::ADAGRAD, 0.5),
            (Optimizer::Prox { l1: 0.1, l2: 0.0 }, 0.1),
            (Optimizer::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 }, 1.0),
        ];
        for (rule, rate) in rules {
            let bounds = Some(Bounds { low: -1.0, high: 2.0 });
            let optimizer = GroupedOptimizer { bounds, ..rule.into() };
            let mut parameters = vec![0.0_f32; 2];
            let mut moments = vec![0.0; 2 * rule.moment_count()];
            for step in 1..=200 {
                let mut vector = vec![parameters[0] - 3.0, parameters[1] + 3.0];
                let mut new = moments.clone();
                optimizer.update(rate, step, 1, 1.0).apply(0, &parameters, &mut vector, &moments, &mut new);
                (parameters, moments) = (vector, new);
            }
            assert_eq!(parameters, [2.0, -1.0], "{rule:?}");
        }
    }

    #[test]
    fn statistics_have_no_bounds() {
        let groups = ParameterGroups::new([(Treatment::Statistic, vec![1..2])]);
        let bounds = Some(Bounds { low: 0.0, high: 1.0 });
        let optimizer = GroupedOptimizer { bounds, groups, ..Optimizer::SGD.into() };
        let mut vector = [-9.0, 9.0];
        optimizer.update(1.0, 1, 1, 1.0).apply(0, &[0.5, 0.5], &mut vector, &[], &mut []);
        assert_eq!(vector, [1.0, 9.0]);
        let mut initial = [-9.0, 9.0, 0.25];
        optimizer.project(&mut initial);
        assert_eq!(initial, [0.0, 9.0, 0.25]);
    }

    #[test]
    fn bounds_are_written_as_two_numbers() {
        #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
        struct Section {
            bounds: Bounds,
        }
        let section: Section = toml::from_str("bounds = [0, inf]").unwrap();
        assert_eq!(section.bounds, Bounds::NONNEGATIVE);
        assert_eq!(toml::to_string(&section).unwrap(), "bounds = [0.0, inf]\n");
    }
}
