//! The row index: the places of a chunk's rows, in the order in which they were first stored.
//!
//! A table may declare far more rows than ever exist, so a row is found by its index in a tree. Once a quarter of a chunk's rows exist, an
//! array with a place for each possible row takes less memory, and one access.

use std::collections::BTreeMap;
use std::ops::Range;

use peergrad_protocol::table::Row;

/// The places of one chunk's rows.
#[derive(Clone, Debug)]
pub(super) struct RowIndex {
    /// The rows that the chunk may have.
    rows: Range<Row>,
    /// The place of each row that exists.
    slots: Slots,
}

#[derive(Clone, Debug)]
enum Slots {
    Sparse(BTreeMap<Row, u32>),
    /// The place of each row of the chunk, by row.
    Dense(Vec<u32>),
}

impl RowIndex {
    /// The index of a chunk with these rows, of which none exists yet.
    pub(super) fn new(rows: Range<Row>) -> Self {
        Self { rows, slots: Slots::Sparse(BTreeMap::new()) }
    }

    /// The place of a row; `None` if it does not exist.
    pub(super) fn get(&self, row: Row) -> Option<usize> {
        let place = match &self.slots {
            Slots::Sparse(places) => places.get(&row).copied(),
            Slots::Dense(places) => places.get((row - self.rows.start) as usize).copied().filter(is_there),
        };
        place.map(|place| place as usize)
    }

    /// The place of a row. A row that does not exist is created at `next`, which is the number of existing rows.
    pub(super) fn get_or_insert(&mut self, row: Row, next: usize) -> usize {
        let place = match &mut self.slots {
            Slots::Sparse(places) => places.entry(row).or_insert_with(|| narrow(next)),
            Slots::Dense(places) => {
                let place = &mut places[(row - self.rows.start) as usize];
                if !is_there(place) {
                    *place = narrow(next);
                }
                place
            }
        };
        let place = *place as usize;
        if let Slots::Sparse(places) = &self.slots
            && places.len() as u64 * 4 >= self.rows.end - self.rows.start
        {
            self.widen();
        }
        place
    }

    fn widen(&mut self) {
        let mut places = vec![VACANT; (self.rows.end - self.rows.start) as usize];
        for (row, place) in self.iter() {
            places[(row - self.rows.start) as usize] = narrow(place);
        }
        self.slots = Slots::Dense(places);
    }

    /// The existing rows in the order of their indices, and their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Row, usize)> {
        self.range(self.rows.clone())
    }

    /// The existing rows of a range in the order of their indices, and their places.
    pub(super) fn range(&self, rows: Range<Row>) -> impl Iterator<Item = (Row, usize)> {
        let (few, many) = match &self.slots {
            Slots::Sparse(places) => (Some(places.range(rows.clone())), None),
            Slots::Dense(places) => {
                let [start, end] = [rows.start, rows.end].map(|row| (row - self.rows.start) as usize);
                (None, Some(&places[start..end]))
            }
        };
        let few = few.into_iter().flatten().map(|(row, place)| (*row, *place));
        let many = many.into_iter().flat_map(move |places| rows.clone().zip(places.iter().copied()));
        few.chain(many.filter(|(_, place)| is_there(place))).map(|(row, place)| (row, place as usize))
    }
}

fn is_there(place: &u32) -> bool {
    *place != VACANT
}

fn narrow(place: usize) -> u32 {
    u32::try_from(place).ok().filter(is_there).expect("a chunk's rows that are there fit into memory")
}

const VACANT: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_whether_there_are_few_or_many() {
        let mut places = RowIndex::new(100..140);
        let mut expected = BTreeMap::new();
        // 7 and 40 are coprime, so each row comes once.
        for next in 0..40 {
            let row = 100 + next as Row * 7 % 40;
            assert_eq!(places.get(row), None);
            assert_eq!(places.get_or_insert(row, next), next);
            assert_eq!(places.get_or_insert(row, next + 1), next);
            expected.insert(row, next);
            assert!(places.iter().eq(expected.iter().map(|(row, next)| (*row, *next))));
            assert!(expected.iter().all(|(row, next)| places.get(*row) == Some(*next)));
            let part: Vec<_> = expected.range(110..120).map(|(row, next)| (*row, *next)).collect();
            assert_eq!(places.range(110..120).collect::<Vec<_>>(), part);
            assert_eq!(matches!(places.slots, Slots::Dense(_)), next >= 9);
        }
    }
}
