//! The program of the table benchmark: a worker that only reads table rows and adds to them.
//!
//! # How it works
//! A sample stands for one *operation*: it reads a batch of rows that are spread over the whole table, adds to them, or does both. A
//! worker keeps a fixed number of operations in flight. A read is complete when its rows have arrived; an addition is complete when
//! it is stored on all replicas. The epochs form three parts:
//!
//! 1. Add to [`FEW`] rows, so that all buffers reach their final size.
//! 2. Add to every row once, so that all rows exist.
//! 3. The measured work: each epoch accesses every row once.
//!
//! At the end, each worker reads some rows and checks that they contain every addition of all workers exactly once.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Display;
use std::ops::ControlFlow::{Break, Continue};

use clap::{ArgAction, Args, ValueEnum};
use peergrad_core::program::context::{Clock, Context, Interrupted, Pending};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{Atomicity, ReadPolicy, Table, TableSpec};
use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{Row, RowSet, Rows};

/// The table, and what the workers do to its rows.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct TableWorkload {
    /// Rows of the table.
    pub(super) rows: u32,
    /// Numbers per row.
    pub(super) width: u32,
    /// Rows per operation.
    pub(super) batch: u32,
    /// What an operation does.
    pub(super) work: Work,
    /// Operations that a worker keeps in flight.
    pub(super) in_flight: u32,
    /// Measured epochs.
    pub(super) epochs: u32,
    /// Whether each operation is atomic.
    #[arg(action = ArgAction::Set)]
    pub(super) atomic: bool,
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
    /// The same workload on a table whose rows are some whole operations.
    pub(super) fn with_whole_operations(self) -> Self {
        Self { rows: self.rows.max(2 * FEW).next_multiple_of(self.batch), ..self }
    }

    /// The workload as command-line arguments of a peer.
    pub(super) fn arguments(&self) -> Vec<String> {
        let Self { rows, width, batch, work, in_flight, epochs, atomic } = self;
        let words: [&dyn Display; 7] = [rows, width, batch, work, in_flight, epochs, atomic];
        words.map(|word| word.to_string()).into()
    }

    /// How many operations access each row once.
    pub(super) fn operations(&self) -> u32 {
        self.rows / self.batch
    }

    /// The rows of an operation, among the first `among` rows of the table.
    fn indices(&self, operation: u32, among: u32) -> RowSet {
        let first = u64::from(operation) * u64::from(self.batch);
        let row = |index| (first + index) * stride(among) % u64::from(among);
        let rows: BTreeSet<Row> = (0..u64::from(self.batch)).map(row).collect();
        rows.into_iter().collect()
    }

    fn table_spec(&self) -> TableSpec {
        let table = Table::additive("bench", self.rows.into(), self.width as usize);
        let atomicity = if self.atomic { Atomicity::Clock } else { Atomicity::Chunk };
        TableSpec { atomicity, ..TableSpec::new(vec![table], ReadPolicy::Unbounded) }
    }

    pub(super) fn launch(self) -> ProgramFactory {
        let table_spec = self.table_spec();
        ProgramFactory::with_tables(
            move |_| table_spec.clone(),
            move |_| BenchWorker { shape: self, in_progress: VecDeque::new() },
        )
    }
}

/// A stride that visits all rows of a table and keeps consecutive rows far apart: the golden section of the number of rows, raised to
/// the next number without a common factor with it.
fn stride(rows: u32) -> u64 {
    let common = |mut one: u64, mut other: u64| {
        while other > 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let rows = u64::from(rows);
    let section = rows * 618 / 1000;
    (section..)
        .find(|step| *step > 0 && common(*step, rows) == 1)
        .expect("some larger number has no common factor with the number of rows")
}

/// One worker.
struct BenchWorker {
    shape: TableWorkload,
    in_progress: VecDeque<Operation>,
}

/// An operation in flight: what has to complete.
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
        // If nothing was added, the push completes the samples.
        let pushed = clock.push();
        if clock.samples.is_empty() {
            // No samples are left while other workers, or this one, still work on theirs.
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
        let read = reads.then(|| clock.get(indices.clone()).expect("these rows exist"));
        let pushed = adds.then(|| {
            let values = vec![1.0; indices.len() * width as usize];
            clock.add(Rows { indices, values }).expect("these rows exist");
            clock.push()
        });
        Operation { read, pushed }
    }

    /// Waits until at most `count` operations are in flight.
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

    /// Checks some rows after all workers have ended.
    async fn check(&self, clock: &Clock) -> Result<(), Interrupted> {
        let TableWorkload { rows, width, work, epochs, .. } = self.shape;
        let indices = self.shape.indices(clock.rank.index() as u32, rows);
        let values = clock.get(indices.clone()).expect("these rows exist").await?;
        let expected = if work.adds() { 1 + epochs } else { 1 } as f32;
        for (row, values) in indices.iter().zip(values.chunks_exact(width as usize)) {
            // The first rows were added to more often.
            let is_right = |value: &f32| *value == expected || row < FEW.into();
            assert!(values.iter().all(is_right), "row {row} is {values:?} instead of {expected}");
        }
        Ok(())
    }
}

/// A task that has only samples: each is an operation of every epoch.
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

/// How many rows the first part adds to.
pub(super) const FEW: u32 = 1024;
/// Epochs before the measured ones.
pub(super) const EPOCHS_BEFORE: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_accesses_each_row_once() {
        for rows in [1024, 2000, 4096] {
            let (work, atomic) = (Work::Both, false);
            let shape = TableWorkload { rows, width: 1, batch: 48, work, in_flight: 2, epochs: 1, atomic };
            let shape = shape.with_whole_operations();
            let operations = (0..shape.operations()).flat_map(|operation| {
                let indices = shape.indices(operation, shape.rows);
                assert_eq!(indices.len(), 48);
                indices.iter().collect::<Vec<_>>()
            });
            let mut visited: Vec<Row> = operations.collect();
            visited.sort_unstable();
            assert_eq!(visited, (0..u64::from(shape.rows)).collect::<Vec<_>>());
        }
    }
}
