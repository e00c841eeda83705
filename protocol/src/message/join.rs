//! Messages between a joiner and the member that admits it, from the first request to the first view.
//!
//! ```text
//! joiner                        member                         coordinator (the lowest rank that has parameters)
//!   | -- Join -------------------> |                              |
//!   | <-- Welcome / Refuse ------- |   (Redirect, if a joiner is asked before the first view)
//!   | -- WantData ---------------> |   (only if the joiner has no file with that digest)
//!   | <------------ Data ...------ |                              |
//!   | -- Ready ------------------> | -- Candidate --------------> |
//! ```
//! The conversation ends with the view that has the joiner as a member: [`Install`](super::AgreementMessage::Install).

use super::{Contact, Invalid, bounded};
use crate::id::{ContentDigest, Incarnation, PeerId, RunId};
use crate::limits::{CAPACITY_MAX, CONTACTS_MAX, SPECIFICATION_BYTES_MAX};
use crate::view::{Expulsion, Member, are_bounded};
use crate::wire::codec::{Decode, Encode};

/// A message about the admission of a peer.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum JoinMessage {
    /// Joiner to any member: a request to join. It is repeated until the answer: `Welcome`, `Redirect` or `Refuse`.
    Join(Join),
    /// Member to joiner: the definition of the run, and other members.
    Welcome(Welcome),
    /// Joiner to joiner, before the first view: the peer to ask instead.
    Redirect(Contact),
    /// Member to joiner: the request is refused. This is final unless the reason says otherwise.
    Refuse(Refusal),
    /// Joiner to the member that has welcomed it: a request for a piece of the data file. The answer is `Data`.
    WantData(WantData),
    /// Member to joiner: a piece of the data file, as payload.
    Data(DataPiece),
    /// Joiner to the member that has welcomed it: the task and its data are loaded, and all members that `Welcome` named are linked. With
    /// the digest of the parameters that the sender would begin a run with: only peers with equal ones can begin it together.
    Ready(ContentDigest),
    /// Member to coordinator: this peer is ready to become a member. Repeated until it is one, or is gone.
    Candidate(Member),
}

/// A joiner's request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Join {
    /// The run that the joiner was invited to; `None` if its user gave only an address and the secret.
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
    /// Members to dial, and to ask if the sender stops. The sender comes first.
    pub members: Vec<Contact>,
    /// Those of `members` that own nothing: a joiner that owns nothing either need not reach them itself.
    pub non_owners: Vec<PeerId>,
}

/// Why a joiner is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Refusal {
    /// The invite is of another run.
    OtherRun {
        /// The run of the peer that was asked.
        run: RunId,
    },
    /// The run has as many members as a view can have.
    Full,
    /// The run is over: its last step is complete.
    RunComplete,
    /// A member with the same identity is alive: one of the two machines uses a copy of the other's data directory.
    DuplicateIdentity,
    /// The peer that was asked is not a member yet, or is still reading its data: the joiner asks again.
    NotReady,
    /// The members have expelled the joiner.
    Expelled(Expulsion),
}

/// A request for one piece of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantData {
    /// Digest of the whole file.
    pub digest: ContentDigest,
    /// The first byte of the piece, which has [`DATA_PIECE_BYTES_MAX`](crate::limits::DATA_PIECE_BYTES_MAX) bytes, or the rest of the file.
    pub offset: u64,
}

/// The position of a payload in the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DataPiece {
    /// Digest of the whole file.
    pub digest: ContentDigest,
    /// The position of the payload's first byte in the file.
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
            Self::Refuse(_) | Self::WantData(_) | Self::Data(_) | Self::Ready(_) => Ok(()),
        }
    }
}
