//! A worker that does nothing but read rows of a table and add to them.
//!
//! # How it works
//! A sample stands for one *operation*: a batch of rows, spread over the whole table, that is read, or added to, or both. An operation
//! is begun before the ones before it are over, but for so many: a read is over when its rows are here, an addition once it would
//! outlive its owner. Passes over the samples come in three parts:
//!
//! 1. [`FEW`] rows are added to, so that all buffers are as large as they will be.
//! 2. Every row is added to once, so that all of them are there.
//! 3. The work that is measured: each pass has as many rows as the table.
//!
//! In the end each worker reads some rows and sees that every addition of all workers is in them once.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow::{Break, Continue};

use clap::{Args, ValueEnum};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::Tally;
use peergrad_protocol::table::{Names, Row, Rows};

use crate::peer::{Clock, Interrupted, Peer, Pending};
use crate::program::{Flow, Launch, Program};
use crate::table::client::Gate;
use crate::table::{Shared, Table};
use crate::task::{Evaluation, Task};

/// What is done to how many rows.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Shape {
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
    pub(super) passes: u32,
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

impl Shape {
    /// One whose table has at least so many rows: whole operations.
    pub(super) fn new(rows: u32, width: u32, batch: u32, work: Work, in_flight: u32, passes: u32) -> Self {
        Self { rows: rows.max(2 * FEW).next_multiple_of(batch), width, batch, work, in_flight, passes }
    }

    /// As the program of a peer is told.
    pub(super) fn words(&self) -> Vec<String> {
        let Self { rows, width, batch, work, in_flight, passes } = self;
        let (before, after) = ([rows, width, batch], [in_flight, passes]);
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
    fn names(&self, operation: u32, among: u32) -> Names {
        let first = u64::from(operation) * u64::from(self.batch);
        let row = |index| (first + index) * stride(among) % u64::from(among);
        let rows: BTreeSet<Row> = (0..u64::from(self.batch)).map(row).collect();
        rows.into_iter().collect()
    }

    fn shared(&self) -> Shared {
        let table = Table::of_sums("bench", self.rows.into(), self.width as usize);
        Shared::new(vec![table], Gate::None)
    }

    pub(super) fn launch(self) -> Launch {
        let shared = self.shared();
        Launch::with_tables(
            move |_| shared.clone(),
            move |_| Worker { shape: self, under_way: VecDeque::new() },
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

struct Worker {
    shape: Shape,
    under_way: VecDeque<Operation>,
}

/// What is awaited before it is over.
#[derive(Default)]
struct Operation {
    read: Option<Pending<Vec<f32>>>,
    pushed: Option<Pending<()>>,
}

impl Program for Worker {
    const NAME: &'static str = "bench of a table";

    async fn round(&mut self, peer: &Peer) -> Result<Flow, Interrupted> {
        let clock = peer.begin_clock().await?;
        if clock.is_over {
            self.leave_under_way(0).await?;
            clock.finish();
            self.check(&clock).await?;
            return Ok(Break(()));
        }
        for &sample in &*clock.samples {
            self.leave_under_way(self.shape.in_flight as usize - 1).await?;
            let operation = self.begin(&clock, sample);
            self.under_way.push_back(operation);
        }
        // Where nothing was added, this says that the samples are done.
        let pushed = clock.push();
        if clock.samples.is_empty() {
            // There are none because others are not done with theirs, or because this worker is not.
            self.leave_under_way(0).await?;
            pushed.await?;
        }
        let samples = clock.samples.len() as u64;
        clock.end(Tally { samples, loss: 0.0 });
        Ok(Continue(()))
    }
}

impl Worker {
    fn begin(&self, clock: &Clock, sample: u32) -> Operation {
        let Shape { rows, width, work, .. } = self.shape;
        let (among, reads, adds) = match clock.pass {
            0 => (FEW, false, true),
            1 => (rows, false, true),
            _ => (rows, work.reads(), work.adds()),
        };
        let names = self.shape.names(sample, among);
        let read = reads.then(|| clock.get(names.clone()).expect("there are such rows"));
        let pushed = adds.then(|| {
            let values = vec![1.0; names.len() * width as usize];
            clock.add(Rows { names, values }).expect("there are such rows");
            clock.push()
        });
        Operation { read, pushed }
    }

    /// Waits until no more than so many operations are under way.
    async fn leave_under_way(&mut self, count: usize) -> Result<(), Interrupted> {
        while self.under_way.len() > count
            && let Some(Operation { read, pushed }) = self.under_way.pop_front()
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
        let Shape { rows, width, work, passes, .. } = self.shape;
        let names = self.shape.names(clock.rank.index() as u32, rows);
        let values = clock.get(names.clone()).expect("there are such rows").await?;
        let expected = if work.adds() { 1 + passes } else { 1 } as f32;
        for (row, values) in names.iter().zip(values.chunks_exact(width as usize)) {
            // Those few were added to more often.
            let is_right = |value: &f32| *value == expected || row < FEW.into();
            assert!(values.iter().all(is_right), "row {row} is {values:?} and not {expected}");
        }
        Ok(())
    }
}

/// Nothing but samples: each is an operation of every pass.
pub(super) struct Operations(pub(super) u32);

impl Task for Operations {
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
pub(super) const PASSES_BEFORE: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_has_each_row_once() {
        for rows in [1024, 2000, 4096] {
            let shape = Shape::new(rows, 1, 48, Work::Both, 2, 1);
            let operations = (0..shape.operations()).flat_map(|operation| {
                let names = shape.names(operation, shape.rows());
                assert_eq!(names.len(), 48);
                names.iter().collect::<Vec<_>>()
            });
            let mut visited: Vec<Row> = operations.collect();
            visited.sort_unstable();
            assert_eq!(visited, (0..u64::from(shape.rows())).collect::<Vec<_>>());
        }
    }
}
