//! Vectors: what owners compute with the vectors of a chunk.

use std::collections::BTreeSet;

use peergrad_protocol::table::{Map, Reduce, Row};

use super::{StoredChunk, TableStore};

impl TableStore {
    /// Carries out `map` on the vectors of a chunk. Returns the rows that have changed.
    ///
    /// Sums are computed in 64 bits. A row stays as it is if one of its numbers would overflow.
    ///
    /// # Panics
    /// If the chunk is not stored here, or a vector does not exist.
    pub fn map(&mut self, chunk: usize, map: &Map) -> BTreeSet<Row> {
        let table = self.layout.table_of(chunk);
        let (width, vectors, start) = (table.width, table.vectors as u64, self.layout.range(chunk).start);
        let chunk = self.chunk_mut(chunk).expect("what is changed is here");
        let (mut changed, mut sums) = (BTreeSet::new(), vec![0.0_f64; width]);
        for first in chunk.first_rows(start, vectors) {
            for assignment in &map.assignments {
                sums.fill(0.0);
                for (vector, factor) in &assignment.terms {
                    let Some(place) = chunk.row_index.get(first + u64::from(*vector)) else { continue };
                    let numbers = &chunk.row_blocks.row(place)[..width];
                    let terms = sums.iter_mut().zip(numbers);
                    terms.for_each(|(sum, number)| *sum += f64::from(*factor) * f64::from(*number));
                }
                let row = first + u64::from(assignment.to);
                let is_zero = || sums.iter().all(|sum| *sum as f32 == 0.0);
                if !sums.iter().all(|sum| (*sum as f32).is_finite())
                    || (chunk.row_index.get(row).is_none() && is_zero())
                {
                    continue;
                }
                let place = chunk.place(row);
                let numbers = &mut chunk.row_blocks.row_mut(place)[..width];
                numbers.iter_mut().zip(&sums).for_each(|(number, sum)| *number = *sum as f32);
                changed.insert(row);
            }
        }
        changed
    }

    /// The numbers that `reduce` computes from vectors of a chunk, in the order of the vectors' numbers.
    ///
    /// # Panics
    /// If the chunk is not stored here, or a vector does not exist.
    #[must_use]
    pub fn reduce(&self, chunk: usize, reduce: &Reduce) -> Vec<f64> {
        let table = self.layout.table_of(chunk);
        let (width, vectors, start) = (table.width, table.vectors as u64, self.layout.range(chunk).start);
        let chunk = self.chunk(chunk).expect("what is reduced is here");
        let mut results = vec![0.0; reduce.count()];
        for first in chunk.first_rows(start, vectors) {
            let row = |vector: u32| {
                let place = chunk.row_index.get(first + u64::from(vector));
                place.map_or(&[][..], |place| &chunk.row_blocks.row(place)[..width])
            };
            match reduce {
                Reduce::Dot(one, other) => results[0] += dot(row(*one), row(*other)),
                Reduce::L1Norm(vector) => {
                    results[0] += row(*vector).iter().map(|number| f64::from(number.abs())).sum::<f64>();
                }
                Reduce::NonzeroCount(vector) => {
                    results[0] += row(*vector).iter().filter(|number| **number != 0.0).count() as f64;
                }
                Reduce::Gram(named) => {
                    let rows: Vec<&[f32]> = named.iter().map(|vector| row(*vector)).collect();
                    let pairs =
                        (0..rows.len()).flat_map(|one| (one..rows.len()).map(move |other| (one, other)));
                    for (result, (one, other)) in results.iter_mut().zip(pairs) {
                        *result += dot(rows[one], rows[other]);
                    }
                }
            }
        }
        results
    }
}

impl StoredChunk {
    /// For each part of the vectors of which a row exists, the index of its first row, ascending. The chunk's first row is `start`.
    fn first_rows(&self, start: Row, vectors: u64) -> Vec<Row> {
        let mut rows: Vec<Row> =
            self.row_index.iter().map(|(row, _)| row - (row - start) % vectors).collect();
        rows.dedup();
        rows
    }
}

/// The sum of the products of two rows, either of which is empty if it is zero.
fn dot(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(one, other)| f64::from(*one) * f64::from(*other)).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peergrad_protocol::table::{RowSet, Rows};

    use super::*;
    use crate::table::{Table, TableLayout};

    /// Three vectors of 70 numbers, four in a row, of which the last is shorter; in a table behind another one.
    fn store() -> (TableStore, Vec<usize>) {
        let tables = vec![Table::additive("first", 40, 1), Table::of_vectors("vectors", 3, 70, 4)];
        let layout = Arc::new(TableLayout::new(tables));
        let chunks: Vec<usize> = layout.chunks("vectors").unwrap().collect();
        let mut store = TableStore::new(Arc::clone(&layout));
        for chunk in &chunks {
            store.create_chunk(*chunk, &Rows::default());
        }
        // Vector 0 counts from 1, vector 1 is 2 in every other row, and vector 2 is zero.
        for (vector, number) in [(0, None), (1, Some(2.0))] {
            let rows = layout.vector_rows("vectors", vector).unwrap();
            for (place, row) in
                rows.iter().enumerate().filter(|(place, _)| number.is_none() || place % 2 == 0)
            {
                let value = |at: usize| number.unwrap_or((4 * place + at + 1) as f32);
                let values = (0..4).map(value).collect();
                store.add(layout.chunk_of(row), 0, &Rows { indices: RowSet::range(row..row + 1), values });
            }
        }
        (store, chunks)
    }

    fn reduce(store: &TableStore, chunks: &[usize], reduce: &Reduce) -> Vec<f64> {
        let mut sums = vec![0.0; reduce.count()];
        for chunk in chunks {
            let numbers = store.reduce(*chunk, reduce);
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        sums
    }

    #[test]
    fn reductions_are_over_all_numbers_of_a_vector() {
        let (store, chunks) = store();
        assert_eq!(reduce(&store, &chunks, &Reduce::L1Norm(0)), [72.0 * 73.0 / 2.0]);
        assert_eq!(reduce(&store, &chunks, &Reduce::NonzeroCount(1)), [36.0]);
        // The rows of every other place, twice.
        let dot: f64 = (0..9).flat_map(|place| (1..=4).map(move |at| f64::from(8 * place + at) * 2.0)).sum();
        assert_eq!(reduce(&store, &chunks, &Reduce::Dot(1, 0)), [dot]);
        let squares: f64 = (1..=72).map(|number| f64::from(number * number)).sum();
        assert_eq!(
            reduce(&store, &chunks, &Reduce::Gram(vec![1, 0, 2])),
            [144.0, dot, 0.0, squares, 0.0, 0.0]
        );
    }

    #[test]
    fn assignments_follow_each_other_and_create_only_rows_that_are_not_zero() {
        let (mut store, chunks) = store();
        let map = Map::axpy(0.5, 1, 0).then(2, vec![(0, 1.0), (1, -0.5)]).then(1, Vec::new());
        let changed: usize = chunks.iter().map(|chunk| store.map(*chunk, &map).len()).sum();
        assert_eq!(changed, 18 + 18 + 9, "vector 1 has only nine rows");
        assert_eq!(reduce(&store, &chunks, &Reduce::NonzeroCount(1)), [0.0]);
        assert_eq!(reduce(&store, &chunks, &Reduce::L1Norm(2)), [72.0 * 73.0 / 2.0]);
        assert_eq!(reduce(&store, &chunks, &Reduce::L1Norm(0)), [72.0 * 73.0 / 2.0 + 36.0]);
        let before = reduce(&store, &chunks, &Reduce::L1Norm(0));
        chunks.iter().for_each(|chunk| _ = store.map(*chunk, &Map::scale(f32::MAX, 0)));
        assert!(
            reduce(&store, &chunks, &Reduce::L1Norm(0))[0] >= before[0],
            "rows that overflow stay as they are"
        );
        assert!(reduce(&store, &chunks, &Reduce::L1Norm(0))[0].is_finite());
    }
}
