//! Everything a peer can say to another, with who says it, what answers it, and when it is out of place.
//!
//! ```text
//! joiner                        member                         coordinator (the lowest rank that has parameters)
//!   | -- Join -------------------> |                              |
//!   | <-- Welcome / Refuse ------- |   (before the first view a joiner that is asked itself: Redirect)
//!   | -- WantData (only if no file of that digest is at hand) --> |
//!   | <------------ Data ...------ |                              |
//!   | -- Ready ------------------> | -- Candidate --------------> |
//!   | <-- Install ---------------- |                              |   once it is in a view
//!
//! proposer                                          every other member of the view
//!   | -- Prepare ----------------------------------> |    freezes: at once, or before the step that is named
//!   | <------------------------- Promise / Nack -- |    where it is, what it holds, whom it has lost
//!   | -- Propose ----------------------------------> |
//!   | <--------------------------------- Accepted -- |
//!   | -- Learn ----------------------------------> |    the next view, as what changes
//!
//! member                                            member
//!   | -- Heartbeat, four times a second ----------------> |
//!   | -- Save -------------------------------------> |    of the lowest rank: the step after which all write a checkpoint
//!   | -- Expel ------------------------------------> |    somebody is to be put out for good
//!   | -- StepProgress ------------------------------------> |    where a step does not wait for all: to its first owner
//!   | <---------------------------------- StepContributors --- |    whose contributions are in it
//!   | <====== Segment ... Segment =================> |    its neighbours, each step; and to keepers of replicas
//!   | -- WantChunks -------------------------------> |    to complete a step that was interrupted
//!   | <--------------------------------- ChunkBatch ---- |    chunks asked for, or whose turn to move has come
//!   | <====== TableFrame ... TableFrame =====================> |    where there are tables: to and from owners and keepers of replicas
//!   | <====== Complete, Closed ====================> |    after the last step
//! ```
//! Two lineages that meet: see [`MergeProbe`].

use crate::agreement::Ballot;
use crate::chunk_set::ChunkSet;
use crate::cursor::DataCursor;
use crate::id::{ContentDigest, Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};
use crate::limits::REASON_BYTES_MAX;
use crate::view::{Branch, Expulsion, Member, View, ViewChange};
use crate::wire::{Decode, Encode};

mod merge;
mod rekey;
mod validity;

pub use merge::{MergeAccept, MergeOffer, MergeProbe, MergeReady, SnapshotDonor, WantSnapshot};
pub use rekey::Rekey;
pub use validity::Invalid;

/// One message; its payload, if it has one, travels beside it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Message {
    /// Joiner to any member: let me in. Answered by `Welcome`, `Redirect` or `Refuse`; repeated until then.
    Join(Join),
    /// Member to joiner: what this run is, and who else is in it.
    Welcome(Welcome),
    /// Joiner to joiner, before the first view: not me, ask this peer.
    Redirect(Contact),
    /// Member to joiner: no, and why. Final unless the reason says otherwise.
    Refuse(Refusal),
    /// Joiner to the member that has welcomed it: send a piece of the data file. Answered by `Data`.
    WantData(WantData),
    /// Member to joiner: a piece of the data file, as payload.
    Data(DataPiece),
    /// Joiner to the member that has welcomed it: task and data are at hand, and all members I was told of are linked.
    Ready,
    /// Member to coordinator: this peer is ready to come in. Repeated until it is in, or gone.
    Candidate(Member),
    /// Member to coordinator: I want to go. Repeated until it is out.
    Retire,
    /// To a joiner that is in now, or to whoever is in an older view: this is the view.
    Install(View),
    /// Member to every member: I live, and this is where I am.
    Heartbeat(Heartbeat),
    /// Proposer to every member: let us agree on the next view.
    Prepare(Prepare),
    /// The answer: no lower ballot is heard any more, and this is where I am.
    Promise(Box<Promise>),
    /// The other answer to `Prepare` and `Propose`: not under that ballot, or not before that step.
    Nack(Nack),
    /// Proposer to every member: let the next view be this.
    Propose(Propose),
    /// The answer.
    Accepted(Accepted),
    /// Whoever knows it to be chosen, to every member of the view before: this is what changes.
    Learn(ViewChange),
    /// Member to member: a segment of a collective, as payload. Out of place outside the view it names.
    Segment(Segment),
    /// Member to member: I lack these chunks. Answered by chunk batches.
    WantChunks(WantChunks),
    /// Member to member: chunks, as payload.
    ChunkBatch(ChunkBatch),
    /// Member to every member, or of many to the first: the last step is complete here; nothing more is needed from others but
    /// this. The sender stays, with what others still need of it, until each of them has said the same.
    Complete(Complete),
    /// Member to every member: everyone has said `Complete`, so the last step is committed.
    Closed(Closed),
    /// Member to every member, or before the first view joiner to founder and founder to every joiner: stopping, and why.
    Leave(Departure),
    /// Member to the first owner, where a step does not wait for all contributions: the step before is complete here; and
    /// once more when the contribution is there. Answered by `StepContributors`, which everybody gets.
    StepProgress(StepProgress),
    /// First owner to every member: the step is made of the contributions of all but these.
    StepContributors(StepContributors),
    /// Lowest rank to every member: a checkpoint is due. Whoever is beyond that step already leaves it out.
    SaveCheckpoint(SaveAt),
    /// Member to every member: this one is to be put out for good. Repeated until it is.
    Expel(Expulsion),
    /// Member to a peer in another lineage of the run, and from there to its coordinator: this is where we are.
    MergeProbe(MergeProbe),
    /// Convener to every member: what is here after that step is kept for another lineage.
    TakeSnapshot(SaveAt),
    /// Convener of a lineage that yields to that of the other, and from there to its members: what is left to you. Repeated until
    /// it is merged.
    MergeOffer(MergeOffer),
    /// Heir to a member of the lineage that yields: send me these chunks. Answered by `SnapshotChunks`, with as many of them as make a
    /// chunk batch.
    WantSnapshot(WantSnapshot),
    /// Its answer: chunks, as payload.
    SnapshotChunks(ChunkBatch),
    /// Member to its coordinator: what this member needs of another lineage is here.
    MergeReady(MergeReady),
    /// Convener to that of a lineage which has offered to yield, and from there to its members: join this one.
    MergeAccept(MergeAccept),
    /// Member to every member: the run has another secret from now on. Repeated until it is confirmed.
    Rekey(Rekey),
    /// The answer, to the member whose user asked for it: the secret of that time is here.
    Rekeyed(u64),
    /// Member to member: the next piece of its words about tables, as payload. See [`table`](crate::table).
    TableFrame(TableFrame),
}

/// A joiner's request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Join {
    /// The run it was invited to; `None` when it was given only an address and the secret.
    pub run: Option<RunId>,
    /// Which start of the joiner this is.
    pub incarnation: Incarnation,
    /// Where others can dial it.
    pub addresses: Vec<String>,
    /// How much it offers to own, 0 to [`CAPACITY_MAX`](crate::limits::CAPACITY_MAX).
    pub capacity: u8,
}

/// What a run is, for a joiner to check and prepare.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// The specification's bytes; hashed with the nonce they give the run id.
    pub specification: Vec<u8>,
    /// The random bytes drawn when the run was founded.
    pub nonce: [u8; 32],
    /// Members of the run: whom to dial, and whom to ask if the sender goes. The sender first.
    pub members: Vec<Contact>,
    /// Those of them who own nothing: a joiner that owns nothing either need not reach them itself.
    pub non_owners: Vec<PeerId>,
}

/// A peer and where to dial it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Contact {
    /// Who.
    pub peer: PeerId,
    /// Where, best first.
    pub addresses: Vec<String>,
}

/// Why a joiner is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Refusal {
    /// The invite is of another run.
    OtherRun {
        /// The run of the one who refuses.
        run: RunId,
    },
    /// The run has as many members as a view can have.
    Full,
    /// The run is over: its last step is complete.
    RunComplete,
    /// A member with the same identity is alive: one of the two machines uses a copy of the other's data directory.
    DuplicateIdentity,
    /// The one asked is not in the run itself yet, or still reads its data: ask again.
    NotReady,
    /// The members have put the joiner out of the run for good.
    Expelled(Expulsion),
}

/// A request for one piece of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantData {
    /// The file.
    pub digest: ContentDigest,
    /// First byte wanted; the piece has [`DATA_PIECE_BYTES_MAX`](crate::limits::DATA_PIECE_BYTES_MAX) bytes, or what is left.
    pub offset: u64,
}

/// Which piece of the data file the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DataPiece {
    /// The file.
    pub digest: ContentDigest,
    /// The payload's first byte in the file.
    pub offset: u64,
}

/// That a member lives, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Heartbeat {
    /// The view that is installed there.
    pub view: ViewDigest,
    /// Its number.
    pub view_number: ViewNumber,
    /// Steps that are complete there; 0 as long as it has no parameters.
    pub complete: StepNumber,
    /// The step for which its program computes, if it does; the step in progress, but where steps do not wait for it.
    pub computing: Option<StepNumber>,
}

/// A proposer's first question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Prepare {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The attempt.
    pub ballot: Ballot,
    /// The first step that whoever promises does not take in that view any more; `None`: it stops at once.
    pub before: Option<StepNumber>,
}

/// A promise.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Promise {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The attempt.
    pub ballot: Ballot,
    /// What the sender has accepted before, and under which ballot.
    pub accepted: Option<(Ballot, ViewChange)>,
    /// Where the sender is.
    pub report: MemberReport,
}

/// Where a member is, and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct MemberReport {
    /// The member's process is another one by now, which only votes for it.
    pub is_vote_only: bool,
    /// Steps that are complete; `None`: it has no parameters.
    pub complete: Option<StepNumber>,
    /// Chunks whose optimizer state after those steps it holds.
    pub states: ChunkSet,
    /// Chunks whose state after one step less it still holds, as long as the newest step is not known to be committed.
    pub states_before: Option<ChunkSet>,
    /// It had no parameters before the newest of those steps.
    pub is_entering: bool,
    /// What the sums of the newest complete step are worth, as long as it is not known to be committed.
    pub stats: Option<SampleStats>,
    /// What it holds of the step after.
    pub next: Option<PartialStep>,
    /// Members that it cannot reach, by rank.
    pub lost: Vec<Rank>,
    /// It still has its part of what the present view merges.
    pub has_merge_snapshot: bool,
    /// As what a process that only votes would come in again, once it has task and data.
    pub rejoin: Option<Box<RejoinCandidate>>,
}

/// A peer that was a member before its process stopped, and is ready to be one again.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct RejoinCandidate {
    /// What it would be in the next view.
    pub member: Member,
    /// What it has saved, newest first.
    pub saved: Vec<SavedCheckpoint>,
}

/// A checkpoint that a peer has on its disk.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SavedCheckpoint {
    /// Committed steps behind it.
    pub steps: StepNumber,
    /// The branch of the run that they belong to.
    pub branch: Branch,
    /// The bookmark after them.
    pub cursor: DataCursor,
    /// Digest of the parameters: where members drift, of the peer's own.
    pub digest: ContentDigest,
    /// Chunks whose optimizer state is in it.
    pub states: ChunkSet,
}

/// What a member holds of a step that is not complete.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct PartialStep {
    /// Chunks whose new values it holds.
    pub values: ChunkSet,
    /// Chunks whose new optimizer state it holds.
    pub states: ChunkSet,
    /// What the step's sums are worth, if it knows.
    pub stats: Option<SampleStats>,
}

/// A refusal of a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Nack {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The ballot that is refused.
    pub ballot: Ballot,
    /// The higher ballot that was promised, if that is the reason.
    pub promised: Option<Ballot>,
    /// The step that the sender is in, if the one named is too early.
    pub step: StepNumber,
}

/// A proposer's second question.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Propose {
    /// The attempt.
    pub ballot: Ballot,
    /// What is to be chosen; it names the view that it follows.
    pub change: ViewChange,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Accepted {
    /// The view whose successor is chosen.
    pub view: ViewDigest,
    /// The attempt.
    pub ballot: Ballot,
}

/// A request for the values of chunks.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantChunks {
    /// The view that both are in.
    pub view: ViewDigest,
    /// Values after so many steps.
    pub steps: StepNumber,
    /// Which.
    pub chunks: ChunkSet,
}

/// Where a member is in a step that does not wait for all contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StepProgress {
    /// The view that both are in.
    pub view: ViewDigest,
    /// The step in progress; the one before is complete.
    pub step: StepNumber,
    /// Whether its contribution is there.
    pub has_contribution: bool,
    /// Samples that the steps before have left out, as far as the sender knows.
    pub left_out: u64,
}

/// That everyone has completed the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Closed {
    /// The view in which they have.
    pub view: ViewDigest,
    /// Samples that the whole run has left out.
    pub left_out: u64,
}

/// Whose contributions a step is made of.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StepContributors {
    /// The view that both are in.
    pub view: ViewDigest,
    /// The step; the one before is complete at every member.
    pub step: StepNumber,
    /// Those whose contributions are not in it, by rank, sorted.
    pub late: Vec<Rank>,
    /// Samples that the steps before have left out: what a newcomer has not seen itself.
    pub left_out: u64,
}

/// When to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SaveAt {
    /// The view that both are in.
    pub view: ViewDigest,
    /// As soon as so many steps are committed, in whatever view that is.
    pub steps: StepNumber,
}

/// Chunks, end to end in the payload.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ChunkBatch {
    /// The view that both are in.
    pub view: ViewDigest,
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

/// Which segment of which collective the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct Segment {
    /// The view it belongs to.
    pub view: ViewDigest,
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

/// A piece of what a member says about tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TableFrame {
    /// The view that both are in: with each one the stream begins anew.
    pub view: ViewDigest,
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

/// What a sum of contributions is worth: added up beside the elements, in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct SampleStats {
    /// Samples behind the sum: the weight of a contribution.
    pub samples: u64,
    /// Sum of the samples' losses.
    pub loss: f64,
}

impl std::ops::AddAssign for SampleStats {
    fn add_assign(&mut self, other: Self) {
        self.samples += other.samples;
        self.loss += other.loss;
    }
}

/// A member is done with the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Complete {
    /// The view it is in.
    pub view: ViewDigest,
    /// Steps that are complete at the sender.
    pub steps: StepNumber,
    /// Samples that were left out so far since their gradient was not finite: a member that came late cannot count them.
    pub left_out: u64,
}

/// Why a peer stops.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Departure {
    /// In words for people.
    pub reason: String,
}

impl Departure {
    /// A departure with as much of the reason as a frame may carry, in whole characters.
    #[must_use]
    pub fn new(reason: &str) -> Self {
        let ends = reason.char_indices().map(|(start, letter)| start + letter.len_utf8());
        let end = ends.take_while(|end| *end <= REASON_BYTES_MAX).last().unwrap_or(0);
        Self { reason: reason[..end].to_owned() }
    }
}

impl Message {
    /// The view in which something is said that only counts in that one: all that training sends.
    #[must_use]
    pub fn view_of_training(&self) -> Option<ViewDigest> {
        match self {
            Self::Segment(segment) => Some(segment.view),
            Self::ChunkBatch(chunk_batch) => Some(chunk_batch.view),
            Self::TableFrame(words) => Some(words.view),
            Self::WantChunks(want) => Some(want.view),
            Self::Complete(complete) => Some(complete.view),
            Self::Closed(closed) => Some(closed.view),
            Self::StepProgress(progress) => Some(progress.view),
            Self::StepContributors(contributors) => Some(contributors.view),
            Self::SaveCheckpoint(save) | Self::TakeSnapshot(save) => Some(save.view),
            _ => None,
        }
    }
}

impl MemberReport {
    /// Whether the sender holds a chunk's optimizer state after so many steps.
    #[must_use]
    pub fn holds_state(&self, chunk: usize, steps: StepNumber) -> bool {
        let Some(complete) = self.complete else { return false };
        let states = match steps.0.checked_sub(complete.0) {
            Some(0) => Some(&self.states),
            Some(1) => self.next.as_ref().map(|next| &next.states),
            Some(_) => None,
            None if steps.next() == complete => self.states_before.as_ref(),
            None => None,
        };
        states.is_some_and(|states| states.contains(chunk))
    }

    /// What the sums of the step after `steps` are worth, if the sender knows.
    #[must_use]
    pub fn stats_of(&self, steps: StepNumber) -> Option<SampleStats> {
        let complete = self.complete?;
        if complete == steps {
            self.next.as_ref()?.stats
        } else {
            self.stats.filter(|_| complete == steps.next())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_is_held_of_three_steps() {
        let set = |chunk| [chunk].into_iter().collect::<ChunkSet>();
        let stats = |samples| Some(SampleStats { samples, loss: 0.0 });
        let next = Some(PartialStep { values: ChunkSet::default(), states: set(3), stats: stats(30) });
        let report = MemberReport {
            complete: Some(StepNumber(5)),
            states: set(2),
            states_before: Some(set(1)),
            stats: stats(20),
            next,
            ..MemberReport::default()
        };
        let held = |steps| (0..5).filter(|&chunk| report.holds_state(chunk, StepNumber(steps))).collect();
        let all: Vec<Vec<usize>> = [3, 4, 5, 6, 7].map(held).to_vec();
        assert_eq!(all, [vec![], vec![1], vec![2], vec![3], vec![]]);
        let tallies = [3, 4, 5, 6].map(|steps| report.stats_of(StepNumber(steps)).map(|t| t.samples));
        assert_eq!(tallies, [None, Some(20), Some(30), None]);
        assert!(!MemberReport::default().holds_state(0, StepNumber(0)));
    }
}
