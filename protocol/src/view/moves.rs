//! Moves: chunks that change hands in a view, a few after each step.

use std::collections::BTreeSet;

use crate::id::Rank;
use crate::limits::{CHUNKS_MAX, REPLICAS_MAX};
use crate::wire::codec::{Decode, Encode};

use super::validate::are_distinct_chunks;

/// Chunks whose holders change, and when.
///
/// A listed chunk stays with the members that hold its state until its turn comes. All other chunks are where the placement among
/// the view's members puts them, from the first step of the view on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Moves {
    /// The moves, in the order in which they happen.
    pub list: Vec<Move>,
    /// Moves after each step; positive unless the list is empty.
    pub rate: u32,
    /// Chunks whose optimizer state no member of the view holds. Their holders in the first step start it from zero, with its own
    /// update count.
    pub restarted: Vec<u32>,
}

/// One chunk that is to move.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Move {
    /// The chunk's index.
    pub chunk: u32,
    /// Members that hold the chunk's state now, or start it: the owner first.
    pub from: Vec<Rank>,
}

impl Moves {
    /// How many of the list have happened after `steps` steps of the view.
    #[must_use]
    pub fn moved(&self, steps: u64) -> usize {
        let moved = steps.saturating_mul(u64::from(self.rate));
        usize::try_from(moved).unwrap_or(usize::MAX).min(self.list.len())
    }

    pub(super) fn are_bounded(&self) -> bool {
        self.list.len() <= CHUNKS_MAX
            && self.list.iter().all(|moved| moved.from.len() <= REPLICAS_MAX)
            && self.restarted.len() <= CHUNKS_MAX
    }

    pub(super) fn are_valid(&self, member_count: usize) -> bool {
        let is_move = |moved: &Move| {
            let distinct: BTreeSet<&Rank> = moved.from.iter().collect();
            (1..=REPLICAS_MAX).contains(&moved.from.len())
                && distinct.len() == moved.from.len()
                && moved.from.iter().all(|rank| rank.index() < member_count)
        };
        self.list.iter().all(is_move)
            && are_distinct_chunks(self.list.iter().map(|moved| moved.chunk))
            && are_distinct_chunks(self.restarted.iter().copied())
            && (self.rate > 0 || self.list.is_empty())
    }
}
