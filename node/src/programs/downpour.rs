//! Downpour: workers read, compute and add without waiting for anybody.
//!
//! A worker reads the parameters every `n_fetch` clocks and sends what it has added every `n_push`. In between it goes on with the
//! parameters that it has, and, where owners add what they are sent, with its own additions to them. With both at 1 it is plain
//! asynchronous SGD.
//!
//! What many workers add to the same parameters at once is too much for a learning rate that is right for one. Adagrad, whose rate for
//! an element falls with what was added to it, by whomever, evens that out; it lives with the owners and costs no traffic. Beginning
//! with one worker and letting the others in by and by helps for the same reason.
//!
//! # Reading
//! Dean et al., *Large Scale Distributed Deep Networks*, 2012, section 4.1 and the appendix.

use std::ops::ControlFlow::Continue;
use std::sync::Arc;

use peergrad_protocol::Buffer;
use peergrad_protocol::message::Tally;

use crate::loader::Loaded;
use crate::peer::{Interrupted, Peer};
use crate::program::{Flow, Program};
use crate::programs::ssp::{finish, scaled};
use crate::table::TableRule;
use crate::task::Task;

/// The program.
pub struct Downpour {
    task: Arc<dyn Task>,
    is_sum: bool,
    n_push: u64,
    n_fetch: u64,
    /// The parameters that it goes on with, and the clocks since it has read them.
    local: Option<(Arc<Buffer>, u64)>,
    /// Clocks of which nothing was sent.
    unsent: u64,
}

impl Downpour {
    /// Trains what was loaded, with parameters in a table of this rule.
    #[must_use]
    pub fn of(loaded: &Loaded, rule: TableRule, n_push: u64, n_fetch: u64) -> Self {
        let (task, is_sum) = (Arc::clone(&loaded.task), rule == TableRule::Sum);
        Self { task, is_sum, n_push, n_fetch, local: None, unsent: 0 }
    }
}

impl Program for Downpour {
    const NAME: &'static str = "downpour";

    async fn round(&mut self, peer: &Peer) -> Result<Flow, Interrupted> {
        // Whatever interrupts it, it begins with what all have.
        let local = self.local.take();
        let clock = peer.begin_clock().await?;
        if clock.is_over {
            return finish(clock).await;
        }
        if clock.samples.is_empty() {
            // What is left is with others; what this one has not sent yet, somebody may wait for.
            clock.push().await?;
            self.unsent = 0;
            clock.end(Tally::default());
            return Ok(Continue(()));
        }
        let (parameters, age) = match local.filter(|(_, age)| *age < self.n_fetch) {
            Some(local) => local,
            None => (clock.parameters().await?, 0),
        };
        let scale = if self.is_sum { -clock.rate as f32 } else { 1.0 } / clock.samples.len() as f32;
        let (task, samples, layout) = (self.task.clone(), clock.samples.clone(), clock.layout.clone());
        let is_kept = age + 1 < self.n_fetch;
        let goes_on = is_kept && self.is_sum;
        let work = move || {
            let mut gradient = vec![0.0; parameters.len()];
            let loss = task.gradient(&parameters, &samples, &mut gradient);
            let tally = Tally { samples: samples.len() as u64, loss };
            let (rows, tally) = scaled(gradient, scale, tally, &layout);
            if !goes_on {
                return (rows, tally, parameters);
            }
            let mut next = Buffer::from_values(&parameters);
            next.iter_mut().zip(&rows.values).for_each(|(parameter, added)| *parameter += added);
            (rows, tally, Arc::new(next))
        };
        let (rows, tally, next) = clock.compute(clock.samples.len() as u64, work).await?;
        clock.add(rows).expect("finite rows of the table");
        self.unsent += 1;
        if self.unsent >= self.n_push {
            // It need not be safe before the worker goes on: the node says it again until it is.
            drop(clock.push());
            self.unsent = 0;
        }
        self.local = is_kept.then_some((next, age + 1));
        clock.end(tally);
        Ok(Continue(()))
    }
}
