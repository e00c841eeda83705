//! Everything a peer can say to another, with who says it, what answers it, and when it is out of place.
//!
//! A message belongs to one of five conversations, each with a file of its own, or it is one of two that every member sends and
//! hears in all of them:
//!
//! | conversation | between | about |
//! |---|---|---|
//! | [`Join`](Message::Join) | a joiner and members | its way into the run |
//! | [`Agreement`](Message::Agreement) | a proposer and the members of a view | which view comes next |
//! | [`InView`](Message::InView) | members of the same view | training; out of place in any other view |
//! | [`Merge`](Message::Merge) | two lineages of the run that meet again | how they become one |
//! | [`Admin`](Message::Admin) | members | what a user asks of the run |
//! | `Heartbeat`, `Leave` | members; `Leave` also joiners and the founder | that a peer lives, and that it goes |

use crate::id::{StepNumber, ViewDigest, ViewNumber};
use crate::limits::{REASON_BYTES_MAX, STEPS_MAX};
use crate::wire::codec::{Decode, Encode};

mod admin;
mod agreement;
mod contact;
mod join;
mod merge;
mod sample_stats;
mod training;
mod validity;

pub use admin::{AdminMessage, Rekey};
pub use agreement::{
    Accepted, AgreementMessage, MemberReport, Nack, PartialStep, Prepare, Promise, Propose, RejoinCandidate,
    SavedCheckpoint,
};
pub use contact::Contact;
pub use join::{DataPiece, Join, JoinMessage, Refusal, WantData, Welcome};
pub use merge::{
    MergeAccept, MergeMessage, MergeOffer, MergeProbe, MergeReady, SnapshotChunks, SnapshotDonor,
    WantSnapshot,
};
pub use sample_stats::SampleStats;
pub use training::{
    ChunkBatch, ChunkContent, ChunkEntry, Closed, Complete, Phase, SaveAt, Segment, StepContributors,
    StepProgress, TrainingMessage, WantChunks,
};
pub use validity::Invalid;

use validity::{bounded, in_range, is_step};

/// One message; its payload, if it has one, travels beside it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[expect(
    clippy::large_enum_variant,
    reason = "a message lives for one call, and a view in it is moved out, not copied"
)]
pub enum Message {
    /// Between a joiner and the members: its way into the run.
    Join(JoinMessage),
    /// Between a proposer and the members of a view: which view comes next.
    Agreement(AgreementMessage),
    /// Between members of one view: training. Out of place outside the view it names.
    InView {
        /// The view that both are in.
        view: ViewDigest,
        /// What the sender says in it.
        message: TrainingMessage,
    },
    /// Between lineages of the run that meet again, and within each: how they become one.
    Merge(MergeMessage),
    /// Between members: what a user asks of the run.
    Admin(AdminMessage),
    /// Member to every member, four times a second: I live, and this is where I am.
    Heartbeat(Heartbeat),
    /// Member to every member, or before the first view joiner to founder and founder to every joiner: stopping, and why.
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

/// That a member lives, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Heartbeat {
    /// Digest of the view that the sender has installed.
    pub view: ViewDigest,
    /// Number of that view.
    pub view_number: ViewNumber,
    /// Steps that are complete at the sender; 0 as long as it has no parameters.
    pub complete: StepNumber,
    /// The step that the sender's program computes: the step in progress, but where steps do not wait for it. `None` while it
    /// computes none.
    pub computing: Option<StepNumber>,
}

/// Why a peer stops.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Departure {
    /// The reason, for people to read.
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
    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// Says which kind of rule is broken.
    pub fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Join(message) => message.validate(),
            Self::Agreement(message) => message.validate(),
            Self::InView { message, .. } => message.validate(),
            Self::Merge(message) => message.validate(),
            Self::Admin(message) => message.validate(),
            Self::Heartbeat(heartbeat) => {
                let mut steps = heartbeat.computing.into_iter().chain([heartbeat.complete]);
                in_range(steps.all(is_step) && heartbeat.view_number.0 <= STEPS_MAX)
            }
            Self::Leave(departure) => bounded(departure.reason.len() <= REASON_BYTES_MAX),
        }
    }
}
