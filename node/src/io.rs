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

use peergrad_protocol::durable::Record;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::REJECTS_MAX;
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::{Contact, Refusal, Saved};
use peergrad_protocol::view::{Cause, Expulsion, Merge, View};
use peergrad_protocol::wire::WireError;
use peergrad_protocol::{Buffer, Epoch, Frame, PeerId, RunId, StepNumber, ViewDigest};

use crate::checkpoint::Checkpoint;
use crate::task::Evaluation;

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
    Placed {
        /// Where, best first.
        addresses: Vec<String>,
        /// Whether they can: otherwise it works, and owns nothing.
        is_reachable: bool,
    },
    /// A process with this peer's identity was started later than this one: a data directory was copied.
    Outdated {
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
        result: Result<Answer, Panicked>,
    },
    /// The answer to [`Output::Locate`]: the file's bytes, if they are on this machine.
    Located(Option<Arc<[u8]>>),
    /// The answer to [`Output::Persist`]: the record is on disk, or in words why it is not.
    Persisted {
        /// Which record.
        id: PersistId,
        /// Whether it would survive a crash now.
        result: Result<(), String>,
    },
    /// The answer to [`Output::Save`].
    Saved {
        /// Steps behind the checkpoint.
        steps: StepNumber,
        /// Whether it would survive a crash now; else in words why not.
        result: Result<(), String>,
    },
    /// The answer to [`Output::Restore`]: the checkpoint, or in words why it cannot be read any more.
    Restored(Result<Arc<Checkpoint>, String>),
    /// The user wants this member put out of the run for good.
    Expel(PeerId),
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
    Hangup(PeerId),
    /// Run a job beside the network and hand back its answer.
    Compute(Job),
    /// Look on this machine for the data file that the specification names.
    Locate(DataReference),
    /// Keep this record through crashes, in place of the one before, and say when it is safe. What must survive is
    /// on disk before anybody hears of it.
    Persist {
        /// Its name in the answer.
        id: PersistId,
        /// Its bytes; the next start of this peer gets them back, see [`Config`](crate::node::Config).
        record: Record,
    },
    /// Keep the data file, which came from the swarm: a later start of this peer may find nobody to ask.
    KeepData {
        /// What it is.
        reference: DataReference,
        /// Its bytes.
        data: Arc<[u8]>,
    },
    /// Keep this checkpoint through crashes, beside those before. Training goes on meanwhile, and also if it fails.
    Save {
        /// What is to be kept.
        checkpoint: Arc<Checkpoint>,
        /// The newest so many of the run are kept.
        keep: usize,
    },
    /// Read this checkpoint back. Those of the same run with more steps are of a branch that is given up: they go.
    Restore(Saved),
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
pub type Answer = Box<dyn Any + Send>;

/// A piece of computing, to be run on a thread of its own.
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// How heavy it is, for a simulator to model its duration: samples touched.
    pub cost: u64,
    /// The work.
    pub work: Box<dyn FnOnce() -> Answer + Send>,
}

impl Job {
    /// Does the work. A panic ends the job and not its thread; a job owns what it touches, so nothing half-changed is left
    /// behind.
    ///
    /// # Errors
    /// The job's code panicked.
    pub fn run(self) -> Result<Answer, Panicked> {
        catch_unwind(AssertUnwindSafe(self.work)).map_err(|payload| Panicked(words_of(&*payload)))
    }
}

fn words_of(payload: &(dyn Any + Send)) -> String {
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

/// Who is back of a view of which all have stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regrouping {
    /// The number of the view.
    pub epoch: Epoch,
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
    Asking(PeerId),
    /// At the founder: another peer is ready.
    Gathered {
        /// The peer; oneself at the start.
        peer: PeerId,
        /// Peers ready, this one included.
        ready: usize,
        /// Peers the first view waits for.
        wanted: usize,
    },
    /// At the founder: a peer that was ready has gone before the run began.
    Withdrawn {
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
    Returned {
        /// The view's number.
        epoch: Epoch,
    },
    /// At a joiner: everything is at hand, but these members cannot be reached from here. They have to be, before the others
    /// let it in.
    OutOfReach {
        /// The members.
        peers: Vec<PeerId>,
    },
    /// At a joiner: the data file is coming from the swarm.
    Fetching {
        /// Bytes received so far.
        received: u64,
        /// Bytes of the file.
        total: u64,
    },
    /// Task and data are ready.
    Prepared(Scope),
    /// A view was installed here.
    Installed {
        /// The record.
        view: Arc<View>,
        /// Its digest.
        digest: ViewDigest,
        /// Elements of the parameter vector that this peer owns.
        shard: usize,
        /// What is another way than in the view before; `None`: it is the first one for this peer.
        change: Option<Change>,
    },
    /// A member is not heard of any more, or its link is gone.
    Missed(PeerId),
    /// A member stops, and says so.
    Stopped {
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
    NobodyTrains {
        /// Those who answer.
        peers: Vec<PeerId>,
    },
    /// Whoever has answered this peer, which wants to be let in, is gone, and nobody else answers.
    NobodyAnswers,
    /// This peer has no parameters yet, and all members that have are out of reach: it waits for one of them.
    Orphaned {
        /// Those members.
        peers: Vec<PeerId>,
    },
    /// The others have gone on without this peer, which could not be reached: it asks to be let in again.
    Excluded {
        /// The number of the view in which it is not.
        epoch: Epoch,
    },
    /// At the member that speaks for a lineage which is to yield: another lineage of the run was met, after the swarm had been cut
    /// in two.
    Met(Met),
    /// Two lineages have become one, and their parameters were averaged.
    Merged(Merged),
    /// How well each of the two did, and both together do, on samples that are never trained.
    Weighed {
        /// The one that leads, before.
        ours: Evaluation,
        /// The one that yields.
        theirs: Evaluation,
        /// What came of both.
        merged: Evaluation,
    },
    /// Another lineage was to be merged into this one, and some member could not get what it needed for it.
    NotMerged,
    /// Another lineage of the run stays, and the one that this peer was in does not: it asks to be let in.
    GaveWay {
        /// What it had come to is merged into the other; otherwise it is given up.
        is_merged: bool,
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
    /// All who had parameters have stopped, and some of them are back: they wait until they are enough to go on from what they
    /// have saved.
    Regrouping(Regrouping),
    /// Training goes on from checkpoints.
    Restored {
        /// Steps behind them.
        steps: StepNumber,
        /// The pass in which they were.
        pass: u64,
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
pub struct Scope {
    /// Elements of the parameter vector.
    pub parameters: usize,
    /// Training samples.
    pub samples: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Passes over the training samples.
    pub passes: u64,
}

/// Another lineage that was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// Who speaks for the one that leads.
    pub leads: PeerId,
    /// Samples that this lineage alone has trained.
    pub ours: u64,
    /// Samples that the one that leads alone has trained.
    pub theirs: u64,
    /// What this lineage has is merged into the other; otherwise it is given up.
    pub is_merged: bool,
}

/// Two lineages that have become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merged {
    /// Which was merged into this one, and what each weighs.
    pub merge: Merge,
    /// How far apart their parameters were: the length of the difference.
    pub distance: f64,
    /// The length of this one's parameter vector, to compare that with.
    pub norm: f64,
}

/// What is another way in a view than in the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
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
    /// Samples that were dealt to those who are gone, and are dealt again.
    pub given_back: u64,
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
    /// The pass it belongs to.
    pub pass: u64,
    /// Mean loss over the step's samples, before its update.
    pub loss: f64,
    /// Samples it trained, over all members.
    pub samples: u64,
    /// Samples of its batch that were left out, since their gradient was not finite, or came too late.
    pub left_out: u64,
    /// Whether they may have been left out for being too late, and not only for a gradient that is not finite.
    pub may_be_late: bool,
    /// The learning rate it used.
    pub rate: f64,
    /// Digest of the parameters after it, where one was asked for.
    pub digest: Option<ContentDigest>,
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
    NotFounded {
        /// The founder.
        by: PeerId,
        /// Why, in its words.
        reason: String,
    },
    /// The swarm does not let this peer in.
    #[error("{}", refusal_words(*refusal, *by))]
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

fn refusal_words(refusal: Refusal, by: PeerId) -> String {
    let by = by.short();
    match refusal {
        Refusal::OtherRun { run } => {
            format!(
                "peer {by} belongs to run {}, not to the invite's: ask for an invite of the run you want",
                run.short()
            )
        }
        Refusal::Over => format!("peer {by} says the run is over: there is nothing left to train"),
        Refusal::Copied => format!(
            "peer {by} knows another machine with this peer's identity, which goes on: one of the two data directories is a copy of the other; give this machine one of its own with --dir"
        ),
        Refusal::Full => format!("peer {by} says the run has all the members that it can have"),
        Refusal::NotYet => format!("peer {by} is itself still joining"),
        Refusal::Expelled(Expulsion { by, cause: Cause::Request, .. }) => format!(
            "this peer was removed from the run, as a user wanted it at peer {}: ask there why",
            by.short()
        ),
        Refusal::Expelled(Expulsion { by, cause: Cause::Violations, .. }) => format!(
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
    /// A data piece that was not asked for, or whose file has another digest.
    #[error("a data piece that was not asked for, or is damaged")]
    Data,
}
