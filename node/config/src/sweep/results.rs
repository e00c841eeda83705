//! Results: the rows of a sweep's table, one for each job.
//!
//! | columns | contents |
//! |---|---|
//! | 0 | how often the result was added: 1 once the job is done |
//! | 1, 2, 3 | loss, accuracy, whether the training diverged |
//! | 4, 5 | the turn whose worker trains the job: epoch + 1 and sample; zero before that, and once the job is done |
//!
//! A claim and the result are additions to the same row, so a row that is lost can be claimed again. The row of a job that is done depends on
//! its result alone. So the last table has the same bits in every run.

use std::borrow::Cow;
use std::cmp::Ordering;

use peergrad_core::table::{
    ApplyMode, Init, ReadPolicy, Row, RowChange, RowRule, RowSet, Rows, Table, TableRule, TableSpec,
};

/// The numbers in a row.
pub const ROW_WIDTH: usize = 6;
/// The columns of a row that say whose turn a job is.
const TURN: std::ops::Range<usize> = 4..6;

/// What a row says of its job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JobState {
    /// Nobody trains it.
    Open,
    /// It is trained in this turn.
    Claimed(Turn),
    /// It is done.
    Done(TrialResult),
}

/// A sample of the dealt data, which is a worker's turn to train a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The epoch.
    pub epoch: u64,
    /// The index of the sample.
    pub sample: u32,
}

/// How well a trial did on held-out rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialResult {
    /// The mean loss; 0 if the training diverged.
    pub loss: f32,
    /// The share that is right, 0 to 1; `None` without classes.
    pub accuracy: Option<f32>,
    /// Whether its loss was not finite.
    pub diverged: bool,
}

impl TrialResult {
    /// The better one first: by accuracy, then by loss. A training that diverged is the worst.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let key = |result: &Self| (result.diverged, -result.accuracy.unwrap_or(0.0), result.loss);
        let ((one, accuracy, loss), (two, than, other_loss)) = (key(self), key(other));
        one.cmp(&two).then(accuracy.total_cmp(&than)).then(loss.total_cmp(&other_loss))
    }

    /// What to add to the row of a job that is done.
    #[must_use]
    pub fn addition(&self) -> [f32; ROW_WIDTH] {
        let diverged = f32::from(u8::from(self.diverged));
        [1.0, self.loss, self.accuracy.unwrap_or(NO_ACCURACY), diverged, 0.0, 0.0]
    }
}

impl Turn {
    /// What to add to the row of a job that this turn shall train.
    #[must_use]
    pub fn addition(self) -> [f32; ROW_WIDTH] {
        [0.0, 0.0, 0.0, 0.0, (self.epoch + 1) as f32, self.sample as f32]
    }
}

impl JobState {
    /// What a row says.
    ///
    /// - `row`: ([`ROW_WIDTH`]).
    #[must_use]
    pub fn of_row(row: &[f32]) -> Self {
        let count = row[0];
        if count >= 1.0 {
            let accuracy = Some(row[2] / count).filter(|accuracy| *accuracy >= 0.0);
            return Self::Done(TrialResult { loss: row[1] / count, accuracy, diverged: row[3] > 0.0 });
        }
        match &row[TURN] {
            [epoch, sample] if *epoch > 0.0 => {
                Self::Claimed(Turn { epoch: *epoch as u64 - 1, sample: *sample as u32 })
            }
            _ => Self::Open,
        }
    }
}

/// The table, for so many jobs.
#[must_use]
pub fn table_spec(jobs_max: usize) -> TableSpec {
    let rule = RowRule { name: "claim-and-result", moments: 0, apply: change_row, combine: join };
    let table = Table {
        name: Cow::Borrowed(TABLE),
        rows: jobs_max as u64,
        width: ROW_WIDTH,
        vectors: 1,
        rule: TableRule::Custom(rule),
        apply_mode: ApplyMode::Immediate,
        init: Init::Parameters,
    };
    TableSpec::new(vec![table], ReadPolicy::Unbounded)
}

/// The owner's rule: results are summed, and of claims the first one stays.
fn change_row(RowChange { values, added, .. }: RowChange<'_>) {
    if added[0] > 0.0 {
        values.iter_mut().zip(&added[..TURN.start]).for_each(|(value, added)| *value += added);
        values[TURN].fill(0.0);
    } else if values[0] == 0.0 && values[TURN.start] == 0.0 {
        values[TURN].copy_from_slice(&added[TURN]);
    }
}

/// Joins two additions of a worker to one row.
fn join(earlier: &mut [f32], more: &[f32]) {
    earlier.iter_mut().zip(more).for_each(|(earlier, more)| *earlier += more);
}

/// The one row that is added to for a job.
#[must_use]
pub fn row_of(job: usize, addition: [f32; ROW_WIDTH]) -> Rows {
    let row = job as Row;
    Rows { indices: RowSet::range(row..row + 1), values: addition.to_vec() }
}

/// The state of each of so many jobs, from the rows that are not zero.
#[must_use]
pub fn states(found: &Rows, jobs_max: usize) -> Vec<JobState> {
    let mut states = vec![JobState::Open; jobs_max];
    for (row, values) in found.indices.iter().zip(found.values.chunks_exact(ROW_WIDTH)) {
        states[row as usize] = JobState::of_row(values);
    }
    states
}

/// The table's name.
pub const TABLE: &str = "trials";
/// Stands for the accuracy of a model without classes.
const NO_ACCURACY: f32 = -1.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn add(values: &mut [f32], added: [f32; ROW_WIDTH]) {
        change_row(RowChange { values, moments: &mut [], added: &added, clock: 0, changes: 0 });
    }

    #[test]
    fn a_result_survives_its_row() {
        for result in [
            TrialResult { loss: 0.25, accuracy: Some(0.75), diverged: false },
            TrialResult { loss: 3.5, accuracy: None, diverged: false },
            TrialResult { loss: 0.0, accuracy: None, diverged: true },
        ] {
            let mut row = [0.0; ROW_WIDTH];
            add(&mut row, result.addition());
            assert_eq!(JobState::of_row(&row), JobState::Done(result));
        }
        assert_eq!(JobState::of_row(&[0.0; ROW_WIDTH]), JobState::Open);
    }

    #[test]
    fn the_first_claim_stays_until_the_result_and_leaves_no_trace() {
        let result = TrialResult { loss: 0.5, accuracy: Some(0.5), diverged: false };
        let mut row = [0.0; ROW_WIDTH];
        let turn = |sample| Turn { epoch: 0, sample };
        for sample in [7, 9] {
            add(&mut row, turn(sample).addition());
            assert_eq!(JobState::of_row(&row), JobState::Claimed(turn(7)));
        }
        add(&mut row, result.addition());
        add(&mut row, turn(9).addition());
        assert_eq!(row, result.addition());
    }

    #[test]
    fn missing_rows_are_open_jobs() {
        let claim = Turn { epoch: 3, sample: 65_535 }.addition();
        let found = Rows { indices: RowSet::range(2..3), values: claim.to_vec() };
        let states = states(&found, 4);
        assert_eq!(states[2], JobState::Claimed(Turn { epoch: 3, sample: 65_535 }));
        assert_eq!([states[0], states[1], states[3]], [JobState::Open; 3]);
    }
}
