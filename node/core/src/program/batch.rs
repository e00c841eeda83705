//! The batch: what a step and a clock have in common.

use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::Rank;

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
    /// This member's rank in the view.
    pub rank: Rank,
    /// The number of members of the view.
    pub member_count: usize,
    /// The number that commands of this step or clock carry: each has its own.
    pub(crate) turn: u64,
}
