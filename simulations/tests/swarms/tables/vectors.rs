//! Owners that compute with the vectors of a table.

use std::ops::ControlFlow::{Break, Continue};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use peergrad_config::specification::RunFile;
use peergrad_core::program::context::{Clock, Context, Interrupted};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{ReadPolicy, Table, TableSpec};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{Map, Reduce, Row, Rows};
use peergrad_simulations::compare::measure;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::task::Integers;
use peergrad_simulations::workload::Workload;

/// Conjugate gradients: one worker decides on the operations, and owners do them. The vectors are x, r, p and A p of one table, where A is 4
/// everywhere on the diagonal and -1 beside it. All other members only store what they own.
struct Conjugate {
    /// The result of each member: the squared norm of the residual vector, and the content of the table.
    end: Arc<Mutex<Vec<(f64, Rows)>>>,
    is_first: bool,
    squared: Option<f64>,
}

const X: u32 = 0;
const R: u32 = 1;
const P: u32 = 2;
const AP: u32 = 3;
const UNKNOWNS: Row = 200;

impl Program for Conjugate {
    const NAME: &'static str = "conjugate";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            let left = clock.reduce("vectors", Reduce::Dot(R, R)).expect("there is such a vector").await?[0];
            let rows = clock.pull(0..4 * UNKNOWNS).expect("there are as many").await?;
            self.end.lock().expect("nobody panics with it").push((left, rows));
            return Ok(Break(()));
        }
        if self.is_first && !clock.samples.is_empty() {
            self.step(&clock).await?;
        }
        let samples = clock.samples.len() as u64;
        clock.compute(samples, || ()).await?;
        clock.push().await?;
        clock.end(SampleStats { samples, loss: 0.0 });
        Ok(Continue(()))
    }
}

impl Conjugate {
    async fn step(&mut self, clock: &Clock) -> Result<(), Interrupted> {
        let dot = async |one, other| {
            let numbers = clock.reduce("vectors", Reduce::Dot(one, other)).expect("there are such vectors");
            Ok(numbers.await?[0])
        };
        let map = |map| clock.map("vectors", map).expect("owners add to this table");
        let axpy = |by: f64, from, to| map(Map::axpy(by as f32, from, to));
        let add = |vector: u32, value: &dyn Fn(Row) -> f32| {
            let indices = clock.layout.vector_rows("vectors", vector).expect("there is such a vector");
            clock.add(Rows { indices, values: (0..UNKNOWNS).map(value).collect() }).expect("finite rows");
        };
        let squared = match self.squared {
            Some(squared) => squared,
            None => {
                // x = 0, r = p = b.
                add(R, &|row| (row % 7) as f32 - 3.0);
                axpy(1.0, R, P);
                dot(R, R).await?
            }
        };
        if squared < 1e-9 {
            return Ok(());
        }
        // Only this needs the values themselves: a row depends on its neighbours.
        let rows = clock.layout.vector_rows("vectors", P).expect("there is such a vector");
        let rows = clock.pull(rows).expect("there are as many").await?;
        let mut p = vec![0.0; UNKNOWNS as usize + 2];
        for (row, value) in rows.indices.iter().zip(rows.values) {
            p[(row / 4) as usize + 1] = value;
        }
        map(Map::scale(0.0, AP));
        add(AP, &|row| 4.0 * p[row as usize + 1] - p[row as usize] - p[row as usize + 2]);
        let length = squared / dot(P, AP).await?;
        axpy(length, P, X);
        axpy(-length, AP, R);
        let after = dot(R, R).await?;
        // p = r + (after / squared) p
        map(Map::scale((after / squared) as f32, P));
        axpy(1.0, R, P);
        self.squared = Some(after);
        Ok(())
    }
}

/// Owners apply each operation on vectors once, also if the owner changes; and a result includes all earlier operations.
#[test]
fn owners_compute_with_vectors_while_chunks_move() {
    for seed in 0..4 {
        let ends = Arc::<Mutex<Vec<(f64, Rows)>>>::default();
        let table_spec = TableSpec::new(
            vec![Table::of_vectors("vectors", 4, UNKNOWNS as usize, 1)],
            ReadPolicy::Unbounded,
        );
        let kept = Arc::clone(&ends);
        let count = AtomicUsize::new(0);
        let launch = ProgramFactory::with_tables(
            move |_| table_spec.clone(),
            move |_| {
                let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
                Conjugate { end: Arc::clone(&kept), is_first, squared: None }
            },
        );
        let run = RunFile::parse("epochs = 60\nbatch = 4\n[shards]\nreplicas = 3").expect("it is a run file");
        let workload =
            Workload::custom_program("conjugate", Integers::new(16, 160), launch, &run).expect("allowed");
        let trouble = "about = \"x\"\npeers = 6\n[task]\nkind = \"squares\"\nsample_time = \"4ms\"\n\
            [[faults]]\nat = \"1s\"\nwithin = \"1s\"\nkind = \"join\"\ncount = 2\n\
            [[faults]]\nat = \"2s\"\nwithin = \"1s\"\nkind = \"crash\"\npeers = [4]\n\
            [[faults]]\nat = \"4s\"\nwithin = \"1s\"\nkind = \"leave\"\npeers = [3]\n";
        let scenario = parse("conjugate", trouble, Path::new("."), Size::Full).expect("it is a scenario");
        let course = measure(&Scenario { workload, ..scenario }, seed);
        assert_eq!(course.outcome.violations, [], "seed {seed}");
        let ends = ends.lock().expect("nobody panics with it");
        let (left, rows) = &ends[0];
        assert!(ends.len() >= 5 && ends.iter().all(|end| end == &ends[0]), "seed {seed}: all read the same");
        assert!(*left < 1e-6, "seed {seed}: {left} is left");
        let mut all = vec![0.0; 4 * UNKNOWNS as usize];
        rows.indices.iter().zip(&rows.values).for_each(|(row, value)| all[row as usize] = *value);
        let x: Vec<f32> = all.chunks_exact(4).map(|part| part[X as usize]).collect();
        for row in 1..UNKNOWNS as usize - 1 {
            let b = (row % 7) as f32 - 3.0;
            assert!((4.0 * x[row] - x[row - 1] - x[row + 1] - b).abs() < 1e-3, "seed {seed}, row {row}");
        }
    }
}
