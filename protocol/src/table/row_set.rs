//! A set of row indices, as ranges.

use std::ops::Range;

use super::Row;
use crate::limits::{TABLE_MESSAGE_ROWS_MAX, TABLE_ROWS_MAX};
use crate::wire::codec::{Decode, Encode};

/// Row indices, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RowSet {
    pub(super) runs: Vec<Run>,
}

/// A range of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Run {
    /// Indices between the end of the range before, or 0, and the first row of this one.
    pub(super) skip: u64,
    pub(super) count: u32,
}

/// A row set to which rows are appended.
#[derive(Clone, Debug, Default)]
pub struct RowSetBuilder {
    runs: Vec<Run>,
    /// The row after the last one.
    end: Row,
}

impl RowSetBuilder {
    /// Appends the rows of a range.
    ///
    /// # Panics
    /// If they are not behind the rows so far, or are more than a `u32` counts.
    pub fn push(&mut self, range: Range<Row>) {
        if range.is_empty() {
            return;
        }
        assert!(range.start >= self.end, "row indices ascend");
        let count = u32::try_from(range.end - range.start).expect("a range of rows fits a run");
        let is_next = |run: &&mut Run| range.start == self.end && run.count <= u32::MAX - count;
        match self.runs.last_mut().filter(is_next) {
            Some(run) => run.count += count,
            None => self.runs.push(Run { skip: range.start - self.end, count }),
        }
        self.end = range.end;
    }

    /// The set of the rows so far.
    #[must_use]
    pub fn finish(self) -> RowSet {
        RowSet { runs: self.runs }
    }
}

impl From<Range<Row>> for RowSet {
    fn from(rows: Range<Row>) -> Self {
        Self::range(rows)
    }
}

impl RowSet {
    /// The rows of a range.
    ///
    /// # Panics
    /// If the range has more rows than a `u32` counts.
    #[must_use]
    pub fn range(range: Range<Row>) -> Self {
        std::iter::once(range).collect()
    }

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.count as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// An estimate of the memory that the set takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&self.runs[..])
    }

    /// The indices, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Row> + '_ {
        self.ranges().flatten()
    }

    /// The indices as ranges, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = Range<Row>> + '_ {
        self.runs.iter().scan(0, |end, run| {
            let start = *end + run.skip;
            *end = start + u64::from(run.count);
            Some(start..*end)
        })
    }

    /// The first row and the last row; `None` for an empty set.
    #[must_use]
    pub fn bounds(&self) -> Option<(Row, Row)> {
        Some((self.ranges().next()?.start, self.ranges().last()?.end - 1))
    }

    /// The rows that are not in `others`; `None` if `others` is no subset.
    #[must_use]
    pub fn without(&self, others: &Self) -> Option<Self> {
        let (mut others, mut left) = (others.ranges().peekable(), Vec::new());
        for mut range in self.ranges() {
            while let Some(other) = others.next_if(|other| other.start < range.end) {
                if other.start < range.start || other.end > range.end {
                    return None;
                }
                left.push(range.start..other.start);
                range.start = other.end;
            }
            left.push(range);
        }
        others.next().is_none().then(|| left.into_iter().collect())
    }

    /// Whether the set is in its one form and within the limit.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let (mut end, mut total) = (0_u64, 0);
        self.runs.iter().enumerate().all(|(index, run)| {
            end = end.saturating_add(run.skip).saturating_add(u64::from(run.count));
            total += u64::from(run.count);
            let is_apart = index == 0 || run.skip > 0;
            run.count > 0 && is_apart && end <= TABLE_ROWS_MAX && total <= TABLE_MESSAGE_ROWS_MAX as u64
        })
    }
}

impl FromIterator<Range<Row>> for RowSet {
    /// # Panics
    /// If the ranges do not ascend, or one of them has more rows than a `u32` counts.
    fn from_iter<I: IntoIterator<Item = Range<Row>>>(ranges: I) -> Self {
        let mut rows = RowSetBuilder::default();
        ranges.into_iter().for_each(|range| rows.push(range));
        rows.finish()
    }
}

impl FromIterator<Row> for RowSet {
    /// # Panics
    /// If the indices do not ascend.
    fn from_iter<I: IntoIterator<Item = Row>>(rows: I) -> Self {
        rows.into_iter().map(|row| row..row + 1).collect()
    }
}
