//! L-BFGS: a quasi-Newton method over all samples, without a coordinator.
//!
//! The parameters, their gradient, a direction and the last steps are vectors of one [table](crate::table). Owners compute with them in place;
//! no worker ever holds more than the parameters and a gradient.
//!
//! ```text
//! worker                                    owners
//!   a portion of a pass is leased
//!   the search so far                 <--     one row
//!   if the pass before is not in it:
//!     losses, dot products            <--     sums, products of all vectors
//!     the search after that           -->     the first one counts
//!   the operations that follow        -->     once in each chunk
//!   the point                         <--     the parameters to try
//!   the portion's gradient and loss   -->     once, also if two workers send it
//! ```
//! Nobody decides alone. The search (`search.rs`) is a function of a few numbers, and of several workers that compute it the first one counts. Each
//! worker derives the same operations from it, and each chunk carries them out once. So the run goes on if any of them is lost, at any moment.
//!
//! The samples are leased in [portions of a pass](crate::table::lease_table). A portion that two workers have computed is added once.
//!
//! # Reading
//! Dean et al., *Large Scale Distributed Deep Networks*, 2012, section 4.2 (Sandblaster), where a coordinator sends the operations.

use std::ops::ControlFlow::Continue;
use std::sync::Arc;

use peergrad_models::task::Task;
use peergrad_protocol::limits::ROUND_KEYS_MAX;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{IdempotencyKey, Reduce, RowSet, Rows};

use crate::program::context::{Clock, Context, Interrupted};
use crate::program::loader::Loaded;
use crate::program::programs::ssp::finish;
use crate::program::{Flow, Program};
use crate::table::{ApplyMode, Init, RowChange, RowRule, Table, TableLayout, TableRule};
pub use search::LbfgsSettings;
use search::{Pass, Search, joined, row_width, split, vector};

mod search;

/// The L-BFGS program.
pub struct Lbfgs {
    /// The model and its data.
    task: Arc<dyn Task>,
    /// The settings of the method.
    settings: LbfgsSettings,
    /// The number of parameters.
    parameters: usize,
    /// The point of a pass, with the number of the pass. `None` if it is yet to be read.
    point: Option<(u64, Arc<Vec<f32>>)>,
}

impl Lbfgs {
    /// The program for a loaded task.
    #[must_use]
    pub fn of(loaded: &Loaded, settings: LbfgsSettings) -> Self {
        let parameters = loaded.manifest.parameter_count();
        Self { task: Arc::clone(&loaded.task), settings, parameters, point: None }
    }

    /// The tables for a model of so many parameters.
    #[must_use]
    pub fn layout(parameters: usize, settings: &LbfgsSettings) -> TableLayout {
        let width = parameters.div_ceil(PARTS_WANTED).next_multiple_of(16);
        let vectors = Table::of_vectors(VECTORS, settings.vectors(), parameters.max(1), width);
        let row = |name, width, rule| Table {
            rule: TableRule::Custom(rule),
            apply_mode: ApplyMode::Immediate,
            ..Table::additive(name, 1, width)
        };
        TableLayout::new(vec![
            Table { init: Init::Parameters, ..vectors },
            row(LOSSES, LOSS_WIDTH, SUM_OF_PASS),
            row(SEARCH, row_width(settings), FIRST_OF_PASS),
        ])
    }

    /// Reads how far the search is.
    async fn search(&self, clock: &Clock) -> Result<Search, Interrupted> {
        let row = clock.pull(rows(&clock.layout, SEARCH)).expect("there is such a row").await?;
        Ok(Search::from_row(&row.values, &self.settings).unwrap_or_default())
    }

    /// The search that counts, if this one was read from an owner whose replicas may not have it yet. Nothing may follow from a search that
    /// the loss of its owner could undo, for another one would come in its place.
    async fn settled(&self, clock: &Clock, search: Search) -> Result<Search, Interrupted> {
        if search.passes == 0 {
            return Ok(search);
        }
        // The owner keeps the first one of a pass. Once this addition is safe, so is the row that it was added to.
        let row = Rows { indices: rows(&clock.layout, SEARCH), values: search.to_row() };
        if clock.add(row).is_ok() {
            clock.push().await?;
        }
        self.search(clock).await
    }

    /// Computes the search after `passes` passes, unless another worker has done so, and returns the one that counts.
    async fn advance(
        &self,
        clock: &Clock,
        before: &Search,
        passes: u64,
        is_last: bool,
    ) -> Result<Search, Interrupted> {
        let losses = clock.pull(rows(&clock.layout, LOSSES)).expect("there is such a row");
        let vectors = (0..self.settings.vectors() as u32).collect();
        let products = clock.reduce(VECTORS, Reduce::Gram(vectors)).expect("there are such vectors");
        let loss = mean_loss(&losses.await?.values, passes, u64::from(self.task.sample_count()));
        let pass = Pass { loss, products: products.await? };
        let after = before.after(&pass, passes, is_last, &self.settings);
        self.settled(clock, after).await
    }

    /// The point of the pass that the search leads to. All owners that have not moved on to it do so now.
    async fn point(&mut self, clock: &Clock, search: &Search) -> Result<Arc<Vec<f32>>, Interrupted> {
        if let Some((pass, point)) = &self.point
            && *pass == search.passes
        {
            return Ok(Arc::clone(point));
        }
        self.move_on(clock, search);
        let indices = clock.layout.vector_rows(VECTORS, vector::POINT).expect("there is such a vector");
        let rows = clock.pull(indices.clone()).expect("there are such rows").await?;
        let mut point = dense(&indices, &rows, clock.layout.width(0));
        point.resize(self.parameters, 0.0);
        let point = Arc::new(point);
        self.point = Some((search.passes, Arc::clone(&point)));
        Ok(point)
    }

    fn move_on(&self, clock: &Clock, search: &Search) {
        let key = IdempotencyKey { round: 2 * search.passes, number: 0 };
        let operations = search.operations(&self.settings);
        clock.map_once(key, VECTORS, operations).expect("finite factors of vectors that exist");
    }

    /// Computes the portion of the clock at this point, and adds its gradient and loss. Returns its statistics.
    async fn compute(
        &self,
        clock: &Clock,
        search: &Search,
        point: Arc<Vec<f32>>,
    ) -> Result<SampleStats, Interrupted> {
        let (task, samples, info) = (self.task.clone(), clock.samples.clone(), clock.info());
        let cost = samples.len() as u64;
        let scale = 1.0 / task.sample_count() as f32;
        let work = move || {
            let mut gradient = vec![0.0; point.len()];
            let loss = task.contribute(&info, &point, &samples, &mut gradient);
            gradient.iter_mut().for_each(|element| *element *= scale);
            (gradient, loss)
        };
        let (mut gradient, loss) = clock.compute(cost, work).await?;
        let is_finite = loss.is_finite() && gradient.iter().all(|element| element.is_finite());
        if !is_finite {
            gradient.fill(0.0);
        }
        let mut indices: Vec<_> = Vec::new();
        let of_gradient =
            clock.layout.vector_rows(VECTORS, vector::GRADIENT).expect("there is such a vector");
        let width = clock.layout.width(0);
        gradient.resize(of_gradient.len() * width, 0.0);
        indices.extend(of_gradient.ranges());
        indices.extend(rows(&clock.layout, LOSSES).ranges());
        let [high, low] = split(if is_finite { loss } else { 0.0 });
        let [many, few] = split(cost as f64);
        let failed = if is_finite { 0.0 } else { 1.0 };
        gradient.extend([clock.epoch as f32 + 1.0, high, low, many, few, failed]);
        let sums = Rows { indices: indices.into_iter().collect(), values: gradient };
        let portion = clock.position * ROUND_KEYS_MAX as u64 / u64::from(self.task.sample_count());
        let key = IdempotencyKey { round: 2 * clock.epoch + 1, number: portion as u32 };
        clock.add_once(key, sums).expect("finite rows of these tables");
        // A step that is too long is tried again with another length. Only at the first point there is none.
        let failed = if search.passes == 0 { f64::NAN } else { search.value() * cost as f64 };
        Ok(SampleStats { samples: cost, loss: if is_finite { loss } else { failed } })
    }
}

impl Program for Lbfgs {
    const NAME: &'static str = "l-bfgs";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.samples.is_empty() && !clock.is_over {
            clock.end(SampleStats::default());
            return Ok(Continue(()));
        }
        let mut search = self.search(&clock).await?;
        if clock.is_over && !search.is_over {
            let passes = search.passes + 1;
            search = self.advance(&clock, &search, passes, true).await?;
        } else if !clock.is_over && search.passes < clock.epoch && !search.is_over {
            search = self.advance(&clock, &search, clock.epoch, false).await?;
        } else if self.point.as_ref().is_none_or(|(pass, _)| *pass != search.passes) {
            search = self.settled(&clock, search).await?;
        }
        if search.is_over {
            self.move_on(&clock, &search);
            clock.push().await?;
            context.end_run();
            return finish(clock).await;
        }
        let stats = if search.passes > clock.epoch {
            // Another worker has computed a copy of these samples.
            let samples = clock.samples.len() as u64;
            SampleStats { samples, loss: search.value() * samples as f64 }
        } else {
            let point = self.point(&clock, &search).await?;
            self.compute(&clock, &search, point).await?
        };
        // The worker does not wait until the sums are safe: the node repeats them until they are.
        drop(clock.commit(stats));
        Ok(Continue(()))
    }
}

/// The rows of a table.
fn rows(layout: &TableLayout, table: &str) -> RowSet {
    RowSet::range(layout.rows(table).expect("the program has this table"))
}

/// The vector that consists of these rows of `width` numbers, of which those that are zero are left out.
fn dense(indices: &RowSet, rows: &Rows, width: usize) -> Vec<f32> {
    let mut vector = Vec::with_capacity(indices.len() * width);
    let mut found = rows.indices.iter().zip(rows.values.chunks_exact(width)).peekable();
    for row in indices.iter() {
        match found.next_if(|(found, _)| *found == row) {
            Some((_, values)) => vector.extend_from_slice(values),
            None => vector.resize(vector.len() + width, 0.0),
        }
    }
    vector
}

/// The mean loss of a pass over `samples` samples, after which `passes` are complete; infinite if it is not complete.
fn mean_loss(row: &[f32], passes: u64, samples: u64) -> f64 {
    match *row {
        [pass, high, low, many, few, 0.0] if pass as u64 == passes && joined(many, few) as u64 == samples => {
            joined(high, low) / samples as f64
        }
        _ => f64::INFINITY,
    }
}

/// The row of the losses: the pass, from 1; the sum of the losses and the number of samples, each in two parts; and the number of portions
/// whose result is not finite. A later pass replaces an earlier one.
const SUM_OF_PASS: RowRule =
    RowRule { name: "sum of a pass", moments: 0, apply: apply_sum, combine: add_to_pass };

fn apply_sum(change: RowChange<'_>) {
    add_to_pass(change.values, change.added);
}

fn add_to_pass(sums: &mut [f32], added: &[f32]) {
    if added[0] > sums[0] {
        sums.copy_from_slice(added);
    } else if added[0] == sums[0] {
        for at in [1, 3] {
            let sum = joined(sums[at], sums[at + 1]) + joined(added[at], added[at + 1]);
            [sums[at], sums[at + 1]] = split(sum);
        }
        sums[5] += added[5];
    }
}

/// The row of the search: that of a later pass replaces that of an earlier one, and the first one of a pass counts.
const FIRST_OF_PASS: RowRule =
    RowRule { name: "first of a pass", moments: 0, apply: apply_first, combine: keep_first };

fn apply_first(change: RowChange<'_>) {
    keep_first(change.values, change.added);
}

fn keep_first(known: &mut [f32], added: &[f32]) {
    if added[0] > known[0] {
        known.copy_from_slice(added);
    }
}

const VECTORS: &str = "vectors";
const LOSSES: &str = "losses";
const SEARCH: &str = "search";
/// The numbers of the row of losses.
const LOSS_WIDTH: usize = 6;
/// About how many rows a vector has.
const PARTS_WANTED: usize = 1 << 12;
