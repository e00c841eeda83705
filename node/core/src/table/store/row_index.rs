//! Where the rows of a chunk are, in the order in which they were first added to.
//!
//! A table may have room for far more rows than are ever there, so a row is looked up by its name in a tree; but once a quarter of a
//! chunk's rows are there, a place for each that there can be takes less memory, and one look.

use std::collections::BTreeMap;
use std::ops::Range;

use peergrad_protocol::table::Row;

/// Rows of one chunk by name.
#[derive(Clone, Debug)]
pub(super) struct RowIndex {
    rows: Range<Row>,
    slots: Slots,
}

#[derive(Clone, Debug)]
enum Slots {
    Sparse(BTreeMap<Row, u32>),
    /// By row, from the first one of the chunk on.
    Dense(Vec<u32>),
}

impl RowIndex {
    /// Those of a chunk of these rows, of which none is there.
    pub(super) fn new(rows: Range<Row>) -> Self {
        Self { rows, slots: Slots::Sparse(BTreeMap::new()) }
    }

    /// Where a row of the chunk is, if it is there.
    pub(super) fn get(&self, row: Row) -> Option<usize> {
        let place = match &self.slots {
            Slots::Sparse(places) => places.get(&row).copied(),
            Slots::Dense(places) => places.get((row - self.rows.start) as usize).copied().filter(is_there),
        };
        place.map(|place| place as usize)
    }

    /// Where a row of the chunk is; at `next`, as many as there are, if it was not there.
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

    /// The rows that are there, in the order of their indices, and where they are.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Row, usize)> {
        self.range(self.rows.clone())
    }

    /// Those of a range of the chunk's rows that are there, in the order of their indices, and where they are.
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
        // 7 and 40 have nothing in common: each row once.
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
