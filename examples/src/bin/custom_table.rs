//! Your own table, without any learning: many machines fill in the rows of a table while machines join and leave.
//!
//! Row `i` gets the length of the longest Collatz sequence (n is followed by n / 2 if n is even and by 3 n + 1 if n is odd, down to 1)
//! among the 200 numbers from 200 i on. A sample of this task is a row: each worker leases rows, computes them, and adds the results
//! to the table. The rows of a clock are all added, exactly once, or none of them: then another worker computes them. Every epoch computes
//! every row again and adds the result; a second column counts the additions. So in the end it is the number of epochs in every row, also
//! if peers were killed.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin custom_table -- start
//! cargo run --release -p peergrad-examples --bin custom_table -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The run ends with an accuracy of 1 (the share of rows that are right) and a loss of 40, the default number of epochs (the mean number of additions to a row).

use peergrad::prelude::*;

/// The algorithm at one worker.
#[derive(Default)]
struct Filling {
    /// The rows of the last clock, until they are safe; `None` before the first.
    sent: Option<Pending<()>>,
}

impl Program for Filling {
    const NAME: &'static str = "filling";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            // These arrive once all workers have finished: the model that the peers end with.
            clock.parameters().await?;
            return Ok(Flow::Break(()));
        }
        let samples = clock.samples.clone();
        let count = samples.len() as u64;
        let rows = clock.compute(count, move || {
            let mut samples = samples.to_vec();
            samples.sort_unstable();
            let values = samples.iter().flat_map(|sample| [longest(*sample), 1.0]).collect();
            Rows { indices: samples.into_iter().map(u64::from).collect(), values }
        });
        let rows = rows.await?;
        // The rows of one clock may be under way while the next ones are computed, but not two: so a lost worker wastes little work.
        if let Some(sent) = self.sent.take() {
            sent.await?;
        }
        clock.add(rows).expect("finite numbers, for rows of the table");
        self.sent = Some(clock.commit(SampleStats { samples: count, loss: 0.0 }));
        Ok(Flow::Continue(()))
    }
}

/// One table of two columns: its owners apply additions as they arrive, and no worker waits for another one.
fn table_spec(loaded: &Loaded) -> TableSpec {
    let rows = u64::from(loaded.task.sample_count());
    let table = Table { init: Init::Parameters, ..Table::additive("longest", rows, 2) };
    TableSpec::new(vec![table], ReadPolicy::Unbounded)
}

/// The task whose parameters, which begin at zero, are the table.
struct Collatz;

const ROWS: u32 = 2000;
const NUMBERS: u64 = 200;

/// Length of the longest sequence of a row's numbers.
fn longest(row: u32) -> f32 {
    let first = u64::from(row) * NUMBERS;
    (first..first + NUMBERS).map(length).max().unwrap_or(0) as f32
}

fn length(number: u64) -> u32 {
    let next = |&n: &u64| (n > 1).then(|| if n % 2 == 0 { n / 2 } else { 3 * n + 1 });
    std::iter::successors(Some(number), next).count() as u32
}

impl Task for Collatz {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("longest", [ROWS, 2])
    }

    fn sample_count(&self) -> u32 {
        ROWS
    }

    fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
        unreachable!("the program of this task computes no gradient")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let rows = || (0..ROWS).zip(parameters.chunks_exact(2));
        let is_right = |(row, found): &(u32, &[f32])| found[1] >= 1.0 && found[0] == found[1] * longest(*row);
        let right = rows().filter(is_right).count();
        let times: f64 = rows().map(|(_, found)| f64::from(found[1])).sum();
        let samples = f64::from(ROWS);
        Evaluation { samples: ROWS, loss: times / samples, accuracy: Some(right as f64 / samples) }
    }
}

fn main() -> ExitCode {
    peergrad::train("collatz", Collatz).tables(table_spec, |_| Filling::default()).run()
}
