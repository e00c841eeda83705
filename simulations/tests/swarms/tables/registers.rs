//! Owners that apply a rule of the program: a register that is set only if it has the expected version.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::{Arc, Mutex};

use peergrad_config::specification::RunFile;
use peergrad_core::program::context::{Context, Interrupted};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{ReadPolicy, RowChange, RowRule, Table, TableRule, TableSpec};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{RowSet, Rows};
use peergrad_simulations::task::Integers;
use peergrad_simulations::workload::Workload;

use super::counting::{in_trouble, seeds};

/// Contenders, each a sample: they set the register once in each epoch.
const CONTENDERS: usize = 16;
const EPOCHS: usize = 12;
/// The version, and who has set it to each version.
const WIDTH: usize = 1 + CONTENDERS * EPOCHS;

/// `added` is the expected version, and the contender, from 1 on.
fn set_if_expected(RowChange { values, added, .. }: RowChange<'_>) {
    let version = values[0];
    if added[0] == version && (version as usize) < CONTENDERS * EPOCHS {
        values[1 + version as usize] = added[1];
        values[0] = version + 1.0;
    }
}

struct Contending {
    ends: Arc<Mutex<Vec<Vec<f32>>>>,
}

impl Program for Contending {
    const NAME: &'static str = "contending";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            let end = clock.get(RowSet::range(0..1)).expect("there is such a row").await?;
            self.ends.lock().expect("nobody panics with it").push(end);
            return Ok(Break(()));
        }
        let samples = clock.samples.len() as u64;
        for contender in clock.samples.iter().map(|sample| (sample + 1) as f32) {
            loop {
                let register = clock.pull(0..1).expect("there is such a row").await?.values;
                let version = register.first().copied().unwrap_or(0.0);
                let wins = register.iter().skip(1).filter(|winner| **winner == contender).count();
                if wins as u64 > clock.epoch {
                    // It was set by this worker, or by a lost one that had the same sample.
                    break;
                }
                let mut values = vec![0.0; WIDTH];
                values[..2].copy_from_slice(&[version, contender]);
                clock.add(Rows { indices: RowSet::range(0..1), values }).expect("a finite row");
            }
        }
        clock.compute(samples, || ()).await?;
        clock.end(SampleStats { samples, loss: 1.0 });
        Ok(Continue(()))
    }
}

#[test]
fn each_contender_sets_the_register_once_an_epoch_and_no_version_is_set_twice() {
    for seed in seeds(6) {
        let combine = |earlier: &mut [f32], more: &[f32]| earlier.copy_from_slice(more);
        let rule = RowRule { name: "set-if-expected", moments: 0, apply: set_if_expected, combine };
        let table = Table { rule: TableRule::Custom(rule), ..Table::additive("register", 1, WIDTH) };
        let table_spec = TableSpec::new(vec![table], ReadPolicy::Unbounded);
        let ends = Arc::<Mutex<Vec<Vec<f32>>>>::default();
        let kept = Arc::clone(&ends);
        let launch = ProgramFactory::with_tables(
            move |_| table_spec.clone(),
            move |_| Contending { ends: Arc::clone(&kept) },
        );
        let run = RunFile::parse(&format!("epochs = {EPOCHS}\nbatch = 1\n[shards]\nreplicas = 6"));
        let task = Integers::new(16, CONTENDERS as u32);
        let workload = Workload::custom_program("contending", task, launch, &run.expect("it is a run file"));
        in_trouble(workload.expect("all of it is allowed"), seed);
        let ends = ends.lock().expect("nobody panics with it");
        assert!(!ends.is_empty() && ends.iter().all(|end| *end == ends[0]), "seed {seed}: all read the same");
        let (version, winners) = ends[0].split_first().expect("it has a version");
        assert_eq!(*version as usize, CONTENDERS * EPOCHS, "seed {seed}");
        for contender in 1..=CONTENDERS {
            let wins = winners.iter().filter(|winner| **winner == contender as f32).count();
            assert_eq!(wins, EPOCHS, "seed {seed}: contender {contender}");
        }
    }
}
