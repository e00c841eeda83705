//! Messages between the members of one view, for training.
//!
//! ```text
//! member                                            member
//!   | -- SaveCheckpoint ---------------------------> |    lowest rank to all: the step after which all write a checkpoint
//!   | -- StepProgress -----------------------------> |    to the first owner, if steps do not wait for all contributions
//!   | <-------------------------- StepContributors --|    first owner to all: the contributions of the step
//!   | <====== Segment ... Segment =================> |    in each step, along the plan, and to holders of replicas
//!   | -- ShardNorm --------------------------------> |    owner to all, if gradients are clipped: the norm of its sums
//!   | -- Evaluating, Evaluated ---------------------> |    in turn to all: how good the parameters after some step are
//!   | -- WantChunks -------------------------------> |    to complete an interrupted step
//!   | <-------------------------------- ChunkBatch --|    requested chunks, or chunks that move to new owners
//!   | <====== Tables ... Tables ===================> |    in programs with tables: between workers, owners and replicas
//!   | -- ParametersDigest -------------------------> |    to the first members, now and then: all compare their parameters
//!   | <====== Complete, Closed ====================> |    after the last step
//! ```
//! Each is sent with the digest of its view: [`Message::InView`](super::Message::InView).

use super::{Invalid, Message, SampleStats, in_range, is_step};
use crate::chunk_set::ChunkSet;
use crate::id::{ContentDigest, Rank, StepNumber, ViewDigest};
use crate::limits::{CHUNK_BATCH_CHUNKS_MAX, CHUNKS_MAX, MEMBERS_MAX, SAMPLES_MAX};
use crate::wire::codec::{Decode, Encode};

/// A message that is valid only in the view in which it was sent.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum TrainingMessage {
    /// Member to member: a segment of a round, as payload.
    Segment(Segment),
    /// Member to member: a request for chunks. The answer is one or more messages of `ChunkBatch`.
    WantChunks(WantChunks),
    /// Member to member: chunks, as payload.
    ChunkBatch(ChunkBatch),
    /// Member to every member, or in a large view to the first: the last step is complete at the sender. It needs nothing more from
    /// others but this message, and remains until every member has sent it, because others may still need its chunks.
    Complete(Complete),
    /// Member to every member: all members have sent `Complete`, so the last step is committed.
    Closed(Closed),
    /// Member to the first owner, if steps do not wait for all contributions: the previous step is complete at the sender. It is sent once
    /// more when the sender's contribution is ready. The answer is `StepContributors`, to every member.
    StepProgress(StepProgress),
    /// First owner to every member: the members whose contributions are not in the step.
    StepContributors(StepContributors),
    /// Lowest rank to every member: the step after which to write a checkpoint. A member that is beyond that step writes none.
    SaveCheckpoint(SaveAt),
    /// Coordinator to every member: the step whose state to keep for another branch. See [`MergeMessage`](super::MergeMessage).
    TakeSnapshot(SaveAt),
    /// Member to member: the next piece of the sender's stream of table messages, as payload. The stream restarts with each view. See
    /// [`table`](crate::table).
    Tables,
    /// Member to the first members: the digest of the sender's parameters, which are those of all members if nothing is wrong.
    ParametersDigest(ParametersDigest),
    /// Owner to every member, if gradients are clipped: the norm of the sums of its shard. No owner updates before it has those of all.
    ShardNorm(ShardNorm),
    /// Member to every member: it begins to evaluate the parameters after some step, so that checkpoints of them stay.
    Evaluating(SaveAt),
    /// Member to every member: it has evaluated the parameters after some step.
    Evaluated(Evaluated),
}

/// The identity of the segment in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct Segment {
    /// The step that it belongs to.
    pub step: StepNumber,
    /// The part of the round.
    pub phase: Phase,
    /// The rank of the shard's owner.
    pub owner: u32,
    /// The index of the segment in that shard.
    pub index: u32,
    /// The samples and loss of the contributions in the payload: a part of them while reducing, all while gathering.
    pub stats: SampleStats,
}

/// The norm of the sums of one member's shard.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct ShardNorm {
    /// The step that the sums belong to.
    pub step: StepNumber,
    /// The sum of their squares, without statistics: at least 0, and finite.
    pub squares: f64,
}

/// An evaluation during the run.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct Evaluated {
    /// The number of steps behind the parameters.
    pub steps: StepNumber,
    /// How many held-out samples were evaluated.
    pub samples: u32,
    /// The mean loss of these samples.
    pub loss: f64,
    /// The share of these samples that the model classifies correctly, 0 to 1; `None` for a model without classes.
    pub accuracy: Option<f64>,
    /// The best evaluation of the run as far as the sender knows, which may be this one.
    pub best: BestEvaluation,
}

/// The best evaluation of a run so far.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct BestEvaluation {
    /// The number of steps behind the parameters.
    pub steps: StepNumber,
    /// The mean loss of the held-out samples.
    pub loss: f64,
}

impl BestEvaluation {
    /// Whether its loss is lower than that of `other`. One that is not a number is higher than any.
    #[must_use]
    pub fn is_better_than(&self, other: &Self) -> bool {
        let of = |it: &Self| if it.loss.is_nan() { f64::INFINITY } else { it.loss };
        of(self) < of(other)
    }
}

/// A request for the values of chunks.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantChunks {
    /// The number of steps after which the values are requested.
    pub steps: StepNumber,
    /// The requested chunks.
    pub chunks: ChunkSet,
}

/// The progress of a member in a step that does not wait for all contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StepProgress {
    /// The step in progress; the previous one is complete.
    pub step: StepNumber,
    /// Whether the sender's contribution is ready.
    pub has_contribution: bool,
    /// The number of samples that earlier steps have left out, as far as the sender knows.
    pub left_out: u64,
}

/// The contributions of a step.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StepContributors {
    /// The step; the previous one is complete at every member.
    pub step: StepNumber,
    /// The ranks whose contributions are not in it, sorted.
    pub late: Vec<Rank>,
    /// The number of samples that earlier steps have left out, which a newcomer cannot know.
    pub left_out: u64,
}

/// The end of the run at one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Complete {
    /// The number of steps that are complete at the sender.
    pub steps: StepNumber,
    /// The number of samples that were left out because their gradient was not finite, which a newcomer cannot know.
    pub left_out: u64,
}

/// The end of the run: all members have completed the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Closed {
    /// The number of samples that the whole run has left out.
    pub left_out: u64,
}

/// The digest of a member's parameters after a step.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ParametersDigest {
    /// The number of steps after which the parameters have this digest.
    pub steps: StepNumber,
    /// The digest of their little-endian bytes.
    pub digest: ContentDigest,
    /// For each member of the view, by rank: the digest of its shard as the sender has it. Empty unless digests have differed.
    pub shards: Vec<ShardDigest>,
}

/// The first bytes of the digest of one member's shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShardDigest(pub [u8; 8]);

impl ShardDigest {
    /// The digest of a shard that consists of these bytes, chunk by chunk.
    #[must_use]
    pub fn of<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        chunks.for_each(|chunk| {
            hasher.update(chunk);
        });
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        Self([a, b, c, d, e, f, g, h])
    }
}

/// The step whose state is to be saved or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SaveAt {
    /// The number of committed steps after which to do it, in any view.
    pub steps: StepNumber,
}

/// Chunks, one after the other in the payload.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ChunkBatch {
    /// The number of steps after which these are the chunks.
    pub steps: StepNumber,
    /// Whether the payload has their values or their optimizer state.
    pub content: ChunkContent,
    /// The chunks, in the order of the payload.
    pub entries: Vec<ChunkEntry>,
    /// The digest of the payload.
    pub digest: ContentDigest,
}

/// The content of a chunk batch.
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
    /// The number of updates in its optimizer state; 0 if the batch has values.
    pub updates: u32,
}

/// The parts of a round: its two halves, and the mirror beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Phase {
    /// To the owner: a partial sum of contributions.
    Reduce,
    /// From the owner to all members: the final values.
    Gather,
    /// From the owner to a holder of replicas: the sums.
    Mirror,
}

impl TrainingMessage {
    /// This message in `view`.
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
            Self::SaveCheckpoint(save) | Self::TakeSnapshot(save) | Self::Evaluating(save) => {
                in_range(is_step(save.steps))
            }
            Self::ParametersDigest(parameters) if parameters.shards.len() > MEMBERS_MAX => {
                Err(Invalid::TooLong)
            }
            Self::ParametersDigest(parameters) => in_range(is_step(parameters.steps)),
            Self::Tables => Ok(()),
            // A loss may be anything; a share may not.
            Self::Evaluated(Evaluated { steps, accuracy, best, .. }) => in_range(
                is_step(*steps)
                    && is_step(best.steps)
                    && accuracy.is_none_or(|share| (0.0..=1.0).contains(&share)),
            ),
            Self::ShardNorm(norm) => in_range(is_step(norm.step) && (0.0..=f64::MAX).contains(&norm.squares)),
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
