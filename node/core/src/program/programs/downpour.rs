//! Downpour: workers read, compute and add without waiting for each other.
//!
//! A worker reads the parameters every `n_fetch` clocks and sends its additions every `n_push` clocks. In between it trains on with its
//! local parameters, to which it applies its own gradients. When it reads again, it continues from the owners' parameters. If the rule is a
//! sum, they include its unsent additions; if owners apply an optimizer, they do not. With both intervals at 1 this is plain asynchronous
//! SGD.
//!
//! If many workers add to the same parameters at once, a learning rate that suits one worker is too large. Adagrad lowers an element's rate
//! with all that was added to it, by any worker, and so evens this out. Its state is at the owners and costs no traffic. To begin with one
//! worker and to admit the others gradually helps for the same reason.
//!
//! # Reading
//! Dean et al., *Large Scale Distributed Deep Networks*, 2012, section 4.1 and the appendix.

use std::ops::ControlFlow::Continue;
use std::sync::Arc;

use peergrad_models::optimizer::Bounds;
use peergrad_models::task::Task;
use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::Rows;

use crate::program::context::{Clock, Context, Interrupted};
use crate::program::loader::Loaded;
use crate::program::programs::gradients::{gradient, scaled};
use crate::program::programs::ssp::finish;
use crate::program::{Flow, Program};
use crate::table::TableRule;

/// How often a worker sends and reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DownpourSettings {
    /// The number of clocks after which a worker sends its additions.
    pub n_push: u64,
    /// The number of clocks after which a worker reads.
    pub n_fetch: u64,
    /// The learning rate of the local updates in between, if owners apply an optimizer; `None`: the schedule's rate.
    pub local_rate: Option<f64>,
}

impl Default for DownpourSettings {
    fn default() -> Self {
        Self { n_push: 1, n_fetch: 1, local_rate: None }
    }
}

/// The Downpour program.
pub struct Downpour {
    /// The model and its data.
    task: Arc<dyn Task>,
    /// Whether owners add what they receive; otherwise they apply an optimizer to it.
    is_sum: bool,
    /// How often the worker reads and sends, and its local learning rate.
    settings: DownpourSettings,
    /// Where the local parameters stay; `None`: anywhere.
    bounds: Option<Bounds>,
    /// The local parameters, and the number of clocks since they were read; `None`: to be read in the next clock.
    local: Option<(Arc<Buffer>, u64)>,
    /// The number of clocks since additions were last sent.
    unsent: u64,
}

impl Downpour {
    /// The program for a loaded task, with the parameters in a table of this rule.
    ///
    /// # Panics
    /// If a sparse task is to be trained locally between two reads.
    #[must_use]
    pub fn of(loaded: &Loaded, rule: TableRule, settings: DownpourSettings) -> Self {
        let (task, is_sum) = (Arc::clone(&loaded.task), rule == TableRule::Sum);
        assert!(settings.n_fetch == 1 || task.sparse().is_none(), "what is touched is read in each clock");
        Self { task, is_sum, settings, bounds: loaded.config.bounds, local: None, unsent: 0 }
    }

    /// Computes the gradient at the local parameters, times `scale`, and the local parameters after it.
    async fn train_locally(
        &self,
        clock: &Clock,
        local: Option<(Arc<Buffer>, u64)>,
        scale: f32,
    ) -> Result<(Rows, SampleStats, Option<(Arc<Buffer>, u64)>), Interrupted> {
        let (parameters, age) = match local {
            Some(local) => local,
            None => (clock.parameters().await?, 0),
        };
        let is_last = age + 1 == self.settings.n_fetch;
        // Where owners add what they receive, the worker adds it to its own parameters unchanged.
        let rate = if self.is_sum { -1.0 } else { self.settings.local_rate.unwrap_or(clock.rate) as f32 };
        let (task, samples, layout) = (self.task.clone(), clock.samples.clone(), clock.layout.clone());
        let (info, bounds) = (clock.info(), self.bounds);
        let work = move || {
            let mut gradient = vec![0.0; parameters.len()];
            let loss = task.contribute(&info, &parameters, &samples, &mut gradient);
            let (rows, stats) =
                scaled(gradient, scale, SampleStats { samples: samples.len() as u64, loss }, &layout);
            if is_last {
                return (rows, stats, None);
            }
            let mut next = Buffer::from_values(&parameters);
            next.iter_mut().zip(&rows.values).for_each(|(parameter, slope)| *parameter -= rate * slope);
            if let Some(bounds) = bounds {
                bounds.project(&mut next);
            }
            (rows, stats, Some((Arc::new(next), age + 1)))
        };
        clock.compute(clock.samples.len() as u64, work).await
    }
}

impl Program for Downpour {
    const NAME: &'static str = "downpour";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        // After any interruption the worker reads the shared parameters again.
        let local = self.local.take();
        let clock = context.begin_clock().await?;
        if clock.is_over {
            return finish(clock).await;
        }
        if clock.samples.is_empty() {
            // Other workers have the remaining samples. The node has pushed the unsent additions of this worker, since others may wait for
            // them.
            self.unsent = 0;
            clock.end(SampleStats::default());
            return Ok(Continue(()));
        }
        let scale = if self.is_sum { -clock.rate as f32 } else { 1.0 } / clock.samples.len() as f32;
        let (rows, stats, next) = if self.settings.n_fetch == 1 {
            let (rows, stats) = gradient(&self.task, &clock, scale).await?;
            (rows, stats, None)
        } else {
            self.train_locally(&clock, local, scale).await?
        };
        clock.add(rows).expect("finite rows of the table");
        self.local = next;
        self.unsent += 1;
        if self.unsent >= self.settings.n_push {
            self.unsent = 0;
            // The worker does not wait until the additions are safe: the node repeats them until they are.
            drop(clock.commit(stats));
        } else {
            clock.end(stats);
        }
        Ok(Continue(()))
    }
}
