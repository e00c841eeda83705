//! Everything a peer can say to another, with who says it, what answers it, and when it is out of place.
//!
//! ```text
//! joiner                        member                         founder, once enough are ready
//!   | -- Join -------------------> |                              |
//!   | <------ Refer / Refuse ----- |   (not the founder: it names it)
//!   | -- Join --------------------------------------------------> |
//!   | <---------------------------------------------- Welcome --- |
//!   | -- WantData (only if no file of that digest is at hand) --> |
//!   | <---------------------------------------------- Data ...--- |
//!   | -- Ready -------------------------------------------------> |
//!   | <---------------------------------------------- Install --- |   to every member
//!   | <===== Segment ... Segment =====> its neighbours, each step
//!   | <===== Complete ================> every member, after the last step
//! ```

use crate::id::{ContentDigest, Incarnation, PeerId, RunId, StepNumber, ViewDigest};
use crate::limits::{REASON_BYTES_MAX, SPECIFICATION_BYTES_MAX, STEPS_MAX};
use crate::view::{View, are_bounded};
use crate::wire::{Decode, Encode};

/// One message; its payload, if it has one, travels beside it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Message {
    /// Joiner to any member: let me in. Answered by `Welcome`, `Refer` or `Refuse`; repeated until then.
    Join(Join),
    /// Founder to joiner: what this run is.
    Welcome(Welcome),
    /// Member to joiner: not me, ask this peer. The joiner dials it and sends `Join` there.
    Refer(Contact),
    /// Founder to joiner: no, and why. Final unless the reason says otherwise.
    Refuse(Refusal),
    /// Joiner to founder: send a piece of the data file. Answered by `Data`.
    WantData(WantData),
    /// Founder to joiner: a piece of the data file, as payload.
    Data(DataPiece),
    /// Joiner to founder: task and data are at hand; count me in the first view.
    Ready,
    /// Founder to every member: this is the view.
    Install(View),
    /// Member to member: a segment of a collective, as payload. Out of place outside the view it names.
    Segment(Segment),
    /// Member to every member: the last step is complete here; nothing more is needed from others but this. The sender
    /// stays, with what others still need of it, until each of them has said the same.
    Complete(Complete),
    /// Member to every member, or before the first view joiner to founder and founder to every joiner: stopping, and why.
    Leave(Departure),
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
    /// How much it offers to own, 0 to [`WEIGHT_MAX`](crate::limits::WEIGHT_MAX).
    pub weight: u8,
}

/// What a run is, for a joiner to check and prepare.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// The specification's bytes; hashed with the nonce they give the run id.
    pub specification: Vec<u8>,
    /// The random bytes drawn when the run was founded.
    pub nonce: [u8; 32],
    /// Where `Ready` is to be sent, and where others who ask are referred to.
    pub founder: Contact,
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
    /// The first view is formed; this version admits nobody later.
    Started,
    /// The run has as many members as a view can have.
    Full,
    /// The one asked does not know the founder itself yet, or is the founder and still reads its data: ask again.
    NotYet,
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
    pub tally: Tally,
}

/// The two halves of an all-reduce, and what goes on beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Phase {
    /// On the way to the owner: a partial sum of contributions.
    Reduce,
    /// From the owner to everyone: the owner's result.
    Gather,
    /// From the owner to a keeper of copies: the owner's sums.
    Mirror,
}

/// What a sum of contributions is worth: added up beside the elements, in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct Tally {
    /// Samples behind the sum: the weight of a contribution.
    pub samples: u64,
    /// Sum of the samples' losses.
    pub loss: f64,
}

impl std::ops::AddAssign for Tally {
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
}

/// Why a member stops.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Departure {
    /// The member whose loss made it stop; `None` if it stops on its own account.
    pub lost: Option<PeerId>,
    /// In words for people.
    pub reason: String,
}

impl Departure {
    /// A departure with as much of the reason as a frame may carry, in whole characters.
    #[must_use]
    pub fn new(lost: Option<PeerId>, reason: &str) -> Self {
        let ends = reason.char_indices().map(|(start, letter)| start + letter.len_utf8());
        let end = ends.take_while(|end| *end <= REASON_BYTES_MAX).last().unwrap_or(0);
        Self { lost, reason: reason[..end].to_owned() }
    }
}

/// A message decoded as its type but breaking a rule: counted against its sender and otherwise ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A list or text is over its limit.
    #[error("a field is over its limit")]
    TooLong,
    /// A number is not finite or out of its range.
    #[error("a number is out of range")]
    OutOfRange,
    /// A view record breaks the rules of views.
    #[error("not a view: {0}")]
    View(#[from] crate::view::InvalidView),
}

impl Message {
    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// Says which kind of rule is broken.
    pub fn validate(&self) -> Result<(), Invalid> {
        let bounded = |is_bounded: bool| {
            if is_bounded { Ok(()) } else { Err(Invalid::TooLong) }
        };
        match self {
            Self::Join(join) if join.weight > crate::limits::WEIGHT_MAX => Err(Invalid::OutOfRange),
            Self::Join(join) => bounded(are_bounded(&join.addresses)),
            Self::Welcome(welcome) => bounded(
                welcome.specification.len() <= SPECIFICATION_BYTES_MAX
                    && are_bounded(&welcome.founder.addresses),
            ),
            Self::Refer(contact) => bounded(are_bounded(&contact.addresses)),
            Self::Install(view) => Ok(view.validate()?),
            Self::Leave(departure) => bounded(departure.reason.len() <= REASON_BYTES_MAX),
            // A loss may be infinite or not a number (that is how divergence shows); the samples must add up.
            Self::Segment(segment)
                if segment.tally.samples > u64::from(u32::MAX) || segment.step.0 > STEPS_MAX =>
            {
                Err(Invalid::OutOfRange)
            }
            Self::Complete(complete) if complete.steps.0 > STEPS_MAX => Err(Invalid::OutOfRange),
            Self::Segment(_)
            | Self::Refuse(_)
            | Self::WantData(_)
            | Self::Data(_)
            | Self::Ready
            | Self::Complete(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let departure = Departure::new(None, &"ö".repeat(REASON_BYTES_MAX));
        assert_eq!(departure.reason.len(), REASON_BYTES_MAX);
        assert_eq!(Message::Leave(departure).validate(), Ok(()));
        assert_eq!(Departure::new(None, "gone").reason, "gone");
    }
}
