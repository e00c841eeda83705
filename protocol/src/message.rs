//! All messages between peers: the sender and receiver of each, and the message that answers it.
//!
//! A message belongs to one of five conversations, each with a file of its own. Three more are sent by every member at any time:
//!
//! | conversation | between | subject |
//! |---|---|---|
//! | [`Join`](Message::Join) | a joiner and members | the joiner's admission |
//! | [`Agreement`](Message::Agreement) | a proposer and the members of a view | the next view |
//! | [`InView`](Message::InView) | members of the same view | training; ignored in any other view |
//! | [`Merge`](Message::Merge) | two branches of the run that meet again | the merge of both |
//! | [`Admin`](Message::Admin) | members | requests of users |
//! | `Heartbeat`, `FrameCount`, `Leave` | members; `Leave` also joiners and the founder | a peer is alive and what it has sent, or that it stops |
//!
//! # Order
//! Between two peers, messages arrive in the order in which they were sent, with one exception: urgent ones overtake normal
//! ones, which may wait behind many tensors. Messages of one [`Priority`] keep their order.

use crate::id::{StepNumber, ViewDigest, ViewNumber};
use crate::limits::{BUSY_MAX, REASON_BYTES_MAX, STEPS_MAX};
use crate::wire::codec::{Decode, Encode};

mod admin;
mod agreement;
mod contact;
mod join;
mod merge;
mod priority;
mod sample_stats;
mod sent_frames;
mod training;
mod validity;

pub use admin::{AdminMessage, Rekey};
pub use agreement::{
    Accepted, AgreementMessage, Awaited, AwaitedAt, MemberReport, Nack, PartialStep, Prepare, Promise,
    Propose, RejoinCandidate, SavedCheckpoint, Stage,
};
pub use contact::Contact;
pub use join::{DataPiece, Join, JoinMessage, Refusal, WantData, Welcome};
pub use merge::{
    MergeAccept, MergeMessage, MergeOffer, MergeProbe, MergeReady, SnapshotChunks, SnapshotDonor,
    WantSnapshot,
};
pub use priority::Priority;
pub use sample_stats::SampleStats;
pub use sent_frames::SentFrames;
pub use training::{
    BestEvaluation, ChunkBatch, ChunkContent, ChunkEntry, Closed, Complete, Evaluated, ParametersDigest,
    Phase, SaveAt, Segment, ShardDigest, ShardNorm, StepContributors, StepProgress, TrainingMessage,
    WantChunks,
};
pub use validity::Invalid;

use validity::{bounded, in_range, is_step};

/// One message. Its payload, if it has one, is not part of it but of the frame.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[expect(
    clippy::large_enum_variant,
    reason = "a message lives for one call, and a view in it is moved out, not copied"
)]
pub enum Message {
    /// Between a joiner and members: the joiner's admission.
    Join(JoinMessage),
    /// Between a proposer and the members of a view: the next view.
    Agreement(AgreementMessage),
    /// Between members of one view: training. It has no meaning in another view.
    InView {
        /// The view of sender and receiver.
        view: ViewDigest,
        /// The message.
        message: TrainingMessage,
    },
    /// Between branches of the run that meet again, and within each: the merge.
    Merge(MergeMessage),
    /// Between members: requests of users.
    Admin(AdminMessage),
    /// Member to the members that watch it, four times a second (once a second in a large view): the sender is alive, and its progress.
    Heartbeat(Heartbeat),
    /// Member to the receivers of a heartbeat, after it, if the number or the view differs from what was last sent over this link. When a
    /// member enters a view, to all to whom it sent normal frames in the view before.
    FrameCount {
        /// The sender's view. No normal frame of an earlier view follows.
        view: ViewDigest,
        /// How many normal frames were sent before.
        sent: SentFrames,
    },
    /// Member to every member, or before the first view joiner to founder and founder to every joiner: the sender stops, and why.
    Leave(Departure),
}

impl From<JoinMessage> for Message {
    fn from(message: JoinMessage) -> Self {
        Self::Join(message)
    }
}

impl From<AgreementMessage> for Message {
    fn from(message: AgreementMessage) -> Self {
        Self::Agreement(message)
    }
}

impl From<MergeMessage> for Message {
    fn from(message: MergeMessage) -> Self {
        Self::Merge(message)
    }
}

impl From<AdminMessage> for Message {
    fn from(message: AdminMessage) -> Self {
        Self::Admin(message)
    }
}

/// A sign of life of a member, with its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Heartbeat {
    /// Digest of the view that the sender has installed.
    pub view: ViewDigest,
    /// Number of that view.
    pub view_number: ViewNumber,
    /// The number of steps that are complete at the sender; 0 while it has no parameters.
    pub complete: StepNumber,
    /// The step that the sender's program is computing; `None` while it computes none. If steps do not wait for all members, it may be
    /// another step than the one in progress.
    pub computing: Option<StepNumber>,
    /// The urgent frames that the sender has sent to the receiver before this one.
    pub sent: SentFrames,
    /// `sent` in the newest heartbeat of the receiver that has arrived at the sender. So the receiver learns how long its frames take.
    pub heard: SentFrames,
    /// Whether much that the sender has sent, to whatever peer, has not arrived yet. Then its line may delay this heartbeat.
    pub is_uplink_busy: bool,
    /// How many bytes of segments the sender wants to have at the receiver or on their way there, so that the line is full; 0 if the line
    /// has not been measured.
    pub window_bytes: u64,
    /// Whether the sender cannot write to its disk at present. Then it has no vote.
    pub disk_fails: bool,
    /// For how many more milliseconds the sender's program may be busy at one step, by the word of its user; 0 if it is not busy. Until then
    /// it does not count as hanging.
    pub busy_milliseconds: u32,
}

/// Why a peer stops.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Departure {
    /// The reason, as text for users.
    pub reason: String,
}

impl Departure {
    /// A departure with this reason, cut to the longest that a frame may have, at the end of a character.
    #[must_use]
    pub fn new(reason: &str) -> Self {
        let ends = reason.char_indices().map(|(start, letter)| start + letter.len_utf8());
        let end = ends.take_while(|end| *end <= REASON_BYTES_MAX).last().unwrap_or(0);
        Self { reason: reason[..end].to_owned() }
    }
}

impl Message {
    /// How soon the message is sent.
    #[must_use]
    pub fn priority(&self) -> Priority {
        match self {
            Self::Join(JoinMessage::Data(_)) => Priority::Normal,
            Self::Heartbeat(_) | Self::Agreement(_) | Self::Admin(_) | Self::Join(_) => Priority::Urgent,
            Self::InView { .. } | Self::Merge(_) | Self::FrameCount { .. } | Self::Leave(_) => {
                Priority::Normal
            }
        }
    }

    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// The kind of rule that the message breaks.
    pub fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Join(message) => message.validate(),
            Self::Agreement(message) => message.validate(),
            Self::InView { message, .. } => message.validate(),
            Self::Merge(message) => message.validate(),
            Self::Admin(message) => message.validate(),
            Self::FrameCount { .. } => Ok(()),
            Self::Heartbeat(heartbeat) => {
                let mut steps = heartbeat.computing.into_iter().chain([heartbeat.complete]);
                let is_short = u128::from(heartbeat.busy_milliseconds) <= BUSY_MAX.as_millis();
                in_range(steps.all(is_step) && heartbeat.view_number.0 <= STEPS_MAX && is_short)
            }
            Self::Leave(departure) => bounded(departure.reason.len() <= REASON_BYTES_MAX),
        }
    }
}
