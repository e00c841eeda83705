//! What the members of one view say to each other while they train in it.
//!
//! ```text
//! member                                            member
//!   | -- SaveCheckpoint ---------------------------> |    of the lowest rank: the step after which all write a checkpoint
//!   | -- StepProgress -----------------------------> |    where a step does not wait for all: to its first owner
//!   | <-------------------------- StepContributors --|    whose contributions are in it
//!   | <====== Segment ... Segment =================> |    its neighbours, each step; and to keepers of replicas
//!   | -- WantChunks -------------------------------> |    to complete a step that was interrupted
//!   | <-------------------------------- ChunkBatch --|    chunks asked for, or whose turn to move has come
//!   | <====== Tables ... Tables ===================> |    where there are tables: to and from owners and keepers of replicas
//!   | <====== Complete, Closed ====================> |    after the last step
//! ```
//! The view stands once, beside the message: [`Message::InView`](super::Message::InView).

use super::{Invalid, Message, SampleStats, in_range, is_step};
use crate::chunk_set::ChunkSet;
use crate::id::{ContentDigest, Rank, StepNumber, ViewDigest};
use crate::limits::{CHUNK_BATCH_CHUNKS_MAX, CHUNKS_MAX, MEMBERS_MAX, SAMPLES_MAX};
use crate::wire::codec::{Decode, Encode};

/// A message that counts only in the view it was sent in.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum TrainingMessage {
    /// Member to member: a segment of a collective, as payload.
    Segment(Segment),
    /// Member to member: I lack these chunks. The answer is one or more of `ChunkBatch`.
    WantChunks(WantChunks),
    /// Member to member: chunks, as payload.
    ChunkBatch(ChunkBatch),
    /// Member to every member, or of many to the first: the last step is complete here; the sender needs nothing more from
    /// others but this. It stays, with what others still need of it, until each of them has said the same.
    Complete(Complete),
    /// Member to every member: every member has said `Complete`, so the last step is committed.
    Closed(Closed),
    /// Member to the first owner, where a step does not wait for all contributions: the step before is complete here; and
    /// once more when the contribution is there. The answer is `StepContributors`, to every member.
    StepProgress(StepProgress),
    /// First owner to every member: the step is made of the contributions of all but these.
    StepContributors(StepContributors),
    /// Lowest rank to every member: a checkpoint is due. A member that is beyond that step already leaves it out.
    SaveCheckpoint(SaveAt),
    /// Coordinator to every member: keep the state after that step for another lineage. See [`merge`](super::MergeMessage).
    TakeSnapshot(SaveAt),
    /// Member to member: the next piece of the sender's stream about tables, as payload. With each view the stream begins
    /// again. See [`table`](crate::table).
    Tables,
}

/// Which segment of which collective the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct Segment {
    /// The step it belongs to.
    pub step: StepNumber,
    /// The part of the step.
    pub phase: Phase,
    /// Rank of the shard's owner.
    pub owner: u32,
    /// Which segment of that shard.
    pub index: u32,
    /// What the payload sums up so far (reducing), or has summed up (gathering).
    pub stats: SampleStats,
}

/// A request for the values of chunks.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantChunks {
    /// Values after so many steps.
    pub steps: StepNumber,
    /// Which.
    pub chunks: ChunkSet,
}

/// Where a member is in a step that does not wait for all contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StepProgress {
    /// The step in progress; the one before is complete.
    pub step: StepNumber,
    /// Whether its contribution is there.
    pub has_contribution: bool,
    /// Samples that the steps before have left out, as far as the sender knows.
    pub left_out: u64,
}

/// Whose contributions a step is made of.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StepContributors {
    /// The step; the one before is complete at every member.
    pub step: StepNumber,
    /// Those whose contributions are not in it, by rank, sorted.
    pub late: Vec<Rank>,
    /// Samples that the steps before have left out: what a newcomer has not seen itself.
    pub left_out: u64,
}

/// A member is done with the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Complete {
    /// Steps that are complete at the sender.
    pub steps: StepNumber,
    /// Samples that were left out so far since their gradient was not finite: a member that came late cannot count them.
    pub left_out: u64,
}

/// That everyone has completed the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Closed {
    /// Samples that the whole run has left out.
    pub left_out: u64,
}

/// When to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SaveAt {
    /// As soon as so many steps are committed, in whatever view that is.
    pub steps: StepNumber,
}

/// Chunks, end to end in the payload.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ChunkBatch {
    /// They are the chunks after so many steps.
    pub steps: StepNumber,
    /// What of them.
    pub content: ChunkContent,
    /// Which, in the order of the payload.
    pub entries: Vec<ChunkEntry>,
    /// Digest of the payload.
    pub digest: ContentDigest,
}

/// What of chunks is in a chunk batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum ChunkContent {
    /// Their values.
    Values,
    /// Their optimizer state.
    State,
}

/// One chunk in a chunk batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ChunkEntry {
    /// Its index.
    pub chunk: u32,
    /// Updates behind its optimizer state; 0 if that is not in it.
    pub updates: u32,
}

/// The two halves of an all-reduce, and what goes on beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Phase {
    /// On the way to the owner: a partial sum of contributions.
    Reduce,
    /// From the owner to everyone: the owner's result.
    Gather,
    /// From the owner to a keeper of replicas: the owner's sums.
    Mirror,
}

impl TrainingMessage {
    /// The message as one of `view`.
    #[must_use]
    pub const fn in_view(self, view: ViewDigest) -> Message {
        Message::InView { view, message: self }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match self {
            // A loss may be infinite or not a number (that is how divergence shows); the samples must add up.
            Self::Segment(segment) => in_range(segment.stats.is_bounded() && is_step(segment.step)),
            Self::WantChunks(want) => in_range(want.chunks.is_valid() && is_step(want.steps)),
            Self::ChunkBatch(chunk_batch) => chunk_batch.validate(),
            Self::Complete(complete) => in_range(is_step(complete.steps) && complete.left_out <= SAMPLES_MAX),
            Self::Closed(closed) => in_range(closed.left_out <= SAMPLES_MAX),
            Self::StepProgress(progress) => {
                in_range(is_step(progress.step) && progress.left_out <= SAMPLES_MAX)
            }
            Self::StepContributors(contributors) if contributors.late.len() > MEMBERS_MAX => {
                Err(Invalid::TooLong)
            }
            Self::StepContributors(contributors) => in_range(
                is_step(contributors.step)
                    && contributors.late.is_sorted_by(|one, next| one < next)
                    && contributors.left_out <= SAMPLES_MAX,
            ),
            Self::SaveCheckpoint(save) | Self::TakeSnapshot(save) => in_range(is_step(save.steps)),
            Self::Tables => Ok(()),
        }
    }
}

impl ChunkBatch {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.entries.len() > CHUNK_BATCH_CHUNKS_MAX {
            return Err(Invalid::TooLong);
        }
        in_range(self.is_possible() && is_step(self.steps))
    }

    fn is_possible(&self) -> bool {
        // Each step is one update at most.
        let is_piece = |piece: &ChunkEntry| {
            (piece.chunk as usize) < CHUNKS_MAX && u64::from(piece.updates) <= self.steps.0
        };
        self.entries.iter().all(is_piece)
    }
}
