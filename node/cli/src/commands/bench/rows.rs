//! A worker that does nothing but read rows of a table and add to them.
//!
//! # How it works
//! A sample stands for one *operation*: a batch of rows, spread over the whole table, that is read, or added to, or both. An operation
//! is begun before the ones before it are over, but for so many: a read is over when its rows are here, an addition once it would
//! outlive its owner. Passes over the samples come in three parts:
//!
//! 1. [`FEW`] rows are added to, so that all buffers are as large as they will be.
//! 2. Every row is added to once, so that all of them are there.
//! 3. The work that is measured: each epoch has as many rows as the table.
//!
//! In the end each worker reads some rows and sees that every addition of all workers is in them once.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow::{Break, Continue};

use clap::{Args, ValueEnum};
use peergrad_core::program::context::{Clock, Context, Interrupted, Pending};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{ReadPolicy, Table, TableSpec};
use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{Row, RowSet, Rows};

/// What is done to how many rows.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct TableWorkload {
    /// Rows of the table.
    rows: u32,
    /// Numbers of a row.
    pub(super) width: u32,
    /// Rows of one operation.
    pub(super) batch: u32,
    pub(super) work: Work,
    /// Operations that a worker has under way.
    pub(super) in_flight: u32,
    /// Passes that are measured.
    pub(super) epochs: u32,
}

/// What an operation does to its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Work {
    Get,
    Add,
    Both,
}

shown_by_name!(Work);

impl Work {
    pub(super) fn reads(self) -> bool {
        self != Self::Add
    }

    pub(super) fn adds(self) -> bool {
        self != Self::Get
    }
}

impl TableWorkload {
    /// One whose table has at least so many rows: whole operations.
    pub(super) fn new(rows: u32, width: u32, batch: u32, work: Work, in_flight: u32, epochs: u32) -> Self {
        Self { rows: rows.max(2 * FEW).next_multiple_of(batch), width, batch, work, in_flight, epochs }
    }

    /// As the program of a peer is told.
    pub(super) fn label(&self) -> Vec<String> {
        let Self { rows, width, batch, work, in_flight, epochs } = self;
        let (before, after) = ([rows, width, batch], [in_flight, epochs]);
        [before.map(u32::to_string).to_vec(), vec![work.to_string()], after.map(u32::to_string).to_vec()]
            .concat()
    }

    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Operations that touch each row once.
    pub(super) fn operations(&self) -> u32 {
        self.rows / self.batch
    }

    /// The rows of an operation.
    fn indices(&self, operation: u32, among: u32) -> RowSet {
        let first = u64::from(operation) * u64::from(self.batch);
        let row = |index| (first + index) * stride(among) % u64::from(among);
        let rows: BTreeSet<Row> = (0..u64::from(self.batch)).map(row).collect();
        rows.into_iter().collect()
    }

    fn table_spec(&self) -> TableSpec {
        let table = Table::additive("bench", self.rows.into(), self.width as usize);
        TableSpec::new(vec![table], ReadPolicy::Unbounded)
    }

    pub(super) fn launch(self) -> ProgramFactory {
        let table_spec = self.table_spec();
        ProgramFactory::with_tables(
            move |_| table_spec.clone(),
            move |_| BenchWorker { shape: self, in_progress: VecDeque::new() },
        )
    }
}

/// Steps of this length visit all rows of a table, and neighbours lie far apart: a golden section, but for what it has in common with
/// the number of rows.
fn stride(rows: u32) -> u64 {
    let common = |mut one: u64, mut other: u64| {
        while other > 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let rows = u64::from(rows);
    let section = rows * 618 / 1000;
    (section..).find(|step| *step > 0 && common(*step, rows) == 1).expect("there are primes")
}

struct BenchWorker {
    shape: TableWorkload,
    in_progress: VecDeque<Operation>,
}

/// What is awaited before it is over.
#[derive(Default)]
struct Operation {
    read: Option<Pending<Vec<f32>>>,
    pushed: Option<Pending<()>>,
}

impl Program for BenchWorker {
    const NAME: &'static str = "bench of a table";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            self.wait_until_in_progress(0).await?;
            clock.finish();
            self.check(&clock).await?;
            return Ok(Break(()));
        }
        for &sample in &*clock.samples {
            self.wait_until_in_progress(self.shape.in_flight as usize - 1).await?;
            let operation = self.begin(&clock, sample);
            self.in_progress.push_back(operation);
        }
        // Where nothing was added, this says that the samples are done.
        let pushed = clock.push();
        if clock.samples.is_empty() {
            // There are none because others are not done with theirs, or because this worker is not.
            self.wait_until_in_progress(0).await?;
            pushed.await?;
        }
        let samples = clock.samples.len() as u64;
        clock.end(SampleStats { samples, loss: 0.0 });
        Ok(Continue(()))
    }
}

impl BenchWorker {
    fn begin(&self, clock: &Clock, sample: u32) -> Operation {
        let TableWorkload { rows, width, work, .. } = self.shape;
        let (among, reads, adds) = match clock.epoch {
            0 => (FEW, false, true),
            1 => (rows, false, true),
            _ => (rows, work.reads(), work.adds()),
        };
        let indices = self.shape.indices(sample, among);
        let read = reads.then(|| clock.get(indices.clone()).expect("there are such rows"));
        let pushed = adds.then(|| {
            let values = vec![1.0; indices.len() * width as usize];
            clock.add(Rows { indices, values }).expect("there are such rows");
            clock.push()
        });
        Operation { read, pushed }
    }

    /// Waits until no more than so many operations are under way.
    async fn wait_until_in_progress(&mut self, count: usize) -> Result<(), Interrupted> {
        while self.in_progress.len() > count
            && let Some(Operation { read, pushed }) = self.in_progress.pop_front()
        {
            if let Some(read) = read {
                read.await?;
            }
            if let Some(pushed) = pushed {
                pushed.await?;
            }
        }
        Ok(())
    }

    /// Reads some rows once all workers have ended.
    async fn check(&self, clock: &Clock) -> Result<(), Interrupted> {
        let TableWorkload { rows, width, work, epochs, .. } = self.shape;
        let indices = self.shape.indices(clock.rank.index() as u32, rows);
        let values = clock.get(indices.clone()).expect("there are such rows").await?;
        let expected = if work.adds() { 1 + epochs } else { 1 } as f32;
        for (row, values) in indices.iter().zip(values.chunks_exact(width as usize)) {
            // Those few were added to more often.
            let is_right = |value: &f32| *value == expected || row < FEW.into();
            assert!(values.iter().all(is_right), "row {row} is {values:?} and not {expected}");
        }
        Ok(())
    }
}

/// Nothing but samples: each is an operation of every epoch.
pub(super) struct OperationsTask(pub(super) u32);

impl Task for OperationsTask {
    fn manifest(&self) -> Manifest {
        Manifest::new([("nothing", &[1][..])])
    }

    fn sample_count(&self) -> u32 {
        self.0
    }

    fn gradient(&self, _: &[f32], _: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        0.0
    }

    fn evaluate(&self, _: &[f32]) -> Evaluation {
        Evaluation { samples: 1, loss: 0.0, accuracy: None }
    }
}

/// Rows that are added to before anything is measured.
pub(super) const FEW: u32 = 1024;
/// Passes before those that are measured.
pub(super) const EPOCHS_BEFORE: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_each_row_once() {
        for rows in [1024, 2000, 4096] {
            let shape = TableWorkload::new(rows, 1, 48, Work::Both, 2, 1);
            let operations = (0..shape.operations()).flat_map(|operation| {
                let indices = shape.indices(operation, shape.rows());
                assert_eq!(indices.len(), 48);
                indices.iter().collect::<Vec<_>>()
            });
            let mut visited: Vec<Row> = operations.collect();
            visited.sort_unstable();
            assert_eq!(visited, (0..u64::from(shape.rows())).collect::<Vec<_>>());
        }
    }
}
