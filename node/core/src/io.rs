//! The inputs and outputs of a node: closed enums, and nothing else crosses this interface.
//!
//! ```text
//!            Input                                Output
//!  shell or simulator ----------> Node ----------> shell or simulator
//!  frames, links, credit, results, time            frames, credit, dials, jobs, events
//! ```
//! A driver must: send one `Tick` at the start; deliver the frames of one link and one priority in order; send `LinkUp` before a
//! link's first frame; return results only as inputs; carry out all outputs of one call before the next call.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::task::Evaluation;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::{Contact, SavedCheckpoint};
use peergrad_protocol::wire::WireError;
use peergrad_protocol::{Buffer, Frame, PeerId, RunId, StepNumber};

pub use crate::peer_links::{LONG_ROUND_TRIP, Line};
use crate::state::checkpoint::Checkpoint;
use crate::table::TableError;

mod event;
mod failure;

pub use event::{BranchDetected, Committed, Event, MergeEvaluation, RecoveryProgress, RunSize, ViewDelta};
pub use failure::Failure;

/// One event that a node must handle.
#[derive(Debug)]
pub enum Input {
    /// Time has passed. Needed at [`deadline`](crate::node::Node::deadline), and harmless at other times.
    Tick,
    /// A frame arrived from the peer that has proved to be `from`.
    Frame {
        /// The sender.
        from: PeerId,
        /// The frame, not decoded yet.
        frame: Frame,
    },
    /// Frames can be sent to this peer from now on, and no frame that was sent before is still on its way.
    LinkUp(PeerId),
    /// The link is down, and what was on its way is lost.
    LinkDown {
        /// The peer at the other end.
        peer: PeerId,
        /// The reason for the user, as far as the driver knows it.
        reason: String,
    },
    /// This peer is now reached through another one, which carries control messages only and no tensors; or it is reached directly again.
    /// If it is relayed, this comes before `LinkUp`. Without this input a link is direct.
    Relayed {
        /// The peer at the other end.
        peer: PeerId,
        /// Whether it is reached through another peer.
        is_relayed: bool,
    },
    /// The driver has learnt more about where others can dial this peer.
    ReachabilityChanged {
        /// The addresses, best first.
        addresses: Vec<String>,
        /// Whether others can dial it. If not, this peer works, and owns nothing.
        is_reachable: bool,
    },
    /// A process with this peer's identity was started after this one: a data directory was copied.
    DuplicateIdentity {
        /// The peer that reports it.
        by: PeerId,
    },
    /// Whether much that was sent, to whatever peers, has not arrived yet, when that changes. It need be known before a tick only.
    UplinkBusy(bool),
    /// This peer has opened a stream that no correct peer opens, or has sent bytes on one that are no frames.
    BadStream(PeerId),
    /// The line to a linked peer has been measured again, from frames that this node sent.
    LineMeasured {
        /// The peer at the other end.
        peer: PeerId,
        /// What the line carries.
        line: Line,
    },
    /// All long lines of this peer together have been measured again, from frames that this node sent. A line is long from a round trip of
    /// [`LONG_ROUND_TRIP`] on.
    UplinkMeasured {
        /// What they carry.
        bytes_per_second: u64,
    },
    /// The peer has processed segments that this node sent, or allows more of them: as many more may be sent.
    Credit {
        /// The peer that returns the credit.
        peer: PeerId,
        /// The number of segments.
        segments: u32,
    },
    /// A part of what a job computes is there, and the job continues. Its result holds all parts.
    ComputedPart {
        /// The job's id.
        job: JobId,
        /// The part.
        part: JobOutput,
    },
    /// A job has finished, or its code panicked.
    Computed {
        /// The job's id.
        job: JobId,
        /// The job's result.
        result: Result<JobOutput, Panicked>,
    },
    /// The answer to [`Output::FindData`].
    DataFound(FoundData),
    /// The answer to [`Output::StorePiece`]: how many bytes of the data file are on disk, from its first one on; or why a piece could not be
    /// written.
    PieceStored(Result<u64, String>),
    /// The answer to [`Output::Persist`]: the record of this id is on disk, and would survive a crash now.
    Persisted(PersistId),
    /// This record, or a newer one in its place, could not be written. Writing is tried again.
    NotPersisted(PersistId),
    /// The answer to [`Output::SaveCheckpoint`].
    CheckpointSaved {
        /// The number of steps behind the checkpoint.
        steps: StepNumber,
        /// Whether the checkpoint would survive a crash now; otherwise a text for the user that says why not.
        result: Result<(), String>,
    },
    /// The answer to [`Output::KeepBest`].
    BestKept {
        /// The number of steps behind the checkpoint.
        steps: StepNumber,
        /// A text for the user that says why it was not kept.
        result: Result<(), String>,
    },
    /// The answer to [`Output::LoadCheckpoint`]: the checkpoint, or a text for the user that says why it cannot be read any more.
    CheckpointLoaded(Result<Arc<Checkpoint>, String>),
    /// The user asks to expel this member from the run.
    Expel(PeerId),
    /// The user declares that the missing chunks of tables are lost for good.
    DeclareLost,
    /// The user ends the run at all members: after the next step, or in a run with tables once the samples that workers hold are done.
    EndRun,
    /// The user asks for a new secret of the run.
    Rekey {
        /// The new secret.
        secret: Secret,
        /// When it was drawn: Unix time in milliseconds.
        at: u64,
    },
    /// The user says that the program is busy: for this time from now, [`BUSY_MAX`](peergrad_protocol::limits::BUSY_MAX) at most, it may compute at one step without counting as
    /// hanging. It takes the place of what was said before. Zero if it is not busy.
    Busy(Duration),
    /// The user asks this peer to leave.
    Leave,
}

/// Which checkpoints of a run stay on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How many, the newest ones.
    pub keep: usize,
    /// More of them that are being evaluated, or may be, and may be the best.
    pub candidates: Vec<StepNumber>,
}

/// One thing that the driver must do for a node.
#[derive(Debug)]
pub enum Output {
    /// Send a frame. Frames to one receiver stay in order, but urgent ones may overtake normal ones. The receiver may be this node itself.
    Send {
        /// The receiver.
        to: PeerId,
        /// The frame.
        frame: Frame,
    },
    /// Tell this peer that segments which it sent have been processed.
    Credit {
        /// The peer that may send more.
        to: PeerId,
        /// The number of segments.
        segments: u32,
    },
    /// Keep trying to link to this peer until [`Output::Disconnect`].
    Dial(Contact),
    /// Close the link to this peer. No `LinkDown` follows, because the node knows.
    Disconnect(PeerId),
    /// Run a job on a compute thread. Return its parts and its result, in this order.
    Compute(Job),
    /// Look on this machine for the data file that the specification names.
    FindData(DataReference),
    /// Replace the record on disk by this one, so that it survives a crash, and report when that is done. What must survive is on disk
    /// before the node sends any message that depends on it.
    Persist {
        /// The id of the record, for the answer.
        id: PersistId,
        /// The record. The next start of this peer gets it back: see [`Config`](crate::node::Config).
        record: DurableBytes,
    },
    /// Store the data file, which came from another peer: at its next start this peer may find no peer to ask.
    StoreData {
        /// The name and digest of the file.
        reference: DataReference,
        /// The file's bytes.
        data: Arc<[u8]>,
    },
    /// Store a piece of a data file that comes from another peer and is too large for memory. Pieces come in order, the first one at 0 or where
    /// an earlier try ended; one at 0 replaces what is there.
    StorePiece {
        /// The name, size and digest of the whole file.
        reference: DataReference,
        /// Where the piece begins.
        offset: u64,
        /// The bytes of the piece.
        piece: Box<[u8]>,
    },
    /// Write this checkpoint to disk, beside the earlier ones. Training continues meanwhile, and also if it fails.
    SaveCheckpoint {
        /// The checkpoint.
        checkpoint: Arc<Checkpoint>,
        /// Which of the run's checkpoints are kept.
        retention: Retention,
    },
    /// The checkpoint after so many steps is the best so far: keep its tensors apart, in place of those of an earlier one. It may be missing.
    KeepBest {
        /// The run.
        run: RunId,
        /// The number of steps behind the checkpoint.
        steps: StepNumber,
    },
    /// Read this checkpoint. Checkpoints of the same run with more steps belong to an abandoned branch: the driver deletes them.
    LoadCheckpoint(SavedCheckpoint),
    /// Report an event to the user.
    Event(Event),
}

/// The id of a record within its node. Ids increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PersistId(pub u64);

/// The id of a job within its node. Ids increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// What a job returns. The caller that started the job knows the type.
pub type JobOutput = Box<dyn Any + Send>;

/// A computation, to be run on a compute thread.
pub struct Job {
    /// The id of the job.
    pub id: JobId,
    /// The number of samples that it computes, from which a simulator models its duration.
    pub cost: u64,
    /// Whether it is a computation of the program. Others, such as loading and evaluating, must not wait for these: a task may keep one as
    /// long as it likes.
    pub is_of_program: bool,
    /// The computation itself.
    pub work: Work,
}

/// What a job computes.
pub struct Work(Box<dyn FnOnce(&mut PartReceiver<'_>) -> JobOutput + Send>);

/// Takes the parts of what a job computes.
type PartReceiver<'a> = dyn FnMut(JobOutput) + 'a;

impl Work {
    /// Something whose result comes at its end.
    pub fn whole<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Self(Box::new(move |_| Box::new(work())))
    }

    /// Something that also hands out parts while it computes. A part may get lost: the result holds all of them.
    pub(crate) fn in_parts<T: Send + 'static>(
        work: impl FnOnce(&mut PartReceiver<'_>) -> T + Send + 'static,
    ) -> Self {
        Self(Box::new(move |part| Box::new(work(part))))
    }
}

impl Job {
    /// Runs the computation, and calls `part` with each of its parts. A panic ends the job and not its thread. A job owns what it changes,
    /// so a panic leaves nothing half-changed behind.
    ///
    /// # Errors
    /// The job's code panicked.
    pub fn run(self, mut part: impl FnMut(JobOutput)) -> Result<JobOutput, Panicked> {
        let work = AssertUnwindSafe(|| (self.work.0)(&mut part));
        catch_unwind(work).map_err(|payload| Panicked(panic_message(&*payload)))
    }
}

/// What a panic says of itself.
#[must_use]
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
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

/// What a machine has of a data file.
#[derive(Debug)]
pub enum FoundData {
    /// All of it.
    Whole(DataBytes),
    /// The first bytes of it, stored by [`Output::StorePiece`].
    Part {
        /// How many bytes.
        byte_count: u64,
    },
    /// Nothing.
    Nothing,
}

/// The data file of a run: found by name, checked by digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataReference {
    /// The name that the founder gave: a path, or the name of an embedded data set.
    pub name: String,
    /// The digest of the file's bytes.
    pub digest: ContentDigest,
    /// The number of the file's bytes.
    pub byte_count: u64,
}

/// How a run ended for this peer, and its final state.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Whether the run was completed, and if not, why.
    pub outcome: Result<(), Failure>,
    /// The newest committed state; `None` if training did not begin.
    pub state: Option<FinalState>,
}

/// The final parameters of a run at a peer.
#[derive(Clone, Debug)]
pub struct FinalState {
    /// The id of the run.
    pub run: RunId,
    /// The encoded specification of the run.
    pub specification: Arc<[u8]>,
    /// The shape of the parameters.
    pub manifest: Manifest,
    /// The number of committed steps behind the parameters.
    pub steps: u64,
    /// Samples that those steps have trained, over all members.
    pub samples: u64,
    /// Samples that were left out, because their gradient was not finite or came too late.
    pub left_out: u64,
    /// Samples that this peer has computed.
    pub own_samples: u64,
    /// The flat parameter vector.
    pub parameters: Arc<Buffer>,
    /// The digest of the parameters' bytes.
    pub digest: ContentDigest,
    /// The evaluation on held-out samples; `None` unless the run was completed.
    pub evaluation: Option<Evaluation>,
    /// Bytes of optimizer state that this peer stores (committed and pending).
    pub optimizer_bytes: u64,
    /// Elements of the parameter vector that this peer owns.
    pub shard: usize,
}

/// What was wrong with a message of a peer. The violation is counted, and the node's state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// The bytes are not a frame.
    #[error("bad frame: {0}")]
    Wire(#[from] WireError),
    /// A stream that no correct peer opens, or that does not carry frames.
    #[error("a stream without frames")]
    Stream,
    /// The sender is not a member of the view.
    #[error("a frame for members only, from a stranger to the view")]
    NotAMember,
    /// The message does not fit what the two peers are doing.
    #[error("a message that is out of place here")]
    OutOfPlace,
    /// A segment that the plan of the collective does not contain.
    #[error("a segment that the plan does not foresee")]
    Segment,
    /// A chunk that is damaged, or was not expected.
    #[error("a chunk that is damaged, or was not expected")]
    Chunk,
    /// More segments than the credit allows.
    #[error("more segments than the link's credit allows")]
    OverCredit,
    /// The bytes are not a message about a table.
    #[error("a malformed table message")]
    MalformedTableMessage,
    /// A message about a table that no correct peer sends.
    #[error("about a table: {0}")]
    Table(TableError),
    /// A data piece that was not asked for, or whose file has another digest.
    #[error("a data piece that was not asked for, or is damaged")]
    Data,
}
