//! The contribution of this member to a round: all of it, or its first elements while the others are still being computed.
//!
//! ```text
//! contribution    known: may be sent and added | not known        the border moves to the right only
//! ```
//! Segments of a shard are in the order of the vector. So those that are known are the first ones of each shard.

use peergrad_protocol::Buffer;
use peergrad_protocol::message::{Phase, SampleStats};

use super::Round;
use crate::plan::{Plan, Segment};

/// What a member adds to the sums of a round, as far as it is known.
#[derive(Debug)]
pub struct RoundContribution {
    /// (elements of the plan's vector), or none if the member is not a contributor.
    pub vector: Buffer,
    /// The samples and loss behind all of it.
    pub stats: SampleStats,
    /// How many elements of the vector are known, the first ones.
    pub known: usize,
}

impl RoundContribution {
    /// A vector that is known.
    #[must_use]
    pub fn whole(vector: Buffer, stats: SampleStats) -> Self {
        Self { known: vector.len(), vector, stats }
    }
}

/// How many elements this member contributes under `plan`.
pub(super) fn len(plan: &Plan) -> usize {
    if plan.contributes(plan.rank) { plan.layout.len() } else { 0 }
}

impl Round {
    /// How many elements of the contribution are known; they are the first ones.
    #[must_use]
    pub fn known(&self) -> usize {
        self.known
    }

    /// Whether all of the contribution is known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known == len(&self.plan)
    }

    /// Whether a segment can be taken in now. A sum cannot before this member's part of it is known.
    #[must_use]
    pub fn can_receive(&self, phase: Phase, owner: usize, index: usize) -> bool {
        if phase != Phase::Reduce || self.is_known() || owner >= self.plan.rank_count() {
            return true;
        }
        self.plan.layout.shard(owner).segments().get(index).is_none_or(|segment| self.knows(segment))
    }

    /// Whether this member's part of a segment is known.
    pub(super) fn knows(&self, segment: &Segment) -> bool {
        segment.ranges().last().is_none_or(|last| last.end <= self.known)
    }

    /// The next elements of the contribution are known. `room` is as for [`Round::receive`].
    ///
    /// # Panics
    /// If the contribution has fewer elements.
    pub fn extend(&mut self, elements: &[f32], room: impl FnOnce() -> Buffer) {
        let vector = self.contribution.as_mut().expect("kept until complete");
        vector[self.known..self.known + elements.len()].copy_from_slice(elements);
        self.known += elements.len();
        self.sum_if_alone(room);
    }

    /// All of the contribution is known: a vector with the elements that were known before. Its samples and loss are those of what is sent and
    /// added from now on. `room` is as for [`Round::receive`].
    ///
    /// # Panics
    /// If it is not known to the end, or has another length.
    pub fn make_known(&mut self, contribution: RoundContribution, room: impl FnOnce() -> Buffer) {
        let RoundContribution { vector, stats, known } = contribution;
        assert!(known == len(&self.plan) && vector.len() == known, "a contribution to every element");
        (self.contribution, self.contribution_stats, self.known) = (Some(vector), stats, known);
        self.sum_if_alone(room);
    }
}
