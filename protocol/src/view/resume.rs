//! What a new view does with the steps of its parent: continue, roll forward, restart from checkpoints, or merge.
//!
//! # Invariants
//! - The first step of a view that merges trains nothing: its batch is empty.
//! - A restart from checkpoints discards the step that was in progress.

use crate::cursor::{DataCursor, Span, are_disjoint};
use crate::id::{Rank, StepNumber, ViewDigest};
use crate::limits::{BATCH_SPANS_MAX, CHUNKS_MAX, HISTORY_MAX, MEMBERS_MAX, SAMPLES_MAX, STEPS_MAX};
use crate::message::SampleStats;
use crate::wire::codec::{Decode, Encode};

use super::validate::is_chunk;
use super::{Ancestor, InvalidView};

/// Where training resumes in a new view.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Recovery {
    /// The run starts here: every member draws the initial parameters from the seed in the specification.
    Initialize,
    /// Training continues.
    Resume(Resume),
}

/// What the members of a new view do with the steps of its parent.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Resume {
    /// The first step of the view. A member that has completed it in the parent undoes it.
    pub step: StepNumber,
    /// Members without parameters: they contribute nothing to `step`, and get the parameters from its all-gather.
    pub newcomers: Vec<Rank>,
    /// The assignment of the batch of `step`, if the parent has assigned it: each member gets what it has computed. `None` if the
    /// batch is still to be assigned.
    pub batch: Option<BatchParts>,
    /// How the step before is rolled forward, if it was interrupted and the members together hold all of it.
    pub forward: Option<RollForward>,
    /// Whether training restarts from checkpoints: all members but the newcomers load their own, written after `step` steps.
    pub is_restored: bool,
    /// The state of another branch that owners average into their own in the first step, which trains nothing.
    pub merge: Option<Box<Merge>>,
}

/// The state of another branch that is merged into this one. The other members join later, as newcomers.
///
/// The merge counts once the first step is complete. If the next view starts with the same step and does not repeat the merge, it
/// did not happen.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Merge {
    /// The view of the other branch.
    pub view: ViewDigest,
    /// Steps of the other branch behind its state.
    pub steps: StepNumber,
    /// Samples that only this branch has trained: the weight of its state.
    pub ours: u64,
    /// Samples that only the other branch has trained: the weight of its state.
    pub theirs: u64,
    /// The data cursor of the other branch. Samples that it has trained count as trained after the merge.
    pub cursor: DataCursor,
    /// The ancestors of the other branch's view, and that view last.
    pub history: Vec<Ancestor>,
}

impl Merge {
    /// The weight of the other state in the average, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f32 {
        (self.theirs as f64 / (self.ours as f64 + self.theirs as f64)) as f32
    }

    fn is_bounded(&self) -> bool {
        self.cursor.is_valid()
            && self.history.len() <= HISTORY_MAX
            && self.history.iter().all(|ancestor| ancestor.trained <= SAMPLES_MAX)
    }
}

/// The batch of one step, as it is assigned to members.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BatchParts {
    /// The epoch whose permutation the positions refer to.
    pub epoch: u64,
    /// By rank: the positions that the member computes.
    pub parts: Vec<Vec<Span>>,
}

/// How an interrupted step is completed.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct RollForward {
    /// The number of samples in the step's sums, and their loss.
    pub stats: SampleStats,
    /// Members that can send chunks which others lack.
    pub donors: Vec<Donor>,
}

/// A range of chunks that a member can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Donor {
    /// The first chunk.
    pub first: u32,
    /// The end of the range: one more than the last chunk.
    pub end: u32,
    /// The member that holds them.
    pub rank: Rank,
}

impl Resume {
    /// Training continues with `step`, without an interruption.
    #[must_use]
    pub fn at(step: StepNumber) -> Self {
        Self { step, newcomers: vec![], batch: None, forward: None, is_restored: false, merge: None }
    }

    /// Whether the parent was interrupted in a step; otherwise it ended between two steps.
    #[must_use]
    pub fn is_interruption(&self) -> bool {
        self.batch.is_some() || self.forward.is_some()
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.newcomers.len() <= MEMBERS_MAX
            && self.batch.as_ref().is_none_or(BatchParts::is_bounded)
            && self.forward.as_ref().is_none_or(|forward| forward.donors.len() <= CHUNKS_MAX)
            && self.merge.as_deref().is_none_or(Merge::is_bounded)
    }

    pub(super) fn validate(&self, member_count: usize, cursor: &DataCursor) -> Result<(), InvalidView> {
        if self.step.0 > STEPS_MAX {
            return Err(InvalidView::DataCursor);
        }
        let is_rank = |rank: Rank| rank.index() < member_count;
        let are_newcomers = self.newcomers.iter().all(|rank| is_rank(*rank))
            && self.newcomers.is_sorted_by(|a, b| a < b)
            // At least one member must have parameters.
            && self.newcomers.len() < member_count;
        let is_assigned = self.batch.as_ref().is_none_or(|batch| batch.is_valid(member_count, cursor));
        let has_donors = |forward: &RollForward| {
            let is_donor =
                |donor: &Donor| is_rank(donor.rank) && donor.first < donor.end && is_chunk(donor.end - 1);
            forward.donors.len() <= CHUNKS_MAX
                && forward.donors.iter().all(is_donor)
                && forward.stats.samples <= u64::from(u32::MAX)
        };
        let is_forward = self.forward.as_ref().is_none_or(has_donors);
        // A restart discards the interrupted step.
        let is_one_kind = !(self.is_restored && self.is_interruption());
        let can_merge = |merge: &Merge| {
            let is_bare = !self.is_restored && self.forward.is_none();
            let is_idle = self.batch.as_ref().is_none_or(BatchParts::is_empty);
            let counts = [merge.ours, merge.theirs];
            let has_weight = counts.iter().all(|count| *count <= SAMPLES_MAX) && counts != [0, 0];
            is_bare && is_idle && has_weight && merge.steps.0 <= STEPS_MAX && merge.is_bounded()
        };
        let is_merge = self.merge.as_deref().is_none_or(can_merge);
        if are_newcomers && is_assigned && is_forward && is_one_kind && is_merge {
            Ok(())
        } else {
            Err(InvalidView::Lists)
        }
    }
}

impl BatchParts {
    /// The number of samples in the batch.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.parts.iter().flatten().map(Span::len).sum()
    }

    /// Whether the batch has no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.parts.len() <= MEMBERS_MAX && self.parts.iter().map(Vec::len).sum::<usize>() <= BATCH_SPANS_MAX
    }

    /// Whether the parts can be the last batch that was taken, if `cursor` is the data cursor after it.
    fn is_valid(&self, member_count: usize, cursor: &DataCursor) -> bool {
        let assigned = self.parts.iter().flatten();
        let is_taken = |span: &Span| span.start < span.end && span.end <= cursor.position;
        if !self.is_bounded() || !assigned.clone().all(is_taken) {
            return false;
        }
        // A sample is assigned once, and is neither returned nor deferred at the same time.
        let untrained = cursor.returned.iter().chain(&cursor.deferred);
        let mut spans: Vec<Span> = assigned.chain(untrained).copied().collect();
        spans.sort_unstable_by_key(|span| span.start);
        self.parts.len() == member_count && self.epoch == cursor.epoch && are_disjoint(&spans)
    }
}
