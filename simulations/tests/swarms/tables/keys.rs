//! Changes that several workers send, and that count once.

use std::num::NonZeroU64;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::{Arc, Mutex};

use peergrad_config::specification::RunFile;
use peergrad_core::program::context::{Clock, Context, Interrupted};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{Atomicity, IdempotencyKey, Portions, ReadPolicy, Table, TableSpec};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{Map, Row, RowSet, Rows};
use peergrad_simulations::task::Integers;
use peergrad_simulations::workload::Workload;

use super::counting::{POWER_CUTS, TROUBLE, seeds, under_faults};

const SAMPLES: Row = 400;
const EPOCHS: u64 = 120;
/// How often each sample was computed.
const COUNTS: u32 = 0;
/// To this vector, owners add the one before in each epoch, once all samples of the epoch before are computed.
const SUMS: u32 = 1;

/// Counts the samples of each portion, and has owners add one vector to the other between two epochs. All workers order that.
struct Repeating {
    /// Whether the changes have keys.
    has_keys: bool,
    ends: Arc<Mutex<Vec<Vec<f32>>>>,
}

impl Program for Repeating {
    const NAME: &'static str = "repeating";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            let end = clock.get(RowSet::range(0..2 * SAMPLES)).expect("there are as many").await?;
            self.ends.lock().expect("nobody panics with it").push(end);
            return Ok(Break(()));
        }
        let samples = clock.samples.len() as u64;
        if samples > 0 {
            let map = Map::axpy(1.0, COUNTS, SUMS);
            match self.has_keys {
                true => clock.map_once(IdempotencyKey { round: 2 * clock.epoch, number: 0 }, "rows", map),
                false => clock.map("rows", map),
            }
            .expect("there are such vectors");
            self.count(&clock).await?;
        }
        drop(clock.commit(SampleStats { samples, loss: 1.0 }));
        Ok(Continue(()))
    }
}

impl Repeating {
    async fn count(&self, clock: &Clock) -> Result<(), Interrupted> {
        clock.compute(clock.samples.len() as u64, || ()).await?;
        let mut counted: Vec<Row> = clock.samples.iter().map(|sample| 2 * u64::from(*sample)).collect();
        counted.sort_unstable();
        let values = vec![1.0; counted.len()];
        let rows = Rows { indices: counted.into_iter().collect(), values };
        let key = IdempotencyKey { round: 2 * clock.epoch + 1, number: clock.position as u32 };
        match self.has_keys {
            true => clock.add_once(key, rows),
            false => clock.add(rows),
        }
        .expect("finite rows");
        Ok(())
    }
}

/// The rows that all workers read at the end of the run of this seed, under these faults.
fn end(has_keys: bool, trouble: &str, seed: u64) -> Vec<f32> {
    let tables = vec![Table::of_vectors("rows", 2, SAMPLES as usize, 1)];
    let portions = Some(Portions::PerWorker(NonZeroU64::MIN.saturating_add(seed % 3)));
    let table_spec =
        TableSpec { atomicity: Atomicity::Chunk, portions, ..TableSpec::new(tables, ReadPolicy::Unbounded) };
    let ends = Arc::<Mutex<Vec<Vec<f32>>>>::default();
    let kept = Arc::clone(&ends);
    let launch = ProgramFactory::with_tables(
        move |_| table_spec.clone(),
        move |_| Repeating { has_keys, ends: Arc::clone(&kept) },
    );
    let run = format!("epochs = {EPOCHS}\nbatch = 1\n[shards]\nreplicas = 6\n[checkpoints]\nseconds = 3");
    let run = RunFile::parse(&run).expect("it is a run file");
    let workload = Workload::custom_program("repeating", Integers::new(16, SAMPLES as u32), launch, &run);
    under_faults(trouble, workload.expect("all of it is allowed"), seed);
    let ends = ends.lock().expect("nobody panics with it");
    assert!(ends.len() > 5, "seed {seed}: {} have come to the end", ends.len());
    assert!(ends.iter().all(|end| *end == ends[0]), "seed {seed}: all read the same");
    ends[0].clone()
}

/// Each sample once in each epoch. The sums are those of the counts after 0, 1, 2, ... epochs.
fn is_exact(end: &[f32]) -> bool {
    let sum = (EPOCHS * (EPOCHS - 1) / 2) as f32;
    end.chunks_exact(2).all(|row| *row == [EPOCHS as f32, sum])
}

/// Workers die after any part of what they send, others repeat it, and copies of portions are computed twice.
#[test]
fn changes_with_keys_count_once_whoever_is_lost() {
    for seed in seeds(1) {
        assert!(is_exact(&end(true, TROUBLE, seed)), "seed {seed}");
        assert!(is_exact(&end(true, POWER_CUTS, seed)), "seed {seed}, with power cuts");
    }
}

/// So that the test above can fail.
#[test]
fn without_keys_copies_count_twice() {
    assert!(!is_exact(&end(false, TROUBLE, 0)));
}
