//! The product of two matrices, in which training spends most of its time.
//!
//! A dense layer computes three products in each step: one in the forward pass and two in the backward pass. Matrices are views of
//! `ndarray`. The kernel is faer's: it uses the widest vector registers of the processor, and runs on the calling thread.
//!
//! # Invariants
//! - A product copies nothing; with AVX2 it allocates nothing after the first product of a thread.
//! - On one kind of machine, the bits of a product depend on shapes and values only. They do not depend on where the matrices lie in
//!   memory, or on earlier products.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use faer_ext::IntoFaer;
use ndarray::{ArrayView2, ArrayViewMut2};

/// What happens to the values that the product's memory holds before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// The product overwrites them.
    Replace,
    /// The product is added to them.
    Add,
}

/// Writes the product of `left` (rows, depth) and `right` (depth, columns) to `product` (rows, columns).
///
/// # Panics
/// If the shapes do not fit together.
pub(crate) fn multiply(
    left: ArrayView2<'_, f32>,
    right: ArrayView2<'_, f32>,
    mode: WriteMode,
    product: ArrayViewMut2<'_, f32>,
) {
    let mode = if mode == WriteMode::Replace { Accum::Replace } else { Accum::Add };
    matmul(view_mut(product), mode, view(left), view(right), 1.0, Par::Seq);
    clear_upper_halves();
}

/// The same matrix as a view of the kernel's library.
///
/// A side of one element has any stride in ndarray, and the kernel goes by strides. A matrix that lies row by row gets those of its shape.
fn view(matrix: ArrayView2<'_, f32>) -> MatRef<'_, f32> {
    let (rows, columns) = matrix.dim();
    match matrix.to_slice() {
        Some(values) => MatRef::from_row_major_slice(values, rows, columns),
        None => matrix.into_faer(),
    }
}

/// As [`view`], to write to.
fn view_mut(matrix: ArrayViewMut2<'_, f32>) -> MatMut<'_, f32> {
    let (rows, columns) = matrix.dim();
    if matrix.is_standard_layout() {
        let values = matrix.into_slice().expect("the matrix lies row by row");
        MatMut::from_row_major_slice_mut(values, rows, columns)
    } else {
        matrix.into_faer()
    }
}

/// Clears the upper halves of the vector registers, which wide kernels leave filled. The other code of this crate uses the lower
/// halves only; while the upper halves are filled, each of its vector instructions must preserve them, and loops are several times
/// slower.
fn clear_upper_halves() {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx) = pulp::core_arch::x86::Avx::try_new() {
        avx._mm256_zeroupper();
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Axis, Slice};

    use super::*;

    /// Numbers of both signs and of several sizes.
    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|index| ((index * 7919 + seed * 104_729) % 10_007) as f32 / 5_003.0 - 1.0).collect()
    }

    /// (rows, columns) of `values`, which lie in memory as they are or the other way round.
    fn laid_out(values: &[f32], rows: usize, columns: usize, is_turned: bool) -> ArrayView2<'_, f32> {
        if is_turned {
            ArrayView2::from_shape((columns, rows), values).unwrap().reversed_axes()
        } else {
            ArrayView2::from_shape((rows, columns), values).unwrap()
        }
    }

    fn to_write(values: &mut [f32], rows: usize, columns: usize) -> ArrayViewMut2<'_, f32> {
        ArrayViewMut2::from_shape((rows, columns), values).unwrap()
    }

    /// The same matrix. Its sides of one element have no stride afterwards.
    fn sliced(matrix: ArrayView2<'_, f32>) -> ArrayView2<'_, f32> {
        matrix.slice_axis_move(Axis(0), (..).into()).slice_axis_move(Axis(1), (..).into())
    }

    /// Compares with sums in `f64`, for every way in which the operands may lie.
    #[track_caller]
    fn check([rows, columns, depth]: [usize; 3]) {
        let (left, right) = (values(rows * depth, 1), values(depth * columns, 2));
        let before = values(rows * columns, 3);
        for (is_left_turned, is_right_turned) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let left = laid_out(&left, rows, depth, is_left_turned);
            let right = laid_out(&right, depth, columns, is_right_turned);
            for mode in [WriteMode::Replace, WriteMode::Add] {
                let mut found = before.clone();
                if let WriteMode::Replace = mode {
                    found.fill(f32::NAN);
                }
                multiply(left, right, mode, to_write(&mut found, rows, columns));
                for (index, found) in found.iter().enumerate() {
                    let (row, column) = (index / columns, index % columns);
                    let terms = (0..depth).map(|k| f64::from(left[(row, k)]) * f64::from(right[(k, column)]));
                    let start = if let WriteMode::Add = mode { f64::from(before[index]) } else { 0.0 };
                    let expected = start + terms.sum::<f64>();
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error < 1e-6 * (depth + 1) as f64, "{found} {expected} at {row}, {column}");
                }
            }
        }
    }

    #[test]
    fn products_agree_with_the_definition() {
        let sizes = [1, 2, 3, 10, 17, 64, 97];
        for rows in sizes {
            for columns in sizes {
                for depth in [1, 2, 5, 31, 130] {
                    check([rows, columns, depth]);
                }
            }
        }
        // Deeper than what is gone through in one piece, and wider than tiles.
        check([7, 9, 1100]);
        check([130, 200, 513]);
    }

    #[test]
    fn columns_of_a_wider_matrix_are_multiplied_and_written_alone() {
        let wide = |rows, columns, seed| {
            Array2::from_shape_vec((rows, columns), values(rows * columns, seed)).unwrap()
        };
        let (left, right, before) = (wide(40, 70, 1), wide(70, 90, 2), wide(40, 90, 3));
        let (mut found, columns) = (before.clone(), 20..53);
        let slice = Slice::from(columns.clone());
        let (right_part, part) = (right.slice_axis(Axis(1), slice), found.slice_axis_mut(Axis(1), slice));
        multiply(left.view(), right_part, WriteMode::Replace, part);
        let whole = left.dot(&right);
        for ((row, column), found) in found.indexed_iter() {
            if columns.contains(&column) {
                assert!((found - whole[(row, column)]).abs() < 1e-4, "{row}, {column}");
            } else {
                assert_eq!(*found, before[(row, column)], "{row}, {column}");
            }
        }
    }

    #[test]
    fn without_terms_a_sum_is_zero() {
        for shape in [[0, 3, 4], [3, 0, 4], [0, 0, 0], [3, 4, 0]] {
            check(shape);
        }
    }

    #[test]
    fn bits_do_not_depend_on_where_matrices_are_in_memory() {
        for [rows, columns, depth] in
            [[1, 1, 40], [5, 1, 40], [1, 7, 40], [9, 11, 1], [3, 5, 7], [33, 50, 70], [64, 256, 784]]
        {
            let (left, right) = (values(rows * depth, 1), values(depth * columns, 2));
            let found_at = |offset: usize, is_sliced: bool| {
                // The same numbers, a few elements further on.
                let shifted = |values: &[f32]| [&vec![0.0; offset], values].concat();
                let (left, right) = (shifted(&left), shifted(&right));
                let mut product = vec![0.0; offset + rows * columns];
                let mut left = laid_out(&left[offset..], rows, depth, false);
                let mut right = laid_out(&right[offset..], depth, columns, false);
                if is_sliced {
                    (left, right) = (sliced(left), sliced(right));
                }
                multiply(left, right, WriteMode::Replace, to_write(&mut product[offset..], rows, columns));
                product[offset..].iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            let expected = found_at(0, false);
            for offset in [0, 1, 3, 4, 8, 13] {
                for is_sliced in [false, true] {
                    let found = found_at(offset, is_sliced);
                    assert_eq!(found, expected, "{rows} x {depth} x {columns}, {offset} further on");
                }
            }
            let elsewhere = std::thread::scope(|scope| scope.spawn(|| found_at(2, false)).join().unwrap());
            assert_eq!(elsewhere, expected, "on a thread of its own");
        }
    }

    #[test]
    #[should_panic(expected = "rows")]
    fn shapes_that_do_not_fit_panic() {
        let mut product = [0.0; 4];
        let (left, right) = ([1.0; 4], [1.0; 6]);
        let (left, right) = (laid_out(&left, 2, 2, false), laid_out(&right, 3, 2, false));
        multiply(left, right, WriteMode::Replace, to_write(&mut product, 2, 2));
    }
}
