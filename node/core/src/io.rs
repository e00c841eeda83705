//! What goes into a node and what comes out of it: closed enums, and nothing else crosses the seam.
//!
//! ```text
//!            Input                                Output
//!  shell or simulator ----------> Node ----------> shell or simulator
//!  frames, links, credit, results, time            frames, credit, dials, jobs, events
//! ```
//! A driver owes the node: one `Tick` at the start; frames of one link in their order; `LinkUp` before a link's first
//! frame; results only as inputs; all outputs of one call carried out before the next call.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use peergrad_models::task::Evaluation;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::limits::REJECTS_MAX;
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::{Contact, Refusal, SavedCheckpoint};
use peergrad_protocol::view::{Expulsion, ExpulsionCause};
use peergrad_protocol::wire::WireError;
use peergrad_protocol::{Buffer, Frame, PeerId, RunId, StepNumber};

use crate::state::checkpoint::Checkpoint;
use crate::table::TableError;

mod event;

pub use event::{BranchDetected, Committed, Event, MergeEvaluation, RecoveryProgress, RunSize, ViewDelta};

/// Something that happened to a node.
#[derive(Debug)]
pub enum Input {
    /// Time has passed; due when [`deadline`](crate::node::Node::deadline) says so, harmless at other times.
    Tick,
    /// A frame arrived from a peer that proved to be `from`.
    Frame {
        /// The sender.
        from: PeerId,
        /// Its bytes, not yet looked at.
        frame: Frame,
    },
    /// Frames can be sent to this peer from now on, and nothing sent before is still on its way.
    LinkUp(PeerId),
    /// The link is gone, with whatever was on its way.
    LinkDown {
        /// The other end.
        peer: PeerId,
        /// What the driver knows about it, in words.
        reason: String,
    },
    /// The way to this peer leads through another one, which carries words and nothing larger; or it does not any more. Told
    /// before `LinkUp` where it does; a link of which nothing is said is one that tensors can take.
    Relayed {
        /// The other end.
        peer: PeerId,
        /// Whether it does.
        is_relayed: bool,
    },
    /// Where others can dial this peer is known better than before.
    ReachabilityChanged {
        /// Where, best first.
        addresses: Vec<String>,
        /// Whether they can: otherwise it works, and owns nothing.
        is_reachable: bool,
    },
    /// A process with this peer's identity was started later than this one: a data directory was copied.
    DuplicateIdentity {
        /// The peer that knows it.
        by: PeerId,
    },
    /// The peer has used up segments that we sent: as many more may be sent.
    Credit {
        /// The peer that gives it.
        peer: PeerId,
        /// How many segments.
        segments: u32,
    },
    /// A job is done, or its code panicked.
    Computed {
        /// Which job.
        job: JobId,
        /// What it returned.
        result: Result<JobOutput, Panicked>,
    },
    /// The answer to [`Output::FindData`]: the file's bytes, if they are on this machine.
    DataFound(Option<Arc<[u8]>>),
    /// The answer to [`Output::Persist`]: the record is on disk, or in words why it is not.
    Persisted {
        /// Which record.
        id: PersistId,
        /// Whether it would survive a crash now.
        result: Result<(), String>,
    },
    /// The answer to [`Output::SaveCheckpoint`].
    CheckpointSaved {
        /// Steps behind the checkpoint.
        steps: StepNumber,
        /// Whether it would survive a crash now; else in words why not.
        result: Result<(), String>,
    },
    /// The answer to [`Output::LoadCheckpoint`]: the checkpoint, or in words why it cannot be read any more.
    CheckpointLoaded(Result<Arc<Checkpoint>, String>),
    /// The user wants this member put out of the run for good.
    Expel(PeerId),
    /// The user knows that what nobody has any more of tables will not come back.
    DeclareLost,
    /// The user wants the run to have another secret.
    Rekey {
        /// The secret.
        secret: Secret,
        /// When it was drawn: Unix time in milliseconds.
        at: u64,
    },
    /// The user wants this peer to go.
    Leave,
}

/// Something a node wants done.
#[derive(Debug)]
pub enum Output {
    /// Send a frame; order is kept per receiver. To oneself too.
    Send {
        /// The receiver.
        to: PeerId,
        /// Its bytes.
        frame: Frame,
    },
    /// Tell this peer that segments it sent have been used up.
    Credit {
        /// The peer that may send more.
        to: PeerId,
        /// How many segments.
        segments: u32,
    },
    /// Keep trying to have a link to this peer until told otherwise.
    Dial(Contact),
    /// Give up the link to this peer. No `LinkDown` follows: the node knows.
    Disconnect(PeerId),
    /// Run a job beside the network and hand back its answer.
    Compute(Job),
    /// Look on this machine for the data file that the specification names.
    FindData(DataReference),
    /// Keep this record through crashes, in place of the one before, and say when it is safe. What must survive is
    /// on disk before anybody hears of it.
    Persist {
        /// Its name in the answer.
        id: PersistId,
        /// Its bytes; the next start of this peer gets them back, see [`Config`](crate::node::Config).
        record: DurableBytes,
    },
    /// Keep the data file, which came from the swarm: a later start of this peer may find nobody to ask.
    StoreData {
        /// What it is.
        reference: DataReference,
        /// Its bytes.
        data: Arc<[u8]>,
    },
    /// Keep this checkpoint through crashes, beside those before. Training goes on meanwhile, and also if it fails.
    SaveCheckpoint {
        /// What is to be kept.
        checkpoint: Arc<Checkpoint>,
        /// The newest so many of the run are kept.
        keep: usize,
    },
    /// Read this checkpoint back. Those of the same run with more steps are of a branch that is given up: they go.
    LoadCheckpoint(SavedCheckpoint),
    /// Tell the user.
    Event(Event),
}

/// The name of a record within its node; they grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PersistId(pub u64);

/// The name of a job within its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// What a job returns; the one who asked knows its type.
pub type JobOutput = Box<dyn Any + Send>;

/// A piece of computing, to be run on a thread of its own.
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// How heavy it is, for a simulator to model its duration: samples touched.
    pub cost: u64,
    /// The work.
    pub work: Box<dyn FnOnce() -> JobOutput + Send>,
}

impl Job {
    /// Does the work. A panic ends the job and not its thread; a job owns what it touches, so nothing half-changed is left
    /// behind.
    ///
    /// # Errors
    /// The job's code panicked.
    pub fn run(self) -> Result<JobOutput, Panicked> {
        catch_unwind(AssertUnwindSafe(self.work)).map_err(|payload| Panicked(panic_message(&*payload)))
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({}, {} samples)", self.id.0, self.cost)
    }
}

/// A job's code panicked, with this message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked(pub String);

/// The data file of a run: found by name, checked by digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataReference {
    /// As the founder named it: a path, or the name of an embedded set.
    pub name: String,
    /// Digest of the file's bytes as they lie on disk.
    pub digest: ContentDigest,
    /// Their number.
    pub byte_count: u64,
}

/// How a run ended for this peer, and what it leaves.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Done, or why not.
    pub outcome: Result<(), Failure>,
    /// The newest committed state, if training began.
    pub state: Option<FinalState>,
}

/// The parameters a run leaves at a peer.
#[derive(Clone, Debug)]
pub struct FinalState {
    /// The run.
    pub run: RunId,
    /// What the run is: the specification's bytes.
    pub specification: Arc<[u8]>,
    /// Shape of the parameters.
    pub manifest: Manifest,
    /// Committed steps behind them.
    pub steps: u64,
    /// Samples trained by those steps, over all members.
    pub samples: u64,
    /// Samples that were left out, since their gradient was not finite, or came too late.
    pub left_out: u64,
    /// Samples that this peer computed.
    pub own_samples: u64,
    /// The flat parameter vector.
    pub parameters: Arc<Buffer>,
    /// Digest of its bytes.
    pub digest: ContentDigest,
    /// How well it does on held-out samples; only for a run that finished.
    pub evaluation: Option<Evaluation>,
    /// Bytes of optimizer state that this peer keeps (committed and pending).
    pub optimizer_bytes: u64,
    /// Elements of the parameter vector that this peer owns.
    pub shard: usize,
}

/// Why a run ended before it was done. Each says what the user can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The founder has left before the run began.
    #[error("peer {} has left before the run began ({reason}): start the run again and ask for a fresh invite", by.short())]
    FounderLeft {
        /// The founder.
        by: PeerId,
        /// Why, in its words.
        reason: String,
    },
    /// The swarm does not let this peer in.
    #[error("{}", refusal_text(*refusal, *by))]
    Refused {
        /// Who refused.
        by: PeerId,
        /// Why.
        refusal: Refusal,
    },
    /// The founder's specification does not belong to the run of the invite.
    #[error("peer {} sent a specification that is not the invite's run; ask for a fresh invite", by.short())]
    WrongSpecification {
        /// The sender.
        by: PeerId,
    },
    /// The specification or the data cannot be used here.
    #[error("{0}")]
    Unusable(String),
    /// The data file is neither here nor small enough to be sent.
    #[error("the data file `{name}` ({} MiB) is not on this machine and too large to be sent by the swarm: copy it here and add --data FILE", byte_count >> 20)]
    DataMissing {
        /// The file's name at the founder.
        name: String,
        /// Its size.
        byte_count: u64,
    },
    /// What must survive a crash cannot be written.
    #[error(
        "cannot write to the data directory ({0}): make room or choose another with --dir, and start again"
    )]
    DiskFailed(String),
    /// The checkpoint that this peer was to begin with is not what it was.
    #[error(
        "the checkpoint after step {steps} cannot be read any more ({reason}): start this peer again, and the others give it what it lacks"
    )]
    CheckpointLost {
        /// Steps behind it.
        steps: u64,
        /// In words.
        reason: String,
    },
    /// The task's code panicked.
    #[error("the task failed: {0}")]
    TaskPanicked(String),
    /// The user asked this peer to leave.
    #[error("stopped on request")]
    Left,
}

fn refusal_text(refusal: Refusal, by: PeerId) -> String {
    let by = by.short();
    match refusal {
        Refusal::OtherRun { run } => {
            format!(
                "peer {by} belongs to run {}, not to the invite's: ask for an invite of the run you want",
                run.short()
            )
        }
        Refusal::RunComplete => format!("peer {by} says the run is over: there is nothing left to train"),
        Refusal::DuplicateIdentity => format!(
            "peer {by} knows another machine with this peer's identity, which goes on: one of the two data directories is a copy of the other; give this machine one of its own with --dir"
        ),
        Refusal::Full => format!("peer {by} says the run has all the members that it can have"),
        Refusal::NotReady => format!("peer {by} is itself still joining"),
        Refusal::Expelled(Expulsion { by, cause: ExpulsionCause::Request, .. }) => format!(
            "this peer was removed from the run, as a user wanted it at peer {}: ask there why",
            by.short()
        ),
        Refusal::Expelled(Expulsion { by, cause: ExpulsionCause::Violations, .. }) => format!(
            "this peer was put out of the run: peer {} had to refuse {REJECTS_MAX} of its frames; use the same release on all machines, and if it was the same, look at this machine's memory",
            by.short()
        ),
    }
}

/// What was wrong with something a peer sent. Counted; our state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// The bytes are no frame.
    #[error("bad frame: {0}")]
    Wire(#[from] WireError),
    /// The sender is no member of the view.
    #[error("a frame for members only, from a stranger to the view")]
    NotAMember,
    /// The message is out of place in what both sides are doing.
    #[error("a message that is out of place here")]
    OutOfPlace,
    /// A collective's segment that the plan does not foresee.
    #[error("a segment that the plan does not foresee")]
    Segment,
    /// A chunk that is damaged, or was not to come.
    #[error("a chunk that is damaged, or was not to come")]
    Chunk,
    /// More segments than the credit allows.
    #[error("more segments than the link's credit allows")]
    OverCredit,
    /// No word about a table.
    #[error("a word about a table that is none")]
    MalformedTableMessage,
    /// A word about a table that no correct peer says.
    #[error("about a table: {0}")]
    Table(TableError),
    /// A data piece that was not asked for, or whose file has another digest.
    #[error("a data piece that was not asked for, or is damaged")]
    Data,
}
