//! The survey of a CSV file: what the cells of each column look like, over many rows.
//!
//! From it the founder of a run infers which columns hold numbers, how these are written, whether there is a header, and which column may be
//! the label.

use std::collections::BTreeSet;

use csv::ByteRecord;

use super::cells::{reader, shortened};
use super::column_names::{named_label, names_in};
use super::dialect::Delimiter;
use super::limits::COLUMNS_MAX;
use super::notation::{Decimal, Notation, boolean_pair, is_missing, is_numeric};

/// How many bytes of a file are surveyed; at least two rows are.
const SURVEYED_BYTES: u64 = 16 << 20;
/// How many different widths of rows are counted.
const WIDTHS_COUNTED: usize = 100;
/// The most distinct values by which a column is taken for classes.
const CLASSES_MAX: usize = 30;

/// What the rows below the first one look like, and whether that one is a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Survey {
    /// The cells of the first row.
    pub(super) first: ByteRecord,
    /// Whether the first row names the columns.
    pub(super) header: bool,
    /// One for each cell of the first row, over all rows of data; at most [`COLUMNS_MAX`], since a wider table is refused.
    pub(super) columns: Vec<ColumnSurvey>,
    /// The number of cells that most rows have, if no other row is as wide as the first one.
    pub(super) usual_width: Option<usize>,
}

/// What the cells of one column look like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ColumnSurvey {
    /// Cells.
    pub(super) rows: usize,
    /// Cells that are empty or stand for a missing number.
    pub(super) missing: usize,
    plain: usize,
    /// Plain numbers that are 0 or 1.
    zeros_and_ones: usize,
    /// Amounts that are not plain.
    amounts: usize,
    percents: usize,
    booleans: usize,
    /// Each pair of words that a boolean cell was of.
    pairs: BTreeSet<usize>,
    /// The first amount that is not plain, the first percentage, or the first boolean word.
    pub(super) example: Option<Vec<u8>>,
    /// The first cell that is in none of these notations.
    first_text: Option<String>,
    distinct: Distinct,
}

/// The distinct texts of a column that may be classes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Distinct {
    /// These, at most [`CLASSES_MAX`].
    Few(BTreeSet<Vec<u8>>),
    /// More, or fractions, which are no classes.
    Many,
}

impl Default for Distinct {
    fn default() -> Self {
        Self::Few(BTreeSet::new())
    }
}

impl Distinct {
    fn add(&mut self, text: &[u8]) {
        let Self::Few(texts) = self else { return };
        if !texts.contains(text) {
            texts.insert(text.to_vec());
        }
        if texts.len() > CLASSES_MAX {
            *self = Self::Many;
        }
    }
}

impl Survey {
    /// Surveys `table`: text without the lines before the table, with single blanks. `header` is what the user says.
    pub(super) fn take(
        table: &[u8],
        delimiter: Delimiter,
        decimal: Decimal,
        header: Option<bool>,
        names: &[&str],
    ) -> Option<Self> {
        let mut rows = reader(table, delimiter.byte());
        let mut first = ByteRecord::new();
        if table.trim_ascii().is_empty() || !rows.read_byte_record(&mut first).unwrap_or(false) {
            return None;
        }
        let mut columns = vec![ColumnSurvey::default(); first.len().min(COLUMNS_MAX)];
        let (mut row, mut count, mut widths) = (ByteRecord::new(), 1, vec![(first.len(), 1_usize)]);
        while rows.read_byte_record(&mut row).unwrap_or(false) {
            count += 1;
            match widths.iter().position(|&(width, _)| width == row.len()) {
                Some(index) => widths[index].1 += 1,
                None if widths.len() < WIDTHS_COUNTED => widths.push((row.len(), 1)),
                None => {}
            }
            if row.len() == first.len() {
                columns.iter_mut().zip(&row).for_each(|(column, cell)| column.add(cell, decimal));
            }
            if count > 2 && row.position().is_some_and(|position| position.byte() > SURVEYED_BYTES) {
                break;
            }
        }
        let is_alone = widths[0].1 == 1;
        let usual = widths
            .iter()
            .copied()
            .max_by_key(|&(_, count)| count)
            .filter(|&(_, count)| is_alone && count > 1);
        let usual_width = usual.map(|(width, _)| width);
        let mut survey = Self { first, header: false, columns, usual_width };
        survey.header = header.unwrap_or_else(|| survey.has_header(names));
        if !survey.header {
            let first = survey.first.clone();
            survey.columns.iter_mut().zip(&first).for_each(|(column, cell)| column.add(cell, decimal));
        }
        Some(survey)
    }

    /// Whether the first row names the columns: a word stands above numbers, all `names` are in it, it counts the columns, or it names a
    /// label and is the only row.
    fn has_header(&self, names: &[&str]) -> bool {
        let trimmed: BTreeSet<&[u8]> = self.first.iter().map(<[u8]>::trim_ascii).collect();
        if !names.is_empty() && names.iter().all(|name| trimmed.contains(name.as_bytes())) {
            return true;
        }
        let is_alone = self.columns.iter().all(|column| column.rows == 0);
        if is_alone && named_label(&names_in(&self.first)).is_some() {
            return true;
        }
        let is_above_numbers = |(cell, column): (&[u8], &ColumnSurvey)| {
            is_name(cell) && column.is_numbers() && (column.booleans == 0 || boolean_pair(cell).is_none())
        };
        self.first.iter().zip(&self.columns).any(is_above_numbers) || self.counts_columns()
    }

    /// Whether the first row is `0, 1, 2, ...`, with a name in the place of the last number or not, as some programs write it.
    fn counts_columns(&self) -> bool {
        const CELLS_MIN: usize = 4;
        let is_unnamed = self.first.get(0).is_some_and(|cell| cell.trim_ascii().is_empty());
        let cells: Vec<&[u8]> =
            self.first.iter().skip(usize::from(is_unnamed)).map(<[u8]>::trim_ascii).collect();
        let has_rows = self.columns.first().is_some_and(|column| column.rows > 0);
        let last_is_name = cells.last().is_some_and(|cell| is_name(cell));
        let counted = if last_is_name { &cells[..cells.len() - 1] } else { &cells[..] };
        has_rows
            && cells.len() >= CELLS_MIN
            && (0..).zip(counted).all(|(number, cell): (usize, _)| *cell == number.to_string().as_bytes())
    }
}

/// Whether a cell of the first row can be a column's name and nothing else.
fn is_name(cell: &[u8]) -> bool {
    !is_numeric(cell) && !is_missing(cell)
}

impl ColumnSurvey {
    fn add(&mut self, cell: &[u8], decimal: Decimal) {
        self.rows += 1;
        self.distinct.add(cell.trim_ascii());
        if is_missing(cell) {
            self.missing += 1;
            return;
        }
        if let Some(value) = Notation::Plain.read(cell, decimal) {
            self.plain += 1;
            self.zeros_and_ones += usize::from(value == 0.0 || value == 1.0);
            if value.trunc() != value {
                self.distinct = Distinct::Many;
            }
            return;
        }
        if let Some(pair) = boolean_pair(cell) {
            self.booleans += 1;
            self.pairs.insert(pair);
        } else if Notation::Percent.read(cell, decimal).is_some() {
            self.percents += 1;
        } else if Notation::Amount.read(cell, decimal).is_some() {
            self.amounts += 1;
        } else {
            self.first_text.get_or_insert_with(|| shortened(cell));
            return;
        }
        self.example.get_or_insert_with(|| cell.trim_ascii().to_vec());
    }

    /// Cells that are not missing.
    fn present(&self) -> usize {
        self.rows - self.missing
    }

    /// How the numbers of the column are written; `None` if it holds text, or nothing, or too few numbers.
    pub(super) fn notation(&self) -> Option<Notation> {
        let present = self.present();
        let numbers = self.plain + self.amounts;
        if present == 0 || self.missing > self.rows / 2 {
            None
        } else if self.booleans > 0 && self.booleans + self.zeros_and_ones == present && self.pairs.len() == 1
        {
            Some(Notation::Boolean)
        } else if self.percents * 2 > present {
            Some(Notation::Percent)
        } else if numbers * 2 > present {
            Some(if self.amounts > 0 { Notation::Amount } else { Notation::Plain })
        } else {
            None
        }
    }

    /// Why the column cannot be a feature, if it cannot.
    pub(super) fn unusable(&self) -> Option<String> {
        if self.notation().is_some() || self.rows == 0 {
            return None;
        }
        Some(match (&self.first_text, self.present()) {
            (_, 0) => "empty".to_owned(),
            (Some(text), _) if self.plain * 2 < self.present() => format!("text, such as `{text}`"),
            _ if self.missing > self.rows / 2 => {
                format!("no number in {} of {} rows", self.missing, self.rows)
            }
            (Some(text), _) => format!("text, such as `{text}`"),
            (None, _) => "numbers in several notations".to_owned(),
        })
    }

    /// Whether the column has numbers, in at least half of the cells that are not missing.
    fn is_numbers(&self) -> bool {
        let numbers = self.plain + self.amounts + self.percents + self.booleans;
        numbers > 0 && numbers * 2 >= self.present()
    }

    /// Whether the column can be classes with numbers: few whole numbers without a gap, from 0 or 1; or -1 and 1.
    pub(super) fn is_numbered_classes(&self) -> bool {
        let Some(values) = self.whole_values() else { return false };
        let (first, last) = (values[0], values[values.len() - 1]);
        let has_gap = last - first + 1 != values.len() as i64;
        values == [-1, 1] || (values.len() > 1 && (0..=1).contains(&first) && !has_gap)
    }

    /// Whether the column can be classes with names: few texts, each twice on average.
    pub(super) fn is_named_classes(&self) -> bool {
        let Distinct::Few(texts) = &self.distinct else { return false };
        let has_numbers = self.plain + self.amounts + self.percents + self.missing > 0;
        !has_numbers && texts.len() > 1 && texts.len() * 2 <= self.rows
    }

    /// Whether the column holds whole numbers, few enough to be classes.
    pub(super) fn is_whole(&self) -> bool {
        self.whole_values().is_some()
    }

    /// The distinct values, ascending and at least one, if they are few whole numbers that each occur twice on average.
    fn whole_values(&self) -> Option<Vec<i64>> {
        let Distinct::Few(texts) = &self.distinct else { return None };
        if texts.is_empty() || texts.len() * 2 > self.rows {
            return None;
        }
        let whole = |text: &Vec<u8>| {
            let value = Notation::Plain.read(text, Decimal::Point)?;
            (value.trunc() == value && value.abs() < 1e15).then_some(value as i64)
        };
        let values: BTreeSet<i64> = texts.iter().map(whole).collect::<Option<_>>()?;
        Some(values.into_iter().collect())
    }
}
