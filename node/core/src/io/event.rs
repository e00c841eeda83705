//! What a node tells its user: that things happen, and what is to be known of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_models::task::Evaluation;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::Rekey;
use peergrad_protocol::view::{Expulsion, Merge, View};
use peergrad_protocol::{PeerId, RunId, StepNumber, ViewDigest, ViewNumber};

use super::{Ended, Reject};

/// Who is back of a view of which all have stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// The number of the view.
    pub view_number: ViewNumber,
    /// Members of it that are back, this one included.
    pub present: usize,
    /// Members that are needed to go on.
    pub needed: usize,
    /// Those that are not back.
    pub missing: Vec<PeerId>,
}

/// Something the user may want to know. `Ended` is the last.
#[derive(Clone, Debug)]
pub enum Event {
    /// A joiner asks this peer to be let in.
    JoinRequested(PeerId),
    /// At the founder: another peer is ready.
    PeerReady {
        /// The peer; oneself at the start.
        peer: PeerId,
        /// Peers ready, this one included.
        ready: usize,
        /// Peers the first view waits for.
        wanted: usize,
    },
    /// At the founder: a peer that was ready has gone before the run began.
    PeerWithdrawn {
        /// The peer.
        peer: PeerId,
        /// Why, in words.
        reason: String,
        /// Peers still ready, this one included.
        ready: usize,
        /// Peers the first view waits for.
        wanted: usize,
    },
    /// At a joiner: the specification is here and fits the run id.
    Welcomed {
        /// The run.
        run: RunId,
        /// Who sent it.
        by: PeerId,
    },
    /// This peer was in a view of this run before it stopped, and comes back without what it held in memory.
    RecoveryStarted {
        /// The view's number.
        view_number: ViewNumber,
    },
    /// At a joiner: everything is at hand, but these members cannot be reached from here. They have to be, before the others
    /// let it in.
    MembersUnreachable {
        /// The members.
        peers: Vec<PeerId>,
    },
    /// At a joiner: the data file is coming from the swarm.
    FetchingData {
        /// Bytes received so far.
        received: u64,
        /// Bytes of the file.
        total: u64,
    },
    /// Task and data are ready.
    Prepared(RunSize),
    /// A view was installed here.
    ViewInstalled {
        /// The record.
        view: Arc<View>,
        /// Its digest.
        digest: ViewDigest,
        /// Elements of the parameter vector that this peer owns as the view begins.
        shard: usize,
        /// Elements that it owns once all chunks have moved.
        share: usize,
        /// What is another way than in the view before; `None`: it is the first one for this peer.
        change: Option<ViewDelta>,
    },
    /// A member is not heard of any more, or its link is gone.
    MemberSuspected(PeerId),
    /// A member stops, and says so.
    MemberStopped {
        /// The member.
        peer: PeerId,
        /// Why, in its words.
        reason: String,
    },
    /// Too few members can be reached to go on: this peer waits for others.
    Paused {
        /// Members that can be reached, this one included.
        reached: usize,
        /// Members that are needed.
        needed: usize,
        /// Members of the view.
        members: usize,
        /// Those that cannot be reached.
        missing: Vec<PeerId>,
    },
    /// Others answer this peer, which wants to be let in, but none of them is in a view.
    NoActiveMember {
        /// Those who answer.
        peers: Vec<PeerId>,
    },
    /// Whoever has answered this peer, which wants to be let in, is gone, and nobody else answers.
    NoPeerAnswers,
    /// This peer has no parameters yet, and all members that have are out of reach: it waits for one of them.
    ParametersUnreachable {
        /// Those members.
        peers: Vec<PeerId>,
    },
    /// Chunks of tables that nobody who can be reached has as they are now: nothing goes on without one of those who had them.
    ChunksMissing {
        /// How many.
        chunks: usize,
        /// Those members.
        peers: Vec<PeerId>,
    },
    /// Chunks of tables begin anew: a user has said that they are lost for good.
    ChunksLost {
        /// How many.
        chunks: usize,
        /// Whether the first is among them, with which it is kept who has computed which samples: all are dealt again.
        retrains_all: bool,
    },
    /// The others have gone on without this peer, which could not be reached: it asks to be let in again.
    Excluded {
        /// The number of the view in which it is not.
        view_number: ViewNumber,
    },
    /// At the member that speaks for a lineage which is to yield: another lineage of the run was met, after the swarm had been cut
    /// in two.
    BranchDetected(BranchDetected),
    /// Another lineage and this one have become one, and their parameters were averaged: which, and what each weighs.
    Merged(Merge),
    /// At one member: how well each of the two did, and both together do.
    MergeEvaluation(MergeEvaluation),
    /// Another lineage was to be merged into this one, and some member could not get what it needed for it.
    MergeAbandoned,
    /// Another lineage of the run stays, and the one that this peer was in does not: it asks to be let in.
    BranchAbandoned {
        /// What it had come to is merged into the other; otherwise it is given up.
        is_merged: bool,
        /// Steps that were committed here after what is merged was kept: they are given up.
        steps_since: u64,
    },
    /// This peer is asked to leave, and hands over what it owns first.
    Leaving,
    /// It has.
    HandedOver {
        /// Chunks that others own now.
        chunks: usize,
        /// How many others.
        members: usize,
    },
    /// The members have put a peer out of the run for good.
    Expelled(Expulsion),
    /// The run has this secret from now on, unless it had it already.
    Rekeyed {
        /// The secret.
        rekey: Rekey,
        /// Who is in, or about to be: all others have to show it anew.
        members: BTreeSet<PeerId>,
    },
    /// All who had parameters have stopped, and some of them are back: they wait until they are enough to go on from what they
    /// have saved.
    RecoveryProgress(RecoveryProgress),
    /// Training goes on from checkpoints.
    Restored {
        /// Steps behind them.
        steps: StepNumber,
        /// The epoch in which they were.
        epoch: u64,
        /// Digest of the parameters; where members drift, of this one's own.
        digest: ContentDigest,
        /// Chunks whose optimizer state none of those who are back has saved: it starts from nothing.
        restarted: Vec<u32>,
    },
    /// A checkpoint was written, or could not be; training goes on.
    Saved {
        /// Steps behind it.
        steps: StepNumber,
        /// In words why it could not.
        result: Result<(), String>,
    },
    /// A step was committed.
    Committed(Committed),
    /// A peer sent something that no correct peer sends; it was ignored.
    Violation {
        /// The sender.
        peer: PeerId,
        /// What was wrong.
        reject: Reject,
    },
    /// The run is over for this peer.
    Ended(Ended),
}

/// How large a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Elements of the parameter vector.
    pub parameters: usize,
    /// Training samples.
    pub samples: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Passes over the training samples.
    pub epochs: u64,
}

/// Another lineage that was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchDetected {
    /// Who speaks for the one that leads.
    pub leads: PeerId,
    /// Samples that this lineage alone has trained.
    pub ours: u64,
    /// Samples that the one that leads alone has trained.
    pub theirs: u64,
    /// What this lineage has is merged into the other; otherwise it is given up.
    pub is_merged: bool,
}

/// How well two lineages did that have become one, and what came of both, on samples that are never trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeEvaluation {
    /// The one that leads, before.
    pub ours: Evaluation,
    /// The one that yields.
    pub theirs: Evaluation,
    /// What came of both.
    pub merged: Evaluation,
    /// How far apart their parameters were: the length of the difference.
    pub distance: f64,
    /// The length of this one's parameter vector, to compare that with.
    pub norm: f64,
}

/// What is another way in a view than in the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewDelta {
    /// Who has come in.
    pub joined: Vec<PeerId>,
    /// Who is gone.
    pub left: Vec<PeerId>,
    /// Who hands over what it owns: to leave later, or since others cannot reach it.
    pub retiring: Vec<PeerId>,
    /// The step with which training goes on.
    pub step: StepNumber,
    /// Whether a step was interrupted.
    pub is_interruption: bool,
    /// Whether that step was completed with what members held together; otherwise it is begun again.
    pub is_forward: bool,
    /// Whether what another lineage has learnt is merged with that step.
    pub is_merge: bool,
    /// Samples that were dealt to those who are gone, and are dealt again.
    pub returned: u64,
    /// Chunks that are to move.
    pub moving: usize,
    /// Chunks whose optimizer state nobody holds any more: it starts from nothing.
    pub restarted: Vec<u32>,
}

/// What is known of a step once it is committed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Committed {
    /// The step.
    pub step: StepNumber,
    /// The epoch it belongs to.
    pub epoch: u64,
    /// Mean loss over the step's samples, before its update.
    pub loss: f64,
    /// Steps of the whole run, as they are expected after it: more than were planned where batches were given back.
    pub steps_expected: u64,
    /// Samples it trained, over all members.
    pub samples: u64,
    /// Samples of its batch that were left out, since their gradient was not finite, or came too late.
    pub left_out: u64,
    /// Whether they may have been left out for being too late, and not only for a gradient that is not finite.
    pub may_be_late: bool,
    /// It is a step of this peer alone, of a program whose peers have a clock each: so are its samples.
    pub is_own: bool,
    /// The learning rate it used.
    pub rate: f64,
    /// Digest of the parameters after it, where one was asked for.
    pub digest: Option<ContentDigest>,
}
