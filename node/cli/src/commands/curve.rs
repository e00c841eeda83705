//! A series of values in bounded memory: the longer it is, the coarser its resolution.

/// The means over equal, consecutive spans of the pushed values.
#[derive(Clone, Debug)]
pub struct Curve {
    means: Vec<f64>,
    /// How many values each mean covers.
    span: u32,
    sum: f64,
    count: u32,
}

impl Default for Curve {
    fn default() -> Self {
        Self { means: Vec::new(), span: 1, sum: 0.0, count: 0 }
    }
}

impl Curve {
    /// Adds a value.
    pub fn push(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
        if self.count < self.span {
            return;
        }
        self.means.push(self.sum / f64::from(self.span));
        (self.sum, self.count) = (0.0, 0);
        if self.means.len() == MEANS_MAX {
            self.means = self.means.chunks(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
            self.span *= 2;
        }
    }

    /// The means so far, oldest first.
    #[must_use]
    pub fn means(&self) -> &[f64] {
        &self.means
    }
}

/// The most means that are kept; even, since they are merged in pairs.
const MEANS_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_series_stay_short_and_keep_their_mean() {
        let mut curve = Curve::default();
        (0..100_000_u32).for_each(|value| curve.push(f64::from(value)));
        assert!(curve.means().len() < MEANS_MAX && curve.means().len() >= MEANS_MAX / 2 - 1);
        assert!(curve.means().is_sorted());
        assert_eq!(curve.means()[0], f64::from(curve.span - 1) / 2.0);
    }
}
