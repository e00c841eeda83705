//! Clipping: before owners update, all learn the norm of the whole gradient.
//!
//! An owner has the sums of its own shard, and the norm is that of all shards together. So each owner tells all members one number. With
//! that, owners and holders of replicas shorten the gradient by the same factor.
//!
//! # How it works
//! ```text
//! owner                                                            member
//!   | == the last sum of its shard is there                           |
//!   | -- ShardNorm: the sum of the squares of its sums -------------> |   to all; the norms of the other shards come as well
//!   | == all are there: added up by rank, they give the factor        |
//!   | == the shard is updated                                         |   replicas are updated with the same factor
//!   | ===== new parameters =========================================> |
//! ```
//! In a whole step (see [`rounds`](super::rounds)) every member has all sums, and computes the factor without a message.
//!
//! # Cost
//! One hop more in each step, and a small message from each owner to each member. No shard is updated before the last sum of all shards is
//! there, so updating and gathering do not overlap with summing. A run without clipping does none of this.
//!
//! # Invariants
//! - Sums of squares are added up in one order: elements, chunks of a shard, ranks. So the factor has the same bits at all members.
//! - An owner has all sums of a step only after all members have begun it: no norm of a later step arrives here. (With backup workers, a
//!   norm may arrive before the round begins, but not before the step before is complete.)
//! - A norm is sent once in a view. A link that breaks forces the next view, which repeats the step.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::message::{ShardNorm, TrainingMessage};
use peergrad_protocol::{PeerId, Rank, StepNumber};

use super::state::StepState;
use crate::io::{Output, Reject};
use crate::state::shard_map::StepShards;

/// The norms of the step in progress, as far as they are known.
#[derive(Default)]
pub(super) struct ShardNorms {
    /// The step that they belong to.
    step: StepNumber,
    /// By rank: the sum of the squares of the sums of each owner that has told it.
    squares: BTreeMap<Rank, f64>,
}

impl ShardNorms {
    /// In a new view, owners tell their norms again.
    pub(super) fn leave_view(&mut self) {
        self.squares.clear();
    }

    /// Drops the norms of a step that is over.
    fn begin(&mut self, step: StepNumber) {
        if self.step != step {
            self.step = step;
            self.squares.clear();
        }
    }

    /// An owner tells the norm of its shard.
    ///
    /// # Errors
    /// The sender owns nothing in the step in progress, or has told its norm before, or the step is yet to come.
    pub(super) fn receive(&mut self, state: &StepState, from: PeerId, norm: ShardNorm) -> Result<(), Reject> {
        let rank = state.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        if norm.step < state.step {
            // This member has completed the step without it: it neither owned nor replicated anything.
            return Ok(());
        }
        self.begin(state.step);
        let is_owner = !state.base.shards(state.step).owned[rank.index()].is_empty();
        if norm.step > state.step || !is_owner || self.squares.contains_key(&rank) {
            return Err(Reject::OutOfPlace);
        }
        self.squares.insert(rank, norm.squares);
        Ok(())
    }

    /// Tells all members the sum of the squares of this member's shard, unless they know.
    pub(super) fn tell(&mut self, state: &StepState, squares: f64, out: &mut Vec<Output>) {
        self.begin(state.step);
        if self.squares.insert(state.base.rank, squares).is_none() {
            let norm = TrainingMessage::ShardNorm(ShardNorm { step: state.step, squares });
            state.base.broadcast(&norm.in_view(state.base.digest()), out);
        }
    }

    /// The sum of the squares of all sums of the step in progress; `None` until all owners have told theirs.
    pub(super) fn total(&self, state: &StepState, shards: &StepShards) -> Option<f64> {
        // Most calls come before the last norm does.
        let are_known = self.step == state.step && self.squares.len() == owners(shards).count();
        are_known.then(|| self.squares.values().sum())
    }

    /// The owners whose norm is not known here.
    pub(super) fn awaited(&self, state: &StepState, shards: &StepShards) -> BTreeSet<Rank> {
        owners(shards).filter(|rank| self.step != state.step || !self.squares.contains_key(rank)).collect()
    }
}

/// The members that own chunks in a step, by rank.
fn owners(shards: &StepShards) -> impl Iterator<Item = Rank> {
    let owned = shards.owned.iter().enumerate().filter(|(_, chunks)| !chunks.is_empty());
    owned.map(|(rank, _)| Rank::from_index(rank))
}
