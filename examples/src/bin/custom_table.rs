//! A table of one's own, and nothing that learns: many machines fill in the rows, whoever comes and goes.
//!
//! Row `i` is to hold the longest Collatz sequence (n, then n / 2 if that is even and 3 n + 1 if not, down to 1) of the two hundred
//! numbers that begin at 200 i. Workers are dealt samples, that is rows; what they add counts once, and outlives them once they are
//! told so. It is done anew in each epoch, and added; a row also counts how often that was. A worker that is lost after its numbers were
//! safe, and before it could say that it is done, has done them in vain, and another one does them again: so a row may count more than
//! there are epochs, and is the sum of as many equal numbers all the same.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin custom_table -- start
//! cargo run --release -p peergrad-examples --bin custom_table -- join pg1...   (what `start` printed; on any machine)
//! ```
//! It ends with an accuracy of 1 (the share of rows that are right) and a loss of 40 (how often a row was filled in, on average), or
//! a little more, if somebody was lost.

use std::process::ExitCode;

use peergrad::table::{Init, ReadPolicy, Rows, Table, TableSpec};
use peergrad::{
    Context, Evaluation, Flow, Interrupted, Loaded, Manifest, Pending, Program, ProgramFactory, SampleStats,
    Task,
};

/// The algorithm at one worker.
#[derive(Default)]
struct Filling {
    /// What it has sent last.
    sent: Option<Pending<()>>,
}

impl Program for Filling {
    const NAME: &'static str = "filling";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            // Once all have finished: the model that the peers end with.
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
        // It goes on before what it sends is safe, but not by more than one clock: so little is done in vain if it is lost.
        if let Some(sent) = self.sent.take() {
            sent.await?;
        }
        clock.add(rows).expect("finite numbers, for rows that there are");
        self.sent = Some(clock.push());
        clock.end(SampleStats { samples: count, loss: 0.0 });
        Ok(Flow::Continue(()))
    }
}

/// One table of two columns, that owners add to as it comes, and that nobody waits for anybody to read.
fn table_spec(loaded: &Loaded) -> TableSpec {
    let rows = u64::from(loaded.task.sample_count());
    let table = Table { init: Init::Parameters, ..Table::additive("longest", rows, 2) };
    TableSpec::new(vec![table], ReadPolicy::Unbounded)
}

/// What is filled in: the parameters of the run, which begin at zero.
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
        Manifest::new([("longest", &[ROWS, 2][..])])
    }

    fn sample_count(&self) -> u32 {
        ROWS
    }

    fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
        unreachable!("its program asks for none")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let rows = || (0..ROWS).zip(parameters.chunks_exact(2));
        let is_right = |(row, found): &(u32, &[f32])| found[1] >= 1.0 && found[0] == found[1] * longest(*row);
        let right = rows().filter(is_right).count();
        let times: f64 = rows().map(|(_, found)| f64::from(found[1])).sum();
        let samples = f64::from(ROWS);
        Evaluation { samples: ROWS.into(), loss: times / samples, accuracy: Some(right as f64 / samples) }
    }
}

fn main() -> ExitCode {
    peergrad::run_launch("collatz", Collatz, ProgramFactory::with_tables(table_spec, |_| Filling::default()))
}
