//! What a joiner and the member that lets it in say to each other, from the first request to the first view.
//!
//! ```text
//! joiner                        member                         coordinator (the lowest rank that has parameters)
//!   | -- Join -------------------> |                              |
//!   | <-- Welcome / Refuse ------- |   (before the first view a joiner that is asked itself: Redirect)
//!   | -- WantData (only if no file of that digest is at hand) --> |
//!   | <------------ Data ...------ |                              |
//!   | -- Ready ------------------> | -- Candidate --------------> |
//! ```
//! The answer to all of it is the view that has the joiner in it: [`Install`](super::AgreementMessage::Install).

use super::{Contact, Invalid, bounded};
use crate::id::{ContentDigest, Incarnation, PeerId, RunId};
use crate::limits::{CAPACITY_MAX, CONTACTS_MAX, SPECIFICATION_BYTES_MAX};
use crate::view::{Expulsion, Member, are_bounded};
use crate::wire::codec::{Decode, Encode};

/// A message about one peer's way into the run.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum JoinMessage {
    /// Joiner to any member: let me in. The answer is `Welcome`, `Redirect` or `Refuse`; the joiner repeats its request until then.
    Join(Join),
    /// Member to joiner: what this run is, and who else is in it.
    Welcome(Welcome),
    /// Joiner to joiner, before the first view: ask this peer instead.
    Redirect(Contact),
    /// Member to joiner: no, and why. Final unless the reason says otherwise.
    Refuse(Refusal),
    /// Joiner to the member that has welcomed it: send a piece of the data file. The answer is `Data`.
    WantData(WantData),
    /// Member to joiner: a piece of the data file, as payload.
    Data(DataPiece),
    /// Joiner to the member that has welcomed it: the task and its data are loaded, and all members that `Welcome` named are linked.
    Ready,
    /// Member to coordinator: this peer is ready to come in. Repeated until the peer is in the view, or gone.
    Candidate(Member),
}

/// A joiner's request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Join {
    /// The run that the joiner was invited to; `None` when its user gave only an address and the secret.
    pub run: Option<RunId>,
    /// The joiner's incarnation.
    pub incarnation: Incarnation,
    /// The addresses at which others can dial the joiner, best first.
    pub addresses: Vec<String>,
    /// The share of the state that the joiner offers to own, 0 to [`CAPACITY_MAX`].
    pub capacity: u8,
}

/// A description of the run, for a joiner to check and prepare.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// The specification's bytes; the hash of these and the nonce is the run id.
    pub specification: Vec<u8>,
    /// The random bytes drawn when the run was founded.
    pub nonce: [u8; 32],
    /// Members to dial, and to ask if the sender goes. The sender comes first.
    pub members: Vec<Contact>,
    /// Those of `members` that own nothing: a joiner that owns nothing either need not reach them itself.
    pub non_owners: Vec<PeerId>,
}

/// Why a joiner is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Refusal {
    /// The invite is of another run.
    OtherRun {
        /// The run of the peer that refuses.
        run: RunId,
    },
    /// The run has as many members as a view can have.
    Full,
    /// The run is over: its last step is complete.
    RunComplete,
    /// A member with the same identity is alive: one of the two machines uses a copy of the other's data directory.
    DuplicateIdentity,
    /// The peer that was asked is not in the run itself yet, or still reads its data: ask again.
    NotReady,
    /// The members have put the joiner out of the run for good.
    Expelled(Expulsion),
}

/// A request for one piece of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantData {
    /// Digest of the whole file.
    pub digest: ContentDigest,
    /// First byte wanted; the piece has [`DATA_PIECE_BYTES_MAX`](crate::limits::DATA_PIECE_BYTES_MAX) bytes, or what is left.
    pub offset: u64,
}

/// Which piece of the data file the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DataPiece {
    /// Digest of the whole file.
    pub digest: ContentDigest,
    /// The payload's first byte in the file.
    pub offset: u64,
}

impl JoinMessage {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Join(join) if join.capacity > CAPACITY_MAX => Err(Invalid::OutOfRange),
            Self::Join(join) => bounded(are_bounded(&join.addresses)),
            Self::Welcome(welcome) => bounded(
                welcome.specification.len() <= SPECIFICATION_BYTES_MAX
                    && welcome.members.len() <= CONTACTS_MAX
                    && welcome.non_owners.len() <= welcome.members.len()
                    && welcome.members.iter().all(|contact| are_bounded(&contact.addresses)),
            ),
            Self::Redirect(contact) => bounded(are_bounded(&contact.addresses)),
            Self::Candidate(member) if member.capacity > CAPACITY_MAX => Err(Invalid::OutOfRange),
            Self::Candidate(member) => bounded(are_bounded(&member.addresses)),
            Self::Refuse(_) | Self::WantData(_) | Self::Data(_) | Self::Ready => Ok(()),
        }
    }
}
