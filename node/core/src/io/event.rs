//! What a node reports to its user: the events, and the details of each.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_models::task::Evaluation;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{BestEvaluation, Rekey, Stage};
use peergrad_protocol::view::{Expulsion, MemberFault, Merge, Quarantine, View};
use peergrad_protocol::{PeerId, RunId, StepNumber, ViewDigest, ViewNumber};

use super::{Ended, Failure, Reject};

/// How many members have returned after all members of a view had stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// The number of their last view.
    pub view_number: ViewNumber,
    /// The members of it that have returned, this one included.
    pub present: usize,
    /// How many members are needed to continue.
    pub needed: usize,
    /// The members that have not returned.
    pub missing: Vec<PeerId>,
}

/// An event that the user may want to know. `Ended` is the last.
#[derive(Clone, Debug)]
pub enum Event {
    /// This peer asks another one to admit it.
    JoinRequested(PeerId),
    /// At the founder: another peer is ready.
    PeerReady {
        /// The peer; at the start, the founder itself.
        peer: PeerId,
        /// The number of peers that are ready, this one included.
        ready: usize,
        /// The number of peers that the first view waits for.
        wanted: usize,
    },
    /// At the founder: this peer has drawn other initial parameters than the founder. It joins once the run has begun, and gets those of the
    /// run.
    InitialParametersDiffer(PeerId),
    /// At the founder: a peer that was ready has left before the run began.
    PeerWithdrawn {
        /// The peer.
        peer: PeerId,
        /// The reason, as a text.
        reason: String,
        /// The number of peers that are still ready, this one included.
        ready: usize,
        /// The number of peers that the first view waits for.
        wanted: usize,
    },
    /// At a joiner: the specification has arrived and matches the run's id.
    Welcomed {
        /// The id of the run.
        run: RunId,
        /// The member or founder that sent it.
        by: PeerId,
    },
    /// This peer was in a view of this run before it stopped. It has lost what it had in memory.
    RecoveryStarted {
        /// The number of that view.
        view_number: ViewNumber,
    },
    /// At a joiner: task and data are ready, but this peer cannot reach these members. The others admit it only when it can.
    MembersUnreachable {
        /// The members that it cannot reach.
        peers: Vec<PeerId>,
    },
    /// At a joiner: the data file is being sent by a member.
    FetchingData {
        /// Bytes received so far.
        received: u64,
        /// The size of the file in bytes.
        total: u64,
    },
    /// Task and data are ready.
    Prepared {
        /// The size of the run.
        size: RunSize,
        /// Whether each member has losses of its own, because it trains local parameters or rows of tables.
        has_own_losses: bool,
    },
    /// This peer has entered a view.
    ViewInstalled {
        /// The view.
        view: Arc<View>,
        /// The digest of the view.
        digest: ViewDigest,
        /// Elements of the parameter vector that this peer owns at the start of the view.
        shard: usize,
        /// Elements that it owns once all chunks have moved.
        share: usize,
        /// What differs from the view before; `None` for this peer's first view.
        change: Option<ViewDelta>,
    },
    /// A member is silent for too long, or its link is down.
    MemberSuspected(PeerId),
    /// Another member cannot write to its disk, or can again.
    DiskFails {
        /// The member.
        peer: PeerId,
        /// Whether it cannot.
        fails: bool,
    },
    /// A member announces that it stops.
    MemberStopped {
        /// The member.
        peer: PeerId,
        /// The reason that the member gave.
        reason: String,
    },
    /// Too few members can be reached to continue: this peer waits for others.
    Paused {
        /// The number of members that can be reached, this one included.
        reached: usize,
        /// The number of members that are needed.
        needed: usize,
        /// The number of members of the view.
        members: usize,
        /// The members that cannot be reached.
        missing: Vec<PeerId>,
    },
    /// At a joiner: other peers answer, but none of them is in a view.
    NoActiveMember {
        /// The peers that answer.
        peers: Vec<PeerId>,
    },
    /// At a joiner: no peer has answered, or those that had are gone, and no other peer answers.
    NoPeerAnswers,
    /// This peer has no parameters yet, and cannot reach any member that has: it waits for one of them.
    ParametersUnreachable {
        /// The members with parameters.
        peers: Vec<PeerId>,
    },
    /// No reachable member stores the present state of some chunks of tables: this peer waits for a member that does.
    ChunksMissing {
        /// The number of missing chunks.
        chunks: usize,
        /// The members that stored them.
        peers: Vec<PeerId>,
    },
    /// Chunks of tables restart from initial values, because a user has declared them lost.
    ChunksLost {
        /// The number of lost chunks.
        chunks: usize,
        /// Whether the first chunk is among them. It records which worker computes which samples, so all samples are leased again.
        retrains_all: bool,
    },
    /// The others have continued without this peer, which they could not reach or which had a fault: it asks to join again.
    Excluded {
        /// The number of the view that does not contain this peer.
        view_number: ViewNumber,
        /// Why that view quarantines this peer; `None` if it is without it for another reason.
        quarantine: Option<Quarantine>,
    },
    /// At the coordinator of a branch that is to yield: this branch has met another one of the run, after a partition.
    BranchDetected(BranchDetected),
    /// Another branch was merged into this one, and their parameters were averaged. Holds the branches and their weights.
    Merged(Merge),
    /// At one member: the held-out losses of the two branches and of the merged parameters.
    MergeEvaluation(MergeEvaluation),
    /// Another branch was not merged into this one, because a member could not get its part of the snapshot.
    MergeAbandoned,
    /// The other branch of the run continues, and this peer's branch has ended: this peer asks to join the other one.
    BranchAbandoned {
        /// Whether this peer's branch was merged into the other; otherwise its progress is lost.
        is_merged: bool,
        /// The steps that were committed here after the merged snapshot was taken: they are lost.
        steps_since: u64,
    },
    /// This peer leaves, and first hands over what it owns.
    Leaving {
        /// Why it leaves.
        reason: Failure,
    },
    /// This peer has handed over what it owned.
    HandedOver {
        /// The number of chunks that others own now.
        chunks: usize,
        /// The number of those members.
        members: usize,
    },
    /// A member has evaluated the parameters after so many steps on held-out samples.
    Evaluated {
        /// The number of steps.
        steps: StepNumber,
        /// The result.
        evaluation: Evaluation,
        /// The member.
        by: PeerId,
        /// Whether it is the best result so far.
        is_best: bool,
        /// The best result so far, as far as this member knows.
        best: BestEvaluation,
    },
    /// The checkpoint with the best result was kept apart, or it could not be.
    BestKept {
        /// The number of steps behind it.
        steps: StepNumber,
        /// A text for the user that says why not.
        result: Result<(), String>,
    },
    /// The members have agreed to end the run before its epochs are over: by order of a user, or because the model does not get better.
    EndsEarly,
    /// All members had stopped, and those that are back have saved only some chunks of the tables. They wait for other peers of the run.
    TablesIncomplete,
    /// The members have expelled a peer from the run.
    Expelled(Expulsion),
    /// No step has ended for long, although no member computes.
    Stalled {
        /// The step.
        step: StepNumber,
        /// The earliest thing that this peer waits for.
        stage: Stage,
        /// The members that owe it.
        peers: Vec<PeerId>,
    },
    /// A member has noticed a fault of another one.
    FaultNoticed {
        /// The member with the fault.
        peer: PeerId,
        /// The member that has noticed it.
        by: PeerId,
        /// What it has noticed.
        fault: MemberFault,
    },
    /// The members continue without a member, because of complaints. It may join again.
    Quarantined(Quarantine),
    /// The run has this secret from now on, unless it had it already.
    Rekeyed {
        /// The secret, and when it was drawn.
        rekey: Rekey,
        /// The members, and the joiners that are about to be admitted. All other peers must prove again that they know the secret.
        members: BTreeSet<PeerId>,
    },
    /// All members with parameters have stopped, and some of them have returned. They wait until they are enough to resume from their
    /// checkpoints.
    RecoveryProgress(RecoveryProgress),
    /// Training resumes from checkpoints.
    Restored {
        /// The number of steps behind the checkpoints.
        steps: StepNumber,
        /// The epoch at that point; `None` with tables, where only the owner of the lease table knows it.
        epoch: Option<u64>,
        /// The digest of the parameters; with local parameters, of this member's.
        digest: ContentDigest,
        /// Chunks whose optimizer state no returned member has saved: it restarts from zero.
        restarted: Vec<u32>,
    },
    /// A checkpoint was written, or could not be written; training continues.
    Saved {
        /// The number of steps behind it.
        steps: StepNumber,
        /// If it could not be written: a text that says why.
        result: Result<(), String>,
    },
    /// A step was committed.
    Committed(Committed),
    /// A peer sent a message that no correct peer sends; it was ignored.
    Violation {
        /// The sender.
        peer: PeerId,
        /// What was wrong with the message.
        reject: Reject,
    },
    /// The run has ended for this peer.
    Ended(Ended),
}

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Elements of the parameter vector.
    pub parameters: usize,
    /// The numbers that members own together: the parameters, or those of all tables.
    pub owned: usize,
    /// The number of training samples.
    pub samples: u64,
    /// The number of steps of the whole run.
    pub steps: u64,
    /// The number of passes over the training samples.
    pub epochs: u64,
    /// Floating-point operations of the gradient of one sample; `None` if the task does not say.
    pub flops_per_sample: Option<u64>,
    /// Tokens of a sample; `None` if samples are no text.
    pub tokens_per_sample: Option<u64>,
}

/// A branch that this one yields to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchDetected {
    /// The coordinator of the branch that leads.
    pub leads: PeerId,
    /// Samples that only this branch has trained.
    pub ours: u64,
    /// Samples that only the leading branch has trained.
    pub theirs: u64,
    /// Whether this branch is merged into the other; otherwise its progress is lost.
    pub is_merged: bool,
}

/// The evaluations of two merged branches, and of the result, on held-out samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeEvaluation {
    /// The branch that leads, before the merge.
    pub ours: Evaluation,
    /// The branch that yields.
    pub theirs: Evaluation,
    /// The merged parameters.
    pub merged: Evaluation,
    /// The distance between the two parameter vectors (Euclidean).
    pub distance: f64,
    /// The norm of the leading branch's parameter vector, for comparison.
    pub norm: f64,
}

/// How a view differs from the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewDelta {
    /// The new members.
    pub joined: Vec<PeerId>,
    /// The members that are gone.
    pub left: Vec<PeerId>,
    /// The members that hand over what they own, because they are about to leave or others cannot reach them.
    pub retiring: Vec<PeerId>,
    /// The step with which training resumes; `None` in a run with tables, which takes no steps.
    pub step: Option<StepNumber>,
    /// Whether a step was interrupted.
    pub is_interruption: bool,
    /// Whether that step is rolled forward; otherwise it is repeated.
    pub is_forward: bool,
    /// Whether that step merges another branch.
    pub is_merge: bool,
    /// Samples that were assigned to members that are gone, and are assigned again.
    pub returned: u64,
    /// The number of chunks that are to move.
    pub moving: usize,
    /// Chunks whose optimizer state no member has any more: it restarts from zero.
    pub restarted: Vec<u32>,
    /// Which part of the parameters this member owns after all moves, in thousandths, if members have other capacities than before; `None` if
    /// they do not.
    pub owned_per_mille: Option<u16>,
    /// Which part of each batch this member computes, in thousandths, if this view divides batches by other speeds; `None` if it does not.
    pub batch_per_mille: Option<u16>,
    /// How many local steps the rounds of this view have; `None` unless speeds decide.
    pub local_steps: Option<u64>,
}

/// The result of a committed step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Committed {
    /// The step's number.
    pub step: StepNumber,
    /// The epoch that the step belongs to.
    pub epoch: u64,
    /// The mean loss over the step's samples, before its update.
    pub loss: f64,
    /// The expected number of steps of the whole run. It exceeds the planned number where parts of batches were returned.
    pub steps_expected: u64,
    /// The samples that the step trained, over all members.
    pub samples: u64,
    /// Samples of the step's batch that were left out, because their gradient was not finite or came too late.
    pub left_out: u64,
    /// Whether some of those samples may have been left out because they came too late.
    pub may_be_late: bool,
    /// Whether the step is a clock of this peer's worker only, in a program with tables; its samples are then this worker's.
    pub is_own: bool,
    /// The learning rate of the step.
    pub rate: f64,
    /// The digest of the parameters after the step; `None` if the step does not report one.
    pub digest: Option<ContentDigest>,
}
