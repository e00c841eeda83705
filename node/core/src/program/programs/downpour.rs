//! Downpour: workers read, compute and add without waiting for anybody.
//!
//! A worker reads the parameters every `n_fetch` clocks and sends what it has added every `n_push`. In between it goes on from the
//! parameters that it has, against its own gradients. When it reads again it goes on from what owners have, with its own additions to
//! it where they only add: what it has not sent yet is not in what they make of gradients. With both at 1 it is plain asynchronous SGD.
//!
//! What many workers add to the same parameters at once is too much for a learning rate that is right for one. Adagrad, whose rate for
//! an element falls with what was added to it, by whomever, evens that out; it lives with the owners and costs no traffic. Beginning
//! with one worker and letting the others in by and by helps for the same reason.
//!
//! # Reading
//! Dean et al., *Large Scale Distributed Deep Networks*, 2012, section 4.1 and the appendix.

use std::ops::ControlFlow::Continue;
use std::sync::Arc;

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
    /// Clocks after which it sends what it has added.
    pub n_push: u64,
    /// Clocks after which it reads.
    pub n_fetch: u64,
    /// The rate at which it goes on by itself in between, where owners update by a rule; `None`: that of the optimizer.
    pub local_rate: Option<f64>,
}

impl Default for DownpourSettings {
    fn default() -> Self {
        Self { n_push: 1, n_fetch: 1, local_rate: None }
    }
}

/// The program.
pub struct Downpour {
    task: Arc<dyn Task>,
    is_sum: bool,
    settings: DownpourSettings,
    /// The parameters that it goes on with, and the clocks since it has read them.
    local: Option<(Arc<Buffer>, u64)>,
    /// Clocks of which nothing was sent.
    unsent: u64,
}

impl Downpour {
    /// Trains what was loaded, with parameters in a table of this rule.
    ///
    /// # Panics
    /// If it is to go on by itself with a task that is sparse.
    #[must_use]
    pub fn of(loaded: &Loaded, rule: TableRule, settings: DownpourSettings) -> Self {
        let (task, is_sum) = (Arc::clone(&loaded.task), rule == TableRule::Sum);
        assert!(settings.n_fetch == 1 || task.sparse().is_none(), "what is touched is read in each clock");
        Self { task, is_sum, settings, local: None, unsent: 0 }
    }

    /// The gradient at the parameters that this worker goes on with, times `scale`; and where it goes on from.
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
        // What owners add as it is, it adds itself.
        let rate = if self.is_sum { -1.0 } else { self.settings.local_rate.unwrap_or(clock.rate) as f32 };
        let (task, samples, layout) = (self.task.clone(), clock.samples.clone(), clock.layout.clone());
        let work = move || {
            let mut gradient = vec![0.0; parameters.len()];
            let loss = task.gradient(&parameters, &samples, &mut gradient);
            let (rows, stats) =
                scaled(gradient, scale, SampleStats { samples: samples.len() as u64, loss }, &layout);
            if is_last {
                return (rows, stats, None);
            }
            let mut next = Buffer::from_values(&parameters);
            next.iter_mut().zip(&rows.values).for_each(|(parameter, slope)| *parameter -= rate * slope);
            (rows, stats, Some((Arc::new(next), age + 1)))
        };
        clock.compute(clock.samples.len() as u64, work).await
    }
}

impl Program for Downpour {
    const NAME: &'static str = "downpour";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        // Whatever interrupts it, it begins with what all have.
        let local = self.local.take();
        let clock = context.begin_clock().await?;
        if clock.is_over {
            return finish(clock).await;
        }
        if clock.samples.is_empty() {
            // What is left is with others; what this one had not sent yet, the node has, as somebody may wait for it.
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
        self.unsent += 1;
        if self.unsent >= self.settings.n_push {
            // It need not be safe before the worker goes on: the node says it again until it is.
            drop(clock.push());
            self.unsent = 0;
        }
        self.local = next;
        clock.end(stats);
        Ok(Continue(()))
    }
}
