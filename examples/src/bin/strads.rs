//! Scheduled coordinate descent (STRADS): in each round the machines improve coefficients of a Lasso that do not disturb each other.
//!
//! Coefficients of columns that are almost equal must not be improved at once: see `shotgun.rs`. Here a schedule chooses the coefficients of
//! each clock: at most P, no two of which have columns with a correlation of [`CORRELATION_MAX`] or more, and rather those that have changed
//! much the last time.
//!
//! ```text
//! schedule   all workers: the same coefficients, from the same rows           nobody sends a schedule
//! push       each worker: new values of its part of them
//! pull       owners: apply all of them when the clock is over
//! ```
//! ```text
//! cargo run --release -p peergrad-examples --bin strads -- start
//! cargo run --release -p peergrad-examples --bin strads -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The loss is the objective. The run ends when that is within 1e-4 of the least possible one.
//!
//! # Settings
//! - `LASSO_DATA=zipf` in the environment takes columns of low correlation in place of `diabetes`; the same at all peers.
//! - `batch` in run.toml is P, of all workers together: 16 by default.
//!
//! # How it works
//! The staleness is 0 and owners apply a clock as a whole, so all workers of a clock read the same bits. The schedule is a function of these
//! bits and of the clock's number, so it is the same at all workers. Only the logarithm may differ between machines in its last bit. If two
//! workers ever take the same coefficient, and also in the clock in which a view changes, it is corrected twice; that is an inexact step
//! and no inconsistency.
//!
//! The samples of a clock only say how many coefficients are improved. A worker that has none, at the end of an epoch, leaves out its part.
//!
//! # Reading
//! Lee et al., "On Model Parallelization and Scheduling Strategies for Distributed Machine Learning", 2014; Kim et al., "STRADS", 2016. Ours:
//! each worker has all rows and pushes whole coefficients, where theirs has a part of the rows. A weight also grows with the clocks
//! since the last update. Otherwise columns that are correlated with many others are hardly ever chosen.
//!
//! # Results
//! On `diabetes`, with P = 16 and with P = 32, the objective is within 1e-4 of the least one after 4,945 rounds (median of five seeds; see
//! `tests/lasso.rs`), where Shotgun diverges. Both are equal because only 6 or 7 columns with so little correlation are found. That makes
//! 31,000 updates, where one coefficient at a time needs 41,000.

use peergrad::prelude::*;
use peergrad_examples::lasso::{Change, GAP_MAX, Lasso, OBJECTIVE_MAX};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Coefficients of one clock have columns with a smaller correlation than this.
pub(crate) const CORRELATION_MAX: f32 = 0.1;

/// What is added to the last change of a coefficient, so that each is chosen sometimes. The target has length 1, and large coefficients
/// are of the order of 0.1.
const BASE_WEIGHT: f32 = 3e-6;

/// The problem, and what a schedule needs to know of it.
pub(crate) struct Scheduler {
    /// The problem; each worker has all columns.
    lasso: Lasso,
    /// Whether two columns may not be in the same clock: (columns, columns).
    conflicts: Vec<Vec<bool>>,
    /// The seed of the run.
    seed: u64,
    /// P: the most coefficients of a clock, over all workers.
    together: usize,
}

impl Scheduler {
    /// A scheduler of at most `together` coefficients a clock.
    pub(crate) fn new(lasso: Lasso, seed: u64, together: usize) -> Self {
        let conflicts =
            |index| lasso.correlations(index).iter().map(|found| found.abs() >= CORRELATION_MAX).collect();
        let conflicts = (0..lasso.columns.len()).map(conflicts).collect();
        Self { lasso, conflicts, seed, together }
    }

    /// The coefficients of a clock, from the rows of the table `updates`.
    ///
    /// Sorted by exponentially distributed times, each with its weight as its rate, coefficients come as if each next one were drawn in
    /// proportion to its weight.
    pub(crate) fn schedule(&self, clock: u64, updates: &[f32]) -> Vec<u32> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(clock));
        let time = |update: &[f32]| {
            let age = clock as f32 + 1.0 - update[NEXT_CLOCK];
            let weight = (update[LAST_CHANGE] + BASE_WEIGHT) * age;
            let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            -uniform.ln() / f64::from(weight)
        };
        let times: Vec<f64> = updates.chunks_exact(2).map(time).collect();
        let mut order: Vec<usize> = (0..times.len()).collect();
        order.sort_by(|one, other| times[*one].total_cmp(&times[*other]));
        let mut chosen: Vec<usize> = Vec::new();
        for candidate in order {
            if chosen.len() < self.together && chosen.iter().all(|other| !self.conflicts[candidate][*other]) {
                chosen.push(candidate);
            }
        }
        chosen.into_iter().map(|index| index as u32).collect()
    }
}

/// The part of a worker: every n-th coefficient.
fn part(chosen: &[u32], rank: usize, workers: usize) -> Vec<u32> {
    chosen.iter().copied().skip(rank).step_by(workers).collect()
}

/// The rows of the table `updates` for coefficients that a worker has improved in a clock.
fn updates(mine: &[u32], change: &Change, first_row: Row, clock: u64) -> Rows {
    let mut rows: Vec<(Row, [f32; 2])> = Vec::new();
    for &index in mine {
        let found = change.beta.iter().find(|(column, _)| *column == index);
        let last_change = found.map_or(0.0, |(_, delta)| delta.abs());
        rows.push((first_row + u64::from(index), [last_change, clock as f32 + 1.0]));
    }
    rows.sort_unstable_by_key(|(row, _)| *row);
    let (indices, values): (Vec<Row>, Vec<[f32; 2]>) = rows.into_iter().unzip();
    Rows { indices: indices.into_iter().collect(), values: values.concat() }
}

/// The algorithm at one worker.
pub(crate) struct Strads {
    /// The schedule.
    scheduler: Arc<Scheduler>,
    /// The last epoch at whose start this worker has computed the duality gap; `None` before the first one.
    checked: Option<u64>,
}

impl Strads {
    /// A worker that has done nothing yet.
    pub(crate) fn new(scheduler: Arc<Scheduler>) -> Self {
        Self { scheduler, checked: None }
    }
}

impl Program for Strads {
    const NAME: &'static str = "strads";

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
        let rows = clock.layout.rows("updates").expect("it is one of the tables");
        let state = clock.get(self.scheduler.lasso.state_rows()).expect("there are as many");
        let last = clock.get(RowSet::range(rows.clone())).expect("they are the table's");
        let (state, last) = (state.await?, last.await?);
        let scheduler = Arc::clone(&self.scheduler);
        let (number, rank, workers) = (clock.number, clock.rank.index(), clock.member_count);
        let is_checked = self.checked == Some(clock.epoch);
        let found = clock.compute(count, move || {
            let lasso = &scheduler.lasso;
            let mine = part(&scheduler.schedule(number, &last), rank, workers);
            let change = lasso.change(&state, mine.iter().copied());
            let (beta, residual) = lasso.split(&state);
            let objective = lasso.objective(beta, residual);
            let is_end = objective > OBJECTIVE_MAX || !is_checked && lasso.gap(&state) <= GAP_MAX;
            (lasso.additions(&change), updates(&mine, &change, rows.start, number), objective, is_end)
        });
        let (additions, updates, objective, is_end) = found.await?;
        self.checked = Some(clock.epoch);
        if is_end {
            context.end_run();
        }
        for rows in [additions, updates] {
            clock.add(rows).expect("finite numbers: the run ends before they are too large");
        }
        clock.end(SampleStats { samples: count, loss: objective * count as f64 });
        Ok(Flow::Continue(()))
    }
}

/// The tables of the problem, and for each coefficient its last change and the number after the clock of that. No worker is ahead of another
/// one, and `batch` is that of all of them together.
pub(crate) fn table_spec(lasso: &Lasso) -> TableSpec {
    let replace = |RowChange { values, added, .. }: RowChange<'_>| values.copy_from_slice(added);
    // Should two workers have improved the same coefficient in a clock, the order of their additions does not matter.
    let keep_larger = |earlier: &mut [f32], more: &[f32]| {
        earlier.iter_mut().zip(more).for_each(|(earlier, more)| *earlier = earlier.max(*more));
    };
    let rule = RowRule { name: "replace", moments: 0, apply: replace, combine: keep_larger };
    let updates = Table {
        rule: TableRule::Custom(rule),
        apply_mode: ApplyMode::PerClock,
        ..Table::additive("updates", lasso.columns.len() as u64, 2)
    };
    let tables = lasso.tables().into_iter().chain([updates]).collect();
    TableSpec { batch_scope: BatchScope::Global, ..TableSpec::new(tables, ReadPolicy::Staleness(0)) }
}

/// In a row of the table `updates`: the absolute value of the coefficient's last change.
const LAST_CHANGE: usize = 0;
/// In a row of the table `updates`: the number of the clock after the last update; 0 before the first one.
const NEXT_CLOCK: usize = 1;

fn main() -> ExitCode {
    let lasso = Lasso::of_environment();
    let (spec, columns) = (table_spec(&lasso), lasso.clone());
    let program = move |loaded: &Loaded| {
        let (seed, together) = (loaded.config.seed, loaded.config.batch_size as usize);
        Strads::new(Arc::new(Scheduler::new(columns.clone(), seed, together)))
    };
    peergrad::train(lasso.name, lasso).epochs(1000).batch(16).tables(move |_| spec.clone(), program).run()
}
