//! What lineages say to each other that meet again, after a swarm was cut in two and both parts have gone on.
//!
//! ```text
//! lineage that yields                              lineage that leads
//!   member <---- MergeProbe, until one of the two decides ----> member        each tells its coordinator
//!   coordinator -- TakeSnapshot --> members: keep what you have after that step
//!   coordinator -- MergeOffer -------------------------------> coordinator -- MergeOffer --> members
//!            <--------------------------------- MergeProbe     it is seen to
//!   members <-- WantSnapshot ------------------------- members             each fetches what of it it keeps
//!   members --- SnapshotChunks ----------------------------> members -- MergeReady --> coordinator
//!   coordinator -- MergeOffer -------------------------------> coordinator            a view merges it, and its first step is behind
//!            <-------------------------------- MergeAccept
//! ```
//! Where only one of them stays, the coordinator of the other offers to yield (`MergeProbe`), and that of the first answers with `MergeAccept`.
//! When the members of a lineage that yields have heard that, they come to the other one as newcomers.

use super::{ChunkBatch, ChunkContent, Contact, Invalid, bounded, in_range, is_step};
use crate::chunk_set::ChunkSet;
use crate::cursor::DataCursor;
use crate::id::{PeerId, RunId, StepNumber, ViewDigest};
use crate::limits::{ANCESTORS_MAX, CONTACTS_MAX, MEMBERS_MAX, SAMPLES_MAX, STEPS_MAX};
use crate::view::{Ancestor, are_bounded};
use crate::wire::codec::{Decode, Encode};

/// A message about two lineages that become one.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum MergeMessage {
    /// Member to a peer in another lineage of the run, and from there to its coordinator: this is where we are.
    Probe(MergeProbe),
    /// Coordinator of a lineage that yields to that of the other, and from there to its members: this state is left to you.
    /// Repeated until the other lineage has merged it.
    Offer(MergeOffer),
    /// Member of the lineage that leads to a member of the one that yields: send me these chunks. The answer is `SnapshotChunks`,
    /// with as many of them as make a chunk batch.
    WantSnapshot(WantSnapshot),
    /// The answer: chunks, as payload.
    SnapshotChunks(SnapshotChunks),
    /// Member to its coordinator: what this member needs of another lineage is here.
    Ready(MergeReady),
    /// Coordinator to that of a lineage which has offered to yield, and from there to its members: join this one.
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

/// Where a lineage stands, for another one of the same run.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MergeProbe {
    /// The run of both.
    pub run: RunId,
    /// The sender's view.
    pub view: ViewDigest,
    /// Committed steps behind it.
    pub steps: StepNumber,
    /// Samples that they have trained.
    pub trained: u64,
    /// The views that it comes from.
    pub ancestors: Vec<Ancestor>,
    /// Who speaks for that lineage.
    pub coordinator: Contact,
    /// Which of the two is to yield, by its view, once that is decided.
    pub yields: Option<ViewDigest>,
    /// What an answer is to name, so that an old one does not count; 0: it is no question.
    pub question: u64,
    /// The question that it answers; 0: none.
    pub answers: u64,
}

/// What a lineage leaves to the one that it yields to.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MergeOffer {
    /// The view of the lineage that yields.
    pub view: ViewDigest,
    /// Its state is that after so many steps.
    pub steps: StepNumber,
    /// The bookmark after them.
    pub cursor: DataCursor,
    /// Samples that were trained up to there.
    pub trained: u64,
    /// The views that it comes from.
    pub ancestors: Vec<Ancestor>,
    /// Who keeps what of the state; every one of them has all parameters.
    pub donors: Vec<SnapshotDonor>,
    /// Which of them speaks for that lineage.
    pub coordinator: PeerId,
    /// What an answer is to name, as in [`MergeProbe`].
    pub question: u64,
}

/// What one member of the lineage that yields can give.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SnapshotDonor {
    /// Who.
    pub contact: Contact,
    /// The chunks whose optimizer state it keeps.
    pub states: ChunkSet,
}

/// How far a member is with what it needs of another lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MergeReady {
    /// The view that it needs it in.
    pub recipients: ViewDigest,
    /// As in [`MergeOffer`].
    pub view: ViewDigest,
    /// As in [`MergeOffer`].
    pub steps: StepNumber,
    /// Chunks that it lacks something of.
    pub missing: u32,
}

/// A request for chunks of another lineage.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantSnapshot {
    /// As in [`MergeOffer`].
    pub view: ViewDigest,
    /// As in [`MergeOffer`].
    pub steps: StepNumber,
    /// What of the chunks.
    pub content: ChunkContent,
    /// Which.
    pub chunks: ChunkSet,
}

/// Chunks of another lineage, end to end in the payload.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SnapshotChunks {
    /// As in [`MergeOffer`].
    pub view: ViewDigest,
    /// The chunks.
    pub batch: ChunkBatch,
}

/// A lineage ends: its members are to join another one. Of the coordinator there to that of the lineage that ends, and from there
/// to its members.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MergeAccept {
    /// The view of the lineage that ends.
    pub view: ViewDigest,
    /// As in the [`MergeProbe`] or the [`MergeOffer`] that it answers.
    pub question: u64,
    /// What it has left is merged.
    pub is_merged: bool,
    /// Members of the other one.
    pub contacts: Vec<Contact>,
}

impl MergeProbe {
    /// The views that the sender's lineage comes from, its own among them.
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
    /// The views that the lineage comes from, its own among them.
    #[must_use]
    pub fn history(&self) -> Vec<Ancestor> {
        history(&self.ancestors, self.view, self.trained)
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.ancestors.len() <= ANCESTORS_MAX
            && self.donors.len() <= MEMBERS_MAX
            && self.donors.iter().all(|donor| are_bounded(&donor.contact.addresses))
    }

    /// Who speaks for the lineage that leaves it, if it says so.
    #[must_use]
    pub fn coordinator(&self) -> Option<&Contact> {
        let donors = self.donors.iter().map(|donor| &donor.contact);
        donors.into_iter().find(|contact| contact.peer == self.coordinator)
    }

    /// Whether it is the same, asked anew or not.
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
