//! Clocks whose additions are in together or not at all, under all kinds of faults.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::{Arc, Mutex};

use peergrad_config::specification::RunFile;
use peergrad_core::program::context::{Clock, Context, Interrupted};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{Atomicity, ReadPolicy, Table, TableSpec};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{Map, Row, RowSet, Rows};
use peergrad_simulations::task::Integers;
use peergrad_simulations::workload::Workload;

use super::counting::{POWER_CUTS, TROUBLE, seeds, under_faults};

/// The samples of an epoch: each has a row.
const ROWS: Row = 400;
const EPOCHS: u64 = 60;
/// How often a sample was computed.
const COUNT: usize = 0;
/// What rows give to each other.
const BALANCE: usize = 1;
/// To this vector, owners add the next one, where each sample has added 1 in the first epoch.
const MAPPED: usize = 2;
const ONE: usize = 3;
const VECTORS: usize = 4;
/// The rows of all vectors.
const ALL: Row = ROWS * VECTORS as Row;

/// Counts the samples of each clock, moves a unit from one row to another, and now and then has owners change a whole vector.
struct Transfer {
    ends: Arc<Mutex<Vec<Vec<f32>>>>,
    clocks: u64,
}

impl Program for Transfer {
    const NAME: &'static str = "transfer";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            let end = clock.get(RowSet::range(0..ALL)).expect("there are as many").await?;
            self.ends.lock().expect("nobody panics with it").push(end);
            return Ok(Break(()));
        }
        let samples = clock.samples.len() as u64;
        clock.compute(samples, || ()).await?;
        self.clocks += 1;
        // By then, all rows have been added to.
        if clock.epoch > EPOCHS / 2 && self.clocks.is_multiple_of(4) {
            let map = Map::axpy(1.0, ONE as u32, MAPPED as u32);
            clock.map("rows", map).expect("there are such vectors");
        }
        transfer(&clock);
        clock.end(SampleStats { samples, loss: 1.0 });
        Ok(Continue(()))
    }
}

/// Adds 1 to the count of each sample, and moves 1 from one row to another, which is in another chunk.
fn transfer(clock: &Clock) {
    let add = |row: Row, vector: usize, value: f32| {
        let row = row * VECTORS as Row + vector as Row;
        clock.add(Rows { indices: RowSet::range(row..row + 1), values: vec![value] }).expect("finite rows");
    };
    for sample in clock.samples.iter() {
        add(u64::from(*sample), COUNT, 1.0);
        if clock.epoch == 0 {
            add(u64::from(*sample), ONE, 1.0);
        }
    }
    if let Some(first) = clock.samples.first() {
        let from = u64::from(*first) * 7 % ROWS;
        add(from, BALANCE, -1.0);
        add((from + ROWS / 2) % ROWS, BALANCE, 1.0);
    }
}

/// What the workers read at the end of the run of this seed, under these faults: `None` if some have read something else.
fn end(atomicity: Atomicity, trouble: &str, seed: u64) -> Option<Vec<f32>> {
    let read_policy =
        [ReadPolicy::Unbounded, ReadPolicy::Staleness(0), ReadPolicy::Staleness(3)][seed as usize % 3];
    let tables = vec![Table::of_vectors("rows", VECTORS, ROWS as usize, 1)];
    let table_spec = TableSpec { atomicity, ..TableSpec::new(tables, read_policy) };
    let ends = Arc::<Mutex<Vec<Vec<f32>>>>::default();
    let kept = Arc::clone(&ends);
    let launch = ProgramFactory::with_tables(
        move |_| table_spec.clone(),
        move |_| Transfer { ends: Arc::clone(&kept), clocks: 0 },
    );
    let run = format!("epochs = {EPOCHS}\nbatch = 5\n[shards]\nreplicas = 6\n[checkpoints]\nseconds = 3");
    let run = RunFile::parse(&run);
    let run = run.expect("it is a run file");
    let workload = Workload::custom_program("transfer", Integers::new(16, ROWS as u32), launch, &run);
    under_faults(trouble, workload.expect("all of it is allowed"), seed);
    let ends = ends.lock().expect("nobody panics with it");
    assert!(ends.len() > 5, "seed {seed}: {} have come to the end", ends.len());
    ends.iter().all(|end| *end == ends[0]).then(|| ends[0].clone())
}

/// What is wrong with a result: the samples that were not counted once in each epoch, the sum of what rows have given to each other, and
/// the number of different values in the vector that owners have changed.
fn faults(end: &[f32]) -> (usize, f32, usize) {
    let rows = || end.chunks_exact(VECTORS);
    let miscounted = rows().filter(|row| row[COUNT] != EPOCHS as f32).count();
    let mut mapped: Vec<u32> = rows().map(|row| row[MAPPED] as u32).collect();
    mapped.sort_unstable();
    mapped.dedup();
    (miscounted, rows().map(|row| row[BALANCE]).sum(), mapped.len())
}

#[test]
fn clocks_are_in_as_a_whole_and_each_sample_counts_once() {
    for seed in seeds(2) {
        assert_whole(TROUBLE, seed);
    }
}

#[test]
fn clocks_are_in_as_a_whole_after_power_cuts() {
    for seed in seeds(2) {
        assert_whole(POWER_CUTS, seed);
    }
}

fn assert_whole(trouble: &str, seed: u64) {
    let end =
        end(Atomicity::Clock, trouble, seed).unwrap_or_else(|| panic!("seed {seed}: all read the same"));
    assert_eq!(faults(&end), (0, 0.0, 1), "seed {seed}");
}

/// So that the test above can fail.
#[test]
fn without_a_journal_lost_workers_leave_clocks_in_part() {
    let torn = |seed: u64| end(Atomicity::Chunk, TROUBLE, seed).is_none_or(|end| faults(&end) != (0, 0.0, 1));
    assert!((0..6).any(torn));
}
