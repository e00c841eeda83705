//! The batch: what a step and a clock have in common.

use std::ops::Range;
use std::sync::Arc;

use peergrad_models::task::{StepInfo, Wanted};
use peergrad_protocol::Rank;
use peergrad_protocol::cursor::mixed;

/// The samples of one step or clock at this member, and the view in which it began.
///
/// A [`Step`](crate::program::context::Step) and a [`Clock`](crate::program::context::Clock) each have one, and dereference to it.
pub struct Batch {
    /// Whether the run has no more samples: the program should end its loop.
    pub is_over: bool,
    /// The epoch its samples belong to.
    pub epoch: u64,
    /// The learning rate of the schedule, at the first local step.
    pub rate: f64,
    /// The numbers of its local steps, counted over the whole run; a single one unless the program takes local steps.
    pub local_steps: Range<u64>,
    /// Indices of the samples that this member computes. They may be empty, if there are none for this member at present.
    pub samples: Arc<[u32]>,
    /// Whether the members save a checkpoint of the state at which the step begins.
    pub is_checkpoint: bool,
    /// This member's rank in the view.
    pub rank: Rank,
    /// The number of members of the view.
    pub member_count: usize,
    /// The number that commands of this step or clock carry: each has its own.
    pub(crate) turn: u64,
    /// The seed of the run.
    pub(crate) run_seed: u64,
    /// The fewest elements of a part of a contribution; `None` if contributions are not handed out in parts.
    pub(crate) part_elements_min: Option<usize>,
    /// Whether the members still wait for what this one computes.
    pub(crate) wanted: Wanted,
}

impl Batch {
    /// What a task learns about the step or clock of this number.
    pub(crate) fn info(&self, number: u64) -> StepInfo {
        let Self { epoch, rate, is_checkpoint, member_count, .. } = *self;
        let rank = self.rank.index();
        let seed =
            [number, rank as u64].into_iter().fold(self.run_seed, |seed, part| mixed(seed ^ mixed(part)));
        StepInfo {
            number,
            epoch,
            rate,
            local_steps: self.local_steps.clone(),
            rank,
            member_count,
            is_checkpoint,
            seed,
            wanted: self.wanted.clone(),
        }
    }
}
