//! Activations: the function that a hidden layer applies to each of its values.
//!
//! The forward pass computes the value and the slope of an activation; the backward pass needs only the slope. The functions of `std`
//! may be used although their last bits differ between platforms: each gradient is computed by one member, which sends it.

use serde::{Deserialize, Serialize};

/// An activation function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `max(x, 0)`.
    #[default]
    Relu,
    /// `tanh(x)`.
    Tanh,
    /// `x Phi(x)` in its tanh form (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2).
    Gelu,
}

impl Activation {
    /// The work for one value, in the time that a term of a product takes.
    pub(super) fn work(self) -> usize {
        match self {
            Self::Relu => 16,
            Self::Tanh | Self::Gelu => 1000,
        }
    }

    /// Replaces each of `values` with its activation, and writes the slope at that value to `slopes`, which has the same length.
    pub fn apply(self, values: &mut [f32], slopes: &mut [f32]) {
        match self {
            Self::Relu => each(values, slopes, relu),
            Self::Tanh => each(values, slopes, tanh),
            Self::Gelu => each(values, slopes, gelu),
        }
    }
}

fn each(values: &mut [f32], slopes: &mut [f32], function: impl Fn(f32) -> [f32; 2]) {
    for (value, slope) in values.iter_mut().zip(slopes) {
        [*value, *slope] = function(*value);
    }
}

fn relu(x: f32) -> [f32; 2] {
    if x > 0.0 { [x, 1.0] } else { [0.0, 0.0] }
}

fn tanh(x: f32) -> [f32; 2] {
    let y = x.tanh();
    [y, 1.0 - y * y]
}

/// `x (1 + tanh(u)) / 2` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
fn gelu(x: f32) -> [f32; 2] {
    /// sqrt(2 / pi)
    const ROOT: f32 = 0.797_884_6;
    const CUBIC: f32 = 0.044_715;
    let tanh = (ROOT * (x + CUBIC * x * x * x)).tanh();
    let inner_slope = ROOT * (1.0 + 3.0 * CUBIC * x * x);
    [0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner_slope]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(activation: Activation, x: f32) -> [f32; 2] {
        let (mut values, mut slopes) = ([x], [0.0]);
        activation.apply(&mut values, &mut slopes);
        [values[0], slopes[0]]
    }

    #[test]
    fn known_values() {
        assert_eq!(value(Activation::Relu, -2.0), [0.0, 0.0]);
        assert_eq!(value(Activation::Relu, 3.0), [3.0, 1.0]);
        assert_eq!(value(Activation::Tanh, 0.0), [0.0, 1.0]);
        // PyTorch: gelu(1, approximate="tanh") is 0.841192.
        assert!((value(Activation::Gelu, 1.0)[0] - 0.841_192).abs() < 1e-6);
    }

    #[test]
    fn slopes_agree_with_finite_differences() {
        for activation in [Activation::Relu, Activation::Tanh, Activation::Gelu] {
            for x in [-3.0_f32, -1.1, -0.2, 0.3, 0.9, 2.5] {
                let reach = 1e-2;
                let [above, below] = [x + reach, x - reach].map(|x| value(activation, x)[0]);
                let slope = (above - below) / (2.0 * reach);
                assert!((value(activation, x)[1] - slope).abs() < 1e-3, "{activation:?} at {x}");
            }
        }
    }

    #[test]
    fn values_and_slopes_are_finite_far_from_zero() {
        for activation in [Activation::Relu, Activation::Tanh, Activation::Gelu] {
            for x in [-1e4_f32, 1e4] {
                assert!(value(activation, x).iter().all(|value| value.is_finite()), "{activation:?}");
            }
        }
    }
}
