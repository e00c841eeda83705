//! Pieces of a gradient, which the threads of a machine share.
//!
//! A large matrix is cut in half, each half in half again, and so on, down to pieces that are still worth a thread's attention:
//!
//! ```text
//! +-------+-------+        +---+---+---+---+
//! |       |       |   ->   |   |   |   |   |   ->   pieces, each of which one thread computes at once
//! +-------+-------+        +---+---+---+---+
//! ```
//! If the calling thread belongs to a pool, its threads take halves from each other until all are busy. Elsewhere, as in the
//! simulator, the calling thread computes one piece after another.
//!
//! # Invariants
//! - The cuts depend on sizes only. The bits of a result are the same with any number of threads.
//! - Every element is written by one piece, so there is nothing to add up afterwards.
//! - What takes one thread less than some 100 µs is not cut: to wake another thread would take as long.

use std::ops::Range;

use ndarray::{ArrayViewMut2, Axis};

/// Where a piece lies in the whole matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// What can be cut in two: a matrix, or several of the same shape.
pub(super) trait Cut: Send + Sized {
    /// (rows, columns)
    fn shape(&self) -> [usize; 2];
    /// The rows or columns before `index`, and the others.
    fn cut(self, axis: Axis, index: usize) -> (Self, Self);
}

impl Cut for ArrayViewMut2<'_, f32> {
    fn shape(&self) -> [usize; 2] {
        self.dim().into()
    }

    fn cut(self, axis: Axis, index: usize) -> (Self, Self) {
        self.split_at(axis, index)
    }
}

impl<A: Cut, B: Cut> Cut for (A, B) {
    fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    fn cut(self, axis: Axis, index: usize) -> (Self, Self) {
        let (first, second) = (self.0.cut(axis, index), self.1.cut(axis, index));
        ((first.0, second.0), (first.1, second.1))
    }
}

impl Cut for Piece {
    fn shape(&self) -> [usize; 2] {
        [self.rows.len(), self.columns.len()]
    }

    fn cut(self, axis: Axis, index: usize) -> (Self, Self) {
        let (mut first, mut second) = (self.clone(), self);
        let (before, after) = match axis {
            ROWS => (&mut first.rows, &mut second.rows),
            _ => (&mut first.columns, &mut second.columns),
        };
        after.start += index;
        before.end = after.start;
        (first, second)
    }
}

/// Computes all of `whole` with `compute`, which gets one piece at a time. `work_each` is the work for one element, in the time that a
/// term of a product takes.
pub(super) fn share<C: Cut>(whole: C, work_each: usize, compute: &(impl Fn(&Piece, C) + Sync)) {
    let [rows, columns] = whole.shape();
    let whole = (Piece { rows: 0..rows, columns: 0..columns }, whole);
    // The kernel prepares the right operand for each piece. A piece with all rows needs no columns but its own; pieces with few rows
    // would each need all columns.
    let axis = if columns >= 2 * SIDE_MIN { COLUMNS } else { ROWS };
    share_part(whole, axis, work_each, compute);
}

fn share_part<C: Cut>(part: (Piece, C), axis: Axis, work_each: usize, compute: &(impl Fn(&Piece, C) + Sync)) {
    let shape = part.shape();
    let (count, across) = (shape[axis.index()], shape[1 - axis.index()]);
    let work_across = across.saturating_mul(work_each);
    let Some(first_count) = half(count, work_across) else {
        return compute(&part.0, part.1);
    };
    let (first, second) = part.cut(axis, first_count);
    let share_first = || share_part(first, axis, work_each, compute);
    join(count.saturating_mul(work_across), share_first, || share_part(second, axis, work_each, compute));
}

/// The axis along which rows follow each other.
pub(super) const ROWS: Axis = Axis(0);
/// The axis along which columns follow each other.
pub(super) const COLUMNS: Axis = Axis(1);

/// Where to cut rows or columns of this number, each of which takes `work_each`; `None` if they are one piece.
pub(super) fn half(count: usize, work_each: usize) -> Option<usize> {
    let is_cut = count >= 2 * SIDE_MIN && count.saturating_mul(work_each) >= 2 * WORK_MIN;
    // Threads that write to one line of the cache slow each other down.
    is_cut.then(|| count / 2 / LINE_ELEMENTS * LINE_ELEMENTS)
}

/// Computes both, which together take `work`: at the same time, if that is worth it and the calling thread belongs to a pool with a thread
/// that is free.
pub(super) fn join<A: Send, B: Send>(
    work: usize,
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    // Outside of a pool, the library would start one with all cores.
    if work >= 2 * WORK_MIN && rayon_core::current_thread_index().is_some() {
        rayon_core::join(first, second)
    } else {
        (first(), second())
    }
}

/// The least work of a piece, in terms of a product: some 50 µs.
const WORK_MIN: usize = 1 << 22;
/// The fewest rows or columns of a piece: with fewer, the kernel is slower.
const SIDE_MIN: usize = 64;
/// Elements of a line of the cache.
const LINE_ELEMENTS: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ndarray::Array2;

    use super::*;

    /// The pieces of a matrix, sorted, after a check that they cover it once.
    fn pieces(rows: usize, columns: usize, work_each: usize) -> Vec<[usize; 4]> {
        let mut values = Array2::zeros((rows, columns));
        let found = Mutex::new(Vec::new());
        share(values.view_mut(), work_each, &|piece, mut part| {
            assert_eq!(part.shape(), piece.shape());
            part += 1.0;
            let Piece { rows, columns } = piece;
            found.lock().unwrap().push([rows.start, rows.end, columns.start, columns.end]);
        });
        assert!(values.iter().all(|&value| value == 1.0), "{rows} x {columns}");
        let mut found = found.into_inner().unwrap();
        found.sort_unstable();
        found
    }

    #[test]
    fn a_small_product_is_one_piece() {
        assert_eq!(pieces(64, 128, 784), [[0, 64, 0, 128]]);
        assert_eq!(pieces(256, 10, 128), [[0, 256, 0, 10]]);
        assert_eq!(pieces(0, 0, 9), [[0; 4]]);
        assert_eq!(pieces(1, 127, 1 << 40), [[0, 1, 0, 127]]);
    }

    #[test]
    fn a_large_matrix_is_cut_by_columns_and_a_narrow_one_by_rows() {
        let columns = |bounds: [usize; 2]| [0, 256, bounds[0], bounds[1]];
        assert_eq!(pieces(256, 200, 1024).as_slice(), [[0, 96], [96, 200]].map(columns));
        assert_eq!(pieces(300, 10, 1 << 20).len(), 4);
        assert_eq!(pieces(1024, 1024, usize::MAX).len(), 16);
        assert!(pieces(517, 301, 4000).iter().all(|piece| piece[3] - piece[2] >= SIDE_MIN));
    }

    #[test]
    fn pieces_are_the_same_for_any_number_of_threads() {
        // Work bounds the number of pieces of the first, their width that of the second.
        for (rows, columns, work_each) in [(64, 2000, 700), (517, 1001, 256), (900, 30, 5000)] {
            let expected = pieces(rows, columns, work_each);
            assert!(expected.len() > 4, "{expected:?}");
            for threads in 1..5 {
                let pool = rayon_core::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let found = pool.install(|| pieces(rows, columns, work_each));
                assert_eq!(found, expected, "{threads} threads");
            }
        }
    }
}
