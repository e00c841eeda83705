//! What a task learns about the step that it computes for.

use std::ops::Range;
use std::sync::{Arc, Weak};

/// The step for which a task computes, at one member.
#[derive(Clone, Debug)]
pub struct StepInfo {
    /// The number of the step, from 0; in a run with tables, of this worker's clock.
    pub number: u64,
    /// The epoch that its samples belong to, from 0.
    pub epoch: u64,
    /// The learning rate of the schedule, at the first of its local steps.
    pub rate: f64,
    /// The numbers of its local steps, counted over the whole run: a single one, unless the program takes local steps.
    pub local_steps: Range<u64>,
    /// This member's rank, below [`member_count`](Self::member_count).
    pub rank: usize,
    /// The number of members that take part.
    pub member_count: usize,
    /// Whether the members save a checkpoint of the parameters with which the step begins, so that all of them could begin it again. A task
    /// that keeps a state of its own can save that, too. A run with tables has no checkpoints.
    pub is_checkpoint: bool,
    /// A seed for what the task draws at random, such as dropout: another one in each local step, and at each member of a view.
    pub seed: u64,
    /// Whether the members still wait for the result.
    pub wanted: Wanted,
}

impl StepInfo {
    /// A step of one local step, in a single process that nobody else waits for.
    #[must_use]
    pub fn alone(number: u64, epoch: u64, rate: f64) -> Self {
        Self {
            number,
            epoch,
            rate,
            local_steps: number..number + 1,
            rank: 0,
            member_count: 1,
            is_checkpoint: false,
            seed: number,
            wanted: Wanted::always(),
        }
    }

    /// Whether the result still counts. The members may have gone on without it: then the task may return at once, with any result.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.is_wanted()
    }
}

/// Keeps the result of a job wanted, until it is dropped.
#[derive(Debug, Default)]
pub struct Claim(Arc<()>);

/// Whether there is still a [`Claim`] to a result; `None` if it is wanted in any case.
#[derive(Clone, Debug)]
pub struct Wanted(Option<Weak<()>>);

impl Claim {
    /// What is true until this claim is dropped.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted(Some(Arc::downgrade(&self.0)))
    }
}

impl Wanted {
    /// What is always true.
    #[must_use]
    pub fn always() -> Self {
        Self(None)
    }

    /// Whether the claim still stands.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.as_ref().is_none_or(|claim| claim.strong_count() > 0)
    }
}
