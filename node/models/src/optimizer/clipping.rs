//! Clipping by the global norm: a mean gradient that is too long is shortened, and keeps its direction.
//!
//! One batch with a gradient a hundred times too large would undo many steps. Clipping multiplies the gradient of the whole model by one
//! factor, so that its norm is at most a limit. A limit for each tensor would change the direction.
//!
//! The norm is the root of the sum of all squares, and each owner has only the sums of its shard. So the sum of squares is made of parts,
//! which are computed here, and added up by the node.
//!
//! # Invariants
//! - The same bits on every machine: sums of squares are in `f64`, in the order written here.
//! - A factor of 1 changes no bit of an update.
//!
//! # Reading
//! Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, algorithm 1; the formula is that of
//! `torch.nn.utils.clip_grad_norm_`, with its 1e-6 in the divisor.

/// The sum of the squares of some elements.
pub(super) fn squares(elements: &[f32]) -> f64 {
    // Sums side by side, which the processor adds at once; their number is part of the result.
    let mut sums = [0.0; LANES];
    let mut rows = elements.chunks_exact(LANES);
    for row in &mut rows {
        for (sum, element) in sums.iter_mut().zip(row) {
            let element = f64::from(*element);
            *sum += element * element;
        }
    }
    for (sum, element) in sums.iter_mut().zip(rows.remainder()) {
        let element = f64::from(*element);
        *sum += element * element;
    }
    sums.iter().sum()
}

/// The factor that shortens a mean gradient to the norm `limit`; 1 if it is not longer. `squares` is the sum of the squares of the gradient
/// summed over `samples`.
pub(super) fn factor(limit: f32, squares: f64, samples: u64) -> f32 {
    let norm = squares.sqrt() / samples as f64;
    (f64::from(limit) / (norm + NORM_ADDED)).min(1.0) as f32
}

/// Sums of squares side by side.
const LANES: usize = 8;
/// Added to the norm, as PyTorch does.
const NORM_ADDED: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_added_up() {
        for count in [0, 1, 7, 8, 9, 40, 43] {
            let elements: Vec<f32> = (0..count).map(|index| index as f32 - 5.0).collect();
            let expected: f64 = elements.iter().map(|element| f64::from(element * element)).sum();
            assert_eq!(squares(&elements), expected, "{count} elements");
        }
        assert!(squares(&[f32::MAX; 20]).is_finite(), "the largest elements do not overflow");
    }

    #[test]
    fn the_factor_is_that_of_pytorch() {
        // A sum of (6, 8) over 2 samples is a mean of (3, 4), of norm 5.
        assert_eq!(factor(1.0, 100.0, 2), (1.0 / (5.0 + 1e-6)) as f32);
        assert_eq!(factor(4.0, 100.0, 2), (4.0 / (5.0 + 1e-6)) as f32);
        assert_eq!(factor(5.1, 100.0, 2), 1.0);
        assert_eq!(factor(1.0, 0.0, 2), 1.0);
        // Of a gradient that is exactly as long as allowed, a little is cut off.
        assert!(factor(5.0, 100.0, 2) < 1.0);
    }
}
