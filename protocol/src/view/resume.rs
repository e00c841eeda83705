//! What a new view does with the steps of the one before: going on, rolling forward, beginning again, merging.

use crate::cursor::{DataCursor, Span, are_disjoint};
use crate::id::{Rank, StepNumber, ViewDigest};
use crate::limits::{BATCH_SPANS_MAX, CHUNKS_MAX, HISTORY_MAX, MEMBERS_MAX, SAMPLES_MAX, STEPS_MAX};
use crate::message::SampleStats;
use crate::wire::{Decode, Encode};

use super::{Ancestor, InvalidView, is_chunk};

/// Where training goes on in a new view.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Recovery {
    /// The run begins here: everyone draws the initial parameters from the specification's seed.
    Initialize,
    /// Training goes on.
    Resume(Resume),
}

/// What the members of a new view do with the steps of the one before.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Resume {
    /// The first step of the view. Whoever has completed it under the view before undoes it.
    pub step: StepNumber,
    /// Members who have no parameters yet: they contribute nothing to `step`, and get parameters from its all-gather.
    pub newcomers: Vec<Rank>,
    /// How the batch of `step` is dealt, where it was dealt in the view before: to each what it has computed.
    pub batch: Option<BatchParts>,
    /// The step before was interrupted, and members together hold all of it: it is rolled forward.
    pub forward: Option<RollForward>,
    /// Nobody had parameters any more: all but the newcomers begin with what they have saved after as many steps.
    pub is_restored: bool,
    /// The first step trains nothing: its owners blend in what another lineage has come to.
    pub merge: Option<Box<Merge>>,
}

/// What of another lineage is merged into this one; its members come as newcomers later.
///
/// It is merged once the first step is behind: a view after this one that begins with the same step, and does not say it again,
/// has nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Merge {
    /// The other lineage's view.
    pub view: ViewDigest,
    /// Its state after so many steps.
    pub steps: StepNumber,
    /// Samples that this lineage alone has trained: what its own state weighs.
    pub ours: u64,
    /// Samples that the other one alone has trained: what the other state weighs.
    pub theirs: u64,
    /// The other one's bookmark: what it has behind it is behind both after the first step.
    pub cursor: DataCursor,
    /// The views that the other one comes from, its own at the end.
    pub history: Vec<Ancestor>,
}

impl Merge {
    /// How much of the blend is the other state.
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

/// One step's batch, as it is dealt.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BatchParts {
    /// The epoch to whose permutation the positions refer.
    pub epoch: u64,
    /// By rank: the positions.
    pub parts: Vec<Vec<Span>>,
}

/// How an interrupted step is completed.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct RollForward {
    /// What its sums are worth.
    pub stats: SampleStats,
    /// Where chunks that some members lack are to be had.
    pub donors: Vec<Donor>,
}

/// Chunks that a member can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Donor {
    /// The first of them.
    pub first: u32,
    /// The one after the last.
    pub end: u32,
    /// Who has them.
    pub rank: Rank,
}

impl Resume {
    /// Training goes on at `step`, as if nothing had happened.
    #[must_use]
    pub fn at(step: StepNumber) -> Self {
        Self { step, newcomers: vec![], batch: None, forward: None, is_restored: false, merge: None }
    }

    /// Whether the view before was interrupted; otherwise its members went on from one step to the next.
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
            // Somebody must have parameters.
            && self.newcomers.len() < member_count;
        let is_dealt = self.batch.as_ref().is_none_or(|deal| deal.is_valid(member_count, cursor));
        let has_donors = |forward: &RollForward| {
            let is_donor =
                |donor: &Donor| is_rank(donor.rank) && donor.first < donor.end && is_chunk(donor.end - 1);
            forward.donors.len() <= CHUNKS_MAX
                && forward.donors.iter().all(is_donor)
                && forward.stats.samples <= u64::from(u32::MAX)
        };
        let is_forward = self.forward.as_ref().is_none_or(has_donors);
        // What was going on when everything was lost is lost with it.
        let is_one_kind = !(self.is_restored && self.is_interruption());
        let can_merge = |merge: &Merge| {
            let is_bare = !self.is_restored && self.forward.is_none();
            let is_idle = self.batch.as_ref().is_none_or(BatchParts::is_empty);
            let counts = [merge.ours, merge.theirs];
            let has_weight = counts.iter().all(|count| *count <= SAMPLES_MAX) && counts != [0, 0];
            is_bare && is_idle && has_weight && merge.steps.0 <= STEPS_MAX && merge.is_bounded()
        };
        let is_merge = self.merge.as_deref().is_none_or(can_merge);
        if are_newcomers && is_dealt && is_forward && is_one_kind && is_merge {
            Ok(())
        } else {
            Err(InvalidView::Lists)
        }
    }
}

impl BatchParts {
    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.parts.iter().flatten().map(Span::len).sum()
    }

    /// Whether nobody has to compute anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.parts.len() <= MEMBERS_MAX && self.parts.iter().map(Vec::len).sum::<usize>() <= BATCH_SPANS_MAX
    }

    /// Whether it can be what was taken last, where `cursor` is the bookmark after it.
    fn is_valid(&self, member_count: usize, cursor: &DataCursor) -> bool {
        let dealt = self.parts.iter().flatten();
        let is_taken = |span: &Span| span.start < span.end && span.end <= cursor.position;
        if !self.is_bounded() || !dealt.clone().all(is_taken) {
            return false;
        }
        // A sample is dealt once, and neither given back nor put off as well.
        let untrained = cursor.returned.iter().chain(&cursor.deferred);
        let mut spans: Vec<Span> = dealt.chain(untrained).copied().collect();
        spans.sort_unstable_by_key(|span| span.start);
        self.parts.len() == member_count && self.epoch == cursor.epoch && are_disjoint(&spans)
    }
}
