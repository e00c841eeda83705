//! Messages between two branches of a run that meet again, after both parts of a partitioned swarm have continued.
//!
//! ```text
//! branch that yields                               branch that leads
//!   member <---- MergeProbe, until it is decided which yields --> member      each forwards it to its coordinator
//!   coordinator -- TakeSnapshot --> members: keep the state after that step
//!   coordinator -- MergeOffer -------------------------------> coordinator -- MergeOffer --> members
//!            <--------------------------------- MergeProbe     confirms the offer
//!   members <-- WantSnapshot ------------------------- members             each requests the chunks that it stores
//!   members --- SnapshotChunks ----------------------------> members -- MergeReady --> coordinator
//!   coordinator -- MergeOffer (repeated) --------------------> coordinator            a view merges it, and its first step is committed
//!            <-------------------------------- MergeAccept
//! ```
//! If the policy keeps only one branch, the coordinator of the other one offers to yield (`MergeProbe`), and the answer is `MergeAccept`.
//! After `MergeAccept`, the members of the branch that yields join the other one as newcomers.

use super::{ChunkBatch, ChunkContent, Contact, Invalid, bounded, in_range, is_step};
use crate::chunk_set::ChunkSet;
use crate::cursor::DataCursor;
use crate::id::{PeerId, RunId, StepNumber, ViewDigest};
use crate::limits::{ANCESTORS_MAX, CONTACTS_MAX, MEMBERS_MAX, SAMPLES_MAX, STEPS_MAX};
use crate::view::{Ancestor, are_bounded};
use crate::wire::codec::{Decode, Encode};

/// A message about the merge of two branches.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum MergeMessage {
    /// Member to a peer on another branch of the run, and from there to its coordinator: the progress of the sender's branch.
    Probe(MergeProbe),
    /// Coordinator of the branch that yields to that of the other, and from there to its members: a snapshot to merge. Repeated until the
    /// other branch has merged it.
    Offer(MergeOffer),
    /// Member of the branch that leads to a member of the one that yields: a request for chunks of the snapshot. The answer is
    /// `SnapshotChunks`, with as many of them as fit into a chunk batch.
    WantSnapshot(WantSnapshot),
    /// The answer: chunks of the snapshot, as payload.
    SnapshotChunks(SnapshotChunks),
    /// Member to its coordinator: how much of the snapshot the member lacks.
    Ready(MergeReady),
    /// Coordinator to that of a branch which has offered to yield, and from there to its members: join this branch.
    Accept(MergeAccept),
}

impl MergeMessage {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Probe(probe) if !probe.is_bounded() => Err(Invalid::TooLong),
            Self::Probe(probe) => in_range(probe.is_possible()),
            Self::Offer(offer) if !offer.is_bounded() => Err(Invalid::TooLong),
            Self::Offer(offer) => in_range(offer.is_possible()),
            Self::WantSnapshot(want) => in_range(want.chunks.is_valid() && is_step(want.steps)),
            Self::SnapshotChunks(chunks) => chunks.batch.validate(),
            Self::Ready(ready) => in_range(is_step(ready.steps)),
            Self::Accept(accept) => bounded(accept.is_bounded()),
        }
    }
}

/// The progress of a branch, for another branch of the same run.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MergeProbe {
    /// The run of both.
    pub run: RunId,
    /// The sender's view.
    pub view: ViewDigest,
    /// The number of committed steps of the sender's branch.
    pub steps: StepNumber,
    /// The number of samples that these steps have trained.
    pub trained: u64,
    /// The views that this view descends from.
    pub ancestors: Vec<Ancestor>,
    /// The coordinator of the sender's branch.
    pub coordinator: Contact,
    /// The view of the branch that is to yield; `None` until that is decided.
    pub yields: Option<ViewDigest>,
    /// A number that the answer repeats, so that an old answer is recognized; 0 if no answer is expected.
    pub question: u64,
    /// The number of the question that this message answers; 0 if it answers none.
    pub answers: u64,
}

/// The description of the snapshot that a branch offers to the one that it yields to.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MergeOffer {
    /// The view of the branch that yields.
    pub view: ViewDigest,
    /// The number of steps in the snapshot.
    pub steps: StepNumber,
    /// The data cursor after these steps.
    pub cursor: DataCursor,
    /// The number of samples that these steps have trained.
    pub trained: u64,
    /// The views that this view descends from.
    pub ancestors: Vec<Ancestor>,
    /// The members that store the snapshot. Each of them has all parameters.
    pub donors: Vec<SnapshotDonor>,
    /// The coordinator, one of the donors.
    pub coordinator: PeerId,
    /// A number that the answer repeats, as in [`MergeProbe`].
    pub question: u64,
}

/// A member of the branch that yields, and its part of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SnapshotDonor {
    /// The member.
    pub contact: Contact,
    /// The chunks whose optimizer state it stores.
    pub states: ChunkSet,
}

/// The progress of a member in fetching its part of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MergeReady {
    /// The view of the members that fetch the snapshot.
    pub recipients: ViewDigest,
    /// As in [`MergeOffer`].
    pub view: ViewDigest,
    /// As in [`MergeOffer`].
    pub steps: StepNumber,
    /// The number of chunks that it has not received completely.
    pub missing: u32,
}

/// A request for chunks of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantSnapshot {
    /// As in [`MergeOffer`].
    pub view: ViewDigest,
    /// As in [`MergeOffer`].
    pub steps: StepNumber,
    /// Whether their values or their optimizer state is requested.
    pub content: ChunkContent,
    /// The requested chunks.
    pub chunks: ChunkSet,
}

/// Chunks of a snapshot, one after the other in the payload.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SnapshotChunks {
    /// As in [`MergeOffer`].
    pub view: ViewDigest,
    /// The chunks.
    pub batch: ChunkBatch,
}

/// The end of a branch: its members are to join another one. The coordinator of that one sends it to the coordinator of the branch that
/// ends, and that one to its members.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MergeAccept {
    /// The view of the branch that ends.
    pub view: ViewDigest,
    /// The question of the [`MergeProbe`] or the [`MergeOffer`] that this message answers.
    pub question: u64,
    /// Whether the snapshot of that branch was merged.
    pub is_merged: bool,
    /// Members of the branch to join.
    pub contacts: Vec<Contact>,
}

impl MergeProbe {
    /// The views that the sender's branch descends from, and the sender's view.
    #[must_use]
    pub fn history(&self) -> Vec<Ancestor> {
        history(&self.ancestors, self.view, self.trained)
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.ancestors.len() <= ANCESTORS_MAX && are_bounded(&self.coordinator.addresses)
    }

    pub(super) fn is_possible(&self) -> bool {
        self.steps.0 <= STEPS_MAX && are_possible(self.trained, &self.ancestors)
    }
}

impl MergeOffer {
    /// The views that the branch descends from, and its present view.
    #[must_use]
    pub fn history(&self) -> Vec<Ancestor> {
        history(&self.ancestors, self.view, self.trained)
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.ancestors.len() <= ANCESTORS_MAX
            && self.donors.len() <= MEMBERS_MAX
            && self.donors.iter().all(|donor| are_bounded(&donor.contact.addresses))
    }

    /// The coordinator of the branch that yields; `None` if it is none of the donors.
    #[must_use]
    pub fn coordinator(&self) -> Option<&Contact> {
        let donors = self.donors.iter().map(|donor| &donor.contact);
        donors.into_iter().find(|contact| contact.peer == self.coordinator)
    }

    /// Whether both describe the same snapshot, whatever question they answer.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.view, self.steps, &self.donors) == (other.view, other.steps, &other.donors)
    }

    pub(super) fn is_possible(&self) -> bool {
        self.steps.0 <= STEPS_MAX
            && self.cursor.is_valid()
            && are_possible(self.trained, &self.ancestors)
            && self.donors.iter().all(|donor| donor.states.is_valid())
    }
}

impl MergeAccept {
    pub(super) fn is_bounded(&self) -> bool {
        self.contacts.len() <= CONTACTS_MAX
            && self.contacts.iter().all(|contact| are_bounded(&contact.addresses))
    }
}

fn history(ancestors: &[Ancestor], view: ViewDigest, trained: u64) -> Vec<Ancestor> {
    ancestors.iter().copied().chain([Ancestor { view, trained }]).collect()
}

fn are_possible(trained: u64, ancestors: &[Ancestor]) -> bool {
    ancestors.iter().map(|ancestor| ancestor.trained).chain([trained]).all(|trained| trained <= SAMPLES_MAX)
}
