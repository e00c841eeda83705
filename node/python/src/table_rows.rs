//! The rows that a user names: any of a table, in any order, and some more than once. The core reads and adds to sets of rows.

use std::ops::Range;

use peergrad::prelude::{Row, RowSet};

/// Rows that a user names, as a set.
pub(crate) struct NamedRows {
    /// The distinct rows.
    pub(crate) set: RowSet,
    /// For each named row, its place in the set; `None` if the named rows are the set, in order.
    places: Option<Vec<usize>>,
}

impl NamedRows {
    /// The rows with these numbers of a table, which has the rows `table` of all tables. Sorts them: O(n log n).
    ///
    /// # Errors
    /// The number of a row that the table does not have.
    pub(crate) fn of(named: &[i64], table: &Range<Row>) -> Result<Self, i64> {
        let row = |number: i64| {
            let inside = u64::try_from(number).ok().filter(|number| *number < table.end - table.start);
            inside.map(|inside| table.start + inside).ok_or(number)
        };
        let rows = named.iter().map(|number| row(*number)).collect::<Result<Vec<_>, _>>()?;
        if rows.is_sorted_by(|row, next| row < next) {
            return Ok(Self { set: rows.into_iter().collect(), places: None });
        }
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|at| rows[*at]);
        let (mut distinct, mut places) = (Vec::new(), vec![0; rows.len()]);
        for at in order {
            if distinct.last() != Some(&rows[at]) {
                distinct.push(rows[at]);
            }
            places[at] = distinct.len() - 1;
        }
        Ok(Self { set: distinct.into_iter().collect(), places: Some(places) })
    }

    /// From the values of the set, (rows of the set, width), to those of the named rows, (named rows, width).
    pub(crate) fn spread(&self, values: Vec<f32>, width: usize) -> Vec<f32> {
        match &self.places {
            None => values,
            Some(places) => {
                places.iter().flat_map(|place| &values[place * width..][..width]).copied().collect()
            }
        }
    }

    /// The opposite: sums the values of rows that are named more than once, in the order in which they are named.
    pub(crate) fn sum(&self, values: Vec<f32>, width: usize) -> Vec<f32> {
        let Some(places) = &self.places else { return values };
        let mut sums = vec![0.0; self.set.len() * width];
        for (place, added) in places.iter().zip(values.chunks_exact(width)) {
            let sum = &mut sums[place * width..][..width];
            sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
        }
        sums
    }
}
