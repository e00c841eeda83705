//! Parallel coordinate descent (Shotgun): the machines improve several coefficients of a Lasso at a time, all from one residual.
//!
//! Coordinate descent improves one coefficient after the other. Shotgun improves P random ones at once, each as if all others stayed as they
//! are. That is P times as fast while columns are little correlated. But columns that are almost equal all make the same correction. Then the
//! sum of their corrections is too large. Theory allows P up to about columns / radius, where the radius is the largest eigenvalue of
//! the columns' products with each other.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin shotgun -- start
//! cargo run --release -p peergrad-examples --bin shotgun -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The loss is the objective. The run ends when that is within 1e-4 of the least possible one, or has grown: then P is too large.
//!
//! # Settings
//! - `LASSO_DATA=zipf` in the environment takes columns of low correlation in place of `diabetes`; the same at all peers.
//! - `batch` in run.toml is P, of all workers together: 8 by default. With `batch = 1` and one peer this is stochastic coordinate descent.
//! - `shuffle = false` takes the coefficients in their order: with `batch = 1` and one peer, cyclic coordinate descent.
//!
//! # How it works
//! `beta` and the residual are tables, and the samples of a clock are the coefficients that this worker improves. The staleness is 0 and
//! owners apply a clock as a whole, so all workers of a clock read the same residual. In an epoch, each coefficient is dealt once.
//! Cost of a clock: each worker reads both tables, and adds to the rows that its columns have entries in.
//!
//! # Reading
//! Bradley et al., "Parallel Coordinate Descent for L1-Regularized Loss Minimization", 2011, algorithm 2 and theorem 3.2. Ours: coefficients
//! have a sign, and are dealt without replacement.
//!
//! # Results
//! Rounds until the objective is within 1e-4 of the least one, in virtual time (`tests/lasso.rs`). The P of the theory is 448 for `zipf` and 5
//! for `diabetes`, for which these are medians of five seeds.
//!
//! | P | 1 | 4 | 20 | 100 | 250 | 500 |
//! |---|---|---|---|---|---|---|
//! | `zipf` | 2,927 | 732 | 147 | 30 | 12 | 6 |
//!
//! | P | 1 | 5 | 8 | 12 | 16 | 20 |
//! |---|---|---|---|---|---|---|
//! | `diabetes` | 41,231 | 8,178 | 5,244 | 3,381 | diverges with four of the seeds | diverges |

use peergrad::prelude::*;
use peergrad_examples::lasso::{GAP_MAX, Lasso, OBJECTIVE_MAX};

/// The algorithm at one worker.
pub(crate) struct Shotgun {
    /// The problem; each worker has all columns.
    lasso: Lasso,
    /// The last epoch at whose start this worker has computed the duality gap; `None` before the first one.
    checked: Option<u64>,
}

impl Shotgun {
    /// A worker that has done nothing yet.
    pub(crate) fn new(lasso: Lasso) -> Self {
        Self { lasso, checked: None }
    }
}

impl Program for Shotgun {
    const NAME: &'static str = "shotgun";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            // These arrive once all workers have finished: the model that the peers end with.
            clock.parameters().await?;
            return Ok(Flow::Break(()));
        }
        let count = clock.samples.len() as u64;
        if count == 0 {
            clock.end(SampleStats { samples: 0, loss: 0.0 });
            return Ok(Flow::Continue(()));
        }
        let state = clock.get(self.lasso.state_rows()).expect("there are as many").await?;
        let (lasso, samples) = (self.lasso.clone(), clock.samples.clone());
        let is_checked = self.checked == Some(clock.epoch);
        let found = clock.compute(count, move || {
            let change = lasso.change(&state, samples.iter().copied());
            let (beta, residual) = lasso.split(&state);
            let objective = lasso.objective(beta, residual);
            let is_end = objective > OBJECTIVE_MAX || !is_checked && lasso.gap(&state) <= GAP_MAX;
            (lasso.additions(&change), objective, is_end)
        });
        let (additions, objective, is_end) = found.await?;
        self.checked = Some(clock.epoch);
        if is_end {
            context.end_run();
        }
        clock.add(additions).expect("finite numbers: the run ends before they are too large");
        clock.end(SampleStats { samples: count, loss: objective * count as f64 });
        Ok(Flow::Continue(()))
    }
}

/// The tables of the problem. No worker is ahead of another one, and `batch` is that of all of them together.
pub(crate) fn table_spec(lasso: &Lasso) -> TableSpec {
    let spec = TableSpec::new(lasso.tables(), ReadPolicy::Staleness(0));
    TableSpec { batch_scope: BatchScope::Global, ..spec }
}

fn main() -> ExitCode {
    let lasso = Lasso::of_environment();
    let (spec, columns) = (table_spec(&lasso), lasso.clone());
    peergrad::train(lasso.name, lasso)
        .epochs(1000)
        .batch(8)
        .tables(move |_| spec.clone(), move |_| Shotgun::new(columns.clone()))
        .run()
}
